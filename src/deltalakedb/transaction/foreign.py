"""Commits of other writers as versions of the catalog: their rules, and their rows in the ledger.

Guarantees:

- A commit is checked by the rules of this catalog, whichever engine has written it. Only what
  a protocol asks of the writer of rows (constraints, generated columns, row ids) is its writer's.
- The bytes of a commit stay as they are: they, and their digest, are those of its commit file.
- A version has the time that Delta's readers give it: its in-commit timestamp where the table has
  them, else the time that the caller passes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import (
    Action,
    AddFile,
    CommitInfo,
    RemoveFile,
    UnknownAction,
    parse_commit,
)
from deltalakedb.actions.features import FEATURES, RECORDS, check_readable, required_features
from deltalakedb.actions.file_paths import spellings
from deltalakedb.deltalog.replay import file_id
from deltalakedb.store import Counts, Payload, VersionRecord, account
from deltalakedb.transaction.attempt import Summary
from deltalakedb.transaction.commit import TableState
from deltalakedb.transaction.rulebook import Rule, reject
from deltalakedb.transaction.rules import (
    CONSTRAINT_RULES,
    ROW_TRACKING,
    check_live_files,
    table_rules,
    validate_commit,
)
from deltalakedb.transaction.rules_files import check_places

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session

_RESTORE: Final = "RESTORE"
_OTHERWISE: Final = "Correct it in the engine that has written it"


@dataclass(frozen=True)
class ForeignCommit:
    """The bytes of a commit file of another writer, and the version that it is; never changes.

    InvalidLogError or InvalidActionError if they are no commit.
    """

    version: int
    data: bytes
    name: str
    """The name of the file, for messages."""

    @cached_property
    def actions(self) -> Sequence[Action]:
        """The actions, in the order of the file."""
        return tuple(parse_commit(self.data, file=self.name))

    @cached_property
    def summary(self) -> Summary:
        """The actions by kind; those that this release does not know are left out."""
        return _summary(self.actions)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def info(self) -> CommitInfo | None:
        """The commitInfo, if there is one."""
        return self.summary.commit_info

    @cached_property
    def uuid(self) -> str | None:
        """The `txnId` of the commitInfo, which stays the same when its writer tries again."""
        text = None if self.info is None else self.info.fields.get("txnId")
        try:
            return str(uuid.UUID(text)) if isinstance(text, str) else None
        except ValueError:
            return None

    @property
    def user(self) -> str | None:
        """The user that the commitInfo names."""
        name = None if self.info is None else self.info.fields.get("userName")
        return name if isinstance(name, str) else None


def record_foreign(
    store: Store,
    session: Session,
    table: TableRecord,
    commit: ForeignCommit,
    state: TableState | None,
    *,
    time: int,
    committer: str | None,
    published: bool,
) -> tuple[VersionRecord, TableState]:
    """Write a commit on top of `state`, whose head the caller has moved; None is a new table.

    CommitRejectedError, or another DeltaLakeDbError, if it breaks a rule. `time` is its time where
    the table has no in-commit timestamps.
    """
    live, actions = _with_live_paths(store, session, table, commit.actions)
    summary = commit.summary if actions is commit.actions else _summary(actions)
    _check_rules(summary, actions, live, state)
    check_places(summary.adds, summary.removes, table)
    metadata = summary.metadata or (state and state.metadata)
    protocol = summary.protocol or (state and state.protocol)
    assert metadata is not None  # noqa: S101 - the rules ask for both in a first version
    assert protocol is not None  # noqa: S101
    rules = table_rules(metadata, protocol)
    if rules.in_commit_timestamps:
        time = _in_commit_time(commit, state)
    counts, closing = account(Counts() if state is None else state.counts, actions, live)
    now = store.clock.now_ms()
    record = VersionRecord(
        table.table_id,
        commit.version,
        time,
        now,
        committer,
        commit.info,
        commit.uuid,
        counts=counts,
    )
    store.append_version(
        session,
        record,
        actions,
        payload=Payload(commit.data, commit.digest),
        closing=closing,
        plan=rules.plan,
        first=state is None,
        published=published,
    )
    if state is not None and (summary.metadata is not None or summary.protocol is not None):
        store.update_table(
            session, table.table_id, protocol=protocol, metadata=metadata, updated_at=now
        )
    after = TableState(table.table_id, commit.version, time, metadata, protocol, counts)
    return record, after


def _summary(actions: Sequence[Action]) -> Summary:
    return Summary(action for action in actions if not isinstance(action, UnknownAction))


def _with_live_paths(
    store: Store, session: Session, table: TableRecord, actions: Sequence[Action]
) -> tuple[dict[tuple[str, str], int], Sequence[Action]]:
    """The live files that a commit touches, and its actions with the paths of those.

    The catalog compares paths as text; another writer may percent-encode more, or less.
    """
    paths = [action.path for action in actions if isinstance(action, (AddFile, RemoveFile))]
    live = store.live_among(
        session, table.table_id, [way for path in paths for way in spellings(path)]
    )
    if not live:
        return {}, actions
    live_paths = {file_id(path, dv_id): path for path, dv_id in live}
    respelled: list[Action] = []
    for action in actions:
        if isinstance(action, (AddFile, RemoveFile)):
            path = live_paths.get(file_id(action.path, action.dv_id), action.path)
            respelled.append(action if path == action.path else replace(action, path=path))
        else:
            respelled.append(action)
    touched = {a.path for a in respelled if isinstance(a, (AddFile, RemoveFile))}
    return {key: size for key, size in live.items() if key[0] in touched}, respelled


def _check_rules(
    summary: Summary,
    actions: Sequence[Action],
    live: dict[tuple[str, str], int],
    state: TableState | None,
) -> None:
    protocol = summary.protocol or (state and state.protocol)
    features: frozenset[str] = frozenset()
    if protocol is not None:
        check_readable(protocol, honours=RECORDS)
        features = required_features(protocol)
    # The writer is responsible for what the protocol demands of writers.
    gone = sum((remove.path, remove.dv_id) in live for remove in summary.removes)
    validate_commit(
        summary,
        metadata=state and state.metadata,
        protocol=state and state.protocol,
        replaces_all=(
            state is None
            or gone == state.counts.live_files
            # Files that stay were in the restored version, too.
            or (summary.commit_info is not None and summary.commit_info.operation == _RESTORE)
        ),
        allow_feature_drop=True,
        enforced={*features, *CONSTRAINT_RULES, *FEATURES},
    )
    check_live_files(actions, live)
    if ROW_TRACKING in features:
        for add in summary.adds:
            if add.base_row_id is None or add.default_row_commit_version is None:
                raise reject(
                    Rule.ROW_TRACKING,
                    f"The file {add.path!r} has no row ids",
                    why="the table tracks rows, and the foreign writer does not",
                    fix=_OTHERWISE,
                )


def _in_commit_time(commit: ForeignCommit, state: TableState | None) -> int:
    time = None if commit.info is None else commit.info.in_commit_timestamp
    if time is None or not isinstance(commit.actions[0], CommitInfo):
        why = "its first line is not a commitInfo with an inCommitTimestamp"
    elif state is not None and time <= state.committed_at:
        why = (
            f"its inCommitTimestamp is {time}, and that of the version before it is "
            f"{state.committed_at}"
        )
    else:
        return time
    raise reject(
        Rule.IN_COMMIT_TIMESTAMP,
        "It breaks the in-commit timestamps of the table",
        why=why,
        fix=_OTHERWISE,
    )
