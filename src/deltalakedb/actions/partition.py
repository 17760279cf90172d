r"""Partition values as the log writes them, and the paths of partition directories.

Guarantees:

- `decode_partition_value(encode_partition_value(v, t), t)` is `v` for every value of every
  primitive type, except that an empty string or empty bytes come back as None: Delta has no
  empty partition value.
- A path is escaped twice and for two reasons: each directory so that a value cannot look like a
  path (`A/A` becomes `x=A%2FA`), then the whole path so that it is a URI (`x=A%252FA`).
  `decode_path` undoes the second step and gives the path on the store.

Bytes that are valid UTF-8 are written as that text, which is what Spark and kernel-based readers
expect; other bytes (and any NUL) are written as literal `\u00FF` escapes, as delta-rs does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote, unquote

from deltalakedb.actions.datatypes import DataType, DecimalType, PrimitiveType
from deltalakedb.actions.scalars import (
    fit_decimal,
    parse_date,
    parse_moment,
    shortest_float32,
    to_float32,
    to_utc,
)
from deltalakedb.errors import InvalidActionError, InvalidSchemaError

NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"

INTEGER_RANGES: Final[Mapping[str, int]] = {
    "byte": 2**7,
    "short": 2**15,
    "integer": 2**31,
    "long": 2**63,
}
"""Each integer type runs from minus this bound up to, but not including, it."""

# What Spark escapes in a directory name, and NUL, which no store accepts.
_ESCAPED: Final = frozenset([*map(chr, range(0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"])
# Legal in the path of a URI as it is. A colon is not among them: in the first directory it would
# end a scheme.
_URI_SAFE: Final = "/@&=+$,;!~*'()-_."
_INTEGER: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6})?", re.ASCII)
_DECIMAL: Final = re.compile(
    r"[+-]?(?:\d{1,80}\.?\d{0,80}|\.\d{1,80})(?:[eE][+-]?\d{1,3})?", re.ASCII
)
_ESCAPES: Final = re.compile(r"(?:\\u00[0-9A-Fa-f]{2})+")
_SPECIAL: Final = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "inf": float("inf"),
    "+infinity": float("inf"),
    "+inf": float("inf"),
    "-infinity": float("-inf"),
    "-inf": float("-inf"),
}


class _Wrong(ValueError):  # noqa: N818 -- reworded before it leaves this module
    """A value that does not fit its type."""


def encode_partition_value(value: Any, type: DataType) -> str | None:  # noqa: A002
    """Write a Python value as `add.partitionValues` has it; None for null and for empty."""
    if value is None:
        return None
    try:
        if isinstance(type, DecimalType):
            text = _encode_decimal(value, type)
        elif isinstance(type, PrimitiveType) and type.name in _ENCODERS:
            text = _ENCODERS[type.name](value)
        else:
            raise _Wrong("no column of this type can partition a table")
    except ValueError as error:
        raise InvalidSchemaError(
            f"Cannot write {value!r} as a partition value of type {type}",
            why=str(error),
            fix="Convert the value to the type of the column",
        ) from None
    return text or None


def decode_partition_value(text: str | None, type: DataType, *, zone: tzinfo = UTC) -> Any:  # noqa: A002
    """Read what `add.partitionValues` has as a Python value; None for null and for empty.

    Timestamps come back in UTC. One without an offset was written in the zone of its writer,
    which the log does not record: `zone` says what it was.
    """
    if text is None or text == "":
        return None
    try:
        if isinstance(type, DecimalType):
            return _decode_decimal(text, type)
        if isinstance(type, PrimitiveType):
            if type.name == "timestamp":
                return _decode_timestamp(text, zone)
            if type.name in _DECODERS:
                return _DECODERS[type.name](text)
        raise _Wrong("no column of this type can partition a table")
    except (ValueError, OverflowError) as error:
        raise InvalidSchemaError(
            f"Cannot read the partition value {text[:80]!r} as {type}",
            why=str(error),
            fix="Correct the log entry, or the type of the partition column",
        ) from None


def partition_directory(values: Mapping[str, Any], types: Mapping[str, DataType]) -> str:
    """The Hive-style directory on the store, such as `day=2024-01-01/x=A%2FA`.

    Columns come in the order of `types`; a column missing from `values` counts as null. The
    empty string when there are no partition columns.
    """
    return "/".join(
        f"{_escape(name)}={_escape(encode_partition_value(values.get(name), data_type))}"
        for name, data_type in types.items()
    )


def encode_path(path: str) -> str:
    """Turn a path relative to the table into the URI that the log writes."""
    return quote(path, safe=_URI_SAFE)


def decode_path(path: str) -> str:
    """Turn the URI of a log entry into the path it names; undoes `encode_path`."""
    if "%" not in path:
        return path
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidActionError(
            f"Cannot decode the path {path[:200]!r}",
            why="its percent escapes are not UTF-8",
            fix="Correct the log entry",
        ) from error


def _escape(text: str | None) -> str:
    if text is None or text == "":
        return NULL_DIRECTORY
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


# --- writing ------------------------------------------------------------------------------


def _encode_string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong("it is not a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _Wrong("it holds half of a surrogate pair") from None
    return str.__str__(value)


def _encode_integer(bound: int) -> Callable[[Any], str]:
    def encode(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _Wrong("it is not an integer")
        if not -bound <= value < bound:
            raise _Wrong(f"it lies outside {-bound} to {bound - 1}")
        return str(int(value))

    return encode


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Wrong("it is not a number")
    return float(value)


def _encode_float(value: Any) -> str:
    try:
        return _float_text(shortest_float32(_real(value)))
    except OverflowError:
        raise _Wrong("it lies outside the range of single precision") from None


def _encode_double(value: Any) -> str:
    return _float_text(_real(value))


def _float_text(number: float) -> str:
    text = repr(number)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


def _encode_boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise _Wrong("it is not a boolean")
    return "true" if value else "false"


def _encode_date(value: Any) -> str:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _Wrong("it is not a date")
    return value.isoformat()


def _encode_timestamp(value: Any) -> str:
    if not isinstance(value, datetime):
        raise _Wrong("it is not a datetime")
    if value.tzinfo is None:
        raise _Wrong("it has no time zone, and a timestamp is an instant")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise _Wrong("it lies outside the years 1 to 9999 in UTC") from None
    return f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _encode_timestamp_ntz(value: Any) -> str:
    if not isinstance(value, datetime):
        raise _Wrong("it is not a datetime")
    if value.tzinfo is not None:
        raise _Wrong("it has a time zone, and a timestamp_ntz has none")
    return value.isoformat(sep=" ")


def _encode_binary(value: Any) -> str:
    if not isinstance(value, (bytes, bytearray)):
        raise _Wrong("it is not bytes")
    data = bytes(value)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text or _ESCAPES.fullmatch(text):
        return "".join(f"\\u{byte:04X}" for byte in data)
    return text


def _encode_decimal(value: Any, data_type: DecimalType) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise _Wrong("it is not a Decimal or an integer")
    return format(fit_decimal(Decimal(value), data_type), "f")


_ENCODERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "string": _encode_string,
    **{name: _encode_integer(bound) for name, bound in INTEGER_RANGES.items()},
    "float": _encode_float,
    "double": _encode_double,
    "boolean": _encode_boolean,
    "binary": _encode_binary,
    "date": _encode_date,
    "timestamp": _encode_timestamp,
    "timestamp_ntz": _encode_timestamp_ntz,
}


# --- reading ------------------------------------------------------------------------------


def _decode_integer(bound: int) -> Callable[[str], int]:
    def decode(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise _Wrong("it is not an integer")
        number = int(text)
        if not -bound <= number < bound:
            raise _Wrong(f"it lies outside {-bound} to {bound - 1}")
        return number

    return decode


def _decode_double(text: str) -> float:
    special = _SPECIAL.get(text.lower())
    if special is not None:
        return special
    if not _FLOAT.fullmatch(text):
        raise _Wrong("it is not a number")
    return float(text)


def _decode_float(text: str) -> float:
    return to_float32(_decode_double(text))


def _decode_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise _Wrong("it is neither true nor false")
    return lowered == "true"


def _decode_decimal(text: str, data_type: DecimalType) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise _Wrong("it is not a decimal number")
    return fit_decimal(Decimal(text), data_type)


def _decode_timestamp(text: str, zone: tzinfo) -> datetime:
    moment, own_zone = parse_moment(text)
    return to_utc(moment, own_zone or zone)


def _decode_timestamp_ntz(text: str) -> datetime:
    moment, zone = parse_moment(text)
    if zone not in (None, UTC):
        raise _Wrong("it has a time zone, and a timestamp_ntz has none")
    return moment


def _decode_binary(text: str) -> bytes:
    if _ESCAPES.fullmatch(text):
        return bytes.fromhex(text.replace("\\u00", ""))
    return text.encode("utf-8")


_DECODERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    **{name: _decode_integer(bound) for name, bound in INTEGER_RANGES.items()},
    "float": _decode_float,
    "double": _decode_double,
    "boolean": _decode_boolean,
    "binary": _decode_binary,
    "date": parse_date,
    "timestamp_ntz": _decode_timestamp_ntz,
}
