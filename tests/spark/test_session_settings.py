"""Reading and writing leave every setting of the session as it is, for all of its threads."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.actions.partition import decode_path
from deltalakedb.lake import Lake
from deltalakedb.spark.io.scan import scan
from deltalakedb.spark.io.spark_internals import session_settings
from deltalakedb.table import Table

from support.store import Catalogs

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
AT = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def new(lake: Lake, folder: Path, schema: pa.Schema, **options: Any) -> Table:
    return lake.create_table(str(folder), location=str(folder), schema=schema, **options)


def physical_types(table: Table, folder: Path, column: int) -> set[str]:
    paths = table.snapshot().files()["path"].to_pylist()
    footers = [pq.read_metadata(folder / decode_path(path)) for path in paths]
    return {str(footer.schema.column(column).physical_type) for footer in footers}


def test_a_write_changes_no_setting_for_other_threads(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(lake, tmp_path / "t", AT)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    os.mkfifo(begun)
    os.mkfifo(go_on)

    def wait(batches: Any) -> Any:
        begun.write_text("")
        go_on.read_text()
        yield from batches

    frame = (
        spark.range(0, 5, 1, 1)
        .mapInArrow(wait, "id bigint")
        .withColumn("at", F.timestamp_seconds("id"))
    )
    before = session_settings(spark)
    assert before.get(TIMESTAMPS, "INT96") == "INT96"
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(table.append, frame)
        begun.read_text()
        during = session_settings(spark)
        go_on.write_text("")
        writing.result()
    assert during == before == session_settings(spark)
    assert physical_types(table, tmp_path / "t", 1) == {"INT64"}
    assert "parquet-mr" in pq.read_metadata(next((tmp_path / "t").glob("*.parquet"))).created_by
    assert sorted(scan(spark, table.snapshot()).collect()) == sorted(
        spark.range(5).withColumn("at", F.timestamp_seconds("id")).collect()
    )


def test_rows_that_are_cached_are_written_as_they_are(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    schema = pa.schema([*AT, ("word", pa.string())])
    table = new(lake, tmp_path / "t", schema)
    columns = ("id", "timestamp_seconds(id) AS at", "uuid() AS word")
    frame = spark.range(5).selectExpr(*columns).cache()
    try:
        rows = sorted(frame.collect())
        table.append(frame)
    finally:
        frame.unpersist()
    assert sorted(scan(spark, table.snapshot()).collect()) == rows
    assert physical_types(table, tmp_path / "t", 1) == {"INT64"}


def test_an_observation_hears_of_rows_that_are_written(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(lake, tmp_path / "t", AT)
    seen = Observation()
    frame = spark.range(5).withColumn("at", F.timestamp_seconds("id"))
    table.append(frame.observe(seen, F.count(F.lit(1)).alias("n")))
    assert seen.get == {"n": 5}
    assert table.snapshot().to_arrow().num_rows == 5
    assert physical_types(table, tmp_path / "t", 1) == {"INT64"}


def with_foreign_names(lake: Lake, folder: Path) -> Table:
    """A table by ids whose file has other names than the table has for its columns."""
    inner = pa.struct([("x", pa.string()), ("y", pa.list_(pa.int64()))])
    schema = pa.schema([("id", pa.int64()), ("nested", inner)])
    table = new(lake, folder, schema, properties={"delta.columnMapping.mode": "id"})
    table.append(pa.table({"id": [1, 2], "nested": [{"x": "a", "y": [1]}] * 2}, schema=schema))
    (path,) = table.snapshot().files()["path"].to_pylist()
    plain, nested = pq.read_table(folder / path).combine_chunks().itercolumns()
    fields = [renamed(nested.type.field(i)) for i in range(nested.type.num_fields)]
    columns = [plain.chunk(0), pa.StructArray.from_arrays(nested.chunk(0).flatten(), fields=fields)]
    physical = pq.read_schema(folder / path)
    names = [renamed(physical.field(i)).with_type(c.type) for i, c in enumerate(columns)]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(names)), folder / path)
    size = (folder / path).stat().st_size
    (row,) = table.snapshot().files().to_pylist()
    add = {
        "path": path,
        "size": size,
        "partitionValues": {},
        "modificationTime": 1,
        "dataChange": True,
        "stats": row["stats"],
    }
    table.commit([{"add": add}])
    return table


def renamed(field: pa.Field) -> pa.Field:
    return field.with_name(f"foreign {field.name}")


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {"spark.sql.parquet.fieldId.read.enabled": "false"},
        {"spark.sql.parquet.enableVectorizedReader": "false"},
        {"spark.sql.parquet.enableNestedColumnVectorizedReader": "false"},
        {"spark.sql.codegen.wholeStage": "false"},
    ],
    ids=lambda hostile: next(iter(hostile), "default").rpartition(".")[2],
)
def test_columns_are_found_by_id_without_a_setting_of_the_session(
    spark: SparkSession, lake: Lake, tmp_path: Path, hostile: dict[str, str]
) -> None:
    table = with_foreign_names(lake, tmp_path / "t")
    for name, value in hostile.items():
        spark.conf.set(name, value)
    try:
        before = session_settings(spark)
        frame = scan(spark, table.snapshot())
        assert frame.sparkSession is spark
        assert sorted(frame.collect()) == [(1, ("a", [1])), (2, ("a", [1]))]
        chosen = frame.where("nested.x = 'a' AND id > 1").select("nested.y", "_metadata.row_index")
        assert chosen.collect() == [([1], 1)]
        joined = spark.range(5).join(frame, "id").select("nested.x").collect()
        assert joined == [("a",), ("a",)]
        assert session_settings(spark) == before
    finally:
        for name in hostile:
            spark.conf.unset(name)
