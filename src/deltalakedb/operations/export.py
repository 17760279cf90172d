"""The export of a table: it leaves the catalog, and is an ordinary Delta table from then on.

Guarantees:

- A table leaves only when each of its versions is in `_delta_log`, and `_last_checkpoint` names a
  checkpoint of the last one. No commit can come between that check and the end.
- Until then the table is in the catalog as before. Commits that come meanwhile are published and
  checkpointed too; later ones are refused with TableExportedError.
- A log that differs from the catalog, or that cannot be written, is refused: the table stays.
- The last step is one database transaction, which also records the export. All steps before it can
  be repeated: an interrupted export is completed by the next one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.features import writer_features
from deltalakedb.deltalog.listing import list_log
from deltalakedb.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    CommitRejectedError,
    Fix,
    MirrorError,
    Option,
    TransactionAbortedError,
    UnsupportedFeatureError,
)
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.last_checkpoint import hinted_version
from deltalakedb.mirror.lease import Lease, new_owner
from deltalakedb.mirror.publish import Outcome, Publisher, Storages
from deltalakedb.mirror.verification import Kind
from deltalakedb.mirror.verify import verify_table
from deltalakedb.operations.drop_features import drop_features as features_to_drop
from deltalakedb.progress import Phases, Progress
from deltalakedb.store import mirror as queue
from deltalakedb.store.table_lookup import ExportRecord, export_of, not_registered, record_export
from deltalakedb.store.versions import domain_metadata
from deltalakedb.telemetry import event, span
from deltalakedb.transaction.commit import load_state

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.transaction.commit import Commit, TableState
    from deltalakedb.transaction.committer import Committer

# How often other commits may come before the last step.
_ROUNDS: Final = 20
# The number of findings that an error names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Exported:
    """A table that has left the catalog, and its last version."""

    table: str
    table_id: str
    location: str
    version: int
    exported_at: int
    """Milliseconds since 1970."""
    dropped_features: tuple[str, ...] = ()
    """Table features that this export dropped; those of an interrupted one are unknown."""
    features: tuple[str, ...] = ()
    """Table features that a writer has to support."""

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {
            **asdict(self),
            "dropped_features": list(self.dropped_features),
            "features": list(self.features),
        }


def exported(record: ExportRecord) -> Exported:
    """An export that the catalog has recorded."""
    return Exported(
        record.name, record.table_id, record.location, record.version, record.exported_at
    )


def export_table(
    store: Store,
    committer: Committer,
    table: TableRecord,
    *,
    drop_features: bool,
    verify: bool,
    progress: Progress | None = None,
) -> Exported:
    """Publish, verify, checkpoint and unregister a table."""
    phases = Phases(progress)
    storages = Storages(store.storage_options)
    storage = storages.at(table.location)
    dropped: set[str] = set()
    verified = not verify
    with span("deltalakedb.export", table=table.name):
        for _ in range(_ROUNDS):
            phases.begin("Publishing versions")
            version = publish_all(store, storages, table)
            if not verified:
                check_log(store, storage, table, progress=progress)
                verified = True
            state, commit = _state_and_drop(store, table, version)
            if drop_features and commit is not None:
                dropped |= _drop(committer, commit, state)
                continue
            phases.begin("Writing the last checkpoint")
            complete_log(store, storage, table, version)
            done = unregister(store, table, version)
            if done is not None:
                return replace(
                    exported(done),
                    dropped_features=tuple(sorted(dropped)),
                    features=tuple(sorted(writer_features(state.protocol))),
                )
    raise _refusal(
        table,
        f"other writers committed to it each time before it was complete, {_ROUNDS} times",
        fix="Stop the writers, and try again",
    )


def publish_all(store: Store, storages: Storages, table: TableRecord) -> int:
    """Publish all versions now; returns the newest published one.

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
        raise _refusal(
            table,
            f"publishing has stopped{where}: another writer wrote there to its _delta_log",
            fix=f"See {Fix('lake.verify', table.name)}. Either adopt the foreign commit with "
            f"{Fix('lake.adopt', table.name)}, or move it out of the log and try again with "
            f"{Fix('lake.mirror.retry', table.name)}",
        )
    if done.outcome is not Outcome.CAUGHT_UP or newest is None:
        why = "" if done.error is None else f": {done.error.what}. {done.error.why}"
        raise _refusal(
            table,
            f"not all of its versions could be published{why}",
            fix=(done.error.fix if done.error is not None else "")
            or f"See {Fix('lake.mirror.status')}, and try again when nothing blocks publishing",
        )
    return newest


def check_log(
    store: Store, storage: Storage, table: TableRecord, *, progress: Progress | None = None
) -> None:
    """Compare the whole log with the catalog; MirrorError unless every reader sees the same."""
    result = verify_table(store, storage, table, progress=progress)
    if result.ok:
        return
    bad = [finding for finding in result.findings if not finding.harmless]
    named = "; ".join(f"{finding.kind}: {finding.what}" for finding in bad[:_NAMED])
    rest = sum(result.counts.values()) - len(bad[:_NAMED])
    foreign = any(finding.kind is Kind.FOREIGN_COMMIT for finding in bad)
    verb = "lake.adopt" if foreign else "lake.repair"
    raise _refusal(
        table,
        f"its _delta_log is not what the catalog says ({named}"
        f"{f'; and {rest} more' if rest > 0 else ''})",
        fix=f"Settle it first with {Fix(verb, table.name)}",
    )


def _state_and_drop(
    store: Store, table: TableRecord, version: int
) -> tuple[TableState, Commit | None]:
    """The state of a version, and the commit that drops features that other writers may lack."""
    with store.read() as session:
        if store.head(session, table.table_id) is None:
            raise not_registered(session, table)
        state = load_state(store, session, table.table_id, version)
        domains = domain_metadata(session, table.table_id, version)
    return state, features_to_drop(table, state, domains)


def _drop(committer: Committer, commit: Commit, state: TableState) -> set[str]:
    """Commit it; returns the dropped features, none if another commit was faster."""
    try:
        # The next round publishes it.
        (done,) = committer.commit([commit], notify=False)
    except CommitConflictError:
        return set()
    except (CommitRejectedError, UnsupportedFeatureError) as error:
        raise MirrorError(
            f"Table {commit.table.name!r} cannot be exported without the features that other "
            "writers may not know",
            why=f"{error.what}: {error.why}. It is still in the catalog",
            fix=f"Keep them: {Option('drop_features', value=False)}",
        ) from error
    after = state.protocol if done.state is None else done.state.protocol
    return set(writer_features(state.protocol) - writer_features(after))


def complete_log(store: Store, storage: Storage, table: TableRecord, version: int) -> None:
    """Check that a version ends the log, and write the checkpoint that `_last_checkpoint` names."""
    listing = list_log(storage)
    newest = max(listing.commits, default=version)
    # A later commit of this catalog may have been published just now: `unregister` detects it.
    if newest > version and newest > (head := _head(store, table)):
        raise _refusal(
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
        raise _refusal(
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
    """Remove a table from the catalog; None where it has a newer version."""
    try:
        with store.write() as session:
            head = store.lock_head(session, table.table_id)
            now = store.table_by_id(session, table.table_id)  # it may have been renamed
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
            recorded = export_of(session, table.table_id)
        if recorded is None:
            raise
        return recorded
    event("export", record._asdict)
    return record


def _refusal(table: TableRecord, why: str, *, fix: str) -> MirrorError:
    return MirrorError(
        f"Table {table.name!r} cannot be exported",
        why=f"{why}. It is still in the catalog",
        fix=fix,
    )
