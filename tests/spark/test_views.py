"""Rows that SQL inserts into a view of a table: committed or refused, never lost."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable, register
from deltalakedb.spark.dml.delete_update import delete
from deltalakedb.spark.io.scan import scan

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitioned": {"partition_by": ["word"]},
    "mapped by name": {"properties": {"delta.columnMapping.mode": "name"}},
    "mapped by id": {"properties": {"delta.columnMapping.mode": "id"}},
    "vectors": {"properties": {"delta.enableDeletionVectors": "true"}},
    "empty": {},
}
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
STATEMENTS = (
    "INSERT INTO {view} VALUES (9, 'z')",
    "INSERT INTO {view} (word, id) VALUES ('z', 9)",
    "INSERT INTO {view} BY NAME SELECT 9L AS id, 'z' AS word",
    "INSERT OVERWRITE {view} VALUES (9, 'z')",
    "INSERT INTO {view} REPLACE WHERE id = 1 VALUES (1, 'z')",
    "FROM {view} INSERT INTO {view} SELECT *",
    "TRUNCATE TABLE {view}",
    "DELETE FROM {view} WHERE id = 1",
    "UPDATE {view} SET id = 9",
    "MERGE INTO {view} AS t USING (SELECT 1L AS id) AS s ON t.id = s.id WHEN MATCHED THEN DELETE",
)
VIEW = "a_view"


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


def registered(spark: SparkSession, lake: Lake, url: str, name: str) -> str:
    register(spark, lake, [name])
    return f"`{name}`"


def of_table(spark: SparkSession, lake: Lake, url: str, name: str) -> str:
    DeltaTable.forName(spark, name, catalog=lake).toDF().createOrReplaceTempView(VIEW)
    return VIEW


def loaded(spark: SparkSession, lake: Lake, url: str, name: str) -> str:
    frame = spark.read.format("deltalakedb").option("catalog", url).load(name)
    frame.createOrReplaceGlobalTempView(VIEW)
    return f"global_temp.{VIEW}"


@pytest.mark.parametrize(
    ("made", "layout"),
    [
        *((registered, layout) for layout in LAYOUTS),
        (of_table, "plain"),
        (loaded, "partitioned"),
        *(
            pytest.param(made, layout, marks=pytest.mark.soak)
            for made in (of_table, loaded)
            for layout in LAYOUTS
        ),
    ],
)
def test_rows_inserted_into_a_view_are_refused(  # noqa: PLR0917
    spark: SparkSession,
    lake: Lake,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[..., str],
    layout: str,
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    name = f"views.{tmp_path.name}"
    table = lake.create_table(name, location=str(tmp_path / "t"), schema=SCHEMA, **LAYOUTS[layout])
    if layout != "empty":
        table.append(pa.table({"id": [1, 2, 3], "word": ["a", "b", "b"]}, schema=SCHEMA))
    if layout == "vectors":
        delete(spark, table, "id = 3")
    view = made(spark, lake, url, name)
    rows = sorted(spark.table(view).collect())
    frame = spark.createDataFrame([(9, "z")], "id bigint, word string")
    before = sorted(tmp_path.rglob("*"))
    attempts: list[Callable[[], Any]] = [
        *(partial(spark.sql, text.format(view=view)) for text in STATEMENTS),
        lambda: frame.write.insertInto(view),
        lambda: frame.write.insertInto(view, overwrite=True),
        lambda: frame.writeTo(view).append(),
        lambda: frame.writeTo(view).overwritePartitions(),
    ]
    version = table.snapshot().version
    for attempt in attempts:
        with pytest.raises((PySparkException, Py4JJavaError)):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before
    assert table.snapshot().version == version
    assert sorted(spark.table(view).collect()) == rows
    spark.sql(f"DROP VIEW {view}")


def test_what_refuses_inserts_costs_a_scan_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.create_table(
        "views.plan", location=str(tmp_path / "t"), schema=SCHEMA, partition_by=["word"]
    )
    table.append(pa.table({"id": [1, 2], "word": ["a", "b"]}, schema=SCHEMA))
    frame: Any = scan(spark, table.snapshot())
    plan = frame._jdf.queryExecution()
    assert plan.optimizedPlan().toString().startswith("Relation [id#")
    some: Any = frame.where("id > 1 AND word = 'b'").select("id")
    text = some._jdf.queryExecution().executedPlan().toString()
    assert "Batched: true" in text
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,1)]" in text
    assert "PartitionFilters: [isnotnull(word#" in text
    assert "ReadSchema: struct<id:bigint>" in text
    assert frame.select("_metadata.row_index").count() == 2
