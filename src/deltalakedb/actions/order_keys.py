"""Maps values of any column type to 64-bit integers in the same order, for indexes over bounds.

Guarantees:

- `order_key` never reverses two values of one type: a <= b means key(a) <= key(b). Different values
  may share a key (long strings, decimals of very many digits); see `has_own_key`. Keys of two
  types are not comparable: when the type of a column changes, so do its keys.
- `BoundsKeys` cover the key of every value of a file that is not null. A bound that is unknown or
  not reliable gives the full range; a file without values overlaps no range. A maximum of floats
  may ignore NaN, as in the statistics that it comes from: a search for NaN (anything above a
  number) must not rely on it.
- Texts share the range by the frequency of their characters, in the order of code points: a digit
  takes 4.7 bits, a lower-case letter 6.7, a Chinese character 20. A key distinguishes 13 digits,
  9 letters or 3 Chinese characters.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

from orjson import loads as quick_loads

from deltalakedb.actions.datatypes import (
    BINARY,
    DATE,
    STRING,
    TIMESTAMP,
    ColumnPath,
    DataType,
    DecimalType,
    PrimitiveType,
)
from deltalakedb.actions.partition import INTEGER_RANGES, decode_partition_value
from deltalakedb.actions.scalars import parse_moment
from deltalakedb.actions.statistics import UNKNOWN, decode_high, decode_low, loads_tolerant
from deltalakedb.errors import InvalidSchemaError

SLOTS: Final = 3
"""The number of columns of a table that can be planned."""
LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
EVERYTHING: Final = (LOWEST, HIGHEST)
WIDTHS: Final = tuple(range(0, 66, 2))
"""Every class of `width_class`."""

NOTHING: Final = (HIGHEST, LOWEST)
"""The keys of a file that has no value but null: the ends are reversed, so nothing overlaps it."""

_ANY_ZONE: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)

Range: TypeAlias = tuple[int, int]


class PlannedColumn(Protocol):
    """A leaf column: its physical path, its type, and whether it partitions the table."""

    @property
    def physical(self) -> ColumnPath: ...
    @property
    def type(self) -> DataType: ...
    @property
    def is_partition(self) -> bool: ...


def has_order_key(data_type: DataType) -> bool:
    """Whether values of the type have keys."""
    return isinstance(data_type, DecimalType) or (
        isinstance(data_type, PrimitiveType) and data_type.name in _KEYS
    )


def order_key(value: Any, data_type: DataType) -> int:
    """The key of a value that is not null; values outside the type get the nearest key."""
    try:
        if isinstance(data_type, DecimalType):
            return _decimal(value, data_type.scale)
        if isinstance(data_type, PrimitiveType) and data_type.name in _KEYS:
            return _KEYS[data_type.name](value)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidSchemaError(
            f"Cannot order {value!r} among values of type {data_type}",
            why=f"it is a {type(value).__name__}",
            fix="Convert the value to the type of the column",
        ) from error
    raise InvalidSchemaError(
        f"Cannot order values of type {data_type}",
        why="they have no order that an index could use",
        fix="Choose columns of numbers, strings, dates or times",
    )


def has_own_key(value: Any, data_type: DataType) -> bool:
    """Whether no other value of the type has the same key."""
    if isinstance(data_type, DecimalType):
        number = Decimal(value)
        if number.adjusted() > 100:
            return False
        with localcontext(prec=400):
            unscaled = number.scaleb(data_type.scale)
            return abs(unscaled) < 2**62 and unscaled == unscaled.to_integral_value()
    if isinstance(value, str):
        return _text_has_own_key(value)
    if isinstance(value, int):
        return LOWEST <= value <= HIGHEST
    return not isinstance(value, bytes)


class BoundsKeys:
    """The lowest and highest keys of columns in files; build it once for many files."""

    __slots__ = ("_columns", "_reads_statistics")

    def __init__(self, columns: Sequence[PlannedColumn]) -> None:
        self._columns = [_of_partition(c) if c.is_partition else _of_statistics(c) for c in columns]
        self._reads_statistics = not all(c.is_partition for c in columns)

    def of(self, stats: str | None, partition_values: Mapping[str, str | None]) -> list[Range]:
        """The bounds of each column in one file. Never raises."""
        if not self._reads_statistics or stats is None:
            return [keys(None, partition_values) for keys in self._columns]
        try:
            document = quick_loads(stats)
            if type(document) is dict:
                return [keys(document, partition_values) for keys in self._columns]
        except (ValueError, _InexactError):
            pass
        document = _load(stats)
        return [keys(document, partition_values) for keys in self._columns]


def width_class(low: int, high: int) -> int:
    """The smallest even w, from 0 to 64, with high - low < 2**w.

    So an interval of class w that overlaps [a, b] begins between a - 2**w + 1 and b.
    """
    bits = (high - low).bit_length()
    return bits + bits % 2


class FileKeys:
    """The keys of files by a plan; build it once for many files of one commit."""

    def __init__(self, plan: tuple[PlannedColumn, ...]) -> None:
        self._bounds = _bounds(plan)
        self._missing = (None, None, None) * (SLOTS - len(plan))
        self._maps: dict[str, Mapping[str, str | None]] = {}

    def of(self, stats: str | None, partition_values: str) -> tuple[int | None, ...]:
        """Width class, lowest and highest key of each slot; nulls where a slot is free."""
        values = self._maps.get(partition_values)
        if values is None:
            values = self._maps[partition_values] = json.loads(partition_values)
        keys: list[int] = []
        for low, high in self._bounds.of(stats, values):
            keys += (width_class(low, high), low, high)
        return (*keys, *self._missing)


@lru_cache(maxsize=64)
def _bounds(plan: tuple[PlannedColumn, ...]) -> BoundsKeys:
    return BoundsKeys(plan)


# --- keys of values -----------------------------------------------------------------------


def _clamped(number: int) -> int:
    return min(max(number, LOWEST), HIGHEST)


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return _clamped(int(value))


def _real(value: Any) -> int:
    if isinstance(value, str):
        raise TypeError
    number = float(value)
    if math.isnan(number):
        return HIGHEST
    bits: int = struct.unpack(">q", struct.pack(">d", number))[0]
    # The bits of a negative number grow as it falls; those of -0.0 are the least of all.
    return bits if bits >= 0 else LOWEST - bits


def _day(value: Any) -> int:
    if isinstance(value, datetime):
        raise TypeError
    return int(value.toordinal()) - _EPOCH_DAY


def _moment(value: Any) -> int:
    aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return int((aware - _EPOCH) // _MICROSECOND)


# The values of a partition come again with each of its files.
@lru_cache(maxsize=4096)
def _text(value: Any) -> int:
    if not isinstance(value, str):
        raise TypeError
    return text_interval(value)[0] + LOWEST


def _bytes(value: Any) -> int:
    return int.from_bytes(bytes(value[:8]).ljust(8, b"\0"), "big") + LOWEST


def _decimal(value: Any, scale: int) -> int:
    number = Decimal(value)
    if number.adjusted() > 100:
        return HIGHEST if number > 0 else LOWEST
    with localcontext(prec=400, rounding=ROUND_FLOOR):
        unscaled = int(number.scaleb(scale).to_integral_value())
    if -(2**62) <= unscaled < 2**62:
        return unscaled
    # 38 digits have 127 bits: of such numbers the last 66 bits are left out.
    return _clamped((unscaled >> 66) + (2**62 if unscaled > 0 else -(2**62)))


_KEYS: Final[Mapping[str, Callable[[Any], int]]] = {
    **dict.fromkeys(("byte", "short", "integer", "long", "boolean"), _whole),
    **dict.fromkeys(("float", "double"), _real),
    "date": _day,
    **dict.fromkeys(("timestamp", "timestamp_ntz"), _moment),
    "string": _text,
    "binary": _bytes,
}


# --- keys of bounds -----------------------------------------------------------------------


class _InexactError(Exception):
    """A bound was read as a float, which may not be the number that was written."""


def _load(stats: str) -> dict[str, Any] | None:
    try:
        document = _decode(stats)
    except ArithmeticError:
        # An absurd exponent: slower, but it spoils no other number.
        return loads_tolerant(stats)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


_decode: Final[Callable[[str], Any]] = json.JSONDecoder(
    parse_float=Decimal, parse_constant=lambda _: UNKNOWN
).decode


_Document: TypeAlias = dict[str, Any] | None
_Keys: TypeAlias = Callable[[_Document, Mapping[str, str | None]], Range]


def _of_statistics(column: PlannedColumn) -> _Keys:
    path, data_type = column.physical, column.type
    if not has_order_key(data_type):
        return lambda _document, _partition: EVERYTHING
    low_key, high_key = _bound_key(data_type, decode_low), _bound_key(data_type, decode_high)

    def keys(document: _Document, _partition: Mapping[str, str | None]) -> Range:
        if document is None:
            return EVERYTHING
        least, most = _get(document.get("minValues"), path), _get(document.get("maxValues"), path)
        if type(least) is float or type(most) is float:
            raise _InexactError
        low, high = low_key(least), high_key(most)
        if low is None and high is None and _all_null(document, path):
            return NOTHING
        low = LOWEST if low is None else low
        high = HIGHEST if high is None else high
        return (low, high) if low <= high else EVERYTHING

    return keys


def _bound_key(
    data_type: DataType, decode: Callable[[Any, DataType], Any]
) -> Callable[[Any], int | None]:
    def slow(value: Any) -> int | None:
        decoded = decode(value, data_type)
        return None if decoded is UNKNOWN else order_key(decoded, data_type)

    # The form that nearly every file has is read at once, any other by `decode`.
    if str(data_type) in INTEGER_RANGES:
        bound = INTEGER_RANGES[str(data_type)]
        return lambda v: v if type(v) is int and -bound <= v < bound else slow(v)
    if data_type == DATE:
        return lambda v: _fast_day(v) if _DATE.fullmatch(v if type(v) is str else "") else slow(v)
    if data_type == TIMESTAMP:
        more = 1000 if decode is decode_high else 0
        return lambda v: (
            _fast_moment(v, more) if _UTC.fullmatch(v if type(v) is str else "") else slow(v)
        )
    return slow


_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UTC: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3}|\.\d{6})?Z", re.ASCII)


def _fast_day(text: str) -> int | None:
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def _fast_moment(text: str, more: int) -> int | None:
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND + more
    except ValueError:
        return None


def _all_null(document: dict[str, Any], path: ColumnPath) -> bool:
    nulls, records = _get(document.get("nullCount"), path), document.get("numRecords")
    return type(nulls) is int and type(records) is int and nulls == records >= 0


def _get(value: Any, path: ColumnPath) -> Any:
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def _of_partition(column: PlannedColumn) -> _Keys:
    name, data_type = column.physical[0], column.type
    # Many files share a partition.
    keys = lru_cache(maxsize=1024)(lambda text: _partition_keys(text, data_type))
    return lambda _document, partition: keys(partition.get(name))


def _partition_keys(text: str | None, data_type: DataType) -> Range:
    if text is None or not has_order_key(data_type):
        # The values of other types are unknown, but a null is a null.
        return NOTHING if text is None else EVERYTHING
    if text == "":
        # As text it may be a value after all: readers do not agree.
        return (LOWEST, LOWEST) if data_type in (STRING, BINARY) else NOTHING
    try:
        value = decode_partition_value(text, data_type)
        key = order_key(value, data_type)
        if data_type == PrimitiveType("timestamp") and parse_moment(text)[1] is None:
            day = _ANY_ZONE // _MICROSECOND
            return key - day, key + day
    except (InvalidSchemaError, ValueError):
        return EVERYTHING
    return key, key


# --- text -----------------------------------------------------------------------------

# Ends where the next begins. Of each group: its first code point, and how much of the range its
# characters share, in parts of 4096. The end of the text comes before every character.
_WHOLE: Final = 4096
_END: Final = 4
_GROUPS: Final = (
    (0x00, 8),
    (ord(" "), 60),
    (ord("!"), 40),
    (ord("-"), 150),
    (ord("."), 60),
    (ord("/"), 60),
    (ord("0"), 1600),
    (ord(":"), 70),
    (ord(";"), 20),
    (ord("A"), 540),
    (ord("["), 8),
    (ord("_"), 60),
    (ord("`"), 2),
    (ord("a"), 1000),
    (ord("{"), 10),
    (0x80, 200),
    (0x800, 180),
    (0x1_0000, 24),
)
_LAST: Final = 0x10_FFFF
# A text that ends with that much room shares its key with no other one.
_ROOM: Final = _WHOLE // _END


def text_interval(text: str) -> tuple[int, int]:
    """Where the keys of texts that begin with `text` lie, from 0 to 2**64: the first, how many.

    The first is the key of the text itself. Zero means that no bit is left: all share one key.
    """
    low, size = 0, 2**64
    for character in text:
        before, part, whole = _PARTS.get(character) or _part(ord(character))
        low += size * before // whole
        size = size * part // whole
        if not size:
            break
    return low, size


def _text_has_own_key(text: str) -> bool:
    """Whether no other text has the same key."""
    return text_interval(text)[1] >= _ROOM


def _part(code: int) -> tuple[int, int, int]:
    """What comes before a character, its own part, and the whole that these are parts of."""
    before = _END
    for (first, share), (following, _) in zip(_GROUPS, [*_GROUPS[1:], (_LAST + 1, 0)], strict=True):
        if code < following:
            count = following - first
            return before * count + (code - first) * share, share, _WHOLE * count
        before += share
    raise ValueError(code)


_PARTS: Final = {chr(code): _part(code) for code in range(0x80)}
