"""Tables and views of Spark's own catalog by our format are refused where they are made."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.lake import Lake

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")
OPTIONS = "OPTIONS (catalog '{url}', path 'kept.orders')"
STATEMENTS = (
    f"CREATE TABLE made USING deltalakedb {OPTIONS}",
    f"create table if not exists made using DeltaLakeDb {OPTIONS}",
    f"CREATE TABLE made (id BIGINT) USING deltalakedb {OPTIONS}",
    f"CREATE TABLE made USING deltalakedb {OPTIONS} AS SELECT 1L AS id",
    "CREATE TABLE made USING `deltalakedb` TBLPROPERTIES (catalog '{url}')",
    f"CREATE TEMPORARY VIEW made USING deltalakedb {OPTIONS}",
    f"CREATE OR REPLACE GLOBAL TEMP VIEW made (id BIGINT) USING deltalakedb {OPTIONS}",
)


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    schema = pa.schema([("id", pa.int64())])
    with deltalakedb.connect(url) as lake:
        folder = str(tmp_path_factory.mktemp("orders"))
        lake.create_table("kept.orders", location=folder, schema=schema)
        yield lake


def tables(spark: SparkSession) -> list[str]:
    return sorted(table.name for table in spark.catalog.listTables())


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_table_or_view_of_spark_is_refused_where_it_is_defined(
    spark: SparkSession, lake: Lake, url: str, statement: str
) -> None:
    before = tables(spark)
    with pytest.raises(UnsupportedFeatureError, match="register"):
        spark.sql(statement.format(url=url))
    assert tables(spark) == before
    assert lake.table("kept.orders").snapshot().version == 0


def test_writers_of_tables_of_spark_are_refused_at_the_call(
    spark: SparkSession, lake: Lake, url: str
) -> None:
    frame = spark.range(1)
    before = tables(spark)
    writer = frame.write.format("deltalakedb").option("catalog", url)
    for mode in ("append", "overwrite", "errorifexists"):
        with pytest.raises(UnsupportedFeatureError, match=r"save\(\"sales.orders"):
            writer.mode(mode).saveAsTable("kept.orders")
    with pytest.raises(UnsupportedFeatureError, match=r"^saveAsTable\('x'\)"):
        frame.write.saveAsTable("x", format="DELTALAKEDB")
    with pytest.raises(UnsupportedFeatureError, match=r"writeTo\(…\)\.using"):
        frame.writeTo("kept.orders").using("deltalakedb")
    assert tables(spark) == before
    assert lake.table("kept.orders").snapshot().version == 0


def test_the_data_source_itself_refuses_a_table_of_spark(
    spark: SparkSession, lake: Lake, url: str
) -> None:
    """As in a process that never loaded this room, and by Spark Connect."""
    bare = spark._jsparkSession
    before = tables(spark)
    with pytest.raises(AnalysisException, match="CREATE TABLE … USING deltalakedb does not work"):
        bare.sql(STATEMENTS[0].format(url=url))
    assert tables(spark) == before


def test_what_only_mentions_the_format_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "deltalakedb"
    spark.range(3).write.parquet(str(folder))
    spark.sql(f"CREATE TEMPORARY VIEW mentioned USING parquet OPTIONS (path '{folder}')")
    try:
        query = "SELECT count(*) AS n FROM mentioned WHERE 'USING deltalakedb' <> :text"
        assert spark.sql(query, args={"text": "deltalakedb"}).collect() == [(3,)]
        assert spark.sql(sqlQuery="SELECT 'deltalakedb'").collect() == [("deltalakedb",)]
        with pytest.raises(AnalysisException):
            spark.sql("SELECT deltalakedb FROM FROM")
    finally:
        spark.catalog.dropTempView("mentioned")
    spark.range(1).write.saveAsTable("deltalakedb_other", path=str(tmp_path / "t"))
    spark.sql("DROP TABLE deltalakedb_other")
