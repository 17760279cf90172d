"""A log that Spark's executors read is found to be the same as one that is read in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.listing import list_log, plan_history
from deltalakedb.deltalog.names import checkpoint_key, commit_key
from deltalakedb.errors import InvalidLogError
from deltalakedb.lake import Lake
from deltalakedb.mirror.log_reader import LogReader
from deltalakedb.mirror.verification import Kind
from deltalakedb.spark.jobs import verify
from deltalakedb.table import Table

from support.lake import SCHEMA, add, deletion_vector, remove
from support.published import folder_of
from support.store import Catalogs

NAMES = ("a b%20c", "ä", "x", "y", "z")


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture
def table(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Seven versions of all kinds of actions, with checkpoints; read in many units and buckets."""
    monkeypatch.setattr(verify, "_CHUNK", 2)
    monkeypatch.setattr("deltalakedb.mirror.verify.BUCKET", 3)
    properties = {"delta.checkpointInterval": "3", "delta.enableDeletionVectors": "true"}
    table = lake.create_table(
        "t", location=str(tmp_path / "t"), schema=SCHEMA, properties=properties
    )
    for number, name in enumerate(NAMES):
        table.commit([add(name)], app_txn=("app", number))
    again = add("x", data_change=False)
    again["add"]["deletionVector"] = deletion_vector(1)
    table.commit([remove("x", data_change=False), again, remove("y", data_change=False)])
    table.set_properties({"owner": "me"})
    lake.mirror.drain()
    return table


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def good(_: Table) -> None:
    """Leave it as it is."""


def damaged(table: Table) -> None:
    rewrite(folder_of(table) / commit_key(4), lambda data: data.replace(b"100", b"101"))


def cut(table: Table) -> None:
    rewrite(folder_of(table) / commit_key(5), lambda data: data[:40])


def missing(table: Table) -> None:
    (folder_of(table) / commit_key(2)).unlink()


def foreign(table: Table) -> None:
    (folder_of(table) / commit_key(8)).write_text(json.dumps(add("theirs")) + "\n")


def wrong_checkpoint(table: Table) -> None:
    path = folder_of(table) / checkpoint_key(6)
    found = pq.read_table(path)
    kept = [number for number, add in enumerate(found["add"].to_pylist()) if add is None]
    pq.write_table(found.take([*kept, found.num_rows - 1]), path)


def no_checkpoint(table: Table) -> None:
    (folder_of(table) / checkpoint_key(3)).write_bytes(b"no parquet")


def other_ledger(table: Table) -> None:
    """The log is right, and the catalog is not."""
    with table._store.write() as session:
        for relation in ("dl_add_files", "dl_active_files"):
            session.execute_count(f"UPDATE {relation} SET size_bytes = 5 WHERE path = 'z'", {})


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (good, set()),
        (damaged, {Kind.DIFFERENT_COMMIT}),
        pytest.param(cut, {Kind.TRUNCATED_COMMIT}, marks=pytest.mark.soak),
        pytest.param(missing, {Kind.MISSING_COMMIT}, marks=pytest.mark.soak),
        pytest.param(foreign, {Kind.FOREIGN_COMMIT}, marks=pytest.mark.soak),
        (wrong_checkpoint, {Kind.CHECKPOINT_DIFFERS, Kind.LOST_HINT}),
        (no_checkpoint, {Kind.DAMAGED_CHECKPOINT}),
        (other_ledger, {Kind.STATE_DIFFERS, Kind.CHECKPOINT_DIFFERS}),
    ],
)
def test_spark_finds_what_one_process_finds(
    spark: SparkSession,
    lake: Lake,
    table: Table,
    spoil: Callable[[Table], None],
    kinds: set[Kind],
) -> None:
    spoil(table)
    alone = lake.verify("t")
    together = lake.verify("t", spark=spark)
    assert {finding.kind for finding in alone.findings} >= kinds
    assert alone.ok is (not kinds)
    assert sorted(map(str, together.findings)) == sorted(map(str, alone.findings))
    assert {**together.to_dict(), "findings": 0} == {**alone.to_dict(), "findings": 0}


def test_a_commit_that_cannot_be_understood_is_told_alike(
    spark: SparkSession, lake: Lake, table: Table
) -> None:
    reader = verify.log_reader(spark, table.location, {})
    rewrite(folder_of(table) / commit_key(2), lambda _: b'{"add": 1}\n')
    rewrite(folder_of(table) / commit_key(3), lambda _: b"nonsense")
    storage = lake.open_storage(table.location)
    plan = plan_history(list_log(storage), location=table.location)
    told = []
    for make in (LogReader, reader):
        with Spool(storage) as spool, pytest.raises(InvalidLogError) as error:
            list(make(storage, spool).states(plan, 2))
        told.append(str(error.value))
    assert told[0] == told[1]
    assert commit_key(2) in told[0]
