"""What a log adds up to, told twice: by its commits, and by a checkpoint; nothing of it is ours.

A state has the protocol's own spelling. Unknown fields, `dataChange` and whatever a checkpoint does
not keep of a file are left out of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

Json = dict[str, Any]
Key = tuple[str, str]

_ADD = (
    *("path", "partitionValues", "size", "modificationTime", "stats", "tags", "deletionVector"),
    *("baseRowId", "defaultRowCommitVersion", "clusteringProvider"),
)
_REMOVE = (
    *("path", "deletionTimestamp", "extendedFileMetadata", "partitionValues", "size"),
    *("deletionVector", "baseRowId", "defaultRowCommitVersion"),
)
_VECTOR = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
_METADATA = (
    *("id", "name", "description", "format", "schemaString", "partitionColumns"),
    *("configuration", "createdTime"),
)


@dataclass
class State:
    """What a table is."""

    protocol: Json | None = None
    metadata: Json | None = None
    txns: dict[str, Json] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    adds: dict[Key, Json] = field(default_factory=dict)
    removes: dict[Key, Json] = field(default_factory=dict)

    def kept(self, *, tombstones_after: int = -1, txns_after: int | None = None) -> State:
        """The state as a checkpoint keeps it: without what has expired."""
        return State(
            self.protocol,
            self.metadata,
            {
                app: txn
                for app, txn in self.txns.items()
                if txns_after is None or txn.get("lastUpdated", -1) > txns_after
            },
            self.domains,
            self.adds,
            {
                key: remove
                for key, remove in self.removes.items()
                if remove.get("deletionTimestamp", 0) > tombstones_after
            },
        )


def replayed(log: Path, version: int) -> State:
    """The state after the commits 0 to `version`."""
    state = State()
    for number in range(version + 1):
        lines = (log / f"{number:020d}.json").read_text("utf-8").split("\n")
        _apply(state, (json.loads(line) for line in lines if line.strip()))
    return state


def _apply(state: State, lines: Iterable[Json]) -> None:
    for line in lines:
        if "add" in line:
            key = _key(line["add"])
            state.adds[key] = _picked(line["add"], _ADD)
            state.removes.pop(key, None)
        elif "remove" in line:
            key = _key(line["remove"])
            state.removes[key] = _picked(line["remove"], _REMOVE)
            state.adds.pop(key, None)
        elif "txn" in line:
            state.txns[line["txn"]["appId"]] = _picked(
                line["txn"], ("appId", "version", "lastUpdated")
            )
        elif "domainMetadata" in line:
            body = line["domainMetadata"]
            state.domains.pop(body["domain"], None)
            if not body["removed"]:
                state.domains[body["domain"]] = body["configuration"]
        elif "protocol" in line:
            state.protocol = _protocol(line["protocol"])
        elif "metaData" in line:
            state.metadata = _picked(line["metaData"], _METADATA)


def _key(action: Json) -> Key:
    vector = action.get("deletionVector")
    if vector is None:
        return unquote(action["path"]), ""
    name = vector["storageType"] + vector["pathOrInlineDv"]
    offset = vector.get("offset")
    return unquote(action["path"]), name if offset is None else f"{name}@{offset}"


def _picked(action: Json, names: Iterable[str]) -> Json:
    found = {name: action[name] for name in names if action.get(name) is not None}
    if "deletionVector" in found:
        found["deletionVector"] = _picked(found["deletionVector"], _VECTOR)
    if found.get("extendedFileMetadata") and not {"size", "partitionValues"} <= found.keys():
        found["extendedFileMetadata"] = False
    return found


def _protocol(action: Json) -> Json:
    names = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
    found = _picked(action, names)
    return {k: sorted(v) if isinstance(v, list) else v for k, v in found.items()}


# --- checkpoints --------------------------------------------------------------------------


def checkpointed(*files: Path) -> State:
    """The state of a checkpoint (all its parts); sidecars are read where they are named."""
    state = State()
    for row in _rows(files):
        name = next(iter(row))
        if name in ("add", "remove"):
            assert row[name]["dataChange"] is False
            key = _key(row[name])
            assert key not in state.adds, "a file is there twice"
            assert key not in state.removes, "a file is there twice"
        elif name == "domainMetadata":
            assert row[name]["removed"] is False
        else:
            assert name in ("txn", "protocol", "metaData", "checkpointMetadata", "sidecar")
        _apply(state, [row])
    return state


def _rows(files: Iterable[Path]) -> Iterator[Json]:
    for file in files:
        table = pq.read_table(file)
        for row in table.to_pylist():
            present = {k: _plain(v, table.schema.field(k).type) for k, v in row.items() if v}
            assert len(present) == 1, "a row is one action"
            yield present
            if "sidecar" in present:
                yield from _rows([file.parent / "_sidecars" / present["sidecar"]["path"]])


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_struct(kind):
        found = {f.name: _plain(value[f.name], f.type) for f in kind.fields}
        return {name: item for name, item in found.items() if item is not None}
    return value
