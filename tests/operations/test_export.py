"""Leaving: a table goes out of the catalog complete, or stays in it as it was."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import deltalakedb
from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import (
    CommitConflictError,
    MirrorError,
    TableExportedError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations import export
from deltalakedb.operations.export import Exported
from deltalakedb.store import Store, TableRecord
from deltalakedb.store.mirror import newest_published
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from operations.export_jobs import COMMITS

from support.fork_server import ForkServer
from support.lake import OpenLake, add, live_paths, remove, row_counts
from support.mirror_lakes import NewTable
from support.mirror_logs import lines, log_of, versions_in
from support.published import folder_of, inline_vector

TIMESTAMPS = "inCommitTimestamp"


def protocol_of(table: Table) -> tuple[int, int, set[str]]:
    """The protocol as delta-rs reads it."""
    found = DeltaTable(str(folder_of(table))).protocol()
    return (
        found.min_reader_version,
        found.min_writer_version,
        {*(found.writer_features or ()), *(found.reader_features or ())},
    )


def properties_of(table: Table) -> dict[str, str]:
    return dict(DeltaTable(str(folder_of(table))).metadata().configuration)


def read_by_delta_rs(table: Table) -> list[str]:
    paths = DeltaTable(str(folder_of(table))).get_add_actions()["path"].to_pylist()
    return sorted(str(path) for path in paths)


def hint_of(table: Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((log_of(table) / "_last_checkpoint").read_bytes())
    return found


def files_of(table: Table) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log_of(table).iterdir()}


def check_left(lake: Lake, table: Table, done: Exported, live: list[str]) -> None:
    """The catalog has forgotten the table, and its log has all of it."""
    with lake.store.read() as session:
        assert lake.store.table_by_id(session, table.table_id) is None
        assert newest_published(session, table.table_id) is None
    assert versions_in(table) == list(range(done.version + 1))
    assert (log_of(table) / f"{done.version:020d}.checkpoint.parquet").is_file()
    assert hint_of(table)["version"] == done.version
    assert read_by_delta_rs(table) == live


# --- the way out --------------------------------------------------------------------------


def test_everything_is_published_and_checkpointed_and_the_catalog_is_empty(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued)
    table.commit([add("a"), add("b")])
    table.commit([remove("a"), add("c")])
    done = queued.export("sales.orders")
    assert (done.table, done.location, done.version) == ("sales.orders", table.location, 3)
    assert done.dropped_features == (TIMESTAMPS,)
    assert done.features == ("appendOnly", "invariants")
    assert {name for name, count in row_counts(queued).items() if count} == {"dl_exported_tables"}
    check_left(queued, table, done, ["b", "c"])
    assert done.to_dict()["dropped_features"] == [TIMESTAMPS]
    assert json.loads(json.dumps(done.to_dict()))["version"] == 3


def test_other_tables_stay(inline: Lake, new_table: NewTable) -> None:
    stays, goes = new_table(inline, "stays"), new_table(inline, "goes")
    stays.commit([add("a")])
    inline.export("goes")
    assert live_paths(inline.table("stays")) == ["a"]
    assert inline.verify("stays").findings == ()
    assert [table.name for table in inline.tables()] == ["stays"]
    assert read_by_delta_rs(goes) == []


def test_a_table_is_exported_by_its_location(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    assert queued.export(table.location).version == 1
    assert queued.export(table.location).version == 1


def test_who_asks_for_it_afterwards_is_told_where_it_is(queued: Lake, new_table: NewTable) -> None:
    table, other = new_table(queued), new_table(queued, "other")
    done = queued.export(table.name)
    for use in (
        lambda: queued.table("sales.orders"),
        lambda: queued.table(table.location),
        lambda: table.commit([add("late")]),
        table.snapshot,
        lambda: queued.verify("sales.orders"),
    ):
        with pytest.raises(TableExportedError, match=r"was exported.*version 1") as told:
            use()
        assert table.location in str(told.value)
    assert queued.export(table.name) == Exported(
        done.table, done.table_id, done.location, done.version, done.exported_at
    )
    with pytest.raises(TableNotFoundError) as missing:
        queued.export("nobody")
    assert not isinstance(missing.value, TableExportedError)
    assert other.version == 0


def test_a_transaction_over_a_table_that_left_changes_none(
    queued: Lake, new_table: NewTable
) -> None:
    first, second = new_table(queued, "first"), new_table(queued, "second")
    with queued.transaction() as tx:
        tx.table("first").add_actions([add("a")])
        tx.table("second").add_actions([add("a")])
        queued.export("second")
        with pytest.raises(TableExportedError):
            tx.commit()
        tx._open.clear()
    assert first.refresh() == 0
    assert versions_in(second) == [0, 1]


def test_it_comes_back_with_all_its_versions(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    table.commit([add("a")])
    table.commit([add("b"), remove("a")])
    expected = {version: live_paths(table, version) for version in range(3)}
    done = queued.export(table.name)
    back = queued.import_table(table.location, "sales.orders")
    assert back.version == done.version == 3
    assert {version: live_paths(back, version) for version in range(3)} == expected
    back.commit([add("c")])
    assert queued.mirror.run_once()[0].count == 1
    assert queued.export(back.name).version == 4
    assert read_by_delta_rs(table) == ["b", "c"]


# --- what writers have to know ------------------------------------------------------------


def test_in_commit_timestamps_go_with_their_properties(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued, properties={"owner": "me"})
    assert queued.export(table.name).version == 1
    assert protocol_of(table) == (1, 2, set())
    assert properties_of(table) == {"owner": "me"}
    info, protocol, _ = lines(table, 1)
    assert info["commitInfo"]["operation"] == "DROP FEATURE"
    assert "inCommitTimestamp" not in info["commitInfo"]
    assert protocol == {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def test_features_are_kept_on_demand(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    done = queued.export(table.name, drop_features=False)
    assert (done.version, done.dropped_features) == (0, ())
    assert TIMESTAMPS in done.features
    assert TIMESTAMPS in protocol_of(table)[2]


def test_nothing_is_committed_where_there_is_nothing_to_drop(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued, properties={"delta.enableInCommitTimestamps": "false"})
    done = queued.export(table.name)
    assert (done.version, done.dropped_features) == (0, ())


def test_features_that_are_in_use_stay(queued: Lake, new_table: NewTable) -> None:
    table = new_table(
        queued,
        properties={"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
    )
    table.commit([add("a")])
    gone = remove("a")
    again = add("a")
    again["add"]["deletionVector"] = inline_vector([1])
    table.commit([gone, again])
    done = queued.export(table.name)
    assert done.dropped_features == (TIMESTAMPS,)
    assert {"columnMapping", "deletionVectors"} <= protocol_of(table)[2]
    assert properties_of(table)["delta.columnMapping.mode"] == "name"


def test_a_feature_goes_where_no_domain_needs_it_and_stays_where_one_does(
    queued: Lake, new_table: NewTable
) -> None:
    unused, used = new_table(queued, "unused"), new_table(queued, "used")
    for table in (unused, used):
        table.upgrade_protocol("clustering")
    domain = {"domain": "app", "configuration": "{}", "removed": False}
    used.commit([{"domainMetadata": domain}])
    assert queued.export("unused").dropped_features == ("clustering", "domainMetadata", TIMESTAMPS)
    assert protocol_of(unused) == (1, 2, set())
    assert queued.export("used").dropped_features == ("clustering", TIMESTAMPS)
    assert "domainMetadata" in protocol_of(used)[2]


# --- what stands in the way ---------------------------------------------------------------


def refused(lake: Lake, table: Table, says: str, **options: Any) -> None:
    """The export is refused, and changes nothing."""
    before, rows = files_of(table), row_counts(lake)
    with pytest.raises(MirrorError, match=says) as told:
        lake.export(table.name, **options)
    assert "still in the catalog" in str(told.value)
    assert files_of(table) == before
    kept = {name: count for name, count in rows.items() if name != "dl_mirror_tables"}
    assert row_counts(lake).items() >= kept.items()


@pytest.fixture
def table(queued: Lake, new_table: NewTable) -> Table:
    """Two versions, published."""
    table = new_table(queued)
    table.commit([add("a")])
    queued.mirror.run_once()
    return table


def test_a_foreign_commit_that_has_stopped_the_mirror_is_a_refusal(
    queued: Lake, table: Table
) -> None:
    path = log_of(table) / f"{2:020d}.json"
    path.write_text('{"commitInfo":{}}\n')
    table.commit([add("ours")])
    refused(queued, table, "another writer wrote")
    path.unlink()
    queued.mirror.retry()
    assert queued.export(table.name).version == 3


@pytest.mark.parametrize("verify", [True, False])
def test_a_foreign_commit_beyond_the_head_is_a_refusal(
    queued: Lake, new_table: NewTable, *, verify: bool
) -> None:
    table = new_table(queued, properties={"delta.enableInCommitTimestamps": "false"})
    table.commit([add("a")])
    queued.mirror.run_once()
    (log_of(table) / f"{2:020d}.json").write_text(json.dumps(add("theirs")) + "\n")
    refused(queued, table, "adopt", verify=verify)
    queued.adopt(table.name)
    assert queued.export(table.name, verify=verify).version == 2
    assert read_by_delta_rs(table) == ["a", "theirs"]


def test_a_store_that_cannot_be_written_is_a_refusal(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit([add("b")])
    refuse_writes(monkeypatch)
    refused(queued, table, "versions could be published")
    monkeypatch.undo()
    assert queued.export(table.name).version == 3


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalakedb.errors import StoragePermissionError
    from deltalakedb.storage import Storage

    def no(*_: object, **__: object) -> bool:
        raise StoragePermissionError("This may not be written", why="access is denied")

    monkeypatch.setattr(Storage, "put_if_absent", no)


def test_a_log_that_lost_a_commit_is_a_refusal_until_it_is_repaired(
    queued: Lake, table: Table
) -> None:
    lost = log_of(table).parent / commit_key(0)
    lost.unlink()
    refused(queued, table, "repair")
    assert queued.repair(table.name).ok
    assert queued.export(table.name).version == 2
    assert lost.is_file()


# --- commits that come in between ---------------------------------------------------------


def test_a_commit_in_between_is_exported_too(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = export.complete_log
    came: list[int] = []

    def complete(store: Store, storage: Any, record: TableRecord, version: int) -> None:
        original(store, storage, record, version)
        if len(came) < 2:
            table.refresh()
            came.append(int(table.commit([add(f"between{len(came)}")])))

    monkeypatch.setattr(export, "complete_log", complete)
    done = queued.export(table.name)
    assert came == [3, 4]
    assert done.version == 4
    check_left(queued, table, done, ["a", "between0", "between1"])


def test_a_feature_that_is_switched_on_in_between_goes_again(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = export._drop
    came: list[int] = []

    def drop(*arguments: Any) -> set[str]:
        went = original(*arguments)
        if not came:
            came.append(1)
            table.refresh()
            table.set_properties({"delta.enableInCommitTimestamps": "true"})
        return went

    monkeypatch.setattr(export, "_drop", drop)
    assert queued.export(table.name).version == 4
    assert protocol_of(table) == (1, 2, set())


def test_writers_that_never_stop_are_an_error(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = export.complete_log

    def complete(*arguments: Any) -> None:
        original(*arguments)
        table.refresh()
        table.commit([add(f"more{table.version}")])

    monkeypatch.setattr(export, "complete_log", complete)
    monkeypatch.setattr(export, "_ROUNDS", 3)
    with pytest.raises(MirrorError, match="Stop the writers"):
        queued.export(table.name)
    monkeypatch.undo()
    done = queued.export(table.name)
    check_left(queued, table, done, ["a", "more2", "more3"])


def test_a_table_that_is_renamed_meanwhile_is_remembered_by_its_last_name(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = export.check_log

    def check(*arguments: Any, **options: Any) -> object:
        table.rename("sales.renamed")
        return original(*arguments, **options)

    monkeypatch.setattr(export, "check_log", check)
    done = queued.export("sales.orders")
    assert done.table == "sales.renamed"
    with pytest.raises(TableExportedError):
        queued.table("sales.renamed")


def test_no_commit_is_lost_while_a_table_leaves(open_lake: OpenLake, new_table: NewTable) -> None:
    lake = open_lake(mirror="inline")
    table = new_table(lake)
    acknowledged: list[str] = []
    told: list[Exception] = []
    begun = threading.Event()

    def write(writer: int) -> None:
        other = open_lake(mirror="inline").table(table.name)
        for number in range(25):
            path = f"w{writer}-{number}"
            try:
                other.refresh()
                other.commit([add(path)])
                acknowledged.append(path)
            except CommitConflictError:
                continue  # the features were dropped just now: nothing was written
            except Exception as error:  # noqa: BLE001 - the test looks at what it is
                told.append(error)
                return
            if number == 5:
                begun.set()

    threads = [threading.Thread(target=write, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    done = None
    while done is None:
        try:
            done = lake.export(table.name)
        except MirrorError as error:
            tired = str(error)
            assert "Stop the writers" in tired
    for thread in threads:
        thread.join()
    assert {type(error) for error in told} <= {TableExportedError}
    assert len(acknowledged) > 6
    check_left(lake, table, done, sorted(acknowledged))


_KINDS = ("before put_if_absent", "after put_if_absent", "after update", "statement insert")


# --- death ----------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_death_at_any_point_is_completed_by_the_next_one(
    catalog_url: str, engine: Engine, tmp_path: Path
) -> None:
    labels = tmp_path / "labels"
    labels.touch()
    # All of them take minutes: here some, spread over all steps.
    stride = 1 if os.environ.get("DELTALAKEDB_SOAK") else 4 if engine == "sqlite" else 12
    reached = 0
    with ForkServer(tmp_path / "log", jobs="operations.export_jobs") as fork_server:
        for at in range(1, 10_000, stride):
            name, place = f"t{at}", tmp_path / f"t{at}"
            job = {"url": catalog_url, "name": name, "location": str(place), "at": at}
            status = fork_server.run({**job, "labels": str(labels)})
            assert status in (0, -9), fork_server.log.read_text()
            reached += status == -9
            with deltalakedb.connect(catalog_url, mirror="worker") as lake:
                done = lake.export(name)
                assert lake.tables() == []
            assert done.version == COMMITS + 1
            found = DeltaTable(str(place))
            assert found.version() == COMMITS + 1
            files = sorted(found.get_add_actions()["path"].to_pylist())
            assert files == ["f2", "g0", "g1", "g2"]
            assert found.protocol().min_writer_version == 2
            hint = json.loads((place / "_delta_log" / "_last_checkpoint").read_bytes())
            assert hint["version"] == COMMITS + 1
            if status == 0:
                break
    said = labels.read_text().splitlines()
    assert len(said) == reached >= 40 // stride, said
    if stride == 1:
        assert {*_KINDS} <= {*said}
