"""Plain tables: a pyarrow dataset over their files.

A table is plain if pyarrow returns the same rows for every filter:

- It lies on a local disk. pyarrow has other names for the options of object stores.
- No live file has a deletion vector, and columns have their own names in files.
- No column holds floats. pyarrow skips row groups by bounds that leave NaN out, and with them rows
  for which `x != 1` or `~(x < 1)` is true.
- Columns are not nested, and of types that pyarrow converts from whatever a file has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DecimalType,
)
from deltalakedb.actions.features import reader_features
from deltalakedb.conditions import guarantees

if TYPE_CHECKING:
    from deltalakedb.actions import Protocol
    from deltalakedb.reading.data_files import TableLayout

_NUMBERS: Final = (BYTE, SHORT, INTEGER, LONG)
_TYPES: Final = (*_NUMBERS, BINARY, BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ)
_WIDENING: Final = frozenset({"typeWidening", "typeWidening-preview"})


def is_plain(layout: TableLayout, protocol: Protocol) -> bool:
    """Whether all files without a deletion vector can be read by pyarrow itself."""
    return (
        layout.files.is_local
        and layout.mode == "none"
        and not _WIDENING & reader_features(protocol)
        and all(
            field.type in _TYPES or isinstance(field.type, DecimalType)
            for field in layout.schema.fields
        )
    )


def open_plain(layout: TableLayout, files: pa.Table) -> pads.FileSystemDataset | None:
    """Return a dataset of files, or None if one of them is not plain."""
    if files["deletion_vector"].null_count < files.num_rows:
        return None
    paths = [layout.files.local_path(path) for path in files["path"].to_pylist()]
    if None in paths:
        return None
    partitions = {
        text: guarantees.of_constants(layout.partition(text, path=path))
        for text, path in zip(*_one_of_each(files), strict=True)
    }
    return pads.FileSystemDataset.from_paths(
        paths,
        schema=schema_to_arrow(layout.schema),
        format=pads.ParquetFileFormat(coerce_int96_timestamp_unit="us"),
        filesystem=LocalFileSystem(),
        partitions=[partitions[text] for text in files["partition_values"].to_pylist()],
    )


def _one_of_each(files: pa.Table) -> tuple[list[str], list[str]]:
    """Return the distinct partition values, each with the path of one file."""
    groups = files.group_by("partition_values").aggregate([("path", "min")])
    return groups["partition_values"].to_pylist(), groups["path_min"].to_pylist()
