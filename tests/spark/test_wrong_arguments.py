"""Wrong arguments of Spark's calls are refused at the call, as code written for Delta expects.

What is missing or there already is an error of PySpark's analysis, too.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructField

import deltalakedb
from deltalakedb.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidConditionError,
    TableExistsError,
    TableExportedError,
    TableNotFoundError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable, register
from deltalakedb.spark.api.errors import SparkTableNotFoundError
from deltalakedb.spark.api.merge_builder import DeltaMergeBuilder
from deltalakedb.spark.api.optimize_builder import DeltaOptimizeBuilder
from deltalakedb.spark.api.table_builder import DeltaTableBuilder

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

THING = object()
TEXT = [None, 1, "", [], {}, THING]
OPTIONAL_TEXT = [1, [], {}, THING]
FLAG = [None, 1, 10, "x", [], THING]
CONDITION = [1, "", "id =", [], {}, THING]
VALUES = [None, 1, "x", [], {}, {1: ""}, {"": "1"}, {"id": 1}, {"id": None}, {"id": ""}, THING]
COLUMNS = [None, 1, "", [1], [None], [[1]], {}, THING]
WHOLE = [None, "x", "", -1, 1.5, True, [], THING]
TIME = [None, 1, "", "x", [], THING]
PROPERTIES = [1, "x", [], {1: "x"}, {"k": None}, {"k": []}, {"": "x"}, THING]
SESSION = [1, "x", [], THING]
CATALOG = [1, "", [], {}, THING]


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, catalogs: Catalogs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("wrong")
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        lake.create_table_as("t", [{"id": 1}], location=str(folder / "t"))
        lake.mirror.drain()
        yield World(spark, lake, folder)


class World:
    """A table, and what calls are made on."""

    def __init__(self, spark: SparkSession, lake: Lake, folder: Path) -> None:
        self.spark = spark
        self.lake = lake
        self.folder = folder
        self.frame: DataFrame = spark.createDataFrame([(1,)], "id bigint")

    @property
    def table(self) -> DeltaTable:
        return DeltaTable.forName(self.spark, "t", self.lake)

    @property
    def builder(self) -> DeltaTableBuilder:
        return DeltaTable.create(self.spark, catalog=self.lake)

    @property
    def merge(self) -> DeltaMergeBuilder:
        return self.table.alias("t").merge(self.frame.alias("s"), "t.id = s.id")

    @property
    def optimize(self) -> DeltaOptimizeBuilder:
        return self.table.optimize()

    @property
    def deltalakedb(self) -> type:
        return type("deltalakedb.spark", (), {"register": staticmethod(register)})

    def state(self) -> object:
        files = sorted(str(path) for path in self.folder.rglob("*"))
        return [(table.name, table.refresh()) for table in self.lake.tables()], files


CLONE = {"target": TEXT, "isShallow": FLAG, "replace": FLAG, "properties": PROPERTIES}
CLONED = {"target": "/nowhere/n", "isShallow": True}
NEW = {"sparkSession": SESSION, "catalog": CATALOG}
# Of each call: arguments that are right, and wrong values of all its arguments.
CALLS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "table.forName": (
        {"sparkSession": "{spark}", "tableOrViewName": "t"},
        {
            "sparkSession": [None, *SESSION],
            "tableOrViewName": TEXT,
            "catalog": CATALOG,
            "storage_options": [1, "x", [], {1: "x"}, THING],
        },
    ),
    "table.forPath": (
        {"sparkSession": "{spark}", "path": "/nowhere"},
        {
            "sparkSession": [None, *SESSION],
            "path": TEXT,
            "hadoopConf": [1, "x", [], THING],
            "catalog": CATALOG,
            "storage_options": [1, "x", [], {1: "x"}, THING],
        },
    ),
    "table.isDeltaTable": (
        {"sparkSession": "{spark}", "identifier": "t"},
        {"sparkSession": [None, *SESSION], "identifier": TEXT, "catalog": CATALOG},
    ),
    "table.create": ({}, NEW),
    "table.createIfNotExists": ({}, NEW),
    "table.replace": ({}, NEW),
    "table.createOrReplace": ({}, NEW),
    "table.convertToDelta": (
        {"sparkSession": "{spark}", "identifier": "parquet.`/nowhere`", "catalog": "{lake}"},
        {
            "sparkSession": [None, *SESSION],
            "identifier": [*TEXT, "orders"],
            "partitionSchema": [1, "", [], {}, THING],
            "catalog": CATALOG,
            "name": [1, "", [], THING],
        },
    ),
    "table.toDF": (
        {},
        {
            "version": ["x", "", 1.5, True, [], THING],
            "timestamp": TIME[1:],
            "where": [1, "", "id =", [], THING],
            "metadata": FLAG,
        },
    ),
    "table.alias": ({}, {"aliasName": TEXT}),
    "table.history": ({}, {"limit": WHOLE[1:]}),
    "table.delete": ({}, {"condition": CONDITION}),
    "table.update": ({"set": {"id": "1"}}, {"condition": CONDITION, "set": VALUES}),
    "table.merge": (
        {"source": "{frame}", "condition": "true"},
        {"source": [None, 1, "t", [], THING], "condition": [None, *CONDITION]},
    ),
    "table.vacuum": ({}, {"retentionHours": ["x", "", True, float("nan"), -1, [], THING]}),
    "table.generate": ({}, {"mode": [*TEXT, "manifest"]}),
    "table.restoreToVersion": ({}, {"version": WHOLE}),
    "table.restoreToTimestamp": ({}, {"timestamp": TIME}),
    "table.clone": (CLONED, {**CLONE, "name": [1, "", [], THING]}),
    "table.cloneAtVersion": (
        {**CLONED, "version": 0},
        {**CLONE, "version": WHOLE, "name": [1, "", [], THING]},
    ),
    "table.cloneAtTimestamp": (
        {**CLONED, "timestamp": "{then}"},
        {**CLONE, "timestamp": TIME, "name": [1, "", [], THING]},
    ),
    "table.addFeatureSupport": ({}, {"featureName": TEXT}),
    "table.dropFeatureSupport": (
        {"featureName": "appendOnly"},
        {"featureName": TEXT, "truncateHistory": FLAG[1:]},
    ),
    "table.upgradeTableProtocol": (
        {"readerVersion": 1, "writerVersion": 3},
        {"readerVersion": [*WHOLE, 0, 4, 9], "writerVersion": [*WHOLE, 0, 8, 99]},
    ),
    "builder.tableName": ({}, {"identifier": TEXT}),
    "builder.location": ({}, {"location": TEXT}),
    "builder.comment": ({}, {"comment": [None, *OPTIONAL_TEXT]}),
    "builder.addColumn": (
        {"colName": "c", "dataType": "int"},
        {
            "colName": TEXT,
            "dataType": [*TEXT, "1"],
            "nullable": FLAG,
            "generatedAlwaysAs": [1, "", [], THING],
            "generatedByDefaultAs": [1, "", "x", [], THING],
            "comment": OPTIONAL_TEXT,
        },
    ),
    "builder.addColumns": (
        {},
        {"cols": [None, 1, "x", [1], [StructField("c", IntegerType()), 1], {"c": 1}, THING]},
    ),
    "builder.partitionedBy": ({}, {"*cols": COLUMNS}),
    "builder.clusterBy": ({}, {"*cols": COLUMNS}),
    "builder.property": (
        {"key": "k", "value": "v"},
        {"key": TEXT, "value": [None, 1, True, [], THING]},
    ),
    "merge.whenMatchedUpdate": (
        {"set": {"id": "s.id"}},
        {"condition": CONDITION, "set": VALUES},
    ),
    "merge.whenMatchedUpdateAll": ({}, {"condition": CONDITION}),
    "merge.whenMatchedDelete": ({}, {"condition": CONDITION}),
    "merge.whenNotMatchedInsert": (
        {"values": {"id": "s.id"}},
        {"condition": CONDITION, "values": VALUES},
    ),
    "merge.whenNotMatchedInsertAll": ({}, {"condition": CONDITION}),
    "merge.whenNotMatchedBySourceUpdate": (
        {"set": {"id": "1"}},
        {"condition": CONDITION, "set": VALUES},
    ),
    "merge.whenNotMatchedBySourceDelete": ({}, {"condition": CONDITION}),
    "optimize.where": ({}, {"partitionFilter": TEXT}),
    "optimize.executeZOrderBy": ({}, {"*cols": COLUMNS}),
    "deltalakedb.register": (
        {"spark": "{spark}", "catalog": "{lake}", "names": ["t"]},
        {
            "spark": [None, *SESSION],
            "catalog": CATALOG,
            "names": [1, [1], [None], [""], {"x": 1}, THING],
        },
    ),
}
CLASSES: dict[str, type] = {
    "table": DeltaTable,
    "builder": DeltaTableBuilder,
    "merge": DeltaMergeBuilder,
    "optimize": DeltaOptimizeBuilder,
}


@pytest.mark.parametrize("target", CLASSES)
def test_every_argument_of_every_method_is_tried(target: str) -> None:
    for name, method in inspect.getmembers(CLASSES[target], callable):
        if name.startswith("_"):
            continue
        names = {
            f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name
            for one in inspect.signature(method).parameters.values()
            if one.name != "self"
        }
        if names:
            assert set(CALLS[f"{target}.{name}"][1]) == names, name


@pytest.mark.parametrize("call", CALLS)
def test_wrong_arguments_are_refused_at_the_call(world: World, call: str) -> None:
    right, wrong = CALLS[call]
    target, _, method = call.partition(".")
    filled = {
        "{spark}": world.spark,
        "{lake}": world.lake,
        "{frame}": world.frame,
        "{then}": world.lake.table("t").snapshot().timestamp,
    }
    before = world.state()
    complaints = []
    for name, values in wrong.items():
        for value in values:
            given = {key: _filled(one, filled) for key, one in right.items()}
            positional = (value,) if name.startswith("*") else ()
            if not positional:
                given[name] = value
            try:
                getattr(getattr(world, target), method)(*positional, **given)
                complaints.append(f"{name}={value!r} was accepted")
            except (InvalidArgumentError, InvalidConditionError, ParseException):
                pass
            except Exception as error:  # noqa: BLE001 - that is what is tested
                complaints.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    assert not complaints
    assert world.state() == before


def _filled(value: Any, by: dict[str, Any]) -> Any:
    return by.get(value, value) if isinstance(value, str) else value


# --- what Delta's users catch ----------------------------------------------------------------


def _create(world: World) -> object:
    return world.builder.tableName("t").location(str(world.folder / "n")).execute()


def _replace(world: World) -> object:
    replaced = DeltaTable.replace(world.spark, catalog=world.lake).tableName("nothing")
    return replaced.addColumn("id", "bigint").execute()


def _read(world: World) -> object:
    url = world.lake.store.dialect.url
    reader = world.spark.read.format("deltalakedb").option("catalog", f"sqlite:///{url.target}")
    return reader.load("nothing")


def _write(world: World) -> object:
    url = world.lake.store.dialect.url
    writer = world.frame.write.format("deltalakedb").option("catalog", f"sqlite:///{url.target}")
    writer.save("t")
    return None


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (TableNotFoundError, lambda w: DeltaTable.forName(w.spark, "nothing", w.lake)),
        (TableNotFoundError, lambda w: DeltaTable.forPath(w.spark, "/nowhere", catalog=w.lake)),
        (TableNotFoundError, _replace),
        (TableNotFoundError, lambda w: register(w.spark, w.lake, ["nothing"])),
        (TableNotFoundError, _read),
        (TableExistsError, _create),
        (TableExistsError, _write),
        (TableExistsError, lambda w: w.table.clone(str(w.folder / "n"), True, name="t")),
        (VersionNotFoundError, lambda w: w.table.toDF(version=9)),
        (VersionNotFoundError, lambda w: w.table.toDF(timestamp="2001-01-01")),
        (VersionNotFoundError, lambda w: w.table.restoreToVersion(9)),
    ],
)
def test_missing_and_existing_tables_are_errors_of_spark_too(
    world: World, kind: type[Exception], what: Callable[[World], object]
) -> None:
    with pytest.raises(AnalysisException) as caught:
        what(world)
    assert isinstance(caught.value, kind)


def test_a_table_that_has_left_is_an_error_of_spark_too(world: World) -> None:
    world.lake.create_table_as("left", [{"id": 1}], location=str(world.folder / "left"))
    world.lake.export("left")
    with pytest.raises(AnalysisException) as caught:
        DeltaTable.forName(world.spark, "left", world.lake)
    assert isinstance(caught.value, TableExportedError)


def test_a_type_that_is_no_sql_is_an_error_of_the_parser(world: World) -> None:
    with pytest.raises(ParseException) as caught:
        world.builder.addColumn("a", "1")
    assert isinstance(caught.value, ConfigurationError)


def test_an_error_of_spark_has_the_methods_of_one() -> None:
    error = SparkTableNotFoundError("There is no table 'x'", fix="See lake.tables()")
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - made here
        assert str(one) == "There is no table 'x'. See lake.tables()."
        assert one.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
        assert one.what in one.getMessage()
        assert one.getMessageParameters() is None
        assert one.getSqlState() is None
        assert one.getQueryContext() == []
