"""The replay of a log: the state that its actions add up to.

Guarantees:

- Pure: no I/O.
- Two actions are about the same file when the keys of their paths (`actions.file_paths`) and their
  deletion vectors are equal. `file_id` is that identity.
- The last action on a file, application, domain, protocol or metadata counts, as in Delta's own
  replay.
- Two descriptions of a file are equal exactly when all that readers rely on is equal: size, time,
  partition values, deletion vector, row ids, and whether there are statistics.

Two replays differ in what they keep of a file. `LiveFiles` takes files as columns and keeps path
and size; an import uses it to check every version. `LogState` takes actions and keeps all that
readers rely on; verification and the check of checkpoints use it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltalakedb.actions import (
    Action,
    AddFile,
    CdcFile,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.actions.file_paths import file_key
from deltalakedb.errors import InvalidLogError

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LONG: Final = 2**63 - 1
_DESCRIPTION: Final = struct.Struct("<qqQQQ?")
_DESCRIBED: Final = (
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
"""The columns of the catalog that a file is described by."""
_VECTOR: Final = ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality", "offset")
_STATE: Final = (AddFile, RemoveFile, Protocol, Metadata, Txn, DomainMetadata)
_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def file_id(path: str, dv_id: str) -> str:
    """The identity of a logical file: the key of its path, and its deletion vector."""
    return f"{file_key(path)}\0{dv_id}"


def in_bucket(file: str, bucket: int, buckets: int) -> bool:
    """Whether a file id belongs to a bucket; all do where there is one."""
    return buckets == 1 or zlib.crc32(file.encode("utf-8", "surrogatepass")) % buckets == bucket


# --- descriptions of files ----------------------------------------------------------------


def describe_file(
    *,
    size: int,
    modification_time: int,
    partition_values: Mapping[str, str | None],
    deletion_vector: Mapping[str, Any] | None,
    row_ids: tuple[int | None, int | None],
    has_stats: bool,
) -> bytes:
    """A description of fixed size."""
    return _DESCRIPTION.pack(
        size,
        modification_time,
        _digest(_canonical(dict(partition_values))),
        0 if deletion_vector is None else _digest(_canonical(dict(deletion_vector))),
        0 if row_ids == (None, None) else _digest(repr(row_ids)),
        has_stats,
    )


def describe_add(add: AddFile) -> bytes:
    """The description of the file that an action adds."""
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
    """The ids and descriptions of files of the catalog that belong to a bucket."""
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


def described_differences(a: bytes, b: bytes, *, stats: bool = True) -> list[str]:
    """The names of the fields that differ; `stats` only where asked for."""
    pairs = zip(_DESCRIBED, _DESCRIPTION.unpack(a), _DESCRIPTION.unpack(b), strict=True)
    return [name for name, x, y in pairs if x != y and (stats or name != "stats")]


@lru_cache(maxsize=4096)
def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


# --- actions ------------------------------------------------------------------------------


def identity(action: Action) -> object | None:
    """The file, application, domain, … that an action is about; None for all other actions."""
    if isinstance(action, (AddFile, RemoveFile)):
        return file_id(action.path, action.dv_id)
    if isinstance(action, Txn):
        return Txn, action.app_id
    if isinstance(action, DomainMetadata):
        return DomainMetadata, action.domain
    if isinstance(action, CdcFile):
        return CdcFile, action.path
    if isinstance(action, (Protocol, Metadata)):
        return type(action)
    return None


def reconcile(actions: Iterable[Action]) -> list[Action]:
    """The last action of each identity, in order; actions without one stay, commitInfo does not."""
    others: list[Action] = [a for a in actions if not isinstance(a, CommitInfo)]
    if len(others) < 2:
        return others
    last: dict[object, int] = {}
    for position, action in enumerate(others):
        last[identity(action) or position] = position
    if len(last) == len(others):
        return others
    return [others[position] for position in sorted(last.values())]


def reconcile_state(actions: Iterable[Action]) -> list[Action]:
    """The state that commits and compactions add up to, with tombstones.

    Without commitInfo, change data and removed domains.
    """
    last = {identity(action): action for action in actions if isinstance(action, _STATE)}
    return [a for a in last.values() if not (isinstance(a, DomainMetadata) and a.removed)]


@dataclass(slots=True)
class ControlState:
    """Everything of a table's state but its files."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def apply_control(self, action: Action) -> None:
        """Apply an action; those of files change nothing."""
        if isinstance(action, Protocol):
            self.protocol = action
        elif isinstance(action, Metadata):
            self.metadata = action
        elif isinstance(action, Txn):
            self.txns[action.app_id] = action
        elif isinstance(action, DomainMetadata):
            if action.removed:
                self.domains.pop(action.domain, None)
            else:
                self.domains[action.domain] = action


@dataclass(slots=True)
class LogState(ControlState):
    """The state after the actions that were applied, with the live files of one bucket.

    It has the id and a description of fixed size (`describe_file`) of each file, so a table of any
    size can be compared in buckets.
    """

    bucket: int = 0
    buckets: int = 1
    files: dict[str, bytes] = field(default_factory=dict)

    def apply(self, actions: Iterable[Action]) -> None:
        """Apply actions in their order."""
        for action in actions:
            if isinstance(action, AddFile):
                file = file_id(action.path, action.dv_id)
                if in_bucket(file, self.bucket, self.buckets):
                    self.files[file] = describe_add(action)
            elif isinstance(action, RemoveFile):
                self.files.pop(file_id(action.path, action.dv_id), None)
            else:
                self.apply_control(action)


# --- columns ------------------------------------------------------------------------------


class VersionSpan(NamedTuple):
    """How many rows of file columns belong to a version; `file` is the log file for errors."""

    version: int
    num_adds: int
    num_removes: int
    file: str


class FileColumns(NamedTuple):
    """Files as columns, in the order of their versions."""

    paths: Sequence[str]
    dv_ids: Sequence[str]
    sizes: Sequence[int | None]


class VersionTotals(NamedTuple):
    """The changes of a version, and the live files after it."""

    num_adds: int = 0
    num_removes: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    live_files: int = 0
    live_bytes: int = 0

    def plus(self, rest: VersionTotals) -> VersionTotals:
        """The totals of a version that comes in two parts."""
        return VersionTotals(
            self.num_adds + rest.num_adds,
            self.num_removes + rest.num_removes,
            self.bytes_added + rest.bytes_added,
            self.bytes_removed + rest.bytes_removed,
            rest.live_files,
            rest.live_bytes,
        )


@dataclass(slots=True)
class LiveFiles:
    """The live files as versions are applied: by id, the path as the log spells it and the size.

    The catalog compares paths as text, so `apply` also returns the live spelling of each path that
    differs from it.
    """

    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    live_bytes: int = 0

    def apply(
        self, spans: Iterable[VersionSpan], adds: FileColumns, removes: FileColumns
    ) -> tuple[list[VersionTotals], dict[int, str], dict[int, str]]:
        """Apply consecutive versions, each with at most one action per file.

        Returns the totals of each version, and the live spellings of adds and removes by position.
        """
        totals: list[VersionTotals] = []
        add_spellings: dict[int, str] = {}
        remove_spellings: dict[int, str] = {}
        add = remove = 0
        for _, num_adds, num_removes, file in spans:
            removed = self._remove(remove, remove + num_removes, removes, remove_spellings)
            added = self._add(add, add + num_adds, adds, add_spellings)
            add += num_adds
            remove += num_removes
            if max(added, removed, self.live_bytes) > _MAX_LONG:
                raise InvalidLogError(
                    f"The sizes of the files in {file} add up to more than a long can hold",
                    fix="Correct the sizes, or restore the file from a copy",
                )
            live = len(self.files)
            totals.append(
                VersionTotals(num_adds, num_removes, added, removed, live, self.live_bytes)
            )
        return totals, add_spellings, remove_spellings

    # Every file of a history passes through these loops: nothing is factored out of them.

    def _remove(self, start: int, end: int, columns: FileColumns, spelling: dict[int, str]) -> int:
        total = 0
        pop = self.files.pop
        rows = zip(*(column[start:end] for column in columns), strict=True)
        for position, (path, dv_id, size) in enumerate(rows, start):
            total += size or 0
            live = pop(f"{file_key(path)}\0{dv_id}", None)
            if live is not None:
                self.live_bytes -= live[1]
                if live[0] != path:
                    spelling[position] = live[0]
        return total

    def _add(self, start: int, end: int, columns: FileColumns, spelling: dict[int, str]) -> int:
        total = 0
        files = self.files
        rows = zip(*(column[start:end] for column in columns), strict=True)
        for position, (path, dv_id, size_bytes) in enumerate(rows, start):
            file = f"{file_key(path)}\0{dv_id}"
            size = size_bytes or 0
            live = files.get(file)
            if live is None:
                files[file] = (path, size)
            else:
                self.live_bytes -= live[1]
                files[file] = (live[0], size)
                if live[0] != path:
                    spelling[position] = live[0]
            total += size
        self.live_bytes += total
        return total
