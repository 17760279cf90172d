"""Proposals of other writers: a version of the catalog with the writer's bytes, or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import (
    CommitFileMissingError,
    CommitOutcomeUnknownError,
    CommitRejectedError,
    DeltaLakeDbError,
    InvalidArgumentError,
    TableDriftedError,
    TableExistsError,
    TableNotFoundError,
    UnexpectedVersionError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.store.dialect import Session
from deltalakedb.table import Table
from deltalakedb.transaction.ratify import Ratified

from support.catalog_rows import all_rows
from support.delta_log import PROTOCOL, metadata
from support.lake import (
    SCHEMA,
    Json,
    OpenLake,
    add,
    live_paths,
    remove,
    row_counts,
    schema_json,
)
from support.mirror_lakes import NewTable
from support.mirror_logs import check_published, log_of, versions_in
from support.proposals import (
    append,
    commit_file,
    first_commit,
    lines,
    log_folder,
    new_id,
    propose_until_won,
    published,
)
from support.s3 import S3Server

PLAIN = {"delta.enableInCommitTimestamps": "false"}
NOW = 1_700_000_000_000


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def lake(open_lake: OpenLake, warehouse: Path) -> Lake:
    return open_lake(warehouse=str(warehouse))


@pytest.fixture
def table(lake: Lake, new_table: NewTable) -> Table:
    """Versions 0 and 1 of this catalog; not published."""
    made = new_table(lake, properties=PLAIN)
    made.commit([add("a")])
    return made


# --- committed ----------------------------------------------------------------------------


def test_a_proposal_becomes_a_version_with_its_bytes(lake: Lake, table: Table) -> None:
    data = append("b", txn_id=new_id(), operation="MERGE", userName="ann")
    done = lake.ratify(table.location, 2, data)
    assert (done.version, done.repeated, done.table.name) == (2, False, table.name)
    assert published(table.location, 2) == data
    assert live_paths(table) == ["a", "b"]
    (record,) = table.history(1)
    assert (record.operation, record.committer) == ("MERGE", "ann")
    check_published(lake, table)
    assert lake.verify(table.name).ok
    assert DeltaTable(table.location).version() == 2


def test_versions_before_it_are_published_first(lake: Lake, table: Table) -> None:
    assert not log_of(table).exists()
    lake.ratify(table.location, 2, append("b"))
    assert versions_in(table) == [0, 1, 2]


def test_commits_of_all_writers_follow_each_other(lake: Lake, table: Table) -> None:
    lake.ratify(table.location, 2, append("b"))
    table.commit([add("c"), remove("b")])
    lake.ratify(table.location, 4, commit_file(add("d"), remove("c")))
    assert lake.table(table.name).commit([add("e")]) == 5
    assert live_paths(table) == ["a", "d", "e"]
    lake.mirror.run_once()
    assert lake.verify(table.name).ok


def test_the_committer_of_the_request_is_recorded(lake: Lake, table: Table) -> None:
    lake.ratify(table.location, 2, append("b", userName="ann"), committer="spark@etl")
    assert table.history(1)[0].committer == "spark@etl"


def test_an_in_commit_timestamp_is_the_time_of_the_version(lake: Lake, new_table: NewTable) -> None:
    table = new_table(lake)
    time = table.history(1)[0].committed_at + 7
    lake.ratify(table.location, 1, append("b", inCommitTimestamp=time))
    assert table.history(1)[0].committed_at == time


def test_paths_are_those_of_the_catalog_however_they_are_spelled(lake: Lake, table: Table) -> None:
    table.commit([add("b%20c")])
    lake.ratify(table.location, 3, commit_file(remove("b c"), add("d")))
    assert live_paths(table) == ["a", "d"]


# --- repeated -----------------------------------------------------------------------------


@pytest.mark.parametrize("txn_id", [None, "6f1c1a52-0d2c-4f0e-9d53-0c6a3a3f8a11"])
def test_the_same_proposal_again_is_the_same_success(
    lake: Lake, table: Table, txn_id: str | None
) -> None:
    data = append("b", txn_id=txn_id)
    lake.ratify(table.location, 2, data)
    before = all_rows(lake, table)
    assert lake.ratify(table.location, 2, data).repeated
    assert all_rows(lake, table) == before
    table.commit([add("c")])
    assert lake.ratify(table.location, 2, data).repeated
    assert live_paths(table) == ["a", "b", "c"]


def test_the_txn_id_makes_a_proposal_the_same_whatever_its_bytes(lake: Lake, table: Table) -> None:
    txn_id = new_id()
    data = append("b", txn_id=txn_id)
    lake.ratify(table.location, 2, data)
    again = append("b", txn_id=txn_id, operationMetrics={"retries": "1"})
    assert lake.ratify(table.location, 2, again).repeated
    assert published(table.location, 2) == data


def test_a_commit_that_has_won_does_not_win_again(lake: Lake, table: Table) -> None:
    data = append("b", txn_id=new_id())
    lake.ratify(table.location, 2, data)
    with pytest.raises(CommitRejectedError, match="would repeat version 2") as refused:
        lake.ratify(table.location, 3, data)
    assert refused.value.rule == "one-version-per-transaction"
    assert table.snapshot().version == 2


def test_a_lost_acknowledgement_is_no_second_commit(
    lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lake.store.write
    lost: list[int] = []

    @contextmanager
    def write() -> Iterator[Session]:
        with real() as session:
            yield session
        if not lost:
            lost.append(1)
            raise CommitOutcomeUnknownError("The connection broke")

    monkeypatch.setattr(lake.store, "write", write)
    data = append("b", txn_id=new_id())
    assert lake.ratify(table.location, 2, data).version == 2
    assert lost
    assert published(table.location, 2) == data
    assert live_paths(table) == ["a", "b"]


# --- conflicts ----------------------------------------------------------------------------


def test_another_commit_of_the_version_is_a_conflict_and_in_the_log(
    lake: Lake, table: Table
) -> None:
    with pytest.raises(UnexpectedVersionError, match="has another version 1") as refused:
        lake.ratify(table.location, 1, append("b", txn_id=new_id()))
    assert refused.value.winner_version == 1
    assert versions_in(table) == [0, 1]
    assert live_paths(table) == ["a"]


def test_a_conflict_that_cannot_be_seen_is_another_error(lake: Lake, table: Table) -> None:
    lake.mirror.run_once()
    shutil.rmtree(log_of(table))
    for version in (0, 1):
        with pytest.raises(CommitFileMissingError, match="is not there"):
            lake.ratify(table.location, version, append("b", txn_id=new_id()))


def test_a_version_after_the_next_is_refused(lake: Lake, table: Table) -> None:
    with pytest.raises(TableDriftedError, match="versions up to 1 only"):
        lake.ratify(table.location, 3, append("b"))


def test_a_table_that_has_drifted_takes_no_proposal(lake: Lake, table: Table) -> None:
    lake.mirror.run_once()
    (log_of(table) / f"{2:020d}.json").write_bytes(append("foreign"))
    with pytest.raises(TableDriftedError):
        lake.ratify(table.location, 2, append("b", txn_id=new_id()))
    lake.adopt(table.name)
    assert lake.ratify(table.location, 3, append("b", txn_id=new_id())).version == 3


def test_many_proposers_and_writers_of_one_table(
    open_lake: OpenLake, lake: Lake, table: Table, warehouse: Path
) -> None:
    """Each acknowledged commit is one version; the log has them in order, byte for byte."""
    each, proposers = 6, 3
    proposals = {
        f"p{n}-{i}": append(f"p{n}-{i}", txn_id=new_id())
        for n in range(proposers)
        for i in range(each)
    }

    def propose(number: int) -> dict[int, bytes]:
        won = {}
        for i in range(each):
            data = proposals[f"p{number}-{i}"]
            won[propose_until_won(lake, table.location, data, start=1)] = data
        return won

    def write(_: int) -> dict[int, bytes]:
        handle = lake.table(table.name)
        for i in range(each):
            handle.commit([add(f"own-{i}")])
        return {}

    with ThreadPoolExecutor(proposers + 1) as threads:
        jobs = [threads.submit(propose, n) for n in range(proposers)]
        jobs.append(threads.submit(write, 0))
        won: dict[int, bytes] = {}
        for job in jobs:
            won |= job.result()
    lake.mirror.run_once()
    assert len(won) == len(proposals)
    assert all(published(table.location, version) == data for version, data in won.items())
    assert table.snapshot().version == 1 + len(proposals) + each
    own = [f"own-{i}" for i in range(each)]
    assert live_paths(table) == sorted(["a", *own, *proposals])
    assert lake.verify(table.name).ok


# --- refused ------------------------------------------------------------------------------


REFUSED: list[tuple[str, bytes]] = [
    ("remove-live-file", commit_file(remove("nothing"))),
    ("deletion-vector", commit_file(add("a", dv=1))),
    ("one-add-per-path", commit_file(add("b"), add("b"))),
    ("one-metadata", commit_file(metadata(), metadata())),
    ("data-path", commit_file(add("../b"))),
    ("partition-values", commit_file(add("b", values={"day": "1"}))),
]


@pytest.mark.parametrize(("rule", "data"), REFUSED)
def test_a_commit_that_breaks_a_rule_writes_nothing(
    lake: Lake, table: Table, rule: str, data: bytes
) -> None:
    before = all_rows(lake, table)
    with pytest.raises(DeltaLakeDbError) as refused:
        lake.ratify(table.location, 2, data)
    if isinstance(refused.value, CommitRejectedError):
        assert refused.value.rule == rule
    assert all_rows(lake, table) == before
    assert published(table.location, 2) is None


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"\n", b'{"add":{}}\n', b"\xff\xfe", append("b")[:-9]]
)
def test_bytes_that_are_no_commit_are_refused(lake: Lake, table: Table, data: bytes) -> None:
    before = all_rows(lake, table)
    with pytest.raises(DeltaLakeDbError):
        lake.ratify(table.location, 2, data)
    assert all_rows(lake, table) == before


def test_a_protocol_that_cannot_be_read_is_refused(lake: Lake, table: Table) -> None:
    protocol: Json = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["later"],
            "writerFeatures": ["later"],
        }
    }
    with pytest.raises(UnsupportedFeatureError, match="later"):
        lake.ratify(table.location, 2, commit_file(protocol))


def test_a_table_that_is_only_kept_for_other_engines_cannot_be_read(
    lake: Lake, warehouse: Path
) -> None:
    """Geometries change rows, not which files a table has."""
    features = ["geospatial"]
    protocol: Json = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    }
    schema = schema_json("id", ("place", "geometry(OGC:CRS84)"))
    first = commit_file(protocol, metadata(schemaString=schema))
    lake.ratify(f"file:{warehouse}/places", 0, first)
    lake.ratify(f"file:{warehouse}/places", 1, append("a", txn_id=new_id()))
    table = lake.table("places")
    assert [record.version for record in table.history()] == [1, 0]
    assert table.verify().ok
    with pytest.raises(UnsupportedFeatureError, match="geospatial"):
        table.snapshot()
    with pytest.raises(UnsupportedFeatureError, match="geospatial"):
        lake.create_table("mine", schema=schema)


def test_in_commit_timestamps_increase_and_agree_with_the_clock(
    lake: Lake, new_table: NewTable
) -> None:
    table = new_table(lake)
    newest = table.history(1)[0].committed_at
    wrong: list[Any] = [None, newest, newest - 1, newest + 86_400_000]
    for time in wrong:
        with pytest.raises(CommitRejectedError) as refused:
            lake.ratify(table.location, 1, append("b", inCommitTimestamp=time))
        assert refused.value.rule == "in-commit-timestamp"
    first = lines([add("b"), {"commitInfo": {"operation": "W", "inCommitTimestamp": newest + 1}}])
    with pytest.raises(CommitRejectedError, match="first line"):
        lake.ratify(table.location, 1, first)
    assert lake.ratify(table.location, 1, append("b", inCommitTimestamp=newest + 1)).version == 1


def test_arguments_are_checked(lake: Lake, table: Table) -> None:
    wrong: list[Any] = [(table.location, -1, b""), (7, 0, b""), (table.location, 0, "text")]
    for arguments in wrong:
        with pytest.raises(InvalidArgumentError):
            lake.ratify(*arguments)


# --- not published ------------------------------------------------------------------------


def test_a_version_that_cannot_be_published_is_published_when_it_is_repeated(
    lake: Lake, table: Table
) -> None:
    lake.mirror.run_once()
    log = log_of(table)
    log.rename(log.with_name("away"))
    log.write_text("no folder")
    data = append("b", txn_id=new_id())
    with pytest.raises(DeltaLakeDbError):
        lake.ratify(table.location, 2, data)
    log.unlink()
    log.with_name("away").rename(log)
    done = lake.ratify(table.location, 2, data)
    assert done.version == 2
    assert published(table.location, 2) == data
    assert live_paths(table) == ["a", "b"]


def test_everything_is_published_before_a_writer_lists_the_log(lake: Lake, table: Table) -> None:
    record, version = lake.proposals.publish(table.location)
    assert (record.name, version) == (table.name, 1)
    assert versions_in(table) == [0, 1]
    assert lake.proposals.publish(table.location)[1] == 1


# --- new tables ---------------------------------------------------------------------------


def test_a_table_outside_the_warehouse_is_not_registered(lake: Lake, tmp_path: Path) -> None:
    place = f"file:{tmp_path}/elsewhere/orders"
    with pytest.raises(TableNotFoundError, match="No table of this catalog"):
        lake.ratify(place, 0, first_commit())
    with pytest.raises(TableNotFoundError):
        lake.proposals.publish(f"file://{tmp_path}/elsewhere/orders")
    assert lake.tables() == []


def test_version_0_below_the_warehouse_registers_a_table(lake: Lake, warehouse: Path) -> None:
    place = f"file:{warehouse}/sales.db/orders"
    done = lake.ratify(place, 0, first_commit(txn_id=new_id()))
    assert (done.table.name, done.version) == ("sales.orders", 0)
    lake.ratify(place, 1, append("a"))
    table = lake.table("sales.orders")
    assert live_paths(table) == ["a"]
    assert table.commit([add("b")]) == 2
    lake.mirror.run_once()
    assert lake.verify(table.name).ok
    assert DeltaTable(str(warehouse / "sales.db" / "orders")).version() == 2


def test_a_first_version_that_breaks_a_rule_registers_nothing(lake: Lake, warehouse: Path) -> None:
    before = row_counts(lake)
    for data in (append("a"), commit_file(PROTOCOL), commit_file(metadata()), b"nonsense"):
        with pytest.raises(DeltaLakeDbError):
            lake.ratify(f"file:{warehouse}/t", 0, data)
    with pytest.raises(TableNotFoundError):
        lake.ratify(f"file:{warehouse}/t", 1, first_commit())
    assert row_counts(lake) == before
    assert not log_folder(warehouse / "t").exists()


def test_a_log_that_is_there_already_is_a_conflict(lake: Lake, warehouse: Path) -> None:
    log = log_folder(warehouse / "t")
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_bytes(first_commit())
    before = row_counts(lake)
    with pytest.raises(UnexpectedVersionError, match="already"):
        lake.ratify(f"file:{warehouse}/t", 0, first_commit(txn_id=new_id()))
    assert row_counts(lake) == before


def test_a_name_that_is_taken_is_refused(lake: Lake, warehouse: Path, new_table: NewTable) -> None:
    new_table(lake, "sales.orders")
    with pytest.raises(TableExistsError):
        lake.ratify(f"file:{warehouse}/sales.db/orders", 0, first_commit())
    assert [table.name for table in lake.tables()] == ["sales.orders"]


def test_of_many_that_create_one_table_one_wins(lake: Lake, warehouse: Path) -> None:
    place = f"file:{warehouse}/t"

    def create(_: int) -> Ratified | None:
        try:
            return lake.ratify(place, 0, first_commit(txn_id=new_id()))
        except UnexpectedVersionError:
            assert published(warehouse / "t", 0) is not None
            return None

    with ThreadPoolExecutor(4) as threads:
        done = [one for one in threads.map(create, range(4)) if one is not None]
    assert len(done) == 1
    assert [table.name for table in lake.tables()] == ["t"]
    assert lake.verify("t").ok


def test_tables_on_an_object_store(open_lake: OpenLake, s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    options = s3_server.storage_options
    lake = open_lake(warehouse=f"s3://{bucket}/lake", storage_options=options)
    # Hadoop names the store in another way.
    place = f"s3a://{bucket}/lake/sales.db/orders"
    data = append("a", txn_id=new_id())
    lake.ratify(place, 0, first_commit(txn_id=new_id()))
    assert lake.ratify(place, 1, data).version == 1
    with pytest.raises(UnexpectedVersionError):
        lake.ratify(place, 1, append("b", txn_id=new_id()))
    table = lake.table("sales.orders")
    assert table.location == f"s3://{bucket}/lake/sales.db/orders"
    assert lake.open_storage(table.location).get(commit_key(1)) == data
    assert table.verify().ok


# --- clones -------------------------------------------------------------------------------


def test_a_clone_may_name_files_of_other_tables_of_the_lake(
    lake: Lake, table: Table, warehouse: Path, tmp_path: Path
) -> None:
    inside = commit_file(PROTOCOL, metadata(), add(f"{table.location}/a"))
    lake.ratify(f"file:{warehouse}/clone", 0, inside)
    assert lake.table("clone").allowed_roots == (table.location,)
    outside = commit_file(PROTOCOL, metadata(), add(f"file://{tmp_path}/other/a"))
    with pytest.raises(DeltaLakeDbError, match="does not lie in the table"):
        lake.ratify(f"file:{warehouse}/thief", 0, outside)
    assert sorted(one.name for one in lake.tables()) == ["clone", table.name]


def test_a_result_is_readable(lake: Lake, table: Table) -> None:
    lake.ratify(table.location, 2, append("b"))
    text = published(table.location, 2)
    assert text is not None
    assert json.loads(text.splitlines()[0])["commitInfo"]["operation"] == "WRITE"


def test_a_restore_may_change_the_schema_back(lake: Lake, warehouse: Path) -> None:
    place = str(warehouse / "t")
    fields = json.loads(SCHEMA)["fields"]
    wider = {"type": "struct", "fields": [*fields, {**fields[0], "name": "extra"}]}
    lake.ratify(place, 0, commit_file(PROTOCOL, metadata(), add("a")))
    lake.ratify(place, 1, commit_file(metadata(schemaString=json.dumps(wider)), add("b")))
    back = [metadata(), remove("b")]
    with pytest.raises(CommitRejectedError, match="The schema cannot change"):
        lake.ratify(place, 2, commit_file(*back))
    lake.ratify(place, 2, commit_file(*back, operation="RESTORE"))
    snapshot = lake.table("t").snapshot()
    assert list(snapshot.schema.names) == [field["name"] for field in fields]
    assert live_paths(lake.table("t")) == ["a"]
