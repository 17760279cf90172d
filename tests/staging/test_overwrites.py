"""Overwrites: what they may be combined with, columns and fields that they add, rows that stay."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.errors import ConfigurationError, SchemaMismatchError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table


@pytest.fixture
def engine() -> Engine:
    """What is staged is the same, whichever engine keeps the log."""
    return "sqlite"


def make(lake: Lake, folder: Path, columns: dict[str, pa.DataType], **options: Any) -> Table:
    return lake.create_table(
        "t", location=str(folder / "t"), schema=pa.schema(list(columns.items())), **options
    )


def ids(table: Table) -> list[Any]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def test_another_schema_needs_all_rows_replaced(lake: Lake, tmp_path: Path) -> None:
    table = make(lake, tmp_path, {"id": pa.int64(), "part": pa.string()}, partition_by=["part"])
    table.append(pa.table({"id": [1, 2], "part": ["a", "b"]}))
    other = pa.table({"id": ["x"], "part": ["a"]})
    with pytest.raises(ConfigurationError, match="dynamic overwrite of partitions"):
        table.overwrite(other, overwrite_schema=True, dynamic=True)
    assert ids(table) == [1, 2]
    table.overwrite(other, overwrite_schema=True)
    assert ids(table) == ["x"]
    # Without partitions a dynamic overwrite is one of all rows.
    plain = lake.create_table(
        "plain", location=str(tmp_path / "plain"), schema=pa.schema([("id", pa.int64())])
    )
    plain.append(pa.table({"id": [1]}))
    plain.overwrite(pa.table({"id": ["y"]}), overwrite_schema=True, dynamic=True)
    assert ids(plain) == ["y"]


# --- columns that come --------------------------------------------------------------------


def nested(depth: str) -> pa.DataType:
    inner = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    return {"struct": inner, "list": pa.list_(inner), "map": pa.map_(pa.string(), inner)}[depth]


@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("depth", ["struct", "list", "map"])
def test_fields_inside_of_columns_are_merged(
    lake: Lake, tmp_path: Path, depth: str, mode: str
) -> None:
    narrow = pa.struct([("a", pa.int64())])
    kinds = {"struct": narrow, "list": pa.list_(narrow), "map": pa.map_(pa.string(), narrow)}
    table = make(
        lake,
        tmp_path,
        {"id": pa.int64(), "s": kinds[depth]},
        properties={"delta.columnMapping.mode": mode},
    )
    values = {"struct": {"a": 1}, "list": [{"a": 1}], "map": [("k", {"a": 1})]}
    wide = {
        "struct": {"a": 2, "b": 3},
        "list": [{"a": 2, "b": 3}],
        "map": [("k", {"a": 2, "b": 3})],
    }
    table.append(pa.table({"id": [1], "s": pa.array([values[depth]], kinds[depth])}))
    more = pa.table({"id": [2], "S": pa.array([wide[depth]], nested(depth))})
    with pytest.raises(SchemaMismatchError, match="merge_schema=True"):
        table.append(more)
    table.append(more, merge_schema=True)
    rows = {row["id"]: row["s"] for row in table.snapshot().to_arrow().to_pylist()}
    assert rows[2] == wide[depth]
    assert str(rows[1]).replace("'b': None", "").count("None") == 0
    assert "'b': None" in str(rows[1])
    # Rows that come later may lack the new field, whatever the first ones had.
    table.append(pa.table({"id": [3], "s": pa.array([values[depth]], kinds[depth])}))
    table.overwrite(
        pa.table({"id": [4], "s": pa.array([wide[depth]], nested(depth))}), merge_schema=True
    )
    assert table.snapshot().to_arrow()["s"].to_pylist() == [wide[depth]]


def test_columns_whose_types_only_fit_do_not_stand_in_the_way(lake: Lake, tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64())])
    table = make(lake, tmp_path, {"id": pa.int64(), "s": kind})
    odd = pa.array([{"a": 5}], pa.struct([("a", pa.uint64())]))
    table.append(pa.table({"id": [1], "s": odd, "new": [7]}), merge_schema=True)
    assert table.snapshot().to_arrow().to_pylist() == [{"id": 1, "s": {"a": 5}, "new": 7}]


# --- rows for a condition -----------------------------------------------------------------


def test_a_condition_may_name_a_column_that_the_rows_bring(lake: Lake, tmp_path: Path) -> None:
    table = make(lake, tmp_path, {"id": pa.int64()})
    table.append(pa.table({"id": [1, 2]}))
    new = pa.table({"id": [3], "kind": ["x"]})
    table.overwrite(new, where="kind = 'x'", merge_schema=True)
    assert ids(table) == [1, 2, 3]
    table.overwrite(new, where="kind IS NULL OR kind = 'x'")
    assert ids(table) == [3]


def test_rows_that_stay_keep_what_is_unknown_for_the_condition(lake: Lake, tmp_path: Path) -> None:
    table = make(lake, tmp_path, {"id": pa.int64(), "n": pa.int64()})
    table.append(pa.table({"id": [1, 2, 3], "n": [1, None, 3]}))
    table.overwrite(pa.table({"id": [4], "n": [9]}), where="n > 1")
    assert ids(table) == [1, 2, 4]


def test_rows_that_are_tracked_are_not_moved(lake: Lake, tmp_path: Path) -> None:
    table = make(lake, tmp_path, {"id": pa.int64()}, properties={"delta.enableRowTracking": "true"})
    table.append(pa.table({"id": [1, 2]}))
    before = sorted(tmp_path.rglob("*.parquet"))
    with pytest.raises(UnsupportedFeatureError, match="lose their ids"):
        table.overwrite(pa.table({"id": [1]}), where="id = 1")
    assert sorted(tmp_path.rglob("*.parquet")) == before
    # A file that goes as a whole moves nothing.
    table.overwrite(pa.table({"id": [2]}), where="id > 0")
    assert ids(table) == [2]


@pytest.mark.parametrize("partition_by", [[], ["part"]])
@pytest.mark.parametrize(
    ("where", "left"),
    [("true", [7]), ("1 = 1", [7]), ("id = 1 OR true", [7])],
)
def test_a_condition_that_always_holds_replaces_everything(
    lake: Lake, tmp_path: Path, where: str, left: list[int], partition_by: list[str]
) -> None:
    columns = {"id": pa.int64(), "part": pa.string()}
    table = make(lake, tmp_path, columns, partition_by=partition_by)
    table.append(pa.table({"id": [1, 2], "part": ["a", "b"]}))
    stale = lake.table("t")
    table.overwrite(pa.table({"id": [7], "part": ["a"]}), where=where)
    assert ids(table) == left
    with lake.transaction() as tx:
        tx.table("t").overwrite(pa.table({"id": [8], "part": ["a"]}), where=where)
    assert ids(stale) == [8]
    for n in (1, 2):
        table.append(pa.table({"id": [n], "part": ["a"]}))
    assert table.optimize(where=where).files_removed == 3
