"""A log that is ahead of its catalog: no commit makes a fork of it, and there is a way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import deltalakedb
from deltalakedb.errors import ConfigurationError, TableDriftedError
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.mirror.publish import Outcome
from deltalakedb.storage import Storage
from deltalakedb.store.relations import ACTION_RELATIONS, MIRROR_STATUS, VERSIONS
from deltalakedb.store.url import Engine, parse_url
from deltalakedb.table import Table

from support.lake import OpenLake, add, live_paths, row_counts
from support.mirror_lakes import NewTable
from support.mirror_logs import check_published, log_of, versions_in
from support.published import folder_of, record_of, storage_of
from support.store import Catalogs

MODES = ["inline", "worker"]


def commit_file(table: Table, version: int) -> Path:
    return log_of(table) / f"{version:020d}.json"


class Restored:
    """A catalog that was restored from a backup: its table has gone on for two versions since."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def connect(self, **options: object) -> Lake:
        return deltalakedb.connect(self.url, **options)  # type: ignore[arg-type]


@pytest.fixture
def restored(engine: Engine, catalogs: Catalogs, tmp_path: Path) -> Iterator[Restored]:
    with ExitStack() as stack:
        url = stack.enter_context(catalogs.empty(engine))
        with deltalakedb.connect(url) as lake:
            table = lake.create_table("t", location=str(tmp_path / "t"), schema=SCHEMA)
            table.append([{"id": 1}])
        parsed = parse_url(url)
        place = urlsplit(url).path.lstrip("/") if engine == "postgres" else parsed.target
        backup = stack.enter_context(catalogs.empty(engine, copy_of=place))
        with deltalakedb.connect(url) as lake:
            for number in (2, 3):
                lake.table("t").append([{"id": number}])
        yield Restored(backup, tmp_path / "t")


SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_catalog_commits_nothing_onto_a_newer_log(restored: Restored, mode: str) -> None:
    before = sorted(restored.folder.rglob("*"))
    with restored.connect(mirror=mode) as lake:
        table = lake.table("t")
        with pytest.raises(TableDriftedError) as caught:
            table.append([{"id": 4}])
        text = str(caught.value)
        assert commit_file(table, 2).name in text
        assert "newest version is 1" in text
        for way in ("lake.verify('t')", "lake.adopt('t')", "lake.mirror.retry('t')", "on_drift"):
            assert way in text
        with pytest.raises(TableDriftedError), lake.transaction() as tx:
            tx.table("t").append([{"id": 4}])
        with pytest.raises(TableDriftedError):
            table.set_properties({"owner": "ann"})
        (status,) = lake.mirror.status()
        assert (status.state, status.head, status.backlog) == ("drifted", 1, 0)
        assert table.refresh() == 1
    assert sorted(restored.folder.rglob("*")) == before


def test_adopting_is_the_way_out_and_nothing_is_lost(restored: Restored) -> None:
    with restored.connect() as lake:
        table = lake.table("t")
        with pytest.raises(TableDriftedError):
            table.append([{"id": 4}])
        assert [one.version for one in lake.adopt("t").versions] == [2, 3]
        assert table.append([{"id": 4}]) == 4
        assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
        check_published(lake, table)
        assert lake.verify("t").ok


def test_moving_the_commits_away_is_the_other_way_out(restored: Restored, tmp_path: Path) -> None:
    with restored.connect() as lake:
        table = lake.table("t")
        with pytest.raises(TableDriftedError):
            table.append([{"id": 4}])
        # Still there: compared again, and found again.
        (done,) = lake.mirror.retry("t")
        assert done.outcome is Outcome.DRIFTED
        assert "lake.adopt" in str(done.error)
        with pytest.raises(TableDriftedError):
            table.append([{"id": 4}])
        for version in (2, 3):
            shutil.move(commit_file(table, version), tmp_path / f"{version}.json")
            (log_of(table) / f"{version:020d}.crc").unlink(missing_ok=True)
        assert lake.mirror.retry("t") == []
        assert table.append([{"id": 4}]) == 2
        check_published(lake, table)


def test_commits_after_a_restore_may_be_allowed(restored: Restored) -> None:
    with restored.connect(on_drift="allow") as lake:
        table = lake.table("t")
        assert [int(table.append([{"id": number}])) for number in (4, 5)] == [2, 3]
        assert lake.mirror.status()[0].state == "drifted"


def lose_newest(lake: Lake, table: Table, versions: int) -> None:
    """Let the catalog forget its newest versions, as a failover to a replica that was behind."""
    with lake.store.write() as session:
        head = lake.store.head(session, table.table_id)
        assert head is not None
        kept = head - versions
        keys = {"table_id": table.table_id, "kept": kept}
        for relation in (*ACTION_RELATIONS, VERSIONS, MIRROR_STATUS):
            sql = f"DELETE FROM {relation.name} WHERE table_id = :table_id AND version > :kept"
            session.execute_count(lake.store.dialect.sql(sql), keys)
        sql = "UPDATE dl_table_heads SET current_version = :kept WHERE table_id = :table_id"
        session.execute_count(lake.store.dialect.sql(sql), keys)
        lake.store.rebuild_active_files(session, table.table_id)


@pytest.mark.parametrize("reopened", [True, False], ids=["reopened", "same handle"])
def test_a_process_notices_that_its_catalog_has_lost_commits(
    open_lake: OpenLake, new_table: NewTable, *, reopened: bool
) -> None:
    lake = open_lake(mirror="inline")
    table = new_table(lake)
    for number in range(4):
        table.commit([add(f"{number}")])
    lake.mirror.drain()
    lose_newest(lake, table, 2)
    before = row_counts(lake)
    again = lake.table(table.name) if reopened else table
    with pytest.raises(TableDriftedError, match=r"is at version 2, .* has seen version 4"):
        again.commit([add("x")])
    assert row_counts(lake) == before
    # Nobody may go on before the versions that the log has are taken back.
    again = lake.table(table.name)
    with pytest.raises(TableDriftedError, match="is not from this catalog"):
        again.commit([add("x")])
    assert [one.version for one in lake.adopt(table.name).versions] == [3, 4]
    again = lake.table(table.name)
    assert again.commit([add("x")]) == 5
    assert live_paths(again) == ["0", "1", "2", "3", "x"]


def test_commits_that_the_log_never_had_are_told_to_be_lost_once(
    open_lake: OpenLake, new_table: NewTable
) -> None:
    lake = open_lake(mirror="worker")
    table = new_table(lake)
    table.commit([add("a")])
    lose_newest(lake, table, 1)
    with pytest.raises(TableDriftedError, match=r"is at version 0, .* has seen version 1"):
        lake.table(table.name).commit([add("b")])
    assert lake.table(table.name).commit([add("b")]) == 1


def test_a_setting_that_does_not_exist_is_refused(catalog_url: str) -> None:
    with pytest.raises(ConfigurationError, match="on_drift"):
        deltalakedb.connect(catalog_url, on_drift="ignore")


@pytest.mark.parametrize("mode", MODES)
def test_a_drift_that_publishing_found_refuses_further_commits_of_everybody(
    open_lake: OpenLake, new_table: NewTable, mode: str
) -> None:
    lake, other = open_lake(mirror=mode), open_lake(mirror=mode)
    table = new_table(lake)
    lake.mirror.run_once()
    there = other.table(table.name)
    assert there.commit([add("a")]) == 1
    other.mirror.run_once()
    # Both have looked at the log before.
    commit_file(table, 2).write_bytes(b"{}\n")
    assert table.commit([add("b")]) == 2
    lake.mirror.run_once()
    before = row_counts(lake)
    for each in (table, there):
        with pytest.raises(TableDriftedError, match="adopt"):
            each.commit([add("c")])
        with pytest.raises(TableDriftedError, match="adopt"):
            each.commit([add("c")], app_txn=("app", 1))
    assert row_counts(lake) == before
    # What has happened before is still told as such.
    allowed = open_lake(mirror=mode, on_drift="allow").table(table.name)
    assert allowed.commit([add("c")], app_txn=("app", 1)) == 3
    assert table.commit([add("c")], app_txn=("app", 1)).already_committed


def test_commits_of_other_processes_are_not_taken_for_foreign_ones(
    open_lake: OpenLake, new_table: NewTable
) -> None:
    lake, other, third = (open_lake(mirror="inline") for _ in range(3))
    table = new_table(lake)
    there = other.table(table.name)
    assert there.version == 0
    # The first commit of `other` starts from a version that others have left behind.
    for number in range(3):
        table.commit([add(f"a{number}")])
    assert there.commit([add("b")]) == 4
    with third.transaction() as tx:
        tx.table(table.name).add_actions([add("c")])
    assert versions_in(table) == list(range(6))
    assert {one.state for one in lake.mirror.status()} == {"published"}


def test_a_catalog_so_old_that_the_commits_it_lacks_are_gone_is_noticed(restored: Restored) -> None:
    with restored.connect(mirror="worker") as lake:
        table = lake.table("t")
        log = log_of(table)
        for version in (2, 3):
            shutil.move(commit_file(table, version), restored.folder / f"{version}.bak")
        write_checkpoint(lake.store, storage_of(table), record_of(lake, table), 1)
        for path in log.glob("*1.checkpoint.parquet"):
            path.rename(path.with_name(f"{3:020d}.checkpoint.parquet"))
        hint = json.loads((log / "_last_checkpoint").read_bytes())
        del hint["checksum"]
        (log / "_last_checkpoint").write_text(json.dumps({**hint, "version": 3}))
        with pytest.raises(TableDriftedError, match="checkpoint"):
            table.append([{"id": 4}])


def test_a_hint_that_lies_is_no_drift(open_lake: OpenLake, new_table: NewTable) -> None:
    table = new_table(open_lake(mirror="inline"))
    (log_of(table) / "_last_checkpoint").write_text('{"version":900,"size":1}')
    assert open_lake(mirror="inline").table(table.name).commit([add("a")]) == 1


def test_a_store_that_cannot_be_asked_refuses_no_commit(
    open_lake: OpenLake, new_table: NewTable
) -> None:
    made = open_lake(mirror="inline")
    table = new_table(made)
    made.mirror.drain()
    shutil.rmtree(log_of(table))
    log_of(table).write_bytes(b"")
    lake = open_lake(mirror="inline")
    assert lake.table(table.name).commit([add("a")]) == 1
    assert lake.mirror.status()[0].backlog == 1
    assert folder_of(table).is_dir()


def test_the_store_is_asked_once_by_each_process(
    open_lake: OpenLake, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_table(open_lake(mirror="inline")).name
    lake = open_lake(mirror="inline")
    asked: list[str] = []
    real = Storage.head

    def head(storage: Storage, key: str) -> object:
        asked.append(key)
        return real(storage, key)

    monkeypatch.setattr(Storage, "head", head)
    for number in range(5):
        # A handle of its own for each.
        lake.table(name).commit([add(f"{number}")])
    assert asked == [f"_delta_log/{1:020d}.json"]
