"""The commit loop, for one table or many, all or nothing.

Guarantees:

- The head of each table moves from N to N+1 in the same database transaction that writes the
  ledger, and is held until that ends. Heads are taken in the order of table ids, so that two
  transactions over the same tables cannot wait for each other.
- Where others have moved the head since the base of a commit, their commits are checked by Delta's
  conflict rules. A change that is independent of them goes on top of them in the same transaction;
  any other raises its conflict, and nothing is written.
- The head of a table that was only read is held in the same order, and what was committed to it
  since is checked by the same rules, at the level of that table. So transactions over tables that
  are Serializable are as if they had happened one after the other, in the order of their commits.
- A commit is never doubled: every try carries the same UUID, and a try that finds it in the ledger
  takes it as its own acknowledgement.
- Commit times strictly increase per table, whatever the clocks say (`Store.time_after`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from deltalakedb.actions import Action, serialise_commit
from deltalakedb.errors import (
    CatalogBusyError,
    CatalogConnectionLostError,
    CatalogConstraintError,
    CatalogError,
    CatalogUnreachableError,
    CommitConflictError,
    CommitOutcomeUnknownError,
    ConcurrentTransactionError,
    CorruptCatalogError,
    DeltaLakeDbError,
    Fix,
    HistoryExpiredError,
    RetriesExhaustedError,
    TableDriftedError,
    TransactionAbortedError,
    UnexpectedVersionError,
)
from deltalakedb.storage import delete_leftovers
from deltalakedb.store import Counts, Payload, VersionRecord, account
from deltalakedb.store.dialect import Take
from deltalakedb.store.mirror import drift_way_out, mirror_table
from deltalakedb.store.table_lookup import not_registered, table_exists
from deltalakedb.telemetry import Metrics, event, span
from deltalakedb.transaction.attempt import Attempt, IsolationLevel, Summary, isolation_of
from deltalakedb.transaction.commit import (
    Commit,
    Committed,
    TableRead,
    TableState,
    commit_info,
    commit_info_text,
    new_uuid,
    with_enablement,
)
from deltalakedb.transaction.concurrent_commits import state_after_commits
from deltalakedb.transaction.retry import RetryPolicy
from deltalakedb.transaction.row_tracking import with_row_ids
from deltalakedb.transaction.rules import (
    ROW_TRACKING,
    check_live_files,
    table_rules,
    validate_commit,
)
from deltalakedb.transaction.rules_files import check_places, check_spellings, other_spellings

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session, Since, Taken

# More concurrent commits than this are read before the head is taken: other writers need not wait.
_CHECKED_UNDER_LOCK = 64
# Failures that another try may not meet.
_RETRIED = (TransactionAbortedError, CatalogConnectionLostError, CatalogUnreachableError)
_Heads = Mapping[str, int | None]


class _TooFarBehindError(Exception):
    """Many commits came since the base: look at them without holding the head."""


class _SettledError(Exception):
    """Everything was committed before: roll back whatever heads were taken."""


@dataclass(slots=True)
class _Work:
    """The progress of a commit: the state it goes on top of, and the version it became."""

    commit: Commit
    state: TableState | None
    attempt: Attempt
    body: bytes
    paths: Sequence[str]
    """The paths that it touches, and other ways to write those of files that it adds."""
    others: Mapping[str, str]
    """The other ways, each with the path of the commit."""
    is_blind_append: bool = False
    """Whether it adds files, and the transaction has read nothing, in whichever table."""
    taken: Taken | None = None
    done: Committed | None = None
    written: VersionRecord | None = None
    after: TableState | None = None

    @property
    def table_id(self) -> str:
        return self.commit.table.table_id

    def take(self, *, unless_drifted: bool) -> Take | None:
        """The head to take; None for a new table, which has none."""
        if self.state is None or self.commit.base is None:
            return None
        base = self.state.version
        last = base + _CHECKED_UNDER_LOCK
        return Take(self.table_id, base, last, self.commit.uuid, self.paths, unless_drifted)


@dataclass(slots=True)
class _Read:
    """What was read of a table, and the state up to which no commit of others is in its way."""

    table: TableRecord
    state: TableState
    attempt: Attempt

    @property
    def table_id(self) -> str:
        return self.table.table_id

    def lag(self, heads: _Heads) -> int:
        """How many commits of others are to be checked."""
        return (heads.get(self.table_id) or 0) - self.state.version


Guard: TypeAlias = Callable[
    [Sequence[tuple["TableRecord", int | None]]], AbstractContextManager[None]
]
"""Surrounds a commit, and may refuse it: tables with the versions that the commit starts from."""
Subscriber: TypeAlias = Callable[[Sequence[tuple["TableRecord", TableState | None]]], None]
"""Called after each commit, with its tables and the states that they have now; never raises."""


class Committer:
    """Commits through a store."""

    def __init__(
        self,
        store: Store,
        *,
        policy: RetryPolicy | None = None,
        metrics: Metrics | None = None,
        committer: str | None = None,
        engine_info: str = "deltalakedb",
        on_drift: str = "refuse",
        guard: Guard | None = None,
        subscribers: Sequence[Subscriber] = (),
        step: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._policy = policy or RetryPolicy()
        self._metrics = metrics or Metrics()
        self._committer = committer
        self._engine_info = engine_info
        self._refuses_drift = on_drift == "refuse"
        self._guard = guard
        self._subscribers = subscribers
        # The newest version of each table that this process has committed.
        self._newest: dict[str, int] = {}
        # Called between any two steps of a commit: where tests kill the process.
        self._step = step

    def commit(
        self,
        commits: Sequence[Commit],
        reads: Sequence[TableRead] = (),
        *,
        notify: bool = True,
    ) -> list[Committed]:
        """Commit all or none; none where another writer has changed what was read.

        A commit has reads of its own; `reads` are those of the transaction beside them. Staged
        files are deleted where they belong to no version. Without `notify` neither the guard nor
        the subscribers are called.
        """
        try:
            if notify and self._guard is not None:
                with self._guard([(one.table, one.base and one.base.version) for one in commits]):
                    done = self._committed(commits, reads)
            else:
                done = self._committed(commits, reads)
        except CommitOutcomeUnknownError:
            raise
        except DeltaLakeDbError:
            # Any other interruption may come after the commit: these may be files of the table.
            self.discard(commits)
            raise
        self.discard(
            [one for one, became in zip(commits, done, strict=True) if became.already_committed]
        )
        if notify:
            versions = [
                (one.table, became.state) for one, became in zip(commits, done, strict=True)
            ]
            for subscriber in self._subscribers:
                subscriber(versions)
        return done

    def saw(self, table_id: str, version: int) -> None:
        """Remember a version of another writer, which the catalog must not lose."""
        self._newest[table_id] = version

    def discard(self, commits: Iterable[Commit]) -> None:
        """Delete the staged files of commits that never will be."""
        for one in commits:
            if one.staged:
                delete_leftovers(one.table.location, one.staged, self._store.storage_options)

    def _committed(self, commits: Sequence[Commit], reads: Sequence[TableRead]) -> list[Committed]:
        started = time.monotonic()
        works = [self._prepare(commit) for commit in commits]
        checked = [_checked(read) for read in reads]
        read_sets = [*(commit.read for commit in commits), *(read.read for read in reads)]
        blind = not any(read_set.reads_files for read_set in read_sets)
        for work in works:
            work.is_blind_append = blind and work.attempt.is_blind_append
        transaction_id = new_uuid() if len(works) > 1 else None
        attempts = self._until_done(works, checked, transaction_id)
        self._tell(works, attempts, started)
        return [self._result(work, attempts) for work in works]

    @staticmethod
    def _prepare(commit: Commit) -> _Work:
        base, guarantees, summary = commit.base, commit.guarantees, commit.summary
        validate_commit(
            summary,
            metadata=base.metadata if base else None,
            protocol=base.protocol if base else None,
            replaces_all=guarantees.replaces_all,
            allow_feature_drop=guarantees.allow_feature_drop,
            enforced=guarantees.enforced,
        )
        check_places(summary.adds, summary.removes, commit.table)
        level = IsolationLevel.SERIALIZABLE if base is None else isolation_of(base.metadata)
        attempt = Attempt(commit.read, summary, level)
        others = other_spellings(summary.adds, commit.table)
        files = (file.path for files in (summary.adds, summary.removes) for file in files)
        paths = list(dict.fromkeys((*files, *others)))
        return _Work(commit, base, attempt, serialise_commit(commit.actions), paths, others)

    # --- trying ---------------------------------------------------------------------------

    def _until_done(
        self, works: list[_Work], reads: list[_Read], transaction_id: str | None
    ) -> int:
        """Try until the transaction is committed; how often it was tried."""
        deadline = time.monotonic() + self._policy.max_seconds
        in_order = sorted(works, key=lambda work: work.table_id)
        attempt = 0
        unknown: CommitOutcomeUnknownError | None = None
        while True:
            attempt += 1
            failure: CatalogError | None = None
            try:
                if self._try_once(in_order, reads, transaction_id, in_doubt=unknown is not None):
                    return attempt
            except CatalogError as error:
                failure = error
                if isinstance(error, CommitOutcomeUnknownError):
                    unknown = error
                # An earlier try whose answer was lost may itself be what holds the head.
                retried = _RETRIED if unknown is None else (*_RETRIED, CatalogBusyError)
                if not isinstance(error, retried):
                    if unknown is None:
                        raise
                    raise self._given_up(in_order, attempt, failure, unknown) from error
            if attempt >= self._policy.max_attempts or time.monotonic() > deadline:
                raise self._given_up(in_order, attempt, failure, unknown)
            self._metrics.count("commit_retries_total")
            if failure is not None:
                self._policy.sleep(self._policy.delay(attempt))

    def _given_up(
        self,
        works: list[_Work],
        attempts: int,
        failure: DeltaLakeDbError | None,
        unknown: CommitOutcomeUnknownError | None,
    ) -> DeltaLakeDbError:
        names = ", ".join(work.commit.table.name for work in works)
        if unknown is not None:
            return CommitOutcomeUnknownError(
                f"The commit to {names} may or may not have happened",
                why=f"{unknown.why}; in {attempts} attempts the catalog did not answer what "
                f"became of it{f' ({failure.what})' if failure else ''}",
                fix="When it is back, look for the commit UUID "
                f"{works[0].commit.uuid} in the history of the table; it is safe to "
                "try again with the same app_txn",
            )
        if failure is not None:
            return failure
        return RetriesExhaustedError(
            f"The commit to {names} was overtaken {attempts} times",
            why="Other writers commit faster than this one can follow",
            fix="Try again, or raise the limits of the retry policy",
        )

    def _try_once(
        self,
        works: list[_Work],
        reads: list[_Read],
        transaction_id: str | None,
        *,
        in_doubt: bool,
    ) -> bool:
        """Whether it is committed; if not, it was too far behind, and has caught up.

        It is `in_doubt` where an earlier try may have been committed. Then reads are not checked
        before the heads are held, when that try is known to have failed: commits after it may well
        change what it has read.
        """
        for work in works:
            work.done = work.written = work.after = work.taken = None
        with span("deltalakedb.commit", tables=len(works)):
            try:
                take = self._first_take(works, reads)
                with self._store.begin_commit(take) as session:
                    self._look_up_recorded(session, works)
                    heads = self._take_all(session, works, reads, take)
                    self._look_up_recorded(session, works)
                    lag = max((read.lag(heads) for read in reads), default=0)
                    if lag > _CHECKED_UNDER_LOCK and not in_doubt:
                        raise _TooFarBehindError
                    self._check_reads(session, reads, heads)
                    for work in works:
                        if self._step is not None:
                            self._step("write")
                        self._write(session, work, transaction_id)
                    if self._step is not None:
                        self._step("commit")
            except _SettledError:
                return True
            except _TooFarBehindError:
                return self._catch_up(works, [] if in_doubt else reads)
            except CatalogConstraintError as error:
                raise self._name_taken(works, error) from error
        if self._step is not None:
            self._step("committed")
        return True

    def _look_up_recorded(self, session: Session, works: list[_Work]) -> None:
        """Stop when there is nothing to write because it was committed before.

        Asked before the heads are taken, so that a repeated transaction takes none; and again when
        they are held, so that one which was repeated in the meantime is detected.
        """
        for work in works:
            if work.done is None and work.commit.guarantees.app_txn is not None:
                self._recorded(session, work)
        done = [work for work in works if work.done is not None]
        if not done:
            return
        if len(done) < len(works):
            self._find_participants(session, works, done[0])
        if all(work.done is not None for work in works):
            raise _SettledError
        names = ", ".join(work.commit.table.name for work in done)
        raise ConcurrentTransactionError(
            f"Only a part of this transaction was committed before (in {names})",
            why="Its app transactions are recorded in a part of its tables",
            fix="Use app transaction versions that belong to this transaction alone",
        )

    def _find_participants(self, session: Session, works: list[_Work], known: _Work) -> None:
        """Find what the transaction that recorded `known` wrote to the other tables."""
        if known.done is None:
            return
        record = self._store.version(session, known.table_id, int(known.done))
        if record is None:
            raise HistoryExpiredError(
                f"This transaction was committed before, by version {int(known.done)} of table "
                f"{known.commit.table.name!r}",
                why="That version has expired, so what it wrote to the other tables is not known "
                "any more",
                fix="Nothing has to be done; to restore the version: "
                f"{Fix('lake.restore_expired', ...)}",
                retryable=False,
            )
        if record.transaction_id is None:
            return
        versions = self._store.participants(session, record.transaction_id)
        for work in works:
            if work.done is not None or work.table_id not in versions:
                continue
            found = self._store.version(session, work.table_id, versions[work.table_id])
            if found is None:
                continue
            if found.commit_uuid == work.commit.uuid:
                work.written = found
            work.done = Committed(
                found.version, timestamp=found.committed_at, already_committed=True
            )

    # --- taking the heads -----------------------------------------------------------------

    def _first_take(self, works: list[_Work], reads: list[_Read]) -> Take | None:
        """What the transaction begins with; None where something is looked up before."""
        if len(works) > 1 or reads or works[0].commit.guarantees.app_txn is not None:
            return None
        take = works[0].take(unless_drifted=self._refuses_drift)
        if take is not None and self._step is not None:
            self._step("take")
        return take

    def _take_all(
        self, session: Session, works: list[_Work], reads: list[_Read], first: Take | None
    ) -> _Heads:
        """Move the heads of the tables that change, and hold those that were only read."""
        changed = {work.table_id: work for work in works}
        heads: dict[str, int | None] = {}
        for table_id in sorted({*changed, *(read.table_id for read in reads)}):
            if self._step is not None and first is None:
                self._step("take")
            work = changed.get(table_id)
            if work is None:
                heads[table_id] = self._store.share_head(session, table_id)
            else:
                take = first or work.take(unless_drifted=self._refuses_drift)
                self._take(session, work, take)
                heads[table_id] = work.state.version if work.state is not None else None
        return heads

    def _take(self, session: Session, work: _Work, take: Take | None) -> None:
        """Move the head of a table to the next version, on top of whatever came in between."""
        state = work.state
        if take is None or state is None:
            self._take_new(session, work)
            return
        self._expect(work, state.version)
        taken = work.taken = session.take_head(take)
        if taken.version is None:
            raise self._not_taken(session, work)
        head = taken.version - 1
        self._refuse_older(work, head, state.version)
        if head == state.version:
            return
        if head - state.version > _CHECKED_UNDER_LOCK:
            raise _TooFarBehindError
        if self._recorded(session, work):
            return
        self._rebase(session, work, taken.since)
        if work.done is not None:
            return
        self._expect(work, head)
        if taken.since is not None and taken.since.drifts:
            self._refuse_drift(session, work, head)
        if work.state is None or work.state.version != head:
            raise CorruptCatalogError(
                f"The head of table {work.commit.table.name!r} ({head}) is not the newest version "
                "of its ledger",
                fix="Restore a backup of the catalog",
            )

    def _not_taken(self, session: Session, work: _Work) -> DeltaLakeDbError:
        """Why a head could not be taken: there is none, or the table has drifted."""
        head = self._store.lock_head(session, work.table_id)
        if head is None:
            return not_registered(session, work.commit.table)
        self._refuse_drift(session, work, head)
        return TransactionAbortedError(
            f"Table {work.commit.table.name!r} was repaired in the meantime", fix="Try again"
        )

    def _refuse_older(self, work: _Work, head: int, seen: int) -> None:
        """Refuse a catalog that has lost versions which this process has seen; once."""
        seen = max(seen, self._newest.pop(work.table_id, -1))
        if head >= seen or not self._refuses_drift:
            return
        name = work.commit.table.name
        raise TableDriftedError(
            f"Table {name!r} is at version {head}, and this process has seen version {seen} of it",
            why="The catalog was restored from an older state, or lost its newest commits in a "
            "failover; nothing was committed",
            fix=f"Adopt what _delta_log still has: {Fix('lake.verify', name)}, then "
            f"{Fix('lake.adopt', name)}. Then read the table again, and repeat the work",
        )

    def _refuse_drift(self, session: Session, work: _Work, head: int) -> None:
        if not self._refuses_drift:
            return
        drift = mirror_table(session, work.table_id).drift
        if drift is None:
            return
        table = work.commit.table
        raise TableDriftedError(
            f"Table {table.name!r} cannot be committed to: it has drifted from its _delta_log, "
            f"where {drift.get('object_key', 'a commit')} is not from this catalog, whose newest "
            f"version is {head}",
            why="Another writer has written to the log, or the catalog was restored from an older "
            "state. A commit would fork the history; nothing was committed",
            fix=drift_way_out(table.name),
        )

    def _take_new(self, session: Session, work: _Work) -> None:
        table = work.commit.table
        for found in (
            self._store.table_by_name(session, table.name),
            self._store.table_by_location(session, table.location),
        ):
            if found is None:
                continue
            if found.table_id == table.table_id:
                record = self._store.version(session, table.table_id, 0)
                work.written = record
                work.done = Committed(0, timestamp=record.committed_at if record else 0)
                return
            raise table_exists(table.name, table.location, found.name, found.location)
        self._store.register(session, table)

    def _name_taken(self, works: list[_Work], error: CatalogConstraintError) -> DeltaLakeDbError:
        """What a refused row means: another writer created the same table first, or a defect."""
        with self._store.read() as session:
            for work in works:
                table = work.commit.table
                name = work.commit.renames_to or table.name
                found = self._store.table_by_name(session, name)
                if found is None and work.commit.base is None:
                    found = self._store.table_by_location(session, table.location)
                if found is None:
                    continue
                if found.table_id != table.table_id:
                    return table_exists(name, table.location, found.name, found.location)
                if work.commit.base is None:
                    return TransactionAbortedError(
                        f"An earlier try to create table {name!r} was committed while this one "
                        "waited for it",
                        fix="Try again: the table exists then",
                    )
        return error

    def _recorded(self, session: Session, work: _Work) -> bool:
        """Whether the app transaction of this work was committed before."""
        if work.commit.guarantees.app_txn is None:
            return False
        app_id, version = work.commit.guarantees.app_txn
        newest = self._store.newest_app_txn(session, work.table_id, app_id)
        if newest is None or newest[0] < version:
            return False
        # Recorded by this very commit, if the acknowledgement of an earlier try was lost.
        base = work.commit.base.version if work.commit.base else -1
        own = self._store.version_of_commit(session, work.table_id, work.commit.uuid, after=base)
        record = self._store.version(session, work.table_id, newest[1] if own is None else own)
        if own is not None and record is not None:
            work.written = record
            work.done = Committed(own, timestamp=record.committed_at)
            return True
        work.done = Committed(
            newest[1],
            timestamp=record.committed_at if record else 0,
            already_committed=True,
        )
        return True

    def _expect(self, work: _Work, head: int) -> None:
        expected = work.commit.guarantees.expected_version
        if expected is not None and expected != head:
            self._metrics.count("commit_conflicts_total")
            raise UnexpectedVersionError(
                f"Table {work.commit.table.name!r} is at version {head}, "
                f"and the commit expected version {expected}",
                why="Another commit came first" if head > expected else "There is no such version",
                fix="Read the table again and repeat the work, or leave expected_version out to "
                "let independent commits be rebased",
            )

    # --- rebasing -------------------------------------------------------------------------

    def _rebase(self, session: Session, work: _Work, since: Since | None = None) -> None:
        """Check the commits since the base against this one, and go on top of them.

        A blind append is independent of commits that only add files: of these it is enough to know
        that they are all `since`.
        """
        state, attempt = work.state, work.attempt
        assert state is not None  # noqa: S101 - only a new table has none
        if (
            since is not None
            and attempt.is_blind_append
            and not (since.others or since.own)
            and since.first == state.version + 1
            and since.version == state.version + since.commits
        ):
            self._metrics.count("commit_rebases_total")
            counts = Counts(*since.counts)
            work.state = state.after(
                since.version, since.committed_at, counts, metadata=None, protocol=None
            )
            return
        records = self._store.versions_after(session, work.table_id, state.version)
        for record in records:
            if record.commit_uuid == work.commit.uuid:
                work.written = record
                work.done = Committed(record.version, timestamp=record.committed_at)
                return
        if work.commit.guarantees.expected_version is not None and records:
            self._expect(work, records[-1].version)
        before = (state.metadata, state.protocol)
        state = self._past(session, work.commit.table, state, attempt, records)
        if (state.metadata, state.protocol) != before:
            self._validate_again(work, state)
        self._metrics.count("commit_rebases_total")
        work.state = state

    def _check_reads(self, session: Session, reads: list[_Read], heads: _Heads) -> None:
        """Check the commits since tables were read against what was read of them."""
        for read in reads:
            if heads.get(read.table_id) is None:
                raise not_registered(session, read.table)
            if read.lag(heads) > 0:
                records = self._store.versions_after(session, read.table_id, read.state.version)
                read.state = self._past(session, read.table, read.state, read.attempt, records)

    def _past(
        self,
        session: Session,
        table: TableRecord,
        state: TableState,
        attempt: Attempt,
        records: Sequence[VersionRecord],
    ) -> TableState:
        try:
            return state_after_commits(
                self._store, session, state, attempt, records, table=table.name
            )
        except CommitConflictError:
            self._metrics.count("commit_conflicts_total")
            raise

    @staticmethod
    def _validate_again(work: _Work, state: TableState) -> None:
        guarantees = work.commit.guarantees
        validate_commit(
            work.commit.summary,
            metadata=state.metadata,
            protocol=state.protocol,
            replaces_all=guarantees.replaces_all,
            allow_feature_drop=guarantees.allow_feature_drop,
            enforced=guarantees.enforced,
        )

    def _catch_up(self, works: list[_Work], reads: list[_Read]) -> bool:
        """Look at the winners without holding a head; whether all was committed before."""
        with self._store.read() as session:
            try:
                self._look_up_recorded(session, works)
            except _SettledError:
                return True
            for work in works:
                if work.state is not None and work.done is None:
                    self._rebase(session, work)
            if all(work.done is not None for work in works):
                return True
            heads = self._store.heads(session, {read.table_id for read in reads})
            self._check_reads(session, reads, heads)
        return False

    # --- writing --------------------------------------------------------------------------

    def _write(self, session: Session, work: _Work, transaction_id: str | None) -> None:
        commit, state, summary = work.commit, work.state, work.commit.summary
        now = committed_at = self._store.commit_time(session)
        version = 0
        if state is not None:
            version = state.version + 1
            committed_at = self._store.time_after(state.committed_at, now, commit.table)
        after = _state_after(work.table_id, state, summary, version, committed_at)
        rules = table_rules(after.metadata, after.protocol)
        actions: Sequence[Action] = commit.actions
        body = work.body
        if state is not None and summary.metadata is not None:
            actions = with_enablement(
                actions, state.metadata, version=version, committed_at=committed_at
            )
        if ROW_TRACKING in rules.features and (state is not None or summary.adds):
            actions = with_row_ids(self._store, session, actions, state, version=version)
        if actions is not commit.actions:
            body, summary = serialise_commit(actions), Summary(actions)
            after = _state_after(work.table_id, state, summary, version, committed_at)
        info = commit_info(
            commit,
            isolation=work.attempt.effective_isolation.value,
            is_blind_append=work.is_blind_append,
            in_commit_timestamps=rules.in_commit_timestamps,
            committed_at=committed_at,
            committer=self._committer,
            engine_info=self._engine_info,
            transaction_id=transaction_id,
        )
        info_text = commit_info_text(info, commit)
        data = b'{"commitInfo":%b}\n%b' % (info_text.encode(), body)
        live = self._live(session, work)
        if live or summary.removes:
            check_live_files(actions, live)
        counts, closing = account(after.counts, actions, live, num_others=1)
        record = VersionRecord(
            work.table_id,
            version,
            committed_at,
            now,
            self._committer,
            info,
            commit.uuid,
            transaction_id,
            counts,
            info_text,
        )
        if self._step is not None:
            self._step("append")
        self._store.append_version(
            session,
            record,
            actions,
            payload=Payload(data, hashlib.sha256(data).hexdigest()),
            closing=closing,
            plan=rules.plan,
            first=state is None,
        )
        if state is not None:
            self._update_registry(session, commit, summary, after, now)
        work.written = record
        work.after = after._replace(counts=counts)

    def _live(self, session: Session, work: _Work) -> dict[tuple[str, str], int]:
        """The live files that a commit touches; none of them may be added under another path."""
        live = None if work.taken is None else work.taken.live
        if live is None:
            live = self._store.live_among(session, work.table_id, work.paths)
        if not work.others:
            return live
        summary = work.commit.summary
        check_spellings(live, summary.removes, work.others)
        touched = {file.path for files in (summary.adds, summary.removes) for file in files}
        return {file: size for file, size in live.items() if file[0] in touched}

    def _update_registry(
        self, session: Session, commit: Commit, summary: Summary, after: TableState, now: int
    ) -> None:
        if summary.metadata is not None or summary.protocol is not None:
            self._store.update_table(
                session,
                after.table_id,
                protocol=after.protocol,
                metadata=after.metadata,
                updated_at=now,
            )
        if commit.renames_to is not None:
            session.changed(
                "rename_table", table_id=after.table_id, name=commit.renames_to, updated_at=now
            )

    # --- results --------------------------------------------------------------------------

    @staticmethod
    def _result(work: _Work, attempts: int) -> Committed:
        record = work.written
        if work.done is not None and record is None:
            return work.done
        if record is None:
            raise CorruptCatalogError(
                f"The commit to {work.commit.table.name!r} left no trace of what it wrote"
            )
        return Committed(
            record.version,
            timestamp=record.committed_at,
            attempts=attempts,
            commit_uuid=record.commit_uuid,
            transaction_id=record.transaction_id,
            state=work.after,
        )

    def _tell(self, works: list[_Work], attempts: int, started: float) -> None:
        elapsed = (time.monotonic() - started) * 1000
        written = [
            (work.commit.table.name, work.written) for work in works if work.written is not None
        ]
        self._metrics.committed(len(written), elapsed)
        self._newest.update((work.table_id, work.written.version) for work in works if work.written)
        for name, record in written:
            event("commit", partial(_event, name, record, attempts, elapsed))


def _checked(read: TableRead) -> _Read:
    level = isolation_of(read.base.metadata)
    return _Read(read.table, read.base, Attempt(read.read, (), level))


def _event(name: str, record: VersionRecord, attempts: int, elapsed: float) -> dict[str, object]:
    return {
        "table": name,
        "table_id": record.table_id,
        "version": record.version,
        "operation": record.operation,
        "adds": record.counts.num_adds,
        "removes": record.counts.num_removes,
        "bytes_added": record.counts.bytes_added,
        "bytes_removed": record.counts.bytes_removed,
        "attempts": attempts,
        "latency_ms": round(elapsed, 3),
        "transaction_id": record.transaction_id,
    }


def _state_after(
    table_id: str, state: TableState | None, summary: Summary, version: int, committed_at: int
) -> TableState:
    """The state that a commit leaves behind, with the counts from before it."""
    metadata, protocol = summary.metadata, summary.protocol
    if state is not None:
        return state.after(
            version, committed_at, state.counts, metadata=metadata, protocol=protocol
        )
    assert metadata is not None  # noqa: S101 - the rules ask for both in a first version
    assert protocol is not None  # noqa: S101
    return TableState(table_id, version, committed_at, metadata, protocol, Counts())
