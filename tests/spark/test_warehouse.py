"""Spark writes to tables of a lake that have no location: they lie in its warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs


@pytest.fixture
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture
def lake(url: str, tmp_path: Path) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        lake.set_warehouse(str(tmp_path / "lake"))
        yield lake


def write(spark: SparkSession, url: str, name: str, **options: str) -> None:
    frame = spark.range(3).coalesce(1)
    frame.write.format("deltalakedb").options(catalog=url, **options).mode("append").save(name)


def check_writes(spark: SparkSession, lake: Lake, url: str, tmp_path: Path) -> None:
    for _ in range(2):
        write(spark, url, "sales.x")
    write(spark, url, "sales.y", location=str(tmp_path / "y"))
    assert lake["sales.x"].location == f"file://{tmp_path}/lake/sales.db/x"
    assert lake["sales.y"].location == f"file://{tmp_path}/y"
    frame = spark.read.format("deltalakedb").option("catalog", url).load("sales.x")
    assert sorted(row[0] for row in frame.collect()) == [0, 0, 1, 1, 2, 2]
    # What looks like a location is none to create a table at, and an exported table stays.
    lake.export("sales.x")
    for name, message in (
        (str(tmp_path / "z"), "has no table"),
        ("sales.x", "was exported"),
        ("sales.50%", "has no place in the warehouse"),
    ):
        with pytest.raises((PySparkException, deltalakedb.errors.DeltaLakeDbError), match=message):
            write(spark, url, name)
    assert [table.name for table in lake.tables()] == ["sales.y"]
    lake.set_warehouse(None)
    with pytest.raises(
        (PySparkException, deltalakedb.errors.DeltaLakeDbError), match=r"has no table 'sales\.new'"
    ):
        write(spark, url, "sales.new")


@pytest.mark.usefixtures("native_format")
def test_a_write_creates_a_table_in_the_warehouse(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    check_writes(spark, lake, url, tmp_path)


def test_the_data_source_creates_a_table_in_the_warehouse(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    check_writes(spark, lake, url, tmp_path)


def test_a_stream_creates_a_table_in_the_warehouse(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 7}\n')
    query = (
        spark.readStream.schema("id LONG")
        .json(str(tmp_path / "in"))
        .writeStream.format("deltalakedb")
        .options(catalog=url, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start("sales.events")
    )
    query.awaitTermination()
    assert lake["sales.events"].location == f"file://{tmp_path}/lake/sales.db/events"
    assert lake["sales.events"].snapshot().to_arrow().to_pylist() == [{"id": 7}]


def test_the_builder_creates_a_table_in_the_warehouse(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    def builder(name: str) -> None:
        DeltaTable.createIfNotExists(spark, catalog=lake).tableName(name).addColumn(
            "id", "long"
        ).execute()

    for _ in range(2):
        builder("sales.built")
    assert lake["sales.built"].location == f"file://{tmp_path}/lake/sales.db/built"
    with pytest.raises(ConfigurationError, match="has no place in the warehouse"):
        builder("a/b")
    lake.set_warehouse(None)
    with pytest.raises(ConfigurationError, match="has no location"):
        builder("sales.other")
