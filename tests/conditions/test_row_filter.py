"""Rows that a condition keeps: NaN, nulls, the order of text."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from deltalakedb.actions.arrow import schema_from_arrow
from deltalakedb.actions.datatypes import LONG
from deltalakedb.conditions.predicate import (
    MAX_DEPTH,
    And,
    Column,
    Comparison,
    Opaque,
    Or,
    Predicate,
)
from deltalakedb.conditions.row_filter import row_filter
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import UnsupportedConditionError

NAN = math.nan


def kept(values: pa.Array, where: str) -> list[Any]:
    """The values of column x that stay, with NaN as text to be comparable."""
    table = pa.table({"x": values})
    predicate = parse_where(where, schema_from_arrow(table.schema), [])
    rows: list[Any] = table.filter(row_filter(predicate))["x"].to_pylist()
    return ["nan" if isinstance(v, float) and math.isnan(v) else v for v in rows]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_is_greater_than_every_number(kind: pa.DataType) -> None:
    values = pa.array([1.0, NAN, math.inf, -math.inf, None], kind)
    assert kept(values, "x > 1") == ["nan", math.inf]
    assert kept(values, "x >= 1") == [1.0, "nan", math.inf]
    assert kept(values, "x < 1") == [-math.inf]
    assert kept(values, "x <= 1") == [1.0, -math.inf]
    assert kept(values, "x <> 1") == ["nan", math.inf, -math.inf]
    assert kept(values, "NOT x < 1") == [1.0, "nan", math.inf]
    assert kept(values, "x NOT IN (1, 2)") == ["nan", math.inf, -math.inf]
    assert kept(values, "x NOT BETWEEN 0 AND 2") == ["nan", math.inf, -math.inf]
    assert kept(values, "x IS NOT NULL") == [1.0, "nan", math.inf, -math.inf]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zero_has_no_sign(kind: pa.DataType) -> None:
    values = pa.array([0.0, -0.0, 1.0], kind)
    assert kept(values, "x = 0") == [0.0, -0.0]
    assert kept(values, "x IN (0, 5)") == [0.0, -0.0]
    assert kept(values, "x NOT IN (-0.0, 5)") == [1.0]
    assert kept(values, "x < 0") == []


def test_single_precision_is_compared_as_double() -> None:
    values = pa.array([0.1, 0.5], pa.float32())
    assert kept(values, "x = 0.1") == []
    assert len(kept(values, "x = 0.1F")) == 1
    assert kept(values, "x IN (0.1, 0.5)") == [0.5]


def test_text_is_ordered_by_code_point() -> None:
    values = pa.array(["\uffff", "\U00010000", "Z", "a", None])
    assert kept(values, "x > 'a'") == ["\uffff", "\U00010000"]
    assert kept(values, "x > '\uffff'") == ["\U00010000"]
    assert kept(values, "x NOT LIKE 'a%'") == ["\uffff", "\U00010000", "Z"]


def test_null_is_neither() -> None:
    values = pa.array([1, 2, None])
    assert kept(values, "x = 1") == [1]
    assert kept(values, "NOT x = 1") == [2]
    assert kept(values, "x NOT IN (1, 3)") == [2]
    assert kept(values, "x NOT IN (1, NULL)") == []
    assert kept(values, "x <=> NULL") == [None]
    assert kept(values, "NOT x <=> 1") == [2, None]
    assert kept(values, "x = 1 OR NULL") == [1]


def test_bounds_between_two_values() -> None:
    values = pa.array([5, 6, -6, -5])
    assert kept(values, "x > 5.5") == [6]
    assert kept(values, "x >= 5.5") == [6]
    assert kept(values, "x <= -5.5") == [-6]
    decimals = pa.array([Decimal("1.55"), Decimal("1.56")])
    assert kept(decimals, "x > 1.555") == [Decimal("1.56")]
    assert kept(decimals, "x <= 1.555") == [Decimal("1.55")]
    assert kept(decimals, "x < 1e3") == [Decimal("1.55"), Decimal("1.56")]


def test_extremes_of_wide_decimals() -> None:
    top = Decimal("9" * 38)
    low = top.copy_negate()
    values = pa.array([top, low, Decimal(0)], pa.decimal128(38, 0))
    assert kept(values, f"x = {top}") == [top]
    assert kept(values, f"x < {'9' * 39}") == [top, low, Decimal(0)]
    assert kept(values, f"x IN (-{top}, 0)") == [low, Decimal(0)]


def test_rows_of_a_dataset_are_filtered(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    table = pa.table(
        {
            "id": [1, 2, 3],
            "at": pa.array([moment, None, moment.replace(year=2027)], pa.timestamp("us", "UTC")),
            "a.b": [{"c": 1}, None, {"c": 3}],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    schema = schema_from_arrow(table.schema)
    wanted = {
        "at > '2026-12-01'": [3],
        "`a.b`.c = 1": [1],
        "`a.b`.c IS NULL": [2],
        "`a.b` IS NOT NULL AND id > 1": [3],
        "FALSE": [],
        "TRUE": [1, 2, 3],
    }
    for where, ids in wanted.items():
        expression = row_filter(parse_where(where, schema, []))
        rows = ds.dataset(tmp_path).to_table(filter=expression)
        assert rows["id"].to_pylist() == ids


def test_ten_thousand_parts_are_fine() -> None:
    where = " OR ".join(f"(x > {n} AND x < {n + 2})" for n in range(0, 20_000, 2))
    table = pa.table({"x": [0, 1, 2, 19_999, 20_001]})
    expression = row_filter(parse_where(where, schema_from_arrow(table.schema), []))
    assert table.filter(expression)["x"].to_pylist() == [1, 19_999]
    assert ds.dataset(table).to_table(filter=expression)["x"].to_pylist() == [1, 19_999]


def test_the_deepest_and_widest_condition_is_fine() -> None:
    table = pa.table({"x": [0, 1, 2_000]})
    column = Column(("x",), ("x",), LONG)
    predicate: Predicate = Comparison(column, "=", 1)
    for depth in range(MAX_DEPTH - 1):
        wide = [Comparison(column, ">" if depth % 2 else "<", n) for n in range(-100, 0)]
        predicate = Or((predicate, *wide)) if depth % 2 == 0 else And((predicate, *wide))
    expression = row_filter(predicate)
    assert table.filter(expression)["x"].to_pylist() == [1]
    assert ds.dataset(table).to_table(filter=expression)["x"].to_pylist() == [1]


def test_a_part_that_is_not_known_cannot_filter() -> None:
    with pytest.raises(UnsupportedConditionError, match="length"):
        row_filter(Opaque("length(x) > 3"))
