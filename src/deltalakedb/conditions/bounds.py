"""Bounds of columns in files, as Arrow columns, for pruning.

Guarantees:

- `low` <= each value of the column in the file <= `high`, in the order of the column's type. A
  bound that is missing, malformed or out of range is null, which means unknown. Nothing raises,
  whatever `stats` and `partition_values` hold.
- A maximum that its writer truncated (a time to milliseconds, a string to a prefix) is widened.
- A partition column has equal bounds in each file. A timestamp without a zone is widened by a
  day. An empty text may be null or an empty string (readers differ), so both stay possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.actions.datatypes import ColumnPath, DataType, DecimalType, PrimitiveType
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.order_keys import has_order_key, order_key
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.scalars import parse_moment
from deltalakedb.actions.statistics import (
    UNKNOWN,
    covered_columns,
    decode_high,
    decode_low,
    loads_tolerant,
)
from deltalakedb.conditions.predicate import Column
from deltalakedb.deltalog.checkpoint_rows import read_objects, spread
from deltalakedb.errors import DeltaLakeDbError

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.actions import Metadata

_CUT: Final = timedelta(milliseconds=1)
# Offsets of zones reach 18 hours, and historic ones were irregular.
_ANY_ZONE: Final = timedelta(days=1)
_OLD_TIE_BREAKER, _HIGHEST_CHARACTER = "\ufffd", "\U0010ffff"
_EXACT: Final = Context(prec=2000)
_Tree: TypeAlias = "dict[str, _Tree | pa.DataType]"
Key: TypeAlias = tuple[ColumnPath, bool]
"""The physical path of a column, and whether it is a partition column."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """One column in many files: its bounds, and whether it has a value and a null.

    `low` and `high` are None for a type that has no order.
    """

    low: pa.Array | None
    high: pa.Array | None
    has_value: pa.Array
    has_null: pa.Array

    def take(self, positions: pa.Array) -> Bounds:
        """The column in these files."""
        low, high = (None if b is None else b.take(positions) for b in (self.low, self.high))
        return Bounds(low, high, self.has_value.take(positions), self.has_null.take(positions))

    @staticmethod
    def joined(parts: Sequence[Bounds]) -> Bounds:
        """The column in the files of all the parts."""
        import pyarrow as pa

        columns = zip(*((p.low, p.high, p.has_value, p.has_null) for p in parts), strict=True)
        return Bounds(*(None if one[0] is None else pa.chunked_array(one) for one in columns))


def key_of(column: Column) -> Key:
    """The key of the bounds of a column."""
    return column.physical, column.is_partition


def column_key(column: Column) -> str:
    """The key as text, for the catalog."""
    return dumps(["partition" if column.is_partition else "data", *column.physical])


def indexed_columns(metadata: Metadata) -> list[Column]:
    """The columns with bounds in pages: partition columns, and those with statistics."""
    schema = metadata.schema
    properties = TableProperties(metadata.configuration)
    covered = set(
        covered_columns(
            schema,
            partition_columns=metadata.partition_columns,
            num_indexed=properties.num_indexed_cols,
            named=properties.stats_columns,
        )
    )
    partitions = {name.lower() for name in metadata.partition_columns}
    leaves = zip(schema.leaf_columns(), schema.leaf_columns(physical=True), strict=True)
    return [
        Column(path, physical, data_type, is_partition=path[0].lower() in partitions)
        for (path, data_type), (physical, _) in leaves
        if path in covered or (len(path) == 1 and path[0].lower() in partitions)
    ]


def bounds_type(data_type: DataType) -> pa.DataType | None:
    """The Arrow type of the bounds of a column; None where values have no order."""
    import pyarrow as pa

    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    kinds = {
        **dict.fromkeys(("byte", "short", "integer", "long"), pa.int64()),
        **dict.fromkeys(("float", "double"), pa.float64()),
        "boolean": pa.int8(),
        "string": pa.string(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    return kinds.get(data_type.name) if isinstance(data_type, PrimitiveType) else None


def read_bounds(
    columns: Iterable[Column], stats: pa.Array, partition_values: pa.Array
) -> dict[Key, Bounds]:
    """The bounds of columns in files with these statistics and partition values, as JSON texts."""
    wanted = list(columns)
    data = [column for column in wanted if not column.is_partition]
    bounds = _statistics(data, stats) if data else {}
    return bounds | {
        key_of(column): _partition(column, partition_values)
        for column in wanted
        if column.is_partition
    }


def page_range(column: Column, bounds: Bounds) -> tuple[int | None, int | None]:
    """The least and the greatest order key of a column in many files; None where unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if bounds.low is None or bounds.high is None or not has_order_key(column.type):
        return None, None
    if pa.types.is_floating(bounds.low.type) or pa.types.is_int8(bounds.low.type):
        return None, None  # a maximum may not count NaN; two values are not worth a range
    relevant = pc.fill_null(bounds.has_value, fill_value=True)
    low, high = bounds.low.filter(relevant), bounds.high.filter(relevant)
    return (
        _order_key(None if low.null_count else pc.min(low).as_py, column),
        _order_key(None if high.null_count else pc.max(high).as_py, column),
    )


def _order_key(value: Callable[[], Any] | None, column: Column) -> int | None:
    try:
        found = None if value is None else value()
        return None if found is None else order_key(found, column.type)
    except (DeltaLakeDbError, OverflowError, ValueError):
        return None


# --- statistics ---------------------------------------------------------------------------


def _statistics(columns: Sequence[Column], texts: pa.Array) -> dict[Key, Bounds]:
    import pyarrow as pa

    try:
        bounds = _at_once(columns, texts)
    except (pa.ArrowException, OverflowError, ValueError):
        bounds = None
    return _one_by_one(columns, texts) if bounds is None else bounds


def _at_once(columns: Sequence[Column], texts: pa.Array) -> dict[Key, Bounds] | None:
    """Arrow parses all texts at once; None where it might be too lenient."""
    import pyarrow.compute as pc

    present = texts.drop_null() if texts.null_count else texts
    if not len(present):
        return {key_of(column): _unknown(column, len(texts)) for column in columns}
    if not pc.all(pc.starts_with(present, "{")).as_py():
        return None
    table = read_objects(present, _transport(columns))
    if table is None:
        return None
    place: Callable[[pa.Array], pa.Array] = lambda values: (  # noqa: E731
        spread(values, texts) if texts.null_count else values
    )
    records = place(_count(table["numRecords"].combine_chunks()))
    roots = {name: table[name].combine_chunks() for name in table.column_names}
    bounds = {}
    for column in columns:
        kind = bounds_type(column.type)
        low = high = None
        if kind is not None:
            low = place(_typed(_inner(roots["minValues"], column.physical), kind))
            high = place(_raised(_typed(_inner(roots["maxValues"], column.physical), kind)))
        nulls = place(_count(_inner(roots["nullCount"], column.physical)))
        bounds[key_of(column)] = _counted(low, high, nulls, records)
    return bounds


def _counted(
    low: pa.Array | None, high: pa.Array | None, nulls: pa.Array, records: pa.Array
) -> Bounds:
    import pyarrow.compute as pc

    return Bounds(low, high, pc.not_equal(nulls, records), pc.not_equal(nulls, 0))


def _transport(columns: Sequence[Column]) -> pa.Schema:
    """The types that Arrow parses; dates and times are text first, because its parser is lax."""
    import pyarrow as pa

    bounds: _Tree = {}
    counts: _Tree = {}
    for column in columns:
        kind = bounds_type(column.type)
        if kind is not None:
            text = pa.types.is_temporal(kind)
            boolean = pa.types.is_int8(kind)
            carried = pa.string() if text else pa.bool_() if boolean else kind
            _plant(bounds, column.physical, carried)
        _plant(counts, column.physical, pa.int64())
    fields = [("numRecords", pa.int64()), ("nullCount", _struct(counts))]
    if bounds:
        fields += [("minValues", _struct(bounds)), ("maxValues", _struct(bounds))]
    return pa.schema(fields)


def _plant(tree: _Tree, path: Sequence[str], kind: pa.DataType) -> None:
    for step in path[:-1]:
        branch = tree.setdefault(step, {})
        if not isinstance(branch, dict):
            raise ValueError("a column and a struct share a physical name")  # noqa: TRY004
        tree = branch
    tree[path[-1]] = kind


def _struct(tree: _Tree) -> pa.DataType:
    import pyarrow as pa

    return pa.struct(
        [(name, _struct(one) if isinstance(one, dict) else one) for name, one in tree.items()]
    )


def _inner(values: pa.Array, path: Sequence[str]) -> pa.Array:
    import pyarrow.compute as pc

    # Unlike StructArray.field, this is null where the struct around it is.
    return pc.struct_field(values, list(path))


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(values), values, pa.scalar(None, kind))
    if pa.types.is_temporal(kind):
        typed = values.cast(kind)
        years = pc.min_max(pc.year(typed))
        lowest, highest = years["min"].as_py(), years["max"].as_py()
        if lowest is not None and not 1 <= lowest <= highest <= 9999:
            raise ValueError("a year has not four digits")
        return typed
    return values.cast(kind)


def _raised(values: pa.Array) -> pa.Array:
    """Upper bounds, as high as they can have been before they were truncated."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(values.type):
        return pc.add(values, pa.scalar(_CUT))
    if pa.types.is_string(values.type):
        return pc.replace_substring(values, _OLD_TIE_BREAKER, _HIGHEST_CHARACTER)
    return values


def _count(values: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.greater_equal(values, 0), values, pa.scalar(None, pa.int64()))


def _unknown(column: Column, size: int) -> Bounds:
    import pyarrow as pa

    kind = bounds_type(column.type)
    bound = None if kind is None else pa.nulls(size, kind)
    return Bounds(bound, bound, pa.nulls(size, pa.bool_()), pa.nulls(size, pa.bool_()))


def _one_by_one(columns: Sequence[Column], texts: pa.Array) -> dict[Key, Bounds]:
    import pyarrow as pa

    documents = [loads_tolerant(text) or {} for text in texts.to_pylist()]
    records = pa.array([_whole(one.get("numRecords")) for one in documents], pa.int64())
    bounds = {}
    for column in columns:
        kind = bounds_type(column.type)
        low = high = None
        if kind is not None:
            lows = [_at(one.get("minValues"), column.physical) for one in documents]
            highs = [_at(one.get("maxValues"), column.physical) for one in documents]
            low = _decoded([decode_low(v, column.type) for v in lows], kind, ROUND_FLOOR)
            high = _decoded([decode_high(v, column.type) for v in highs], kind, ROUND_CEILING)
            if pa.types.is_string(kind):
                high = _raised(high)
        nulls = [_whole(_at(one.get("nullCount"), column.physical)) for one in documents]
        bounds[key_of(column)] = _counted(low, high, pa.array(nulls, pa.int64()), records)
    return bounds


def _decoded(values: Sequence[Any], kind: pa.DataType, rounding: str) -> pa.Array:
    import pyarrow as pa

    fitted = [None if value is UNKNOWN else _fitted(value, kind, rounding) for value in values]
    return pa.array(fitted, kind)


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _fitted(value: Any, kind: pa.DataType, rounding: str) -> Any:
    """A value as Arrow takes it for a type; None where it does not fit."""
    import pyarrow as pa

    if isinstance(value, bool):
        return int(value)
    if pa.types.is_decimal(kind):
        return round_decimal(value, kind, rounding)
    if pa.types.is_floating(kind):
        number = float(value)
        return number if math.isfinite(number) else None
    return value


def round_decimal(value: Decimal, kind: pa.DataType, rounding: str) -> Decimal | None:
    """A decimal at the scale of a type, rounded down or up; None where it has too many digits."""
    rounded = value.quantize(Decimal(1).scaleb(-kind.scale), rounding=rounding, context=_EXACT)
    fits = rounded.adjusted() + kind.scale < kind.precision or not rounded
    return rounded if fits else None


# --- partition values ---------------------------------------------------------------------


def _partition(column: Column, texts: pa.Array) -> Bounds:
    import pyarrow as pa

    kind = bounds_type(column.type)
    encoded = texts.dictionary_encode()
    rows = []
    for text in encoded.dictionary.to_pylist():
        values = loads_tolerant(text) or {}
        value = values.get(column.physical[0])
        rows.append(_partition_row(value if isinstance(value, str) else None, column, kind))
    numbers = encoded.indices
    columns = [list(one) for one in zip(*rows, strict=True)] if rows else [[], [], [], []]
    low = high = None
    if kind is not None:
        low, high = (pa.array(values, kind).take(numbers) for values in columns[:2])
    has_value, has_null = (pa.array(values, pa.bool_()).take(numbers) for values in columns[2:])
    return Bounds(low, high, has_value, has_null)


def _partition_row(
    text: str | None, column: Column, kind: pa.DataType | None
) -> tuple[Any, Any, bool | None, bool | None]:
    """The bounds of a partition value, and whether it can be a value and a null."""
    if text is None:
        return None, None, False, True
    if text == "":
        if kind is None:
            return None, None, None, None
        is_string = column.type == PrimitiveType("string")
        return ("", "", None, None) if is_string else (None, None, False, True)
    if kind is None:
        return None, None, True, False
    try:
        low, high = _spanned(decode_partition_value(text, column.type), text)
    except (DeltaLakeDbError, OverflowError, ValueError):
        return None, None, True, False
    return _fitted_value(low, kind), _fitted_value(high, kind), True, False


def _spanned(value: Any, text: str) -> tuple[Any, Any]:
    """The lowest and the highest value that a partition value can stand for."""
    if isinstance(value, float) and math.isnan(value):
        # NaN is above every number, and no condition names it.
        return math.inf, math.inf
    if isinstance(value, datetime) and value.tzinfo is not None:
        _, zone = parse_moment(text)
        if zone is None:
            first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
            low = first if value - first < _ANY_ZONE else value - _ANY_ZONE
            return low, last if last - value < _ANY_ZONE else value + _ANY_ZONE
    return value, value


def _fitted_value(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if isinstance(value, float) and pa.types.is_floating(kind):
        return value
    return _fitted(value, kind, ROUND_FLOOR)
