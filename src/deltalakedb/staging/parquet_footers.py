"""Reads Parquet footers: the columns as Delta types, and the statistics.

- Only the footer is read.
- Bounds that are not certain are left out: those inside lists and maps, and for foreign files those
  of floats, because their footers ignore NaN.
- Bounds and counts of Spark's writer are exact; it omits both for very long texts. With a NaN its
  maximum is NaN, which the statistics leave out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.actions.arrow import schema_from_arrow
from deltalakedb.actions.datatypes import (
    ArrayType,
    ColumnPath,
    DataType,
    MapType,
    StructType,
)
from deltalakedb.actions.statistics import Statistics
from deltalakedb.errors import DataFileError, InvalidSchemaError, SchemaMismatchError

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from deltalakedb.reading.filesystem import TableFiles
    from deltalakedb.staging.counting import Covered


@dataclass(frozen=True, slots=True)
class Footer:
    """The content of a footer; unknown statistics of a column are missing."""

    schema: StructType
    rows: int
    nulls: dict[ColumnPath, int] = field(default_factory=dict)
    low: dict[ColumnPath, Any] = field(default_factory=dict)
    high: dict[ColumnPath, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of a file; `plain` columns are not inside lists or maps."""

    path: ColumnPath
    type: pa.DataType
    plain: bool


def read_footer(files: TableFiles, path: str) -> Footer:
    """Read the footer of the file of a log path."""
    with files.open(path) as source:
        try:
            file = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us")
            metadata, arrow = file.metadata, file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise DataFileError(
                f"{path} at {files.location} is no Parquet file that can be read",
                why=str(error).partition("\n")[0][:300],
                fix="Move files that are not part of the table elsewhere, or give them names that "
                "begin with an underscore",
            ) from None
    kinds = [metadata.schema.column(i).physical_type for i in range(metadata.num_columns)]
    try:
        schema = schema_from_arrow(_read_as(arrow, iter(kinds)))
    except InvalidSchemaError as error:
        raise SchemaMismatchError(
            f"{path} at {files.location} cannot be part of a Delta table: {error.what}",
            why=error.why,
            fix="Write that file again with a type that Delta has, or move it elsewhere",
        ) from None
    leaves = [leaf for column in arrow for leaf in _leaves(column, (), plain=True)]
    footer = Footer(schema, metadata.num_rows)
    if len(leaves) == len(kinds):
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        for i, leaf in enumerate(leaves):
            if leaf.plain:
                _count(footer, leaf, [group.column(i) for group in groups])
    return footer


def _count(footer: Footer, leaf: _Leaf, chunks: list[Any]) -> None:
    statistics: list[Any] = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
    if any(one is None or not one.has_null_count for one in statistics):
        return
    footer.nulls[leaf.path] = sum(one.null_count for one in statistics)
    if not _has_bounds(leaf.type):
        return
    # A row group of nulls has no bounds.
    filled = [
        one
        for one, chunk in zip(statistics, chunks, strict=True)
        if one.null_count < chunk.num_values
    ]
    try:
        if filled and all(one.has_min_max for one in filled):
            low, high = min(one.min for one in filled), max(one.max for one in filled)
            footer.low[leaf.path], footer.high[leaf.path] = low, high
    except (ValueError, TypeError, OverflowError):
        # Bytes that are no text, times that Python does not have.
        return


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    texts = types.is_string(kind) or types.is_large_string(kind)
    numbers = types.is_integer(kind) or types.is_decimal(kind)
    return bool(texts or numbers or types.is_date(kind) or types.is_timestamp(kind))


def _leaves(column: pa.Field, above: ColumnPath, *, plain: bool) -> Iterator[_Leaf]:
    kind, path = column.type, (*above, column.name)
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaves(inner, path, plain=plain)
    elif pa.types.is_map(kind):
        for inner in (kind.key_field, kind.item_field):
            yield from _leaves(inner, path, plain=False)
    elif _is_list(kind):
        yield from _leaves(kind.value_field, path, plain=False)
    else:
        yield _Leaf(path, kind, plain)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _read_as(schema: pa.Schema, kinds: Iterator[str]) -> pa.Schema:
    """Return the schema as engines read it: every column is nullable, and INT96 is a timestamp."""
    return pa.schema([_field_as(column, kinds) for column in schema])


def _field_as(column: pa.Field, kinds: Iterator[str]) -> pa.Field:
    kind = _type_as(column.type, kinds, column.name)
    return pa.field(column.name, kind, nullable=True)


def _type_as(kind: pa.DataType, kinds: Iterator[str], column: str) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_field_as(inner, kinds) for inner in kind])
    if types.is_map(kind):
        key = pa.field("key", _type_as(kind.key_type, kinds, column), nullable=False)
        return pa.map_(key, pa.field("value", _type_as(kind.item_type, kinds, column)))
    if _is_list(kind):
        return pa.list_(pa.field("element", _type_as(kind.value_type, kinds, column)))
    if next(kinds, "") == "INT96":
        return pa.timestamp("us", tz="UTC")
    if types.is_float16(kind) or (types.is_timestamp(kind) and kind.unit == "ns"):
        raise InvalidSchemaError(
            f"The column {column!r} cannot be stored in a Delta table",
            why=f"its type is {kind}, which other engines do not read from files of Delta tables",
        )
    return kind


# --- statistics of files that another writer has written ------------------------------

# Types that `Counter` has bounds of; the others have counts of nulls alone.
_UNBOUNDED = frozenset({"boolean", "binary"})


class FooterStatistics:
    """Statistics from the footers of files with the same columns."""

    def __init__(self, covered: Covered, data: StructType) -> None:
        self._covered = covered
        wanted = set(covered.columns) | set(covered.required)
        self._columns = {
            path: (i, kind) for path, i, kind in _delta_columns(data, (), [0]) if path in wanted
        }

    def nulls(self, footer: FileMetaData, path: ColumnPath) -> int | None:
        """Return the number of nulls of a column; None if it is unknown."""
        if path not in self._columns:
            return None
        counts = [_null_count(chunk) for chunk in _chunks(footer, self._columns[path][0])]
        return None if None in counts else sum(count for count in counts if count)

    def stats(self, footer: FileMetaData) -> str:
        """The JSON of `add.stats`."""
        covered = self._covered
        low: dict[ColumnPath, Any] = {}
        high: dict[ColumnPath, Any] = {}
        nulls: dict[ColumnPath, int] = {}
        for path in covered.columns:
            count = self.nulls(footer, path)
            if count is None:
                continue
            nulls[path] = count
            position, kind = self._columns[path]
            if str(kind) not in _UNBOUNDED:
                low[path], high[path] = _bounds(footer, position)
        statistics = Statistics(
            num_records=footer.num_rows,
            min_values={path: value for path, value in low.items() if value is not None},
            max_values={path: value for path, value in high.items() if value is not None},
            null_count=nulls,
            tight_bounds=True,
        )
        return covered.encode(statistics)


def _delta_columns(
    struct: StructType, above: ColumnPath, at: list[int]
) -> Iterator[tuple[ColumnPath, int, DataType]]:
    """Yield the columns outside arrays and maps, with their positions in the file."""
    for column in struct.fields:
        path = (*above, column.name)
        if isinstance(column.type, StructType):
            yield from _delta_columns(column.type, path, at)
            continue
        if not isinstance(column.type, (ArrayType, MapType)):
            yield path, at[0], column.type
        at[0] += _width(column.type)


def _width(kind: DataType) -> int:
    """Return the number of Parquet columns of a type."""
    if isinstance(kind, StructType):
        return sum(_width(column.type) for column in kind.fields)
    if isinstance(kind, ArrayType):
        return _width(kind.element_type)
    if isinstance(kind, MapType):
        return _width(kind.key_type) + _width(kind.value_type)
    return 1


def _chunks(footer: FileMetaData, position: int) -> Iterator[Any]:
    for group in range(footer.num_row_groups):
        yield footer.row_group(group).column(position)


def _null_count(chunk: Any) -> int | None:
    statistics = chunk.statistics
    return statistics.null_count if statistics is not None and statistics.has_null_count else None


def _bounds(footer: FileMetaData, position: int) -> tuple[Any, Any]:
    """Return the bounds over all row groups; None if they are unknown."""
    lows: list[Any] = []
    highs: list[Any] = []
    for chunk in _chunks(footer, position):
        statistics = chunk.statistics
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None, None
        try:
            lows.append(statistics.min)
            highs.append(statistics.max)
        except (ValueError, OverflowError):
            # No value of Python's: text that is no UTF-8, a date after the year 9999.
            return None, None
    return _least(lows, min), _least(highs, max)


def _least(values: list[Any], choose: Any) -> Any:
    if not values or any(isinstance(value, float) and math.isnan(value) for value in values):
        return None
    return choose(values)
