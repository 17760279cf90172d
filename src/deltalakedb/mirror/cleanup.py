"""Old files of `_delta_log` go when nobody needs them any more.

Guarantees:

- Every version that was current at the cutoff or later stays readable: the newest checkpoint at or
  before it stays, with its commit and all that follows. Without such a checkpoint, complete and
  readable, nothing is deleted.
- Before a checkpoint goes, `_last_checkpoint` names one that stays. Deleting goes from old to new,
  so that whoever is interrupted leaves a log that is readable from somewhere on.
- Sidecars that nothing names, and half-written files, are left alone for a day: they may be
  somebody's work in progress.
- By a clock that is ahead of the object store's, nothing is deleted.
- The catalog is not touched: its history has a retention of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.listing import LogListing, sort_log
from deltalakedb.deltalog.names import LOG, SIDECARS, LogKind, LogName, parse_name
from deltalakedb.mirror.checkpoint_source import milliseconds
from deltalakedb.mirror.clock_check import check_ahead
from deltalakedb.mirror.hints import advance_hint, describe, hinted_version, sidecar_keys
from deltalakedb.store.versions import available_versions

if TYPE_CHECKING:
    from deltalakedb.deltalog.hint import LastCheckpoint
    from deltalakedb.storage import ObjectInfo, Storage
    from deltalakedb.store import Store, TableRecord

_DAY_MS: Final = 86_400_000
_FEATURE: Final = "checkpointProtection"
_SIDECARS: Final = f"{LOG}/{SIDECARS}/"
_CHECKPOINTS: Final = (LogKind.CHECKPOINT, LogKind.CHECKPOINT_PART, LogKind.V2_CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was deleted: how many files of each kind. `oldest` is the first version that stays."""

    oldest: int | None = None
    commits: int = 0
    checksums: int = 0
    checkpoints: int = 0
    compactions: int = 0
    sidecars: int = 0
    leftovers: int = 0


def clean_log(store: Store, storage: Storage, table: TableRecord, *, now_ms: int) -> Cleaned:
    """Delete what `delta.logRetentionDuration` does not ask to keep.

    The cutoff lies at midnight (UTC), so calling it once a day is as good as calling it often.
    """
    with store.read() as session:
        head = store.head(session, table.table_id)
        metadata = None if head is None else store.metadata_at(session, table.table_id, head)
        protocol = None if head is None else store.protocol_at(session, table.table_id, head)
    leftovers = _clear_leftovers(storage)
    if metadata is None or protocol is None:
        return Cleaned(leftovers=leftovers)
    properties = TableProperties(metadata.configuration)
    if not properties.enable_expired_log_cleanup:
        return Cleaned(leftovers=leftovers)
    cutoff = now_ms - milliseconds(properties.log_retention)
    cutoff -= cutoff % _DAY_MS
    objects = {info.key: info for info in storage.list(LOG)}
    listing = sort_log(objects.values())
    newest = _newest_expired(store, table, listing, properties, cutoff)
    if newest is None:
        return Cleaned(leftovers=leftovers)
    kept = _newest_checkpoint(store, storage, table, objects, newest)
    if kept is None or kept.version < _protected(properties, protocol.writer_features or ()):
        return Cleaned(leftovers=leftovers)
    check_ahead(store, storage, now_ms, newest=max(info.modified_ms for info in objects.values()))
    named = hinted_version(storage)
    if named is not None and named < kept.version:
        advance_hint(storage, kept)
    done = _delete_versions(storage, objects.values(), kept.version)
    # What an unfinished V2 checkpoint has written so far is not named by anything yet.
    young = min(cutoff, now_ms - _DAY_MS)
    sidecars = _delete_sidecars(storage, objects.values(), kept.version, young)
    return replace(done, sidecars=sidecars, leftovers=leftovers)


def _clear_leftovers(storage: Storage) -> int:
    seconds = _DAY_MS / 1000
    return sum(
        storage.clear_leftovers(folder, older_than_seconds=seconds)
        for folder in (LOG, f"{LOG}/{SIDECARS}")
    )


def _protected(properties: TableProperties, features: Iterable[str]) -> int:
    """The version before which nothing may go by itself: all of it goes together, or none."""
    return properties.checkpoint_protection_before_version if _FEATURE in features else 0


# --- what may go --------------------------------------------------------------------------


def _newest_expired(
    store: Store,
    table: TableRecord,
    listing: LogListing,
    properties: TableProperties,
    cutoff: int,
) -> int | None:
    """The version that was current at the cutoff; None where the table was younger then.

    The ledger knows when a version was committed. Readers know it too where in-commit timestamps
    are enabled; else they go by the time of the file, so both have to be over.
    """
    with store.read() as session:
        row = session.one("version_at_timestamp", table_id=table.table_id, timestamp=cutoff)
        there = available_versions(session, table.table_id)
    if not there:
        return None
    # Versions before the ledger begins are older than all of it; how old, only their files tell,
    # whose time is never before that of the commit.
    oldest = there[0][0]
    newest = oldest - 1 if row is None else int(row[0])
    told_by_file = max(_first_in_commit(properties), oldest)
    late = [
        version
        for version, file in listing.commits.items()
        if file.modified_ms > cutoff and version < told_by_file
    ]
    newest = min([newest, *(version - 1 for version in late)])
    return None if newest < 0 else newest


def _first_in_commit(properties: TableProperties) -> float:
    """The first version whose time is in its commit."""
    if not properties.enable_in_commit_timestamps:
        return float("inf")
    began = properties.in_commit_timestamp_enablement
    return 0 if began is None else began[0]


def _newest_checkpoint(
    store: Store,
    storage: Storage,
    table: TableRecord,
    objects: Mapping[str, ObjectInfo],
    newest: int,
) -> LastCheckpoint | None:
    """The newest checkpoint at or before a version that can be read, and holds enough."""
    listing = sort_log(objects.values())
    sizes = {key: info.size for key, info in objects.items()}
    for version in sorted(listing.checkpoints, reverse=True):
        # Its own commit has to be there too: some readers look for it.
        if version > newest or version not in listing.commits:
            continue
        for checkpoint in listing.checkpoints[version]:
            found = describe(storage, checkpoint, sizes)
            if found is not None and found.size >= _least_actions(store, table, version):
                return found
    return None


def _least_actions(store: Store, table: TableRecord, version: int) -> int:
    """How many actions a checkpoint of a version has at least, as far as the ledger knows."""
    with store.read() as session:
        record = store.version(session, table.table_id, version)
    return 2 if record is None else 2 + record.counts.live_files


# --- deleting -----------------------------------------------------------------------------


def _delete_versions(storage: Storage, objects: Collection[ObjectInfo], oldest: int) -> Cleaned:
    """Delete the files of all versions before `oldest`."""
    doomed: list[tuple[LogName, str]] = []
    for info in objects:
        name = parse_name(info.key.removeprefix(f"{LOG}/"))
        if name is not None and max(name.version, name.end) < oldest:
            doomed.append((name, info.key))
    doomed.sort(key=lambda item: (item[0].version, item[1]))
    storage.delete_many([key for _, key in doomed])
    count = Counter(name.kind for name, _ in doomed)
    return Cleaned(
        oldest,
        commits=count[LogKind.COMMIT],
        checksums=count[LogKind.CHECKSUM],
        checkpoints=sum(count[kind] for kind in _CHECKPOINTS),
        compactions=count[LogKind.COMPACTION],
    )


def _delete_sidecars(
    storage: Storage, objects: Collection[ObjectInfo], oldest: int, young: int
) -> int:
    """Delete old sidecars that no checkpoint names which is still there; how many."""
    candidates = {
        info.key for info in objects if info.key.startswith(_SIDECARS) and info.modified_ms < young
    }
    if not candidates:
        return 0
    named: set[str] = set()
    for info in objects:
        name = parse_name(info.key.removeprefix(f"{LOG}/"))
        if name is None or name.kind not in _CHECKPOINTS or name.version < oldest:
            continue
        found = sidecar_keys(storage, info.key, info.size)
        if found is None:
            # Nobody knows what it needs.
            return 0
        named |= found
    unnamed = sorted(candidates - named)
    storage.delete_many(unnamed)
    return len(unnamed)
