"""Rows of any engine as values that can be compared: the same row is equal whoever read it.

What engines may differ in without being wrong is levelled: the order of rows and of map entries,
dictionary and view encodings, the width of integers and floats, maps as lists of pairs, the unit
and the zone that an instant is told in. What would be wrong stays different: an instant against a
wall clock, text against bytes, -0.0 against 0.0, null against anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

Row: TypeAlias = tuple[Any, ...]
Level: TypeAlias = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# More rows than this are compared as sorted Arrow columns: a million Python tuples take too long.
MANY = 50_000


def canonical_rows(table: pa.Table, like: pa.Schema | None = None) -> list[Row]:
    """The rows in an order of their own; columns that are maps in `like` count as such."""
    columns = []
    for index, column in enumerate(table.columns):
        level = _level(column.type, None if like is None else like.field(index).type)
        columns.append([level(value) for value in _values(column)])
    rows: list[Row] = list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
    return sorted(rows, key=repr)


def differences(ours: pa.Table, theirs: pa.Table) -> list[str]:
    """In what two tables differ; nothing where they are the same rows of the same columns."""
    if ours.column_names != theirs.column_names:
        return [f"columns: {ours.column_names} and {theirs.column_names}"]
    if ours.num_rows != theirs.num_rows:
        return [f"rows: {ours.num_rows} and {theirs.num_rows}"]
    if ours.num_rows > MANY:
        return [] if _sorted(ours).equals(_sorted(theirs.cast(ours.schema))) else ["other values"]
    mine, other = canonical_rows(ours), canonical_rows(theirs, ours.schema)
    return [f"{a} and {b}" for a, b in zip(mine, other, strict=True) if a != b][:3]


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # Python's datetime ends with the year 9999, and has no nanoseconds.
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _level(kind: pa.DataType, like: pa.DataType | None) -> Level:
    """What makes a value of this type comparable."""
    level = _level_value(kind, like)
    return lambda value: None if value is None else level(value)


def _level_value(kind: pa.DataType, like: pa.DataType | None) -> Level:
    if pa.types.is_dictionary(kind):
        return _level_value(kind.value_type, like)
    if pa.types.is_floating(kind):
        return lambda value: "NaN" if math.isnan(value) else repr(float(value))
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_timestamp(kind):
        return _time(kind)
    if pa.types.is_struct(kind):
        return _struct(kind, like)
    if pa.types.is_map(kind):
        return _map(kind.key_type, kind.item_type, like)
    if hasattr(kind, "value_type"):
        inner = kind.value_type
        if like is not None and pa.types.is_map(like) and pa.types.is_struct(inner):
            pairs = _map(inner.field(0).type, inner.field(1).type, like)
            return lambda value: pairs([tuple(pair.values()) for pair in value])
        item = _level(inner, getattr(like, "value_type", None))
        return lambda value: [item(entry) for entry in value]
    return lambda value: value


def _decimal(value: Decimal) -> str:
    # By text: arithmetic would round to the precision of the context.
    text = f"{value:f}"
    return "decimal " + (text.rstrip("0").rstrip(".") if "." in text else text)


def _time(kind: pa.TimestampType) -> Level:
    word, per_second = ("instant" if kind.tz else "wall clock"), _PER_SECOND[kind.unit]

    def level(value: Any) -> tuple[str, int]:
        if isinstance(value, int):
            return word, value * 1_000_000 // per_second
        return word, (value - (_EPOCH if value.tzinfo else _WALL_EPOCH)) // _MICROSECOND

    return level


def _struct(kind: pa.StructType, like: pa.DataType | None) -> Level:
    model = like if like is not None and pa.types.is_struct(like) else None
    fields = [
        (field.name, _level(field.type, model.field(index).type if model else None))
        for index, field in enumerate(kind)
    ]
    if {name for name, _ in fields} == {"metadata", "value"}:
        # The two halves of a variant come in either order.
        fields.sort()
    return lambda value: [(name, inner(value[name])) for name, inner in fields]


def _map(key: pa.DataType, item: pa.DataType, like: pa.DataType | None) -> Level:
    model = like if like is not None and pa.types.is_map(like) else None
    level_key = _level(key, model.key_type if model else None)
    level_item = _level(item, model.item_type if model else None)
    return lambda value: sorted(((level_key(k), level_item(v)) for k, v in value), key=repr)
