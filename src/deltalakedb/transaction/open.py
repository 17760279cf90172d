"""A transaction over any number of tables, before it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltalakedb.actions import Action, CommitInfo, Txn
from deltalakedb.actions.codec import as_action
from deltalakedb.errors import CommitRejectedError, ConfigurationError
from deltalakedb.store import TableRecord
from deltalakedb.transaction.attempt import ReadSet, merge_read_sets
from deltalakedb.transaction.change import AppTxn, Change
from deltalakedb.transaction.state import TableState

AnyAction = Action | Mapping[str, Any]


@dataclass(slots=True)
class OpenChange:
    """What has been gathered for one table."""

    table: TableRecord
    base: TableState
    actions: list[Action] = field(default_factory=list)
    operation: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    reads: list[ReadSet] = field(default_factory=list)
    app_txn: AppTxn | None = None
    expected_version: int | None = None
    enforced: frozenset[str] = frozenset()

    def add(
        self,
        actions: Iterable[AnyAction],
        *,
        operation: str,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """More actions; the operation of several additions is that of the first."""
        for given in actions:
            action = as_action(given)
            if isinstance(action, CommitInfo):
                if self.info:
                    raise CommitRejectedError(
                        "The commit has two commitInfo actions",
                        rule="one-commit-info",
                        fix="Pass one, or none: deltalakedb writes its own",
                    )
                self.info = dict(action.fields)
            else:
                self.actions.append(action)
        self.operation = self.operation or operation
        self.parameters.update(parameters or {})
        self.metrics.update(metrics or {})

    def use_app_txn(self, app_txn: AppTxn, now: int) -> None:
        """Make the commit idempotent under an application's own version."""
        app_id, version = check_app_txn(app_txn)
        self.app_txn = (app_id, version)
        self.actions.append(Txn(app_id, version, now))

    def change(self) -> Change:
        """The change to commit."""
        return Change(
            table=self.table,
            base=self.base,
            actions=tuple(self.actions),
            operation=self.operation or "WRITE",
            parameters=self.parameters,
            metrics=self.metrics,
            info=self.info,
            read=merge_read_sets(*self.reads),
            app_txn=self.app_txn,
            expected_version=self.expected_version,
            enforced=self.enforced,
        )


def check_app_txn(app_txn: object) -> AppTxn:
    """An app transaction is a name and a number that fits Delta's long."""
    match app_txn:
        case (str(app_id), int(version)) if (
            app_id and not isinstance(version, bool) and -(2**63) <= version < 2**63
        ):
            return app_id, version
        case _:
            raise ConfigurationError(
                f"app_txn={app_txn!r} is no app transaction",
                fix="Pass (app_id, version), e.g. ('nightly-load', 7)",
            )
