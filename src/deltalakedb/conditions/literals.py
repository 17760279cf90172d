"""Compares a literal with the values that a column can have.

`place` returns the position of a literal of any kind: a value of the column, between two of its
values, or below or above all of them. Numbers are compared exactly, as SQL does for whole numbers
and decimals; with float and double columns every number is a double first, as in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Final, TypeAlias

from deltalakedb.actions.datatypes import DataType, DecimalType, PrimitiveType
from deltalakedb.actions.partition import INTEGER_RANGES
from deltalakedb.actions.scalars import parse_date, parse_moment, to_utc

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# No column has numbers beyond this; larger exponents would only cost time and memory.
_FAR: Final = 400
# Every decimal of up to 15 digits has a double of its own.
_EXACT_DIGITS: Final = 15


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time finer than Python's: microseconds since 1970, UTC or wall clock."""

    micros: Fraction
    zoned: bool


@dataclass(frozen=True, slots=True)
class Exact:
    """The literal is this value of the column."""

    value: Any


@dataclass(frozen=True, slots=True)
class Between:
    """The literal lies above this value of the column, and below the next one."""

    floor: Any


@dataclass(frozen=True, slots=True)
class Outside:
    """The literal lies above every value of the column, or below."""

    above: bool


Place: TypeAlias = Exact | Between | Outside


class WrongLiteralError(ValueError):
    """The literal is no value for the column; Spark would not take it either."""


class DoubtfulLiteralError(ValueError):
    """The literal is not taken here, though Spark may convert it."""


def place(literal: Any, data_type: DataType, zone: tzinfo) -> Place:
    """Where the literal (not None) lies among the values of the type.

    `zone` is the zone of times that name none. Raises one of the two errors above.
    """
    if isinstance(data_type, DecimalType):
        return _place_decimal(literal, data_type)
    if isinstance(data_type, PrimitiveType):
        if data_type.name in INTEGER_RANGES:
            return _place_whole(literal, data_type.name)
        if data_type.name == "timestamp":
            return _place_timestamp(literal, zone)
        if data_type.name in _PLACERS:
            return _PLACERS[data_type.name](literal)
    raise WrongLiteralError("a value of this type is compared with nothing but NULL")


def describe(literal: Any) -> str:
    """The literal and its kind, for a message."""
    if isinstance(literal, Instant):
        return f"the time {float(literal.micros / 10**6)} s after 1970"
    text = repr(literal) if isinstance(literal, str | bytes) else str(literal)
    return f"the {_kind(literal)} {text[:80]}"


def _kind(literal: Any) -> str:
    for types, name in _KINDS:
        if isinstance(literal, types):
            return name
    return type(literal).__name__


# bool before int and datetime before date: the first is a kind of the second.
_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "boolean"),
    ((int, Decimal, float), "number"),
    (str, "text"),
    (bytes, "binary"),
    ((datetime, Instant), "time"),
    (date, "date"),
)


# --- numbers ------------------------------------------------------------------------------


def _place_whole(literal: Any, name: str) -> Place:
    bound = INTEGER_RANGES[name]
    number = _number(literal)
    if isinstance(number, float):
        if not math.isfinite(number):
            # Spark puts NaN above every number.
            return Outside(above=number != -math.inf)
        if name == "long" and abs(number) >= 2**53:
            raise DoubtfulLiteralError("a double this large stands for several whole numbers")
    return _on_grid(_fraction(number), -bound, bound - 1, int)


def _place_decimal(literal: Any, data_type: DecimalType) -> Place:
    number = _number(literal)
    if isinstance(number, float):
        if not math.isfinite(number):
            return Outside(above=number != -math.inf)
        if data_type.precision > _EXACT_DIGITS:
            raise DoubtfulLiteralError("a double is not exact enough for this many digits")
        number = Decimal(repr(number))
    limit = 10**data_type.precision - 1

    def value(units: int) -> Decimal:
        with localcontext(prec=100):
            return Decimal(units).scaleb(-data_type.scale)

    return _on_grid(_fraction(number) * 10**data_type.scale, -limit, limit, value)


def _place_double(literal: Any) -> Place:
    number = _number(literal)
    try:
        double = float(number)
    except OverflowError:
        raise DoubtfulLiteralError("it is beyond the range of a double") from None
    if not math.isfinite(double):
        raise DoubtfulLiteralError("only finite numbers can be compared here")
    return Exact(double or 0.0)  # zero has no sign in SQL


def _number(literal: Any) -> int | Decimal | float:
    if isinstance(literal, str):
        raise DoubtfulLiteralError("text is not compared with numbers")
    if isinstance(literal, bool) or not isinstance(literal, int | Decimal | float):
        raise WrongLiteralError("it is no number")
    if isinstance(literal, Decimal) and not literal.is_finite():
        raise WrongLiteralError("it is no finite number")
    return literal


def _fraction(number: float | Decimal) -> Fraction:
    if isinstance(number, Decimal) and number:
        if number.adjusted() > _FAR:
            return Fraction(10**_FAR if number > 0 else -(10**_FAR))
        if number.adjusted() < -_FAR:
            return Fraction(1 if number > 0 else -1, 10**_FAR)
    return Fraction(number)


def _on_grid(units: Fraction, low: int, high: int, value: Callable[[int], Any]) -> Place:
    if units > high:
        return Outside(above=True)
    if units < low:
        return Outside(above=False)
    floor = units.numerator // units.denominator
    return Exact(value(floor)) if floor == units else Between(value(floor))


# --- text and the rest --------------------------------------------------------------------


def _place_string(literal: Any) -> Place:
    if not isinstance(literal, str):
        raise DoubtfulLiteralError("it is no text")
    try:
        literal.encode("utf-8")
    except UnicodeEncodeError:
        raise WrongLiteralError("it holds half of a surrogate pair") from None
    return Exact(literal)


def _place_boolean(literal: Any) -> Place:
    if isinstance(literal, str):
        raise DoubtfulLiteralError("text is not compared with booleans")
    if not isinstance(literal, bool):
        raise WrongLiteralError("it is no boolean")
    return Exact(literal)


def _place_binary(literal: Any) -> Place:
    if isinstance(literal, str):
        raise DoubtfulLiteralError("text is not compared with bytes")
    if not isinstance(literal, bytes):
        raise WrongLiteralError("it is not binary")
    return Exact(literal)


# --- dates and times ----------------------------------------------------------------------


def _place_date(literal: Any) -> Place:
    if isinstance(literal, str):
        try:
            return Exact(parse_date(literal))
        except ValueError as error:
            raise DoubtfulLiteralError(str(error)) from None
    if isinstance(literal, datetime | Instant):
        raise DoubtfulLiteralError("a time is not compared with dates")
    if not isinstance(literal, date):
        raise WrongLiteralError("it is no date")
    return Exact(literal)


def _place_timestamp(literal: Any, zone: tzinfo) -> Place:
    wall, own_zone = _moment(literal)
    if isinstance(wall, Instant):
        if not wall.zoned and zone is not UTC:
            raise DoubtfulLiteralError("a time finer than microseconds needs its own zone")
        return _place_instant(wall, lambda moment: moment)
    try:
        return Exact(to_utc(wall, own_zone or zone))
    except ValueError as error:
        raise WrongLiteralError(str(error)) from None


def _place_timestamp_ntz(literal: Any) -> Place:
    wall, own_zone = _moment(literal)
    if own_zone is not None or (isinstance(wall, Instant) and wall.zoned):
        raise DoubtfulLiteralError("it has a zone, and a timestamp_ntz has none")
    if isinstance(wall, Instant):
        return _place_instant(wall, lambda moment: moment.replace(tzinfo=None))
    return Exact(wall)


def _place_instant(instant: Instant, convert: Callable[[datetime], datetime]) -> Place:
    def value(micros: int) -> datetime:
        return convert(_EPOCH + timedelta(microseconds=micros))

    low = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
    high = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
    placed = _on_grid(instant.micros, low, high, value)
    if isinstance(placed, Outside):
        # A column may have such years, so nothing is decided.
        raise WrongLiteralError("it lies outside the years 1 to 9999")
    return placed


def _moment(literal: Any) -> tuple[datetime | Instant, tzinfo | None]:
    if isinstance(literal, str):
        try:
            return parse_moment(literal)
        except ValueError as error:
            raise DoubtfulLiteralError(str(error)) from None
    if isinstance(literal, Instant):
        return literal, None
    if isinstance(literal, datetime):
        return literal.replace(tzinfo=None), literal.tzinfo
    if isinstance(literal, date):
        # Midnight as wall-clock time; the zone is the column's matter.
        return datetime(literal.year, literal.month, literal.day), None  # noqa: DTZ001
    raise WrongLiteralError("it is no time")


_PLACERS: Final[Mapping[str, Callable[[Any], Place]]] = {
    "float": _place_double,
    "double": _place_double,
    "string": _place_string,
    "boolean": _place_boolean,
    "binary": _place_binary,
    "date": _place_date,
    "timestamp_ntz": _place_timestamp_ntz,
}
