"""Fields that must not be null, at any depth of structs, lists and maps."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import deltalakedb

REQUIRED = pa.struct([pa.field("d", pa.string(), nullable=False)])
OUTER = pa.struct([pa.field("b", REQUIRED, nullable=False)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (OUTER, {"b": {"d": "x"}}),
        (pa.list_(pa.field("element", OUTER, nullable=False)), [{"b": {"d": "x"}}]),
        (pa.map_(pa.string(), OUTER), [("k", {"b": {"d": "x"}})]),
        (pa.struct([pa.field("l", pa.list_(OUTER), nullable=False)]), {"l": [{"b": {"d": "x"}}]}),
    ],
    ids=["struct", "list", "map", "list in struct"],
)
def test_required_fields_of_nested_types_come_back(
    tmp_path: Path, kind: pa.DataType, value: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", kind)])
    with deltalakedb.connect(f"sqlite:///{tmp_path}/lake.db", mirror="worker") as lake:
        table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
        table.append(pa.table({"id": [1, 2], "x": pa.array([value, None], kind)}))
        table.append(pa.table({"id": [3], "x": pa.nulls(1)}))
        found = sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [row["x"] for row in found] == [value, None, None]
