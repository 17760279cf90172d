"""What users of Delta set in a session counts where a write does not say it itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.errors import ConfigurationError, SchemaMismatchError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.api.session import CATALOG
from deltalakedb.spark.io.spark_internals import session_settings

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

DYNAMIC = {"spark.sql.sources.partitionOverwriteMode": "DYNAMIC"}
AUTO_MERGE = {"spark.databricks.delta.schema.autoMerge.enabled": "true"}


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs, spark: SparkSession) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        spark.conf.set(CATALOG, url)
        yield lake
        spark.conf.unset(CATALOG)


@contextmanager
def session(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_all_settings_are_those_of_pyspark(spark: SparkSession) -> None:
    odd = {"test.arrow": "a -> b", "test.lines": "a\nb\x01, c", "test.empty": "", "test.ü": "日"}
    with session(spark, odd):
        found = session_settings(spark)
        assert found.items() >= odd.items()
        assert found == dict(spark.conf.getAll)


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    return spark.createDataFrame([(n, n % 2) for n in numbers], "id long, part int").coalesce(1)


def overwrite(frame: DataFrame, name: str, **options: Any) -> None:
    frame.write.format("deltalakedb").mode("overwrite").options(**options).save(name)


def ids(lake: Lake, name: str) -> list[int]:
    return sorted(lake.table(name).snapshot().to_arrow()["id"].to_pylist())


def test_partitions_are_overwritten_as_the_session_says(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    name = "dynamic.t"
    start = rows(spark, 1, 2, 3).write.format("deltalakedb").partitionBy("part")
    start.option("location", str(tmp_path / "t")).save(name)
    with session(spark, DYNAMIC):
        overwrite(rows(spark, 5), name)
        assert ids(lake, name) == [2, 5]
        # A condition of the write goes before the session; an option beside it is refused.
        overwrite(rows(spark, 4), name, replaceWhere="id = 2 OR id = 4")
        assert ids(lake, name) == [4, 5]
        with pytest.raises(ConfigurationError, match="condition cannot be combined"):
            overwrite(rows(spark, 4), name, replaceWhere="id = 4", partitionOverwriteMode="dynamic")
        # Rows of the partitions that stay would not fit another schema.
        other = rows(spark, 6).withColumn("id", F.col("id").cast("string"))
        with pytest.raises(ConfigurationError, match="dynamic overwrite of partitions"):
            overwrite(other, name, overwriteSchema="true")
        assert ids(lake, name) == [4, 5]
        overwrite(rows(spark, 7), name, partitionOverwriteMode="static")
        assert ids(lake, name) == [7]
        overwrite(other, name, overwriteSchema="true", partitionOverwriteMode="static")
        assert lake.table(name).snapshot().to_arrow()["id"].to_pylist() == ["6"]
    overwrite(other, name)
    with session(spark, {"spark.sql.sources.partitionOverwriteMode": "static"}):
        overwrite(other, name)
    assert lake.table(name).snapshot().to_arrow().num_rows == 1


def test_columns_are_merged_as_the_session_says(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    name = "merged.t"
    frame = rows(spark, 1).selectExpr("id", "named_struct('a', 1) AS s")
    frame.write.format("deltalakedb").option("location", str(tmp_path / "t")).save(name)
    wide = rows(spark, 2).selectExpr("id", "named_struct('a', 2, 'b', 'x') AS s", "3 AS more")
    append = wide.write.format("deltalakedb").mode("append")
    with pytest.raises(SchemaMismatchError):
        append.save(name)
    with session(spark, AUTO_MERGE):
        with pytest.raises(SchemaMismatchError):
            wide.write.format("deltalakedb").mode("append").option("mergeSchema", "false").save(
                name
            )
        append.save(name)
    found = lake.table(name).snapshot().to_arrow().sort_by("id").to_pylist()
    assert found == [
        {"id": 1, "s": {"a": 1, "b": None}, "more": None},
        {"id": 2, "s": {"a": 2, "b": "x"}, "more": 3},
    ]


def test_new_tables_get_the_properties_of_the_session(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    prefix = "spark.databricks.delta.properties.defaults"
    defaults = {
        f"{prefix}.enableChangeDataFeed": "true",
        f"{prefix}.columnMapping.mode": "name",
        f"{prefix}.appendonly": "true",
        f"{prefix}.somethingElse": "x",
        f"{prefix}.minWriterVersion": "2",
    }
    with session(spark, defaults):
        writer = rows(spark, 1).write.format("deltalakedb")
        writer.option("location", str(tmp_path / "a")).option(
            "property.delta.appendOnly", "false"
        ).save("defaults.a")
        builder = DeltaTable.create(spark, catalog=lake).tableName("defaults.b")
        builder.location(str(tmp_path / "b")).addColumn("id", "long").execute()
        rows(spark, 1).write.parquet(str(tmp_path / "c"))
        DeltaTable.convertToDelta(spark, f"parquet.`{tmp_path / 'c'}`", catalog=lake, name="c")
    for name, append_only in (("defaults.a", "false"), ("defaults.b", "true"), ("c", "true")):
        properties = lake.table(name).snapshot().properties
        assert properties["delta.enableChangeDataFeed"] == "true"
        assert properties["delta.appendOnly"] == append_only
        assert not {"delta.somethingElse", "delta.minWriterVersion"} & properties.keys()
    assert lake.table("defaults.b").snapshot().properties["delta.columnMapping.mode"] == "name"
    assert ids(lake, "c") == [1]
