"""What can only be decided when a commit knows its version and time.

The commitInfo with the in-commit timestamp, the record of when in-commit timestamps began, and row
ids. All of it is decided while the head is held, so two commits never decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import Action, CommitInfo, Metadata
from deltalakedb.actions.jsonvalue import dumps, dumps_ordered
from deltalakedb.actions.properties import TableProperties
from deltalakedb.formatting import format_time
from deltalakedb.store.store import LONGEST_IDLE_MS
from deltalakedb.telemetry import warning
from deltalakedb.transaction.attempt import IsolationLevel
from deltalakedb.transaction.commit import as_strings
from deltalakedb.transaction.metadata_diff import ROW_TRACKING_DOMAIN
from deltalakedb.transaction.row_tracking import assign_row_ids, high_water_mark
from deltalakedb.transaction.table_rules import facts_of

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.attempt import Summary
    from deltalakedb.transaction.commit import Commit, TableState


_ICT_VERSION = "delta.inCommitTimestampEnablementVersion"
_ICT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


def finish_actions(
    store: Store,
    session: Session,
    commit: Commit,
    state: TableState | None,
    *,
    version: int,
    committed_at: int,
) -> Sequence[Action]:
    """The actions to write; `commit.actions` itself where there is nothing to add."""
    actions: Sequence[Action] = commit.actions
    summary = commit.summary
    if state is None:
        if summary.adds and _tracks_rows(summary):
            filled, written = assign_row_ids(actions, high_water_mark(None), version)
            actions = [*filled, written] if written is not None else filled
        return actions
    if summary.metadata is not None:
        actions = _with_enablement(actions, state, version=version, committed_at=committed_at)
    metadata, protocol = summary.metadata or state.metadata, summary.protocol or state.protocol
    if "rowTracking" in facts_of(metadata, protocol).features:
        domain = store.domain_at(session, state.table_id, ROW_TRACKING_DOMAIN, state.version)
        filled, written = assign_row_ids(actions, high_water_mark(domain), version)
        actions = [*filled, written] if written is not None else filled
    return actions


def _tracks_rows(summary: Summary) -> bool:
    assert summary.metadata is not None  # noqa: S101 - the first version has both
    assert summary.protocol is not None  # noqa: S101
    return "rowTracking" in facts_of(summary.metadata, summary.protocol).features


def _with_enablement(
    actions: Sequence[Action], state: TableState, *, version: int, committed_at: int
) -> Sequence[Action]:
    """Record when in-commit timestamps began, if this commit begins them."""
    if TableProperties(state.metadata.configuration).enable_in_commit_timestamps:
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


def commit_info(
    commit: Commit,
    *,
    isolation: IsolationLevel,
    is_blind_append: bool,
    in_commit_timestamps: bool,
    committed_at: int,
    committer: str | None,
    engine_info: str,
    transaction_id: str | None,
) -> CommitInfo:
    """The provenance of a commit; what the caller says of it never overrides what we know."""
    operation = commit.operation
    # In the order of their names, which is how a commitInfo is written.
    known: dict[str, Any] = {"engineInfo": engine_info}
    if in_commit_timestamps:
        known["inCommitTimestamp"] = committed_at
    known["isBlindAppend"] = is_blind_append
    known["isolationLevel"] = isolation.value
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
    """The canonical JSON of `commit_info`; the caller's own fields may need the careful writer."""
    return dumps(info.fields) if commit.operation.info else dumps_ordered(info.fields, plain=True)


# Clocks of sound machines differ by less.
_AHEAD_MS: Final = 60_000


class CommitTimes:
    """Gives commits their times."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checked: int | None = None
        self._warned: set[str] = set()

    def now(self, session: Session) -> int:
        """The time that a commit is recorded at; ClockError where the clock cannot be right."""
        now = self._store.clock.now_ms()
        # What was checked once needs no further look before the clock has jumped.
        if self._checked is None or now - self._checked > LONGEST_IDLE_MS:
            self._store.check_clock(session, now)
        self._checked = now
        return now

    def after(self, previous: int, now: int, table: TableRecord) -> int:
        """The time of a commit that follows on one at `previous`."""
        if previous - now > _AHEAD_MS and table.table_id not in self._warned:
            self._warned.add(table.table_id)
            warning(
                "commit_time_ahead",
                lambda: {
                    "table": table.name,
                    "table_id": table.table_id,
                    "newest_commit": format_time(previous),
                    "clock": format_time(now),
                    "error": "The newest commit is later than the clock says. Until the clock gets "
                    "there, each commit is a millisecond after the one before",
                },
            )
        return max(now, previous + 1)
