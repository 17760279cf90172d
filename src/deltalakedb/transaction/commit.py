"""A commit of one table: one value, from the operation that makes it to the committer.

Every operation returns a `Commit`. A transaction combines those of one table with `combine`. The
committer writes it to the ledger, and deletes the files that were staged for it if it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from deltalakedb.actions import Action, AddFile, CommitInfo, Metadata, Protocol, Txn
from deltalakedb.actions.codec import as_action
from deltalakedb.actions.jsonvalue import dumps, dumps_ordered
from deltalakedb.actions.properties import TableProperties
from deltalakedb.arguments import require_mapping, require_texts, short_repr
from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    CorruptCatalogError,
    InvalidArgumentError,
)
from deltalakedb.store import Counts, TableRecord
from deltalakedb.transaction.attempt import NOTHING, ReadSet, Summary, merge_read_sets

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.snapshot.resolve import OpenedTable
    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Session


class TableState(NamedTuple):
    """A table at one version: the base of the next commit."""

    table_id: str
    version: int
    committed_at: int
    metadata: Metadata
    protocol: Protocol
    counts: Counts

    def after(
        self,
        version: int,
        committed_at: int,
        counts: Counts,
        *,
        metadata: Metadata | None,
        protocol: Protocol | None,
    ) -> TableState:
        """The state after a commit, with its metadata and protocol, if it has any."""
        return TableState(
            self.table_id,
            version,
            committed_at,
            metadata or self.metadata,
            protocol or self.protocol,
            counts,
        )


def state_of(snapshot: Snapshot) -> TableState:
    """The state of a table at the version of a snapshot."""
    return TableState(
        snapshot.table.table_id,
        snapshot.version,
        snapshot.committed_at,
        snapshot.metadata,
        snapshot.protocol,
        snapshot.counts,
    )


def state_at(table_id: str, opened: OpenedTable) -> TableState:
    """The state of a table that was opened at a version."""
    return TableState(
        table_id,
        opened.version,
        opened.committed_at,
        opened.metadata,
        opened.protocol,
        opened.counts,
    )


def load_state(store: Store, session: Session, table_id: str, version: int) -> TableState:
    """Read the state of a table at `version`, which exists."""
    record = store.version(session, table_id, version)
    metadata = store.metadata_at(session, table_id, version)
    protocol = store.protocol_at(session, table_id, version)
    if record is None or metadata is None or protocol is None:
        raise CorruptCatalogError(
            f"Version {version} of table {table_id} is incomplete",
            why="Its ledger row, metadata or protocol is missing",
            fix="Restore a backup of the catalog, or import the table again from its _delta_log",
        )
    return TableState(table_id, version, record.committed_at, metadata, protocol, record.counts)


_ICT_VERSION: Final = "delta.inCommitTimestampEnablementVersion"
_ICT_TIMESTAMP: Final = "delta.inCommitTimestampEnablementTimestamp"
getrandbits = SystemRandom().getrandbits
_VERSION_4: Final = 0x4000_8000_0000_0000_0000
_RANDOM_BITS: Final = ~0xF000_C000_0000_0000_0000
AppTxn = tuple[str, int]
AnyAction = Action | Mapping[str, Any]


def new_uuid() -> str:
    """A random (version 4) UUID as text, in a fifth of the time of `str(uuid.uuid4())`."""
    digits = f"{(getrandbits(128) & _RANDOM_BITS) | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation that a commit records in the history of its table.

    `info` has the fields of its commitInfo that the user set, a note (userMetadata) among them.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The guarantees of a writer, and the requirements of its commit.

    - `enforced`: the kinds of constraint that the rows were checked against.
    - `replaces_all`: every file that is live afterwards fits the metadata of the commit.
    - `allow_feature_drop`: the protocol may lose features, because nothing uses them.
    - `expected_version`: the commit happens on top of exactly this version.
    - `app_txn`: the commit happens at most once for this application and version.
    """

    enforced: frozenset[str] = frozenset()
    replaces_all: bool = False
    allow_feature_drop: bool = False
    expected_version: int | None = None
    app_txn: AppTxn | None = None


NO_GUARANTEES: Final = Guarantees()


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """The next version of a table.

    - `base` is the state that the actions start from; None creates the table.
    - `actions` have no commitInfo: `operation` becomes one when version and time are known.
    - `read` is the read set of the actions.
    - `staged` are the keys of new files below the table's location. They are deleted if the commit
      is refused.
    - `uuid` stays the same through every retry: it identifies a commit whose acknowledgement was
      lost.
    """

    table: TableRecord
    base: TableState | None
    actions: tuple[Action, ...]
    operation: Operation
    read: ReadSet = NOTHING
    guarantees: Guarantees = NO_GUARANTEES
    staged: tuple[str, ...] = ()
    renames_to: str | None = None
    uuid: str = field(default_factory=new_uuid)
    _summary: Summary | None = field(default=None, init=False, repr=False)

    @property
    def summary(self) -> Summary:
        """The actions by kind, sorted once."""
        summary = self._summary
        if summary is None:
            summary = Summary(self.actions)
            object.__setattr__(self, "_summary", summary)
        return summary

    @property
    def state(self) -> TableState:
        """The table with the metadata and protocol of this commit, at the version of its base."""
        assert self.base is not None  # noqa: S101 - asked of tables that exist
        metadata = self.summary.metadata or self.base.metadata
        return self.base._replace(
            metadata=metadata, protocol=self.summary.protocol or self.base.protocol
        )

    def with_note(self, text: str | None) -> Commit:
        """The same with a note of the user in the history of the table."""
        if text is None:
            return self
        info = {**self.operation.info, "userMetadata": text}
        return replace(self, operation=replace(self.operation, info=info))

    def with_app_txn(self, app_txn: AppTxn | None, now: int) -> Commit:
        """The same, committed at most once for a version of an application."""
        if app_txn is None:
            return self
        app_id, version = check_app_txn(app_txn)
        return replace(
            self,
            actions=(*self.actions, Txn(app_id, version, now)),
            guarantees=replace(self.guarantees, app_txn=(app_id, version)),
        )


@dataclass(frozen=True, slots=True)
class TableRead:
    """The reads of a transaction of one table, from the version in `base`."""

    table: TableRecord
    base: TableState
    read: ReadSet


class Committed(int):
    """The version that a commit became.

    `timestamp` is its in-commit timestamp in milliseconds. `already_committed` says that the same
    app transaction had been committed before, and nothing was written now. `attempts` counts the
    tries of the database transaction. `state` is the table after the commit, where it is known.
    """

    timestamp: int
    already_committed: bool
    attempts: int
    commit_uuid: str | None
    transaction_id: str | None
    state: TableState | None

    def __new__(
        cls,
        version: int,
        *,
        timestamp: int,
        already_committed: bool = False,
        attempts: int = 1,
        commit_uuid: str | None = None,
        transaction_id: str | None = None,
        state: TableState | None = None,
    ) -> Self:
        self = super().__new__(cls, version)
        self.timestamp = timestamp
        self.already_committed = already_committed
        self.attempts = attempts
        self.commit_uuid = commit_uuid
        self.transaction_id = transaction_id
        self.state = state
        return self

    @property
    def version(self) -> int:
        """The version as a plain number."""
        return int(self)

    def __str__(self) -> str:
        return str(int(self))

    def __repr__(self) -> str:
        note = ", already committed" if self.already_committed else ""
        return f"<version {int(self)}{note}>"


# --- from the arguments of a user ---------------------------------------------------------


def commit_of(
    table: TableRecord,
    base: TableState,
    actions: Iterable[AnyAction],
    *,
    operation: Any,
    parameters: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
    read: ReadSet | None = None,
    expected_version: int | None = None,
    enforced: Iterable[str] = (),
    replaces_all: bool = False,
) -> Commit:
    """A commit of actions that a user passes; `info` is of a commitInfo that came before."""
    if not isinstance(operation, str) or not operation.strip():
        raise InvalidArgumentError(
            f"operation={short_repr(operation)} is no name of an operation",
            fix="Say in a word what the commit does, e.g. 'WRITE'",
        )
    for name, value in (("operation_parameters", parameters), ("operation_metrics", metrics)):
        if value is not None:
            require_mapping(name, value, fix='Pass names and values, e.g. {"mode": "Append"}')
    if read is not None and not isinstance(read, ReadSet):
        raise InvalidArgumentError(
            f"read={short_repr(read)} does not say what was read",
            fix="Pass a ReadSet, e.g. ReadSet(whole_table=True)",
        )
    if expected_version is not None and type(expected_version) is not int:
        raise InvalidArgumentError(
            f"expected_version={short_repr(expected_version)} is no version",
            fix="Pass a whole number, e.g. table.version",
        )
    guarantees = NO_GUARANTEES
    if enforced != () or expected_version is not None or replaces_all:
        require_texts("enforced", enforced, fix="Pass a set, e.g. {'checkConstraints'}")
        guarantees = Guarantees(
            frozenset(enforced), replaces_all=replaces_all, expected_version=expected_version
        )
    checked, info = _without_commit_info(actions, {} if info is None else info)
    return Commit(
        table,
        base,
        tuple(checked),
        Operation(operation, parameters or {}, metrics or {}, info),
        NOTHING if read is None else read,
        guarantees,
    )


def _without_commit_info(
    actions: object, info: Mapping[str, Any]
) -> tuple[list[Action], Mapping[str, Any]]:
    """The actions without a commitInfo, and its fields."""
    if type(actions) is not list and (
        isinstance(actions, (str, bytes, Mapping)) or not isinstance(actions, Iterable)
    ):
        raise InvalidArgumentError(
            f"The actions of a commit are a list, and not {short_repr(actions)}",
            fix='Pass a list of actions, e.g. [{"add": {…}}]',
        )
    checked: list[Action] = []
    for one in actions:
        action = as_action(one)
        if not isinstance(action, CommitInfo):
            checked.append(action)
            continue
        if info:
            raise CommitRejectedError(
                "The commit has two commitInfo actions",
                rule="one-commit-info",
                fix="Pass one, or none: deltalakedb writes its own",
            )
        info = dict(action.fields)
    return checked, info


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


# --- several as one -----------------------------------------------------------------------


def combine(first: Commit, second: Commit) -> Commit:
    """Two commits of a table as one, from the base of the first and with its name and UUID."""
    one, two = first.operation, second.operation
    has, adds = first.guarantees, second.guarantees
    if has.app_txn is not None and adds.app_txn is not None:
        raise ConfigurationError(
            f"Table {first.table.name!r} has an app transaction already",
            fix="Pass app_txn once for each table of a transaction",
        )
    return replace(
        first,
        actions=(*first.actions, *second.actions),
        operation=Operation(
            one.name or two.name,
            {**one.parameters, **two.parameters},
            {**one.metrics, **two.metrics},
            {**one.info, **two.info},
        ),
        read=merge_read_sets(*(r for r in (first.read, second.read) if r is not NOTHING)),
        guarantees=Guarantees(
            has.enforced | adds.enforced,
            replaces_all=has.replaces_all or adds.replaces_all,
            allow_feature_drop=has.allow_feature_drop or adds.allow_feature_drop,
            expected_version=has.expected_version
            if adds.expected_version is None
            else adds.expected_version,
            app_txn=has.app_txn or adds.app_txn,
        ),
        staged=(*first.staged, *second.staged),
    )


# --- for the history ----------------------------------------------------------------------


def write_metrics(adds: Iterable[AddFile]) -> dict[str, str]:
    """The metrics of a write that adds files, as Delta names them."""
    files = list(adds)
    rows = sum(json.loads(add.stats)["numRecords"] for add in files if add.stats)
    return {
        "numFiles": str(len(files)),
        "numOutputRows": str(rows),
        "numOutputBytes": str(sum(add.size for add in files)),
    }


def as_strings(values: Mapping[str, Any]) -> dict[str, str]:
    """Operation parameters and metrics as Delta writes them: by name, every value a string."""
    if not values:
        return {}
    return {
        key: value if isinstance(value, str) else dumps(value)
        for key, value in sorted(values.items())
        if value is not None
    }


def commit_info(
    commit: Commit,
    *,
    isolation: str,
    is_blind_append: bool,
    in_commit_timestamps: bool,
    committed_at: int,
    committer: str | None,
    engine_info: str,
    transaction_id: str | None,
) -> CommitInfo:
    """The commitInfo of a commit. Fields that the user set never replace those of the committer."""
    operation = commit.operation
    # In the order of their names, which is how a commitInfo is written.
    known: dict[str, Any] = {"engineInfo": engine_info}
    if in_commit_timestamps:
        known["inCommitTimestamp"] = committed_at
    known["isBlindAppend"] = is_blind_append
    known["isolationLevel"] = isolation
    known["operation"] = operation.name
    if operation.metrics:
        known["operationMetrics"] = as_strings(operation.metrics)
    known["operationParameters"] = as_strings(operation.parameters) if operation.parameters else {}
    if commit.base is not None:
        known["readVersion"] = commit.base.version
    if transaction_id is not None:
        tags = operation.info.get("tags")
        known["tags"] = {
            **(tags if isinstance(tags, dict) else {}),
            "deltalakedb.transactionId": transaction_id,
        }
    known["timestamp"] = committed_at
    known["txnId"] = commit.uuid
    if committer is not None:
        known["userName"] = committer
    return CommitInfo({**operation.info, **known} if operation.info else known)


def commit_info_text(info: CommitInfo, commit: Commit) -> str:
    """The canonical JSON of `commit_info`; fields of the user may need the general encoder."""
    return dumps(info.fields) if commit.operation.info else dumps_ordered(info.fields, plain=True)


def with_enablement(
    actions: Sequence[Action], before: Metadata, *, version: int, committed_at: int
) -> Sequence[Action]:
    """The actions, with the start of in-commit timestamps in a metaData that enables them."""
    if TableProperties(before.configuration).enable_in_commit_timestamps:
        return actions
    return [
        replace(
            action,
            configuration={
                **action.configuration,
                _ICT_VERSION: str(version),
                _ICT_TIMESTAMP: str(committed_at),
            },
        )
        if isinstance(action, Metadata)
        and TableProperties(action.configuration).enable_in_commit_timestamps
        else action
        for action in actions
    ]
