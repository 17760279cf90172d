"""`DeltaTable.clone` and its kin: rows of a clone change, those of the source do not."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def ids(table: DeltaTable) -> list[int]:
    return sorted(row.id for row in table.toDF().collect())


@pytest.mark.parametrize("vectors", ["true", pytest.param("false", marks=pytest.mark.soak)])
def test_rows_of_a_clone_change(
    spark: SparkSession, lake: Lake, tmp_path: Path, vectors: str
) -> None:
    made = lake.create_table(
        f"source_{vectors}",
        location=str(tmp_path / "the source"),
        schema=pa.schema([("id", pa.int64()), ("part", pa.string())]),
        partition_by=["part"],
        properties={"delta.enableDeletionVectors": vectors},
    )
    made.append(pa.table({"id": [1, 2, 3, 4], "part": ["a b", "a b", "%", "%"]}))
    source = DeltaTable.forName(spark, made.name, catalog=lake)
    source.delete("id = 1")
    clone = source.clone(str(tmp_path / "clone"), isShallow=True, name=f"clone_{vectors}")
    before = source.cloneAtVersion(
        1, str(tmp_path / f"before_{vectors}"), True, properties={"a": "b"}
    )
    assert (ids(clone), ids(before)) == ([2, 3, 4], [1, 2, 3, 4])
    assert before.detail().collect()[0].properties["a"] == "b"
    clone.delete("id = 3")
    clone.update("id = 4", {"id": "40"})
    news = spark.createDataFrame([(2, "c"), (5, "c")], "id bigint, part string")
    (
        clone.alias("t")
        .merge(news.alias("s"), "t.id = s.id")
        .whenMatchedDelete()
        .whenNotMatchedInsertAll()
        .execute()
    )
    assert (ids(clone), ids(source), ids(before)) == ([5, 40], [2, 3, 4], [1, 2, 3, 4])
    clone.restoreToVersion(0)
    clone.optimize().executeCompaction()
    assert (ids(clone), ids(source)) == ([2, 3, 4], [2, 3, 4])
    assert clone.history().collect()[-1].operation == "CLONE"


def test_a_clone_is_shallow(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    lake.create_table("deep", location=str(tmp_path / "t"), schema=pa.schema([("id", pa.int64())]))
    table = DeltaTable.forName(spark, "deep", catalog=lake)
    with pytest.raises(UnsupportedFeatureError, match="isShallow=True"):
        table.clone(str(tmp_path / "c"))
    now = table.history(1).collect()[0].timestamp
    assert table.cloneAtTimestamp(now, str(tmp_path / "c"), True).toDF().count() == 0
