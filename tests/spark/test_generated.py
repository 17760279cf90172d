"""Generated columns: computed where they are missing, checked where they are not."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import deltalakedb
from deltalakedb.errors import (
    ConfigurationError,
    ConstraintViolatedError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.api.table_builder import DeltaTableBuilder
from deltalakedb.table import Table

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def table_of(lake: Lake, name: str, folder: Path, **properties: str) -> Table:
    """`day` follows from `at`, and partitions the table; `twice` from `n`, and is never null."""
    schema = (
        StructType()
        .add("id", "long")
        .add("at", "timestamp")
        .add("day", "date", True, {"delta.generationExpression": "CAST(at AS DATE)"})
        .add("n", "integer")
        .add("twice", "long", False, {"delta.generationExpression": "coalesce(n * 2, -1)"})
    )
    return lake.create_table(
        name,
        location=str(folder / name),
        schema=schema,
        partition_by=["day"],
        properties=properties,
    )


def rows(spark: SparkSession, *values: tuple[int, int, int | None]) -> DataFrame:
    made = [(i, datetime(2026, 11, day, 12, tzinfo=UTC), n) for i, day, n in values]
    return spark.createDataFrame(made, "id long, at timestamp, n int")


def seen(table: Table) -> list[tuple[int, int, int | None, int]]:
    found = table.snapshot().to_arrow().to_pylist()
    assert all(row["day"] == row["at"].date() for row in found)
    return sorted((row["id"], row["day"].day, row["n"], row["twice"]) for row in found)


def test_a_table_is_put_together(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    builder = (
        DeltaTable.create(spark, catalog=lake)
        .tableName("built")
        .location(str(tmp_path / "built"))
        .comment("clicks")
        .addColumn("at", "timestamp", comment="when")
        .addColumn("day", "date", generatedAlwaysAs="CAST(at AS DATE)")
        .addColumns(StructType().add("id", "long"))
        .clusterBy("day", "id")
        .property("owner", "me")
    )
    builder.execute()
    table = lake.table("built")
    table.append(spark.sql("SELECT timestamp'2026-11-01 12:00:00' AS at, 1L AS id"))
    (row,) = table.snapshot().to_arrow().to_pylist()
    assert row["day"] == date(2026, 11, 1)
    snapshot = table.snapshot()
    assert snapshot.clustering_columns == ("day", "id")
    assert (snapshot.metadata.description, snapshot.properties["owner"]) == ("clicks", "me")
    again = DeltaTable.createIfNotExists(spark, catalog=lake).tableName("built")
    assert again.location("elsewhere").execute().toDF().count() == 1
    with pytest.raises(TableExistsError):
        builder.execute()
    for wrong in ("nope + 1", "day", "rand()", "sum(id)"):
        other = (
            DeltaTable.create(spark, catalog=lake)
            .location(str(tmp_path / "other"))
            .addColumn("id", "long")
            .addColumn("day", "date", generatedAlwaysAs="current_date()")
            .addColumn("made", "double", generatedAlwaysAs=wrong)
        )
        with pytest.raises(ConfigurationError, match="cannot be generated"):
            other.execute()


def test_a_table_is_replaced(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    def with_column(builder: DeltaTableBuilder, name: str) -> DeltaTableBuilder:
        return builder.tableName("again").addColumn(name, "long")

    with pytest.raises(TableNotFoundError, match="no table 'again' to replace"):
        with_column(DeltaTable.replace(spark, catalog=lake), "a").execute()
    with pytest.raises(ConfigurationError, match="has no location"):
        with_column(DeltaTable.createOrReplace(spark, catalog=lake), "a").execute()
    here = str(tmp_path / "again")
    new = with_column(DeltaTable.createOrReplace(spark, catalog=lake), "a").location(here).execute()
    lake.table("again").append(pa.table({"a": [1]}))
    for builder, name in (
        (DeltaTable.createOrReplace(spark, catalog=lake), "b"),
        (DeltaTable.replace(spark, catalog=lake), "c"),
    ):
        assert with_column(builder, name).execute().toDF().columns == [name]
    told = [row.operation for row in new.history().collect()]
    assert told == ["REPLACE TABLE", "CREATE OR REPLACE TABLE", "WRITE", "CREATE TABLE"]
    assert new.toDF(version=1).collect() == [(1,)]
    elsewhere = with_column(DeltaTable.createOrReplace(spark, catalog=lake), "d")
    with pytest.raises(ConfigurationError, match="The location of table"):
        elsewhere.location(str(tmp_path / "elsewhere")).execute()


def test_the_protocol_goes_up_and_down(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    lake.create_table(
        "protocol",
        location=str(tmp_path / "protocol"),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.enableInCommitTimestamps": "false"},
    )
    target = DeltaTable.forName(spark, "protocol", catalog=lake)

    def versions() -> tuple[int, int]:
        row = target.detail().collect()[0]
        return row.minReaderVersion, row.minWriterVersion

    target.upgradeTableProtocol(1, 4)
    assert versions() == (1, 4)
    target.upgradeTableProtocol(1, 3)
    assert versions() == (1, 4)
    target.addFeatureSupport("domainMetadata")
    assert versions() == (1, 7)
    target.dropFeatureSupport("domainMetadata")
    assert versions() == (1, 4)
    with pytest.raises(UnsupportedFeatureError, match="not truncated"):
        target.dropFeatureSupport("changeDataFeed", truncateHistory=True)


def test_values_are_made_or_checked(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = table_of(lake, "appended", tmp_path)
    assert "generatedColumns" in (table.snapshot().protocol.writer_features or ())
    table.append(rows(spark, (1, 1, 10), (2, 2, None)))
    table.append(rows(spark, (3, 3, 5)).drop("n"))
    right = rows(spark, (4, 4, 7)).selectExpr("*", "cast(at as date) as day", "14L as twice")
    table.append(right)
    assert seen(table) == [(1, 1, 10, 20), (2, 2, None, -1), (3, 3, None, -1), (4, 4, 7, 14)]
    wrong = rows(spark, (5, 5, 7)).selectExpr("*", "date'2026-01-01' as day")
    with pytest.raises(ConstraintViolatedError, match="generated column day"):
        table.append(wrong)
    with lake.transaction() as tx:
        tx.table("appended").overwrite(rows(spark, (6, 1, 1)), where="day = '2026-11-01'")
    assert seen(table)[0] == (2, 2, None, -1)
    assert table.snapshot().files(where="day = '2026-11-01'").num_rows == 1
    assert len(list((tmp_path / "appended").rglob("*.parquet"))) == 5
    with pytest.raises(UnsupportedFeatureError, match="DataFrame"):
        table.append(pa.table({"id": [1]}))


@pytest.mark.parametrize(
    ("vectors", "feed"),
    [("true", "true"), pytest.param("false", "false", marks=pytest.mark.soak)],
)
def test_they_follow_when_rows_change(
    spark: SparkSession, lake: Lake, tmp_path: Path, vectors: str, feed: str
) -> None:
    properties = {
        "delta.enableDeletionVectors": vectors,
        "delta.enableChangeDataFeed": feed,
    }
    table = table_of(lake, f"changed_{vectors}", tmp_path, **properties)
    table.append(rows(spark, (1, 1, 10), (2, 1, 20), (3, 2, 30)))
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    target.update("id = 1", {"at": "at + interval 5 days", "n": "11"})
    assert seen(table) == [(1, 6, 11, 22), (2, 1, 20, 40), (3, 2, 30, 60)]
    target.update("id = 2", {"n": "21", "twice": "42"})
    with pytest.raises(ConstraintViolatedError, match="generated column twice"):
        target.update("id = 2", {"twice": "0"})
    target.delete("id = 3")
    # One clause sets a generated column, the other one leaves it alone.
    source = rows(spark, (2, 9, 50), (9, 9, 90)).selectExpr("*", "cast(n * 2 as long) as twice")
    (
        target.alias("t")
        .merge(source.alias("s"), "t.id = s.id")
        .whenMatchedUpdate(set={"n": "s.n", "at": "s.at"})
        .whenNotMatchedInsertAll()
        .execute()
    )
    assert seen(table) == [(1, 6, 11, 22), (2, 9, 50, 100), (9, 9, 90, 180)]
    bad = rows(spark, (77, 9, 50)).selectExpr("*", "1L as twice")
    with pytest.raises(ConstraintViolatedError, match="generated column twice"):
        target.alias("t").merge(bad.alias("s"), "t.id = s.id").whenNotMatchedInsertAll().execute()
    assert table.snapshot().version == 5
    if feed == "true":
        changes = (
            spark.read.format("deltalakedb")
            .option("catalog", lake.store.dialect.url.display)
            .option("readChangeFeed", "true")
            .option("startingVersion", 2)
            .option("endingVersion", 2)
            .load(table.name)
            .collect()
        )
        days = {row["_change_type"]: (row.day, row.twice) for row in changes}
        assert days == {
            "update_preimage": (date(2026, 11, 1), 20),
            "update_postimage": (date(2026, 11, 6), 22),
        }


def test_expressions_are_about_values_of_the_table(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """A number that is narrower in a DataFrame has another hash, and overflows sooner."""
    schema = (
        StructType()
        .add("id", "long")
        .add("b", "integer", True, {"delta.generationExpression": "pmod(hash(id), 16)"})
        .add("big", "long", True, {"delta.generationExpression": "id * 1000000000"})
    )
    lake.create_table("hashed", location=str(tmp_path / "hashed"), schema=schema)
    lake.table("hashed").append(spark.sql("SELECT cast(id AS int) AS id FROM range(9)"))
    target = DeltaTable.forName(spark, "hashed", catalog=lake)
    target.delete("id = 3")
    right = target.toDF().where("b = pmod(hash(id), 16) AND big = id * 1000000000")
    assert right.count() == 8
