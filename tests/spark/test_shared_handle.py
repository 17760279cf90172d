"""One handle for several threads: two changes of the same rows never both go through."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    ConcurrentAppendError,
    MetadataChangedError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.dml.changes import RowChange
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from deltalakedb.transaction.committer import Committer

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs, engine: Engine) -> Iterator[Lake]:
    with catalogs.fresh(engine) as url, deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table = lake.create_table(str(tmp_path), location=str(tmp_path / "t"), schema=schema)
    table.append(pa.table({"id": [1, 2], "n": [0, 0]}))
    table.append(pa.table({"id": [3], "n": [0]}))
    return table


def in_between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another thread act once, when a change has found its rows and is about to write them."""
    original = RowChange.write_all
    acting = iter([act])

    def write_all(self: RowChange, parts: Any) -> None:
        for one in acting:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(one).result()
        original(self, parts)

    monkeypatch.setattr(RowChange, "write_all", write_all)


def found(table: Table) -> list[tuple[int, int]]:
    rows = table.snapshot().to_arrow().to_pylist()
    return sorted((row["id"], row["n"]) for row in rows)


def test_two_merges_do_not_insert_the_same_key(
    spark: SparkSession, lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = DeltaTable.forName(spark, table.name, catalog=lake)
    source = spark.createDataFrame([(7, 7)], "id long, n long")

    def merge() -> None:
        (
            shared.alias("t")
            .merge(source.alias("s"), "t.id = s.id")
            .whenNotMatchedInsertAll()
            .execute()
        )

    in_between(monkeypatch, merge)
    with pytest.raises(ConcurrentAppendError):
        merge()
    assert found(table) == [(1, 0), (2, 0), (3, 0), (7, 7)]
    merge()
    assert found(table) == [(1, 0), (2, 0), (3, 0), (7, 7)]


def test_no_update_is_lost(
    spark: SparkSession, lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = DeltaTable.forName(spark, table.name, catalog=lake)

    def update() -> None:
        shared.update("id = 1", {"n": "n + 1"})

    in_between(monkeypatch, update)
    with pytest.raises(CommitConflictError):
        update()
    assert found(table) == [(1, 1), (2, 0), (3, 0)]


def test_columns_of_a_merge_are_added_to_those_it_has_seen(
    spark: SparkSession, lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = DeltaTable.forName(spark, table.name, catalog=lake)
    source = spark.createDataFrame([(7, 7, 7)], "id long, n long, more long")
    columns = pa.schema([("other", pa.int64())])
    in_between(monkeypatch, lambda: table.add_columns(columns))
    in_merge = shared.alias("t").merge(source.alias("s"), "t.id = s.id").withSchemaEvolution()
    # The handle sees the new version before the commit.
    monkeypatch.setattr(
        RowChange, "commit", looking(RowChange.commit, lambda: lake_table(shared).refresh())
    )
    with pytest.raises(MetadataChangedError):
        in_merge.whenNotMatchedInsertAll().execute()
    assert table.snapshot().schema.names == ("id", "n", "other")


def lake_table(shared: DeltaTable) -> Table:
    table: Table = shared._table
    return table


def looking(original: Callable[..., Any], act: Callable[[], object]) -> Callable[..., Any]:
    def commit(*args: Any, **options: Any) -> Any:
        act()
        return original(*args, **options)

    return commit


@pytest.mark.parametrize("how", ["zorder", "cluster"])
def test_files_of_an_optimize_whose_outcome_is_unknown_stay(
    spark: SparkSession, lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The commit may have happened: then they are the table."""
    if how == "cluster":
        table.cluster_by(["id"])
    commit = Committer._committed

    def lost(self: Committer, commits: Any, reads: Any) -> Any:
        commit(self, commits, reads)
        raise CommitOutcomeUnknownError("The answer was lost", why="a test", fix="look")

    monkeypatch.setattr(Committer, "_committed", lost)
    optimize = DeltaTable.forName(spark, table.name, catalog=lake).optimize()
    with pytest.raises(CommitOutcomeUnknownError):
        optimize.executeZOrderBy("id") if how == "zorder" else optimize.executeCompaction()
    monkeypatch.undo()
    assert found(table) == [(1, 0), (2, 0), (3, 0)]
    assert table.snapshot().num_files == 1
