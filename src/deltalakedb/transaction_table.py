"""The handle of a table inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltalakedb.operations.append import append
from deltalakedb.operations.overwrite import overwrite
from deltalakedb.snapshot import Snapshot
from deltalakedb.transaction.commit import AnyAction, check_app_txn, commit_of

if TYPE_CHECKING:
    from deltalakedb.transaction.attempt import ReadSet
    from deltalakedb.transaction.commit import AppTxn
    from deltalakedb.transaction.transaction import Part


class TransactionTable:
    """One table inside a transaction."""

    def __init__(self, part: Part) -> None:
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
        """Add actions to the commit of this table."""
        if app_txn is not None:
            check_app_txn(app_txn)
        part = self._part
        with part.lock:
            commit = commit_of(
                part.table,
                part.base,
                actions,
                operation=operation,
                parameters=operation_parameters,
                metrics=operation_metrics,
                info=part.commit.operation.info,
                read=read,
                enforced=enforced,
            )
            part.add(commit.with_app_txn(app_txn, part.store.clock.now_ms()))

    def append(
        self,
        data: Any,
        *,
        merge_schema: bool = False,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> None:
        """Add rows when the transaction is committed; see `Table.append`."""
        part = self._part
        with part.lock:
            commit = append(
                part.table,
                part.commit.state,
                data,
                storage_options=part.store.storage_options,
                now=part.store.clock.now_ms(),
                merge_schema=merge_schema,
                app_txn=app_txn,
                user_metadata=user_metadata,
                target_bytes=target_bytes,
            )
            part.follow(commit)

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
        """Replace rows when the transaction is committed; see `Table.overwrite`.

        Rows that this transaction has added before are replaced too.
        """
        part = self._part
        with part.lock:
            snapshot = part.pending()
            commit = overwrite(
                snapshot,
                data,
                where=where,
                storage_options=part.store.storage_options,
                now=part.store.clock.now_ms(),
                merge_schema=merge_schema,
                overwrite_schema=overwrite_schema,
                partition_by=partition_by,
                dynamic=dynamic,
                app_txn=app_txn,
                user_metadata=user_metadata,
                target_bytes=target_bytes,
            )
            part.follow(
                commit,
                replaces_rows=where is None and not (dynamic and snapshot.partition_columns),
            )

    def snapshot(self) -> Snapshot:
        """The table at the instant that this transaction sees.

        It does not have the transaction's own changes. Its reads count: rows and files, by their
        condition, and the number of files. If a concurrent commit has changed what was read, the
        commit is refused.
        """
        return self._part.snapshot()
