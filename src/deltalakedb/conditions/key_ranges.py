"""The intervals of order keys that a condition allows for one column.

Guarantees: a file with a matching row has key bounds (see `actions/order_keys.py`) that overlap one
of the intervals, and an index on (width class, lowest key) finds all such files by `probe_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from deltalakedb.actions.datatypes import STRING, DataType, PrimitiveType
from deltalakedb.actions.order_keys import (
    HIGHEST,
    LOWEST,
    WIDTHS,
    PlannedColumn,
    Range,
    has_order_key,
    has_own_key,
    order_key,
    text_interval,
)
from deltalakedb.conditions.predicate import (
    And,
    Comparison,
    Constant,
    OneOf,
    Or,
    Predicate,
    StartsWith,
)

MOST_RANGES: Final = 64


def key_ranges(predicate: Predicate, column: PlannedColumn) -> list[Range] | None:
    """Disjoint intervals, ascending, for the keys of values in matching rows.

    None: the condition does not restrict the column. An empty list: no row can match. There are at
    most `MOST_RANGES`; the nearest ones are joined.
    """
    found = _ranges(predicate, column)
    if found is None or found == [(LOWEST, HIGHEST)]:
        return None
    return _fewer(found)


def probe_rows(ranges: Sequence[Range]) -> list[tuple[int, int, int, int]]:
    """The lookups in an index on (width class, lowest key) for files that overlap a range.

    Each row is (width, low_from, low_to, a): the files of that class whose lowest key lies between
    `low_from` and `low_to`, and whose highest key is `a` or above. The ranges are disjoint and
    ascending; each file that overlaps one is returned exactly once, by the first that it overlaps.
    """
    rows = []
    before = LOWEST - 1
    for a, b in ranges:
        # A file that begins before the end of an earlier range, and overlaps this one, overlaps
        # that one too.
        rows += [(width, max(a - 2**width + 1, before + 1), b, a) for width in WIDTHS]
        before = b
    return rows


def _ranges(predicate: Predicate, column: PlannedColumn) -> list[Range] | None:
    if isinstance(predicate, Constant):
        return None if predicate.value else []
    if isinstance(predicate, And):
        known = [r for r in (_ranges(p, column) for p in predicate.parts) if r is not None]
        return None if not known else _intersection(known)
    if isinstance(predicate, Or):
        parts = [_ranges(part, column) for part in predicate.parts]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else _union(r for part in known for r in part)
    if (
        not isinstance(predicate, (Comparison, OneOf, StartsWith))
        or predicate.column.physical != column.physical
        or predicate.column.is_partition != column.is_partition
        or not has_order_key(column.type)
    ):
        return None
    if isinstance(predicate, Comparison):
        return _comparison(predicate, column)
    if predicate.negated:
        return None
    if isinstance(predicate, OneOf):
        keys = [order_key(value, column.type) for value in predicate.values]
        return _union((key, key) for key in keys)
    if column.type != STRING:
        return None
    low, size = text_interval(predicate.prefix)
    return [(low + LOWEST, low + LOWEST + max(size - 1, 0))]


def _comparison(predicate: Comparison, column: PlannedColumn) -> list[Range] | None:
    operator = predicate.operator
    key = order_key(predicate.value, column.type)
    # Only where each value has a key of its own can the next one be the first that is greater.
    step = 1 if operator in ("<", ">") and has_own_key(predicate.value, column.type) else 0
    if operator == "=":
        return [(key, key)]
    if operator in ("<", "<="):
        return [(LOWEST, key - step)] if key - step >= LOWEST else []
    if operator in (">", ">="):
        if _is_real(column.type) and not column.is_partition:
            # NaN is above every number, and the maximum may not count it.
            return None
        return [(key + step, HIGHEST)] if key + step <= HIGHEST else []
    return None


def _is_real(data_type: DataType) -> bool:
    return isinstance(data_type, PrimitiveType) and data_type.name in ("float", "double")


def _union(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _intersection(parts: Sequence[list[Range]]) -> list[Range]:
    found = parts[0]
    for part in parts[1:]:
        found = _union(
            (max(a, c), min(b, d)) for a, b in found for c, d in part if a <= d and c <= b
        )
    return found


def _fewer(ranges: list[Range]) -> list[Range]:
    if len(ranges) <= MOST_RANGES:
        return ranges
    gaps = [(ranges[n + 1][0] - ranges[n][1], n) for n in range(len(ranges) - 1)]
    ends = sorted(n for _, n in sorted(gaps, reverse=True)[: MOST_RANGES - 1])
    starts = [0, *(n + 1 for n in ends)]
    return [
        (ranges[start][0], ranges[end][1])
        for start, end in zip(starts, [*ends, len(ranges) - 1], strict=True)
    ]
