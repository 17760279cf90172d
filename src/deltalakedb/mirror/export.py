"""The last steps of a table in the catalog: its log made complete, and its rows taken out.

Guarantees:

- A table leaves only when each of its versions is in `_delta_log`, a checkpoint of the last one is
  there, and `_last_checkpoint` names it. Nobody can commit between that look and the end.
- A log that holds what this catalog has not written, or that cannot be written, is a refusal: the
  table stays as it is.
- It leaves in one database transaction, which also remembers that it left. Whatever comes before
  only adds to the log what belongs there anyway, so all of it can be done again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from deltalakedb.deltalog.listing import list_log
from deltalakedb.errors import (
    CommitOutcomeUnknownError,
    Fix,
    MirrorError,
    TransactionAbortedError,
)
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.hints import hinted_version
from deltalakedb.mirror.lease import Lease, new_owner
from deltalakedb.mirror.publish import Outcome, Publisher, Storages
from deltalakedb.mirror.verification import Kind
from deltalakedb.mirror.verify import verify_table
from deltalakedb.store import mirror as queue
from deltalakedb.store.table_lookup import ExportRecord, export_of, not_registered, record_export
from deltalakedb.telemetry import event

if TYPE_CHECKING:
    from deltalakedb.mirror.verification import Verification
    from deltalakedb.progress import Progress
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord

# How many findings a refusal names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Exported:
    """A table that has left the catalog, and the version that it left with."""

    table: str
    table_id: str
    location: str
    version: int
    exported_at: int
    """Milliseconds since 1970."""
    dropped_features: tuple[str, ...] = ()
    """Table features that were dropped for it; those of an earlier try are not known."""
    features: tuple[str, ...] = ()
    """Table features that a writer has to know."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be printed."""
        return {
            **asdict(self),
            "dropped_features": list(self.dropped_features),
            "features": list(self.features),
        }


def exported(record: ExportRecord) -> Exported:
    """An export that is remembered."""
    return Exported(
        record.name, record.table_id, record.location, record.version, record.exported_at
    )


def publish_all(store: Store, storages: Storages, table: TableRecord) -> int:
    """Publish whatever waits, now; the newest version that is published.

    While a worker has the lease, both publish: they write the same bytes in the same order.
    """
    lease = Lease.take(store, table.table_id, new_owner())

    def go_on() -> bool:
        if lease is not None:
            lease.hold()
        return True

    try:
        done = Publisher(store, storages).publish(table, force=True, go_on=go_on)
    finally:
        if lease is not None:
            lease.release()
    with store.read() as session:
        drift = queue.mirror_table(session, table.table_id).drift
        newest = queue.newest_published(session, table.table_id)
        if newest is None and store.head(session, table.table_id) is None:
            raise not_registered(session, table)
    if done.outcome is Outcome.DRIFTED:
        where = f" at version {drift['version']}" if drift and "version" in drift else ""
        _refuse(
            table,
            f"publishing has stopped{where}: somebody else wrote there to its _delta_log",
            fix=f"See {Fix('lake.verify', table.name)}. Either adopt the foreign commit with "
            f"{Fix('lake.adopt', table.name)}, or move it out of the log and try again with "
            f"{Fix('lake.mirror.retry', table.name)}",
        )
    if done.outcome is not Outcome.CAUGHT_UP or newest is None:
        why = "" if done.error is None else f": {done.error.what}. {done.error.why}"
        _refuse(
            table,
            f"not all of its versions could be published{why}",
            fix=(done.error.fix if done.error is not None else "")
            or f"See {Fix('lake.mirror.status')}, and try again when nothing blocks publishing",
        )
    return newest


def check_log(
    store: Store,
    storage: Storage,
    table: TableRecord,
    *,
    progress: Progress | None = None,
) -> Verification:
    """Compare the whole log with the catalog; MirrorError unless every reader sees the same."""
    found = verify_table(store, storage, table, progress=progress)
    if not found.ok:
        bad = [finding for finding in found.findings if not finding.harmless]
        named = "; ".join(f"{finding.kind}: {finding.what}" for finding in bad[:_NAMED])
        rest = sum(found.counts.values()) - len(bad[:_NAMED])
        foreign = any(finding.kind is Kind.FOREIGN_COMMIT for finding in bad)
        verb = "lake.adopt" if foreign else "lake.repair"
        _refuse(
            table,
            f"its _delta_log is not what the catalog says ({named}"
            f"{f'; and {rest} more' if rest > 0 else ''})",
            fix=f"Settle it first with {Fix(verb, table.name)}",
        )
    return found


def complete_log(store: Store, storage: Storage, table: TableRecord, version: int) -> None:
    """Make sure that a version ends the log, and has a checkpoint that the hint names."""
    listing = list_log(storage)
    newest = max(listing.commits, default=version)
    # What is beyond may be ours and have come just now: then the last look will find it.
    if newest > version and newest > (head := _head(store, table)):
        _refuse(
            table,
            f"its _delta_log has a version {newest}, and the catalog ends with {head}",
            fix=f"Adopt the foreign commits with {Fix('lake.adopt', table.name)}, or move them "
            "out of the log",
        )
    if version not in listing.checkpoints or hinted_version(storage) != version:
        write_checkpoint(store, storage, table, version)
    write_checksum(store, storage, table, version)
    named = hinted_version(storage)
    if named != version and _head(store, table) == version:
        _refuse(
            table,
            f"_last_checkpoint names version {named}, and not {version}",
            fix=f"Run {Fix('lake.repair', table.name)}, and try again",
        )


def _head(store: Store, table: TableRecord) -> int:
    with store.read() as session:
        head = store.head(session, table.table_id)
        if head is None:
            raise not_registered(session, table)
    return head


def unregister(store: Store, table: TableRecord, version: int) -> ExportRecord | None:
    """Take a table out of the catalog; None where it is not at this version any more."""
    try:
        with store.write() as session:
            head = store.lock_head(session, table.table_id)
            now = store.table_by_id(session, table.table_id)  # it may have another name by now
            if head is None or now is None:
                raise not_registered(session, table)
            record = ExportRecord(
                now.table_id, now.name, now.location, version, store.clock.now_ms()
            )
            if head != version or queue.backlog_size(session, table.table_id):
                return None
            store.forget_table(session, table.table_id)
            record_export(session, record)
    except TransactionAbortedError:
        return None
    except CommitOutcomeUnknownError:
        with store.read() as session:
            found = export_of(session, table.table_id)
        if found is None:
            raise
        return found
    event("export", record._asdict)
    return record


def _refuse(table: TableRecord, why: str, *, fix: str) -> NoReturn:
    raise MirrorError(
        f"Table {table.name!r} cannot be exported",
        why=f"{why}. It is still in the catalog",
        fix=fix,
    )
