"""File statistics (`add.stats`): typed bounds out of JSON, and JSON out of typed bounds.

Guarantees:

- Reading is tolerant and safe for pruning. Text that is no JSON object gives None; a bound that
  is missing, null, NaN, infinite, of the wrong type or out of range is simply absent, which means
  "unknown". Every bound that is present holds: low <= each value <= high, in the order of the
  values' own types (strings by code point, which is the order of their UTF-8 bytes).
- Timestamps were cut to milliseconds when they were written, so a maximum read is one millisecond
  higher. Single-precision bounds are rounded to single precision, so they equal a value stored.
- Writing keeps the same promise: strings are cut with a tie-breaker, NaN and infinities left out.

Bounds and null counts are keyed by the *logical* path of a leaf column, `("a",)` or
`("person", "age")`; the JSON uses physical names, and the codec translates.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.datatypes import (
    ColumnPath,
    DataType,
    DecimalType,
    PrimitiveType,
    StructType,
)
from deltalakedb.actions.partition import INTEGER_RANGES
from deltalakedb.actions.scalars import (
    fit_decimal,
    parse_date,
    parse_moment,
    shortest_float32,
    to_float32,
    to_utc,
)
from deltalakedb.errors import InvalidSchemaError

STRING_PREFIX_LENGTH: Final = 32
_MILLISECOND: Final = timedelta(milliseconds=1)
# Writers of old marked a cut maximum with U+FFFD, which is not above every character.
_OLD_TIE_BREAKER: Final = "\ufffd"
_ASCII_TIE_BREAKER: Final = "\x7f"
_TIE_BREAKER: Final = "\U0010ffff"
_KNOWN: Final = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")

_STEP: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`.,\s](?:[^`.,]*[^`.,\s])?))\s*([.,]|$)")


class _Unknown:
    """The value for a bound that is not reliable."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a file's statistics say; whatever is absent is unknown.

    `tight_bounds` is None where the statistics do not say, which counts as tight.
    `extra` keeps unknown top-level keys.
    """

    num_records: int | None = None
    min_values: Mapping[ColumnPath, Any] = field(default_factory=dict)
    max_values: Mapping[ColumnPath, Any] = field(default_factory=dict)
    null_count: Mapping[ColumnPath, int] = field(default_factory=dict)
    tight_bounds: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_stats(
    stats: Statistics,
    schema: StructType,
    *,
    columns: Iterable[ColumnPath] | None = None,
    string_prefix_length: int = STRING_PREFIX_LENGTH,
) -> str:
    """Write statistics as JSON text; bounds may have their full length and precision.

    `columns` limits the output to these leaf columns (see `covered_columns`). Order of keys is
    that of the schema. Raises `InvalidSchemaError` where a bound is no value of its column.

    A column of floats that contains NaN should come without its maximum: engines sort NaN above
    every number, and a smaller maximum would hide those rows.
    """
    wanted = None if columns is None else set(columns)
    leaves = [
        (path, physical, data_type)
        for (path, data_type), (physical, _) in zip(
            schema.leaf_columns(), schema.leaf_columns(physical=True), strict=True
        )
        if wanted is None or path in wanted
    ]
    parts = []
    if stats.num_records is not None:
        parts.append(f'"numRecords":{stats.num_records:d}')
    for key, bounds, is_max in (
        ("minValues", stats.min_values, False),
        ("maxValues", stats.max_values, True),
    ):
        texts: dict[ColumnPath, str] = {}
        for path, physical, data_type in leaves:
            if bounds.get(path) is not None:
                text = _bound_text(path, bounds[path], data_type, is_max, string_prefix_length)
                if text is not None:
                    texts[physical] = text
        parts.append(f'"{key}":{_nested_text(texts)}')
    counts = {p: f"{stats.null_count[path]:d}" for path, p, _ in leaves if path in stats.null_count}
    parts.append(f'"nullCount":{_nested_text(counts)}')
    if stats.tight_bounds is not None:
        parts.append(f'"tightBounds":{"true" if stats.tight_bounds else "false"}')
    parts += [
        f"{jsonvalue.dumps(key)}:{jsonvalue.dumps(stats.extra[key])}"
        for key in sorted(stats.extra)
        if key not in _KNOWN
    ]
    return f"{{{','.join(parts)}}}"


def covered_columns(
    schema: StructType,
    *,
    partition_columns: Sequence[str] = (),
    num_indexed: int = 32,
    named: str | None = None,
) -> list[ColumnPath]:
    """The leaf columns that statistics cover, in schema order.

    That is the first `num_indexed` leaves of the data columns (-1 for all), or, where `named` has
    the property `delta.dataSkippingStatsColumns`, the leaves of the columns it lists.
    """
    partitions = {name.lower() for name in partition_columns}
    leaves = [path for path, _ in schema.leaf_columns() if path[0].lower() not in partitions]
    if named is None:
        return leaves if num_indexed < 0 else leaves[:num_indexed]
    listed = [tuple(step.lower() for step in path) for path in parse_column_list(named)]
    return [
        path
        for path in leaves
        if any(tuple(step.lower() for step in path[: len(start)]) == start for start in listed)
    ]


def parse_column_list(text: str) -> list[ColumnPath]:
    """Split a list such as "a, b.c, `odd.name`" into column paths."""
    columns: list[ColumnPath] = []
    steps: list[str] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise InvalidSchemaError(
                f"Cannot read the list of columns {text!r}",
                why=f"there is no column name at character {position + 1}",
                fix="Separate columns by commas and nested names by dots; put names that "
                "contain either into backticks, and double a backtick inside them",
            )
        quoted, plain, separator = match.groups()
        steps.append(plain if quoted is None else quoted.replace("``", "`"))
        if separator != ".":
            columns.append(tuple(steps))
            steps = []
        position = match.end()
    if steps:
        columns.append(tuple(steps))
    return columns


# --- reading ------------------------------------------------------------------------------


def loads_tolerant(text: str | None) -> dict[str, Any] | None:
    """Parse a JSON object whose numbers may be NaN, infinite or absurd: those become UNKNOWN.

    None for anything that is no JSON object. Never raises.
    """
    if not isinstance(text, str):
        return None
    try:
        value = _parse_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_decimal(text: str) -> Decimal | _Unknown:
    try:
        return Decimal(text)
    except InvalidOperation:
        return UNKNOWN


def _parse_integer(text: str) -> int | _Unknown:
    # Longer ones are no statistics, and Python refuses to convert the very long.
    return int(text) if len(text) <= 100 else UNKNOWN


_parse_json: Final[Callable[[str], Any]] = json.JSONDecoder(
    parse_float=_parse_decimal, parse_int=_parse_integer, parse_constant=lambda _: UNKNOWN
).decode


def decode_low(value: Any, data_type: DataType) -> Any:
    """A JSON value of `minValues` as a lower bound; UNKNOWN where it is none. Never raises."""
    try:
        return _decode(value, data_type)
    except (ValueError, OverflowError):
        return UNKNOWN


def decode_high(value: Any, data_type: DataType) -> Any:
    """A JSON value of `maxValues` as an upper bound; UNKNOWN where it is none. Never raises."""
    try:
        decoded = _decode(value, data_type)
        if isinstance(decoded, datetime):
            return decoded + _MILLISECOND
    except (ValueError, OverflowError):
        return UNKNOWN
    if (
        isinstance(decoded, str)
        and decoded.endswith(_OLD_TIE_BREAKER)
        and len(decoded) > STRING_PREFIX_LENGTH
    ):
        return decoded[:-1] + _TIE_BREAKER
    return decoded


def _decode(value: Any, data_type: DataType) -> Any:
    if isinstance(data_type, DecimalType):
        return _exact(value)
    if not isinstance(data_type, PrimitiveType):
        return UNKNOWN
    decoder = _DECODERS.get(data_type.name)
    return UNKNOWN if decoder is None else decoder(value)


def _exact(value: Any) -> Any:
    if isinstance(value, Decimal):
        # No column holds a number of more than 400 digits; as a bound it could only do harm.
        return value if abs(value.adjusted()) < 400 else UNKNOWN
    return Decimal(value) if type(value) is int else UNKNOWN


def _integer(bound: int) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        number = value
        if isinstance(value, Decimal) and abs(value.adjusted()) < 40 and value == int(value):
            number = int(value)
        if type(number) is not int or not -bound <= number < bound:
            return UNKNOWN
        return number

    return decode


def _double(value: Any) -> Any:
    number = _exact(value)
    if number is UNKNOWN:
        return UNKNOWN
    double = float(number)
    return UNKNOWN if double in (float("inf"), float("-inf")) else double


def _float(value: Any) -> Any:
    double = _double(value)
    return UNKNOWN if double is UNKNOWN else to_float32(double)


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        return UNKNOWN
    value.encode("utf-8")
    return value


def _date(value: Any) -> date | object:
    return parse_date(value) if isinstance(value, str) else UNKNOWN


def _timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        return UNKNOWN
    moment, zone = parse_moment(value)
    return UNKNOWN if zone is None else to_utc(moment, zone)


def _timestamp_ntz(value: Any) -> Any:
    if not isinstance(value, str):
        return UNKNOWN
    moment, zone = parse_moment(value)
    return moment if zone in (None, UTC) else UNKNOWN


_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: _integer(bound) for name, bound in INTEGER_RANGES.items()},
    "float": _float,
    "double": _double,
    "string": _string,
    "boolean": lambda value: value if isinstance(value, bool) else UNKNOWN,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


# --- writing ------------------------------------------------------------------------------


def _bound_text(
    path: ColumnPath,
    value: Any,
    data_type: DataType,
    is_max: bool,  # noqa: FBT001 -- private, and the loop above names it
    prefix_length: int,
) -> str | None:
    try:
        return write_bound(value, data_type, is_max=is_max, prefix_length=prefix_length)
    except ValueError as error:
        raise InvalidSchemaError(
            f"Cannot write {value!r} as a bound of the column {'.'.join(path)!r}",
            why=f"{error} (the column is {data_type})",
            fix="Convert the bound to the type of the column",
        ) from None


def _nested_text(texts: Mapping[ColumnPath, str]) -> str:
    """Write values by path as nested objects, in the order they come."""
    groups: dict[str, dict[ColumnPath, str]] = {}
    for path, text in texts.items():
        groups.setdefault(path[0], {})[path[1:]] = text
    parts = [
        f"{jsonvalue.dumps(name)}:{inner[()] if () in inner else _nested_text(inner)}"
        for name, inner in groups.items()
    ]
    return f"{{{','.join(parts)}}}"


def truncate_min(text: str, length: int) -> str:
    """Cut a lower bound to `length` characters: a prefix sorts before what it begins."""
    return text[:length]


def truncate_max(text: str, length: int) -> str | None:
    """Cut an upper bound to about `length` characters so that it still sorts after `text`.

    The tie-breaker is U+007F if the first character cut is below it, otherwise U+10FFFF. Where
    that character is U+10FFFF itself the prefix grows, up to twice `length`; None if that does
    not help.
    """
    if len(text) <= length:
        return text
    for cut in range(length, 2 * length + 1):
        if cut >= len(text):
            return text
        following = text[cut]
        if following < _ASCII_TIE_BREAKER:
            return text[:cut] + _ASCII_TIE_BREAKER
        if following < _TIE_BREAKER:
            return text[:cut] + _TIE_BREAKER
    return None


def write_bound(value: Any, data_type: DataType, *, is_max: bool, prefix_length: int) -> str | None:
    """Write one bound as JSON text; None where it has to be left out.

    Raises ValueError with the reason where the value is not one of its type.
    """
    if isinstance(data_type, DecimalType):
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise _invalid("it is not a Decimal")
        return format(fit_decimal(Decimal(value), data_type), "f")
    if data_type == PrimitiveType("string"):
        return _write_string(value, is_max=is_max, length=prefix_length)
    writer = _WRITERS.get(data_type.name) if isinstance(data_type, PrimitiveType) else None
    return None if writer is None else writer(value)


def _invalid(why: str) -> ValueError:
    return ValueError(why)


def _write_string(value: Any, *, is_max: bool, length: int) -> str | None:
    if not isinstance(value, str):
        raise _invalid("it is not a string")
    cut = truncate_max(value, length) if is_max else truncate_min(value, length)
    return None if cut is None else jsonvalue.dumps(cut)


def _write_integer(bound: int) -> Callable[[Any], str]:
    def write(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _invalid("it is not an integer")
        if not -bound <= value < bound:
            raise _invalid(f"it lies outside {-bound} to {bound - 1}")
        return int.__repr__(value)

    return write


def _write_double(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid("it is not a number")
    number = float(value)
    return jsonvalue.format_number(number) if math.isfinite(number) else None


def _write_float(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid("it is not a number")
    try:
        return _write_double(shortest_float32(float(value)))
    except OverflowError:
        raise _invalid("it lies outside the range of single precision") from None


def _write_date(value: Any) -> str:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _invalid("it is not a date")
    return f'"{value.isoformat()}"'


def _write_timestamp(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _invalid("it is not a datetime with a time zone")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise _invalid("it lies outside the years 1 to 9999 in UTC") from None
    return f'"{utc.replace(tzinfo=None).isoformat(timespec="milliseconds")}Z"'


def _write_timestamp_ntz(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise _invalid("it is not a datetime without a time zone")
    return f'"{value.isoformat(timespec="milliseconds")}"'


_WRITERS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    **{name: _write_integer(bound) for name, bound in INTEGER_RANGES.items()},
    "float": _write_float,
    "double": _write_double,
    "date": _write_date,
    "timestamp": _write_timestamp,
    "timestamp_ntz": _write_timestamp_ntz,
}
"""Types that have bounds; the others (booleans, binary, variant, nested) only have null counts."""
