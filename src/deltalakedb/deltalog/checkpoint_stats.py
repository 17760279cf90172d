"""Statistics as typed columns: the JSON text of `add.stats` to `add.stats_parsed`.

Guarantees:

- What is no value of its column (NaN, out of range, of another type, no JSON at all) becomes null,
  which means unknown; nothing raises.
- Values are those of the JSON: a reader widens maxima of timestamps and cut strings of both forms
  by the same rules.

Arrow parses a whole batch at once. It is stricter than these guarantees, so a batch that it
refuses, or in which it would be too lenient, is parsed file by file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.actions.datatypes import DataType, DecimalType, StructType, physical_name
from deltalakedb.actions.scalars import fit_decimal
from deltalakedb.actions.statistics import decode_low
from deltalakedb.actions.statistics_json import UNKNOWN, loads_tolerant
from deltalakedb.deltalog.checkpoint_schema import (
    bounds_type,
    counts_type,
    has_bounds,
    stats_type,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LONG: Final = 2**63 - 1
_COUNTS: Final = ("numRecords", "nullCount")
_Tree: TypeAlias = "dict[str, _Tree | DataType]"


class StatsParser:
    """Parses the statistics of one table; build it once for many batches."""

    def __init__(self, columns: StructType) -> None:
        self.type = stats_type(columns)
        self._bounds = _tree(columns, only_bounds=True)
        self._counts = _tree(columns, only_bounds=False)
        self._transport = _transport_schema(columns)

    def parse(self, texts: pa.Array) -> pa.StructArray:
        """The typed statistics of each file; null where a file has none."""
        import pyarrow as pa

        try:
            found = self._at_once(texts)
        except (pa.ArrowException, OverflowError, ValueError):
            found = None
        return self._one_by_one(texts) if found is None else found

    def _at_once(self, texts: pa.Array) -> pa.StructArray | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        present = texts.drop_null() if texts.null_count else texts
        if not len(present):
            return pa.nulls(len(texts), self.type)
        if not pc.all(pc.starts_with(present, "{")).as_py():
            return None
        table = read_objects(present, self._transport)
        if table is None:
            return None
        fields = [
            _shaped(table[field.name].combine_chunks(), field.type, counts=field.name in _COUNTS)
            for field in self.type.fields
        ]
        parsed = pa.StructArray.from_arrays(fields, fields=list(self.type.fields))
        return spread(parsed, texts) if texts.null_count else parsed

    def _one_by_one(self, texts: pa.Array) -> pa.StructArray:
        import pyarrow as pa

        return pa.array([self._file(text) for text in texts.to_pylist()], self.type)

    def _file(self, text: str | None) -> dict[str, Any] | None:
        document = loads_tolerant(text)
        if document is None:
            return None
        tight = document.get("tightBounds")
        return {
            "numRecords": _count(document.get("numRecords")),
            "minValues": _values(document.get("minValues"), self._bounds, _bound),
            "maxValues": _values(document.get("maxValues"), self._bounds, _bound),
            "nullCount": _values(document.get("nullCount"), self._counts, _null_count),
            "tightBounds": tight if isinstance(tight, bool) else None,
        }


def read_objects(texts: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """JSON objects, one in each text, as a table; None where a text holds more than one."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(whole, "\n")[0].as_buffer()
    table = pj.read_json(
        pa.BufferReader(joined),
        # One block: an object is never cut. Threads gain nothing, and break a forked child.
        read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return table if table.num_rows == len(texts) else None


def spread(values: pa.Array, like: pa.Array) -> pa.Array:
    """The values in the places where `like` is not null, and nulls in the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    present = like.is_valid()
    places = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
    return values.take(pc.if_else(present, places, pa.scalar(None, pa.int64())))


# --- at once ------------------------------------------------------------------------------


def _transport_schema(columns: StructType) -> pa.Schema:
    """What Arrow is to make of the JSON; dates and times are text first, to be looked at."""
    import pyarrow as pa

    fields = {"numRecords": pa.int64()}
    bounds = bounds_type(columns)
    if bounds is not None:
        fields["minValues"] = fields["maxValues"] = _transported(bounds)
    counts = counts_type(columns)
    if counts is not None:
        fields["nullCount"] = counts
    fields["tightBounds"] = pa.bool_()
    return pa.schema(fields)


def _transported(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct({field.name: _transported(field.type) for field in kind.fields})
    return pa.string() if pa.types.is_temporal(kind) else kind


def _shaped(values: pa.Array, kind: pa.DataType, *, counts: bool = False) -> pa.Array:
    """Values that Arrow has parsed, as the type they are to have; raises where one does not fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(kind):
        children = [
            _shaped(values.field(field.name), field.type, counts=counts) for field in kind.fields
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind.fields), mask=mask)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(values), values, pa.scalar(None, kind))
    if pa.types.is_temporal(kind):
        # The cast is as strict as the protocol: a zone where there has to be one, else none.
        return _in_calendar(values.cast(kind))
    if counts and pc.any(pc.less(values, 0)).as_py():
        raise ValueError("a count is negative")
    return values


def _in_calendar(values: pa.Array) -> pa.Array:
    """Dates and times of the years 1 to 9999, which is all that most readers can hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    years = pc.min_max(pc.year(values))
    lowest, highest = years["min"].as_py(), years["max"].as_py()
    if lowest is not None and not 1 <= lowest <= highest <= 9999:
        raise pa.ArrowInvalid("a year has not four digits")
    return values


# --- file by file -------------------------------------------------------------------------


def _tree(columns: StructType, *, only_bounds: bool) -> _Tree:
    tree: _Tree = {}
    for field in columns.fields:
        if isinstance(field.type, StructType):
            tree[physical_name(field)] = _tree(field.type, only_bounds=only_bounds)
        elif not only_bounds or has_bounds(field.type):
            tree[physical_name(field)] = field.type
    return tree


def _values(found: Any, tree: _Tree, decode: Any) -> dict[str, Any] | None:
    if not isinstance(found, Mapping):
        return None
    return {
        name: _values(found.get(name), inner, decode)
        if isinstance(inner, dict)
        else decode(found.get(name), inner)
        for name, inner in tree.items()
    }


def _bound(value: Any, data_type: DataType) -> Any:
    decoded: Any = UNKNOWN if value is None else decode_low(value, data_type)
    if decoded is UNKNOWN:
        return None
    if isinstance(data_type, DecimalType):
        try:
            return fit_decimal(decoded, data_type)
        except ValueError:
            return None
    return decoded


def _null_count(value: Any, _: DataType) -> int | None:
    return _count(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_LONG else None
