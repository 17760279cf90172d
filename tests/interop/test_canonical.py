"""Comparing rows: what is the same counts as the same, and nothing else does."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from interop.canonical import MANY, differences


def column(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"c": pa.array(values, kind)})


NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
MAP = pa.map_(pa.string(), pa.int64())
PAIRS = pa.list_(pa.struct({"key": pa.string(), "value": pa.int32()}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (column(pa.int64(), 1, 2, None), column(pa.int8(), None, 2, 1)),
        (column(pa.float64(), float("nan"), 0.5), column(pa.float32(), 0.5, float("nan"))),
        (
            column(pa.decimal128(38, 2), Decimal("1.50"), Decimal("9" * 36)),
            column(pa.decimal256(60, 1), Decimal("9" * 36), Decimal("1.5")),
        ),
        (column(pa.timestamp("us", "UTC"), NOON), column(pa.timestamp("ns", "Asia/Tokyo"), NOON)),
        (column(pa.string(), "x", "x"), column(pa.string_view(), "x", "x")),
        (column(pa.string(), "x"), column(pa.dictionary(pa.int32(), pa.string()), "x")),
        (
            column(MAP, [("a", 1), ("b", None)]),
            column(PAIRS, [{"key": "b", "value": None}, {"key": "a", "value": 1}]),
        ),
        (
            column(pa.list_(pa.struct({"x": MAP})), [{"x": [("a", 1)]}, None]),
            column(
                pa.large_list(pa.struct({"x": PAIRS})), [{"x": [{"key": "a", "value": 1}]}, None]
            ),
        ),
        (
            column(pa.list_(pa.timestamp("us", "UTC")), [NOON]),
            column(pa.list_(pa.timestamp("ms", "UTC")), [NOON]),
        ),
        (column(pa.int64(), *range(MANY + 1)), column(pa.int32(), *range(MANY, -1, -1))),
    ],
)
def test_the_same_rows(one: pa.Table, other: pa.Table) -> None:
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (column(pa.int64(), 1, 1, 2), column(pa.int64(), 1, 2, 2)),
        (column(pa.int64(), 1), column(pa.int64(), 1, 1)),
        (column(pa.int64(), None), column(pa.int64(), 0)),
        (column(pa.int64(), 1), column(pa.string(), "1")),
        (column(pa.float64(), -0.0), column(pa.float64(), 0.0)),
        (column(pa.float64(), float("nan")), column(pa.float64(), None)),
        (column(pa.string(), "x"), column(pa.binary(), b"x")),
        (column(pa.timestamp("us", "UTC"), NOON), column(pa.timestamp("us"), NOON)),
        (
            column(pa.decimal128(38, 0), Decimal("9" * 38)),
            column(pa.decimal128(38, 0), Decimal("9" * 37 + "8")),
        ),
        (column(MAP, [("a", 1)]), column(MAP, [("a", 2)])),
        (column(MAP, []), column(MAP, None)),
        (pa.table({"c": [1]}), pa.table({"d": [1]})),
        (column(pa.int64(), *range(MANY + 1)), column(pa.int64(), *range(1, MANY + 2))),
    ],
)
def test_other_rows(one: pa.Table, other: pa.Table) -> None:
    assert differences(one, other)
    assert differences(other, one)
