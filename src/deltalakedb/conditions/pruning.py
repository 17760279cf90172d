"""Pruning: the files that can hold a matching row, by the bounds of their columns.

Guarantees:

- No file is dropped that could hold a matching row, as Spark compares: NaN equals itself and is
  above every number, -0.0 equals 0.0, strings sort by code point. A maximum of floats may ignore
  NaN, and with `tightBounds` false the bounds and the extremes of `nullCount` still hold.
- An unknown bound keeps the file.
- The work is bounded: a long list of values becomes at most `MOST_VALUES` intervals, and of a
  condition with more than `MOST_TERMS` comparisons the last ones are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.datatypes import FLOAT
from deltalakedb.conditions.bounds import key_of, round_decimal
from deltalakedb.conditions.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    Null,
    OneOf,
    Operator,
    Or,
    Predicate,
    StartsWith,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.conditions.bounds import Bounds, Key

MOST_VALUES: Final = 200
"""Of a longer list of values, neighbours become one interval."""
MOST_TERMS: Final = 1_000
DEEPEST: Final = 100
_HIGHEST: Final = 0x10FFFF


def matching_files(predicate: Predicate, bounds: Mapping[Key, Bounds], size: int) -> pa.Array:
    """A boolean for each of `size` files: whether it may hold a matching row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    result = _Pruning(bounds).matches(predicate, 0)
    if isinstance(result, bool):
        return pa.repeat(pa.scalar(result), size)
    matches = pc.fill_null(result, fill_value=True)
    return matches.combine_chunks() if isinstance(matches, pa.ChunkedArray) else matches


@dataclass(frozen=True, slots=True)
class _Interval:
    """A literal lies from `low` to `high`; where `exact` they are equal to it."""

    low: pa.Scalar
    high: pa.Scalar
    exact: bool


class _Pruning:
    """Compares a predicate with bounds; null is unknown, True and False hold for every file."""

    def __init__(self, bounds: Mapping[Key, Bounds]) -> None:
        self._bounds = bounds
        self._terms = 0

    def matches(self, predicate: Predicate, depth: int) -> Any:
        if isinstance(predicate, Constant):
            return predicate.value
        if isinstance(predicate, (And, Or)):
            if depth > DEEPEST:
                return True
            join = _all if isinstance(predicate, And) else _any
            return join(self.matches(part, depth + 1) for part in predicate.parts)
        if not isinstance(predicate, (Comparison, OneOf, StartsWith, Null)):
            return True
        self._terms += 1
        if self._terms > MOST_TERMS:
            return True
        bounds = self._bounds[key_of(predicate.column)]
        if isinstance(predicate, Null):
            return bounds.has_value if predicate.negated else bounds.has_null
        if bounds.low is None or bounds.high is None:
            return bounds.has_value
        if isinstance(predicate, Comparison):
            fits = _compare(bounds, predicate.column, predicate.operator, predicate.value)
        elif isinstance(predicate, OneOf):
            fits = _one_of(bounds, predicate)
        else:
            fits = _starts_with(bounds, predicate)
        return _all([bounds.has_value, fits])


def _compare(bounds: Bounds, column: Column, operator: Operator, value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert bounds.low is not None  # noqa: S101 - the caller has asked
    if (
        operator in (">", ">=")
        and pa.types.is_floating(bounds.low.type)
        and not column.is_partition
    ):
        # NaN is above every number, and the maximum may not count it.
        return True
    at = _interval(value, column, bounds.low.type)
    if at is None:
        return True
    if operator == "=":
        return _overlaps(bounds, at)
    if operator == "<>":
        return pc.invert(_holds_only(bounds, at)) if _tells_all(bounds, column, at) else True
    if operator in ("<", "<="):
        compare = pc.less if at.exact and operator == "<" else pc.less_equal
        return compare(bounds.low, at.high)
    compare = pc.greater if at.exact and operator == ">" else pc.greater_equal
    return compare(bounds.high, at.low)


def _one_of(bounds: Bounds, predicate: OneOf) -> Any:
    import pyarrow.compute as pc

    assert bounds.low is not None  # noqa: S101 - the caller has asked
    try:
        values = sorted(predicate.values)
    except TypeError:
        return True
    points = [_interval(value, predicate.column, bounds.low.type) for value in values]
    known = [point for point in points if point is not None]
    if len(known) < len(points) or not known:
        return True
    if not predicate.negated:
        return _any(_overlaps(bounds, hull) for hull in _hulls(known, MOST_VALUES))
    if len(known) > MOST_VALUES or not all(
        _tells_all(bounds, predicate.column, point) for point in known
    ):
        return True
    return _all(pc.invert(_holds_only(bounds, point)) for point in known)


def _starts_with(bounds: Bounds, predicate: StartsWith) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert bounds.low is not None  # noqa: S101 - the caller has asked
    prefix = predicate.prefix
    if not prefix:
        return not predicate.negated
    after = after_prefix(prefix)
    if not pa.types.is_string(bounds.low.type) or after is None:
        return True
    first, last = _text(prefix), _text(after)
    if first is None or last is None:
        return True
    if predicate.negated:
        inside = pc.and_kleene(pc.greater_equal(bounds.low, first), pc.less(bounds.high, last))
        return pc.invert(inside)
    return pc.and_kleene(pc.less(bounds.low, last), pc.greater_equal(bounds.high, first))


def _overlaps(bounds: Bounds, at: _Interval) -> Any:
    import pyarrow.compute as pc

    return pc.and_kleene(pc.less_equal(bounds.low, at.high), pc.greater_equal(bounds.high, at.low))


def _tells_all(bounds: Bounds, column: Column, at: _Interval) -> bool:
    """Whether equal bounds mean that a file has no other value: NaN may not count in them."""
    import pyarrow as pa

    assert bounds.low is not None  # noqa: S101 - the caller has asked
    return at.exact and (column.is_partition or not pa.types.is_floating(bounds.low.type))


def _holds_only(bounds: Bounds, at: _Interval) -> Any:
    import pyarrow.compute as pc

    return pc.and_kleene(pc.equal(bounds.low, at.low), pc.equal(bounds.high, at.low))


def _hulls(points: Sequence[_Interval], limit: int) -> list[_Interval]:
    """At most `limit` intervals that hold all the points, which come in ascending order."""
    size = -(-len(points) // limit)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [_Interval(group[0].low, group[-1].high, exact=False) for group in groups]


def after_prefix(prefix: str) -> str | None:
    """The least string above every string that begins with `prefix`; None where there is none."""
    stem = prefix.rstrip(chr(_HIGHEST))
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    # Half a surrogate pair is no character.
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)


def _all(parts: Iterable[Any]) -> Any:
    import pyarrow.compute as pc

    return _join(parts, pc.and_kleene, neutral=True)


def _any(parts: Iterable[Any]) -> Any:
    import pyarrow.compute as pc

    return _join(parts, pc.or_kleene, neutral=False)


def _join(parts: Iterable[Any], join: Callable[[Any, Any], Any], *, neutral: bool) -> Any:
    arrays = []
    for part in parts:
        if not isinstance(part, bool):
            arrays.append(part)
        elif part is not neutral:
            return part
    return reduce(join, arrays) if arrays else neutral


# --- literals -----------------------------------------------------------------------------


def _interval(value: Any, column: Column, kind: pa.DataType) -> _Interval | None:
    """The literal as a value of the bounds' type; None where it cannot be compared."""
    import pyarrow as pa

    if pa.types.is_int64(kind):
        return _whole(value, kind)
    if pa.types.is_floating(kind):
        return _real(value, is_single=column.was_float or column.type == FLOAT)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind)
    if pa.types.is_int8(kind):
        return _exactly(int(value), kind) if isinstance(value, bool) else None
    if pa.types.is_date(kind):
        is_date = isinstance(value, date) and not isinstance(value, datetime)
        return _exactly(value, kind) if is_date else None
    if pa.types.is_timestamp(kind):
        return _moment(value, kind)
    text = _text(value) if isinstance(value, str) else None
    return None if text is None else _Interval(text, text, exact=True)


def _exactly(value: Any, kind: pa.DataType) -> _Interval:
    import pyarrow as pa

    scalar = pa.scalar(value, kind)
    return _Interval(scalar, scalar, exact=True)


def _whole(value: Any, kind: pa.DataType) -> _Interval | None:
    if not isinstance(value, int):
        return None
    if -(2**63) <= value < 2**63:
        return _exactly(int(value), kind)
    # No row is as great; the nearest value of the type stands for it.
    near = _exactly(min(max(value, -(2**63)), 2**63 - 1), kind)
    return _Interval(near.low, near.high, exact=False)


def _real(value: Any, *, is_single: bool) -> _Interval | None:
    """A number; of single precision, wide enough for the text of a bound that was rounded."""
    import pyarrow as pa

    if not isinstance(value, (int, float, Decimal)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    if not is_single:
        return _exactly(number, pa.float64())
    slack = abs(number) * 2**-22 + 2**-148
    low, high = (pa.scalar(number + one, pa.float64()) for one in (-slack, slack))
    return _Interval(low, high, exact=False)


def _decimal(value: Any, kind: pa.DataType) -> _Interval | None:
    import pyarrow as pa

    if not isinstance(value, (int, Decimal)):
        return None
    number = Decimal(value)
    if not number.is_finite() or abs(number.adjusted()) > 400:
        return None
    low = round_decimal(number, kind, ROUND_FLOOR)
    high = round_decimal(number, kind, ROUND_CEILING)
    if low is None or high is None:
        return None
    return _Interval(pa.scalar(low, kind), pa.scalar(high, kind), exact=low == high)


def _moment(value: Any, kind: pa.DataType) -> _Interval | None:
    if not isinstance(value, datetime):
        return None
    if kind.tz is None:
        return _exactly(value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value, kind)
    return _exactly(value if value.tzinfo else value.replace(tzinfo=UTC), kind)


def _text(value: str) -> pa.Scalar | None:
    import pyarrow as pa

    try:
        return pa.scalar(value, pa.string())
    except UnicodeEncodeError:
        return None
