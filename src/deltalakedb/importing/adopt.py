"""Commits that somebody else wrote to `_delta_log` become versions of the catalog.

Guarantees:

- One database transaction, which holds the head: all of them are adopted, or none.
- Only what applies cleanly is: the commits follow on the newest version without a gap, everything
  of ours is published, and each of them keeps the rules that a commit made here has to keep.
- The files stay as they are; their digests are recorded, and they count as published. Versions get
  the time that Delta's readers give them: the in-commit timestamp where the table has them, else
  that of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from deltalakedb.actions import (
    Action,
    AddFile,
    CommitInfo,
    RemoveFile,
    UnknownAction,
    parse_commit,
)
from deltalakedb.actions.features import FEATURES, check_readable, required_features
from deltalakedb.actions.file_paths import spellings
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.listing import LogFile, sort_log
from deltalakedb.deltalog.names import LOG, commit_key
from deltalakedb.deltalog.replay import file_key_of
from deltalakedb.errors import (
    AdoptionRefusedError,
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
    Fix,
    ObjectNotFoundError,
)
from deltalakedb.store import Payload, VersionRecord, account
from deltalakedb.store import mirror as queue
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.transaction.rules import check_live_files, validate_commit
from deltalakedb.transaction.rules_files import check_places
from deltalakedb.transaction.state import TableState, load_state
from deltalakedb.transaction.summary import Summary
from deltalakedb.transaction.table_rules import CONSTRAINT_RULES, facts_of

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Counts, Store, TableRecord
    from deltalakedb.store.dialect import Session

_ROW_TRACKING: Final = "rowTracking"
_OTHERWISE: Final = (
    f"To continue with the log as it is, drop the table with {Fix('lake.drop_table', ...)} and "
    f"import it again with {Fix('lake.import_table', ...)}. If the commit is not needed, move it "
    "out of the log"
)


@dataclass(frozen=True, slots=True)
class AdoptedVersion:
    """A foreign commit that is a version of the catalog now."""

    version: int
    key: str
    operation: str | None
    committed_at: int
    num_adds: int
    num_removes: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was adopted; no versions where the log has nothing beyond the catalog."""

    table: str
    table_id: str
    versions: tuple[AdoptedVersion, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be printed."""
        return {**asdict(self), "versions": [asdict(version) for version in self.versions]}


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A foreign commit file, and its bytes."""

    file: LogFile
    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def adopt(store: Store, storage: Storage, table: TableRecord) -> tuple[Adopted, TableState | None]:
    """Adopt every commit beyond the head; what was adopted, and the state that it leaves."""
    with store.read() as session:
        head, waiting = _ours(store, session, table)
    if waiting is not None:
        _refuse_fork(store, storage, table, waiting, head)
    with Spool(storage) as spool:
        files = _foreign_files(storage, table, head)
        _fetch(spool, files)
        try:
            with store.write() as session:
                store.lock_head(session, table.table_id)
                if _ours(store, session, table) != (head, None):
                    raise AdoptionRefusedError(
                        f"Table {table.name!r} got a new version while its log was read",
                        why="nothing was adopted",
                        fix="Try again. To see whether the log has forked, use "
                        f"{Fix('lake.verify', table.name)}",
                    )
                done, state = _adopt_all(store, session, table, spool, files)
                if done and queue.mirror_table(session, table.table_id).drift is not None:
                    queue.set_drift(session, table.table_id, None, now=store.clock.now_ms())
        except CommitOutcomeUnknownError:
            done = _look_up(store, table, spool, files)
            if not done:
                raise
            state = None
    return Adopted(table.name, table.table_id, tuple(done)), state


def _foreign_files(storage: Storage, table: TableRecord, head: int) -> list[LogFile]:
    """The commit files beyond the head, in order."""
    listing = sort_log(storage.list(LOG, start_after=commit_key(head)))
    found = [listing.commits[version] for version in sorted(listing.commits) if version > head]
    for expected, file in enumerate(found, start=head + 1):
        if file.version != expected:
            raise AdoptionRefusedError(
                f"The foreign commits of table {table.name!r} cannot be adopted",
                why=f"there is one of version {file.version}, and none of version {expected}",
                fix=f"Restore {commit_key(expected)}, or take {file.key} out of the log",
            )
    return found


def _fetch(spool: Spool, files: Sequence[LogFile]) -> None:
    try:
        for _ in spool.fetch([file.key for file in files]):
            pass
    except ObjectNotFoundError as error:
        raise AdoptionRefusedError(
            "The log changed while it was read", why=error.what, fix="Try again"
        ) from error


# --- what of ours stands in the way -------------------------------------------------------


def _ours(store: Store, session: Session, table: TableRecord) -> tuple[int, int | None]:
    """The newest version, and the oldest that is not published, if any."""
    head = store.head(session, table.table_id)
    if head is None:
        raise not_registered(session, table)
    row = session.one("first_unpublished", table_id=table.table_id)
    return head, None if row is None or row[0] is None else int(row[0])


def _refuse_fork(
    store: Store, storage: Storage, table: TableRecord, first: int, head: int
) -> NoReturn:
    """Our versions wait to be published where the foreign commits are: there are two histories."""
    key = commit_key(first)
    there = storage.head(key) is not None
    with store.read() as session:
        mine = store.version(session, table.table_id, first)
    operation = mine.commit_info.operation if mine and mine.commit_info else None
    ours = f"version {first} ({operation or 'unnamed'})" + (f" to {head}" if head > first else "")
    if not there:
        raise AdoptionRefusedError(
            f"Table {table.name!r} has versions that are not published yet: {ours}",
            why="foreign commits can only follow on them",
            fix=f"Publish them first: {Fix('lake.mirror.run_once')}",
        )
    name = table.name
    raise AdoptionRefusedError(
        f"The log of table {name!r} has forked at version {first}",
        why=f"{storage.location}/{key} is somebody else's, and this catalog has committed {ours} "
        "itself, which cannot be published there",
        fix="Decide which of the two to keep. To keep the commits of this catalog, move the "
        f"foreign commits from version {first} on out of _delta_log, then run "
        f"{Fix('lake.mirror.retry', name)}. To keep the foreign commits, write down what was "
        f"committed here ({Fix('table.history')}, {Fix('snapshot.files')}), then run "
        f"{Fix('lake.drop_table', name, force=True)} and "
        f"{Fix('lake.import_table', table.location, name=name)}",
    )


# --- one commit after the other -----------------------------------------------------------


def _adopt_all(
    store: Store,
    session: Session,
    table: TableRecord,
    spool: Spool,
    files: Sequence[LogFile],
) -> tuple[list[AdoptedVersion], TableState | None]:
    if not files:
        return [], None
    done: list[AdoptedVersion] = []
    state = load_state(store, session, table.table_id, files[0].version - 1)
    for file in files:
        foreign = _Foreign(file, spool.get(file.key))
        try:
            adopted, state = _adopt_one(store, session, table, foreign, state)
        except AdoptionRefusedError:
            raise
        except DeltaLakeDbError as error:
            raise AdoptionRefusedError(
                f"{file.key} cannot be adopted: {error.what}",
                why=error.why,
                fix=f"{_OTHERWISE}. Nothing was adopted",
            ) from error
        done.append(adopted)
    return done, state


def _adopt_one(
    store: Store, session: Session, table: TableRecord, foreign: _Foreign, state: TableState
) -> tuple[AdoptedVersion, TableState]:
    given = parse_commit(foreign.data, file=foreign.file.key)
    live, actions = _spelled(store, session, table, given)
    summary = Summary(action for action in actions if not isinstance(action, UnknownAction))
    _check_rules(summary, actions, live, state)
    check_places(summary.adds, summary.removes, table)
    after_metadata = summary.metadata or state.metadata
    after_protocol = summary.protocol or state.protocol
    facts = facts_of(after_metadata, after_protocol)
    committed_at = _time(foreign, given, summary, state, in_commit=facts.in_commit_timestamps)
    info = summary.commit_info
    counts, closing = account(state.counts, actions, live)
    version = foreign.file.version
    now = store.clock.now_ms()
    record = VersionRecord(
        table.table_id,
        version,
        committed_at,
        now,
        _user(info),
        info,
        counts=counts,
    )
    if not store.advance_head(session, table.table_id, expected=version - 1):
        raise AdoptionRefusedError("The head moved while it was held", fix="Try again")
    store.append_version(
        session,
        record,
        actions,
        payload=Payload(foreign.data, foreign.digest),
        closing=closing,
        plan=facts.plan,
        published=True,
    )
    if summary.metadata is not None or summary.protocol is not None:
        store.update_table(
            session,
            table.table_id,
            protocol=after_protocol,
            metadata=after_metadata,
            updated_at=now,
        )
    after = state.after(
        version, committed_at, counts, metadata=summary.metadata, protocol=summary.protocol
    )
    return _told(foreign, record, counts), after


def _told(foreign: _Foreign, record: VersionRecord, counts: Counts) -> AdoptedVersion:
    info = record.commit_info
    return AdoptedVersion(
        version=record.version,
        key=foreign.file.key,
        operation=info.operation if info is not None else None,
        committed_at=record.committed_at,
        num_adds=counts.num_adds,
        num_removes=counts.num_removes,
        size_bytes=len(foreign.data),
        sha256=foreign.digest,
    )


def _spelled(
    store: Store, session: Session, table: TableRecord, actions: Sequence[Action]
) -> tuple[dict[tuple[str, str], int], list[Action]]:
    """The live files that a commit touches, and its actions with their spelling of the path.

    The catalog compares paths as text; another writer may percent-encode more, or less.
    """
    paths = [action.path for action in actions if isinstance(action, (AddFile, RemoveFile))]
    live = store.live_among(
        session, table.table_id, [way for path in paths for way in spellings(path)]
    )
    known = {file_key_of(path, dv_id): path for path, dv_id in live}
    spelled: list[Action] = []
    for action in actions:
        if isinstance(action, (AddFile, RemoveFile)):
            path = known.get(file_key_of(action.path, action.dv_id), action.path)
            spelled.append(action if path == action.path else replace(action, path=path))
        else:
            spelled.append(action)
    touched = {a.path for a in spelled if isinstance(a, (AddFile, RemoveFile))}
    return {key: size for key, size in live.items() if key[0] in touched}, spelled


# --- rules --------------------------------------------------------------------------------


def _check_rules(
    summary: Summary,
    actions: Sequence[Action],
    live: dict[tuple[str, str], int],
    state: TableState,
) -> None:
    protocol = summary.protocol or state.protocol
    check_readable(protocol)
    # Whoever wrote the commit answers for what its protocol demands of writers.
    honoured = {*required_features(protocol), *CONSTRAINT_RULES, *FEATURES}
    gone = sum((remove.path, remove.dv_id) in live for remove in summary.removes)
    validate_commit(
        summary,
        metadata=state.metadata,
        protocol=state.protocol,
        replaces_all=gone == state.counts.live_files,
        allow_feature_drop=True,
        enforced=honoured,
    )
    check_live_files(actions, live)
    if _ROW_TRACKING in required_features(protocol):
        for add in summary.adds:
            if add.base_row_id is None or add.default_row_commit_version is None:
                raise AdoptionRefusedError(
                    f"The file {add.path!r} has no row ids",
                    why="the table tracks rows, and the foreign writer does not",
                    fix=_OTHERWISE,
                )


def _time(
    foreign: _Foreign,
    given: Sequence[Action],
    summary: Summary,
    state: TableState,
    *,
    in_commit: bool,
) -> int:
    if not in_commit:
        return max(foreign.file.modified_ms, state.committed_at + 1)
    info = summary.commit_info
    time = None if info is None else info.in_commit_timestamp
    if time is None or not isinstance(given[0], CommitInfo):
        why = "its first line is no commitInfo with an inCommitTimestamp"
    elif time <= state.committed_at:
        why = (
            f"its inCommitTimestamp is {time}, and that of the version before it is "
            f"{state.committed_at}"
        )
    else:
        return time
    raise AdoptionRefusedError(
        f"{foreign.file.key} cannot be adopted: it breaks the in-commit timestamps of the table",
        why=why,
        fix=f"{_OTHERWISE}. Nothing was adopted",
    )


def _user(info: CommitInfo | None) -> str | None:
    name = None if info is None else info.fields.get("userName")
    return name if isinstance(name, str) else None


def _look_up(
    store: Store, table: TableRecord, spool: Spool, files: Sequence[LogFile]
) -> list[AdoptedVersion]:
    """What became of an adoption whose acknowledgement was lost; nothing if it did not happen."""
    done: list[AdoptedVersion] = []
    with store.read() as session:
        for file in files:
            foreign = _Foreign(file, spool.get(file.key))
            record = store.version(session, table.table_id, file.version)
            row = session.one("mirror_digest", table_id=table.table_id, version=file.version)
            if record is None or row is None or row[0] != foreign.digest:
                return []
            done.append(_told(foreign, record, record.counts))
    return done
