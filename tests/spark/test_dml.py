"""DELETE and UPDATE by Spark: copy on write, deletion vectors, change data, conflicts."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.actions.codec import to_dict
from deltalakedb.actions.jsonvalue import loads
from deltalakedb.errors import (
    CommitConflictError,
    ConstraintViolatedError,
    InvalidConditionError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations.append import add_of
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.spark.dml.delete_update import delete, update
from deltalakedb.table import Table
from spark.ways import WAYS

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def numbers(lake: Lake, folder: Path, properties: dict[str, str]) -> Table:
    """Thirty rows in three files and two partitions."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("word", pa.string())])
    table = lake.create_table(
        str(folder),
        location=str(folder),
        schema=schema,
        partition_by=["part"],
        properties=properties,
    )
    for start in (0, 10, 20):
        ids = list(range(start, start + 10))
        part = "a" if start < 20 else "b"
        table.append(pa.table({"id": ids, "part": [part] * 10, "word": [f"w{i}" for i in ids]}))
    return table


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def metrics(table: Table) -> dict[str, Any]:
    info = table.history(1)[0].commit_info
    assert info is not None
    assert info.operation_metrics is not None
    return dict(info.operation_metrics)


@pytest.mark.parametrize("properties", WAYS)
def test_rows_are_deleted(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", properties)
    before = table.snapshot()
    assert delete(spark, table, "id % 10 = 3") == 4
    assert ids(table) == [i for i in range(30) if i % 10 != 3]
    assert metrics(table)["numDeletedRows"] == "3"
    # Once more in the same files; Columns do as well as text.
    assert delete(spark, table, (F.col("id") > 11) & (F.col("word") == "w17")) == 5
    assert ids(table) == [i for i in range(30) if i % 10 != 3 and i != 17]
    assert before.to_arrow().num_rows == 30
    # A file without rows goes; one partition is a matter of the log alone.
    assert delete(spark, table, "id < 10") == 6
    assert delete(spark, table, "part = 'b'") == 7
    assert ids(table) == [10, 11, 12, 14, 15, 16, 18, 19]
    assert metrics(table)["numDeletedRows"] == "9"
    assert table.snapshot().num_files == 1
    # Nothing to do is no version.
    assert delete(spark, table, "id = 1000") is None
    assert delete(spark, table) == 8
    assert ids(table) == []


def test_a_file_whose_rows_are_marked_keeps_what_is_not_known_here(
    spark: SparkSession, shared_lake: Lake, tmp_path: Path
) -> None:
    # More digits than a float has: a bound that is rounded hides rows that are there.
    large = Decimal("12345678901234567890123456.789")
    schema = pa.schema([("id", pa.int64()), ("price", pa.decimal128(38, 3))])
    table = shared_lake.create_table(
        str(tmp_path),
        location=str(tmp_path),
        schema=schema,
        properties={"delta.enableDeletionVectors": "true"},
    )
    table.append(pa.table({"id": [1, 2, 3], "price": [large] * 3}, schema=schema))
    (listed,) = table.snapshot().files(columns=COLUMNS).to_pylist()
    added = to_dict(add_of(listed))["add"]
    unknown = {"futureField": {"x": [1, None]}, "futureNumber": large, "futureNull": None}
    table.commit([{"add": {**added, **unknown, "tags": {"a": "b"}}}])
    for number in (1, 2):
        delete(spark, table, f"id = {number}")
        (listed,) = table.snapshot().files(columns=COLUMNS).to_pylist()
        assert listed["deletion_vector"] is not None
        assert loads(listed["extra"]) == unknown
        assert listed["tags"] == '{"a":"b"}'
        stats = loads(listed["stats"])
        assert stats["tightBounds"] is False
        assert stats["minValues"]["price"] == stats["maxValues"]["price"] == large
    assert table.snapshot().to_arrow(where=f"price = {large}")["id"].to_pylist() == [3]


@pytest.mark.parametrize("properties", WAYS)
def test_rows_are_updated(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", properties)
    assert update(spark, table, "id IN (3, 23)", {"id": "id + 100", "word": F.lit("new")}) == 4
    assert ids(table) == sorted([*(i for i in range(30) if i not in (3, 23)), 103, 123])
    told = metrics(table)
    assert told["numUpdatedRows"] == "2"
    # Rows move to another partition; without a condition all of them.
    assert update(spark, table, "id = 103", {"part": "'c'"}) == 5
    rows = table.snapshot().to_arrow(where="id = 103").to_pylist()
    assert rows == [{"id": 103, "part": "c", "word": "new"}]
    assert update(spark, table, None, {"word": "part"}) == 6
    found = table.snapshot().to_arrow().to_pylist()
    assert len(found) == 30
    assert all(row["word"] == row["part"] for row in found)
    assert update(spark, table, "id = -1", {"word": "'x'"}) is None


def test_files_that_cannot_match_are_not_touched(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t", {})
    before = set(table.snapshot().files()["path"].to_pylist())
    update(spark, table, "id = 5", {"word": "'five'"})
    assert len(before & set(table.snapshot().files()["path"].to_pylist())) == 2
    assert metrics(table)["numCopiedRows"] == "9"


def test_unknown_is_not_true(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = lake.create_table("nulls", location=str(tmp_path / "t"), schema=schema)
    table.append(pa.table({"id": [1, 2, 3], "v": [None, 1, 5]}))
    update(spark, table, "v > 2", {"v": "0"})
    delete(spark, table, "v = 1")
    found = sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "v": None}, {"id": 3, "v": 0}]


def test_fields_of_structs_are_set(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    frame = spark.sql(
        "select 1L as id, named_struct('a', 1, 'b.c', named_struct('d', 'x')) as s, 2 as `a.b`"
    )
    table = lake.create_table("nested", location=str(tmp_path / "t"), schema=frame.schema)
    table.append(frame)
    update(spark, table, "id = 1", {"s.`b.c`.d": "'y'", "`a.b`": "3", "S.A": "7L"})
    (row,) = table.snapshot().to_arrow().to_pylist()
    assert row == {"id": 1, "s": {"a": 7, "b.c": {"d": "y"}}, "a.b": 3}
    for wrong in ({"nope": "1"}, {"s": "s", "s.a": "1"}, {"s.z": "1"}):
        with pytest.raises(InvalidConditionError):
            update(spark, table, "id = 1", wrong)


def test_what_is_wrong_is_told_and_changes_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t", {"delta.constraints.small": "id < 1000"})
    files = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    for condition in ("nope = 1", "id = ", "rand() < 0.5"):
        with pytest.raises(InvalidConditionError):
            delete(spark, table, condition)
    with pytest.raises(ConstraintViolatedError, match="small"):
        update(spark, table, "id = 3", {"id": "5000"})
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == files
    assert table.snapshot().version == 3


class Held(Table):
    """A handle that has read before others changed the table."""

    @classmethod
    def of(cls, table: Table) -> "Held":
        held = cls(table._store, table._committer, table._mirror, table._record)
        held.first = Table.snapshot(held)
        return held

    first: Snapshot

    def snapshot(
        self, version: int | None = None, *, timestamp: datetime | str | None = None
    ) -> Snapshot:
        assert version is None
        assert timestamp is None
        return self.first


def test_changes_of_the_same_file_collide_and_others_do_not(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t", {"delta.isolationLevel": "WriteSerializable"})
    begun = Held.of(table)
    assert delete(spark, table, "part = 'a' AND id = 5") == 4
    with pytest.raises(CommitConflictError):
        delete(spark, begun, "part = 'a' AND id = 4")
    begun = Held.of(table)
    assert delete(spark, table, "part = 'a' AND id = 6") == 5
    assert delete(spark, begun, "part = 'b' AND id = 25") == 6
    assert ids(table) == [i for i in range(30) if i not in (5, 6, 25)]


@pytest.mark.parametrize("properties", WAYS)
def test_each_file_is_read_at_most_twice(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    """Of three files, two may have such rows: the third is not read at all."""
    with_vectors = "delta.enableDeletionVectors" in properties
    table = numbers(lake, tmp_path / "deleted", properties)
    reads = Reads(spark)
    assert delete(spark, table, "id % 10 = 3 AND id < 20") == 4
    once = with_vectors and "delta.enableChangeDataFeed" not in properties
    assert reads.files() == (2 if once else 4)

    table = numbers(lake, tmp_path / "updated", properties)
    reads = Reads(spark)
    assert update(spark, table, "id % 10 = 3 AND id < 20", {"word": "'x'"}) == 4
    assert reads.files() == 4


class Reads:
    """How many files queries have read since it was made, by Spark's own count."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark._jsparkSession.sharedState().statusStore()
        self._bus = spark._jsc.sc().listenerBus()
        self._before = max(self._executions(), default=-1)

    def _executions(self) -> dict[int, Any]:
        self._bus.waitUntilEmpty(30_000)
        found = self._store.executionsList()
        every = (found.apply(i) for i in range(found.size()))
        return {one.executionId(): one for one in every}

    def files(self) -> int:
        found: dict[int, int] = {}
        for number, execution in self._executions().items():
            if number <= self._before:
                continue
            values, metrics = self._store.executionMetrics(number), execution.metrics()
            # A plan that is changed while it runs lists its metrics again.
            for metric in (metrics.apply(i) for i in range(metrics.size())):
                known = values.get(metric.accumulatorId())
                if metric.name() == "number of files read" and known.isDefined():
                    found[metric.accumulatorId()] = int(known.get().replace(",", ""))
        return sum(found.values())
