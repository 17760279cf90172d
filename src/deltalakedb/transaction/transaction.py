"""Changes of many tables that become visible together: what `lake.transaction()` gives.

The first table that is asked for fixes an instant: the transaction sees every table as it was then,
whatever is committed meanwhile. What it reads of them counts: the commit is refused where others
have changed it, by Delta's conflict rules and the isolation level of each table.

Several changes of one table follow one another, as if each had been committed: an overwrite also
takes the place of rows that the transaction itself has added before. They become one commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from deltalakedb.errors import (
    ConfigurationError,
    DeltaLakeDbError,
    HistoryExpiredError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from deltalakedb.forking import Process
from deltalakedb.operations.append import (
    Written,
    check_write,
    partitions_read,
    write_append,
    write_metrics,
)
from deltalakedb.operations.overwrite import write_overwrite
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.page_builder import after_commit
from deltalakedb.snapshot.pending import File, live_among, pending
from deltalakedb.snapshot.resolve import resolve
from deltalakedb.snapshot.snapshot import snapshot_of
from deltalakedb.snapshot.tracked import EVERYTHING, watched
from deltalakedb.staging.sinks import Sinks
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.transaction.attempt import ReadSet, merge_read_sets
from deltalakedb.transaction.change import TableRead
from deltalakedb.transaction.open import AnyAction, OpenChange, check_app_txn
from deltalakedb.transaction.state import TableState, state_at

if TYPE_CHECKING:
    from deltalakedb.conditions.predicate import Predicate
    from deltalakedb.mirror.mirror import Mirror
    from deltalakedb.snapshot.resolve import OpenedTable
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.change import AppTxn, Committed
    from deltalakedb.transaction.committer import Committer


@dataclass(slots=True)
class _Part:
    """One table's part of a transaction; `lock` is held while something is added to it."""

    change: OpenChange
    opened: OpenedTable
    """The table at the instant that the transaction sees."""
    seen: list[ReadSet] = field(default_factory=list)
    """What was read of it through `TransactionTable.snapshot`."""
    staged: list[Written] = field(default_factory=list)
    files: set[File] = field(default_factory=set)
    """What the transaction itself has staged: files that are nowhere else."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def saw(self, predicate: Predicate, paths: Iterable[str]) -> None:
        """Remember a read: its condition, and the files that were listed for it."""
        if any(read.whole_table for read in self.seen):
            return
        if predicate == EVERYTHING:
            read = ReadSet(whole_table=True)
        else:
            test = partitions_read(predicate, self.change.base.metadata)
            read = ReadSet(partitions=test, files=frozenset(paths))
        self.seen.append(read)

    def reads(self) -> list[ReadSet]:
        """What was read beside the reads that the changes themselves depend on."""
        return self.seen if self.change.actions else [*self.seen, *self.change.reads]


class Transaction:
    """Changes to many tables that become visible together, and reads of one instant.

    Any number of threads may add to it; what they add to the same table follows one another.
    """

    def __init__(
        self,
        store: Store,
        committer: Committer,
        mirror: Mirror,
        find: Callable[[Session, object], TableRecord],
    ) -> None:
        self._store = store
        self._committer = committer
        self._mirror = mirror
        self._find = find
        self._process = Process()
        self._open: dict[str, _Part] = {}
        self._heads: dict[str, int] | None = None
        """The versions of all tables at the instant that the transaction sees, once it is fixed."""
        self._fixing = threading.Lock()
        self.results: dict[str, Committed] = {}
        """After the commit: the version each changed table became, by name."""

    def table(self, name: str) -> TransactionTable:
        """A table to read or change in this transaction.

        The first call fixes the instant that the whole transaction sees: each table is at the
        version that it had then, however late it is asked for. What others commit later is checked
        by Delta's conflict rules, against what this transaction changes and has read.
        """
        self._check_process()
        with self._store.read() as session:
            record = self._find(session, name)
            version = self._version(session, record)
        part = self._open.get(record.table_id)
        if part is None:
            # Not in that session: it may be older than the instant, which another thread has fixed.
            opened = self._opened(record, version)
            change = OpenChange(record, state_at(record.table_id, opened))
            # Another thread may have been faster: there is one part for each table.
            part = self._open.setdefault(record.table_id, _Part(change, opened))
        return TransactionTable(self._store, part)

    def _version(self, session: Session, table: TableRecord) -> int:
        """The version of a table at the instant of the transaction, which the first one fixes."""
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
        """Delete the files that were staged for it: no commit will name them."""
        if not self._process.is_this:
            return  # the parent commits them
        for part in self._open.values():
            for written in part.staged:
                written.undo()
            part.staged.clear()

    def commit(self) -> None:
        """Commit every changed table in one database transaction, and check what was read.

        A transaction that changes nothing has nothing to check: it saw one instant.
        """
        self._check_process()
        parts = list(self._open.values())
        changes = [part.change.change() for part in parts if part.change.actions]
        if not changes:
            return
        reads = [
            TableRead(part.change.table, part.change.base, merge_read_sets(*part.reads()))
            for part in parts
            if part.reads()
        ]
        started = [
            (part.change.table, part.change.base.version) for part in parts if part.change.actions
        ]
        with self._mirror.committing(started):
            outcomes = self._committer.commit(changes, reads)
        if any(outcome.committed.already_committed for outcome in outcomes):
            self.discard()
        self._open.clear()
        self._heads = None
        self.results = {
            change.table.name: outcome.committed
            for change, outcome in zip(changes, outcomes, strict=True)
        }
        self._mirror.after_commit([change.table for change in changes])
        for change, (_, state) in zip(changes, outcomes, strict=True):
            if state is not None:
                after_commit(self._store, change.table, state.version, state.counts)


class TransactionTable:
    """One table inside a transaction."""

    def __init__(self, store: Store, part: _Part) -> None:
        self._store = store
        self._part = part

    def add_actions(
        self,
        actions: Iterable[AnyAction],
        *,
        operation: str = "WRITE",
        operation_parameters: Mapping[str, Any] | None = None,
        operation_metrics: Mapping[str, Any] | None = None,
        app_txn: AppTxn | None = None,
        read: ReadSet | None = None,
        enforced: Iterable[str] = (),
    ) -> None:
        """Add actions to this table's part of the transaction."""
        with self._part.lock:
            change = self._part.change
            self._check_app_txn(app_txn)
            change.depend(read=read, enforced=enforced)
            change.add(
                actions,
                operation=operation,
                parameters=operation_parameters,
                metrics=operation_metrics,
            )
            if app_txn is not None:
                change.use_app_txn(app_txn, self._store.clock.now_ms())

    def append(
        self,
        data: Any,
        *,
        merge_schema: bool = False,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> None:
        """Add rows, when the transaction is committed; see `Table.append`."""
        check_write(app_txn=app_txn, user_metadata=user_metadata)
        with self._part.lock:
            written = write_append(
                self._part.change.table,
                self._state(),
                data,
                storage_options=self._store.storage_options,
                merge_schema=merge_schema,
                target_bytes=target_bytes,
            )
            self._add_rows(written, app_txn, user_metadata)

    def overwrite(
        self,
        data: Any,
        *,
        where: str | None = None,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: Sequence[str] | None = None,
        dynamic: bool = False,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> None:
        """Replace rows, when the transaction is committed; see `Table.overwrite`.

        Rows that this transaction has added before are replaced like those of the table.
        """
        check_write(app_txn=app_txn, user_metadata=user_metadata)
        with self._part.lock:
            snapshot = self._pending()
            written = write_overwrite(
                snapshot,
                data,
                where=where,
                storage_options=self._store.storage_options,
                now=self._store.clock.now_ms(),
                merge_schema=merge_schema,
                overwrite_schema=overwrite_schema,
                partition_by=partition_by,
                dynamic=dynamic,
                target_bytes=target_bytes,
            )
            whole = where is None and not (dynamic and snapshot.partition_columns)
            self._add_rows(written, app_txn, user_metadata, replaces_rows=whole)

    def snapshot(self) -> Snapshot:
        """The table at the instant that this transaction sees.

        What the transaction itself has added or replaced is not in it before the commit. What is
        read of it counts: rows and files, by the condition that they are asked for with, and how
        many there are. If others have changed that meanwhile, the commit is refused.
        """
        self._part.seen.append(ReadSet())
        return watched(self._at_start(), self._part.saw)

    # --- one change after the other -------------------------------------------------------

    def _at_start(self) -> Snapshot:
        """The table before any change; reads of it are those of the change that makes them."""
        return snapshot_of(self._store, self._part.change.table, self._part.opened)

    def _pending(self) -> Snapshot:
        """The table as the transaction will leave it so far: what the next change starts from."""
        return pending(self._at_start(), self._part.change.actions, self._part.files)

    def _state(self) -> TableState:
        """The same, as far as rows that are only added need it."""
        state = self._part.change.base
        for action in self._part.change.actions:
            if isinstance(action, Metadata):
                state = state._replace(metadata=action)
            elif isinstance(action, Protocol):
                state = state._replace(protocol=action)
        return state

    def _check_app_txn(self, app_txn: AppTxn | None) -> None:
        if app_txn is None:
            return
        check_app_txn(app_txn)
        change = self._part.change
        if change.app_txn is not None:
            raise ConfigurationError(
                f"Table {change.table.name!r} has an app transaction already",
                fix="Pass app_txn once for each table of a transaction",
            )

    def _add_rows(
        self,
        written: Written,
        app_txn: AppTxn | None,
        user_metadata: str | None,
        *,
        replaces_rows: bool = False,
    ) -> None:
        """Add what was staged to the part; nothing of either is changed where that is refused."""
        part, change = self._part, self._part.change
        try:
            self._check_app_txn(app_txn)
            merged = self._merged(written, replaces_rows=replaces_rows)
            part.staged.append(written)
        except DeltaLakeDbError:
            written.undo()
            raise
        parameters = dict(written.parameters)
        if replaces_rows:
            change.parameters.clear()
        elif change.parameters.get("mode") == "Overwrite":
            parameters["mode"] = "Overwrite"
        change.depend(
            read=written.read, enforced=written.enforced, replaces_all=written.replaces_all
        )
        change.actions = merged.before
        change.add(
            merged.now, operation=written.operation, parameters=parameters, metrics=written.metrics
        )
        change.metrics.update(_metrics(change.actions))
        if user_metadata is not None:
            change.info["userMetadata"] = user_metadata
        if app_txn is not None:
            change.use_app_txn(app_txn, self._store.clock.now_ms())
        part.files |= _identities(merged.now)
        self._drop(merged.dropped)

    def _merged(self, written: Written, *, replaces_rows: bool) -> _Merged:
        """What is left of the actions so far, and of those that follow them.

        A file that was added and is removed again was never there; of what a commit says once
        (its metadata, a domain) the last word counts.
        """
        before, now = self._part.change.actions, written.actions
        removed = {(one.path, one.dv_id) for one in now if isinstance(one, RemoveFile)}
        taken_back = _identities(before) & removed
        said = {_said_once(action) for action in now} - {None}

        def stays(action: Action) -> bool:
            if isinstance(action, AddFile):
                return (action.path, action.dv_id) not in taken_back
            if isinstance(action, CdcFile):
                # What the rows have become is told by the files alone, where all are replaced.
                return not replaces_rows
            return _said_once(action) not in said

        kept = [action for action in before if stays(action)]
        foreign = taken_back - self._part.files
        unsaid = taken_back - (live_among(self._at_start(), foreign) if foreign else set())
        new = [
            action
            for action in now
            if not (isinstance(action, RemoveFile) and (action.path, action.dv_id) in unsaid)
        ]
        if not replaces_rows:
            _check_feed(self._part.change.table.name, kept, new, taken_back=bool(taken_back))
        return _Merged(kept, new, [path for path, _ in _identities(before) - _identities(kept)])

    def _drop(self, paths: Iterable[str]) -> None:
        """Delete files that were staged for an earlier change, and that no action names now."""
        named = {
            action.path
            for action in self._part.change.actions
            if isinstance(action, (AddFile, RemoveFile, CdcFile))
        }
        # A file of the table that was marked has a deletion vector: it is not ours to delete.
        keys = [
            decode_path(path)
            for path in paths
            if (path, "") in self._part.files and path not in named
        ]
        if keys:
            Sinks(self._part.change.table.location, self._store.storage_options).delete(keys)


@dataclass(frozen=True, slots=True)
class _Merged:
    """Actions of earlier changes that stay, those that follow, and files that are not needed."""

    before: list[Action]
    now: list[Action]
    dropped: list[str]


def _identities(actions: Iterable[Action]) -> set[File]:
    """The files that actions add, change data included."""
    found = {(one.path, one.dv_id) for one in actions if isinstance(one, AddFile)}
    return found | {(one.path, "") for one in actions if isinstance(one, CdcFile)}


def _said_once(action: Action) -> object:
    """What a commit can say only once, by a name for it; None for files and the rest."""
    if isinstance(action, (Metadata, Protocol)):
        return type(action)
    return action.domain if isinstance(action, DomainMetadata) else None


def _check_feed(
    table: str, before: Iterable[Action], now: Iterable[Action], *, taken_back: bool
) -> None:
    """Refuse changes that a change data feed could not tell as one commit."""
    had, has = ({type(action) for action in some} for some in (before, now))
    rows_before, rows_now = bool(had & {AddFile, RemoveFile}), bool(has & {AddFile, RemoveFile})
    if CdcFile not in had | has or not (rows_before and rows_now):
        return
    if taken_back or CdcFile not in had or CdcFile not in has:
        raise UnsupportedFeatureError(
            f"These changes of table {table!r} cannot be one commit",
            why="One of them replaces rows inside of files, and its change data feed would tell "
            "that one alone",
            fix="Make them in transactions of their own, or replace whole partitions",
        )


def _metrics(actions: Sequence[Action]) -> dict[str, str]:
    """What the history says of all changes together."""
    adds = [action for action in actions if isinstance(action, AddFile)]
    removes = [action for action in actions if isinstance(action, RemoveFile)]
    marked = {add.path for add in adds} & {remove.path for remove in removes}
    told = write_metrics([add for add in adds if add.path not in marked])
    if removes:
        told["numRemovedFiles"] = str(len(removes) - len(marked))
    return told
