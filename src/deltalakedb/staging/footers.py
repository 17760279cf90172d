"""Statistics of a Parquet file from its footer, for files that another writer has written.

Nothing is guessed: a bound that the footer does not have, or that cannot be read, is left out.
Bounds of Spark's writer are exact, and so are its counts; it leaves out both where a text is very
long. Where there is a NaN its maximum is NaN, so there is none in the statistics, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.datatypes import (
    ArrayType,
    ColumnPath,
    DataType,
    MapType,
    StructType,
)
from deltalakedb.actions.statistics import Statistics, encode_stats

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from deltalakedb.staging.counting import Covered

# Types that `Counter` has bounds of; the others have counts of nulls alone.
_UNBOUNDED = frozenset({"boolean", "binary"})


class FooterStatistics:
    """Makes the statistics of files with the same columns."""

    def __init__(self, covered: Covered, data: StructType) -> None:
        self._covered = covered
        wanted = set(covered.columns) | set(covered.required)
        self._columns = {
            path: (i, kind) for path, i, kind in _leaves(data, (), [0]) if path in wanted
        }

    def nulls(self, footer: FileMetaData, path: ColumnPath) -> int | None:
        """How often a column is null; None where that is not known."""
        if path not in self._columns:
            return None
        found = [_null_count(chunk) for chunk in _chunks(footer, self._columns[path][0])]
        return None if None in found else sum(count for count in found if count)

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
        found = Statistics(
            num_records=footer.num_rows,
            min_values={path: value for path, value in low.items() if value is not None},
            max_values={path: value for path, value in high.items() if value is not None},
            null_count=nulls,
            tight_bounds=True,
        )
        return encode_stats(
            found,
            covered.schema,
            columns=covered.columns,
            string_prefix_length=covered.prefix_length,
        )


def _leaves(
    struct: StructType, above: ColumnPath, at: list[int]
) -> Iterator[tuple[ColumnPath, int, DataType]]:
    """Columns outside of arrays and maps, with their positions among all columns of a file."""
    for field in struct.fields:
        path = (*above, field.name)
        if isinstance(field.type, StructType):
            yield from _leaves(field.type, path, at)
            continue
        if not isinstance(field.type, (ArrayType, MapType)):
            yield path, at[0], field.type
        at[0] += _width(field.type)


def _width(kind: DataType) -> int:
    """How many columns of a file a type takes."""
    if isinstance(kind, StructType):
        return sum(_width(field.type) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _width(kind.element_type)
    if isinstance(kind, MapType):
        return _width(kind.key_type) + _width(kind.value_type)
    return 1


def _chunks(footer: FileMetaData, position: int) -> Iterator[Any]:
    for group in range(footer.num_row_groups):
        yield footer.row_group(group).column(position)


def _null_count(chunk: Any) -> int | None:
    found = chunk.statistics
    return found.null_count if found is not None and found.has_null_count else None


def _bounds(footer: FileMetaData, position: int) -> tuple[Any, Any]:
    """The least and the greatest value over all row groups; None for what is not known."""
    lows: list[Any] = []
    highs: list[Any] = []
    for chunk in _chunks(footer, position):
        found = chunk.statistics
        if found.null_count == chunk.num_values:
            continue
        if not found.has_min_max:
            return None, None
        try:
            lows.append(found.min)
            highs.append(found.max)
        except (ValueError, OverflowError):
            # No value of Python's: text that is no UTF-8, a date after the year 9999.
            return None, None
    return _least(lows, min), _least(highs, max)


def _least(values: list[Any], choose: Any) -> Any:
    if not values or any(isinstance(value, float) and math.isnan(value) for value in values):
        return None
    return choose(values)
