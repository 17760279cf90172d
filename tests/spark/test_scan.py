"""Spark reads a snapshot as pyarrow does, whatever its layout; and lists and leaves nothing."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.actions import AddFile
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.io.paths import hadoop_uri, java_encoded, metadata_path
from deltalakedb.spark.io.scan import scan
from deltalakedb.table import Table

from support.golden import GoldenTable, golden_names
from support.store import Catalogs

MOMENT = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
ODD = ["plain", "a/b", "a b", "100%", "%2F", "x=y", "é 東京", "q'u\"o", "a:b", "#?&+", None]


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


def rows(data: pa.Table | DataFrame) -> list[str]:
    table: Any = data if isinstance(data, pa.Table) else data.toArrow()
    names = sorted(table.column_names)
    return sorted(repr([row[name] for name in names]) for row in table.to_pylist())


def new(lake: Lake, folder: Path, data: pa.Table, **options: Any) -> Table:
    table = lake.create_table(str(folder), location=str(folder), schema=data.schema, **options)
    table.append(data)
    return table


@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("partitions", [[], ["day"]])
def test_columns_that_are_not_null_are_so_in_the_schema(
    spark: SparkSession, lake: Lake, tmp_path: Path, mode: str, partitions: list[str]
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())])
    table = lake.create_table(
        str(tmp_path),
        location=str(tmp_path / "t"),
        schema=schema,
        partition_by=partitions,
        properties={"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "true"},
    )
    target = DeltaTable.forName(spark, str(tmp_path), catalog=lake)

    def nullable(**options: Any) -> list[bool]:
        return [field.nullable for field in target.toDF(**options).schema]

    assert nullable() == [False, True]
    table.append(pa.table({"id": [1, 2], "day": [None, "x"]}, schema=schema))
    assert nullable() == nullable(where="id > 0") == [False, True]
    target.delete("id = 1")
    assert nullable() == [False, True]
    assert [tuple(row) for row in target.toDF().collect()] == [(2, "x")]


DATA = pa.table(
    {
        "id": pa.array(range(len(ODD)), pa.int64()),
        "word": ODD,
        "day": pa.array([date(2026, 11, 1 + n % 3) for n in range(len(ODD))]),
        "at": pa.array(
            [datetime(2026, 11, 1, n, 30, 15, 123456, tzinfo=UTC) for n in range(len(ODD))],
            pa.timestamp("us", "UTC"),
        ),
        "price": pa.array([Decimal(f"{n}.50") for n in range(len(ODD))]).cast(pa.decimal128(12, 2)),
        "nested": [{"a": n, "b": [str(n), None]} for n in range(len(ODD))],
    }
)


@pytest.mark.parametrize(
    "partition_by", [[], ["word"], ["day", "word"], ["at"], ["price"], ["id", "day"]]
)
@pytest.mark.parametrize("mode", ["none", "name", "id"])
@pytest.mark.parametrize("folder", ["plain", "a=b/c d%20é"])
def test_rows_of_every_layout(  # noqa: PLR0917
    spark: SparkSession, lake: Lake, tmp_path: Path, partition_by: list[str], mode: str, folder: str
) -> None:
    table = new(
        lake,
        tmp_path / folder,
        DATA,
        partition_by=partition_by,
        properties={"delta.columnMapping.mode": mode},
    )
    frame = scan(spark, table.snapshot())
    assert frame.columns == DATA.column_names
    assert rows(frame) == rows(DATA)
    assert frame.count() == DATA.num_rows


def test_old_versions_and_changed_schemas(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path / "t", pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3], "word": ["x"]}), merge_schema=True)
    table.overwrite(pa.table({"id": [9], "word": [None]}))
    for version in range(1, 4):
        snapshot = table.snapshot(version=version)
        assert rows(scan(spark, snapshot)) == rows(snapshot.to_arrow())
    assert scan(spark, table.snapshot(version=1)).columns == ["id"]
    assert scan(spark, table.snapshot(version=0)).collect() == []


def test_conditions_find_files_and_filter_rows(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(lake, tmp_path / "t", DATA, partition_by=["day"])
    where = "day = '2026-11-01' AND id > 3 AND length(word) > 2"
    frame = scan(spark, table.snapshot(), where=where)
    expected = [
        row
        for row in DATA.to_pylist()
        if row["day"] == date(2026, 11, 1) and row["id"] > 3 and len(row["word"] or "") > 2
    ]
    assert expected
    assert sorted(row.id for row in frame.collect()) == sorted(row["id"] for row in expected)
    assert len(frame.inputFiles()) == 1


def test_metadata_columns_are_there(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path / "t é", DATA, partition_by=["word"])
    snapshot = table.snapshot()
    found = scan(spark, snapshot).select("id", "_metadata.file_path", "_metadata.row_index")
    known = {
        metadata_path(hadoop_uri(snapshot.table.location, path))
        for path in snapshot.files()["path"].to_pylist()
    }
    assert {row.file_path for row in found.collect()} == known


def test_metadata_columns_are_there_where_partition_values_are_joined(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    snapshot = new(lake, tmp_path / "t", DATA, partition_by=["at"]).snapshot()
    found = scan(spark, snapshot).select("id", "_metadata.file_path", "_metadata.file_size")
    known = {
        metadata_path(hadoop_uri(snapshot.table.location, path)): size
        for path, size in zip(
            *(snapshot.files()[name].to_pylist() for name in ("path", "size_bytes")), strict=True
        )
    }
    assert {row.file_path: row.file_size for row in found.collect()} == known


@pytest.mark.parametrize("partition_by", [[], ["at"]], ids=["plain", "joined"])
def test_metadata_columns_are_there_beside_deletion_vectors(
    spark: SparkSession, lake: Lake, tmp_path: Path, partition_by: list[str]
) -> None:
    moments = pa.array([MOMENT] * len(ODD), pa.timestamp("us", "UTC"))
    data = DATA.set_column(3, "at", moments)
    vectors = {"delta.enableDeletionVectors": "true"}
    table = new(
        lake, tmp_path / "t", data.slice(0, 3), partition_by=partition_by, properties=vectors
    )
    table.append(data.slice(3, 2))
    DeltaTable.forName(spark, table.name, catalog=lake).delete("id = 0")
    snapshot = table.snapshot()
    assert [row["id"] for row in snapshot.to_arrow().sort_by("id").to_pylist()] == [1, 2, 3, 4]
    # Some files have vectors, others have none; then only such that have.
    frame = scan(spark, snapshot, metadata=True)
    assert frame.columns == DATA.column_names
    found = frame.select("*", "_metadata.file_path", "_metadata.row_index").collect()
    assert sorted(row.id for row in found) == [1, 2, 3, 4]
    assert len({row.file_path for row in found}) == 2
    assert {row.id: row.row_index for row in found} == {1: 1, 2: 2, 3: 0, 4: 1}
    only = scan(spark, snapshot, where="id < 3").select("id", "_metadata.row_index")
    assert sorted(tuple(row) for row in only.collect()) == [(1, 1), (2, 2)]


EVERY_TYPE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "byte": pa.array([-128, 127, None], pa.int8()),
        "short": pa.array([-32768, 32767, None], pa.int16()),
        "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "long": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "float": pa.array([1.5, float("-inf"), None], pa.float32()),
        "double": pa.array([0.1, float("nan"), None], pa.float64()),
        "yes": pa.array([True, False, None]),
        "word": pa.array(["x", "001", None]),
        "raw": pa.array([b"ab", b"x", None], pa.binary()),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
        "at": pa.array(
            [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), MOMENT, None],
            pa.timestamp("us", "UTC"),
        ),
        "naive": pa.array(
            [datetime(1969, 12, 31, 1, 2, 3, 4), datetime(2026, 3, 29, 2, 30), None],  # noqa: DTZ001
            pa.timestamp("us"),
        ),
        "price": pa.array([Decimal("-1.50"), Decimal("0.00"), None], pa.decimal128(38, 2)),
    }
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_partition_values_of_every_type(
    spark: SparkSession, lake: Lake, tmp_path: Path, zone: str
) -> None:
    names = [name for name in EVERY_TYPE.column_names if name != "id"]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        table = new(lake, tmp_path / "t", EVERY_TYPE, partition_by=names)
        assert rows(scan(spark, table.snapshot())) == rows(EVERY_TYPE)
        where = "price < 0 AND at < timestamp'1970-01-01T00:00:00Z' AND raw = X'6162'"
        assert scan(spark, table.snapshot(), where=where).select("id").collect() == [(1,)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_absolute_paths(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Files of another table, with odd names: a URI, or a path of this machine."""
    other = new(lake, tmp_path / "a b %é", DATA, partition_by=["word"])
    table = lake.create_table(
        "absolute", location=str(tmp_path / "t"), schema=DATA.schema, partition_by=["word"]
    )
    adds = [action for action in other.actions(1) if isinstance(action, AddFile)]
    table.allow_roots([other.location])
    table.commit([replace(add, path=f"{other.location}/{add.path}") for add in adds])
    assert rows(scan(spark, table.snapshot())) == rows(DATA)
    assert rows(table.snapshot().to_arrow()) == rows(DATA)


@pytest.mark.soak
def test_a_hundred_thousand_files(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Planned without listing or opening any but those that are read."""
    count = 100_000
    table = new(lake, tmp_path / "t", pa.table({"id": [5]}))
    stats = '{"numRecords":1,"minValues":{"id":%d},"maxValues":{"id":%d},"nullCount":{"id":0}}'
    (real,) = (action for action in table.actions(1) if isinstance(action, AddFile))
    table.commit(
        [
            replace(real, path=f"missing-{n}.parquet", stats=stats % (n, n))
            for n in range(10, 10 + count)
        ]
    )
    before = sorted(path for path in tmp_path.rglob("*") if "_delta_log" not in path.parts)
    assert len(scan(spark, table.snapshot()).inputFiles()) == count + 1
    assert scan(spark, table.snapshot(), where="id < 10").collect() == [(5,)]
    after = sorted(path for path in tmp_path.rglob("*") if "_delta_log" not in path.parts)
    assert after == before


def test_nothing_is_left_behind(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path / "t", DATA)
    before = sorted(path for path in tmp_path.rglob("*"))
    frame = scan(spark, table.snapshot())
    assert frame.count() == frame.count() == DATA.num_rows
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_java_writes_paths_its_own_way() -> None:
    assert java_encoded("/a b/é%#?[x]/y=z,1;'~") == "/a%20b/é%25%23%3F%5Bx%5D/y=z,1;'~"
    assert hadoop_uri("s3://b/t", "x%20y") == "s3a://b/t/x%20y"
    assert hadoop_uri("s3://b/a b/é%20", "x") == "s3a://b/a%20b/%C3%A9%20/x"
    assert hadoop_uri("file:///t", "s3://b/x") == "s3a://b/x"
    assert metadata_path("s3a://b/t/x%20y") == "s3a://b/t/x%20y"
    assert metadata_path("file:///t/%C3%A9") == "file:/t/é"


# --- golden tables ------------------------------------------------------------------------

VARIANTS = "Spark gives variants as they are, and Arrow cannot show them"


def whole(golden: GoldenTable, folder: Path) -> GoldenTable:
    """Delta's own tests gave the files of vectors a prefix that no descriptor knows of."""
    prefixed = list(golden.path.glob("test%dv%prefix-*"))
    if not prefixed:
        return golden
    shutil.copytree(golden.path, folder / golden.name)
    for file in prefixed:
        (folder / golden.name / file.name).rename(
            folder / golden.name / file.name.removeprefix("test%dv%prefix-")
        )
    return replace(golden, path=folder / golden.name)


@pytest.mark.parametrize("name", golden_names())
def test_golden_tables(
    spark: SparkSession,
    lake: Lake,
    golden_tables: dict[str, GoldenTable],
    name: str,
    tmp_path: Path,
) -> None:
    golden = whole(golden_tables[name], tmp_path)
    try:
        snapshot = golden.import_into(lake).snapshot()
        expected = rows(snapshot.to_arrow())
    except DeltaLakeDbError as refusal:
        pytest.skip(f"cannot be read without Spark either: {refusal.what}")
    if "variant" in str(snapshot.schema):
        pytest.skip(VARIANTS)
    assert rows(scan(spark, snapshot)) == expected


def test_the_uri_of_a_table_may_hold_anything(tmp_path: Path) -> None:
    folder = tmp_path / "a=b & c%"
    uri = hadoop_uri(f"file://{quote(str(folder))}", "x.parquet")
    assert metadata_path(uri).endswith("/a=b%20&%20c%25/x.parquet")
