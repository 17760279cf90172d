"""OPTIMIZE, Z-order, vacuum, restore and history through `DeltaTable`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


def test_files_are_compacted_by_executors(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "compacted",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64()), ("part", pa.string())]),
        partition_by=["part"],
        properties={"delta.enableDeletionVectors": "true"},
    )
    for i in range(4):
        table.append(pa.table({"id": [2 * i, 2 * i + 1], "part": ["a", "b"]}))
    target = DeltaTable.forName(spark, "compacted", catalog=lake)
    target.delete("id = 3")
    (told,) = target.optimize().where("part = 'b'").executeCompaction().collect()
    assert (told.metrics.numFilesAdded, told.metrics.numFilesRemoved) == (1, 3)
    target.optimize().executeCompaction()
    assert sorted(row.id for row in target.toDF().collect()) == [0, 1, 2, 4, 5, 6, 7]
    assert table.snapshot().num_files == 2
    assert [row.operation for row in target.history(2).collect()] == ["OPTIMIZE", "OPTIMIZE"]


def test_rows_that_are_alike_share_files(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    frame = spark.range(0, 4096, numPartitions=4).selectExpr(
        "cast(pmod(id * 2654435761, 64) as int) as x",
        "concat('y', pmod(id * 40503, 64)) as y",
        "id",
    )
    table = lake.create_table("curve", location=str(tmp_path / "t"), schema=frame.schema)
    table.append(frame)
    target = DeltaTable.forName(spark, "curve", catalog=lake)
    before = sorted(tuple(row) for row in target.toDF().collect())
    size = table.snapshot().size_bytes
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(size // 16))
    try:
        target.optimize().executeZOrderBy("x", "y")
    finally:
        spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")
    assert sorted(tuple(row) for row in target.toDF().collect()) == before
    files = table.snapshot().num_files
    assert files > 8
    # Each column alone rules out many files, which no order by one of them would do.
    for condition in ("x = 5", "y = 'y5'"):
        assert table.snapshot().files(where=condition).num_rows <= files * 0.6
    with pytest.raises(ConfigurationError, match="nope"):
        target.optimize().executeZOrderBy("nope")
    info = table.history(1)[0].commit_info
    assert info is not None
    assert json.loads(str((info.operation_parameters or {})["zOrderBy"])) == ["x", "y"]


def test_the_rest_of_the_table(spark: SparkSession, url: str, lake: Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "rest", location=str(tmp_path / "rest"), schema=pa.schema([("id", pa.int64())])
    )
    spark.conf.set("spark.deltalakedb.catalog", url)
    try:
        target = DeltaTable.forPath(spark, str(tmp_path / "rest"))
        assert DeltaTable.isDeltaTable(spark, "rest")
        assert not DeltaTable.isDeltaTable(spark, "no.such")
    finally:
        spark.conf.unset("spark.deltalakedb.catalog")
    with pytest.raises(ConfigurationError, match="No catalog"):
        DeltaTable.forName(spark, "rest")
    table.append(pa.table({"id": [1, 2]}))
    assert target.delete("id = 1").collect()[0].num_affected_rows == 1
    assert target.update("id = 2", {"id": "20"}).collect()[0].num_affected_rows == 1
    assert [row.id for row in target.toDF().collect()] == [20]
    assert [row.id for row in target.toDF(version=1, where="id > 1").collect()] == [2]
    (restored,) = target.restoreToVersion(1).collect()
    assert restored.num_of_files_after_restore == 1
    assert target.toDF().count() == 2
    assert target.vacuum().count() == 0
    with pytest.raises(ConfigurationError, match="168") as refused:
        target.vacuum(0)
    assert "retentionDurationCheck.enabled=false" in refused.value.fix
    assert "allow_short_retention" not in refused.value.fix
    (detail,) = target.detail().collect()
    assert (detail.name, detail.numFiles) == ("rest", 1)
    (newest,) = target.history(1).collect()
    assert (newest.version, newest.operation) == (4, "RESTORE")
    assert newest.operationMetrics["numRestoredFiles"] == "1"


def test_a_clustered_table_is_ordered_by_its_columns(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    frame = spark.range(0, 4096, numPartitions=4).selectExpr(
        "cast(pmod(id * 2654435761, 64) as int) as x",
        "named_struct('y', concat('y', pmod(id * 40503, 64))) as s",
        "id",
    )
    table = lake.create_table(
        "clustered",
        location=str(tmp_path / "t"),
        schema=frame.schema,
        cluster_by=["x", "s.y"],
        properties={"delta.columnMapping.mode": "name"},
    )
    table.append(frame)
    target = DeltaTable.forName(spark, "clustered", catalog=lake)
    before = sorted(row.id for row in target.toDF().collect())
    spark.conf.set(
        "spark.databricks.delta.optimize.maxFileSize", str(table.snapshot().size_bytes // 16)
    )
    try:
        target.optimize().executeCompaction()
        # What is in order already stays as it is.
        (again,) = target.optimize().executeCompaction().collect()
        assert (again.metrics.numFilesRemoved, table.snapshot().version) == (0, 2)
    finally:
        spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")
    assert sorted(row.id for row in target.toDF().collect()) == before
    files = table.snapshot().num_files
    assert files > 8
    for condition in ("x = 5", "s.y = 'y5'"):
        assert table.snapshot().files(where=condition).num_rows <= files * 0.6
    listed = table.snapshot().files(columns=["tags", "clustering_provider"]).to_pylist()
    assert {row["clustering_provider"] for row in listed} == {"liquid"}
    assert len({json.loads(row["tags"])["ZCUBE_ID"] for row in listed}) == 1
    assert target.detail().collect()[0].clusteringColumns == ["x", "s.y"]
    with pytest.raises(ConfigurationError, match="clustered by x"):
        target.optimize().executeZOrderBy("id")
    with pytest.raises(ConfigurationError, match="no partitions"):
        target.optimize().where("x = 1").executeCompaction()
    target.delete("id < 4000")
    table.append(spark.range(4).selectExpr("1 as x", "named_struct('y', 'z') as s", "id"))
    target.optimize().executeCompaction()
    assert table.snapshot().num_files == 1
    assert target.toDF().count() == 100
    info = table.history(1)[0].commit_info
    assert info is not None
    assert (info.operation_parameters or {})["clusterBy"] == '["x","s.y"]'


@pytest.mark.parametrize(("partitions", "bins"), [([], 1), (["p"], 3)])
def test_a_z_order_tells_bins_and_cubes_as_delta_does(
    spark: SparkSession, lake: Lake, tmp_path: Path, partitions: list[str], bins: int
) -> None:
    name = f"z_order_{bins}"
    frame = spark.range(300).selectExpr("id", "id % 3 AS p")
    folder = str(tmp_path / "t")
    lake.create_table(name, location=folder, schema=frame.schema, partition_by=partitions)
    target = DeltaTable.forName(spark, name, catalog=lake)
    empty = target.optimize().executeZOrderBy("id").first()
    assert empty is not None
    told = empty.metrics
    assert (told.numBins, told.zOrderStats.numOutputCubes, told.numBatches) == (0, 0, 1)
    lake.table(name).append(frame)
    lake.table(name).append(frame)
    done = target.optimize().executeZOrderBy("id").first()
    assert done is not None
    told = done.metrics
    # What Delta 4.4 reports of the same table.
    assert (told.numBins, told.zOrderStats.numOutputCubes, told.numBatches) == (bins, bins, 1)
    assert told.partitionsOptimized == bins


def test_rows_are_ordered_by_many_columns(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """More than fit into one number, of every type that has an order, and fields of structs."""
    kinds = ["id", "cast(id AS int)", "cast(id AS smallint)", "cast(id AS double)", "id > 50"]
    kinds += ["cast(id AS decimal(20,2))", "lpad(id, 9, '0')", "cast(lpad(id, 9, '0') AS binary)"]
    kinds += ["date_add(date'2026-11-01', cast(id AS int))", "timestamp_seconds(id)"]
    named = [f"{kind} AS c{i}" for i, kind in enumerate(kinds)]
    named += ["named_struct('in.side', id) AS s", "id AS `a.b`", "array(id) AS many"]
    frame = spark.range(100).selectExpr(*named)
    table = lake.create_table_as("many_columns", frame, location=str(tmp_path / "t"))
    target = DeltaTable.forName(spark, "many_columns", catalog=lake)
    before = sorted(map(str, target.toDF().collect()))
    columns = [f"c{i}" for i in range(len(kinds))]
    done = target.optimize().executeZOrderBy([*columns, "s.`in.side`", "a.b"])
    assert sorted(map(str, target.toDF().collect())) == before
    (told,) = done.collect()
    assert told.metrics.zOrderStats.mergedFiles.num == told.metrics.numFilesRemoved > 0
    # All columns rise together, so the curve does too.
    assert [row.c0 for row in target.toDF().collect()] == list(range(100))
    info = table.history(1)[0].commit_info
    assert info is not None
    by = json.loads(str((info.operation_parameters or {})["zOrderBy"]))
    assert by == [*columns, "s.`in.side`", "a.b"]
    for wrong, why in (("many", "no order"), ("s", "no order"), ("s.nope", "Its columns are")):
        with pytest.raises(ConfigurationError, match=why):
            target.optimize().executeZOrderBy(wrong)
    with pytest.raises(ConfigurationError, match="twice"):
        target.optimize().executeZOrderBy("c1", "C1")
    with pytest.raises(ConfigurationError, match="no column to order by"):
        target.optimize().executeZOrderBy()
