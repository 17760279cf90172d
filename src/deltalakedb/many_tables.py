"""Changes of many tables that become visible together: what `lake.transaction()` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.snapshot import Snapshot, open_snapshot
from deltalakedb.snapshot.page_builder import after_commit
from deltalakedb.store.exports import gone
from deltalakedb.transaction.open import AnyAction, OpenChange, check_app_txn
from deltalakedb.transaction.state import load_state
from deltalakedb.writing import Written, write_append, write_overwrite

if TYPE_CHECKING:
    from deltalakedb.mirror.service import Mirror
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.attempt import ReadSet
    from deltalakedb.transaction.change import AppTxn, Committed
    from deltalakedb.transaction.commit import Committer


class Transaction:
    """Changes to many tables that become visible together."""

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
        self._open: dict[str, OpenChange] = {}
        self._staged: list[Written] = []
        self.results: dict[str, Committed] = {}
        """After the commit: the version each changed table became, by name."""

    def table(self, name: str) -> TransactionTable:
        """A table to change in this transaction, at the version it has now."""
        store = self._store
        with store.read() as session:
            record = self._find(session, name)
            if record.table_id not in self._open:
                head = store.head(session, record.table_id)
                if head is None:
                    raise gone(session, record)
                state = load_state(store, session, record.table_id, head)
                self._open[record.table_id] = OpenChange(record, state)
        return TransactionTable(store, self._open[record.table_id], self._staged)

    def discard(self) -> None:
        """Delete the files that were staged for it: no commit will name them."""
        for written in self._staged:
            written.undo()
        self._staged.clear()

    def commit(self) -> None:
        """Commit every changed table in one database transaction."""
        changes = [change.change() for change in self._open.values() if change.actions]
        if not changes:
            return
        outcomes = self._committer.commit(changes)
        self._open.clear()
        if any(outcome.committed.already_committed for outcome in outcomes):
            self.discard()
        self._staged.clear()
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

    def __init__(self, store: Store, change: OpenChange, staged: list[Written]) -> None:
        self._store = store
        self._change = change
        self._staged = staged

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
        change = self._change
        if app_txn is not None:
            check_app_txn(app_txn)
            if change.app_txn is not None:
                raise ConfigurationError(
                    f"Table {change.table.name!r} has an app transaction already",
                    fix="Pass app_txn once for each table of a transaction",
                )
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
        self, data: Any, *, merge_schema: bool = False, app_txn: AppTxn | None = None
    ) -> None:
        """Add rows, when the transaction is committed; see `Table.append`."""
        change = self._change
        written = write_append(
            change.table,
            change.base,
            data,
            storage_options=self._store.storage_options,
            merge_schema=merge_schema,
        )
        self._add_rows(written, app_txn)

    def overwrite(
        self,
        data: Any,
        *,
        where: str | None = None,
        merge_schema: bool = False,
        app_txn: AppTxn | None = None,
    ) -> None:
        """Replace rows, when the transaction is committed; see `Table.overwrite`."""
        written = write_overwrite(
            self.snapshot(),
            self._change.base,
            data,
            where=where,
            storage_options=self._store.storage_options,
            now=self._store.clock.now_ms(),
            merge_schema=merge_schema,
        )
        self._add_rows(written, app_txn)

    def _add_rows(self, written: Written, app_txn: AppTxn | None) -> None:
        try:
            self.add_actions(
                written.actions,
                operation=written.operation,
                operation_parameters=written.parameters,
                operation_metrics=written.metrics,
                app_txn=app_txn,
                read=written.read,
                enforced=written.enforced,
            )
        except DeltaLakeDbError:
            written.undo()
            raise
        self._staged.append(written)

    def snapshot(self) -> Snapshot:
        """The table at the version this transaction started from."""
        with self._store.read() as session:
            return open_snapshot(
                self._store, session, self._change.table, self._change.base.version
            )
