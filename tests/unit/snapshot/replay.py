"""A small replay of a `_delta_log`, for tests of reading that need no catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.actions.datatypes import StructType
from deltalakedb.actions.partition import decode_path
from deltalakedb.actions.schema import schema_from_json
from deltalakedb.snapshot.dataset import SnapshotDataset, open_dataset

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(\w+)")
_STATE = ("add", "remove", "metaData")


@dataclass(frozen=True)
class Replayed:
    location: str
    schema: StructType
    partition_columns: tuple[str, ...]
    mode: str
    files: pa.Table

    def dataset(self) -> SnapshotDataset:
        return open_dataset(
            self.files,
            location=self.location,
            schema=self.schema,
            partition_columns=self.partition_columns,
            column_mapping_mode=self.mode,
        )


def replay(folder: Path) -> Replayed:
    metadata: dict[str, Any] = {}
    live: dict[tuple[str, str], dict[str, Any]] = {}
    for action in _actions(folder / "_delta_log"):
        if metadata_action := action.get("metaData"):
            metadata = metadata_action
        if remove := action.get("remove"):
            live.pop(_key(remove), None)
        if add := action.get("add"):
            live[_key(add)] = add
    return Replayed(
        folder.absolute().as_uri(),
        schema_from_json(metadata["schemaString"]),
        tuple(metadata["partitionColumns"]),
        dict(metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none"),
        files_table(list(live.values())),
    )


def files_table(adds: list[dict[str, Any]]) -> pa.Table:
    """The columns of `Snapshot.files()` that reading needs."""
    return pa.table(
        {
            "path": pa.array([add["path"] for add in adds], pa.string()),
            "partition_values": pa.array(
                [json.dumps(dict(add.get("partitionValues") or {})) for add in adds], pa.string()
            ),
            "deletion_vector": pa.array([_vector(add) for add in adds], pa.string()),
        }
    )


def _vector(action: dict[str, Any]) -> str | None:
    vector = action.get("deletionVector")
    return json.dumps(vector) if vector else None


def _key(action: dict[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector") or {}
    parts = (vector.get(name) for name in ("storageType", "pathOrInlineDv", "offset"))
    return decode_path(action["path"]), str(tuple(parts)) if vector else ""


def _actions(log: Path) -> Iterator[dict[str, Any]]:
    version, checkpoint = _last_checkpoint(log)
    for file in checkpoint:
        yield from _checkpoint_actions(log, file)
    for file in sorted(log.iterdir()):
        match = _COMMIT.fullmatch(file.name)
        if match and int(match[1]) > version:
            yield from map(json.loads, filter(str.strip, file.read_text("utf-8").split("\n")))


def _last_checkpoint(log: Path) -> tuple[int, list[Path]]:
    versions: dict[int, list[tuple[int, Path]]] = {}
    for file in sorted(log.iterdir()):
        match = _CHECKPOINT.fullmatch(file.name)
        if match:
            versions.setdefault(int(match[1]), []).append((int(match[3] or 1), file))
    for version in sorted(versions, reverse=True):
        for parts in sorted({parts for parts, _ in versions[version]}):
            files = [file for count, file in versions[version] if count == parts]
            if len(files) >= parts:
                return version, files[:parts]
    return -1, []


def _checkpoint_actions(log: Path, file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".json":
        rows = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line.strip()]
    else:
        # Maps come as lists of pairs; dict() in the readers of these rows takes both.
        parquet = pq.ParquetFile(file)
        names = [n for n in parquet.schema_arrow.names if n in (*_STATE, "sidecar")]
        rows = parquet.read(columns=names).to_pylist()
    for row in rows:
        if sidecar := row.get("sidecar"):
            yield from _checkpoint_actions(log, log / "_sidecars" / sidecar["path"])
        if not row.get("remove"):
            yield row
