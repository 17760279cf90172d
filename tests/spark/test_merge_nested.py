"""MERGE and structs: fields go by their names, and new ones come with schema evolution."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import StructType

import deltalakedb
from deltalakedb.errors import InvalidConditionError, SchemaMismatchError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def target(
    spark: SparkSession, lake: Lake, name: str, folder: Path, **properties: str
) -> DeltaTable:
    frame = spark.sql(
        "SELECT id, named_struct('a', id, 'b', concat('b', id)) AS s, "
        "array(named_struct('x', id)) AS many FROM RANGE(1, 4)"
    )
    made = lake.create_table(
        name,
        location=str(folder / name),
        schema=StructType.fromDDL(COLUMNS),
        properties=properties,
    )
    made.append(frame)
    return DeltaTable.forName(spark, name, catalog=lake)


COLUMNS = "id long, s struct<a: long, b: string>, many array<struct<x: long>>"


def plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def seen(frame: DataFrame) -> list[Any]:
    return sorted((plain(row) for row in frame.collect()), key=lambda row: row["id"])


@pytest.mark.parametrize("mode", ["none", "name"])
def test_new_fields_come_with_evolution(
    spark: SparkSession, lake: Lake, tmp_path: Path, mode: str
) -> None:
    properties = {"delta.columnMapping.mode": mode}
    table = target(spark, lake, f"evolved_{mode}", tmp_path, **properties)
    source = spark.sql(
        "SELECT id, named_struct('c', 'new', 'a', id * 10) AS s, "
        "array(named_struct('y', 'why', 'x', id), null) AS many, 1 AS more FROM RANGE(3, 5)"
    )
    (
        table.alias("t")
        .merge(source.alias("s"), "t.id = s.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .withSchemaEvolution()
        .execute()
    )
    old = {"c": None}
    merged = [
        {
            "id": n,
            "s": {"a": n * 10, "b": None, "c": "new"},
            "many": [{"x": n, "y": "why"}, None],
            "more": 1,
        }
        for n in (3, 4)
    ]
    kept = [
        {
            "id": n,
            "s": {"a": n, "b": f"b{n}", **old},
            "many": [{"x": n, "y": None}],
            "more": None,
        }
        for n in (1, 2)
    ]
    assert seen(table.toDF()) == [*kept, *merged]
    snapshot = lake.table(f"evolved_{mode}").snapshot()
    found = sorted(snapshot.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert found == [*kept, *merged]
    assert snapshot.version == 2


def test_fields_go_by_their_names(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = target(spark, lake, "named", tmp_path)
    source = spark.sql("SELECT 2L AS id, named_struct('b', 'two', 'a', 22L) AS s, array() AS many")
    (
        table.alias("t")
        .merge(source.alias("s"), "t.id = s.id")
        .whenMatchedUpdate(set={"s": "s.s"})
        .execute()
    )
    table.update("id = 3", {"s": "named_struct('b', 'three', 'a', 33)"})
    assert [row["s"] for row in seen(table.toDF())] == [
        {"a": 1, "b": "b1"},
        {"a": 22, "b": "two"},
        {"a": 33, "b": "three"},
    ]
    extra = spark.sql("SELECT 2L AS id, named_struct('a', 1L, 'z', 1) AS s, array() AS many")
    with pytest.raises(SchemaMismatchError, match=r"no field s\.z"):
        table.alias("t").merge(extra.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()
    assert lake.table("named").snapshot().version == 3


def evolved(table: DeltaTable, source: DataFrame, **clauses: dict[str, str]) -> DeltaTable:
    merge = table.alias("t").merge(source.alias("s"), "t.id = s.id").withSchemaEvolution()
    for name, given in clauses.items():
        kind = "values" if name == "whenNotMatchedInsert" else "set"
        merge = getattr(merge, name)(**{kind: given})
    merge.execute()
    return table


def test_only_what_is_set_is_added(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """A field that is set is no column of that name, and a column of the source is not a field."""
    table = target(spark, lake, "set", tmp_path)
    source = spark.sql(
        "SELECT 2L AS id, 'x' AS b, 5 AS other, "
        "named_struct('a', 9L, 'c', 'sea', 'd', 'dee') AS s, 'new' AS `no.field`"
    )
    evolved(table, source, whenMatchedUpdate={"t.s.b": "s.b"})
    assert lake.table("set").snapshot().schema.names == ("id", "s", "many")
    assert seen(table.toDF())[1]["s"] == {"a": 2, "b": "x"}
    # The source has s.c, and not only a column that could be put there.
    evolved(table, source, whenMatchedUpdate={"s.c": "s.s.c"})
    assert [row["s"] for row in seen(table.toDF())] == [
        {"a": 1, "b": "b1", "c": None},
        {"a": 2, "b": "x", "c": "sea"},
        {"a": 3, "b": "b3", "c": None},
    ]
    with pytest.raises(InvalidConditionError, match=r"no column 's\.other'"):
        evolved(table, source, whenMatchedUpdate={"s.other": "s.other"})
    evolved(table, source, whenMatchedUpdate={"t.`no.field`": "s.`no.field`"})
    assert lake.table("set").snapshot().schema.names == ("id", "s", "many", "no.field")
    # Rows that nothing in the source matches take nothing from it.
    with pytest.raises(InvalidConditionError, match="no column 'other'"):
        evolved(table, source, whenNotMatchedBySourceUpdate={"other": "1"})
    more = source.withColumn("id", F.lit(7))
    evolved(table, more, whenNotMatchedInsert={"id": "s.id", "OTHER": "s.other"})
    (row,) = table.toDF(where="id = 7").collect()
    assert (row.other, row["no.field"]) == (5, None)


def test_the_alias_may_be_the_name_of_a_column(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = target(spark, lake, "same_name", tmp_path)
    source = spark.sql("SELECT 2L AS id, named_struct('a', 5L, 'z', 1) AS s, 7 AS plus")
    merge = table.alias("s").merge(source.alias("u"), "s.id = u.id").withSchemaEvolution()
    merge.whenMatchedUpdate(set={"s.plus": "u.plus", "s.a": "u.s.a", "s.s.z": "u.s.z"}).execute()
    (row,) = (row for row in seen(table.toDF()) if row["id"] == 2)
    assert row["s"] == {"a": 5, "b": "b2", "z": 1}
    assert row["plus"] == 7
