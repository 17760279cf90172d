"""What a condition says of one planned column, as intervals of keys."""

from __future__ import annotations

from datetime import date

import pytest

from deltalakedb.actions.datatypes import DATE, DOUBLE, LONG, STRING, DataType
from deltalakedb.actions.order_keys import HIGHEST, LOWEST, order_key, width_class
from deltalakedb.conditions.key_ranges import MOST_RANGES, key_ranges, probe_rows
from deltalakedb.conditions.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    Null,
    OneOf,
    Opaque,
    Or,
    Predicate,
    StartsWith,
)


def column(data_type: DataType = LONG, name: str = "x", *, partition: bool = False) -> Column:
    return Column((name,), (name,), data_type, partition)


X, Y, REAL, TEXT = column(), column(name="y"), column(DOUBLE), column(STRING)
FIVE, SEVEN = Comparison(X, "=", 5), Comparison(X, "=", 7)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (FIVE, [(5, 5)]),
        (Comparison(X, "<", 5), [(LOWEST, 4)]),
        (Comparison(X, "<=", 5), [(LOWEST, 5)]),
        (Comparison(X, ">", 5), [(6, HIGHEST)]),
        (Comparison(X, ">=", 5), [(5, HIGHEST)]),
        (Comparison(X, "<>", 5), None),
        (Comparison(X, "<", LOWEST), []),
        (Comparison(X, ">", HIGHEST), []),
        (Comparison(X, ">", -(2**70)), None),
        (Comparison(X, "<", 2**70), None),
        (Comparison(Y, "=", 5), None),
        (Comparison(column(partition=True), "=", 5), None),
        (OneOf(X, (7, 5, 6, 9)), [(5, 7), (9, 9)]),
        (OneOf(X, (7, 5), negated=True), None),
        (Null(X), None),
        (Null(X, negated=True), None),
        (Opaque("f(x)"), None),
        (Constant(value=True), None),
        (Constant(value=False), []),
        (And((FIVE, SEVEN)), []),
        (And((FIVE, Opaque("f(x)"))), [(5, 5)]),
        (
            And((Comparison(X, ">", 3), Comparison(X, "<", 9), OneOf(X, (1, 5, 8)))),
            [(5, 5), (8, 8)],
        ),
        (And((Opaque("f"), Null(X))), None),
        (Or((FIVE, SEVEN)), [(5, 5), (7, 7)]),
        (Or((FIVE, Comparison(Y, "=", 5))), None),
        (Or((FIVE, Constant(value=False))), [(5, 5)]),
        (Or((Comparison(X, "<", 5), Comparison(X, ">=", 5))), None),
    ],
)
def test_ranges_of_whole_numbers(
    condition: Predicate, expected: list[tuple[int, int]] | None
) -> None:
    assert key_ranges(condition, X) == expected


def test_a_maximum_of_floats_is_not_relied_on_where_nan_matches() -> None:
    key = order_key(1.5, DOUBLE)
    assert key_ranges(Comparison(REAL, ">", 1.5), REAL) is None
    assert key_ranges(Comparison(REAL, ">=", 1.5), REAL) is None
    assert key_ranges(Comparison(REAL, "<", 1.5), REAL) == [(LOWEST, key - 1)]
    # The NaN of a partition has a key.
    partition = column(DOUBLE, partition=True)
    assert key_ranges(Comparison(partition, ">", 1.5), partition) == [(key + 1, HIGHEST)]


def test_ranges_of_prefixes_and_days() -> None:
    ((low, high),) = key_ranges(StartsWith(TEXT, "ab"), TEXT) or []
    assert low == order_key("ab", STRING) <= order_key("ab\U0010ffff", STRING) <= high
    assert order_key("aa\U0010ffff", STRING) < low
    assert high < order_key("ac", STRING)
    assert key_ranges(StartsWith(TEXT, ""), TEXT) is None
    assert key_ranges(StartsWith(TEXT, "ab", negated=True), TEXT) is None
    day = column(DATE)
    assert key_ranges(Comparison(day, "<", date(1970, 1, 3)), day) == [(LOWEST, 1)]


def test_many_values_become_few_ranges_by_joining_neighbours() -> None:
    values = tuple(group * 1_000 + n * 3 for group in range(MOST_RANGES) for n in range(5))
    assert key_ranges(OneOf(X, values), X) == [
        (group * 1_000, group * 1_000 + 12) for group in range(MOST_RANGES)
    ]


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        *((99, 100, True), (100, 100, True), (110, 115, True), (111, 111, False)),
        *((0, 99, False), (LOWEST, HIGHEST, True), (LOWEST, 100, True), (105, HIGHEST, True)),
    ],
)
def test_probes_find_what_overlaps(low: int, high: int, found: bool) -> None:
    width = width_class(low, high)
    probes = probe_rows([(100, 110)])
    assert found == any(
        width == w and first <= low <= last and high >= a for w, first, last, a in probes
    )
    assert all(LOWEST <= first <= last <= HIGHEST for _, first, last, _ in probes)
