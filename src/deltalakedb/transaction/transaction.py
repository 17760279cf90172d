"""Commits of many tables that become visible together, and reads of one instant.

The first table fixes an instant: the transaction sees every table as it was then. Its reads count:
the commit is refused if a concurrent commit has changed what was read, by Delta's conflict rules
and the isolation level of each table.

Several writes to one table build on one another: an overwrite also replaces rows that the
transaction itself has added. They are combined into one commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from deltalakedb.actions import (
    Action,
    AddFile,
    CdcFile,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
)
from deltalakedb.actions.partition import decode_path
from deltalakedb.conditions.partition_tests import partitions_read
from deltalakedb.errors import (
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
    HistoryExpiredError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from deltalakedb.forking import Process
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.pending import File, live_among, pending
from deltalakedb.snapshot.resolve import resolve
from deltalakedb.snapshot.snapshot import snapshot_of
from deltalakedb.snapshot.tracked import EVERYTHING, watched
from deltalakedb.storage import delete_leftovers
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.transaction.attempt import NOTHING, ReadSet, merge_read_sets
from deltalakedb.transaction.commit import (
    Commit,
    Operation,
    TableRead,
    combine,
    state_at,
    write_metrics,
)

if TYPE_CHECKING:
    from deltalakedb.conditions.predicate import Predicate
    from deltalakedb.snapshot.resolve import OpenedTable
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.commit import Committed, TableState
    from deltalakedb.transaction.committer import Committer

Handle = TypeVar("Handle")


@dataclass(slots=True)
class Part:
    """The changes and reads of one table in a transaction; `lock` is held during a change."""

    store: Store
    opened: OpenedTable
    """The table at the instant that the transaction sees."""
    commit: Commit
    """All that was added so far; without actions at first."""
    seen: list[ReadSet] = field(default_factory=list)
    """The reads of the table through `snapshot`."""
    files: set[File] = field(default_factory=set)
    """Files that the transaction itself has staged: no version has them."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def table(self) -> TableRecord:
        """The row of the table in the catalog."""
        return self.commit.table

    @property
    def base(self) -> TableState:
        """The state of the table at the instant of the transaction."""
        assert self.commit.base is not None  # noqa: S101 - the table exists
        return self.commit.base

    # --- reading --------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The table at the instant of the transaction; its reads are recorded."""
        self.seen.append(ReadSet())
        return watched(self._at_start(), self._saw)

    def pending(self) -> Snapshot:
        """The table with all changes so far, which is the base of the next write."""
        return pending(self._at_start(), self.commit.actions, self.files)

    def reads(self) -> list[ReadSet]:
        """The reads beside those of a commit that changes the table."""
        own = self.commit.read
        return self.seen if self.commit.actions or own is NOTHING else [*self.seen, own]

    def _at_start(self) -> Snapshot:
        """The table before any write; its reads are those of the write, and not recorded."""
        return snapshot_of(self.store, self.table, self.opened)

    def _saw(self, predicate: Predicate, paths: Iterable[str]) -> None:
        """Record a read: its condition, and the files that were listed for it."""
        if any(read.whole_table for read in self.seen):
            return
        if predicate == EVERYTHING:
            read = ReadSet(whole_table=True)
        else:
            test = partitions_read(predicate, self.base.metadata)
            read = ReadSet(partitions=test, files=frozenset(paths))
        self.seen.append(read)

    # --- one write after the other --------------------------------------------------------

    def add(self, commit: Commit) -> None:
        """Add actions as they are."""
        self.commit = combine(self.commit, commit)

    def follow(self, commit: Commit, *, replaces_rows: bool = False) -> None:
        """Add a write that was planned from `pending`; nothing changes if it is refused."""
        try:
            combined = self._followed_by(commit, replaces_rows=replaces_rows)
        except DeltaLakeDbError:
            self._delete(commit.staged)
            raise
        named = {
            action.path
            for action in combined.actions
            if isinstance(action, (AddFile, RemoveFile, CdcFile))
        }
        dropped = _identities(self.commit.actions) - _identities(combined.actions)
        # A file of the table that was marked has a deletion vector: it is not ours to delete.
        unnamed = {
            decode_path(path)
            for path, dv_id in dropped
            if (path, "") in self.files and path not in named
        }
        staged = tuple(key for key in combined.staged if key not in unnamed)
        self.commit = replace(combined, staged=staged)
        self.files |= _identities(commit.actions)
        self._delete(unnamed)

    def _followed_by(self, commit: Commit, *, replaces_rows: bool) -> Commit:
        """Both as one commit.

        A file that was added and is removed again is in neither. Of actions that a commit has at
        most once (its metadata, a domain) the last one counts.
        """
        before, now = self.commit.actions, commit.actions
        removed = {(one.path, one.dv_id) for one in commit.summary.removes}
        taken_back = _identities(before) & removed
        singles = {_single_key(action) for action in now} - {None}

        def stays(action: Action) -> bool:
            if isinstance(action, AddFile):
                return (action.path, action.dv_id) not in taken_back
            if isinstance(action, CdcFile):
                # Where all rows are replaced, the files alone say what has changed.
                return not replaces_rows
            return _single_key(action) not in singles

        stay = [action for action in before if stays(action)]
        foreign = taken_back - self.files
        never_added = taken_back - (live_among(self._at_start(), foreign) if foreign else set())
        new = [
            action
            for action in now
            if not (isinstance(action, RemoveFile) and (action.path, action.dv_id) in never_added)
        ]
        if not replaces_rows:
            _check_feed(self.table.name, stay, new, taken_back=bool(taken_back))
        parameters = self.commit.operation.parameters
        then = dict(commit.operation.parameters)
        if replaces_rows:
            parameters = {}
        elif parameters.get("mode") == "Overwrite":
            then["mode"] = "Overwrite"
        combined = combine(
            replace(
                self.commit,
                actions=tuple(stay),
                operation=replace(self.commit.operation, parameters=parameters),
            ),
            replace(
                commit,
                actions=tuple(new),
                operation=replace(commit.operation, parameters=then),
            ),
        )
        metrics = {**combined.operation.metrics, **_metrics(combined)}
        return replace(combined, operation=replace(combined.operation, metrics=metrics))

    def _delete(self, keys: Iterable[str]) -> None:
        if keys:
            delete_leftovers(self.table.location, keys, self.store.storage_options)


class Transaction(Generic[Handle]):
    """Commits of many tables that become visible together, and reads of one instant.

    Any number of threads may use it; their changes to one table are applied one after another.
    """

    def __init__(
        self,
        store: Store,
        committer: Committer,
        find: Callable[[Session, object], TableRecord],
        handle: Callable[[Part], Handle],
    ) -> None:
        self._store = store
        self._committer = committer
        self._find = find
        self._handle = handle
        self._process = Process()
        self._open: dict[str, Part] = {}
        self._heads: dict[str, int] | None = None
        """The versions of all tables at the instant that the transaction sees, once it is fixed."""
        self._fixing = threading.Lock()
        self._refused: DeltaLakeDbError | None = None
        self.results: dict[str, Committed] = {}
        """After the commit: the version each changed table became, by name."""

    def table(self, name: str) -> Handle:
        """A table to read or change in this transaction.

        The first call fixes the instant that the whole transaction sees: each table is at the
        version that it had then. Later commits of others are checked by Delta's conflict rules,
        against the changes and reads of this transaction.
        """
        self._check_process()
        with self._store.read() as session:
            record = self._find(session, name)
            version = self._version(session, record)
        part = self._open.get(record.table_id)
        if part is None:
            # Not in that session: it may be older than the instant, which another thread has fixed.
            opened = self._opened(record, version)
            nothing = Commit(record, state_at(record.table_id, opened), (), Operation(""))
            # Another thread may have been faster: there is one part for each table.
            part = self._open.setdefault(record.table_id, Part(self._store, opened, nothing))
        return self._handle(part)

    def _version(self, session: Session, table: TableRecord) -> int:
        """The version of a table at the instant of the transaction; the first call fixes it."""
        with self._fixing:
            if self._heads is None:
                self._heads = self._store.all_heads(session)
            version = self._heads.get(table.table_id)
        if version is not None:
            return version
        if self._store.head(session, table.table_id) is None:
            raise not_registered(session, table)
        raise TableNotFoundError(
            f"Table {table.name!r} was created after this transaction began",
            why="A transaction sees all tables as they were when it first asked for one",
            fix="Create tables before that, or use this one in a new transaction",
        )

    def _opened(self, table: TableRecord, version: int) -> OpenedTable:
        try:
            return resolve(self._store, table, version=version)
        except VersionNotFoundError as error:
            raise HistoryExpiredError(
                f"This transaction began at version {version} of table {table.name!r}, which has "
                "expired",
                why=error.why,
                fix="Repeat the transaction",
            ) from error

    def _check_process(self) -> None:
        self._process.check("The transaction", "Begin one in the process that commits it")

    def discard(self) -> None:
        """Delete the staged files of the transaction, which no commit names."""
        if not self._process.is_this:
            return  # the parent commits them
        self._committer.discard(part.commit for part in self._open.values())
        self._open.clear()

    def commit(self) -> None:
        """Commit every changed table in one database transaction, and check the reads.

        A transaction without changes is not checked: it saw one instant. If the commit is refused,
        its staged files are deleted.
        """
        self._check_process()
        parts = list(self._open.values())
        commits = [part.commit for part in parts if part.commit.actions]
        if not commits:
            return
        if self._refused is not None:
            # Its files are deleted: it cannot be tried again.
            raise self._refused
        reads = [
            TableRead(part.table, part.base, merge_read_sets(*part.reads()))
            for part in parts
            if part.reads()
        ]
        try:
            committed = self._committer.commit(commits, reads)
        except CommitOutcomeUnknownError:
            raise
        except DeltaLakeDbError as error:
            self._refused = error
            raise
        self._open.clear()
        self._heads = None
        self.results = {
            commit.table.name: version for commit, version in zip(commits, committed, strict=True)
        }


def _identities(actions: Iterable[Action]) -> set[File]:
    """The files that actions add, change data included."""
    added = {(one.path, one.dv_id) for one in actions if isinstance(one, AddFile)}
    return added | {(one.path, "") for one in actions if isinstance(one, CdcFile)}


def _single_key(action: Action) -> object:
    """The key of an action that a commit has at most once; None for any other action."""
    if isinstance(action, (Metadata, Protocol)):
        return type(action)
    return action.domain if isinstance(action, DomainMetadata) else None


def _check_feed(
    table: str, before: Iterable[Action], now: Iterable[Action], *, taken_back: bool
) -> None:
    """Refuse changes that a change data feed cannot describe as one commit."""
    had, has = ({type(action) for action in actions} for actions in (before, now))
    rows_before, rows_now = bool(had & {AddFile, RemoveFile}), bool(has & {AddFile, RemoveFile})
    if CdcFile not in had | has or not (rows_before and rows_now):
        return
    if taken_back or CdcFile not in had or CdcFile not in has:
        raise UnsupportedFeatureError(
            f"These changes of table {table!r} cannot be one commit",
            why="One of them replaces rows inside of files, and its change data feed would "
            "describe that one alone",
            fix="Make them in transactions of their own, or replace whole partitions",
        )


def _metrics(commit: Commit) -> dict[str, str]:
    """The metrics of all writes together."""
    adds, removes = commit.summary.adds, commit.summary.removes
    marked = {add.path for add in adds} & {remove.path for remove in removes}
    metrics = write_metrics([add for add in adds if add.path not in marked])
    if removes:
        metrics["numRemovedFiles"] = str(len(removes) - len(marked))
    return metrics
