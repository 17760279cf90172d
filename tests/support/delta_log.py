"""A `_delta_log` written by hand, for cases that no golden table has."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.lake import SCHEMA, Json, add

PROTOCOL: Json = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
START_MS = 1_600_000_000_000


def metadata(configuration: Mapping[str, str] | None = None, **fields: Any) -> Json:
    """A metaData action."""
    body = {
        "id": "an-id",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": SCHEMA,
        "partitionColumns": [],
        "configuration": dict(configuration or {}),
    }
    return {"metaData": {**body, **fields}}


def write_lines(folder: Path, name: str, actions: Iterable[Json], *, at_ms: int) -> Path:
    """A file of the log with one action a line, and its time."""
    path = folder / "_delta_log" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions), "utf-8")
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
    return path


def write_commit(
    folder: Path, version: int, actions: Iterable[Json], *, at_ms: int | None = None
) -> Path:
    """One commit, a second after the one before it unless told otherwise."""
    at_ms = START_MS + 1000 * version if at_ms is None else at_ms
    return write_lines(folder, f"{version:020d}.json", actions, at_ms=at_ms)


def write_appends(folder: Path, count: int) -> None:
    """Versions 0 to `count` - 1; each adds the file `f<version>`."""
    for version in range(count):
        first = [PROTOCOL, metadata()] if version == 0 else []
        info = {"commitInfo": {"operation": "WRITE", "userName": "ann", "n": version}}
        write_commit(folder, version, [info, *first, add(f"f{version}")])


_MAP = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _MAP,
            }
        ),
        "remove": pa.struct(
            {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _MAP}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _MAP,
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "domainMetadata": pa.struct(
            {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
        ),
    }
)


def write_checkpoint(folder: Path, name: str, actions: Iterable[Json]) -> Path:
    """A Parquet checkpoint (or a part of one) under that name."""
    path = folder / "_delta_log" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(actions), _SCHEMA), path)
    return path
