"""Row tracking: row ids are assigned when a version is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.values import Action, AddFile, DomainMetadata, RemoveFile
from deltalakedb.errors import DeltaLakeDbError, InvalidActionError
from deltalakedb.transaction.metadata_diff import ROW_TRACKING_DOMAIN
from deltalakedb.transaction.rulebook import Rule, reject
from deltalakedb.transaction.rules_files import num_records

if TYPE_CHECKING:
    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.commit import TableState

NO_ROW_IDS: Final = -1
"""The high-water mark of a table without row ids."""
_MARK: Final = "rowIdHighWaterMark"


def high_water_mark(domain: DomainMetadata | None) -> int:
    """The highest assigned row id, from the domain `delta.rowTracking` (None: no such domain)."""
    if domain is None or domain.removed:
        return NO_ROW_IDS
    try:
        document: Any = jsonvalue.loads(domain.configuration)
        mark = document.get(_MARK) if isinstance(document, dict) else None
    except DeltaLakeDbError:
        mark = None
    if isinstance(mark, bool) or not isinstance(mark, int):
        raise InvalidActionError(
            f"The metadata domain {ROW_TRACKING_DOMAIN!r} is damaged",
            why=f"its configuration is {domain.configuration[:200]!r}",
            fix=f'It must be a JSON object such as {{"{_MARK}":41}}',
        )
    return mark


def assign_row_ids(
    actions: Iterable[Action], mark: int, version: int
) -> tuple[list[Action], DomainMetadata | None]:
    """Fill `baseRowId` and `defaultRowCommitVersion` of added files for a commit of `version`.

    `mark` is the high-water mark before the commit (see `high_water_mark`). Returns the actions,
    without any `delta.rowTracking` domain they held, and the domain to write; None if no id was
    assigned. Call it again with the original actions after every rebase.

    A file keeps ids that it has. One that is added and removed in the same commit (it gets another
    deletion vector) takes over those of the remove. Raises `CommitRejectedError` for a file without
    numRecords, and for an id that was never assigned.
    """
    actions = list(actions)
    removed = {
        action.path: action
        for action in actions
        if isinstance(action, RemoveFile) and action.base_row_id is not None
    }
    filled: list[Action] = []
    last = mark
    for action in actions:
        if isinstance(action, AddFile):
            add = _take_over(action, removed.get(action.path))
            if add.base_row_id is None:
                rows = num_records(add)
                if rows is None:
                    raise reject(
                        Rule.ROW_TRACKING,
                        f"The rows of {add.path!r} cannot get row ids",
                        why="its statistics have no numRecords",
                        fix="Add statistics with the number of rows in the file",
                    )
                add = replace(add, base_row_id=last + 1)
                last += rows
            elif not 0 <= add.base_row_id <= mark:
                raise reject(
                    Rule.ROW_TRACKING,
                    f"The file {add.path!r} has the baseRowId {add.base_row_id}",
                    why=f"the highest assigned row id is {mark}",
                    fix="Leave baseRowId out of new files: the commit fills it in",
                )
            if add.default_row_commit_version is None:
                add = replace(add, default_row_commit_version=version)
            filled.append(add)
        elif not (isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN):
            filled.append(action)
    if last == mark:
        return filled, None
    configuration = jsonvalue.dumps({_MARK: last})
    return filled, DomainMetadata(ROW_TRACKING_DOMAIN, configuration, removed=False)


def with_row_ids(
    store: Store,
    session: Session,
    actions: Sequence[Action],
    state: TableState | None,
    *,
    version: int,
) -> Sequence[Action]:
    """The actions with row ids, and the new high-water mark, of a commit on top of `state`."""
    domain = None
    if state is not None:
        domain = store.domain_at(session, state.table_id, ROW_TRACKING_DOMAIN, state.version)
    filled, written = assign_row_ids(actions, high_water_mark(domain), version)
    return filled if written is None else [*filled, written]


def _take_over(add: AddFile, remove: RemoveFile | None) -> AddFile:
    if remove is None or add.base_row_id is not None:
        return add
    version = add.default_row_commit_version
    return replace(
        add,
        base_row_id=remove.base_row_id,
        default_row_commit_version=(
            remove.default_row_commit_version if version is None else version
        ),
    )
