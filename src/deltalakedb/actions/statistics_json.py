"""The JSON of single bounds: truncating and writing values, and reading untrusted JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.datatypes import DataType, DecimalType, PrimitiveType
from deltalakedb.actions.partition import INTEGER_RANGES
from deltalakedb.actions.scalars import fit_decimal, shortest_float32


class _Unknown:
    """The value for a bound that is not reliable."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_ASCII_TIE_BREAKER: Final = "\x7f"
_TIE_BREAKER: Final = "\U0010ffff"


def loads_tolerant(text: str | None) -> dict[str, Any] | None:
    """Parse a JSON object whose numbers may be NaN, infinite or absurd: those become UNKNOWN.

    None for anything that is no JSON object. Never raises.
    """
    if not isinstance(text, str):
        return None
    try:
        value = _decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _decimal(text: str) -> Decimal | _Unknown:
    try:
        return Decimal(text)
    except InvalidOperation:
        return UNKNOWN


def _integer(text: str) -> int | _Unknown:
    # Longer ones are no statistics, and Python refuses to convert the very long.
    return int(text) if len(text) <= 100 else UNKNOWN


_decode: Final[Callable[[str], Any]] = json.JSONDecoder(
    parse_float=_decimal, parse_int=_integer, parse_constant=lambda _: UNKNOWN
).decode


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
            raise _wrong("it is not a Decimal")
        return format(fit_decimal(Decimal(value), data_type), "f")
    if data_type == PrimitiveType("string"):
        return _string(value, is_max=is_max, length=prefix_length)
    writer = _WRITERS.get(data_type.name) if isinstance(data_type, PrimitiveType) else None
    return None if writer is None else writer(value)


def _wrong(why: str) -> ValueError:
    return ValueError(why)


def _string(value: Any, *, is_max: bool, length: int) -> str | None:
    if not isinstance(value, str):
        raise _wrong("it is not a string")
    cut = truncate_max(value, length) if is_max else truncate_min(value, length)
    return None if cut is None else jsonvalue.dumps(cut)


def _whole(bound: int) -> Callable[[Any], str]:
    def write(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong("it is not an integer")
        if not -bound <= value < bound:
            raise _wrong(f"it lies outside {-bound} to {bound - 1}")
        return int.__repr__(value)

    return write


def _double(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong("it is not a number")
    number = float(value)
    return jsonvalue.format_number(number) if math.isfinite(number) else None


def _single(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong("it is not a number")
    try:
        return _double(shortest_float32(float(value)))
    except OverflowError:
        raise _wrong("it lies outside the range of single precision") from None


def _day(value: Any) -> str:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _wrong("it is not a date")
    return f'"{value.isoformat()}"'


def _instant(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _wrong("it is not a datetime with a time zone")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise _wrong("it lies outside the years 1 to 9999 in UTC") from None
    return f'"{utc.replace(tzinfo=None).isoformat(timespec="milliseconds")}Z"'


def _wall_clock(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise _wrong("it is not a datetime without a time zone")
    return f'"{value.isoformat(timespec="milliseconds")}"'


_WRITERS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    **{name: _whole(bound) for name, bound in INTEGER_RANGES.items()},
    "float": _single,
    "double": _double,
    "date": _day,
    "timestamp": _instant,
    "timestamp_ntz": _wall_clock,
}
"""Types that have bounds; the others (booleans, binary, variant, nested) only have null counts."""
