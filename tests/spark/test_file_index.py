"""Files are listed when a scan runs, with the filters that Spark has by then."""

import http.client
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable, enable
from deltalakedb.spark.delta.jar import JAR
from deltalakedb.spark.io import file_index
from deltalakedb.spark.io.file_index import SWITCH, lake_scans
from deltalakedb.spark.io.file_service import file_service
from deltalakedb.spark.io.scan import scan
from deltalakedb.table import Table
from spark.files_read import files_read

from support.store import Catalogs

pytestmark = pytest.mark.skipif(not JAR.is_file(), reason="the jar was not built: make jar")


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    """Twenty files of ten rows: `id` in order, two partitions."""
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("part", pa.string()),
            ("file_size", pa.int64()),
            ("nested", pa.struct([("x", pa.int32())])),
        ]
    )
    table = lake.create_table(
        f"t{tmp_path.name}",
        location=str(tmp_path / "t"),
        schema=schema,
        partition_by=["part"],
        properties={
            "delta.enableDeletionVectors": "true",
            "delta.columnMapping.mode": "name",
        },
    )
    for number in range(20):
        ids = range(number * 10, number * 10 + 10)
        table.append(
            pa.table(
                {
                    "id": list(ids),
                    "part": ["even" if number % 2 == 0 else "odd"] * 10,
                    "file_size": list(ids),
                    "nested": [{"x": one} for one in ids],
                },
                schema=schema,
            )
        )
    return table


def frame_of(spark: SparkSession, lake: Lake, table: Table, **options: Any) -> DataFrame:
    return DeltaTable.forName(spark, table.name, catalog=lake).toDF(**options)


# The number of files that are read, and that of the rows.
CONDITIONS = {
    "id = 57": (1, 1),
    "id BETWEEN 55 AND 64": (2, 10),
    "id IN (3, 199) OR id IS NULL": (2, 2),
    "part = 'odd'": (10, 100),
    "upper(part) = 'ODD' AND id < 40": (2, 20),
    "file_size >= 190": (1, 10),
    "id + 1 = 6": (20, 1),
    "id = 5 AND rand() < 2": (1, 1),
    "id < 0": (0, 0),
    "part IS NULL": (0, 0),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_only_files_that_can_match_are_read(
    spark: SparkSession, lake: Lake, table: Table, condition: str
) -> None:
    files, rows = CONDITIONS[condition]
    found = frame_of(spark, lake, table).where(condition)
    assert (len(found.collect()), files_read(found)) == (rows, files)
    if "rand" not in condition:
        found = frame_of(spark, lake, table, where=condition)
        assert (len(found.collect()), files_read(found)) == (rows, files)


def test_fields_of_structs_prune_files(spark: SparkSession, lake: Lake, table: Table) -> None:
    """Spark casts structs of a table with column mapping, and hands over no filter on a field."""
    found = frame_of(spark, lake, table, where="nested.x > 189")
    assert (len(found.collect()), files_read(found)) == (10, 1)
    plain = lake.create_table(
        f"plain {table.name}",
        location=f"{table.location}-plain",
        schema=table.snapshot().to_arrow().schema,
    )
    for number in range(3):
        plain.append(pa.table({"id": [number], "nested": [{"x": number}]}), merge_schema=True)
    found = frame_of(spark, lake, plain).where("nested.x > 1")
    assert ([row.id for row in found.collect()], files_read(found)) == ([2], 1)


def test_a_join_reads_the_partitions_of_the_other_side(
    spark: SparkSession, lake: Lake, table: Table
) -> None:
    spark.sql("SELECT 'odd' AS part, 11L AS id").createOrReplaceTempView("small")
    frame_of(spark, lake, table).createOrReplaceTempView("big")
    joined = spark.sql("SELECT b.id FROM big b JOIN small s ON b.part = s.part AND b.id = s.id")
    assert [row.id for row in joined.collect()] == [11]
    assert spark.sql("SELECT count(*) FROM big WHERE id > 189 AND part = 'odd'").first() == (10,)
    spark.catalog.dropTempView("big")
    spark.catalog.dropTempView("small")


def test_filters_on_hidden_columns_are_not_those_on_columns_of_that_name(
    spark: SparkSession, lake: Lake, table: Table
) -> None:
    frame = frame_of(spark, lake, table)
    size = frame.select("_metadata.file_size").first()
    assert size is not None
    found = frame.where(f"_metadata.file_size <= {size[0] * 2} AND file_size = 7")
    assert [row.id for row in found.collect()] == [7]
    assert frame.where("_metadata.file_size < 10").count() == 0
    assert frame.where("_metadata.row_index = 3").count() == 20


def test_deleted_rows_stay_hidden(spark: SparkSession, lake: Lake, table: Table) -> None:
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    target.delete("id IN (3, 57, 199)")
    frame = target.toDF()
    kept = [number for number in range(200) if number not in (3, 57, 199)]
    assert sorted(row.id for row in frame.collect()) == kept
    assert frame.where("id = 57").collect() == []
    assert "Join" not in frame._jdf.queryExecution().executedPlan().toString()
    found = frame.where("id > 189").select("id", "_metadata.row_index").collect()
    assert sorted(tuple(row) for row in found) == [(190 + n, n) for n in range(9)]
    interpreted = "spark.sql.codegen.wholeStage"
    spark.conf.set(interpreted, "false")
    try:
        assert sorted(row.id for row in target.toDF().collect()) == kept
    finally:
        spark.conf.unset(interpreted)


def test_rows_far_apart_are_deleted_and_no_others(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.create_table(
        f"wide{tmp_path.name}",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.enableDeletionVectors": "true"},
    )
    table.append(pa.table({"id": list(range(50_000))}))
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    deleted = [0, 7, 8, 4095, 4096, 20_479, 20_480, 40_000]
    target.delete(f"id IN ({', '.join(map(str, deleted))})")
    assert table.snapshot().files()["deletion_vector"].null_count == 0
    found = {row.id for row in target.toDF().collect()}
    assert set(range(50_000)) - found == set(deleted)
    assert target.toDF().where("id = 49999").count() == 1


def test_many_columns_are_read_without_vectors(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Spark reads more than 100 columns row by row; deleted rows are then found by a join."""
    wide = pa.table({f"c{number}": [1, 2, 3] for number in range(120)})
    table = lake.create_table(
        f"columns{tmp_path.name}",
        location=str(tmp_path / "t"),
        schema=wide.schema,
        properties={"delta.enableDeletionVectors": "true"},
    )
    table.append(wide)
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    target.delete("c7 = 2")
    assert sorted(row.c119 for row in target.toDF().collect()) == [1, 3]
    assert target.toDF().select("c3").where("c3 > 1").count() == 1


def test_a_version_stays_what_it_was(spark: SparkSession, lake: Lake, table: Table) -> None:
    frame = frame_of(spark, lake, table)
    table.overwrite(pa.table({"id": [1000]}), merge_schema=True)
    assert frame.count() == 200
    assert frame_of(spark, lake, table).count() == 1
    assert frame_of(spark, lake, table, version=3).count() == 30


def test_the_lake_need_not_stay_open(
    spark: SparkSession, url: str, lake: Lake, table: Table
) -> None:
    with deltalakedb.connect(url) as other:
        frame = frame_of(spark, other, table)
    assert frame.where("id = 3").count() == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltalakedb.spark.io.file_service.open_lakes", list)
        assert frame.where("id = 4").count() == 1


def test_rows_cannot_be_inserted_into_a_scan(spark: SparkSession, lake: Lake, table: Table) -> None:
    frame_of(spark, lake, table).createOrReplaceTempView("scanned")
    before = sorted(path for path in Path(table.location.removeprefix("file://")).rglob("*"))
    for statement in ("INSERT INTO scanned", "INSERT OVERWRITE scanned"):
        with pytest.raises(PySparkException):
            spark.sql(f"{statement} SELECT * FROM scanned")
    spark.catalog.dropTempView("scanned")
    assert sorted(Path(table.location.removeprefix("file://")).rglob("*")) == before


def test_a_dropped_table_says_so(spark: SparkSession, lake: Lake, table: Table) -> None:
    frame = frame_of(spark, lake, table)
    lake.drop_table(table.name, force=True)
    with pytest.raises(Exception, match="no longer in the catalog"):
        frame.count()


def test_equal_scans_share_cached_rows(spark: SparkSession, lake: Lake, table: Table) -> None:
    frame = frame_of(spark, lake, table).cache()
    try:
        assert frame.count() == 200
        again = frame_of(spark, lake, table)
        assert "InMemoryTableScan" in again._jdf.queryExecution().executedPlan().toString()
        older = frame_of(spark, lake, table, version=3)
        assert "InMemoryTableScan" not in older._jdf.queryExecution().executedPlan().toString()
    finally:
        frame.unpersist()


def test_a_format_reads_the_same_files(
    spark: SparkSession, url: str, lake: Lake, table: Table, native_format: None
) -> None:
    enable(spark)
    loaded = spark.read.format("deltalakedb").option("catalog", url).load(table.name)
    found = loaded.where("id = 57")
    assert [row.id for row in found.collect()] == [57]
    assert files_read(found) == 1


@pytest.mark.parametrize("why", ["setting", "version", "jar", "server"])
def test_without_it_files_are_listed_when_the_frame_is_created(  # noqa: PLR0917
    spark: SparkSession,
    lake: Lake,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    why: str,
) -> None:
    if why == "setting":
        spark.conf.set(SWITCH, "false")
    elif why == "version":
        monkeypatch.setattr(file_index, "_TESTED", ("3.5.",))
    elif why == "jar":
        monkeypatch.setattr(file_index, "JAR", tmp_path / "missing.jar")
    else:
        monkeypatch.setattr(file_index, "_loaded", {})
        for module in ("deltalakedb.spark.io.file_service", "deltalakedb.asgi"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setitem(sys.modules, "uvicorn", None)
    try:
        assert lake_scans(spark) is None
        frame = scan(spark, table.snapshot(), where="id = 57")
    finally:
        spark.conf.unset(SWITCH)
    assert [row.id for row in frame.collect()] == [57]
    assert len(frame.inputFiles()) == 1


def test_only_this_process_is_answered(spark: SparkSession, lake: Lake, table: Table) -> None:
    assert frame_of(spark, lake, table).count() == 200
    service = file_service()
    assert service.token not in repr(service)
    for header in ({}, {"Authorization": "Bearer " + "x" * 43}):
        connection = http.client.HTTPConnection(urlsplit(service.address).netloc, timeout=10)
        connection.request("POST", "/files", body=b"{}", headers=header)
        response = connection.getresponse()
        assert response.status == 401
        assert service.token.encode() not in response.read()
        connection.close()
