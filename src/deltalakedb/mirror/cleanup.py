"""The clean-up of `_delta_log`: expired files are deleted.

Guarantees:

- Every version that was current at the cutoff or later stays readable: the newest checkpoint at or
  before it stays, with its commit and all that follows. Without such a checkpoint, complete and
  readable, nothing is deleted.
- Before a checkpoint is deleted, `_last_checkpoint` names one that stays. Files are deleted from
  old to new, so that after an interruption the log is readable from a later version on.
- Sidecars that no checkpoint names, and incomplete files, stay for a day: a writer may be working
  on them.
- Nothing is deleted by a clock that is ahead of the object store's.
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
from deltalakedb.mirror.last_checkpoint import advance_hint, describe, hinted_version, sidecar_keys
from deltalakedb.store.versions import available_versions

if TYPE_CHECKING:
    from deltalakedb.deltalog.last_checkpoint import LastCheckpoint
    from deltalakedb.storage import ObjectInfo, Storage
    from deltalakedb.store import Store, TableRecord

_DAY_MS: Final = 86_400_000
_FEATURE: Final = "checkpointProtection"
_SIDECARS: Final = f"{LOG}/{SIDECARS}/"
_CHECKPOINTS: Final = (LogKind.CHECKPOINT, LogKind.CHECKPOINT_PART, LogKind.V2_CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The number of deleted files of each kind. `oldest` is the first version that stays."""

    oldest: int | None = None
    commits: int = 0
    checksums: int = 0
    checkpoints: int = 0
    compactions: int = 0
    sidecars: int = 0
    leftovers: int = 0


def clean_log(store: Store, storage: Storage, table: TableRecord, *, now_ms: int) -> Cleaned:
    """Delete the files that have expired by `delta.logRetentionDuration`.

    The cutoff is at midnight (UTC), so one call a day is enough.
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
    base = _newest_checkpoint(store, storage, table, objects, newest)
    if base is None or base.version < _protected(properties, protocol.writer_features or ()):
        return Cleaned(leftovers=leftovers)
    check_ahead(store, storage, now_ms, newest=max(info.modified_ms for info in objects.values()))
    named = hinted_version(storage)
    if named is not None and named < base.version:
        advance_hint(storage, base)
    done = _delete_versions(storage, objects.values(), base.version)
    # Nothing names the sidecars of a V2 checkpoint that is still being written.
    young = min(cutoff, now_ms - _DAY_MS)
    sidecars = _delete_sidecars(storage, objects.values(), base.version, young)
    return replace(done, sidecars=sidecars, leftovers=leftovers)


def _clear_leftovers(storage: Storage) -> int:
    seconds = _DAY_MS / 1000
    return sum(
        storage.clear_leftovers(folder, older_than_seconds=seconds)
        for folder in (LOG, f"{LOG}/{SIDECARS}")
    )


def _protected(properties: TableProperties, features: Iterable[str]) -> int:
    """The version before which files may only be deleted all together."""
    return properties.checkpoint_protection_before_version if _FEATURE in features else 0


# --- expired versions ---------------------------------------------------------------------


def _newest_expired(
    store: Store,
    table: TableRecord,
    listing: LogListing,
    properties: TableProperties,
    cutoff: int,
) -> int | None:
    """The version that was current at the cutoff; None where the table was younger then.

    The ledger has the time of each commit. Readers have it too where in-commit timestamps are
    enabled; else they use the time of the file, so both have to be before the cutoff.
    """
    with store.read() as session:
        row = session.one("version_at_timestamp", table_id=table.table_id, timestamp=cutoff)
        available = available_versions(session, table.table_id)
    if not available:
        return None
    # Versions before the ledger begins have only the time of their file, which is never before
    # that of the commit.
    oldest = available[0][0]
    newest = oldest - 1 if row is None else int(row[0])
    timed_by_file = max(_first_in_commit(properties), oldest)
    late = [
        version
        for version, file in listing.commits.items()
        if file.modified_ms > cutoff and version < timed_by_file
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
    """The newest checkpoint at or before a version that can be read, and is complete."""
    listing = sort_log(objects.values())
    sizes = {key: info.size for key, info in objects.items()}
    for version in sorted(listing.checkpoints, reverse=True):
        # Its own commit has to exist too: readers may look for it.
        if version > newest or version not in listing.commits:
            continue
        for checkpoint in listing.checkpoints[version]:
            hint = describe(storage, checkpoint, sizes)
            if hint is not None and hint.size >= _least_actions(store, table, version):
                return hint
    return None


def _least_actions(store: Store, table: TableRecord, version: int) -> int:
    """The smallest possible number of actions in a checkpoint of a version."""
    with store.read() as session:
        record = store.version(session, table.table_id, version)
    return 2 if record is None else 2 + record.counts.live_files


# --- deleting -----------------------------------------------------------------------------


def _delete_versions(storage: Storage, objects: Collection[ObjectInfo], oldest: int) -> Cleaned:
    """Delete the files of all versions before `oldest`."""
    expired: list[tuple[LogName, str]] = []
    for info in objects:
        name = parse_name(info.key.removeprefix(f"{LOG}/"))
        if name is not None and max(name.version, name.end) < oldest:
            expired.append((name, info.key))
    expired.sort(key=lambda item: (item[0].version, item[1]))
    storage.delete_many([key for _, key in expired])
    count = Counter(name.kind for name, _ in expired)
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
    """Delete old sidecars that no remaining checkpoint names; returns their number."""
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
        sidecars = sidecar_keys(storage, info.key, info.size)
        if sidecars is None:
            # Its sidecars are unknown, so all of them stay.
            return 0
        named |= sidecars
    unnamed = sorted(candidates - named)
    storage.delete_many(unnamed)
    return len(unnamed)
