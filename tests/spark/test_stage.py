"""DataFrames are written by Spark's executors, and what is wrong with them is told as such."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.errors import ConstraintViolatedError, SchemaMismatchError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.io.scan import scan
from deltalakedb.table import Table

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def new(lake: Lake, folder: Path, schema: Any, **options: Any) -> Table:
    return lake.create_table(str(folder), location=str(folder), schema=schema, **options)


def data_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts]


def test_a_frame_comes_back_as_it_was(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    frame = spark.range(1000, numPartitions=4).select(
        F.col("id"),
        (F.col("id") % 3).cast("string").alias("part"),
        F.when(F.col("id") % 5 == 0, None).otherwise(F.col("id") / 7).alias("real"),
        F.expr("timestamp_seconds(id)").alias("at"),
        F.expr("cast(id as decimal(12,3))").alias("price"),
        F.array(F.col("id"), F.lit(None)).alias("list"),
        F.struct(F.col("id").alias("a"), F.lit("x").alias("b")).alias("nested"),
        F.expr("map('k', id)").alias("map"),
        F.expr("date_add(date'2026-01-01', cast(id as int))").alias("day"),
    )
    table = new(lake, tmp_path / "t", frame.schema, partition_by=["part"])
    committed = table.append(frame)
    assert committed == 1
    found = scan(spark, table.snapshot())
    assert found.schema.simpleString() == frame.schema.simpleString()
    # Sets of maps cannot be compared.
    ours, theirs = (every.withColumn("map", F.map_entries("map")) for every in (found, frame))
    assert ours.exceptAll(theirs).isEmpty()
    assert theirs.exceptAll(ours).isEmpty()
    # Statistics are those of the rows in each file.
    assert table.snapshot().files(where="id = 7 AND part = '1'").num_rows == 1
    (newest, *_) = table.history(1)
    assert newest.commit_info is not None
    assert newest.commit_info.operation_metrics is not None
    assert newest.commit_info.operation_metrics["numOutputRows"] == "1000"


def test_frames_and_arrow_in_one_transaction(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    a = new(lake, tmp_path / "a", pa.schema([("id", pa.int64())]))
    b = new(lake, tmp_path / "b", pa.schema([("id", pa.int64())]))
    with lake.transaction() as tx:
        tx.table(a.name).append(spark.range(3))
        tx.table(a.name).append(pa.table({"id": [7]}))
        tx.table(b.name).overwrite(spark.range(5, 7))
    assert sorted(a.snapshot().to_arrow()["id"].to_pylist()) == [0, 1, 2, 7]
    assert sorted(b.snapshot().to_arrow()["id"].to_pylist()) == [5, 6]


def test_part_of_a_table_is_replaced_by_a_frame(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(lake, tmp_path / "t", pa.schema([("id", pa.int64()), ("p", pa.string())]))
    table.append(pa.table({"id": [1, 2, 3], "p": ["a", "b", "b"]}))
    frame = spark.sql("select 10L as id, 'b' as p")
    table.overwrite(frame, where="p = 'b'")
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [1, 10]
    with pytest.raises(ConstraintViolatedError, match="overwrite where"):
        table.overwrite(spark.sql("select 1L as id, 'c' as p"), where="p = 'b'")


def test_new_columns_of_a_frame_are_merged(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.append(spark.sql("select 1L as id, 'x' as word"), merge_schema=True)
    assert scan(spark, table.snapshot()).collect()[0].asDict() == {"id": 1, "word": "x"}


def test_what_does_not_fit_is_told_before_a_job_begins(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(lake, tmp_path / "t", pa.schema([("id", pa.int64())]))
    for frame, says in (
        (spark.sql("select 'x' as id"), "type string"),
        (spark.sql("select 1L as id, 2 as other"), "other"),
    ):
        with pytest.raises(SchemaMismatchError, match=says):
            table.append(frame)
    assert data_files(tmp_path) == []


def test_rows_that_break_a_constraint_leave_no_file(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(
        lake,
        tmp_path / "t",
        pa.schema([pa.field("id", pa.int64(), nullable=False)]),
        # More than can be evaluated without Spark.
        properties={"delta.constraints.even": "id % 2 = 0"},
    )
    table.append(spark.range(0, 100, 2, numPartitions=4))
    written = len(data_files(tmp_path))
    with pytest.raises(ConstraintViolatedError, match="even"):
        table.append(spark.range(0, 100, 1, numPartitions=4))
    plain = new(lake, tmp_path / "n", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(ConstraintViolatedError, match="NOT NULL"):
        plain.append(spark.sql("select if(id = 3, null, id) as id from range(0, 100, 1, 4)"))
    assert len(data_files(tmp_path)) == written
    assert table.snapshot().version == 1


def test_rows_that_a_join_leaves_out_are_not_checked(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT id, cast(id - 2 AS double) AS price, id % 2 AS part FROM range(6)")
    table = lake.create_table(
        str(tmp_path),
        location=str(tmp_path / "t"),
        schema=frame.schema,
        properties={"delta.constraints.c": "price >= 0"},
    )
    bad = frame.where("price < 0").select("id")
    table.append(frame.join(bad, "id", "left_anti"))
    assert table.snapshot().to_arrow().num_rows == 4
    with pytest.raises(ConstraintViolatedError):
        table.append(frame)
    good = frame.where("id IN (3, 5)").select("id")
    table.overwrite(frame.join(good, "id", "left_semi"), where="part = 1")
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [2, 3, 4, 5]
    # A row of a source that matches, and so is not inserted, may be as it likes.
    target = DeltaTable.forName(spark, str(tmp_path), catalog=lake)
    news = spark.createDataFrame([(2, -9.0, 0), (7, 9.0, 1)], frame.schema).alias("s")
    target.alias("t").merge(news, "t.id = s.id").whenNotMatchedInsertAll().execute()
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [2, 3, 4, 5, 7]


def test_a_file_that_cannot_be_read_is_never_left_out(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.create_table(
        str(tmp_path), location=str(tmp_path / "t"), schema=pa.schema([("id", pa.int64())])
    )
    for n in range(3):
        table.append(pa.table({"id": list(range(100 * n, 100 * n + 100))}))
    file = next((tmp_path / "t").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    target = DeltaTable.forName(spark, str(tmp_path), catalog=lake)
    careless = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    changes: list[Callable[[], Any]] = [
        lambda: target.optimize().executeZOrderBy("id"),
        lambda: target.update(set={"id": "id + 1"}),
        lambda: target.toDF().agg({"id": "sum"}).collect(),
    ]
    for name in careless:
        spark.conf.set(name, "true")
    try:
        for change in changes:
            with pytest.raises(Exception, match=r"(?i)parquet|footer|corrupt|damaged"):
                change()
        assert table.refresh() == 3
    finally:
        for name in careless:
            spark.conf.unset(name)
