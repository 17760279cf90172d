"""Old versions go into an archive and come back; at no moment is anything lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.names import checkpoint_key
from deltalakedb.errors import (
    CatalogBusyError,
    ConfigurationError,
    CorruptCatalogError,
    HistoryExpiredError,
    StorageError,
    TableNotFoundError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.retention.expire import expire_table
from deltalakedb.snapshot.page_builder import make_pages
from deltalakedb.table import Table

from support.catalog_rows import all_rows, mark_published
from support.lake import OpenLake, add, live_paths, new_lake_table, remove, schema_json
from support.published import folder_of, publish, storage_of

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


def expire_with(lake: Lake, table: Table, folder: Path, step: Callable[[str], None]) -> None:
    storage = lake.open_storage(str(folder / "archive"))
    record = table._record
    expire_table(lake.store, record, older_than="2 days", archive=storage, step=step)


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
        (7, "not a length of time"),
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
        # Page 0 was deleted, and the build that could have been under way had its number taken.
        assert session.one("paged_table", table_id=table.table_id) == (3, 3, True)
    assert table.snapshot().files().num_rows == 600
