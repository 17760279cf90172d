"""The adoption of foreign commits: commit files of other writers become versions of the catalog.

Guarantees:

- One database transaction, which locks the head: all foreign commits are adopted, or none.
- Only commits that apply cleanly are adopted: they follow the newest version without a gap, all
  versions of the catalog are published, and each commit obeys the rules of this catalog.
- The files stay as they are; their digests are recorded, and they count as published. A version has
  the time that Delta's readers give it: the in-commit timestamp where the table has them, else the
  time of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.listing import LogFile, sort_log
from deltalakedb.deltalog.names import LOG, commit_key
from deltalakedb.errors import (
    AdoptionRefusedError,
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
    Fix,
    ObjectNotFoundError,
)
from deltalakedb.store import VersionRecord
from deltalakedb.store import mirror as queue
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.transaction.commit import TableState, load_state
from deltalakedb.transaction.foreign import ForeignCommit, record_foreign

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Counts, Store, TableRecord
    from deltalakedb.store.dialect import Session

_OTHERWISE: Final = (
    f"To continue with the log as it is, drop the table with {Fix('lake.drop_table', ...)} and "
    f"import it again with {Fix('lake.import_table', ...)}. If the commit is not needed, move it "
    "out of the log"
)


@dataclass(frozen=True, slots=True)
class AdoptedVersion:
    """A foreign commit that became a version of the catalog."""

    version: int
    key: str
    operation: str | None
    committed_at: int
    num_adds: int
    num_removes: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """The adopted versions; none where the log has no commit beyond the catalog."""

    table: str
    table_id: str
    versions: tuple[AdoptedVersion, ...]

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {**asdict(self), "versions": [asdict(version) for version in self.versions]}


def adopt(store: Store, storage: Storage, table: TableRecord) -> tuple[Adopted, TableState | None]:
    """Adopt every commit beyond the head; returns the versions, and the state after them."""
    with store.read() as session:
        head, unpublished = _read_versions(store, session, table)
    if unpublished is not None:
        _refuse_fork(store, storage, table, unpublished, head)
    with Spool(storage) as spool:
        files = _foreign_files(storage, table, head)
        _fetch(spool, files)
        try:
            with store.write() as session:
                store.lock_head(session, table.table_id)
                if _read_versions(store, session, table) != (head, None):
                    raise AdoptionRefusedError(
                        f"Table {table.name!r} got a new version while its log was read",
                        why="nothing was adopted",
                        fix="Try again. To see whether the log has forked, use "
                        f"{Fix('lake.verify', table.name)}",
                    )
                done, state = _adopt_all(store, session, table, spool, files)
                if done and queue.mirror_table(session, table.table_id).drift is not None:
                    queue.set_drift(session, table.table_id, None, now=store.clock.now_ms())
        except CommitOutcomeUnknownError:
            done = _committed(store, table, spool, files)
            if not done:
                raise
            state = None
    return Adopted(table.name, table.table_id, tuple(done)), state


def _foreign_files(storage: Storage, table: TableRecord, head: int) -> list[LogFile]:
    """The commit files beyond the head, in order."""
    listing = sort_log(storage.list(LOG, start_after=commit_key(head)))
    files = [listing.commits[version] for version in sorted(listing.commits) if version > head]
    for expected, file in enumerate(files, start=head + 1):
        if file.version != expected:
            raise AdoptionRefusedError(
                f"The foreign commits of table {table.name!r} cannot be adopted",
                why=f"there is one of version {file.version}, and none of version {expected}",
                fix=f"Restore {commit_key(expected)}, or move {file.key} out of the log",
            )
    return files


def _fetch(spool: Spool, files: Sequence[LogFile]) -> None:
    try:
        spool.fetch([file.key for file in files])
    except ObjectNotFoundError as error:
        raise AdoptionRefusedError(
            "The log changed while it was read", why=error.what, fix="Try again"
        ) from error


# --- unpublished versions -----------------------------------------------------------------


def _read_versions(store: Store, session: Session, table: TableRecord) -> tuple[int, int | None]:
    """The newest version, and the oldest one that is not published, if any."""
    head = store.head(session, table.table_id)
    if head is None:
        raise not_registered(session, table)
    row = session.one("first_unpublished", table_id=table.table_id)
    return head, None if row is None or row[0] is None else int(row[0])


def _refuse_fork(
    store: Store, storage: Storage, table: TableRecord, first: int, head: int
) -> NoReturn:
    """Refuse where unpublished versions stand in the way of the foreign commits."""
    key = commit_key(first)
    exists = storage.head(key) is not None
    with store.read() as session:
        record = store.version(session, table.table_id, first)
    operation = record.commit_info.operation if record and record.commit_info else None
    versions = f"version {first} ({operation or 'unnamed'})" + (
        f" to {head}" if head > first else ""
    )
    if not exists:
        raise AdoptionRefusedError(
            f"Table {table.name!r} has versions that are not published yet: {versions}",
            why="foreign commits can only follow on them",
            fix=f"Publish them first: {Fix('lake.mirror.run_once')}",
        )
    name = table.name
    raise AdoptionRefusedError(
        f"The log of table {name!r} has forked at version {first}",
        why=f"{storage.location}/{key} is a foreign commit, and this catalog has committed "
        f"{versions} itself, which cannot be published there",
        fix="Decide which of the two to keep. To keep the commits of this catalog, move the "
        f"foreign commits from version {first} on out of _delta_log, then run "
        f"{Fix('lake.mirror.retry', name)}. To keep the foreign commits, write down what was "
        f"committed here ({Fix('table.history')}, {Fix('snapshot.files')}), then run "
        f"{Fix('lake.drop_table', name, force=True)} and "
        f"{Fix('lake.import_table', table.location, name=name)}",
    )


# --- one commit after the other -----------------------------------------------------------


def _adopt_all(
    store: Store,
    session: Session,
    table: TableRecord,
    spool: Spool,
    files: Sequence[LogFile],
) -> tuple[list[AdoptedVersion], TableState | None]:
    if not files:
        return [], None
    done: list[AdoptedVersion] = []
    state = load_state(store, session, table.table_id, files[0].version - 1)
    for file in files:
        foreign = ForeignCommit(file.version, spool.get(file.key), file.key)
        if not store.advance_head(session, table.table_id, expected=file.version - 1):
            raise AdoptionRefusedError("The head moved while it was held", fix="Try again")
        try:
            record, state = record_foreign(
                store,
                session,
                table,
                foreign,
                state,
                time=max(file.modified_ms, state.committed_at + 1),
                committer=foreign.user,
                published=True,
            )
        except AdoptionRefusedError:
            raise
        except DeltaLakeDbError as error:
            raise AdoptionRefusedError(
                f"{file.key} cannot be adopted: {error.what}",
                why=error.why,
                fix=f"{_OTHERWISE}. Nothing was adopted",
            ) from error
        done.append(_adopted_version(foreign, record, record.counts))
    return done, state


def _adopted_version(
    foreign: ForeignCommit, record: VersionRecord, counts: Counts
) -> AdoptedVersion:
    info = record.commit_info
    return AdoptedVersion(
        version=record.version,
        key=foreign.name,
        operation=info.operation if info is not None else None,
        committed_at=record.committed_at,
        num_adds=counts.num_adds,
        num_removes=counts.num_removes,
        size_bytes=len(foreign.data),
        sha256=foreign.digest,
    )


def _committed(
    store: Store, table: TableRecord, spool: Spool, files: Sequence[LogFile]
) -> list[AdoptedVersion]:
    """The versions of an adoption whose acknowledgement was lost; none if it did not commit."""
    done: list[AdoptedVersion] = []
    with store.read() as session:
        for file in files:
            foreign = ForeignCommit(file.version, spool.get(file.key), file.key)
            record = store.version(session, table.table_id, file.version)
            row = session.one("mirror_digest", table_id=table.table_id, version=file.version)
            if record is None or row is None or row[0] != foreign.digest:
                return []
            done.append(_adopted_version(foreign, record, record.counts))
    return done
