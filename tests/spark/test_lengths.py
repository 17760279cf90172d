"""CHAR and VARCHAR columns are declared as in Delta, and no text is longer than they allow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import CharType, StructType, VarcharType

import deltalakedb
from deltalakedb.actions.arrow import DECLARED
from deltalakedb.errors import ConstraintViolatedError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_no_way_of_writing_passes_over_a_length(
    spark: SparkSession, lake: Lake, tmp_path: Path, vectors: str
) -> None:
    table = (
        DeltaTable.create(spark, catalog=lake)
        .tableName(str(tmp_path))
        .location(str(tmp_path / "t"))
        .addColumn("id", "int")
        .addColumn("code", "VARCHAR(3)")
        .addColumn("deep", "struct<a: array<char(2)>, m: map<string, varchar(4)>>")
        .addColumn("twice", "string", generatedAlwaysAs="concat(code, code)")
        .property("delta.enableDeletionVectors", vectors)
        .execute()
    )
    good = spark.sql(
        "SELECT id, 'äöü' code, named_struct('a', array('ab', null), 'm', map('long', 'four')) deep"
        " FROM range(10)"
    )
    stored = lake.table(str(tmp_path))
    stored.append(good)
    before = sorted((tmp_path / "t").glob("*.parquet"))
    for column, value in (
        ("code", "'abcd'"),
        ("deep", "named_struct('a', array('abc'), 'm', map('k', 'v'))"),
        ("deep", "named_struct('a', array('a'), 'm', map('k', 'v', 'l', '12345'))"),
    ):
        bad = good.selectExpr(*(f"{value} {c}" if c == column else c for c in good.columns))
        with pytest.raises(ConstraintViolatedError, match=column):
            stored.append(bad)
        with pytest.raises(ConstraintViolatedError, match=column):
            table.update("id = 3", {column: value})
        merge = table.alias("t").merge(bad.alias("s"), "t.id = s.id AND s.id < 5")
        with pytest.raises(ConstraintViolatedError, match=column):
            merge.whenMatchedUpdate(set={column: f"s.{column}"}).execute()
    stored.refresh()
    assert stored.snapshot().version == 1
    assert sorted((tmp_path / "t").glob("*.parquet")) == before
    table.update("id = 3", {"code": "'x'"})
    assert table.toDF().where("code = 'x' AND twice = 'xx'").count() == 1


def test_a_schema_of_spark_keeps_its_lengths(lake: Lake, tmp_path: Path) -> None:
    schema = StructType().add("a", VarcharType(2)).add("b", StructType().add("c", CharType(1)))
    table = lake.create_table(str(tmp_path), location=str(tmp_path / "t"), schema=schema)
    with pytest.raises(ConstraintViolatedError, match=r"'b\.c'"):
        table.append([{"a": "ab", "b": {"c": "ab"}}])
    table.add_columns(StructType().add("d", VarcharType(4)))
    found = {field.name: field.metadata for field in table.snapshot().schema.fields}
    assert found == {
        "a": {DECLARED: "varchar(2)"},
        "b": {DECLARED: "struct<c:char(1)>"},
        "d": {DECLARED: "varchar(4)"},
    }


def test_rows_that_are_read_bring_the_length_along(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    """A table that is made of another one's rows has its limits, as with Delta."""
    schema = StructType().add("a", VarcharType(2))
    first = lake.create_table(str(tmp_path / "1"), location=str(tmp_path / "1"), schema=schema)
    first.append([{"a": "ab"}])
    rows = DeltaTable.forName(spark, first.name, catalog=lake).toDF()
    writer = rows.write.format("deltalakedb").option("catalog", url)
    writer.option("location", str(tmp_path / "2")).option("table", "second").save()
    second = lake.table("second").snapshot()
    assert second.to_arrow()["a"].to_pylist() == ["ab"]
    assert [field.metadata for field in second.schema.fields] == [{DECLARED: "varchar(2)"}]
