"""MERGE by Spark: every kind of clause, duplicates, schema evolution, and what is not touched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.errors import (
    AmbiguousMergeError,
    ConfigurationError,
    ConstraintViolatedError,
    InvalidConditionError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.table import Table
from spark.ways import WAYS

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def numbers(lake: Lake, folder: Path, properties: dict[str, str] | None = None) -> Table:
    """Twelve rows in three files: 0-3, 4-7, 8-11."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("word", pa.string())])
    table = lake.create_table(
        str(folder), location=str(folder), schema=schema, properties=properties
    )
    for start in (0, 4, 8):
        ids = list(range(start, start + 4))
        table.append(pa.table({"id": ids, "v": [0] * 4, "word": ["old"] * 4}))
    return table


def rows(table: Table) -> dict[int, tuple[Any, ...]]:
    found = table.snapshot().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a row is there twice"
    return {row["id"]: tuple(row.values())[1:] for row in found}


def source(spark: SparkSession, *values: tuple[int, int]) -> DataFrame:
    return spark.createDataFrame(list(values), "id bigint, v bigint").withColumn(
        "word", F.lit("new")
    )


def merging(spark: SparkSession, lake: Lake, table: Table) -> DeltaTable:
    return DeltaTable.forName(spark, table.name, catalog=lake).alias("t")


def test_nothing_is_logged_as_an_error(
    spark: SparkSession, lake: Lake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = numbers(lake, tmp_path / "t")
    merge = merging(spark, lake, table).merge(source(spark, (1, 10)).alias("s"), "t.id = s.id")
    merge.whenMatchedUpdate("s.v > t.v", {"v": "s.v"}).execute()
    assert rows(table)[1] == (10, "old")
    assert "ERROR" not in capfd.readouterr().err


@pytest.mark.parametrize("properties", WAYS)
def test_all_kinds_of_clauses_at_once(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", properties)
    told = (
        merging(spark, lake, table)
        .merge(
            source(spark, (1, 10), (2, -1), (3, 30), (20, 5), (21, -5)).alias("s"), "t.id = s.id"
        )
        .whenMatchedDelete("s.v < 0")
        .whenMatchedUpdate("s.id = 1", {"v": "t.v + s.v", "t.word": F.lit("changed")})
        .whenNotMatchedInsert("s.v > 0", {"id": "s.id", "v": "s.v * 2"})
        .whenNotMatchedBySourceUpdate("t.id = 5", {"word": "'alone'"})
        .whenNotMatchedBySourceDelete("t.id > 9")
        .execute()
        .collect()[0]
    )
    assert rows(table) == {
        **dict.fromkeys((0, 3, 4, 6, 7, 8, 9), (0, "old")),
        1: (10, "changed"),
        5: (0, "alone"),
        20: (10, None),
    }
    assert tuple(told) == (6, 2, 3, 1)
    # And what was before is still there.
    assert table.snapshot(version=3).to_arrow().num_rows == 12


@pytest.mark.parametrize("properties", WAYS)
def test_upsert(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", properties)
    before = set(table.snapshot().files()["path"].to_pylist())
    upsert = (
        merging(spark, lake, table)
        .merge(source(spark, (2, 2), (100, 3)), "t.id = __deltalakedb_source.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
    )
    upsert.execute()
    assert rows(table)[2] == (2, "new")
    assert rows(table)[100] == (3, "new")
    assert len(rows(table)) == 13
    # Only one of the three files was touched.
    after = set(table.snapshot().files()["path"].to_pylist())
    assert len(before & after) == (3 if properties else 2)
    info = table.history(1)[0].commit_info
    assert info is not None
    assert info.operation == "MERGE"
    assert info.operation_metrics is not None
    assert info.operation_metrics["numTargetRowsInserted"] == "1"
    assert info.operation_metrics["numTargetRowsUpdated"] == "1"
    assert info.operation_metrics["numTargetRowsCopied"] == ("0" if properties else "3")
    # The same again changes the same row again, and inserts nothing.
    upsert.execute()
    assert len(rows(table)) == 13


def test_insert_only(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = numbers(lake, tmp_path / "t")
    (
        merging(spark, lake, table)
        .merge(source(spark, (2, 2), (50, 3), (50, 4)).alias("s"), "t.id = s.id AND t.v = 0")
        .whenNotMatchedInsertAll("s.v = 3")
        .execute()
    )
    assert rows(table)[50] == (3, "new")
    assert len(rows(table)) == 13
    assert table.snapshot().num_files == 4


def test_several_partners(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = numbers(lake, tmp_path / "t")
    twice = source(spark, (2, 1), (2, 2)).alias("s")
    merge = merging(spark, lake, table).merge(twice, "t.id = s.id")
    with pytest.raises(AmbiguousMergeError):
        merge.whenMatchedUpdateAll().execute()
    assert table.snapshot().version == 3
    # It is clear which one it is, or it makes no difference.
    chosen = merging(spark, lake, table).merge(twice, "t.id = s.id")
    chosen.whenMatchedUpdateAll("s.v = 2").whenNotMatchedInsertAll().execute()
    assert rows(table)[2] == (2, "new")
    assert len(rows(table)) == 12
    gone = merging(spark, lake, table).merge(twice, "t.id = s.id")
    gone.whenMatchedDelete().execute()
    assert 2 not in rows(table)
    assert len(rows(table)) == 11


def test_columns_of_the_source_are_added(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = numbers(lake, tmp_path / "t")
    wide = spark.sql("select 2L as id, 'x' as extra union all select 70L, 'y'").alias("s")
    merge = merging(spark, lake, table).merge(wide, "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll()
    with pytest.raises(InvalidConditionError, match="no column 'v'"):
        merge.execute()
    merge.withSchemaEvolution().execute()
    found = rows(table)
    assert found[2] == (0, "old", "x")
    assert found[70] == (None, None, "y")
    assert found[3] == (0, "old", None)
    assert table.snapshot().schema.names == ("id", "v", "word", "extra")


def test_what_is_wrong_is_told_and_changes_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t", {"delta.constraints.small": "v < 1000"})
    some = source(spark, (2, 5000)).alias("s")
    merge = merging(spark, lake, table).merge(some, "t.id = s.id")
    with pytest.raises(ConfigurationError, match="no clause"):
        merge.execute()
    with pytest.raises(ConstraintViolatedError, match="small"):
        merge.whenMatchedUpdateAll().execute()
    with pytest.raises(ConfigurationError, match="never be reached"):
        merge.whenMatchedDelete("s.v = 1").execute()
    for condition, values in (("t.nope = s.id", {"v": "1"}), ("t.id = s.id", {"v": "s.nope"})):
        wrong = merging(spark, lake, table).merge(some, condition)
        with pytest.raises(InvalidConditionError, match="nope"):
            wrong.whenMatchedUpdate(set=values).execute()
    assert table.snapshot().version == 3
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 3


def test_a_source_that_is_made_of_the_table(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t")
    target = merging(spark, lake, table)
    doubled = target.toDF().where("id < 3").withColumn("v", F.rand()).alias("s")
    target.merge(doubled, F.expr("t.id = s.id")).whenMatchedUpdate(
        set={"v": "cast(s.v * 0 + 7 as bigint)"}
    ).execute()
    assert [row[0] for _, row in sorted(rows(table).items())] == [7, 7, 7, *[0] * 9]


def test_comments_and_odd_texts_in_the_condition(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t")
    condition = """
        t.id = s.id -- the key
        AND t.id > 1 /* and only some */ AND t.word <> 'it''s' -- no other
    """
    merge = merging(spark, lake, table).merge(source(spark, (1, 1), (2, 2)).alias("s"), condition)
    merge.whenMatchedUpdateAll().execute()
    assert (rows(table)[1], rows(table)[2]) == ((0, "old"), (2, "new"))
    with pytest.raises(InvalidConditionError, match=r"(?s)nope.*t\.name"):
        merging(spark, lake, table).merge(
            source(spark, (1, 1)).alias("s"), "t.id = s.id AND t.nope = 1"
        ).whenMatchedUpdateAll().execute()
    with pytest.raises(InvalidConditionError, match=r"(?s)'v'.*nope.*s\.name"):
        merging(spark, lake, table).merge(
            source(spark, (1, 1)).alias("s"), "t.id = s.id"
        ).whenMatchedUpdate(set={"v": "s.nope"}).execute()


@pytest.mark.parametrize("properties", WAYS)
def test_rows_that_the_source_lacks_are_asked_for_their_own_columns(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = numbers(lake, tmp_path / "t", properties)
    news = source(spark, (1, 10)).withColumn("extra", F.lit(None).cast("string")).alias("s")
    # The source has columns of these names, too: they mean those of the table.
    (
        merging(spark, lake, table)
        .merge(news, "t.id = s.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedBySourceDelete("id > 9 AND word = 'old'")
        .whenNotMatchedBySourceUpdate("id = 5", {"v": "v + id", "word": "concat(word, 'er')"})
        .execute()
    )
    kept = dict.fromkeys((0, 2, 3, 4, 6, 7, 8, 9), (0, "old"))
    assert rows(table) == {**kept, 1: (10, "new"), 5: (5, "older")}
    # Values are made for the rows that get them, and for no others.
    (
        merging(spark, lake, table)
        .merge(news, "t.id = s.id")
        .whenNotMatchedBySourceUpdate("v > 0", {"v": "id div v"})
        .execute()
    )
    assert rows(table) == {**kept, 1: (10, "new"), 5: (1, "older")}
    # One that only the source has is null for all of them, and no condition.
    for condition in ("extra IS NULL", "s.word IS NULL"):
        refused = merging(spark, lake, table).merge(news, "t.id = s.id")
        with pytest.raises(InvalidConditionError, match="cannot be resolved"):
            refused.whenNotMatchedBySourceDelete(condition).execute()
    assert len(rows(table)) == 10


def test_what_is_told_of_files_without_statistics(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = numbers(lake, tmp_path / "t", {"delta.dataSkippingNumIndexedCols": "0"})
    bare = [{"add": {**_add(row), "stats": None}} for row in table.snapshot().files().to_pylist()]
    table.commit(bare, operation="COMPUTE STATS")
    told = (
        merging(spark, lake, table)
        .merge(source(spark, (1, 10), (2, 20), (30, 5)).alias("s"), "t.id = s.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
        .collect()[0]
    )
    assert (told.num_updated_rows, told.num_inserted_rows, told.num_deleted_rows) == (2, 1, 0)
    (last,) = table.history(1)
    metrics = last.operation_metrics
    assert (metrics["numTargetRowsCopied"], metrics["numTargetRowsInserted"]) == ("2", "1")


def _add(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": row["path"],
        "partitionValues": {},
        "size": row["size_bytes"],
        "modificationTime": row["modification_time"],
        "dataChange": False,
    }
