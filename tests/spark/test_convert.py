"""`DeltaTable.convertToDelta` on files that Spark has written."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructType

import deltalakedb
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def test_files_of_spark_become_a_table(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    frame = spark.range(20).selectExpr(
        "id",
        "cast(id % 3 as int) as n",
        "if(id % 4 = 0, null, concat('a/b ', id % 4)) as part",
        "timestamp_seconds(id * 86400) as at",
        "cast(id as decimal(12, 3)) as price",
    )
    frame.write.partitionBy("part", "n").parquet(str(tmp_path / "plain"))
    path = f"parquet.`{tmp_path}/plain`"
    table = DeltaTable.convertToDelta(spark, path, "part string, n int", catalog=lake)
    rows = table.toDF().select(*frame.columns)
    assert sorted(map(tuple, rows.collect())) == sorted(map(tuple, frame.collect()))
    assert lake.table("plain").snapshot().files(where="id = 7").num_rows == 1
    table.delete("id = 7")
    table.update("n = 1", {"part": "'new'"})
    assert table.toDF().count() == 19
    assert [row.operation for row in table.history().collect()] == ["UPDATE", "DELETE", "CONVERT"]


def test_times_in_directories_are_of_the_session(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.range(2).selectExpr("id", "timestamp'2026-07-01 12:00:00' as at")
        frame.write.partitionBy("at").parquet(str(tmp_path / "times"))
        table = DeltaTable.convertToDelta(
            spark, f"parquet.`{tmp_path}/times`", "at timestamp", catalog=lake
        )
        assert table.toDF().where("at = timestamp'2026-07-01 12:00:00'").count() == 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert table.toDF(where="at = timestamp'2026-07-01 10:00:00'").count() == 2


def test_what_is_asked_for_has_to_be_clear(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    for wrong in ("plain", f"delta.`{tmp_path}`", "parquet.``"):
        with pytest.raises(ConfigurationError, match=r"parquet\.`path`"):
            DeltaTable.convertToDelta(spark, wrong, catalog=lake)
    with pytest.raises(ConfigurationError, match="partition columns"):
        DeltaTable.convertToDelta(spark, "parquet.`x`", "day day day", catalog=lake)
    spark.range(1).selectExpr("id", "1 as n").write.partitionBy("n").parquet(str(tmp_path / "p"))
    made = DeltaTable.convertToDelta(
        spark,
        f"parquet.`{tmp_path}/p`",
        StructType().add("n", IntegerType()),
        catalog=lake,
        name="sales.p",
    )
    assert made.detail().collect()[0].name == "sales.p"
