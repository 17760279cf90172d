"""Old versions go into an archive and come back; at no moment is anything lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.names import checkpoint_key
from deltalakedb.errors import (
    ArchiveError,
    CatalogBusyError,
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
    HistoryExpiredError,
    StorageError,
    TableNotFoundError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.mirror.archive import schema_of
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.mirror.expire import expire_table
from deltalakedb.mirror.restore import restore_expired
from deltalakedb.snapshot.page_builder import make_pages
from deltalakedb.storage import Storage
from deltalakedb.store.retention import EXPIRING
from deltalakedb.table import Table

from fix_history import all_rows, mark_published
from fix_lake import OpenLake, add, live_paths, new_lake_table, remove, schema_json
from fix_published import folder_of, publish, storage_of

DAY_MS = 86_400_000
LAST = 9


class KilledError(BaseException):
    """The process ends here."""


def aged(lake: Lake, name: str = "sales.orders", **options: Any) -> Table:
    """A table of versions 0 to 9, a day apart: each adds a file and removes the one before."""
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = new_lake_table(lake, name, **options)
    for version in range(1, LAST + 1):
        clock.advance(DAY_MS)
        gone = [remove(f"f{version - 1}")] if version > 1 else []
        table.commit([add(f"f{version}"), *gone], app_txn=("app", version))
    mark_published(lake, table)
    return table


def versions(table: Table) -> list[int]:
    return [record.version for record in table.history(limit=None)][::-1]


# --- what goes ----------------------------------------------------------------------------


def test_the_version_that_was_newest_at_the_cutoff_stays(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    half_a_day = timedelta(days=3, hours=12)
    expired = lake.expire(table.name, older_than=half_a_day, archive=str(tmp_path))
    assert (expired.first_version, expired.last_version, expired.versions) == (0, 4, 5)
    assert expired.oldest_version == 5
    assert versions(table) == [5, 6, 7, 8, 9]
    moment = datetime.fromtimestamp(expired.cutoff / 1000, UTC)
    assert table.snapshot(timestamp=moment).version == 5
    assert live_paths(table, 5) == ["f5"]
    assert live_paths(table) == ["f9"]
    with pytest.raises(VersionNotFoundError, match=r"versions 5 .* to 9"):
        table.snapshot(4)
    with pytest.raises(VersionNotFoundError, match="before the first commit"):
        table.snapshot(timestamp=moment - timedelta(days=2))


def test_the_default_is_the_log_retention_of_the_table(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    assert lake.expire(table.name, archive=str(tmp_path)).versions == 0
    table.set_properties({"delta.logRetentionDuration": "interval 2 days"})
    expired = lake.expire(table.name, archive=str(tmp_path))
    assert expired.last_version == 6
    assert list(tmp_path.iterdir()) != []


@pytest.mark.parametrize("older_than", ["2 days", "interval 48 hours", timedelta(days=2)])
def test_ages_are_intervals_or_text(lake: Lake, tmp_path: Path, older_than: Any) -> None:
    table = aged(lake)
    assert lake.expire(table.name, older_than=older_than, archive=str(tmp_path)).versions == 7


def test_a_moment_is_as_good_as_an_age(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    moment = table.snapshot(4).timestamp
    expired = lake.expire(table.name, older_than=moment, archive=str(tmp_path))
    assert expired.oldest_version == 4


@pytest.mark.parametrize(
    ("older_than", "words"),
    [
        (timedelta(days=-1), "lies in the future"),
        ("a while", "as an interval"),
        (7, "no length of time"),
        (datetime(2100, 1, 1, tzinfo=UTC), "lies in the future"),
    ],
)
def test_an_age_that_is_none_is_refused(
    lake: Lake, tmp_path: Path, older_than: Any, words: str
) -> None:
    table = aged(lake)
    with pytest.raises(ConfigurationError, match=words):
        lake.expire(table.name, older_than=older_than, archive=str(tmp_path))
    assert versions(table) == list(range(LAST + 1))


def test_versions_that_are_not_published_stay(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    text = "UPDATE dl_mirror_status SET status = 'FAILED' WHERE version = 3"
    with lake.store.write() as session:
        session.execute_count(lake.store.dialect.sql(text), {})
    expired = lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    assert expired.oldest_version == 3
    assert lake.expire(table.name, older_than="0 days", archive=str(tmp_path)).versions == 0


def test_a_dry_run_tells_what_would_go_and_changes_nothing(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    told = lake.expire(table.name, older_than="2 days", dry_run=True)
    assert told.dry_run
    assert told.archive is None
    assert all_rows(lake, table) == before
    done = lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    assert done.rows == told.rows
    assert (done.first_version, done.last_version) == (told.first_version, told.last_version)
    assert json.loads(json.dumps(done.to_dict()))["versions"] == 7


def test_rows_that_no_retained_version_needs_go(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake, properties={"delta.deletedFileRetentionDuration": "1 day"})
    expired = lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    # Left are: the live file, and the newest protocol, metaData and txn.
    left = {name: len(rows) for name, rows in all_rows(lake, table).items() if rows}
    assert left == {
        "dl_tables": 1,
        "dl_table_heads": 1,
        "dl_table_versions": 1,
        "dl_protocol_updates": 1,
        "dl_metadata_updates": 1,
        "dl_txn_actions": 1,
        "dl_remove_files": 1,  # of version 9 itself
        "dl_add_files": 1,
        "dl_active_files": 1,
        "dl_mirror_status": 1,
    }
    assert expired.rows["dl_table_versions"] == 9
    assert table.snapshot().app_transactions == {"app": 9}


def test_removes_whose_files_vacuum_must_spare_stay(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake, properties={"delta.deletedFileRetentionDuration": "100 days"})
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    assert len(all_rows(lake, table)["dl_remove_files"]) == 8
    assert live_paths(table) == ["f9"]
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []


def test_an_app_transaction_of_an_expired_version_still_counts(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    assert table.commit([add("again")], app_txn=("app", 9)).already_committed
    assert live_paths(table) == ["f9"]


def test_checkpoints_say_the_same_before_and_after(lake: Lake, tmp_path: Path) -> None:
    keeps = {"delta.deletedFileRetentionDuration": "100 days"}
    table = lake.create_table(
        "t", location=str(tmp_path / "t"), schema=schema_json("id"), properties=keeps
    )
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    for version in range(1, LAST + 1):
        clock.advance(DAY_MS)
        gone = [remove(f"f{version - 1}")] if version > 1 else []
        table.commit([add(f"f{version}"), *gone], app_txn=(f"app{version % 2}", version))
    publish(lake, table)

    def checkpointed(version: int) -> list[str]:
        key = checkpoint_key(version)
        record, storage = table._record, storage_of(table)
        write_checkpoint(lake.store, storage, record, version)
        rows = pq.read_table(folder_of(table) / key).to_pylist()
        storage.delete(key)
        return sorted(map(repr, rows))

    before = {version: checkpointed(version) for version in (7, 9)}
    assert lake.expire(table.name, older_than="2 days", archive=str(tmp_path)).versions == 7
    assert {version: checkpointed(version) for version in (7, 9)} == before
    assert lake.expire(table.name, older_than="0 days", archive=str(tmp_path)).versions == 2
    assert checkpointed(9) == before[9]


# --- refusals -----------------------------------------------------------------------------


def test_without_an_archive_nothing_goes(lake: Lake) -> None:
    table = aged(lake)
    with pytest.raises(ConfigurationError, match="archive"):
        lake.expire(table.name, older_than="0 days")
    assert versions(table) == list(range(LAST + 1))


def test_an_unknown_table_is_told_as_such(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        lake.expire("nobody", archive=str(tmp_path))
    with pytest.raises(TableNotFoundError):
        lake.restore_expired("nobody", str(tmp_path))


def test_an_archive_that_cannot_be_written_costs_nothing(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StorageError):
        lake.expire(table.name, older_than="0 days", archive=str(blocked))
    assert all_rows(lake, table) == before


def test_a_catalog_that_contradicts_itself_is_refused(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    with lake.store.write() as session:
        session.execute_count("DELETE FROM dl_active_files WHERE path = 'f9'", {})
    with pytest.raises(CorruptCatalogError, match="rebuild"):
        lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    assert versions(table) == list(range(LAST + 1))
    assert list(tmp_path.iterdir()) == []


def test_two_that_expire_at_once_do_not_delete_twice(
    lake: Lake, open_lake: OpenLake, tmp_path: Path
) -> None:
    table = aged(lake)
    other = open_lake()

    def meanwhile(step: str) -> None:
        if step == "manifest":
            other.expire(table.name, older_than="5 days", archive=str(tmp_path / "other"))

    with pytest.raises(CatalogBusyError, match="Another process"):
        expire_with(lake, table, tmp_path, meanwhile)
    assert versions(table) == [4, 5, 6, 7, 8, 9]
    other.restore_expired(table.name, str(tmp_path / "other"))
    assert versions(table) == list(range(LAST + 1))


def test_rows_that_were_not_archived_are_not_deleted(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)

    def meanwhile(step: str) -> None:
        if step == "manifest":
            text = "DELETE FROM dl_txn_actions WHERE version = 2"
            with lake.store.write() as session:
                session.execute_count(text, {})

    with pytest.raises(CatalogBusyError, match="dl_txn_actions has 5 rows to expire"):
        expire_with(lake, table, tmp_path, meanwhile)
    assert versions(table) == list(range(LAST + 1))


def test_a_table_that_is_dropped_meanwhile_is_told_as_such(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)

    def meanwhile(step: str) -> None:
        if step == "manifest":
            lake.drop_table(table.name)

    with pytest.raises(TableNotFoundError, match="dropped"):
        expire_with(lake, table, tmp_path, meanwhile)


# --- readers and writers of expired versions ----------------------------------------------


def test_a_snapshot_whose_version_expires_refuses_to_list(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    old = table.snapshot(3)
    assert old.has_file("f3")
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    asked: list[Callable[[], object]] = [
        old.files,
        lambda: old.files("id = 1"),
        lambda: old.files(limit=1),
        lambda: list(old.iter_files()),
        lambda: list(old.iter_files(where="id = 1")),
        lambda: old.has_file("f3"),
        lambda: old.app_transactions,
        lambda: old.domain_metadata,
    ]
    for ask in asked:
        with pytest.raises(VersionNotFoundError, match="no version 3"):
            ask()


def test_an_old_snapshot_of_a_planned_table_refuses_too(lake: Lake, tmp_path: Path) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = new_lake_table(lake, partition_by=["day"])
    table.commit([add(f"f{n}", values={"day": str(n)}) for n in range(20)])
    old = table.snapshot()
    clock.advance(DAY_MS)
    table.commit([remove("f7")])
    mark_published(lake, table)
    assert old.files("day = '7'").num_rows == 1
    assert old.files("day = '99'").num_rows == 0
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    for value in ("7", "8"):
        with pytest.raises(VersionNotFoundError):
            old.files(f"day = '{value}'")


def test_a_commit_from_before_what_expired_is_refused(lake: Lake, tmp_path: Path) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = aged(lake)
    stale = lake.table(table.name)
    with lake.transaction() as tx:
        part = tx.table(table.name)
        assert part.snapshot().version == LAST
        for number in range(3):
            table.commit([add(f"late{number}")])
        clock.advance(DAY_MS)
        mark_published(lake, table)
        lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
        part.add_actions([add("mine")])
        with pytest.raises(HistoryExpiredError, match="Versions 10 to 11 have expired") as refused:
            tx.commit()
        assert refused.value.retryable
        tx._open.clear()
    stale.refresh()
    stale.commit([add("mine")])
    assert "mine" in live_paths(table)


def test_pages_of_expired_versions_go_and_the_others_still_serve(
    lake: Lake, tmp_path: Path
) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = new_lake_table(lake)
    for version in range(1, 5):
        clock.advance(DAY_MS)
        gone = [remove(f"f{version - 1}.{n}") for n in range(600)] if version > 1 else []
        table.commit([add(f"f{version}.{n}") for n in range(600)] + gone)
        make_pages(lake.store, table._record, version)
    mark_published(lake, table)
    count = "SELECT count(*) FROM dl_file_pages"
    with lake.store.read() as session:
        (before,) = session.execute(count, {})
    lake.expire(table.name, older_than="1 day", archive=str(tmp_path))
    with lake.store.read() as session:
        (after,) = session.execute(count, {})
    assert 0 < after[0] < before[0]
    for version in (3, 4):
        assert table.snapshot(version).files().num_rows == 600
    lake.restore_expired(table.name, str(tmp_path))
    assert live_paths(table, 2) == sorted(f"f2.{n}" for n in range(600))
    assert "page_failures_total" not in lake.metrics.read()


def test_pages_that_end_before_the_horizon_are_made_anew(lake: Lake, tmp_path: Path) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = new_lake_table(lake)
    table.commit([add(f"f{n}") for n in range(600)])
    make_pages(lake.store, table._record, 1)
    clock.advance(DAY_MS)
    table.commit([remove("f0")])
    clock.advance(DAY_MS)
    table.commit([add("g")])
    mark_published(lake, table)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    with lake.store.read() as session:
        assert session.one("paged_table", table_id=table.table_id) == (3, 1)
    assert table.snapshot().files().num_rows == 600


# --- the archive --------------------------------------------------------------------------


def expire_with(lake: Lake, table: Table, folder: Path, step: Callable[[str], None]) -> None:
    storage = lake.open_storage(str(folder / "archive"))
    record = table._record
    expire_table(lake.store, record, older_than="2 days", archive=storage, step=step)


def the_run(folder: Path) -> Path:
    (manifest,) = folder.rglob("manifest.json")
    return manifest.parent


def test_the_archive_is_plain_parquet_with_the_columns_of_each_relation(
    lake: Lake, tmp_path: Path
) -> None:
    table = aged(lake)
    expired = lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    run = the_run(tmp_path)
    assert expired.archive == f"file://{run}"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["table_id"] == table.table_id
    assert (manifest["first_version"], manifest["last_version"]) == (0, 6)
    by_name = {relation.name: relation for relation in EXPIRING}
    for file in manifest["files"]:
        found = pq.read_table(run / file["key"])
        assert found.num_rows == file["rows"]
        assert found.schema.equals(schema_of(by_name[file["relation"]]))
    adds = pq.read_table(run / "dl_add_files-00000.parquet")
    assert dict(zip(adds["path"].to_pylist(), adds["kept"].to_pylist(), strict=True)) == {
        f"f{n}": False for n in range(1, 7)
    }


def test_many_rows_become_many_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.mirror.archive._MOST_ROWS", 3)
    monkeypatch.setattr("deltalakedb.store.retention._PAGE", 2)
    table = aged(lake)
    before = all_rows(lake, table)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    assert len(list(the_run(tmp_path).glob("dl_add_files-*.parquet"))) == 2
    lake.restore_expired(table.name, str(tmp_path))
    assert all_rows(lake, table) == before


def steps_of(lake: Lake, table: Table, folder: Path) -> list[str]:
    passed: list[str] = []
    expire_with(lake, table, folder, passed.append)
    restore_expired(
        lake.store, table._record, lake.open_storage(str(folder / "archive")), step=passed.append
    )
    return passed


def test_a_process_that_dies_between_two_steps_loses_nothing(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    passed = steps_of(lake, table, tmp_path / "first")
    assert all_rows(lake, table) == before
    assert "commit" in passed
    assert passed.index("manifest") < passed.index("delete dl_table_versions")
    steps = passed[: passed.index("deleted") + 1]
    for number, fatal in enumerate(steps):
        folder = tmp_path / str(number)

        def die(step: str, fatal: str = fatal) -> None:
            if step == fatal:
                raise KilledError

        with pytest.raises(KilledError):
            expire_with(lake, table, folder, die)
        done = fatal == "deleted"
        assert versions(table) == list(range(7 if done else 0, LAST + 1))
        if not done:
            assert all_rows(lake, table) == before
            expire_with(lake, table, folder, lambda _: None)
        for other in passed[len(steps) :]:

            def die_again(step: str, fatal: str = other) -> None:
                if step == fatal:
                    raise KilledError

            with pytest.raises(KilledError):
                restore(lake, table, folder, die_again)
            assert versions(table) == [7, 8, 9]
        restore(lake, table, folder, lambda _: None)
        assert all_rows(lake, table) == before


DYING = """
import os, signal, sys
import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.mirror.expire import expire_table

url, name, archive, now, fatal = sys.argv[1:]

def step(label):
    if label == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

lake = deltalakedb.connect(url, clock=ManualClock(int(now)), mirror="worker")
table = lake.table(name)._record
expire_table(lake.store, table, older_than="2 days", archive=lake.open_storage(archive), step=step)
"""


@pytest.mark.parametrize("fatal", ["manifest", "delete dl_add_files", "commit", "deleted"])
def test_a_process_that_is_killed_loses_nothing(
    catalog_url: str, tmp_path: Path, fatal: str
) -> None:
    with deltalakedb.connect(catalog_url, clock=ManualClock(), mirror="worker") as lake:
        table = aged(lake)
        before = all_rows(lake, table)
        now = lake.store.clock.now_ms()
    arguments = [catalog_url, table.name, str(tmp_path), str(now), fatal]
    died = subprocess.run([sys.executable, "-c", DYING, *arguments], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    with deltalakedb.connect(catalog_url, clock=ManualClock(now), mirror="worker") as lake:
        table = lake.table(table.name)
        if fatal == "deleted":
            assert versions(table) == [7, 8, 9]
            lake.restore_expired(table.name, str(tmp_path))
        assert all_rows(lake, table) == before


def restore(lake: Lake, table: Table, folder: Path, step: Callable[[str], None]) -> None:
    storage = lake.open_storage(str(folder / "archive"))
    restore_expired(lake.store, table._record, storage, step=step)


class Forgetful(Storage):
    """A store that says it has written what it has not."""

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data[:-1] if "dl_add_files" in key else data)


def test_an_archive_that_does_not_read_back_deletes_nothing(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    real = lake.open_storage(str(tmp_path))
    bad = Forgetful(real.location, real._open, folder=tmp_path)
    with pytest.raises(ArchiveError, match="dl_add_files"):
        expire_table(lake.store, table._record, older_than="0 days", archive=bad)
    assert all_rows(lake, table) == before
    assert list(tmp_path.rglob("manifest.json")) == []


# --- the way back -------------------------------------------------------------------------


def test_archives_come_back_in_the_reverse_order(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    first = lake.expire(table.name, older_than="6 days", archive=str(tmp_path))
    second = lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    assert first.archive is not None
    assert second.archive is not None
    with pytest.raises(ArchiveError, match="goes before version 7"):
        lake.restore_expired(table.name, first.archive)
    one = lake.restore_expired(table.name, second.archive)
    assert (one.first_version, one.last_version, one.archives) == (3, 6, (second.archive,))
    assert versions(table) == list(range(3, LAST + 1))
    lake.restore_expired(table.name, first.archive)
    assert all_rows(lake, table) == before
    lake.expire(table.name, older_than="6 days", archive=str(tmp_path / "a"))
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path / "a"))
    both = lake.restore_expired(table.name, str(tmp_path / "a"))
    assert (both.first_version, both.last_version, len(both.archives)) == (0, 6, 2)
    assert json.loads(json.dumps(both.to_dict()))["versions"] == 7
    assert all_rows(lake, table) == before


def test_what_was_committed_since_stays_when_the_past_comes_back(
    lake: Lake, tmp_path: Path
) -> None:
    table = aged(lake)
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    table.commit([add("new"), remove("f9")])
    lake.restore_expired(table.name, str(tmp_path))
    assert [live_paths(table, v) for v in (1, 6, 9, 10)] == [["f1"], ["f6"], ["f9"], ["new"]]
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []


def test_keys_of_planned_columns_are_those_of_today(lake: Lake, tmp_path: Path) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = new_lake_table(lake, partition_by=["day"])
    table.commit([add("a", values={"day": "1"})])
    clock.advance(DAY_MS)
    table.commit([remove("a"), add("b", values={"day": "2"})])
    mark_published(lake, table)
    before = all_rows(lake, table)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    lake.restore_expired(table.name, str(tmp_path))
    assert all_rows(lake, table) == before
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path / "2"))
    table.set_properties({"deltalakedb.planningColumns": "id"})
    lake.restore_expired(table.name, str(tmp_path / "2"))
    text = "SELECT path, key1_low, key1_high, key2_low, key2_high FROM dl_active_files"
    with lake.store.write() as session:
        keys = sorted(session.execute(text, {}))
        lake.store.rebuild_active_files(session, table.table_id)
        assert sorted(session.execute(text, {})) == keys
    assert {row[0] for row in keys if row[3] is not None} == {"a", "b"}
    assert table.snapshot(1).files("day = '1'").num_rows == 1


def spoil_file(run: Path) -> None:
    path = next(run.glob("dl_add_files-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def shorten_file(run: Path) -> None:
    path = next(run.glob("dl_add_files-*"))
    path.write_bytes(path.read_bytes()[:-1])


def lose_file(run: Path) -> None:
    next(run.glob("dl_add_files-*")).unlink()


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def no_json(run: Path) -> None:
    (run / "manifest.json").write_text("{")


def lose_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


OTHER_RELATION = {
    "relation": "dl_unknown",
    "key": "x.parquet",
    "rows": 0,
    "kept": 0,
    "size_bytes": 0,
    "sha256": "",
}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_file, "another digest"),
        (shorten_file, "bytes instead of"),
        (lose_file, "missing"),
        (lose_manifest, "no complete archive"),
        (no_json, "damaged"),
        (edit(format="something"), "not the manifest"),
        (edit(format_version=2), "format version 2"),
        (edit(surprise=1), "damaged"),
        (edit(files=[OTHER_RELATION]), "dl_unknown"),
    ],
)
def test_a_damaged_archive_changes_nothing(
    lake: Lake, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    table = aged(lake)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    before = all_rows(lake, table)
    spoil(the_run(tmp_path))
    with pytest.raises(ArchiveError, match=words):
        lake.restore_expired(table.name, str(tmp_path))
    assert all_rows(lake, table) == before


def test_the_archive_of_another_table_is_refused(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    other = aged(lake, "sales.others")
    expired = lake.expire(other.name, older_than="2 days", archive=str(tmp_path))
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path / "mine"))
    assert expired.archive is not None
    with pytest.raises(ArchiveError, match=r"another table, 'sales\.others'"):
        lake.restore_expired(table.name, expired.archive)
    with pytest.raises(ArchiveError, match="no complete archive"):
        lake.restore_expired(table.name, str(tmp_path))


def test_two_that_restore_at_once_do_not_restore_twice(
    lake: Lake, open_lake: OpenLake, tmp_path: Path
) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path / "archive"))
    other = open_lake()
    storage = lake.open_storage(str(tmp_path / "archive"))

    class Slow(Storage):
        def get(self, key: str) -> bytes:
            if "dl_table_versions" in key and versions(table)[0]:
                other.restore_expired(table.name, str(tmp_path / "archive"))
            return super().get(key)

    slow = Slow(storage.location, storage._open, folder=tmp_path / "archive")
    with pytest.raises(CatalogBusyError, match="Its oldest version is 0 now"):
        restore_expired(lake.store, table._record, slow)
    assert all_rows(lake, table) == before
    with pytest.raises(DeltaLakeDbError, match="goes before version 0"):
        lake.restore_expired(table.name, str(tmp_path / "archive"))
