"""Checkpoints and version checksums, which spare readers a replay of the log.

Guarantees:

- Files stream from the catalog in batches of columns: memory does not grow with the table.
- A checkpoint appears when it is complete; `_last_checkpoint` names it only then, and never one
  that is older than it named before.
- A checkpoint has exactly the live files that the ledger counts, or it does not appear.
- Commits are not touched: after an error the log is as readable as before, and the same call can
  be repeated. Any number of concurrent callers is safe.

A checkpoint is one file; with very many actions it has several parts. Where the table has the
feature and the policy `v2`, it is a small file that names sidecars.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import (
    CheckpointMetadata,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    to_dict,
)
from deltalakedb.actions.jsonvalue import dumps_ordered
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.checkpoint_file import CheckpointFile
from deltalakedb.deltalog.checkpoint_rows import RowMaker
from deltalakedb.deltalog.checkpoint_schema import checkpoint_schema, form_of
from deltalakedb.deltalog.last_checkpoint import LastCheckpoint, V2Hint
from deltalakedb.deltalog.listing import sort_log
from deltalakedb.deltalog.names import (
    LOG,
    checkpoint_key,
    checksum_key,
    part_key,
    sidecar_key,
    sidecar_name,
    v2_checkpoint_key,
)
from deltalakedb.errors import ConfigurationError, StorageError
from deltalakedb.mirror.checkpoint_source import Source, open_source, read_state
from deltalakedb.mirror.clock_check import time_of_log
from deltalakedb.mirror.last_checkpoint import advance_hint, describe

if TYPE_CHECKING:
    from deltalakedb.actions import Action
    from deltalakedb.storage import ObjectInfo, Storage
    from deltalakedb.store import Store, TableRecord

MAX_ACTIONS: Final = 5_000_000
"""A checkpoint with more actions is written in parts."""
SIDECAR_ACTIONS: Final = 1_000_000
"""How many actions a sidecar holds."""
# `_last_checkpoint` repeats the actions of a V2 checkpoint if there are no more than this.
_REPEATED: Final = 30
_V2: Final = "v2Checkpoint"
# The numbers of parts to try: each one that exists is an attempt that was interrupted.
_CLAIMS: Final = 16


def checkpoint_interval(properties: Mapping[str, str]) -> int:
    """The number of versions from one checkpoint to the next.

    An invalid value counts as the default: a table without checkpoints would become slower and
    slower to open.
    """
    try:
        return TableProperties(properties).checkpoint_interval
    except ConfigurationError:
        return TableProperties({}).checkpoint_interval


def write_checkpoint(
    store: Store,
    storage: Storage,
    table: TableRecord,
    version: int,
    *,
    now_ms: int | None = None,
    max_actions: int | None = None,
) -> LastCheckpoint:
    """Write the checkpoint of a published version; `_last_checkpoint` then names it.

    `max_actions` is the most that one file holds: by default `delta.checkpoint.partSize`, or else
    five million (a million in a sidecar). Tombstones and app transactions that have expired at
    `now_ms` are left out. A checkpoint that exists is named and not written again.
    """
    now = time_of_log(store, storage, version) if now_ms is None else now_ms
    source = open_source(store, table, version, now_ms=now)
    snapshot = source.state.snapshot
    properties = TableProperties(snapshot.properties)
    limit = max_actions or properties.value("delta.checkpoint.partSize")
    has_v2 = _V2 in (snapshot.protocol.writer_features or ())
    if has_v2 and properties.checkpoint_policy == "v2":
        written = _write_v2(storage, source, limit or SIDECAR_ACTIONS)
    elif has_v2 or source.most_actions <= (limit or MAX_ACTIONS):
        written = _write_classic(storage, source)
    else:
        written = _write_parts(storage, source, limit or MAX_ACTIONS)
    advance_hint(storage, written)
    return written


def write_checksum(store: Store, storage: Storage, table: TableRecord, version: int) -> bool:
    """Write the version checksum of a published version; False where it exists."""
    with store.read() as session:
        state = read_state(
            store, session, table, version, now_ms=lambda: time_of_log(store, storage, version)
        )
        record = store.version(session, table.table_id, version)
    snapshot = state.snapshot
    info = None if record is None else record.commit_info
    in_commit = None
    if TableProperties(snapshot.properties).enable_in_commit_timestamps:
        in_commit = snapshot.committed_at
        if info is not None and info.in_commit_timestamp is not None:
            in_commit = info.in_commit_timestamp
    data = version_checksum(
        metadata=snapshot.metadata,
        protocol=snapshot.protocol,
        table_size_bytes=snapshot.size_bytes,
        num_files=snapshot.num_files,
        txns=state.txns,
        domains=state.domains,
        txn_id=None if info is None else info.txn_id,
        in_commit_timestamp=in_commit,
    )
    return storage.put_if_absent(checksum_key(version), data)


# --- one file -----------------------------------------------------------------------------


def _write_classic(storage: Storage, source: Source) -> LastCheckpoint:
    key = checkpoint_key(source.version)
    info = storage.head(key)
    known = None if info is None else _known(storage, source, [info])
    if known is not None:
        return known
    maker = RowMaker(form_of(source.state.snapshot.metadata))
    with storage.writing(key) as sink, source.stream(maker) as stream:
        with CheckpointFile(sink, maker.schema) as file:
            file.write_actions(source.state.actions())
            for rows in stream.rest():
                file.write(rows)
        size = sink.tell()
    return _hint(source, file.rows, size)


def _known(storage: Storage, source: Source, files: list[ObjectInfo]) -> LastCheckpoint | None:
    """The checkpoint that these files are, if they are all of one and can be read."""
    checkpoints = sort_log(files).checkpoints.get(source.version, [])
    hint = describe(storage, checkpoints[0], {}) if checkpoints else None
    if hint is None:
        return None
    return replace(hint, num_of_add_files=source.state.snapshot.num_files)


def _hint(
    source: Source, rows: int, size: int, *, parts: int | None = None, v2: V2Hint | None = None
) -> LastCheckpoint:
    return LastCheckpoint(
        source.version,
        rows,
        parts=parts,
        size_in_bytes=size,
        num_of_add_files=source.state.snapshot.num_files,
        v2=v2,
    )


# --- parts --------------------------------------------------------------------------------


def _write_parts(storage: Storage, source: Source, limit: int) -> LastCheckpoint:
    """Write the files of the table to all parts but the first, which has everything else.

    The writer that creates the first part owns the number of parts: files of two writers never
    mix. An interrupted attempt stays, and the next one has a part more.
    """
    maker = RowMaker(form_of(source.state.snapshot.metadata))
    control, rows = _small_file(source.state.actions(), maker)
    count = source.count_files()
    fewest = 1 + max(1, -(-count // limit))
    for parts in range(fewest, fewest + _CLAIMS):
        if storage.put_if_absent(part_key(source.version, 1, parts), control):
            break
        known = _known_parts(storage, source, parts)
        if known is not None:
            return known
    else:
        raise StorageError(
            f"The checkpoint of version {source.version} cannot be written in parts",
            why=f"{_CLAIMS} attempts were interrupted before this one",
            fix=f"Delete the files {source.version:020d}.checkpoint.*.parquet in {LOG}",
        )
    size = len(control)
    each = -(-count // (parts - 1))
    with source.stream(maker) as stream:
        for part in range(2, parts + 1):
            key = part_key(source.version, part, parts)
            # The last one takes the rest, so that the number of files is checked.
            batches = stream.rest() if part == parts else stream.take(each)
            written, length = _write_file(storage, key, maker, batches)
            rows += written
            size += length
    return _hint(source, rows, size, parts=parts)


def _small_file(actions: list[Action], maker: RowMaker) -> tuple[bytes, int]:
    sink = io.BytesIO()
    with CheckpointFile(sink, maker.schema) as file:
        file.write_actions(actions)
    return sink.getvalue(), file.rows


def _write_file(
    storage: Storage, key: str, maker: RowMaker, batches: Iterator[object]
) -> tuple[int, int]:
    """Write a file of file actions; returns its numbers of rows and bytes."""
    with storage.writing(key) as sink:
        with CheckpointFile(sink, maker.schema) as file:
            for rows in batches:
                file.write(rows)
        return file.rows, sink.tell()


def _known_parts(storage: Storage, source: Source, parts: int) -> LastCheckpoint | None:
    keys = [part_key(source.version, part, parts) for part in range(1, parts + 1)]
    files = [info for info in map(storage.head, keys) if info is not None]
    return _known(storage, source, files) if len(files) == parts else None


# --- V2 -----------------------------------------------------------------------------------


def _write_v2(storage: Storage, source: Source, limit: int) -> LastCheckpoint:
    form = form_of(source.state.snapshot.metadata)
    unique = str(uuid.uuid4())
    maker = RowMaker(form, sidecars=True)
    sidecars: list[Sidecar] = []
    total = size = 0
    with source.stream(maker) as stream:
        while stream.has_more():
            name = sidecar_name(source.version, len(sidecars) + 1, unique)
            rows, length = _write_file(storage, sidecar_key(name), maker, stream.take(limit))
            total += rows
            size += length
            sidecars.append(Sidecar(name, length, _modified(storage, sidecar_key(name))))
    others: list[Action] = [*source.state.actions(), CheckpointMetadata(source.version)]
    key = v2_checkpoint_key(source.version, unique)
    sink = io.BytesIO()
    with CheckpointFile(sink, checkpoint_schema(form, v2=True)) as file:
        file.write_actions([*others, *sidecars])
    data = sink.getvalue()
    storage.put(key, data)
    hint = V2Hint(
        key.rpartition("/")[2],
        len(data),
        _modified(storage, key),
        others if len(others) <= _REPEATED else None,
        sidecars if len(sidecars) <= _REPEATED else None,
    )
    return _hint(source, total + file.rows, size + len(data), v2=hint)


def _modified(storage: Storage, key: str) -> int:
    info = storage.head(key)
    if info is None:
        raise StorageError(
            f"{key} was written and is not there",
            why="it was deleted meanwhile",
            fix="Check that nothing else deletes files of the log, and try again",
        )
    return info.modified_ms


# --- version checksums --------------------------------------------------------------------


def version_checksum(
    *,
    metadata: Metadata,
    protocol: Protocol,
    table_size_bytes: int,
    num_files: int,
    txns: Sequence[Txn],
    domains: Sequence[DomainMetadata],
    txn_id: str | None = None,
    in_commit_timestamp: int | None = None,
) -> bytes:
    """The content of a checksum file; `domains` are those that are not removed.

    `in_commit_timestamp` is for tables with in-commit timestamps only.
    """
    document: dict[str, Any] = {}
    if txn_id is not None:
        document["txnId"] = txn_id
    document |= {
        "tableSizeBytes": table_size_bytes,
        "numFiles": num_files,
        "numMetadata": 1,
        "numProtocol": 1,
    }
    if in_commit_timestamp is not None:
        document["inCommitTimestampOpt"] = in_commit_timestamp
    document |= {
        "setTransactions": [to_dict(txn)["txn"] for txn in txns],
        "domainMetadata": [to_dict(domain)["domainMetadata"] for domain in domains],
        "metadata": to_dict(metadata)["metaData"],
        "protocol": to_dict(protocol)["protocol"],
    }
    return dumps_ordered(document).encode()
