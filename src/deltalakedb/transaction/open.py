"""A transaction over any number of tables, before it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltalakedb.actions import Action, CommitInfo, Txn
from deltalakedb.actions.codec import as_action
from deltalakedb.arguments import require_mapping, require_texts, shown
from deltalakedb.errors import CommitRejectedError, InvalidArgumentError
from deltalakedb.store import TableRecord
from deltalakedb.transaction.attempt import NOTHING, ReadSet, merge_read_sets
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
    replaces_all: bool = False

    def add(
        self,
        actions: Iterable[AnyAction],
        *,
        operation: str,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """More actions; the operation of several additions is that of the first."""
        _check_operation(operation, parameters, metrics)
        # All or none of them: a caller may catch the error and go on with the transaction.
        added, info = _taken_apart(actions, self.info)
        self.actions += added
        self.info = info
        self.operation = self.operation or operation
        self.parameters.update(parameters or {})
        self.metrics.update(metrics or {})

    def depend(
        self,
        *,
        read: ReadSet | None = None,
        expected_version: int | None = None,
        enforced: Iterable[str] = (),
        replaces_all: bool = False,
    ) -> None:
        """What the actions were made from, and what the caller vouches for."""
        _check_dependence(read, expected_version, enforced)
        if read is not None:
            self.reads.append(read)
        if expected_version is not None:
            self.expected_version = expected_version
        self.enforced |= frozenset(enforced)
        self.replaces_all = self.replaces_all or replaces_all

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
            replaces_all=self.replaces_all,
        )


def _taken_apart(
    actions: Iterable[AnyAction], info: dict[str, Any]
) -> tuple[list[Action], dict[str, Any]]:
    """The actions without a commitInfo, and what that says beyond `info`."""
    taken: list[Action] = []
    for given in _each(actions):
        action = as_action(given)
        if isinstance(action, CommitInfo):
            if info:
                raise CommitRejectedError(
                    "The commit has two commitInfo actions",
                    rule="one-commit-info",
                    fix="Pass one, or none: deltalakedb writes its own",
                )
            info = dict(action.fields)
        else:
            taken.append(action)
    return taken, info


def plain_change(
    table: TableRecord, base: TableState, actions: Iterable[AnyAction], operation: str
) -> Change:
    """The change of a commit that says no more than what it does: what most commits are."""
    _check_operation(operation, None, None)
    taken, info = _taken_apart(actions, {})
    return Change(table, base, tuple(taken), operation, {}, {}, info, NOTHING)


def _each(actions: object) -> Iterable[Any]:
    """The actions one by one; a single action, or text, is no list of them."""
    if type(actions) is list:
        return actions
    if isinstance(actions, (str, bytes, Mapping)) or not isinstance(actions, Iterable):
        raise InvalidArgumentError(
            f"The actions of a commit are a list, and not {shown(actions)}",
            fix='Pass a list of actions, e.g. [{"add": {…}}]',
        )
    return actions


def _check_operation(operation: object, parameters: object, metrics: object) -> None:
    if not isinstance(operation, str) or not operation.strip():
        raise InvalidArgumentError(
            f"operation={shown(operation)} is no name of an operation",
            fix="Say in a word what the commit does, e.g. 'WRITE'",
        )
    for name, given in (("operation_parameters", parameters), ("operation_metrics", metrics)):
        if given is not None:
            require_mapping(name, given, fix='Pass names and values, e.g. {"mode": "Append"}')


def _check_dependence(read: object, expected_version: object, enforced: object) -> None:
    if read is not None and not isinstance(read, ReadSet):
        raise InvalidArgumentError(
            f"read={shown(read)} does not say what was read",
            fix="Pass a ReadSet, e.g. ReadSet(whole_table=True)",
        )
    if expected_version is not None and type(expected_version) is not int:
        raise InvalidArgumentError(
            f"expected_version={shown(expected_version)} is no version",
            fix="Pass a whole number, e.g. table.version",
        )
    require_texts("enforced", enforced, fix="Pass a set, e.g. {'checkConstraints'}")


def check_app_txn(app_txn: object) -> AppTxn:
    """An app transaction is a name and a number that fits Delta's long."""
    match app_txn:
        case (str(app_id), int(version)) if (
            app_id and not isinstance(version, bool) and -(2**63) <= version < 2**63
        ):
            return app_id, version
        case _:
            raise InvalidArgumentError(
                f"app_txn={app_txn!r} is no app transaction",
                fix="Pass (app_id, version), e.g. ('nightly-load', 7)",
            )
