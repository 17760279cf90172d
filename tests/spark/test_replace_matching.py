"""`replaceUsing` and `replaceOn` of DataFrames: what matches a row that comes makes way for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.actions import AddFile
from deltalakedb.errors import (
    ConcurrentAppendError,
    ConfigurationError,
    ConstraintViolatedError,
    InvalidConditionError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark.dml import replace
from deltalakedb.spark.dml.changes import RowEdit
from deltalakedb.spark.io.query_text import without_alias
from deltalakedb.spark.source.native_format import SWITCH
from deltalakedb.table import Table
from spark.matching_cases import CASES, COLUMNS, REFUSED, THREE, Case, Row
from spark.test_replace_where import orphans
from spark.ways import FEED, WAYS

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("word", pa.string())])


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture(autouse=True)
def session(spark: SparkSession, lake: Lake) -> Iterator[None]:
    spark.conf.set("spark.deltalakedb.catalog", lake.store.dialect.url.display)
    yield
    spark.conf.unset("spark.deltalakedb.catalog")


def made(lake: Lake, folder: Path, rows: list[Row], by: str = "", **properties: str) -> Table:
    """A table whose rows are in two files, or in those of their partitions."""
    table = lake.create_table(
        str(folder),
        location=str(folder),
        schema=SCHEMA,
        partition_by=[by] if by else [],
        properties=properties,
    )
    for some in (rows[::2], rows[1::2]):
        if some:
            table.append(pa.table(dict(zip(SCHEMA.names, zip(*some, strict=True), strict=True))))
    return table


def rows_of(table: Table) -> list[Row]:
    found = table.snapshot().to_arrow().select(SCHEMA.names).to_pylist()
    return ordered([tuple(row.values()) for row in found])


def ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=str)


def write(frame: DataFrame, table: Table, mode: str = "overwrite", **options: str) -> None:
    frame.alias("s").write.format("deltalakedb").mode(mode).options(**options).save(table.name)


def changes(spark: SparkSession, table: Table, version: int) -> list[Any]:
    reader = spark.read.format("deltalakedb").options(readChangeFeed="true")
    found = reader.options(startingVersion=version, endingVersion=version).load(table.name)
    return ordered([tuple(row) for row in found.select("_change_type", *SCHEMA.names).collect()])


@pytest.mark.parametrize("properties", WAYS)
def test_rows_that_match_are_replaced_and_no_others(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    # In the short form each of the two ways has half of them.
    numbers = range(len(CASES)) if len(properties) == 1 else range(bool(properties), len(CASES), 2)
    for number in numbers:
        case = CASES[number]
        by = "part" if number % 4 > 1 else ""
        table = made(lake, tmp_path / str(number), case.before, by, **properties)
        write(spark.createDataFrame(case.new, COLUMNS), table, **case.options)
        assert rows_of(table) == ordered(case.after), case.name
        _check_history(table, case)
        if FEED.items() <= properties.items() and case.new:
            gone = [("delete", *row) for row in case.deleted]
            expected = ordered([*gone, *(("insert", *row) for row in case.new)])
            assert changes(spark, table, table.version) == expected, case.name
        assert orphans(table) == set(), case.name


def _check_history(table: Table, case: Case) -> None:
    info = table.history(1)[0].commit_info
    assert info is not None
    assert info.operation == "WRITE"
    given = {name.lower(): value for name, value in case.options.items()}
    parameters = info.operation_parameters
    assert parameters is not None
    assert parameters["mode"] == "Overwrite"
    if "replaceon" in given:
        assert parameters["replaceOnCond"] == given["replaceon"]
    elif "replaceusing" in given:
        names = dict.fromkeys(name.strip() for name in given["replaceusing"].split(","))
        assert parameters["replaceUsingCols"] == f"({', '.join(names)})"
    metrics = info.operation_metrics
    assert metrics is not None
    assert metrics["numDeletedRows"] == str(len(case.deleted))
    assert int(metrics["numOutputRows"]) - int(metrics["numCopiedRows"]) == len(case.new)


def test_what_is_wrong_is_told_before_anything_is_written(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = made(lake, tmp_path / "t", THREE)
    rows = spark.createDataFrame([(1, "a")], "id long, part string")
    for options, told in REFUSED:
        with pytest.raises((ConfigurationError, InvalidConditionError), match=told):
            write(rows, table, **options)
    with pytest.raises(ConfigurationError, match="rows are appended"):
        write(rows, table, "append", replaceUsing="id")
    with pytest.raises(ConfigurationError, match="targetAlias is set"):
        write(rows, table, targetAlias="t")
    with pytest.raises(SchemaMismatchError, match="extra"):
        write(rows.withColumn("extra", F.lit(1)), table, replaceUsing="id")
    new = rows.write.format("deltalakedb").mode("overwrite").option("replaceUsing", "id")
    with pytest.raises(TableNotFoundError):
        new.option("location", str(tmp_path / "new")).save("is.not.there")
    # The data source has no scan that could match rows.
    spark.conf.set(SWITCH, "false")
    try:
        with pytest.raises(PySparkException, match="replaceUsing and replaceOn do not work here"):
            write(rows, table, replaceUsing="id", catalog=lake.store.dialect.url.display)
    finally:
        spark.conf.unset(SWITCH)
    assert rows_of(table) == THREE
    assert table.version == 2
    assert orphans(table) == set()


def test_columns_can_be_missing_and_can_be_new(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = made(lake, tmp_path / "t", THREE)
    write(spark.createDataFrame([(1, "n")], "ID int, word string"), table, replaceUsing="id")
    assert rows_of(table) == ordered([(1, None, "n"), *THREE[1:]])
    wide = spark.createDataFrame([(2, "b", 2), (8, "b", 3)], "id long, part string, more long")
    write(wide, table, mergeSchema="true", replaceOn="t.id = s.more", targetAlias="t")
    assert rows_of(table) == ordered([(1, None, "n"), (2, "b", None), (8, "b", None)])
    # A column that comes with the rows is null in those that are there, and null equals nothing.
    other = spark.createDataFrame([(5, 7)], "id long, other long")
    write(other, table, mergeSchema="true", replaceUsing="other")
    assert len(rows_of(table)) == 4
    assert table.snapshot().schema.names == ("id", "part", "word", "more", "other")


def test_rows_are_matched_with_those_that_are_written(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """A DataFrame may give other rows each time it is asked."""
    table = made(lake, tmp_path / "t", [(i, "a", "old") for i in range(50)])
    some = spark.range(50).where("rand() < 0.5").selectExpr("id", "'a' AS part", "'new' AS word")
    write(some, table, replaceUsing="id")
    assert sorted(row[0] for row in rows_of(table) if row[0] is not None) == list(range(50))
    # It may also be the table itself.
    mine = spark.read.format("deltalakedb").load(table.name).where("id < 5")
    write(mine.withColumn("word", F.lit("mine")), table, replaceUsing="id")
    assert [row[2] for row in rows_of(table)].count("mine") == 5
    assert len(rows_of(table)) == 50


def test_constraints_conflicts_and_idempotence_hold(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(lake, tmp_path / "t", THREE, **{"delta.constraints.c": "id < 100"})
    new = spark.createDataFrame([(1, "a", "new")], COLUMNS)
    with pytest.raises(ConstraintViolatedError, match="id < 100"):
        write(new.withColumn("id", F.lit(100).cast("long")), table, replaceUsing="word")
    once = {"txnAppId": "job", "txnVersion": "1", "replaceUsing": "id", "userMetadata": "a note"}
    for _ in range(2):
        write(new, table, **once)
    assert rows_of(table) == ordered([(1, "a", "new"), *THREE[1:]])
    info = table.history(1)[0].commit_info
    assert info is not None
    assert info.fields["userMetadata"] == "a note"
    # A row that should have been replaced comes while the write is under way.
    staged_rows = replace._staged_rows

    def meanwhile(edit: RowEdit, adds: list[AddFile]) -> DataFrame:
        rows = pa.table({"id": [2], "part": ["a"], "word": ["late"]})
        lake.table(table.name).append(rows)
        return staged_rows(edit, adds)

    monkeypatch.setattr(replace, "_staged_rows", meanwhile)
    with pytest.raises(ConcurrentAppendError):
        write(new.withColumn("id", F.lit(2).cast("long")), table, replaceUsing="id")
    assert orphans(table) == set()


def test_only_files_that_can_match_are_read(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.create_table(str(tmp_path), location=str(tmp_path), schema=SCHEMA)
    for start in (0, 10, 20):
        ids = list(range(start, start + 10))
        table.append(pa.table({"id": ids, "part": ["a"] * 10, "word": ["w"] * 10}))
    (other,) = table.snapshot().files(where="id = 5")["path"].to_pylist()
    # It could not be read.
    (tmp_path / other).unlink()
    new = spark.createDataFrame([(12, "a", "new"), (25, "a", "new")], COLUMNS)
    write(new, table, replaceUsing="id")
    write(new, table, replaceOn="t.id = s.id AND t.id > 20", targetAlias="t")
    assert other in table.snapshot().files()["path"].to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t.id = 1 AND T.x = 't.y' OR `t`.z", "id = 1 AND x = 't.y' OR z"),
        ("t.t.id > s.t.id", "t.id > s.t.id"),
        ("t > 1 AND f(t . a[0].t)", "t > 1 AND f( a[0].t)"),
        ("'unfinished", "'unfinished"),
    ],
)
def test_an_alias_is_cut_out_and_nothing_else(text: str, expected: str) -> None:
    assert without_alias(text, "t") == expected
