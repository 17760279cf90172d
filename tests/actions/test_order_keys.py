"""Keys keep the order of values, and the keys of bounds hold every value of a file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    ArrayType,
    ColumnPath,
    DataType,
    DecimalType,
)
from deltalakedb.actions.order_keys import (
    EVERYTHING,
    HIGHEST,
    LOWEST,
    NOTHING,
    WIDTHS,
    BoundsKeys,
    has_order_key,
    has_own_key,
    order_key,
    text_interval,
    width_class,
)
from deltalakedb.errors import InvalidSchemaError


@dataclass(frozen=True)
class Planned:
    type: DataType
    is_partition: bool = False
    physical: ColumnPath = ("x",)


big = st.integers(-(10**38), 10**38)
VALUES: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (LONG, st.integers(-(2**65), 2**65)),
    (BOOLEAN, st.booleans()),
    (DOUBLE, st.floats(allow_nan=False)),
    (FLOAT, st.floats(allow_nan=False, width=32)),
    (DecimalType(10, 2), st.decimals(allow_nan=False, allow_infinity=False)),
    (DecimalType(38, 10), big.map(lambda n: Decimal(n).scaleb(-10))),
    (DecimalType(38, 0), big.map(Decimal)),
    (DATE, st.dates()),
    (TIMESTAMP, st.datetimes(timezones=st.just(UTC))),
    (TIMESTAMP_NTZ, st.datetimes()),
    (STRING, st.text()),
    (BINARY, st.binary()),
]


@pytest.mark.parametrize(("data_type", "values"), VALUES, ids=[str(t) for t, _ in VALUES])
def test_keys_never_reverse_an_order(data_type: DataType, values: st.SearchStrategy[Any]) -> None:
    @given(values, values)
    def check(a: Any, b: Any) -> None:
        low, high = sorted((a, b))
        assert LOWEST <= order_key(low, data_type) <= order_key(high, data_type) <= HIGHEST

    check()


@pytest.mark.parametrize(("data_type", "values"), VALUES, ids=[str(t) for t, _ in VALUES])
def test_a_key_of_its_own_is_shared_with_no_other_value(
    data_type: DataType, values: st.SearchStrategy[Any]
) -> None:
    @given(values, values)
    def check(a: Any, b: Any) -> None:
        if has_own_key(a, data_type) and a != b:
            assert order_key(a, data_type) != order_key(b, data_type)

    check()


# Short texts of few characters, so that prefixes, ends and neighbours meet.
texts = st.text(st.sampled_from("\0 !-/09:AZ_`az\x7f\x80é\u07ff\u0800\uffff\U00010000\U0010ffff"))


@given(texts, texts)
def test_neighbouring_texts_have_keys_in_their_order(a: str, b: str) -> None:
    (low, size), (other, _) = text_interval(a), text_interval(b)
    if a < b:
        assert low <= other
        assert low < other or not (has_own_key(a, STRING) or has_own_key(b, STRING))
    if size:
        # Exactly the texts that begin with it.
        assert (low <= other < low + size) == b.startswith(a)


@pytest.mark.parametrize(
    "text", ["", "2026-11-01", "20261101T", "orders", "DE-BW", "5f0e1", "東京"]
)
def test_short_texts_have_keys_of_their_own(text: str) -> None:
    assert has_own_key(text, STRING)


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([LOWEST, -1, 0, 1, HIGHEST], LONG),
        ([-math.inf, -1.5, -5e-324, 0.0, 5e-324, 1.5, math.inf, math.nan], DOUBLE),
        ([False, True], BOOLEAN),
        ([date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)], DATE),
        ([datetime.min, datetime(1970, 1, 1), datetime.max], TIMESTAMP_NTZ),  # noqa: DTZ001, DTZ901
        (["", "a", "a\0\0b", "b", "é", "\uffff", "😀"], STRING),
        (
            [Decimal(n) for n in ("-1E+35", "-1", "-0.01", "0", "0.01", "1E+9", "1E+35")],
            DecimalType(38, 2),
        ),
    ],
)
def test_these_values_have_keys_of_their_own(values: list[Any], data_type: DataType) -> None:
    keys = [order_key(value, data_type) for value in values]
    assert keys == sorted(set(keys))


def test_keys_that_are_known() -> None:
    assert order_key(7, LONG) == 7
    assert order_key(date(1970, 1, 2), DATE) == 1
    assert order_key(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), TIMESTAMP) == 1_000_000
    assert order_key(Decimal("1.25"), DecimalType(10, 2)) == 125
    assert order_key(-0.0, DOUBLE) == order_key(0.0, DOUBLE) == 0
    assert order_key("", STRING) == LOWEST


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        ("x", LONG),
        ("5", DOUBLE),
        (5, STRING),
        (datetime(2024, 1, 1, tzinfo=UTC), DATE),
        (5, TIMESTAMP),
        (1, VARIANT),
    ],
)
def test_what_has_no_key_is_refused(value: object, data_type: DataType) -> None:
    with pytest.raises(InvalidSchemaError):
        order_key(value, data_type)


def test_types_without_an_order_have_no_keys() -> None:
    assert has_order_key(BYTE)
    assert not has_order_key(ArrayType(LONG))
    assert BoundsKeys([Planned(ArrayType(LONG))]).of(bounds(1, 2), {}) == [EVERYTHING]


def bounds(low: Any, high: Any, **more: Any) -> str:
    return json.dumps({"minValues": {"x": low}, "maxValues": {"x": high}, **more})


def key(value: Any, data_type: DataType) -> int:
    return order_key(value, data_type)


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
CUT = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("stats", "data_type", "expected"),
    [
        (bounds(3, 9), LONG, (3, 9)),
        (bounds(3.0, 9), LONG, (3, 9)),
        (bounds(9, 3), LONG, EVERYTHING),
        (bounds(3, None), LONG, (3, HIGHEST)),
        (bounds(3, 300), BYTE, (3, HIGHEST)),
        (bounds("3", True), LONG, EVERYTHING),
        (bounds("2024-01-01", "2024-1-2"), DATE, (19723, 19724)),
        (bounds("2024-02-30", "2024-W01-1"), DATE, EVERYTHING),
        (
            bounds("2024-01-01T12:00:00.000Z", "2024-01-01T14:00:00+02:00"),
            TIMESTAMP,
            (key(NOON, TIMESTAMP), key(NOON + CUT, TIMESTAMP)),
        ),
        (
            bounds("2024-01-01T12:00:00", "2024-01-01T12:00:00Z"),
            TIMESTAMP,
            (LOWEST, key(NOON + CUT, TIMESTAMP)),
        ),
        (bounds(0.1, 0.1), FLOAT, (key(0.10000000149011612, FLOAT),) * 2),
        (bounds(-0.5, 0.1), DOUBLE, (key(-0.5, DOUBLE), key(0.1, DOUBLE))),
        ('{"minValues":{"x":1e999999},"maxValues":{"x":2}}', DOUBLE, (LOWEST, key(2, DOUBLE))),
        (
            '{"minValues":{"y":1e9999999999999999999999,"x":1},"maxValues":{"x":NaN}}',
            LONG,
            (1, HIGHEST),
        ),
        ('{"minValues":{"x":1.10}}', DecimalType(10, 2), (110, HIGHEST)),
        (bounds("a", "a" * 32 + "\ufffd"), STRING, (key("a", STRING), key("a" * 16, STRING))),
        ('{"numRecords":2,"nullCount":{"x":2}}', LONG, NOTHING),
        ('{"numRecords":2,"nullCount":{"x":1}}', LONG, EVERYTHING),
        *(
            (text, LONG, EVERYTHING)
            for text in (None, "", "x", "[]", '{"minValues":[]}', "[" * 9999)
        ),
    ],
)
def test_keys_of_statistics(
    stats: str | None, data_type: DataType, expected: tuple[int, int]
) -> None:
    assert BoundsKeys([Planned(data_type)]).of(stats, {}) == [expected]


def test_a_file_without_values_overlaps_nothing() -> None:
    low, high = NOTHING
    for a, b in [(LOWEST, 5), (5, HIGHEST), (LOWEST, LOWEST), (HIGHEST, HIGHEST), (-1, 1)]:
        assert not (low <= b and a <= high)


def test_keys_of_partition_values() -> None:
    def keys(text: str | None, data_type: DataType) -> tuple[int, int]:
        return BoundsKeys([Planned(data_type, is_partition=True)]).of(None, {"x": text})[0]

    assert keys("5", LONG) == (5, 5)
    assert keys("five", LONG) == EVERYTHING
    assert keys(None, LONG) == keys("", LONG) == keys(None, STRING) == NOTHING
    assert keys("", STRING) == (key("", STRING),) * 2
    assert keys("NaN", DOUBLE) == (HIGHEST, HIGHEST)
    assert keys("2024-01-01T12:00:00Z", TIMESTAMP) == (key(NOON, TIMESTAMP),) * 2
    day = 86_400_000_000
    at = key(NOON, TIMESTAMP)
    assert keys("2024-01-01 12:00:00", TIMESTAMP) == (at - day, at + day)


def test_several_columns_are_read_at_once() -> None:
    columns = [Planned(LONG), Planned(LONG, is_partition=True), Planned(LONG, physical=("y", "z"))]
    reader = BoundsKeys(columns)
    stats = '{"minValues":{"x":1,"y":{"z":2}},"maxValues":{"x":1,"y":{"z":2}}}'
    assert reader.of(stats, {"x": "7"}) == [(1, 1), (7, 7), (2, 2)]


def test_width_classes() -> None:
    assert [width_class(5, 5 + n) for n in (0, 1, 3, 4, 15, 16)] == [0, 2, 2, 4, 4, 6]
    assert width_class(LOWEST, HIGHEST) == 64


@given(st.integers(LOWEST, HIGHEST), st.integers(LOWEST, HIGHEST))
def test_a_width_is_the_least_even_one_that_fits(a: int, b: int) -> None:
    low, high = sorted((a, b))
    width = width_class(low, high)
    assert width in WIDTHS
    assert high - low < 2**width
    assert width == 0 or high - low >= 2 ** (width - 2)
