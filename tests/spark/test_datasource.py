"""`format("deltalakedb")`: batches, the change data feed, and streams that are cut off.

Batches go both ways: through the data source in Python, and in the driver (`native_format.py`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.errors import (
    ConfigurationError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.source.native_format import SWITCH
from deltalakedb.table import Table

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

IDS = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture(params=["source", "driver"])
def way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Which of the two serves the format."""
    spark.conf.set(SWITCH, "false" if request.param == "source" else "true")
    yield request.param
    spark.conf.unset(SWITCH)


def refusal(way: str, kind: type[Exception]) -> type[Exception]:
    """Spark tells what the processes of a data source say; the driver raises it."""
    return PySparkException if way == "source" else kind


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def read(spark: SparkSession, url: str, name: str, **options: Any) -> DataFrame:
    return spark.read.format("deltalakedb").option("catalog", url).options(**options).load(name)


def test_rows_are_written_and_read(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    name = f"{way}.rows"
    frame = spark.range(20).withColumn("part", (F.col("id") % 2).cast("string"))

    def write(rows: DataFrame, mode: str, **options: Any) -> None:
        writer = rows.write.format("deltalakedb").option("catalog", url).options(**options)
        writer.mode(mode).save(name)

    # It is created where that is asked for, with partitions and properties.
    with pytest.raises(refusal(way, TableNotFoundError), match="rows"):
        write(frame, "append")
    made = {"location": str(tmp_path / "t"), "partitionBy": "part", "property.owner": "me"}
    feed = {"property.delta.enableChangeDataFeed": "true"}
    write(frame, "append", **made, **feed, userMetadata="a note")
    table = lake.table(name)
    assert table.snapshot().partition_columns == ("part",)
    assert table.snapshot().properties["owner"] == "me"
    assert table.snapshot().properties["delta.enableChangeDataFeed"] == "true"
    filled = table.history(1)[0]
    assert filled.commit_info is not None
    assert filled.commit_info.fields["userMetadata"] == "a note"
    with pytest.raises(refusal(way, ConfigurationError), match="not partitioned by id"):
        write(frame, "append", partitionBy="id")
    assert ids(table) == list(range(20))
    found = read(spark, url, name)
    assert found.where("id > 17 AND part = '0'").select("id").collect()[0].id == 18
    # All rows, those of a condition, those of the partitions that come.
    more = spark.range(100, 102).withColumn("part", F.lit("1"))
    write(more, "overwrite", replaceWhere="part = '1'")
    assert ids(table) == [*range(0, 20, 2), 100, 101]
    write(spark.sql("select 7L as id, '0' as part"), "overwrite", partitionOverwriteMode="dynamic")
    assert ids(table) == [7, 100, 101]
    write(spark.sql("select 1L as id, 'x' as part, 2 as more"), "overwrite", overwriteSchema="true")
    assert table.snapshot().to_arrow().to_pylist() == [{"id": 1, "part": "x", "more": 2}]
    write(spark.sql("select 2L as id, 'y' as part, 3 as other"), "append", mergeSchema="true")
    assert table.snapshot().schema.names == ("id", "part", "more", "other")
    # Once, however often it is tried.
    for _ in range(2):
        once = {"txnAppId": "job", "txnVersion": "5"}
        write(spark.sql("select 50L as id, 'z' as part"), "append", **once)
    assert ids(table).count(50) == 1
    # What was before.
    assert read(spark, url, name, versionAsOf=filled.version).count() == 20
    with pytest.raises(refusal(way, ConfigurationError), match="cannot be combined"):
        write(more, "overwrite", replaceWhere="part = '1'", partitionOverwriteMode="dynamic")
    with pytest.raises(refusal(way, ConfigurationError), match="dynamic overwrite of partitions"):
        write(more, "overwrite", overwriteSchema="true", partitionOverwriteMode="dynamic")
    with pytest.raises(refusal(way, SchemaMismatchError), match="other"):
        write(spark.sql("select 2L as id, 'y' as part, 'no number' as other"), "append")
    assert len(ids(table)) == 3


def test_changes_are_read_by_version_and_time(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    for name, properties in (
        ("feed.copy", {"delta.enableChangeDataFeed": "true"}),
        (
            "feed.vectors",
            {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
        ),
    ):
        table = lake.create_table(
            name, location=str(tmp_path / name), schema=IDS, properties=properties
        )
        table.append(pa.table({"id": [1, 2, 3, 4]}))
        target = DeltaTable.forName(spark, name, catalog=lake)
        target.update("id = 2", {"id": "20"})
        target.delete("id = 3")
        table.overwrite(pa.table({"id": [9]}))
        for switch in ("false", "true"):
            spark.conf.set(SWITCH, switch)
            changes = read(spark, url, name, readChangeFeed="true", startingVersion=1)
            told = {(row.id, row._change_type, row._commit_version) for row in changes.collect()}
            assert told == {
                *((i, "insert", 1) for i in (1, 2, 3, 4)),
                (2, "update_preimage", 2),
                (20, "update_postimage", 2),
                (3, "delete", 3),
                *((i, "delete", 4) for i in (1, 4, 20)),
                (9, "insert", 4),
            }
        moment = table.snapshot(3).timestamp
        later = read(
            spark, url, name, readChangeFeed="true", startingTimestamp=moment, endingVersion=3
        )
        assert [(row.id, row._change_type) for row in later.collect()] == [(3, "delete")]
        assert later.collect()[0]._commit_timestamp.timestamp() == moment.timestamp()


def test_no_rows_are_read_where_there_are_none(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    name = f"{way}.empty"
    lake.create_table(name, location=str(tmp_path / "t"), schema=IDS)
    assert read(spark, url, name).collect() == []
    changes = read(spark, url, name, readChangeFeed="true", startingVersion=0)
    assert changes.collect() == []


def test_changes_without_a_feed_are_known_where_rows_were_only_added(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    name = f"{way}.none"
    table = lake.create_table(name, location=str(tmp_path / "t"), schema=IDS)
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3]}))
    changes = read(spark, url, name, readChangeFeed="true", startingVersion=1)
    assert sorted((row.id, row._change_type) for row in changes.collect()) == [
        (1, "insert"),
        (2, "insert"),
        (3, "insert"),
    ]
    table.overwrite(pa.table({"id": [4]}))
    with pytest.raises(refusal(way, UnsupportedFeatureError), match="not known"):
        read(spark, url, name, readChangeFeed="true", startingVersion=1).collect()


def test_a_stream_follows_a_table_into_another(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    first = lake.create_table("stream.from", location=str(tmp_path / "from"), schema=IDS)
    second = lake.create_table("stream.to", location=str(tmp_path / "to"), schema=IDS)
    for i in range(4):
        first.append(pa.table({"id": [10 * i, 10 * i + 1]}))

    def run(**options: Any) -> None:
        stream = (
            spark.readStream.format("deltalakedb")
            .option("catalog", url)
            .options(maxFilesPerTrigger="3", **options)
            .load("stream.from")
        )
        query = (
            stream.writeStream.format("deltalakedb")
            .option("catalog", url)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("stream.to")
        )
        query.awaitTermination()

    run()
    assert ids(second) == ids(first)
    # Three files at once, then one.
    assert second.snapshot().version == 2
    run()
    assert second.snapshot().version == 2
    first.append(pa.table({"id": [99]}))
    run()
    assert ids(second) == ids(first)
    # What is not an append has to be decided upon.
    first.overwrite(pa.table({"id": [5]}))
    with pytest.raises(PySparkException, match="skipChangeCommits"):
        run()
    run(skipChangeCommits="true")
    assert 5 not in ids(second)
    first.append(pa.table({"id": [6]}))
    run(skipChangeCommits="true")
    assert 6 in ids(second)
