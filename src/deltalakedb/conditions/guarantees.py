"""Guarantees of files and row groups as expressions, and whether a filter can match them.

A guarantee is true for every row of its file or row group. pyarrow simplifies the filter by it;
names and types are those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem


def names_in(expression: Any, schema: pa.Schema) -> set[str]:
    """The columns that an expression can refer to, and perhaps others.

    pyarrow has no API for the tree of an expression, but its text has the names. An expression
    that refers to columns by position counts as referring to all of them.
    """
    text = str(expression)
    if "FieldPath(" in text:
        return set(schema.names)
    return {name for name in schema.names if name in text}


def matching(guarantees: Sequence[Any], condition: Any, schema: pa.Schema) -> list[int]:
    """Return the positions of the guarantees under which `condition` can be true."""
    form, here = pads.ParquetFileFormat(), LocalFileSystem()
    # Nothing is opened: a fragment is how pyarrow attaches a guarantee to a name.
    fragments = [
        form.make_fragment(str(i), here, partition_expression=guarantee)
        for i, guarantee in enumerate(guarantees)
    ]
    candidates = pads.FileSystemDataset(fragments, schema, form, here)
    return [int(fragment.path) for fragment in candidates.get_fragments(filter=condition)]


def of_constants(values: Mapping[str, Any]) -> Any:
    """Each of these columns has one value (a pyarrow scalar) in every row."""
    return _all(
        pc.field(name) == scalar if scalar.is_valid else pc.field(name).is_null()
        for name, scalar in values.items()
        if not _is_ambiguous(scalar)
    )


def of_row_group(row_group: Any, columns: Mapping[str, tuple[int, Any]]) -> Any:
    """The guarantee of a row group, by its statistics.

    `columns` gives for each name of the table the position of the column in the file, and its
    field in the table.
    """
    return _all(
        bounds
        for name, (position, field) in columns.items()
        if (bounds := _bounds(name, row_group.column(position), field)) is not None
    )


def _bounds(name: str, chunk: Any, field: Any) -> Any:
    # Statistics leave NaN out, so they bound no float.
    if pa.types.is_nested(field.type) or pa.types.is_floating(field.type):
        return None
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return None
    column = pc.field(name)
    if statistics.has_null_count and statistics.null_count == chunk.num_values:
        return column.is_null()
    if not statistics.has_min_max:
        return None
    try:
        low, high = (pa.scalar(value, field.type) for value in (statistics.min, statistics.max))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    within = (column >= low) & (column <= high)
    if statistics.has_null_count and statistics.null_count == 0:
        return within
    return within | column.is_null()


def _is_ambiguous(scalar: Any) -> bool:
    """Whether pyarrow's `==` does not identify the value: NaN, and the sign of zero."""
    value = scalar.as_py() if pa.types.is_floating(scalar.type) else None
    return value is not None and (math.isnan(value) or value == 0)


def _all(parts: Iterable[Any]) -> Any:
    result = pc.scalar(value=True)
    for part in parts:
        result = result & part
    return result
