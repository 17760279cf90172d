"""Schemas, partition values and statistics keep their promises for every type."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions.arrow import schema_from_arrow, schema_to_arrow
from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    PRIMITIVES,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    schema_from_json,
    schema_to_json,
)
from deltalakedb.actions.partition import (
    decode_partition_value,
    decode_path,
    encode_partition_value,
    encode_path,
    partition_directory,
)
from deltalakedb.actions.properties import parse_interval
from deltalakedb.actions.statistics import (
    Statistics,
    encode_stats,
    truncate_max,
    truncate_min,
)
from deltalakedb.actions.z85 import decode, encode

from support.intervals import format_interval
from support.statistics import parse_stats

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
INSTANTS = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
)
DECIMAL_TYPES = st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s))
)


def decimals(data_type: DecimalType) -> st.SearchStrategy[Decimal]:
    limit = 10**data_type.precision - 1
    return st.integers(-limit, limit).map(
        lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -data_type.scale))
    )


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


VALUES: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (STRING, TEXT.filter(bool)),
    (BYTE, whole(8)),
    (SHORT, whole(16)),
    (INTEGER, whole(32)),
    (LONG, whole(64)),
    (FLOAT, st.floats(width=32, allow_nan=False)),
    (DOUBLE, st.floats(allow_nan=False)),
    (BOOLEAN, st.booleans()),
    (BINARY, st.binary(min_size=1, max_size=8) | TEXT.filter(bool).map(str.encode)),
    (DATE, st.dates()),
    (TIMESTAMP, INSTANTS.map(lambda d: d.replace(tzinfo=UTC))),
    (TIMESTAMP_NTZ, st.datetimes()),
]
TYPED = st.one_of(
    *(st.tuples(st.just(t), values) for t, values in VALUES),
    DECIMAL_TYPES.flatmap(lambda t: st.tuples(st.just(t), decimals(t))),
)


@given(TYPED)
def test_a_partition_value_comes_back(pair: tuple[DataType, Any]) -> None:
    data_type, value = pair
    text = encode_partition_value(value, data_type)
    assert text
    back = decode_partition_value(text, data_type)
    assert back == value
    assert type(back) is type(value)


@given(st.dictionaries(TEXT.filter(bool), st.none() | TEXT, min_size=1, max_size=3))
def test_a_directory_has_one_level_per_column_and_the_log_path_leads_to_it(
    values: dict[str, str | None],
) -> None:
    types: dict[str, DataType] = dict.fromkeys(values, STRING)
    directory = partition_directory(values, types)
    assert directory.count("/") == len(values) - 1
    assert directory.count("=") == len(values)
    logged = encode_path(partition_directory(values, types))
    assert logged.isascii()
    assert decode_path(logged) == directory


@given(TEXT)
def test_a_path_comes_back_from_its_uri(path: str) -> None:
    assert decode_path(encode_path(path)) == path


def _covered(values: list[Any], data_type: DataType) -> tuple[Any, Any]:
    schema = StructType((StructField("s", StructType((StructField("a", data_type),))),))
    path = ("s", "a")
    stats = Statistics(
        num_records=len(values),
        min_values={path: min(values)},
        max_values={path: max(values)},
        null_count={path: 0},
    )
    text = encode_stats(stats, schema)
    json.loads(text)
    parsed = parse_stats(text, schema)
    assert parsed is not None
    assert parsed.num_records == len(values)
    assert parsed.null_count == {path: 0}
    return parsed.min_values.get(path), parsed.max_values.get(path)


BOUNDED = [(t, v) for t, v in VALUES if t not in (BOOLEAN, BINARY)]
LONG_TEXT = st.text(
    st.sampled_from("ab\x7e\x7f\x80é\ufffd\U0001f600\U0010ffff")
    | st.characters(exclude_categories=["Cs"]),
    max_size=80,
)
TYPED_LISTS = st.one_of(
    *(st.tuples(st.just(t), st.lists(v, min_size=1, max_size=4)) for t, v in BOUNDED),
    st.tuples(st.just(STRING), st.lists(LONG_TEXT, min_size=1, max_size=4)),
    DECIMAL_TYPES.flatmap(
        lambda t: st.tuples(st.just(t), st.lists(decimals(t), min_size=1, max_size=4))
    ),
)


@given(TYPED_LISTS)
def test_bounds_written_and_read_hold_for_every_value(pair: tuple[DataType, list[Any]]) -> None:
    data_type, values = pair
    low, high = _covered(values, data_type)
    assert low is None or all(low <= value for value in values)
    assert high is None or all(value <= high for value in values)


@given(TYPED_LISTS)
def test_bounds_are_as_tight_as_the_format_allows(pair: tuple[DataType, list[Any]]) -> None:
    data_type, values = pair
    low, high = _covered(values, data_type)
    lowest, highest = min(values), max(values)
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        assert lowest - low < timedelta(milliseconds=1)
        # The widest a bound may be: cut down by less than one millisecond, then raised by one.
        assert high is None or high - highest <= timedelta(milliseconds=1)
    elif data_type == STRING:
        assert low == lowest[:32]
        assert high is None or len(high) <= max(len(highest), 65)
        if len(highest) <= 32:
            assert high == highest
    elif isinstance(lowest, float) and not (math.isfinite(lowest) and math.isfinite(highest)):
        assert low is None or low == lowest
    else:
        assert (low, high) == (lowest, highest)


@given(LONG_TEXT, st.integers(1, 40))
def test_cut_strings_bracket_the_original_also_as_utf8(text: str, length: int) -> None:
    low, high = truncate_min(text, length), truncate_max(text, length)
    assert low.encode() <= text.encode()
    assert len(low) <= length
    if high is not None:
        assert text.encode() <= high.encode()
        assert len(high) <= 2 * length + 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["minValues", "maxValues", "nullCount", "numRecords", "tightBounds", "x"]),
)
def test_hostile_statistics_never_raise(value: Any, key: str) -> None:
    schema = StructType(tuple(StructField(name, t) for name, t in PRIMITIVES.items()))
    columns = dict.fromkeys(PRIMITIVES, value)
    for document in (value, {key: value}, {key: columns}):
        stats = parse_stats(json.dumps(document), schema)
        assert stats is None or isinstance(stats, Statistics)
        if stats is not None:
            encode_stats(Statistics(extra=stats.extra), schema)


@given(st.text(max_size=40))
def test_arbitrary_text_as_statistics_never_raises(text: str) -> None:
    stats = parse_stats(text, StructType((StructField("a", LONG),)))
    assert stats is None or stats.min_values.keys() <= {("a",)}


METADATA = st.dictionaries(
    TEXT.filter(lambda k: not k.startswith(("PARQUET:", "ARROW:"))),
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
        max_leaves=3,
    ),
    max_size=2,
)


@st.composite
def structs(draw: st.DrawFn, inner: st.SearchStrategy[DataType], least: int = 1) -> StructType:
    names = draw(st.lists(TEXT.filter(bool), min_size=least, max_size=3, unique=True))
    return StructType(
        tuple(StructField(name, draw(inner), draw(st.booleans()), draw(METADATA)) for name in names)
    )


LEAVES: st.SearchStrategy[DataType] = (
    # Void and variant have no exact Arrow form; tests of their own cover them.
    st.sampled_from([t for t in PRIMITIVES.values() if t not in (VARIANT, VOID)]) | DECIMAL_TYPES
)
TYPES: st.SearchStrategy[DataType] = st.recursive(
    LEAVES,
    lambda inner: (
        structs(inner)
        | st.builds(ArrayType, inner, st.booleans())
        | st.builds(MapType, inner, inner, st.booleans())
    ),
    max_leaves=5,
)
SCHEMAS = structs(TYPES, 0)


@given(SCHEMAS)
def test_a_schema_comes_back_from_its_json(schema: StructType) -> None:
    text = schema_to_json(schema)
    assert schema_from_json(text) == schema
    assert schema_to_json(schema_from_json(text)) == text


@given(SCHEMAS)
def test_a_schema_comes_back_from_arrow(schema: StructType) -> None:
    assert schema_from_arrow(schema_to_arrow(schema)) == schema


@given(SCHEMAS)
def test_leaves_are_distinct_and_end_in_no_struct(schema: StructType) -> None:
    leaves = schema.leaf_columns()
    assert len({path for path, _ in leaves}) == len(leaves)
    assert not any(isinstance(data_type, StructType) for _, data_type in leaves)


@given(st.binary(max_size=40).map(lambda b: b[: len(b) // 4 * 4]))
def test_z85_comes_back(data: bytes) -> None:
    assert decode(encode(data)) == data


@given(st.timedeltas())
def test_an_interval_comes_back(duration: timedelta) -> None:
    assert parse_interval(format_interval(duration)) == duration


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_single_precision_number_is_no_longer_than_needed(number: float) -> None:
    text = encode_partition_value(number, FLOAT)
    assert text is not None
    assert struct.pack("<f", float(text)) == struct.pack("<f", number)
    assert len(text) <= len(repr(number))
