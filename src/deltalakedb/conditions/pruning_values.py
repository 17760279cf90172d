"""The values of a predicate as SQL compares them: exact, or widened where an engine would round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from deltalakedb.actions.datatypes import DataType, DecimalType, PrimitiveType
from deltalakedb.conditions.pruning_engine import Kind
from deltalakedb.store.url import Engine

# A maximum was cut to milliseconds, and SQLite rounds to milliseconds.
_CUT: Final = timedelta(milliseconds=2)
# Offsets reach 18 hours, and those of old were odd.
_ANY_ZONE: Final = timedelta(days=1)
_HIGHEST: Final = 0x10FFFF
_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), "whole"),
    **dict.fromkeys(("float", "double"), "real"),
    "boolean": "bool",
    "date": "date",
    "string": "string",
    "timestamp": "instant",
    "timestamp_ntz": "wall",
}


@dataclass(frozen=True, slots=True)
class Edges:
    """A value lies between `low` and `high`; where `exact` they are equal, and so compared."""

    low: object
    high: object
    exact: bool


def kind_of(data_type: DataType) -> Kind | None:
    """How values of a type are compared; None where they cannot be."""
    if isinstance(data_type, DecimalType):
        return "decimal"
    return _KINDS.get(data_type.name) if isinstance(data_type, PrimitiveType) else None


def edges(value: Any, kind: Kind, data_type: DataType, engine: Engine) -> Edges | None:
    """The value as parameters; None where this engine cannot compare it."""
    return _READERS[kind](value, data_type, engine)


def _whole(value: Any, _type: DataType, _engine: Engine) -> Edges | None:
    if not isinstance(value, int):
        return None
    if -(2**63) <= value < 2**63:
        return Edges(int(value), int(value), exact=True)
    # No row is as great; the nearest value that every engine takes is.
    near = min(max(value, -(2**63)), 2**63 - 1)
    return Edges(near, near, exact=False)


def _real(value: Any, data_type: DataType, _engine: Engine) -> Edges | None:
    """Wide enough for the text of a bound that was rounded on writing and on reading."""
    if not isinstance(value, (int, float, Decimal)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    if data_type == PrimitiveType("float"):
        slack = abs(number) * 2**-22 + 2**-148
        return Edges(number - slack, number + slack, exact=False)
    low = high = number
    for _ in range(8):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return Edges(low, high, exact=False)


def _decimal(value: Any, data_type: DataType, engine: Engine) -> Edges | None:
    if engine != "postgres":
        return _real(value, data_type, engine)
    if not isinstance(value, (int, Decimal)):
        return None
    number = Decimal(value)
    if not number.is_finite() or abs(number.adjusted()) > 400:
        return None
    return Edges(number, number, exact=False)


def _bool(value: Any, _type: DataType, _engine: Engine) -> Edges | None:
    return Edges(int(value), int(value), exact=True) if isinstance(value, bool) else None


def _date(value: Any, _type: DataType, _engine: Engine) -> Edges | None:
    if isinstance(value, datetime) or not isinstance(value, date):
        return None
    return Edges(value.isoformat(), value.isoformat(), exact=True)


def _string(value: Any, _type: DataType, _engine: Engine) -> Edges | None:
    return Edges(value, value, exact=True) if isinstance(value, str) else None


def _moment(slack: timedelta) -> Callable[[Any, DataType, Engine], Edges | None]:
    def read(value: Any, _type: DataType, _engine: Engine) -> Edges | None:
        if not isinstance(value, datetime):
            return None
        wall = value
        if value.tzinfo is not None:
            wall = value.astimezone(UTC).replace(tzinfo=None)
        # Before every time and after every time, where the calendar ends.
        low = "" if wall - datetime.min < slack else (wall - slack).isoformat()  # noqa: DTZ901
        high = "~" if datetime.max - wall < slack else (wall + slack).isoformat()  # noqa: DTZ901
        return Edges(low, high, exact=False)

    return read


_READERS: Final[dict[Kind, Callable[[Any, DataType, Engine], Edges | None]]] = {
    "whole": _whole,
    "real": _real,
    "decimal": _decimal,
    "bool": _bool,
    "date": _date,
    "string": _string,
    "instant": _moment(_CUT),
    "wall": _moment(_CUT),
    "legacy": _moment(_ANY_ZONE),
}


def hulls(points: Sequence[Edges], limit: int) -> list[Edges]:
    """At most `limit` intervals that hold all the points, which come in ascending order."""
    size = -(-len(points) // limit)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [Edges(group[0].low, group[-1].high, exact=False) for group in groups]


def after_prefix(prefix: str) -> str | None:
    """The least string above every string that begins with `prefix`; None where there is none."""
    kept = prefix.rstrip(chr(_HIGHEST))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    # Half a surrogate pair is no character.
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)
