"""Texts that are too long for a CHAR or VARCHAR column are refused, wherever they stand in it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.actions.arrow import DECLARED, schema_to_arrow
from deltalakedb.errors import ConstraintViolatedError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.store import Catalogs

LIST = {"type": "array", "elementType": "string", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}
STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "A.b", "type": "string", "nullable": True, "metadata": {}},
        {"name": "list", "type": LIST, "nullable": True, "metadata": {}},
    ],
}
DEEP = "struct<`a.b`:varchar(2),list:array<char(1)>>"


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def new(lake: Lake, folder: Path, kind: Any, declared: str) -> Table:
    field = {"name": "c", "type": kind, "nullable": True, "metadata": {DECLARED: declared}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    return lake.create_table("t", location=str(folder / "t"), schema=schema)


def rows(table: Table, values: list[Any]) -> pa.Table:
    return pa.table({"c": values}, schema_to_arrow(table.snapshot().schema))


@pytest.mark.parametrize(
    ("kind", "declared", "good", "bad"),
    [
        ("string", "varchar(3)", ["", None, "abc", "äöü"], ["abcd"]),
        ("string", "char(3)", ["a", None], ["a", "four"]),
        (LIST, "array<varchar(2)>", [["ab", None], None, []], [[], ["ab", "abc"]]),
        (MAP, "map<varchar(1),string>", [[("a", "long")], None], [[("ab", "x")]]),
        (MAP, "map<string,char(1)>", [[("long", "a"), ("b", None)]], [None, [("a", "ab")]]),
        (STRUCT, DEEP, [{"A.b": "ab", "list": ["a"]}, None], [{"A.b": "abc", "list": None}]),
        (STRUCT, DEEP, [{"A.b": None, "list": [None]}], [{"A.b": "a", "list": ["a", "ab"]}]),
    ],
)
def test_texts_are_as_long_as_declared(  # noqa: PLR0917 - a table of cases
    lake: Lake, tmp_path: Path, kind: Any, declared: str, good: list[Any], bad: list[Any]
) -> None:
    table = new(lake, tmp_path, kind, declared)
    table.append(rows(table, good))
    with pytest.raises(ConstraintViolatedError, match=r"too long for column 'c") as refused:
        table.append(rows(table, bad))
    assert re.search(r"at most, and one of them has \d", str(refused.value))
    assert table.snapshot().version == 1
    assert table.snapshot().to_arrow().num_rows == len(good)
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1


def test_what_a_null_hides_and_a_slice_leaves_out_is_not_measured(
    lake: Lake, tmp_path: Path
) -> None:
    table = new(lake, tmp_path, MAP, "map<string,varchar(2)>")
    table.append(rows(table, [[("a", "long")], [("b", "ok")], None]).slice(1))
    assert table.snapshot().to_arrow().num_rows == 2


def test_a_note_of_another_type_limits_nothing(lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path, "long", "varchar(2)")
    table.append([{"c": 12345}])
    assert table.snapshot().to_arrow()["c"].to_pylist() == [12345]


def test_fields_that_are_gone_limit_nothing(lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path, STRUCT, "struct<gone:char(1),`a.b`:varchar(2),list:int>")
    table.append(rows(table, [{"A.b": "ab", "list": ["long"]}]))
    with pytest.raises(ConstraintViolatedError, match=r"'c\.A\.b'"):
        table.append(rows(table, [{"A.b": "abc", "list": None}]))


def test_a_note_that_is_no_type_is_not_passed_over(lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path, "string", "varchar(((")
    with pytest.raises(UnsupportedFeatureError, match=r"'varchar\(\(\('.*'c'"):
        table.append([{"c": "x"}])
