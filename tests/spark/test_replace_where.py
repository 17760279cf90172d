"""`replaceWhere` of DataFrames: Spark finds what goes, whatever the condition is."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.actions import AddFile, CdcFile
from deltalakedb.errors import (
    ConcurrentAppendError,
    ConstraintViolatedError,
    InvalidConditionError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations import overwrite
from deltalakedb.spark.source.options import SourceOptions
from deltalakedb.table import Table
from spark.ways import FEED, VECTORS, WAYS

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def rows(spark: SparkSession, *ids: int, part: str = "a") -> DataFrame:
    data = [(i, part, f"w{i}") for i in ids]
    return spark.createDataFrame(data, "id long, part string, word string").coalesce(1)


def numbers(lake: Lake, folder: Path, **properties: str) -> Table:
    """0 to 9 and 10 to 19 in two files of part a, 20 to 29 in part b."""
    table = lake.create_table(
        str(folder),
        location=str(folder),
        schema=pa.schema([("id", pa.int64()), ("part", pa.string()), ("word", pa.string())]),
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


def orphans(table: Table) -> set[str]:
    """Data files on the disk that no version ever had."""
    folder = Path(table.location.removeprefix("file://"))
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}
    known = {
        action.path
        for version in range(table.snapshot().version + 1)
        for action in table.actions(version)
        if isinstance(action, (AddFile, CdcFile))
    }
    return {path for path in there if not path.startswith("_delta_log")} - known


def changes(spark: SparkSession, lake: Lake, table: Table, version: int) -> list[tuple[str, int]]:
    from deltalakedb.spark.source.feed import feed_frame

    given = SourceOptions.read(
        {
            "path": table.name,
            "catalog": "x",
            "readChangeFeed": "true",
            "startingVersion": str(version),
        }
    )
    found = feed_frame(spark, lake, given).collect()
    return sorted((row._change_type, row.id) for row in found)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file may be read by the driver."""

    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(overwrite, "_rows_replaced", refuse)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("properties", WAYS)
def test_rows_are_replaced_by_any_condition(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", **properties)
    files = table.snapshot().files()["path"].to_pylist()
    # Neither a function nor two columns are anything that the catalog could compare.
    where = "upper(word) IN ('W3', 'W20') OR word = concat('w', id - 0) AND id BETWEEN 10 AND 19"
    table.overwrite(rows(spark, 3, 12), where=where)
    assert ids(table) == [*range(10), 12, *range(21, 30)]
    snapshot = table.snapshot()
    with_vector = [f for f in snapshot.files().to_pylist() if f["deletion_vector"] is not None]
    assert len(with_vector) == (2 if VECTORS.items() <= properties.items() else 0)
    assert {f["path"] for f in with_vector} <= set(files)
    if FEED.items() <= properties.items():
        deleted = [("delete", i) for i in [3, *range(10, 21)]]
        expected = sorted([*deleted, ("insert", 3), ("insert", 12)])
        assert changes(spark, lake, table, 4) == expected
    info = table.history(1)[0].commit_info
    assert info is not None
    assert (info.operation, info.operation_parameters) == (
        "WRITE",
        {"mode": "Overwrite", "partitionBy": '["part"]', "predicate": f'["{where}"]'},
    )
    assert info.is_blind_append is False
    # Once more where deletion vectors are already, and no rows come.
    table.overwrite(rows(spark, 1).limit(0), where="id % 3 = 0 AND id < 10")
    assert ids(table) == [1, 2, 4, 5, 7, 8, 12, *range(21, 30)]
    # One partition is a matter of the log alone.
    table.overwrite(rows(spark, 50, part="b"), where="part = 'b'")
    assert ids(table) == [1, 2, 4, 5, 7, 8, 12, 50]
    assert orphans(table) == set()


def test_what_is_wrong_is_told_before_anything_is_written(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t", **FEED)
    for wrong in ("nothing = 1", "id +", "word", "rand() < 0.5"):
        with pytest.raises(InvalidConditionError, match="cannot be used"):
            table.overwrite(rows(spark, 1), where=wrong)
    with pytest.raises(ConstraintViolatedError, match="overwrite where"):
        table.overwrite(rows(spark, 1, 7), where="length(word) = 2 AND id < 5")
    assert table.snapshot().version == 3
    assert orphans(table) == set()
    tracked = numbers(lake, tmp_path / "tracked", **{"delta.enableRowTracking": "true"})
    with pytest.raises(UnsupportedFeatureError, match="lose their ids"):
        tracked.overwrite(rows(spark, 1), where="id + 0 = 1")
    assert orphans(tracked) == set()


def test_conflicts_are_those_of_the_rows_that_were_looked_at(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = numbers(lake, tmp_path / "t", **VECTORS)
    from deltalakedb.spark.io.stage import FrameSource

    original = FrameSource.stage
    acting = iter([("b", 40), ("a", 41)])

    def stage(self: Any, plan: Any) -> Any:
        found = original(self, plan)
        part, number = next(acting)
        with monkeypatch.context() as usual:
            usual.setattr(FrameSource, "stage", original)
            table.append(rows(spark, number, part=part))
        return found

    monkeypatch.setattr(FrameSource, "stage", stage)
    # Another partition is nobody's concern; rows that come to this one are.
    table.overwrite(rows(spark, 1), where="part = 'a' AND id + 0 = 1")
    with pytest.raises(ConcurrentAppendError):
        table.overwrite(rows(spark, 2), where="part = 'a' AND id + 0 = 2")
    monkeypatch.undo()
    assert ids(table) == [*range(30), 40, 41]
    assert orphans(table) == set()


def test_columns_that_the_rows_bring_may_be_named(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    for name, properties in (("plain", {}), ("mapped", {"delta.columnMapping.mode": "name"})):
        table = numbers(lake, tmp_path / name, **properties)
        new = rows(spark, 5).selectExpr("*", "named_struct('x', 1) AS s")
        table.overwrite(new, where="id = 5 AND s IS NULL OR s.x = 1", merge_schema=True)
        assert ids(table) == list(range(30))
        wide = rows(spark, 6).selectExpr("*", "named_struct('x', 2, 'y', 3) AS s")
        table.overwrite(wide, where="abs(id) = 6", merge_schema=True)
        found = {row["id"]: row["s"] for row in table.snapshot().to_arrow().to_pylist()}
        assert (found[5], found[6], found[7]) == ({"x": 1, "y": None}, {"x": 2, "y": 3}, None)


def test_times_are_in_the_zone_of_the_session(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Once for the rows that go, and once for those that come."""
    table = lake.create_table(
        "zones", location=str(tmp_path / "z"), schema=pa.schema([("at", pa.timestamp("us", "UTC"))])
    )
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for where in ("at = '2026-01-01 07:00:00'", "at = timestamp'2026-01-01 07:00:00'"):
            table.append(pa.table({"at": [noon, datetime(2026, 1, 1, 7, tzinfo=UTC)]}))
            frame = spark.createDataFrame([(noon,)], "at timestamp")
            table.overwrite(frame, where=where)
            found = sorted(table.snapshot().to_arrow()["at"].to_pylist())
            assert found == [datetime(2026, 1, 1, 7, tzinfo=UTC), noon]
            table.overwrite(table.snapshot().to_arrow().slice(0, 0))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Outside of Spark there is no session: times are in UTC.
    table.append(pa.table({"at": [noon]}))
    table.overwrite(pa.table({"at": [noon]}), where="at = '2026-01-01 12:00:00'")
    assert table.snapshot().to_arrow().num_rows == 1


@pytest.mark.parametrize(
    "properties",
    [pytest.param({}, id="copy", marks=pytest.mark.soak), pytest.param(VECTORS, id="vectors")],
)
def test_rows_of_the_same_transaction_are_replaced(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", **properties)
    with lake.transaction() as tx:
        part = tx.table(table.name)
        part.append(rows(spark, 40, 41))
        part.overwrite(rows(spark, 3), where="abs(id) IN (3, 40)")
        part.overwrite(rows(spark, 4, 4), where="abs(id) = 4 OR abs(id) = 41")
        part.overwrite(rows(spark, 3, 3, 3), where="word = concat('w', 3)")
    assert ids(table) == [0, 1, 2, 3, 3, 3, 4, 4, *range(5, 30)]
    with lake.transaction() as tx:
        part = tx.table(table.name)
        part.overwrite(rows(spark, 5), where="abs(id) = 5")
        part.overwrite(rows(spark, 99))
    assert ids(table) == [99]
    assert orphans(table) == set()
    assert table.snapshot(4).to_arrow().num_rows == 33
