"""Which files a condition keeps and drops, case by case, on every engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
)
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.conditions.bounds import read_bounds
from deltalakedb.conditions.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    Null,
    OneOf,
    Opaque,
    Operator,
    Or,
    Predicate,
    StartsWith,
)
from deltalakedb.conditions.pruning import matching_files

File = tuple[str | None, Mapping[str, str | None]]
DECIMAL = DecimalType(38, 2)
MAX = 2**63 - 1
NEW_YEAR, NEXT_DAY = datetime(2024, 1, 1), datetime(2024, 1, 2)  # noqa: DTZ001
FIRST, LAST = datetime.min, datetime.max  # noqa: DTZ901


def named_columns(predicate: Predicate) -> list[Column]:
    if isinstance(predicate, And | Or):
        return [column for part in predicate.parts for column in named_columns(part)]
    return [] if isinstance(predicate, Constant | Opaque) else [predicate.column]


class PrunedFiles:
    """Files by their statistics and partition values, and which of them a condition keeps."""

    def __init__(self) -> None:
        self._files: list[File] = []

    def load(self, files: Sequence[File]) -> None:
        self._files = list(files)

    def kept(self, predicate: Predicate) -> set[int]:
        stats = pa.array([stats for stats, _ in self._files], pa.string())
        values = pa.array([dumps(values) for _, values in self._files], pa.string())
        bounds = read_bounds(named_columns(predicate), stats, values)
        mask = matching_files(predicate, bounds, len(self._files))
        return {number for number, keeps in enumerate(mask.to_pylist()) if keeps}

    def keeps(self, file: File, predicate: Predicate) -> bool:
        self.load([file])
        return self.kept(predicate) == {0}


@pytest.fixture(scope="module")
def database() -> PrunedFiles:
    return PrunedFiles()


def column(data_type: DataType, *, partition: bool = False) -> Column:
    return Column(("x",), ("x",), data_type, partition)


def bounds(low: Any, high: Any, **more: Any) -> str:
    return json.dumps({"minValues": {"x": low}, "maxValues": {"x": high}, **more})


def at(hour: int, second: int = 0, microsecond: int = 0) -> datetime:
    return datetime(2024, 1, 1, hour, 0, second, microsecond, tzinfo=UTC)


def compare(data_type: DataType, operator: Operator, value: Any) -> Predicate:
    return Comparison(column(data_type), operator, value)


LONG_TEXT = "a" * 40

# --- by bounds: (condition, low, high, kept) --------------------------------------------------

BY_BOUNDS: list[tuple[Predicate, Any, Any, bool]] = [
    (compare(LONG, "=", 5), 5, 9, True),
    (compare(LONG, "=", 4), 5, 9, False),
    (compare(LONG, "=", 10), 5, 9, False),
    (compare(LONG, "<", 5), 5, 9, False),
    (compare(LONG, "<=", 5), 5, 9, True),
    (compare(LONG, ">", 9), 5, 9, False),
    (compare(LONG, ">=", 9), 5, 9, True),
    (compare(LONG, "<>", 5), 5, 5, False),
    (compare(LONG, "<>", 5), 5, 6, True),
    (compare(LONG, "=", MAX), MAX - 1, MAX - 1, False),
    (compare(LONG, "=", MAX), MAX, MAX, True),
    (compare(LONG, ">", MAX), MAX, MAX, False),
    (compare(LONG, "=", -(2**63)), -(2**63), 0, True),
    (compare(LONG, ">", 2**70), 0, MAX, True),
    (compare(LONG, "<>", 2**70), MAX, MAX, True),
    (compare(INTEGER, "=", 7), 1, 3, False),
    (compare(DOUBLE, "=", 0.1), 0.1, 0.1, True),
    (compare(DOUBLE, "=", 0.2), 0.1, 0.1, False),
    (compare(DOUBLE, "=", -0.0), 0, 0, True),
    (compare(DOUBLE, "=", 0.0), -0.0, -0.0, True),
    (compare(DOUBLE, "<", 0.1), 0.2, 9, False),
    (compare(DOUBLE, ">", 9.5), 0.2, 9, True),
    (compare(DOUBLE, ">=", 9.5), 0.2, 9, True),
    (compare(DOUBLE, "<>", 9.0), 9, 9, True),
    (compare(FLOAT, "=", 0.10000000149011612), 0.1, 0.1, True),
    (compare(FLOAT, "=", 0.2), 0.1, 0.1, False),
    (compare(DECIMAL, "=", Decimal("1.50")), 1.5, 1.5, True),
    (compare(DECIMAL, "=", Decimal("1.51")), 1.5, 1.5, False),
    (compare(DECIMAL, ">=", Decimal(10) ** 35), 0, 10**35, True),
    (compare(DECIMAL, ">", Decimal(10) ** 35), 0, 10**34, False),
    (compare(DECIMAL, "=", Decimal("1E+9999")), 0, 1, True),
    (compare(STRING, "=", "b"), "a", "c", True),
    (compare(STRING, "=", "B"), "a", "c", False),
    (compare(STRING, "<", "a"), "a", "c", False),
    (compare(STRING, "=", "é"), "a", "z", False),
    (compare(STRING, "=", "😀"), "\uffff", "\U0010ffff", True),
    (compare(STRING, "<", "\uffff"), "😀", "😀", False),
    (compare(STRING, "<>", "a"), "a", "a", False),
    (compare(STRING, "=", LONG_TEXT), "a" * 32, "a" * 32 + "\x7f", True),
    (compare(STRING, "=", "a" * 32 + "😀"), "a" * 32, "a" * 32 + "\ufffd", True),
    (compare(STRING, "=", "b"), "a" * 32, "a" * 32 + "\ufffd", False),
    (compare(STRING, "=", "a\0b"), "a\0b", "a\0b", True),
    (compare(STRING, "=", "\ue000"), "\ue000", "\ue000", True),
    (compare(STRING, "=", "x\ue000"), "a", "b", False),
    (compare(STRING, "=", "\ud800"), "a", "b", True),
    (compare(DATE, "=", date(2024, 1, 2)), "2024-01-01", "2024-01-03", True),
    (compare(DATE, "=", date(2024, 1, 4)), "2024-01-01", "2024-01-03", False),
    (compare(DATE, "<>", date(2024, 1, 1)), "2024-01-01", "2024-01-01", False),
    (compare(DATE, "=", date(2024, 1, 4)), "2024-1-1", "2024-1-3", False),
    (compare(DATE, "=", date(2024, 1, 4)), "20240101", "x024-01-03", True),
    (
        compare(TIMESTAMP, "=", at(0, 0, 1500)),
        "2024-01-01T00:00:00.001Z",
        "2024-01-01T00:00:00.001Z",
        True,
    ),
    (compare(TIMESTAMP, ">", at(0)), "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00.000Z", True),
    (compare(TIMESTAMP, "=", at(0, 1)), "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z", False),
    (
        compare(TIMESTAMP, "=", at(0)),
        "2024-01-01T02:00:00.000+02:00",
        "2024-01-01T02:00:00.000+02:00",
        True,
    ),
    (
        compare(TIMESTAMP, "=", at(2)),
        "2024-01-01T02:00:00.000+02:00",
        "2024-01-01T02:00:00.000+02:00",
        False,
    ),
    (
        compare(TIMESTAMP, "=", at(8)),
        "2024-01-01T00:00:00.123456-08:00",
        "2024-01-01T00:00:00.123456-08:00",
        False,
    ),
    (compare(TIMESTAMP, "=", at(5)), "2024-01-01T00:00:00", "2024-01-01T00:00:00", True),
    (
        compare(TIMESTAMP, "=", at(5)),
        "0001-01-01T00:00:00+10:00",
        "9999-12-31T23:00:00-10:00",
        True,
    ),
    (
        compare(TIMESTAMP_NTZ, "=", NEW_YEAR),
        "2024-01-01T00:00:00",
        "2024-01-01T00:00:00",
        True,
    ),
    (
        compare(TIMESTAMP_NTZ, "=", NEXT_DAY),
        "2024-01-01 00:00:00.5",
        "2024-01-01 00:00:00.5",
        False,
    ),
    (
        compare(TIMESTAMP_NTZ, "<", FIRST),
        "2024-01-01T00:00:00",
        "2024-01-01T00:00:00",
        False,
    ),
    (
        compare(TIMESTAMP_NTZ, ">", LAST),
        "9999-12-31T23:59:59.999",
        "9999-12-31T23:59:59.999",
        True,
    ),
    (compare(BOOLEAN, "=", True), False, False, False),
    (compare(BOOLEAN, "=", True), False, True, True),
    (compare(BINARY, "=", b"z"), "a", "b", True),
    (OneOf(column(LONG), (1, 8)), 5, 9, True),
    (OneOf(column(LONG), (1, 2, 10)), 5, 9, False),
    (OneOf(column(LONG), tuple(range(0, 10_000, 2))), 20_000, 20_001, False),
    (OneOf(column(LONG), tuple(range(0, 10_000, 2))), 4_000, 4_001, True),
    (OneOf(column(LONG), (5, 6), negated=True), 5, 5, False),
    (OneOf(column(LONG), (5, 6), negated=True), 5, 6, True),
    (OneOf(column(DOUBLE), (5.0,), negated=True), 5, 5, True),
    (OneOf(column(STRING), ("b", "\ud800")), "x", "y", True),
    (StartsWith(column(STRING), "ab"), "abc", "abd", True),
    (StartsWith(column(STRING), "ab"), "a", "aaz", False),
    (StartsWith(column(STRING), "ab"), "ac", "b", False),
    (StartsWith(column(STRING), "\ud7ff"), "\ud7ffa", "\ud7ffb", True),
    (StartsWith(column(STRING), "\ud7ff"), "\uf000", "\uf001", False),
    (StartsWith(column(STRING), "\U0010ffff"), "a", "b", True),
    (StartsWith(column(STRING), ""), "a", "b", True),
    (StartsWith(column(STRING), "ab", negated=True), "ab", "abz", False),
    (StartsWith(column(STRING), "ab", negated=True), "ab", "ac", True),
    (StartsWith(column(STRING), "", negated=True), "a", "b", False),
]


def test_bounds_decide(database: PrunedFiles) -> None:
    wrong = [
        (condition, low, high)
        for condition, low, high, kept in BY_BOUNDS
        if database.keeps((bounds(low, high), {}), condition) is not kept
    ]
    assert wrong == []


HOSTILE = [
    *(None, "", "x", "null", "[]", "{}", '{"minValues":3}', '{"minValues":{"x":null}}'),
    *(bounds([1], {}), bounds("7", "8"), bounds(True, True)),
    '{"minValues":{"x":NaN},"maxValues":{"x":-Infinity}}',
    '{"minValues":{"x":1e999999},"maxValues":{"x":-1e999999}}',
    '{"minValues":{"x":"\\u0000"},"maxValues":{"x":"\\ud800"}}',
    '{"minValues":{"x":"\\udc00a"},"maxValues":{"x":"\\u0000"}}',
    "[" * 50_000,
    '{"minValues":{"x":' * 5_000,
    '{"numRecords":"1","nullCount":{"x":"1"}}',
    '{"numRecords":1.5,"nullCount":{"x":true}}',
    '{"minValues":{"x":1},"maxValues":{"x":1}}\x00',
]


@pytest.mark.parametrize(
    "condition",
    [
        compare(LONG, "=", 5),
        compare(DOUBLE, "<", 5.0),
        compare(DECIMAL, ">", Decimal(5)),
        compare(DATE, "=", date(2024, 1, 1)),
        compare(TIMESTAMP, "=", at(1)),
        compare(TIMESTAMP_NTZ, "=", NEW_YEAR),
        Null(column(LONG)),
        Null(column(LONG), negated=True),
    ],
)
def test_statistics_that_say_nothing_keep_the_file(
    database: PrunedFiles, condition: Predicate
) -> None:
    database.load([(stats, {}) for stats in HOSTILE])
    assert database.kept(condition) == set(range(len(HOSTILE)))


def test_bounds_of_half_characters_keep_the_file(database: PrunedFiles) -> None:
    for high in ("\\ud800", "a\\udc00", "\\ud83d\x7f"):
        stats = f'{{"maxValues":{{"x":"{high}"}}}}'
        assert database.keeps((stats, {}), compare(STRING, "=", "😀"))


def test_null_counts_decide(database: PrunedFiles) -> None:
    is_null, is_not_null = Null(column(LONG)), Null(column(LONG), negated=True)
    equals = compare(LONG, "=", 5)
    none, some, every = (
        json.dumps({"numRecords": 3, "nullCount": {"x": nulls}}) for nulls in (0, 1, 3)
    )
    kept = [
        [database.keeps((stats, {}), condition) for stats in (none, some, every)]
        for condition in (is_null, is_not_null, equals)
    ]
    assert kept == [[False, True, True], [True, True, False], [True, True, False]]
    # Only null counts there are for arrays.
    of_arrays = Null(column(ArrayType(LONG)))
    assert not database.keeps((none, {}), of_arrays)


def test_wide_bounds_still_hold(database: PrunedFiles) -> None:
    stats = bounds(1, 5, tightBounds=False, numRecords=9, nullCount={"x": 2})
    assert not database.keeps((stats, {}), compare(LONG, "=", 6))
    assert database.keeps((stats, {}), compare(LONG, "=", 3))
    assert database.keeps((stats, {}), Null(column(LONG)))


# --- by partition values: (type, text, condition, kept) ---------------------------------------


def of(data_type: DataType, operator: Operator, value: Any) -> Predicate:
    return Comparison(column(data_type, partition=True), operator, value)


BY_PARTITION: list[tuple[str | None, Predicate, bool]] = [
    ("5", of(LONG, "=", 5), True),
    ("+5", of(LONG, "=", 5), True),
    ("-5", of(LONG, "=", 5), False),
    ("5", of(LONG, "<>", 5), False),
    ("10", of(LONG, "<", 9), False),
    (str(MAX), of(LONG, "=", MAX), True),
    (str(MAX), of(LONG, ">", MAX - 1), True),
    ("five", of(LONG, "=", 5), True),
    ("1.5", of(LONG, "=", 7), True),
    ("", of(LONG, "=", 5), False),
    (None, of(LONG, "=", 5), False),
    (None, of(LONG, "<>", 5), False),
    ("0.1", of(DOUBLE, "=", 0.1), True),
    ("1E-1", of(DOUBLE, "=", 0.1), True),
    ("0.2", of(DOUBLE, "=", 0.1), False),
    ("NaN", of(DOUBLE, ">", 1e308), True),
    ("Infinity", of(DOUBLE, ">", 1e308), True),
    ("1e999", of(DOUBLE, ">", 1e308), True),
    ("0.5", of(DOUBLE, ">", 1.0), False),
    ("1.50", of(DECIMAL, "=", Decimal("1.5")), True),
    ("1.50", of(DECIMAL, "<", Decimal("1.4")), False),
    ("true", of(BOOLEAN, "=", True), True),
    ("TRUE", of(BOOLEAN, "=", False), False),
    ("yes", of(BOOLEAN, "=", False), True),
    ("2024-01-01", of(DATE, "=", date(2024, 1, 1)), True),
    ("2024-01-01", of(DATE, "=", date(2024, 1, 2)), False),
    ("2024-1-1", of(DATE, "=", date(2024, 1, 2)), False),
    ("2024-01-01T00:00:00.000000Z", of(TIMESTAMP, "=", at(0)), True),
    ("2024-01-01T00:00:00.000000Z", of(TIMESTAMP, "=", at(1)), False),
    ("2024-01-01 00:00:00", of(TIMESTAMP, "=", at(14)), True),
    ("2024-01-03 00:00:00", of(TIMESTAMP, "=", at(14)), False),
    ("2024-01-01T02:00:00+02:00", of(TIMESTAMP, "=", at(2)), False),
    ("2024-01-01 00:00:00", of(TIMESTAMP_NTZ, "=", NEW_YEAR), True),
    ("2024-01-01 00:00:00", of(TIMESTAMP_NTZ, "=", NEXT_DAY), False),
    ("a", of(STRING, "=", "a"), True),
    ("A", of(STRING, "=", "a"), False),
    ("é", of(STRING, "<", "z"), False),
    ("", of(STRING, "=", ""), True),
    (None, of(STRING, "=", ""), False),
    ("a\0b", of(STRING, "=", "a\0b"), True),
    ("a\ue000", of(STRING, "=", "a\ue000"), True),
    ("abc", StartsWith(column(STRING, partition=True), "ab"), True),
    ("b", StartsWith(column(STRING, partition=True), "ab"), False),
    ("abc", StartsWith(column(STRING, partition=True), "ab", negated=True), False),
    ("a", of(BINARY, "=", b"b"), True),
    ("5", OneOf(column(LONG, partition=True), (4, 6)), False),
    ("5", OneOf(column(LONG, partition=True), (4, 5)), True),
    ("5", OneOf(column(LONG, partition=True), (4, 5), negated=True), False),
    (None, OneOf(column(LONG, partition=True), (4, 5), negated=True), False),
    (None, Null(column(LONG, partition=True)), True),
    ("", Null(column(LONG, partition=True)), True),
    ("5", Null(column(LONG, partition=True)), False),
    ("", Null(column(LONG, partition=True), negated=True), False),
    ("", Null(column(STRING, partition=True)), True),
    ("", Null(column(STRING, partition=True), negated=True), True),
    (None, Null(column(STRING, partition=True), negated=True), False),
]


def test_partition_values_decide(database: PrunedFiles) -> None:
    wrong = [
        (text, condition)
        for text, condition, kept in BY_PARTITION
        if database.keeps((None, {"x": text}), condition) is not kept
    ]
    assert wrong == []


def test_a_missing_partition_value_is_null(database: PrunedFiles) -> None:
    assert not database.keeps((None, {}), of(LONG, "=", 5))
    assert database.keeps((None, {}), Null(column(LONG, partition=True)))


# --- the whole ------------------------------------------------------------------------------


def test_parts_are_joined(database: PrunedFiles) -> None:
    yes, no = compare(LONG, "=", 5), compare(LONG, "=", 50)
    partition = of(LONG, "=", 1)
    file = (bounds(1, 9), {"x": "1"})
    kept: dict[Predicate, bool] = {
        And((yes, no)): False,
        And((yes, partition)): True,
        And((no, partition)): False,
        And((no, Opaque("f(x)"))): False,
        Or((yes, no)): True,
        Or((no, no)): False,
        Or((no, partition)): True,
        Or((no, Opaque("f(x)"))): True,
        Constant(value=True): True,
        Constant(value=False): False,
        Opaque("f(x)"): True,
    }
    assert {condition: database.keeps(file, condition) for condition in kept} == kept


@pytest.mark.parametrize(
    "name", ["a b", "a.b", "a[0]", "a/b~c", "é", 'a"b', "a\\b", "a'b", "$", "\ue000"]
)
def test_any_name_is_found_or_unknown(database: PrunedFiles, name: str) -> None:
    data = Column((name, name), (name, name), LONG)
    stats = json.dumps({"minValues": {name: {name: 5}}, "maxValues": {name: {name: 5}}})
    assert database.keeps((stats, {}), Comparison(data, "=", 5))
    partition = Column((name,), (name,), LONG, is_partition=True)
    assert database.keeps((None, {name: "5"}), Comparison(partition, "=", 5))
    if name in ("a b", "a.b", "a[0]", "a/b~c", "a'b", "$"):
        assert not database.keeps((stats, {}), Comparison(data, "=", 6))
        assert not database.keeps((None, {name: "5"}), Comparison(partition, "=", 6))


def test_size_and_depth_are_bounded(database: PrunedFiles) -> None:
    many = Or(tuple(compare(LONG, "=", n) for n in range(0, 20_000, 2)))
    assert database.keeps((bounds(1, 1), {}), many)
    few = Or(tuple(compare(LONG, "=", n) for n in range(0, 1_000, 2)))
    assert not database.keeps((bounds(1, 1), {}), few)
    deep: Predicate = compare(LONG, "=", 1)
    for _ in range(300):
        deep = And((deep, Opaque("f(x)")))
    assert database.keeps((bounds(1, 1), {}), deep)


def test_a_selective_condition_drops_nearly_everything(database: PrunedFiles) -> None:
    database.load(
        [(bounds(n * 100, n * 100 + 99), {"x": f"2024-01-{n % 28 + 1:02d}"}) for n in range(500)]
    )
    assert database.kept(compare(LONG, "=", 12_345)) == {123}
    day = of(DATE, "=", date(2024, 1, 3))
    assert database.kept(And((day, compare(LONG, "<", 10_000)))) == {2, 30, 58, 86}
