from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    ArrayType,
    DataType,
    DecimalType,
)
from deltalakedb.actions.partition import (
    decode_partition_value,
    decode_path,
    encode_partition_value,
    encode_path,
    partition_directory,
)
from deltalakedb.errors import InvalidActionError, InvalidSchemaError

WALL = datetime(2021, 10, 1, 8, 9, 20, 1000)  # noqa: DTZ001
CASES: list[tuple[Any, DataType, str]] = [
    ("A/A =%ü", STRING, "A/A =%ü"),
    (127, BYTE, "127"),
    (-32768, SHORT, "-32768"),
    (5, INTEGER, "5"),
    (-(2**63), LONG, "-9223372036854775808"),
    (1.5, DOUBLE, "1.5"),
    (1e300, DOUBLE, "1e+300"),
    (float("inf"), DOUBLE, "Infinity"),
    (float("-inf"), FLOAT, "-Infinity"),
    (True, BOOLEAN, "true"),
    (False, BOOLEAN, "false"),
    (Decimal("1.5"), DecimalType(10, 2), "1.50"),
    (Decimal("-0.00"), DecimalType(10, 2), "0.00"),
    (7, DecimalType(10, 2), "7.00"),
    (Decimal(10) ** 37, DecimalType(38, 0), "1" + "0" * 37),
    (date(2024, 2, 29), DATE, "2024-02-29"),
    (date(1, 1, 1), DATE, "0001-01-01"),
    (WALL.replace(tzinfo=UTC), TIMESTAMP, "2021-10-01T08:09:20.001000Z"),
    (WALL, TIMESTAMP_NTZ, "2021-10-01 08:09:20.001000"),
    (datetime(2021, 10, 1), TIMESTAMP_NTZ, "2021-10-01 00:00:00"),  # noqa: DTZ001
    (b"\x01\x02\x03", BINARY, "\x01\x02\x03"),
    (b"\xff\x00", BINARY, "\\u00FF\\u0000"),
    (b"a\x00", BINARY, "\\u0061\\u0000"),
    (b"\\u0041", BINARY, "\\u005C\\u0075\\u0030\\u0030\\u0034\\u0031"),
]


@pytest.mark.parametrize(("value", "data_type", "text"), CASES)
def test_values_of_every_type_are_written_and_read_back(
    value: Any, data_type: DataType, text: str
) -> None:
    assert encode_partition_value(value, data_type) == text
    assert decode_partition_value(text, data_type) == value


def test_not_a_number_is_a_partition_too() -> None:
    assert encode_partition_value(float("nan"), DOUBLE) == "NaN"
    assert math.isnan(decode_partition_value("NaN", DOUBLE))


def test_single_precision_is_written_short_and_read_exact() -> None:
    stored = 0.10000000149011612
    assert encode_partition_value(stored, FLOAT) == "0.1"
    assert encode_partition_value(0.1, FLOAT) == "0.1"
    assert decode_partition_value("0.1", FLOAT) == stored


@pytest.mark.parametrize("data_type", [t for _, t, _ in CASES], ids=str)
def test_null_and_empty_are_null(data_type: DataType) -> None:
    assert encode_partition_value(None, data_type) is None
    assert decode_partition_value(None, data_type) is None
    assert decode_partition_value("", data_type) is None


def test_an_empty_string_has_no_form_but_null() -> None:
    assert encode_partition_value("", STRING) is None
    assert encode_partition_value(b"", BINARY) is None


def test_a_timestamp_is_written_in_utc() -> None:
    local = datetime(2024, 1, 1, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert encode_partition_value(local, TIMESTAMP) == "2023-12-31T23:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2020-01-01 08:09:10.001", datetime(2020, 1, 1, 8, 9, 10, 1000, tzinfo=UTC)),
        ("2020-01-01 08:09:10", datetime(2020, 1, 1, 8, 9, 10, tzinfo=UTC)),
        ("2020-01-01T08:09:10.123456Z", datetime(2020, 1, 1, 8, 9, 10, 123456, tzinfo=UTC)),
        ("2020-01-01T08:09:10.123456789Z", datetime(2020, 1, 1, 8, 9, 10, 123456, tzinfo=UTC)),
        ("2020-01-01T08:09:10+02:00", datetime(2020, 1, 1, 6, 9, 10, tzinfo=UTC)),
        ("2020-01-01T08:09:10-0130", datetime(2020, 1, 1, 9, 39, 10, tzinfo=UTC)),
        ("2020-01-01T08:09:10+5", datetime(2020, 1, 1, 3, 9, 10, tzinfo=UTC)),
        ("2020-01-01", datetime(2020, 1, 1, tzinfo=UTC)),
    ],
)
def test_both_forms_of_timestamps_are_read(text: str, expected: datetime) -> None:
    assert decode_partition_value(text, TIMESTAMP) == expected


def test_a_timestamp_without_offset_belongs_to_the_zone_of_its_writer() -> None:
    los_angeles = ZoneInfo("America/Los_Angeles")
    assert decode_partition_value("2020-07-01 00:00:00", TIMESTAMP, zone=los_angeles) == datetime(
        2020, 7, 1, 7, tzinfo=UTC
    )
    assert decode_partition_value("2020-07-01T00:00:00Z", TIMESTAMP, zone=los_angeles) == datetime(
        2020, 7, 1, tzinfo=UTC
    )


def test_other_engines_spellings_are_read() -> None:
    assert decode_partition_value("inf", DOUBLE) == math.inf
    assert decode_partition_value("1.0E10", DOUBLE) == 1e10
    assert decode_partition_value("TRUE", BOOLEAN) is True
    assert decode_partition_value("2020-1-2", DATE) == date(2020, 1, 2)
    assert decode_partition_value("+5", LONG) == 5
    assert decode_partition_value("2020-01-01T00:00:00Z", TIMESTAMP_NTZ) == datetime(2020, 1, 1)  # noqa: DTZ001
    assert decode_partition_value("é", BINARY) == "é".encode()


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (5, STRING),
        ("\ud800", STRING),
        (True, INTEGER),
        (1.0, INTEGER),
        (128, BYTE),
        (-(2**31) - 1, INTEGER),
        (2**63, LONG),
        ("1.5", DOUBLE),
        (True, DOUBLE),
        (1e39, FLOAT),
        (1, BOOLEAN),
        (1.5, DecimalType(5, 2)),
        (Decimal("1.005"), DecimalType(5, 2)),
        (Decimal(1000), DecimalType(5, 2)),
        (Decimal("NaN"), DecimalType(5, 2)),
        (Decimal("1e1000000"), DecimalType(5, 2)),
        (datetime(2020, 1, 1, tzinfo=UTC), DATE),
        (date(2020, 1, 1), TIMESTAMP),
        (WALL, TIMESTAMP),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), TIMESTAMP),
        (WALL.replace(tzinfo=UTC), TIMESTAMP_NTZ),
        ("x", BINARY),
        ([1], ArrayType(LONG)),
        ({}, VARIANT),
    ],
)
def test_a_value_of_another_type_is_not_written(value: Any, data_type: DataType) -> None:
    with pytest.raises(InvalidSchemaError, match="partition value of type"):
        encode_partition_value(value, data_type)


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("x", LONG),
        ("1.0", LONG),
        ("1_000", LONG),
        ("٣", LONG),
        ("128", BYTE),
        ("9" * 30, LONG),
        ("x", DOUBLE),
        ("1e40", FLOAT),
        ("yes", BOOLEAN),
        ("1.005", DecimalType(5, 2)),
        ("1000", DecimalType(5, 2)),
        ("1e999", DecimalType(5, 2)),
        ("NaN", DecimalType(5, 2)),
        ("2021-02-30", DATE),
        ("yesterday", DATE),
        ("2021-01-01T25:00:00Z", TIMESTAMP),
        ("0001-01-01T00:00:00+05:00", TIMESTAMP),
        ("2021-01-01T00:00:00+99:00", TIMESTAMP),
        ("now", TIMESTAMP),
        ("2021-01-01T00:00:00+02:00", TIMESTAMP_NTZ),
        ("x", VARIANT),
        ("x", ArrayType(LONG)),
    ],
)
def test_text_that_is_no_value_of_the_type_is_refused(text: str, data_type: DataType) -> None:
    with pytest.raises(InvalidSchemaError, match="Cannot read the partition value"):
        decode_partition_value(text, data_type)


def test_a_value_cannot_look_like_a_path() -> None:
    types: dict[str, DataType] = {"x": STRING}
    assert partition_directory({"x": "A/A"}, types) == "x=A%2FA"
    assert encode_path(partition_directory({"x": "A/A"}, types)) == "x=A%252FA"
    assert decode_path("x=A%252FA") == "x=A%2FA"


@pytest.mark.parametrize("character", list("\"#%'*/:=?\\{[]^\x01\n\x1f\x7f\0"))
def test_characters_that_spark_escapes_are_escaped(character: str) -> None:
    directory = partition_directory({"x": f"a{character}b"}, {"x": STRING})
    assert directory == f"x=a%{ord(character):02X}b"


@pytest.mark.parametrize("character", list(" }|<>&@$+,;!~()-_.é日"))
def test_characters_that_spark_leaves_alone_stay(character: str) -> None:
    assert partition_directory({"x": f"a{character}b"}, {"x": STRING}) == f"x=a{character}b"


def test_null_empty_and_missing_values_share_one_directory() -> None:
    types: dict[str, DataType] = {"x": STRING, "y": LONG, "z": STRING}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert (
        encode_path(partition_directory({"x": None, "z": ""}, types))
        == f"x={null}/y={null}/z={null}"
    )


def test_columns_keep_the_order_of_the_table_and_names_are_escaped() -> None:
    types: dict[str, DataType] = {"b": DATE, "a=b": LONG}
    assert partition_directory({"a=b": 1, "b": date(2024, 1, 1)}, types) == "b=2024-01-01/a%3Db=1"


def test_a_table_without_partitions_has_no_directory() -> None:
    assert encode_path(partition_directory({}, {})) == ""


def test_a_timestamp_directory_is_safe_on_every_store() -> None:
    directory = partition_directory({"t": WALL.replace(tzinfo=UTC)}, {"t": TIMESTAMP})
    assert directory == "t=2021-10-01T08%3A09%3A20.001000Z"


@pytest.mark.parametrize(
    ("path", "encoded"),
    [
        ("a b.parquet", "a%20b.parquet"),
        ("x=1/part-0.parquet", "x=1/part-0.parquet"),
        ("100%", "100%25"),
        ("a+b#c?d", "a+b%23c%3Fd"),
        ("a:b", "a%3Ab"),
        ("ü", "%C3%BC"),
    ],
)
def test_a_path_becomes_a_uri_and_comes_back(path: str, encoded: str) -> None:
    assert encode_path(path) == encoded
    assert decode_path(encoded) == path


def test_a_plus_is_a_plus_and_a_stray_percent_stays() -> None:
    assert decode_path("a+b") == "a+b"
    assert decode_path("100%") == "100%"
    assert decode_path("s3://b/x%20y") == "s3://b/x y"


def test_escapes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidActionError, match="UTF-8"):
        decode_path("a%FFb")
