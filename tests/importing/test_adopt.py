"""Foreign commits: adopted when they apply cleanly, and refused with a reason when not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltalakedb.deltalog.listing import sort_log
from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import AdoptionRefusedError, CommitOutcomeUnknownError, TableNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.store.dialect import Session
from deltalakedb.store.mirror import set_drift
from deltalakedb.table import Table

from support.catalog_rows import all_rows
from support.delta_log import metadata, write_commit
from support.lake import Json, add, live_paths, remove, schema_json
from support.mirror_lakes import NewTable
from support.mirror_logs import log_of, queue

PLAIN = {"delta.enableInCommitTimestamps": "false"}
NOW = 1_700_000_000_000


class LostError(Exception):
    """The connection broke before the transaction was committed."""


@pytest.fixture
def table(queued: Lake, new_table: NewTable) -> Table:
    """A table that anybody may write to: versions 0 and 1, published."""
    made = new_table(queued, properties=PLAIN)
    made.commit([add("a"), add("b%20c")])
    queued.mirror.run_once()
    return made


def foreign(table: Table, version: int, actions: list[Json], *, at_ms: int = NOW + 5_000) -> None:
    write_commit(log_of(table).parent, version, actions, at_ms=at_ms)


def info(**fields: Any) -> Json:
    return {"commitInfo": {"operation": "WRITE", "userName": "ann", **fields}}


def metadata_of(table: Table, **changes: Any) -> Json:
    """The metaData of a table as another writer would repeat it, with changes."""
    snapshot = table.snapshot()
    document = metadata(
        {**snapshot.properties, **changes.pop("configuration", {})},
        id=snapshot.metadata.id,
        schemaString=snapshot.metadata.schema_string,
    )
    document["metaData"] |= changes
    return document


# --- what applies cleanly -----------------------------------------------------------------


def test_foreign_commits_become_versions(queued: Lake, table: Table) -> None:
    foreign(table, 2, [info(operation="MERGE"), add("d", size=7), remove("a")])
    foreign(table, 3, [add("e")], at_ms=NOW + 4_000)
    assert not queued.verify(table.name).ok
    adopted = queued.adopt(table.name)
    assert [version.version for version in adopted.versions] == [2, 3]
    first, second = adopted.versions
    assert (first.operation, first.num_adds, first.num_removes) == ("MERGE", 1, 1)
    assert (first.committed_at, second.committed_at) == (NOW + 5_000, NOW + 5_001)
    assert json.loads(json.dumps(adopted.to_dict()))["versions"][0]["key"] == commit_key(2)
    assert live_paths(table) == ["b%20c", "d", "e"]
    assert [record.committer for record in table.history()][:2] == [None, "ann"]
    row = queue(queued, table)[2]
    assert (row["status"], row["payload"], row["digest"]) == ("SUCCEEDED", None, first.sha256)
    assert queued.verify(table.name).ok
    table.refresh()
    table.commit([add("f")])
    queued.mirror.run_once()
    assert queued.verify(table.name).ok


def test_with_nothing_beyond_the_head_nothing_happens(queued: Lake, table: Table) -> None:
    before = all_rows(queued, table)
    assert queued.adopt(table.name).versions == ()
    assert all_rows(queued, table) == before


def test_in_commit_timestamps_are_the_times(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    queued.mirror.run_once()
    foreign(table, 1, [info(inCommitTimestamp=NOW + 77), add("a")])
    (version,) = queued.adopt(table.name).versions
    assert version.committed_at == NOW + 77


def test_a_path_that_is_spelled_otherwise_is_the_same_file(queued: Lake, table: Table) -> None:
    foreign(table, 2, [info(), remove("b c")])
    queued.adopt(table.name)
    assert live_paths(table) == ["a"]
    assert queued.verify(table.name).ok


def test_changes_of_the_table_itself_are_adopted(queued: Lake, table: Table) -> None:
    protocol = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["appendOnly", "invariants", "deletionVectors", "identityColumns"],
        }
    }
    changed = metadata_of(
        table,
        schemaString=schema_json("id", ("day", "string"), "price"),
        configuration={"delta.enableDeletionVectors": "true", "owner": "ann"},
    )
    domain = {"txn": {"appId": "theirs", "version": 4}}
    foreign(table, 2, [info(), protocol, changed, domain, {"strange": {"x": 1}}])
    foreign(table, 3, [info(), remove("a"), add("a", dv=1)])
    queued.adopt(table.name)
    snapshot = queued.table(table.name).snapshot()
    assert [field.name for field in snapshot.schema.fields] == ["id", "day", "price"]
    assert snapshot.properties["owner"] == "ann"
    assert snapshot.app_transactions == {"theirs": 4}
    record = queued.table(table.name).record
    assert (record.protocol_min_writer, record.properties["owner"]) == (7, "ann")
    with queued.store.read() as session:
        assert queued.store.check_active_files(session, table.table_id) == []
    assert queued.verify(table.name).ok


def test_a_table_that_is_replaced_altogether_is_adopted(queued: Lake, table: Table) -> None:
    changed = metadata_of(table, schemaString=schema_json(("other", "string")))
    foreign(table, 2, [info(), changed, remove("a"), remove("b%20c"), add("n")])
    queued.adopt(table.name)
    assert [f.name for f in table.snapshot().schema.fields] == ["other"]


def test_keys_of_planned_columns_follow(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued, properties=PLAIN, partition_by=["day"])
    queued.mirror.run_once()
    foreign(table, 1, [info(), add("x", values={"day": "7"}), add("y", values={"day": "8"})])
    queued.adopt(table.name)
    assert table.snapshot().files("day = '8'")["path"].to_pylist() == ["y"]


def test_what_delta_rs_writes_is_adopted(queued: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = queued.create_table(
        "rs", location=str(tmp_path / "rs"), schema=schema, partition_by=["day"], properties=PLAIN
    )
    queued.mirror.run_once()
    rows = pa.table({"id": [1, 2, 3], "day": ["a/b", "ü %", None]}, schema=schema)
    write_deltalake(str(tmp_path / "rs"), rows, mode="append")
    write_deltalake(str(tmp_path / "rs"), rows, mode="append")
    DeltaTable(str(tmp_path / "rs")).delete("id = 1")
    adopted = queued.adopt("rs")
    assert [version.operation for version in adopted.versions] == ["WRITE", "WRITE", "DELETE"]
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [2, 2, 3, 3]
    assert queued.verify("rs").ok


def test_the_drift_flag_goes(queued: Lake, table: Table) -> None:
    with queued.store.write() as session:
        set_drift(session, table.table_id, {"kind": "foreign commit", "version": 2}, now=1)
    foreign(table, 2, [info(), add("d")])
    queued.adopt(table.name)
    (status,) = queued.mirror.status()
    assert (status.drift, status.state) == (None, "published")


# --- refusals -----------------------------------------------------------------------------


def refused(lake: Lake, table: Table) -> str:
    before = all_rows(lake, table)
    with pytest.raises(AdoptionRefusedError) as error:
        lake.adopt(table.name)
    assert all_rows(lake, table) == before
    assert error.value.fix
    return str(error.value)


def test_a_fork_is_refused_with_both_ways_out(queued: Lake, table: Table) -> None:
    table.commit([add("ours")], operation="MERGE")
    table.commit([add("more")])
    foreign(table, 2, [info(), add("theirs")])
    text = refused(queued, table)
    assert "has forked at version 2" in text
    assert "version 2 (MERGE) to 3" in text
    assert "mirror.retry" in text
    assert "import_table" in text


def test_the_way_out_of_a_fork_works(queued: Lake, table: Table, tmp_path: Path) -> None:
    table.commit([add("ours")])
    foreign(table, 2, [info(), add("theirs")])
    queued.mirror.run_once()
    assert queued.mirror.status()[0].state == "drifted"
    (log_of(table) / Path(commit_key(2)).name).rename(tmp_path / "kept.json")
    queued.mirror.retry()
    assert queued.mirror.status()[0].state == "published"
    assert queued.verify(table.name).ok


def test_versions_that_are_not_published_have_to_be_first(queued: Lake, table: Table) -> None:
    table.commit([add("ours")])
    foreign(table, 3, [info(), add("theirs")])
    assert "Publish them first" in refused(queued, table)


def test_a_gap_is_refused(queued: Lake, table: Table) -> None:
    foreign(table, 3, [info(), add("d")])
    assert "There is one of version 3, and none of version 2" in refused(queued, table)


BAD: dict[str, tuple[Callable[[Table], list[Json]], str]] = {
    "a file that is not live": (lambda _: [info(), remove("nobody")], "cannot be removed"),
    "an add and a remove of one file": (
        lambda _: [info(), add("a"), remove("a")],
        "adds and removes 'a'",
    ),
    "a file twice": (lambda _: [info(), add("x"), add("x")], "more than once"),
    "another table": (
        lambda table: [info(), metadata_of(table, id="another")],
        "does not identify the table",
    ),
    "a column that disappears": (
        lambda table: [info(), metadata_of(table, schemaString=schema_json("id"))],
        "schema cannot change like this",
    ),
    "a protocol that nobody knows": (
        lambda _: [{"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}],
        "reader version 4",
    ),
    "a reader feature that is not supported": (
        lambda _: [
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": ["time travel"],
                    "writerFeatures": ["time travel"],
                }
            }
        ],
        "time travel",
    ),
    "a sidecar": (
        lambda _: [{"sidecar": {"path": "x", "sizeInBytes": 1, "modificationTime": 1}}],
        "sidecar",
    ),
    "a partition that the table has not": (
        lambda _: [info(), add("x", values={"day": "1"})],
        "partition values",
    ),
    "a deletion vector without the feature": (lambda _: [info(), add("x", dv=1)], "deletion"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_breaks_a_rule_is_refused(queued: Lake, table: Table, kind: str) -> None:
    actions, words = BAD[kind]
    foreign(table, 2, [info(), add("good")])
    foreign(table, 3, actions(table))
    text = refused(queued, table)
    assert words in text
    assert commit_key(3) in text


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"no json\n", "line 1"), (b'{"add":{"path":"x"}}\n', "line 1"), (b"\xff", "UTF-8")],
)
def test_a_damaged_commit_is_refused(queued: Lake, table: Table, data: bytes, words: str) -> None:
    (log_of(table) / Path(commit_key(2)).name).write_bytes(data)
    assert words in refused(queued, table)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([add("x")], "not a commitInfo"),
        ([info(), add("x")], "not a commitInfo with an inCommitTimestamp"),
        ([add("x"), info(inCommitTimestamp=NOW + 9)], "Its first line"),
        ([info(inCommitTimestamp=5), add("x")], "Its inCommitTimestamp is 5"),
    ],
)
def test_in_commit_timestamps_that_are_not_kept_are_refused(
    queued: Lake, new_table: NewTable, actions: list[Json], words: str
) -> None:
    table = new_table(queued)
    queued.mirror.run_once()
    foreign(table, 1, actions)
    assert words in refused(queued, table)


def test_rows_that_are_not_tracked_are_refused(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued, properties={**PLAIN, "delta.enableRowTracking": "true"})
    queued.mirror.run_once()
    foreign(table, 1, [info(), add("x")])
    assert "has no row ids" in refused(queued, table)


def test_a_commit_meanwhile_is_refused(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(table, 2, [info(), add("d")])

    def late(objects: Any) -> Any:
        found = sort_log(objects)
        table.commit([add("ours")])
        return found

    monkeypatch.setattr("deltalakedb.importing.adopt.sort_log", late)
    with pytest.raises(AdoptionRefusedError, match="got a new version"):
        queued.adopt(table.name)
    assert table.refresh() == 2


def test_a_file_that_vanishes_meanwhile_is_refused(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(table, 2, [info(), add("d")])

    def late(objects: Any) -> Any:
        found = sort_log(objects)
        (log_of(table) / Path(commit_key(2)).name).unlink()
        return found

    monkeypatch.setattr("deltalakedb.importing.adopt.sort_log", late)
    with pytest.raises(AdoptionRefusedError, match="changed while it was read"):
        queued.adopt(table.name)


def test_an_unknown_table_is_told_as_such(queued: Lake) -> None:
    with pytest.raises(TableNotFoundError):
        queued.adopt("nobody")


@pytest.mark.parametrize("happened", [True, False])
def test_an_adoption_whose_answer_was_lost_is_looked_up(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    foreign(table, 2, [info(operation="MERGE"), add("d")])
    real = queued.store.dialect.write

    @contextmanager
    def lost() -> Iterator[Session]:
        with suppress(LostError), real() as session:
            yield session
            if not happened:
                raise LostError
        raise CommitOutcomeUnknownError("The answer was lost")

    monkeypatch.setattr(queued.store.dialect, "write", lost)
    if happened:
        (version,) = queued.adopt(table.name).versions
        assert (version.version, version.operation) == (2, "MERGE")
    else:
        with pytest.raises(CommitOutcomeUnknownError):
            queued.adopt(table.name)
    monkeypatch.undo()
    assert table.refresh() == (2 if happened else 1)
