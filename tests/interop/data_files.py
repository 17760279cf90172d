"""Data files and deletion vectors as a careful writer leaves them, and the actions for them.

Files have physical names and field ids, statistics, and directories in Hive's style.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    physical_name,
)
from deltalakedb.actions.partition import encode_partition_value, partition_directory
from deltalakedb.actions.partition import encode_path as as_uri
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.statistics import Statistics, covered_columns, encode_stats
from deltalakedb.snapshot import Snapshot
from deltalakedb.table import Table

from support.lake import Json
from support.published import inline_vector, stored_vector

# Files of these tables hold their partition columns too.
_SELF_CONTAINED = {
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "materializePartitionColumns",
}


def write_rows(
    folder: Path, snapshot: Snapshot, rows: pa.Table, name: str, *, data_change: bool = True
) -> list[Json]:
    """Write rows of all columns, a file for each partition; the actions that add them."""
    partitions = _partitions(snapshot)
    groups: dict[tuple[str | None, ...], list[Json]] = {}
    for row in _pylist(rows):
        key = tuple(encode_partition_value(row[c.name], c.type) for c in partitions)
        groups.setdefault(key, []).append(row)
    return [
        _write_file(folder, snapshot, group, f"{name}-{number}.parquet", data_change)
        for number, group in enumerate(groups.values())
    ]


def _partitions(snapshot: Snapshot) -> list[StructField]:
    return [snapshot.schema.field(name) for name in snapshot.partition_columns]


def _pylist(rows: pa.Table) -> list[Json]:
    found: list[Json] = rows.to_pylist()
    return found


def _write_file(
    folder: Path,
    snapshot: Snapshot,
    rows: Sequence[Json],
    name: str,
    data_change: bool,
) -> Json:
    partitions = _partitions(snapshot)
    types = {physical_name(column): column.type for column in partitions}
    values = {physical_name(column): rows[0][column.name] for column in partitions}
    directory = partition_directory(values, types)
    path = f"{directory}/{name}" if directory else name
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    held = [
        column
        for column in snapshot.schema.fields
        if column not in partitions
        or _SELF_CONTAINED & set(snapshot.protocol.writer_features or ())
    ]
    physical = schema_to_arrow(StructType(tuple(held)), physical=True)
    arrays = [
        pa.array([_physical(row[column.name], column.type) for row in rows], field.type)
        for column, field in zip(held, physical, strict=True)
    ]
    # Without Arrow's own schema in it, as other writers leave a file.
    pq.write_table(pa.Table.from_arrays(arrays, schema=physical), target, store_schema=False)
    return {
        "add": {
            "path": as_uri(path),
            "partitionValues": {n: encode_partition_value(values[n], types[n]) for n in types},
            "size": target.stat().st_size,
            "modificationTime": 1_700_000_000_000,
            "dataChange": data_change,
            "stats": _statistics(snapshot, rows),
        }
    }


def _physical(value: Any, kind: DataType) -> Any:
    """A value with the field names that data files have."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {physical_name(f): _physical(value[f.name], f.type) for f in kind.fields}
    if isinstance(kind, ArrayType):
        return [_physical(item, kind.element_type) for item in value]
    if isinstance(kind, MapType):
        return [(_physical(k, kind.key_type), _physical(v, kind.value_type)) for k, v in value]
    return value


def _statistics(snapshot: Snapshot, rows: Sequence[Json]) -> str:
    properties = TableProperties(snapshot.properties)
    columns = covered_columns(
        snapshot.schema,
        partition_columns=snapshot.partition_columns,
        num_indexed=properties.num_indexed_cols,
    )
    low: dict[tuple[str, ...], Any] = {}
    high: dict[tuple[str, ...], Any] = {}
    nulls: dict[tuple[str, ...], int] = {}
    for path in columns:
        values = [_at(row, path) for row in rows]
        present = [value for value in values if value is not None]
        nulls[path] = len(values) - len(present)
        if present and _has_order(present):
            low[path], high[path] = min(present), max(present)
    stats = Statistics(len(rows), low, high, nulls)
    return encode_stats(stats, snapshot.schema, columns=columns)


def _at(row: Json, path: Iterable[str]) -> Any:
    value: Any = row
    for step in path:
        value = None if value is None else value[step]
    return value


def _has_order(values: Sequence[Any]) -> bool:
    # NaN is above every number for some engines and nowhere for others; booleans have no bounds.
    first = values[0]
    if isinstance(first, (bool, bytes, list, dict)):
        return False
    return all(value == value for value in values)  # noqa: PLR0124 -- NaN differs from itself


# --- deletion vectors ---------------------------------------------------------------------


def hide_rows(table: Table, file: Mapping[str, Any], rows: set[int]) -> list[Json]:
    """The actions that hide rows of a live file (a row of `files()`) by a new deletion vector.

    Few rows are kept in the log itself, more of them in a file of their own.
    """
    stats = {**json.loads(file["stats"]), "tightBounds": False}
    add: Json = {
        "path": file["path"],
        "partitionValues": json.loads(file["partition_values"]),
        "size": file["size_bytes"],
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": json.dumps(stats),
        "deletionVector": inline_vector(rows) if len(rows) < 3 else stored_vector(table, rows),
        **_row_ids(file),
    }
    return [remove_file(file), {"add": add}]


def _row_ids(file: Mapping[str, Any]) -> Json:
    names = {"base_row_id": "baseRowId", "default_row_commit_version": "defaultRowCommitVersion"}
    return {theirs: file[ours] for ours, theirs in names.items() if file[ours] is not None}


def remove_file(file: Mapping[str, Any], *, data_change: bool = True) -> Json:
    """The action that removes a live file (a row of `files()`)."""
    body: Json = {
        "path": file["path"],
        "deletionTimestamp": 1_700_000_000_000,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": json.loads(file["partition_values"]),
        "size": file["size_bytes"],
        **_row_ids(file),
    }
    if file["deletion_vector"]:
        body["deletionVector"] = json.loads(file["deletion_vector"])
    return {"remove": body}


def live_files(snapshot: Snapshot) -> Iterator[Json]:
    """The live files, in the order of their paths."""
    columns = ("path", "partition_values", "size_bytes", "stats", "deletion_vector")
    row_ids = ("base_row_id", "default_row_commit_version")
    yield from snapshot.files(columns=[*columns, *row_ids], limit=1_000_000).to_pylist()
