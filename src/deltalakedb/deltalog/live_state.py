"""What actions add up to, small enough for large tables and exact enough to be compared.

Guarantees:

- Pure: no I/O. Of a file its id and a few numbers are kept; with `buckets` only the files of one
  bucket are, so that a table of any size can be gone through in parts.
- Files are the same when the keys of their paths (`actions.file_paths`) and their deletion vectors
  are. The last action counts.
- Two descriptions of a file are equal exactly when everything that readers rely on is: size, time,
  partition values, deletion vector, row ids, and whether there are statistics. `differences` names
  what is not.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import (
    Action,
    AddFile,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.actions.features import reader_features, writer_features
from deltalakedb.actions.file_paths import file_key

if TYPE_CHECKING:
    import pyarrow as pa

_FORM: Final = struct.Struct("<qqQQQ?")
_NAMES: Final = (
    "size",
    "modificationTime",
    "partitionValues",
    "deletionVector",
    "baseRowId or defaultRowCommitVersion",
    "stats",
)
FILE_COLUMNS: Final = (
    "path",
    "dv_id",
    "size_bytes",
    "modification_time",
    "partition_values",
    "stats",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
)
"""What a file of the catalog is described by."""
_VECTOR: Final = ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality", "offset")
_UNCOMPARED: Final = {"extra"}
_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def file_id(path: str, dv_id: str) -> str:
    """What tells one logical file from another; `shown` makes it readable."""
    return f"{file_key(path)}\0{dv_id}"


def shown(file: str) -> str:
    """A file id for people."""
    path, _, dv_id = file.partition("\0")
    return f"{path!r} with the deletion vector {dv_id!r}" if dv_id else repr(path)


def in_bucket(file: str, bucket: int, buckets: int) -> bool:
    """Whether a file belongs to a bucket; all do where there is one."""
    return buckets == 1 or zlib.crc32(file.encode("utf-8", "surrogatepass")) % buckets == bucket


def describe_file(
    *,
    size: int,
    modification_time: int,
    partition_values: Mapping[str, str | None],
    deletion_vector: Mapping[str, Any] | None,
    row_ids: tuple[int | None, int | None],
    has_stats: bool,
) -> bytes:
    """What is kept of a file."""
    return _FORM.pack(
        size,
        modification_time,
        _digest(_canonical(dict(partition_values))),
        0 if deletion_vector is None else _digest(_canonical(dict(deletion_vector))),
        0 if row_ids == (None, None) else _digest(repr(row_ids)),
        has_stats,
    )


def describe_add(add: AddFile) -> bytes:
    """The same, of the action that adds the file."""
    vector = add.deletion_vector
    return describe_file(
        size=add.size,
        modification_time=add.modification_time,
        partition_values=add.partition_values,
        deletion_vector=None if vector is None else vector_fields(vector),
        row_ids=(add.base_row_id, add.default_row_commit_version),
        has_stats=add.stats is not None,
    )


def vector_fields(vector: DeletionVectorDescriptor) -> dict[str, Any]:
    """The fields of a deletion vector that the protocol knows."""
    fields: dict[str, Any] = {
        "storageType": vector.storage_type,
        "pathOrInlineDv": vector.path_or_inline_dv,
        "sizeInBytes": vector.size_in_bytes,
        "cardinality": vector.cardinality,
    }
    return fields if vector.offset is None else {**fields, "offset": vector.offset}


def described_files(
    batch: pa.RecordBatch, bucket: int = 0, buckets: int = 1
) -> Iterator[tuple[str, bytes]]:
    """Files of the catalog, as columns, by their ids."""
    columns = [batch.column(name).to_pylist() for name in FILE_COLUMNS]
    for path, dv_id, size, time, values, stats, vector, *row_ids in zip(*columns, strict=True):
        file = file_id(path, dv_id)
        if in_bucket(file, bucket, buckets):
            yield (
                file,
                describe_file(
                    size=size,
                    modification_time=time,
                    partition_values=json.loads(values),
                    deletion_vector=None if vector is None else _vector(json.loads(vector)),
                    row_ids=(row_ids[0], row_ids[1]),
                    has_stats=stats is not None,
                ),
            )


def _vector(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in _VECTOR if document.get(name) is not None}


def differences(a: bytes, b: bytes, *, stats: bool = True) -> list[str]:
    """The names of the fields that differ; those of statistics only where they are asked for."""
    pairs = zip(_NAMES, _FORM.unpack(a), _FORM.unpack(b), strict=True)
    return [name for name, x, y in pairs if x != y and (stats or name != "stats")]


@lru_cache(maxsize=4096)
def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


@dataclass(slots=True)
class LiveState:
    """The state after the actions that were applied, with the files of one bucket."""

    bucket: int = 0
    buckets: int = 1
    files: dict[str, bytes] = field(default_factory=dict)
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def apply(self, actions: Iterable[Action]) -> None:
        """Apply actions in their order."""
        for action in actions:
            if isinstance(action, AddFile):
                file = file_id(action.path, action.dv_id)
                if in_bucket(file, self.bucket, self.buckets):
                    self.files[file] = describe_add(action)
            elif isinstance(action, RemoveFile):
                self.files.pop(file_id(action.path, action.dv_id), None)
            elif isinstance(action, Protocol):
                self.protocol = action
            elif isinstance(action, Metadata):
                self.metadata = action
            elif isinstance(action, Txn):
                self.txns[action.app_id] = action
            elif isinstance(action, DomainMetadata):
                self.domains[action.domain] = action


def reconciled(actions: Iterable[Action]) -> Iterator[tuple[object, object]]:
    """What each action is about, and what it says: to compare two lists of them."""
    for action in actions:
        if isinstance(action, AddFile):
            yield file_id(action.path, action.dv_id), describe_add(action)
        elif isinstance(action, RemoveFile):
            yield file_id(action.path, action.dv_id), None
        elif isinstance(action, Txn):
            yield (Txn, action.app_id), action.version
        elif isinstance(action, DomainMetadata):
            yield (DomainMetadata, action.domain), action.configuration
        else:
            yield type(action), action


def protocol_differences(mine: Protocol, theirs: Protocol | None) -> Iterator[str]:
    """What the log says differently of the protocol."""
    if theirs is None:
        yield "the log has no protocol"
        return
    for name in ("min_reader_version", "min_writer_version"):
        a, b = getattr(mine, name), getattr(theirs, name)
        if a != b:
            yield f"the protocol has {name} {a} in the catalog and {b} in the log"
    for kind, features in (("reader", reader_features), ("writer", writer_features)):
        a, b = features(mine), features(theirs)
        if a != b:
            odd = ", ".join(sorted(a ^ b))
            yield f"the {kind} features of the protocol differ in {odd}"


def metadata_differences(mine: Metadata, theirs: Metadata | None) -> Iterator[str]:
    """What the log says differently of the metaData."""
    if theirs is None:
        yield "the log has no metaData"
        return
    for column in fields(Metadata):
        a, b = getattr(mine, column.name), getattr(theirs, column.name)
        if column.name in _UNCOMPARED or a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            odd = sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
            yield f"the {column.name} of the metaData differs in {', '.join(odd)}"
        else:
            yield f"the {column.name} of the metaData differs"
