"""Ratification: another writer proposes a version of a table, with the bytes of its commit file.

Guarantees:

- In one database transaction, which holds the head: the proposal becomes the next version, or
  nothing is written. UnexpectedVersionError if another commit has the version.
- The same proposal again is the same success, in whichever process it arrives. Two
  proposals are the same if their bytes are, or the `txnId` of their commitInfo.
- A commit that breaks a rule of the catalog is refused with the name of the rule.
- The writer has compared its commit with those before it, as Delta's writers do: nothing is rebased
  here.
- Nothing is published here. The caller does that before it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltalakedb.actions.file_paths import split_uri
from deltalakedb.errors import (
    CatalogConnectionLostError,
    CatalogConstraintError,
    CommitRejectedError,
    Fix,
    PathNotAllowedError,
    TableDriftedError,
    TransactionAbortedError,
    UnexpectedVersionError,
)
from deltalakedb.storage.locations import FilePlaces
from deltalakedb.store import mirror as queue
from deltalakedb.store.table_lookup import not_registered, table_exists
from deltalakedb.telemetry import event
from deltalakedb.transaction.commit import load_state
from deltalakedb.transaction.foreign import record_foreign
from deltalakedb.transaction.retry import RetryPolicy
from deltalakedb.transaction.rulebook import Rule, reject

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord, VersionRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.commit import TableState
    from deltalakedb.transaction.foreign import ForeignCommit

# Clocks of sound machines differ by less.
_CLOCK_TOLERANCE_MS: Final = 300_000
# A commit that has won is looked for among so many versions.
_REPEATED_WITHIN: Final = 100


@dataclass(frozen=True, slots=True)
class Ratified:
    """A proposal that is a version of its table; `repeated` if it was before."""

    table: TableRecord
    version: int
    repeated: bool
    state: TableState | None = None
    """The table after a commit that was written now."""


class Ratifier:
    """Ratifies proposals through a store.

    `roots` are locations besides those of its tables that hold files of clones.
    """

    def __init__(
        self,
        store: Store,
        *,
        roots: Iterable[str] = (),
        on_drift: str = "refuse",
        policy: RetryPolicy | None = None,
        step: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._roots = tuple(roots)
        self._refuses_drift = on_drift == "refuse"
        self._policy = policy or RetryPolicy()
        # Called between any two steps: where tests kill the process.
        self._step = step or (lambda _: None)

    def ratify(
        self, table: TableRecord, commit: ForeignCommit, *, committer: str | None, is_new: bool
    ) -> Ratified:
        """Make a commit the version of a table that it claims to be; `is_new` registers the table.

        An answer of the database that is lost does no harm: the next try finds the commit.
        """
        if not commit.actions:
            raise reject(
                Rule.NOT_EMPTY,
                f"Version {commit.version} of table {table.name!r} has no action",
                why="The bytes of its commit file are empty, or were lost",
                fix="Send the lines of the commit file",
            )
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._store.write() as session:
                    done = self._decide(session, table, commit, committer, is_new=is_new)
                    self._step("commit")
                self._step("committed")
            except (TransactionAbortedError, CatalogConnectionLostError):
                if attempt >= self._policy.max_attempts:
                    raise
                self._policy.sleep(self._policy.delay(attempt))
            except CatalogConstraintError as error:
                # Another process has registered the table, or another one of its name, meanwhile.
                if not is_new or attempt >= self._policy.max_attempts:
                    raise
                with self._store.read() as session:
                    self._refuse_taken(session, table)
                if self._known(table) is None:
                    raise error from error
            else:
                self._report(done, commit, committer)
                return done

    def _known(self, table: TableRecord) -> TableRecord | None:
        with self._store.read() as session:
            return self._store.table_by_location(session, table.location)

    def _decide(
        self,
        session: Session,
        table: TableRecord,
        commit: ForeignCommit,
        committer: str | None,
        *,
        is_new: bool,
    ) -> Ratified:
        if is_new:
            known = self._store.table_by_location(session, table.location)
            if known is None:
                return self._register(session, table, commit, committer)
            table = known
        head = self._store.lock_head(session, table.table_id)
        self._step("locked")
        if head is None:
            raise not_registered(session, table)
        if commit.version <= head:
            if self._is_recorded(session, table, commit):
                return Ratified(table, commit.version, repeated=True)
            raise _overtaken(table, commit, head)
        self._refuse_drift(session, table)
        if commit.version > head + 1:
            raise _ahead(table, commit, head)
        state = load_state(self._store, session, table.table_id, head)
        self._refuse_second(session, table, commit)
        table = self._with_roots(session, table, commit)
        now = self._store.commit_time(session)
        _check_clock(commit, now, state)
        if not self._store.advance_head(session, table.table_id, expected=head):
            raise TransactionAbortedError("The head moved while it was held", fix="Try again")
        self._step("moved")
        _, after = record_foreign(
            self._store,
            session,
            table,
            commit,
            state,
            time=self._store.time_after(state.committed_at, now, table),
            committer=committer or commit.user,
            published=False,
        )
        return Ratified(table, commit.version, repeated=False, state=after)

    def _register(
        self,
        session: Session,
        table: TableRecord,
        commit: ForeignCommit,
        committer: str | None,
    ) -> Ratified:
        self._refuse_taken(session, table)
        table = replace(table, allowed_roots=self._roots_of(session, table, commit))
        now = self._store.commit_time(session)
        _check_clock(commit, now, None)
        self._store.register(session, table)
        self._step("registered")
        _, after = record_foreign(
            self._store,
            session,
            table,
            commit,
            None,
            time=now,
            committer=committer or commit.user,
            published=False,
        )
        return Ratified(table, commit.version, repeated=False, state=after)

    def _refuse_taken(self, session: Session, table: TableRecord) -> None:
        other = self._store.table_by_name(session, table.name)
        if other is not None and other.location != table.location:
            raise table_exists(table.name, table.location, other.name, other.location)

    # --- recorded before ------------------------------------------------------------------

    def _is_recorded(self, session: Session, table: TableRecord, commit: ForeignCommit) -> bool:
        """Whether the version is this very commit."""
        record: VersionRecord | None = self._store.version(session, table.table_id, commit.version)
        if record is not None and commit.uuid is not None and record.commit_uuid == commit.uuid:
            return True
        row = session.one("mirror_digest", table_id=table.table_id, version=commit.version)
        return row is not None and row[0] == commit.digest

    def _refuse_second(self, session: Session, table: TableRecord, commit: ForeignCommit) -> None:
        """Refuse a commit that is a version already: its writer did not see that it has won."""
        if commit.uuid is None:
            return
        after = commit.version - _REPEATED_WITHIN
        own = self._store.version_of_commit(session, table.table_id, commit.uuid, after=after)
        if own is not None:
            raise CommitRejectedError(
                f"Version {commit.version} of table {table.name!r} would repeat version {own}",
                rule=Rule.ONE_TRANSACTION.value,
                why="Both have the same txnId: the writer was not aware that its commit had "
                "succeeded",
                fix="Nothing has to be done: read the table again",
            )

    # --- refusals -------------------------------------------------------------------------

    def _refuse_drift(self, session: Session, table: TableRecord) -> None:
        if not self._refuses_drift:
            return
        drift = queue.mirror_table(session, table.table_id).drift
        if drift is not None:
            raise TableDriftedError(
                f"Table {table.name!r} takes no commits: it has drifted from its _delta_log, where "
                f"{drift.get('object_key', 'a commit')} is not from this catalog",
                why="Another writer has written to the log, or the catalog was restored from an "
                "older state",
                fix=queue.drift_way_out(table.name),
            )

    # --- files outside the table ----------------------------------------------------------

    def _with_roots(
        self, session: Session, table: TableRecord, commit: ForeignCommit
    ) -> TableRecord:
        roots = self._roots_of(session, table, commit)
        if not set(roots) - set(table.allowed_roots):
            return table
        return self._store.allow_roots(session, table, roots)

    def _roots_of(
        self, session: Session, table: TableRecord, commit: ForeignCommit
    ) -> tuple[str, ...]:
        """The roots of the table, and other tables of the catalog whose files the commit adds."""
        roots = list(table.allowed_roots)
        places = FilePlaces(table.location, roots)
        others: list[str] | None = None
        for add in commit.summary.adds:
            if split_uri(add.path) is None or _is_allowed(places, add.path):
                continue
            if others is None:
                others = [one.location for one in self._store.tables(session)]
                others += self._roots
            holders = [one for one in others if _is_allowed(FilePlaces(one), add.path)]
            if holders:
                # The innermost one: a table may lie inside another.
                roots.append(max(holders, key=len))
                places = FilePlaces(table.location, roots)
        return tuple(roots)

    @staticmethod
    def _report(done: Ratified, commit: ForeignCommit, committer: str | None) -> None:
        operation = commit.info.operation if commit.info is not None else None
        event(
            "ratified",
            lambda: {
                "table": done.table.name,
                "table_id": done.table.table_id,
                "version": done.version,
                "operation": operation,
                "committer": committer,
                "repeated": done.repeated,
                "adds": len(commit.summary.adds),
                "removes": len(commit.summary.removes),
            },
        )


def _is_allowed(places: FilePlaces, path: str) -> bool:
    try:
        places.resolve(path)
    except PathNotAllowedError:
        return False
    return True


def _overtaken(table: TableRecord, commit: ForeignCommit, head: int) -> UnexpectedVersionError:
    return UnexpectedVersionError(
        f"Table {table.name!r} has another version {commit.version}",
        why=f"Another commit came first; the newest version is {head}",
        fix="Compare the commit with those that came before it, and propose the next version",
        winner_version=commit.version,
    )


def _ahead(table: TableRecord, commit: ForeignCommit, head: int) -> TableDriftedError:
    return TableDriftedError(
        f"Version {commit.version} of table {table.name!r} was proposed, and the catalog has "
        f"versions up to {head} only",
        why="Its log has commits that the catalog does not have",
        fix=f"Adopt them: {Fix('lake.verify', table.name)}, then {Fix('lake.adopt', table.name)}",
    )


def _check_clock(commit: ForeignCommit, now: int, state: TableState | None) -> None:
    """Refuse a commit time ahead of the catalog's: all later ones would have to follow it."""
    time = None if commit.info is None else commit.info.in_commit_timestamp
    newest = now if state is None else max(now, state.committed_at)
    if time is not None and time > newest + _CLOCK_TOLERANCE_MS:
        raise reject(
            Rule.IN_COMMIT_TIMESTAMP,
            f"The inCommitTimestamp is {(time - newest) // 1000} seconds ahead of the catalog",
            why="The clock of the writer, or of the catalog, is wrong",
            fix="Set the clock of the machine that is wrong",
        )
