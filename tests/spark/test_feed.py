"""The change data feed where columns change, and as a stream of Spark's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.errors import SourceChangedError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.source.native_format import SWITCH

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

FEED = {"delta.enableChangeDataFeed": "true"}
ROWS = pa.schema([("id", pa.int64()), ("a", pa.string())])


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture(params=["driver", "data source"])
def feed(request: pytest.FixtureRequest, spark: SparkSession, url: str) -> Iterator[Any]:
    """Reads changes, by the driver or by the data source."""

    def read(name: str, first: int, last: int) -> DataFrame:
        return (
            spark.read.format("deltalakedb")
            .options(catalog=url, readChangeFeed="true", startingVersion=first, endingVersion=last)
            .load(name)
        )

    spark.conf.set(SWITCH, "true" if request.param == "driver" else "false")
    yield read
    spark.conf.set(SWITCH, "true")


def test_changes_have_the_columns_of_their_last_version(
    lake: Lake, feed: Any, tmp_path: Path
) -> None:
    name = str(tmp_path)
    table = lake.create_table(name, location=str(tmp_path / "t"), schema=ROWS, properties=FEED)
    table.append(pa.table({"id": [1], "a": ["secret"]}))
    table.append(pa.table({"id": [2], "a": ["x"], "c": [3]}), merge_schema=True)
    table.overwrite(pa.table({"id": [1], "b": ["other"]}), overwrite_schema=True)
    first = feed(name, 1, 1)
    assert first.columns[:-3] == ["id", "a"]
    assert [(row.id, row.a) for row in first.collect()] == [(1, "secret")]
    both = feed(name, 1, 2)
    assert both.columns[:-3] == ["id", "a", "c"]
    assert sorted((row.id, row.a, row.c) for row in both.collect()) == [
        (1, "secret", None),
        (2, "x", 3),
    ]
    # A column that is gone at the end would be lost without a word.
    with pytest.raises(Exception, match=r"Column 'a' of table .* at version 1 is gone") as refused:
        feed(name, 1, 3).collect()
    assert isinstance(refused.value, SourceChangedError) or "SourceChangedError" in str(
        refused.value
    )


@pytest.mark.parametrize("mode", ["name", pytest.param("id", marks=pytest.mark.soak)])
def test_changes_of_tables_with_mapped_columns(  # noqa: PLR0917 - fixtures
    spark: SparkSession, lake: Lake, url: str, feed: Any, tmp_path: Path, mode: str
) -> None:
    name = f"{tmp_path}"
    table = lake.create_table(
        name,
        location=str(tmp_path / "t"),
        schema=ROWS,
        properties={**FEED, "delta.columnMapping.mode": mode},
    )
    table.append(pa.table({"id": [1, 2], "a": ["x", "y"]}))
    table.overwrite(pa.table({"id": [1], "a": ["z"]}), where="id = 1")
    expected = {
        (1, "x", "insert", 1),
        (2, "y", "insert", 1),
        (1, "x", "delete", 2),
        (1, "z", "insert", 2),
    }
    rows = feed(name, 1, 2).collect()
    assert {(r.id, r.a, r._change_type, r._commit_version) for r in rows} == expected
    # As streams, of changes and of rows.
    followed = spark.readStream.format("deltalakedb").options(
        catalog=url, readChangeFeed="true", startingVersion="1", maxFilesPerTrigger="1"
    )
    rows = streamed(spark, followed.load(name))
    assert {(r.id, r.a, r._change_type, r._commit_version) for r in rows} == expected
    plain = spark.readStream.format("deltalakedb").options(catalog=url).load(name)
    assert {(row.id, row.a) for row in streamed(spark, plain)} == {(1, "z"), (2, "y")}


def test_a_stream_of_changes_begins_with_the_table_as_it_is(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    name = str(tmp_path)
    table = lake.create_table(name, location=str(tmp_path / "t"), schema=ROWS, properties=FEED)
    table.append(pa.table({"id": [1, 2], "a": ["x", "y"]}))
    target = DeltaTable.forName(spark, name, catalog=lake)
    target.update("id = 2", {"a": "'new'"})
    stream = (
        spark.readStream.format("deltalakedb")
        .options(catalog=url, readChangeFeed="true")
        .load(name)
    )
    checkpoint = str(tmp_path / "checkpoint")
    rows = streamed(spark, stream, checkpoint)
    assert {(r.id, r.a, r._change_type, r._commit_version) for r in rows} == {
        (1, "x", "insert", 2),
        (2, "new", "insert", 2),
    }
    target.delete("id = 1")
    rows = streamed(spark, stream, checkpoint)
    assert {(r.id, r.a, r._change_type, r._commit_version) for r in rows} == {(1, "x", "delete", 3)}


def test_a_row_and_its_change_have_the_same_values(
    spark: SparkSession, lake: Lake, feed: Any, tmp_path: Path
) -> None:
    """Also where they come from a function that never says the same twice."""
    name = str(tmp_path)
    table = lake.create_table(name, location=str(tmp_path / "t"), schema=ROWS, properties=FEED)
    table.append(pa.table({"id": [1, 2, 3], "a": ["x", "y", "z"]}))
    target = DeltaTable.forName(spark, name, catalog=lake)
    target.update("id = 1", {"a": "uuid()"})
    news = spark.createDataFrame([(2,), (9,)], "id long").alias("s")
    merge = target.alias("t").merge(news, "t.id = s.id").whenMatchedUpdate(set={"a": "uuid()"})
    merge.whenNotMatchedInsert(values={"id": "s.id", "a": "uuid()"}).execute()
    told = {
        row.id: row.a
        for row in feed(name, 2, 3).collect()
        if row._change_type in ("insert", "update_postimage")
    }
    assert told.keys() == {1, 2, 9}
    assert {row.id: row.a for row in target.toDF().collect()} == {**told, 3: "z"}


def streamed(spark: SparkSession, frame: DataFrame, checkpoint: str | None = None) -> list[Any]:
    """All rows that a stream has now."""
    found: list[Any] = []
    query = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    if checkpoint is not None:
        query = query.option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    return found
