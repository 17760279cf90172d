"""Nulls inside arrays, maps and structs: whatever a schema promises, they are read as nulls."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

import deltalakedb
from deltalakedb.actions.datatypes import schema_to_json
from deltalakedb.errors import ConstraintViolatedError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

MAPPED = {"property.delta.columnMapping.mode": "name"}
PROMISED = (
    "SELECT 1L AS id, array(1, 2) AS a, split('x,y', ',') AS words, map('k', 1) AS m, "
    "named_struct('x', 1, 'deep', array(named_struct('y', 'why'))) AS s"
)
WITH_NULLS = (
    "SELECT 2L AS id, array(1, cast(null AS int)) AS a, array('x', null) AS words, "
    "map('k', cast(null AS int)) AS m, named_struct('x', cast(null AS int), 'deep', "
    "array(named_struct('y', cast(null AS string)), null)) AS s"
)
FIRST = {
    "id": 1,
    "a": [1, 2],
    "words": ["x", "y"],
    "m": {"k": 1},
    "s": {"x": 1, "deep": [{"y": "why"}]},
}
SECOND = {
    "id": 2,
    "a": [1, None],
    "words": ["x", None],
    "m": {"k": None},
    "s": {"x": None, "deep": [{"y": None}, None]},
}


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


def plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def ordered(frame: DataFrame) -> list[Any]:
    return sorted((plain(row) for row in frame.collect()), key=lambda row: row["id"])


def rows(table: DeltaTable) -> list[Any]:
    return ordered(table.toDF())


def allows_nulls(kind: DataType) -> bool:
    """Whether a type of Spark allows nulls everywhere."""
    if isinstance(kind, StructType):
        return all(field.nullable and allows_nulls(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return kind.containsNull and allows_nulls(kind.elementType)
    if isinstance(kind, MapType):
        return kind.valueContainsNull and allows_nulls(kind.valueType)
    return True


def saved(spark: SparkSession, lake: Lake, url: str, folder: Path, **options: str) -> DeltaTable:
    """A new table of rows that promise to have no nulls inside."""
    name = f"{folder.name}_{len(lake.tables())}"
    writer = spark.sql(PROMISED).write.format("deltalakedb").option("catalog", url)
    writer.options(location=str(folder / name), **options).mode("append").save(name)
    return DeltaTable.forName(spark, name, catalog=lake)


@pytest.mark.parametrize(
    ("native", "options"),
    [
        pytest.param("true", MAPPED, id="native-mapped"),
        pytest.param("false", {}, id="source-plain"),
        pytest.param("true", {}, id="native-plain", marks=pytest.mark.soak),
        pytest.param("false", MAPPED, id="source-mapped", marks=pytest.mark.soak),
    ],
)
def test_a_table_made_of_rows_takes_nulls_inside(
    spark: SparkSession, url: str, tmp_path: Path, options: dict[str, str], native: str
) -> None:
    with deltalakedb.connect(url) as lake, as_native(spark, native):
        table = saved(spark, lake, url, tmp_path, **options)
        name = table.detail().collect()[0].name
        more = spark.sql(WITH_NULLS).write.format("deltalakedb").option("catalog", url)
        more.mode("append").save(name)
        found = spark.read.format("deltalakedb").option("catalog", url).load(name)
        assert ordered(found) == [FIRST, SECOND]
        assert allows_nulls(declared(lake, name))
        assert rows(table) == [FIRST, SECOND]
        assert allows_nulls(table.toDF().schema)
        # What is read is written back as it was.
        table.update("id = 2", {"id": "20"})
        table.delete("id = 1")
        assert rows(table) == [{**SECOND, "id": 20}]


@contextmanager
def as_native(spark: SparkSession, native: str) -> Iterator[None]:
    spark.conf.set("spark.deltalakedb.nativeFormat", native)
    try:
        yield
    finally:
        spark.conf.unset("spark.deltalakedb.nativeFormat")


def declared(lake: Lake, name: str) -> StructType:
    return StructType.fromJson(json.loads(schema_to_json(lake.table(name).snapshot().schema)))


def test_other_ways_to_make_a_table_of_rows(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.create_table_as("made_as", spark.sql(PROMISED), location=str(tmp_path / "as"))
    assert allows_nulls(declared(lake, "made_as"))
    table.overwrite(spark.sql(f"{PROMISED}, array(3) AS more"), overwrite_schema=True)
    assert "more" in declared(lake, "made_as").names
    assert allows_nulls(declared(lake, "made_as"))
    folder = tmp_path / "parquet"
    folder.mkdir()
    for number, optional in enumerate((False, True)):
        field = pa.field("a", pa.list_(pa.field("element", pa.int32(), optional)), optional)
        values = [[1, None], None] if optional else [[1, 2]]
        rows_of = pa.table([pa.array(values, field.type)], schema=pa.schema([field]))
        pq.write_table(rows_of, folder / f"{number}.parquet")
    lake.convert_table(str(folder), "converted")
    assert allows_nulls(declared(lake, "converted"))
    found = DeltaTable.forName(spark, "converted", catalog=lake).toDF().collect()
    assert sorted(str(row.a) for row in found) == ["None", "[1, 2]", "[1, None]"]


def test_a_merge_takes_nulls_inside(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    table = saved(spark, lake, url, tmp_path)
    for kind in ("updated", "inserted"):
        source = spark.sql(WITH_NULLS).withColumn("id", F.lit(1 if kind == "updated" else 2))
        (
            table.alias("t")
            .merge(source.alias("s"), "t.id = s.id")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )
    assert rows(table) == [{**SECOND, "id": 1}, SECOND]


STRICT = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {
                "name": "a",
                "type": {"type": "array", "elementType": "integer", "containsNull": False},
                "nullable": True,
                "metadata": {},
            },
            {
                "name": "m",
                "type": {
                    "type": "map",
                    "keyType": "string",
                    "valueType": {
                        "type": "struct",
                        "fields": [
                            {"name": "x", "type": "string", "nullable": False, "metadata": {}}
                        ],
                    },
                    "valueContainsNull": False,
                },
                "nullable": True,
                "metadata": {},
            },
            {
                "name": "s",
                "type": {
                    "type": "struct",
                    "fields": [{"name": "y", "type": "long", "nullable": False, "metadata": {}}],
                },
                "nullable": True,
                "metadata": {},
            },
        ],
    }
)
GOOD: dict[str, Any] = {"id": 1, "a": [1], "m": {"k": {"x": "x"}}, "s": {"y": 1}}
BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "a.element": ("array(1, null)", {"a": [1, None]}),
    "m.value": ("map('k', null)", {"m": {"k": None}}),
    "m.value.x": ("map('k', named_struct('x', null))", {"m": {"k": {"x": None}}}),
    "s.y": ("named_struct('y', null)", {"s": {"y": None}}),
}


@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.soak), "name"])
def test_what_a_table_promises_is_kept(
    spark: SparkSession, lake: Lake, tmp_path: Path, mode: str
) -> None:
    """By Spark's writer, by ours, and by changes of rows."""
    table = lake.create_table(
        f"strict_{mode}",
        location=str(tmp_path / "t"),
        schema=STRICT,
        properties={"delta.columnMapping.mode": mode},
    )
    table.append(spark.createDataFrame([GOOD], STRICT))
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    for column, (expression, wrong) in BROKEN.items():
        broken = {**GOOD, **wrong}
        told = rf"{column}' of table"
        with pytest.raises(ConstraintViolatedError, match=told):
            table.append(spark.createDataFrame([broken], declared_loosely()))
        with pytest.raises(ConstraintViolatedError, match=told):
            table.append(pa.Table.from_pylist([broken], schema=loosely_in_arrow()))
        with pytest.raises(ConstraintViolatedError, match=told):
            target.update("id = 1", {column.partition(".")[0]: expression})
    assert rows(target) == [GOOD]
    # A null of the whole column is another matter, and so are good values.
    target.update("id = 1", {"a": "null", "m": "null", "s": "null"})
    table.append(spark.createDataFrame([{**GOOD, "id": 2}], declared_loosely()))
    assert rows(target) == [{"id": 1, "a": None, "m": None, "s": None}, {**GOOD, "id": 2}]


def declared_loosely() -> StructType:
    found = StructType.fromDDL(
        "id long, a array<int>, m map<string, struct<x: string>>, s struct<y: long>"
    )
    assert isinstance(found, StructType)
    return found


def loosely_in_arrow() -> pa.Schema:
    return pa.schema(
        {
            "id": pa.int64(),
            "a": pa.list_(pa.int32()),
            "m": pa.map_(pa.string(), pa.struct({"x": pa.string()})),
            "s": pa.struct({"y": pa.int64()}),
        }
    )


def test_a_promise_that_another_writer_broke_is_not_believed(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    table = lake.create_table(
        "foreign",
        location=str(tmp_path / "t"),
        schema=STRICT,
        properties={"delta.enableChangeDataFeed": "true"},
    )
    (tmp_path / "t").mkdir(exist_ok=True)
    broken = [
        {**GOOD, **wrong, "id": number}
        for number, (_, wrong) in enumerate(BROKEN.values(), start=1)
    ]
    for row in broken:
        path = tmp_path / "t" / f"foreign-{row['id']}.parquet"
        pq.write_table(pa.Table.from_pylist([row], schema=loosely_in_arrow()), path)
        add = {
            "path": path.name,
            "partitionValues": {},
            "size": path.stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
        }
        table.commit([{"add": add}], operation="WRITE")
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    assert rows(target) == broken
    reader = spark.read.format("deltalakedb").option("catalog", url)
    with as_native(spark, "false"):
        assert ordered(reader.load(table.name)) == broken
    feed = reader.option("readChangeFeed", "true").option("startingVersion", 1)
    assert ordered(feed.load(table.name).select(*GOOD)) == broken
    # Rows that only move are not looked at.
    for way in ("executeCompaction", "executeZOrderBy"):
        before = table.snapshot().version
        getattr(target.optimize(), way)(*(["id"] if way == "executeZOrderBy" else []))
        assert table.snapshot().version == before + 1
        assert rows(target) == broken
    target.restoreToVersion(len(broken))
    # Written back it would be taken for a value: that is refused. Deleting it is not.
    for row, column in zip(broken, BROKEN, strict=True):
        with pytest.raises(ConstraintViolatedError, match=rf"{column}' of table"):
            target.update(f"id = {row['id']}", {"id": "20"})
    table.append(spark.createDataFrame([{**GOOD, "id": 7}], STRICT))
    target.delete("id < 7")
    assert rows(target) == [{**GOOD, "id": 7}]
