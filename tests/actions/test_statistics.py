from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

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
    DataType,
    DecimalType,
    StructField,
    StructType,
)
from deltalakedb.actions.statistics import (
    Statistics,
    covered_columns,
    encode_stats,
    parse_column_list,
    truncate_max,
    truncate_min,
)
from deltalakedb.errors import InvalidSchemaError

from support.statistics import StatisticsReader, parse_stats

TOP = "\U0010ffff"


def schema(**types: DataType) -> StructType:
    return StructType(tuple(StructField(name, t) for name, t in types.items()))


def bounds(low: Any, high: Any, data_type: DataType) -> tuple[Any, Any]:
    text = json.dumps({"minValues": {"a": low}, "maxValues": {"a": high}})
    stats = parse_stats(text, schema(a=data_type))
    assert stats is not None
    return stats.min_values.get(("a",)), stats.max_values.get(("a",))


def encoded(low: Any, high: Any, data_type: DataType, **options: Any) -> tuple[Any, Any]:
    text = encode_stats(
        Statistics(min_values={("a",): low}, max_values={("a",): high}),
        schema(a=data_type),
        **options,
    )
    parsed = json.loads(text, parse_float=Decimal)
    return parsed["minValues"].get("a"), parsed["maxValues"].get("a")


# --- reading ------------------------------------------------------------------------------


def test_all_parts_are_read() -> None:
    stats = parse_stats(
        '{"numRecords":3,"minValues":{"a":1,"s":{"x":"b"}},"maxValues":{"a":5,"s":{"x":"c"}},'
        '"nullCount":{"a":0,"s":{"x":2},"l":1},"tightBounds":false,"future":{"k":1.5}}',
        schema(a=LONG, s=schema(x=STRING), l=ArrayType(LONG)),
    )
    assert stats == Statistics(
        num_records=3,
        min_values={("a",): 1, ("s", "x"): "b"},
        max_values={("a",): 5, ("s", "x"): "c"},
        null_count={("a",): 0, ("s", "x"): 2, ("l",): 1},
        tight_bounds=False,
        extra={"future": {"k": Decimal("1.5")}},
    )
    assert stats.tight_bounds is False


def test_absent_tight_bounds_count_as_tight() -> None:
    stats = parse_stats("{}", schema())
    assert stats is not None
    assert stats.tight_bounds is None
    assert stats.tight_bounds is None


def test_physical_names_of_the_json_become_logical_paths() -> None:
    field = StructField("a", LONG, metadata={"delta.columnMapping.physicalName": "col-1"})
    stats = parse_stats('{"minValues":{"col-1":5,"a":6}}', StructType((field,)))
    assert stats is not None
    assert stats.min_values == {("a",): 5}


@pytest.mark.parametrize(
    ("low", "high", "data_type", "expected"),
    [
        (1, 2, LONG, (1, 2)),
        (1.0, 2.5, LONG, (1, None)),
        (-129, 127, BYTE, (None, 127)),
        (1.5, 2, DOUBLE, (1.5, 2.0)),
        (True, "2", LONG, (None, None)),
        ("a", "b", STRING, ("a", "b")),
        (1, None, STRING, (None, None)),
        (True, False, BOOLEAN, (True, False)),
        ("2024-01-01", "2024-02-30", DATE, (date(2024, 1, 1), None)),
        (5, "x", DATE, (None, None)),
        ("NaN", "Infinity", DOUBLE, (None, None)),
        ({"x": 1}, [1], LONG, (None, None)),
        ("x", "y", BINARY, (None, None)),
        ("x", "y", VARIANT, (None, None)),
        ([1], [2], ArrayType(LONG), (None, None)),
        (1, 2, schema(x=LONG), (None, None)),
    ],
)
def test_a_bound_of_the_wrong_type_is_unknown(
    low: Any, high: Any, data_type: DataType, expected: tuple[Any, Any]
) -> None:
    assert bounds(low, high, data_type) == expected


def test_decimals_are_exact() -> None:
    text = '{"minValues":{"a":12345678901234567890.123456789012345678},"maxValues":{"a":7}}'
    stats = parse_stats(text, schema(a=DecimalType(38, 18)))
    assert stats is not None
    assert stats.min_values[("a",)] == Decimal("12345678901234567890.123456789012345678")
    assert stats.max_values[("a",)] == Decimal(7)


def test_a_single_precision_bound_equals_the_value_stored() -> None:
    low, high = bounds(0.1, 0.1, FLOAT)
    assert low == high == 0.10000000149011612
    assert bounds(1e39, 1e39, FLOAT) == (None, None)


def test_an_upper_timestamp_covers_the_digits_that_were_cut() -> None:
    low, high = bounds("2021-01-01T00:00:00.123Z", "2021-01-01T02:00:00.123+02:00", TIMESTAMP)
    assert low == datetime(2021, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)
    assert high == datetime(2021, 1, 1, 0, 0, 0, 124000, tzinfo=UTC)


def test_a_timestamp_without_offset_is_no_instant() -> None:
    assert bounds("2021-01-01T00:00:00.123", "2021-01-01 00:00:00", TIMESTAMP) == (None, None)


def test_a_wall_clock_bound_is_read_in_both_spellings() -> None:
    low, high = bounds("2021-01-01T00:00:00.123", "2021-01-01 00:00:00.123", TIMESTAMP_NTZ)
    assert low == datetime(2021, 1, 1, 0, 0, 0, 123000)  # noqa: DTZ001
    assert high == datetime(2021, 1, 1, 0, 0, 0, 124000)  # noqa: DTZ001


def test_the_last_moment_of_the_calendar_has_no_upper_bound() -> None:
    assert bounds("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", TIMESTAMP)[1] is None


def test_the_old_tie_breaker_is_raised_above_every_character() -> None:
    cut = "x" * 32 + "\ufffd"
    assert bounds(cut, cut, STRING) == (cut, "x" * 32 + TOP)
    assert bounds("\ufffd", "\ufffd", STRING) == ("\ufffd", "\ufffd")


def test_numbers_that_json_does_not_have_are_unknown() -> None:
    stats = parse_stats(
        '{"numRecords":2,"minValues":{"a":NaN,"b":1},"maxValues":{"a":-Infinity,"b":1e999999999999999999999}}',
        schema(a=DOUBLE, b=DOUBLE),
    )
    assert stats is not None
    assert stats.num_records == 2
    assert stats.min_values == {("b",): 1.0}
    assert stats.max_values == {}


@pytest.mark.parametrize("number", ["-1", "1.5", "true", '"3"', "null", "9" * 5000, "NaN"])
def test_a_count_that_is_none_is_unknown(number: str) -> None:
    stats = parse_stats(f'{{"numRecords":{number},"nullCount":{{"a":{number}}}}}', schema(a=LONG))
    assert stats is not None
    assert stats.num_records is None
    assert stats.null_count == {}


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "null", "5", "[" * 100_000, '{"minValues":' * 100_000, "\ud800", "NaN"],
)
def test_hostile_text_gives_none(text: str | None) -> None:
    assert parse_stats(text, schema(a=LONG)) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"minValues":[],"maxValues":5,"nullCount":"x","tightBounds":1}',
        '{"minValues":{"a":"\\ud800"},"nullCount":{"a":{"b":1}},"\\ud800":1,"x":NaN}',
    ],
)
def test_hostile_parts_are_left_out(text: str) -> None:
    assert parse_stats(text, schema(a=STRING)) == Statistics()


def test_a_reader_serves_many_files() -> None:
    reader = StatisticsReader(schema(a=LONG))
    counts = [reader.parse(f'{{"numRecords":{n}}}') for n in range(3)]
    assert [stats.num_records for stats in counts if stats is not None] == [0, 1, 2]


# --- writing ------------------------------------------------------------------------------


def test_the_text_has_the_customary_form() -> None:
    stats = Statistics(
        num_records=3,
        min_values={("s", "x"): "b", ("a",): 1},
        max_values={("s", "x"): "c", ("a",): 5},
        null_count={("b",): 2, ("a",): 0, ("s", "x"): 1},
        tight_bounds=True,
        extra={"z": 1},
    )
    assert encode_stats(stats, schema(a=LONG, s=schema(x=STRING), b=BINARY)) == (
        '{"numRecords":3,"minValues":{"a":1,"s":{"x":"b"}},"maxValues":{"a":5,"s":{"x":"c"}},'
        '"nullCount":{"a":0,"s":{"x":1},"b":2},"tightBounds":true,"z":1}'
    )


def test_physical_names_are_written() -> None:
    field = StructField("a", LONG, metadata={"delta.columnMapping.physicalName": "col-1"})
    text = encode_stats(Statistics(min_values={("a",): 5}), StructType((field,)))
    assert json.loads(text)["minValues"] == {"col-1": 5}


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (Decimal("1.5"), DecimalType(10, 2), "1.50"),
        (Decimal("1E+3"), DecimalType(10, 0), "1000"),
        (0.1, FLOAT, "0.1"),
        (1e16, DOUBLE, "10000000000000000.0"),
        (date(2024, 2, 29), DATE, '"2024-02-29"'),
        (
            datetime(2021, 1, 1, 2, 0, 0, 123999, tzinfo=timezone(timedelta(hours=2))),
            TIMESTAMP,
            '"2021-01-01T00:00:00.123Z"',
        ),
        (datetime(1969, 12, 31, 23, 59, 59, 999999), TIMESTAMP_NTZ, '"1969-12-31T23:59:59.999"'),  # noqa: DTZ001
        ('q"é', STRING, '"q\\"é"'),
    ],
)
def test_each_type_has_its_form(value: Any, data_type: DataType, expected: str) -> None:
    text = encode_stats(Statistics(min_values={("a",): value}), schema(a=data_type))
    assert f'"minValues":{{"a":{expected}}}' in text


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (float("nan"), DOUBLE),
        (float("inf"), FLOAT),
        (True, BOOLEAN),
        (b"x", BINARY),
        ({}, VARIANT),
        ([1], ArrayType(LONG)),
    ],
)
def test_what_has_no_bound_is_left_out(value: Any, data_type: DataType) -> None:
    assert encoded(value, value, data_type) == (None, None)


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        ("1", LONG),
        (True, LONG),
        (300, BYTE),
        (1, STRING),
        ("x", DOUBLE),
        (1e39, FLOAT),
        (1.5, DecimalType(5, 2)),
        (Decimal("1.005"), DecimalType(5, 2)),
        (datetime(2020, 1, 1, tzinfo=UTC), DATE),
        (datetime(2020, 1, 1), TIMESTAMP),  # noqa: DTZ001
        (datetime(2020, 1, 1, tzinfo=UTC), TIMESTAMP_NTZ),
    ],
)
def test_a_bound_that_is_no_value_of_the_column_is_refused(value: Any, data_type: DataType) -> None:
    with pytest.raises(InvalidSchemaError, match="'a'"):
        encoded(value, value, data_type)


def test_long_strings_are_cut_on_the_safe_side() -> None:
    text = "a" * 40
    assert encoded(text, text, STRING) == ("a" * 32, "a" * 32 + "\x7f")
    assert encoded(text, text, STRING, string_prefix_length=4) == ("aaaa", "aaaa\x7f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", "abc"),
        ("abcd", "abc\x7f"),
        ("abc\x7e", "abc\x7f"),
        ("abc\x7f", f"abc{TOP}"),
        ("abcé", f"abc{TOP}"),
        (f"abc{TOP}d", f"abc{TOP}\x7f"),
        (f"abc{TOP}", f"abc{TOP}"),
        (f"abc{TOP * 3}", f"abc{TOP * 3}"),
        (f"abc{TOP * 4}", None),
        (f"abc{TOP * 3}d", f"abc{TOP * 3}\x7f"),
        ("ab😀d", "ab😀\x7f"),
    ],
)
def test_the_tie_breaker_is_above_the_first_character_cut(text: str, expected: str | None) -> None:
    assert truncate_max(text, 3) == expected
    assert truncate_min(text, 3) == text[:3]


def test_only_covered_columns_are_written() -> None:
    stats = Statistics(
        num_records=1,
        min_values={("a",): 1, ("b",): 2},
        max_values={("a",): 1, ("b",): 2},
        null_count={("a",): 0, ("b",): 0},
    )
    parsed = json.loads(encode_stats(stats, schema(a=LONG, b=LONG), columns=[("b",)]))
    assert parsed == {
        "numRecords": 1,
        "minValues": {"b": 2},
        "maxValues": {"b": 2},
        "nullCount": {"b": 0},
    }


# --- which columns ------------------------------------------------------------------------

WIDE = StructType(
    (
        StructField("p", STRING),
        StructField("s", schema(x=LONG, y=LONG)),
        *(StructField(f"c{n}", LONG) for n in range(40)),
    )
)


def test_the_first_leaves_without_partitions_are_covered() -> None:
    covered = covered_columns(WIDE, partition_columns=["P"])
    assert len(covered) == 32
    assert covered[:3] == [("s", "x"), ("s", "y"), ("c0",)]
    assert covered_columns(WIDE, num_indexed=2) == [("p",), ("s", "x")]
    assert len(covered_columns(WIDE, num_indexed=-1)) == 43
    assert covered_columns(WIDE, num_indexed=0) == []


def test_listed_columns_are_covered_with_all_below_them() -> None:
    assert covered_columns(WIDE, named="c39, S, p", partition_columns=["p"]) == [
        ("s", "x"),
        ("s", "y"),
        ("c39",),
    ]
    assert covered_columns(WIDE, named="s.Y", num_indexed=1) == [("s", "y")]
    assert covered_columns(WIDE, named="") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [("a",)]),
        (" a , b.c ", [("a",), ("b", "c")]),
        ("`odd.name`.`x,y`, z", [("odd.name", "x,y"), ("z",)]),
        ("`tick``ed`", [("tick`ed",)]),
        ("two words", [("two words",)]),
    ],
)
def test_a_list_of_columns_is_split(text: str, expected: list[tuple[str, ...]]) -> None:
    assert parse_column_list(text) == expected


@pytest.mark.parametrize("text", ["`a", "a,,b", "a..b", "a`b`", ", a"])
def test_a_broken_list_of_columns_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError, match="list of columns"):
        parse_column_list(text)
