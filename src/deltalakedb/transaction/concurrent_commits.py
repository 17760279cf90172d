"""The commits that came between the version a transaction started from and the head.

Only actions that the conflict rules need are read. A blind append needs no files that others added,
however many there are; of the files that they removed, it needs those that it adds again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from deltalakedb.actions import Action, AddFile, RemoveFile
from deltalakedb.errors import HistoryExpiredError
from deltalakedb.transaction.attempt import Attempt, Winner
from deltalakedb.transaction.conflicts import check_conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.store import Store, VersionRecord
    from deltalakedb.store.dialect import Row, Session
    from deltalakedb.transaction.commit import TableState


def load_concurrent_commits(
    store: Store,
    session: Session,
    attempt: Attempt,
    records: Sequence[VersionRecord],
    *,
    table: str,
) -> list[Winner]:
    """The commits of `records`: consecutive versions of the table of that name, oldest first."""
    if not records:
        return []
    table_id, after = records[0].table_id, records[0].version - 1
    actions: dict[int, list[Action]] = defaultdict(list)
    for version, action in store.control_actions_after(session, table_id, after):
        actions[version].append(action)
    decode = session.decode_text
    if not attempt.is_blind_append:
        for version, path, values, data_change in session.run(
            "adds_after", table_id=table_id, version=after
        ):
            partition_values = {
                decode(key): value if value is None else decode(value)
                for key, value in json.loads(values).items()
            }
            actions[version].append(
                AddFile(decode(path), partition_values, 0, 0, bool(data_change))
            )
    if any(record.counts.num_removes for record in records):
        for version, path, data_change in _removes(session, attempt, table_id, after):
            actions[version].append(RemoveFile(decode(path), bool(data_change)))
    return [
        Winner(
            record.version,
            [*([record.commit_info] if record.commit_info else []), *actions[record.version]],
            table,
        )
        for record in records
    ]


def state_after_commits(
    store: Store,
    session: Session,
    state: TableState,
    attempt: Attempt,
    records: Sequence[VersionRecord],
    *,
    table: str,
) -> TableState:
    """The state after the commits of others; raises the first conflict with one of them."""
    if records and records[0].version != state.version + 1:
        raise HistoryExpiredError(
            f"The transaction started from version {state.version} of table {table!r}, which is "
            "too long ago",
            why=f"versions {state.version + 1} to {records[0].version - 1} have expired, so "
            "it cannot be checked against them",
            fix="Read the table again and repeat the work",
            winner_version=records[0].version,
        )
    winners = load_concurrent_commits(store, session, attempt, records, table=table)
    for record, winner in zip(records, winners, strict=True):
        check_conflict(attempt, winner, base_protocol=state.protocol, base_metadata=state.metadata)
        state = state.after(
            record.version,
            record.committed_at,
            record.counts,
            metadata=winner.metadata,
            protocol=winner.protocol,
        )
    return state


def _removes(session: Session, attempt: Attempt, table_id: str, after: int) -> list[Row]:
    if attempt.is_blind_append:
        paths = session.array([add.path for add in attempt.adds])
        return session.run("removed_among", table_id=table_id, version=after, paths=paths)
    return session.run("removes_after", table_id=table_id, version=after)
