"""An existing Delta table becomes one of ours, with its history.

Guarantees:

- One database transaction: either every version is there, or the catalog is as it was.
- Versions keep their numbers, times, actions and commitInfo. A log whose old commits are gone
  begins with its oldest state that can be rebuilt, as the actions of that version.
- Before anything is committed, what the catalog would answer (live files and bytes of every
  version, the live files of the newest one) is compared with a replay of the log in memory.
- Nothing is written to the table's location.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalakedb.actions import Action, CommitInfo, Metadata, Protocol
from deltalakedb.actions.features import check_readable
from deltalakedb.actions.planning import plan_of, plan_text
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.deltalog.history import OpenHistory, open_history
from deltalakedb.deltalog.listing import Checkpoint, LogFile, list_log
from deltalakedb.deltalog.replay import Change, Replay, file_key_of
from deltalakedb.deltalog.times import VersionTime, commit_times
from deltalakedb.errors import (
    CatalogConstraintError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    CorruptCatalogError,
    InvalidActionError,
    InvalidLogError,
    InvalidSchemaError,
    TableExistsError,
)
from deltalakedb.store import Counts, TableRecord, VersionRecord
from deltalakedb.store.bulk import BulkWriter, live_files, live_totals
from deltalakedb.transaction.change_table import check_name

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Session

Progress = Callable[[int, int], None]
_TELL_EVERY = 500


@dataclass(slots=True)
class _Version:
    """A version on its way into the ledger."""

    version: int
    file_ms: int
    info: CommitInfo | None
    change: Change
    in_commit_ms: int | None
    published: tuple[str, int]


@dataclass(slots=True)
class _Import:
    """One import: what has been replayed so far."""

    store: Store
    history: OpenHistory
    name: str
    location: str
    progress: Progress | None
    table_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    replay: Replay = field(default_factory=Replay)
    versions: list[_Version] = field(default_factory=list)

    def run(self, session: Session) -> TableRecord:
        _refuse_taken(self.store, session, self.name, self.location)
        writer = BulkWriter(self.store, session, self.table_id)
        plan = self.history.plan
        if plan.base_version is not None:
            self._base(writer, plan.base_version)
        for file in plan.commits:
            self._commit(writer, file)
        self._tell(force=True)
        protocol, metadata = self._check_table()
        now = self.store.clock.now_ms()
        record = TableRecord(
            table_id=self.table_id,
            name=self.name,
            location=self.location,
            protocol_min_reader=protocol.min_reader_version,
            protocol_min_writer=protocol.min_writer_version,
            properties=metadata.configuration,
            created_at=now,
            updated_at=now,
            plan=plan_text(plan_of(metadata)),
        )
        self.store.register(session, record)
        # The registry repeats more of the metadata than a new record has.
        self.store.update_table(
            session, self.table_id, protocol=protocol, metadata=metadata, updated_at=now
        )
        writer.finish(self._records(now), [version.published for version in self.versions])
        self._verify(session)
        return record

    def _base(self, writer: BulkWriter, version: int) -> None:
        """The state that the history begins with, as the actions of its version."""
        plan = self.history.plan
        total = Change(0, 0, 0, 0, 0, 0, 0)
        for batch in self.history.base_batches():
            kept, change = self.replay.apply(batch, file=f"the checkpoint of version {version}")
            writer.add_actions(version, kept)
            total = Change(
                total.num_actions + change.num_actions,
                total.num_adds + change.num_adds,
                total.num_removes + change.num_removes,
                total.bytes_added + change.bytes_added,
                total.bytes_removed + change.bytes_removed,
                change.live_files,
                change.live_bytes,
            )
        if plan.base_commit is None:
            # Its commit file is gone; only the checkpoint vouches for it.
            self.versions.append(
                _Version(version, _base_ms(self.history), None, total, None, ("", 0))
            )
        else:
            self._record(plan.base_commit, self.history.commit(plan.base_commit), total)
        self._check_begun()

    def _commit(self, writer: BulkWriter, file: LogFile) -> None:
        actions = self.history.commit(file)
        kept, change = self.replay.apply(actions, file=file.key)
        self._record(file, actions, change)
        if len(self.versions) == 1:
            self._check_begun()
        writer.add_actions(file.version, kept)
        self._tell()

    def _record(self, file: LogFile, actions: list[Action], change: Change) -> None:
        info = next((action for action in actions if isinstance(action, CommitInfo)), None)
        metadata = self.replay.metadata
        in_commit = None
        if info is not None and metadata is not None and info.in_commit_timestamp is not None:
            enabled = TableProperties(metadata.configuration).enable_in_commit_timestamps
            in_commit = info.in_commit_timestamp if enabled else None
        entry = self.history.spool.entry(file.key)
        published = (entry.digest, entry.size)
        self.versions.append(
            _Version(file.version, file.modified_ms, info, change, in_commit, published)
        )

    def _tell(self, *, force: bool = False) -> None:
        if self.progress and (force or len(self.versions) % _TELL_EVERY == 0):
            self.progress(len(self.versions), self.history.plan.count)

    # --- checks ---------------------------------------------------------------------------

    def _check_begun(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self.replay.protocol, self.replay.metadata
        if protocol is None or metadata is None:
            lacks = "protocol" if protocol is None else "metaData"
            raise InvalidLogError(
                f"The log of {self.location} begins without {lacks} in version "
                f"{self.history.plan.first_version}",
                why="every state of a table has a protocol and metaData",
                fix="Restore the first commit or the checkpoint from a copy of _delta_log",
            )
        return protocol, metadata

    def _check_table(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self._check_begun()
        check_readable(protocol, table=self.name)
        try:
            _ = metadata.schema
        except InvalidSchemaError as error:
            raise InvalidLogError(
                f"The schema of the table at {self.location} cannot be understood: {error.what}",
                why=error.why,
                fix=error.fix,
            ) from error
        return protocol, metadata

    def _records(self, now: int) -> list[VersionRecord]:
        times = commit_times(
            [VersionTime(v.version, v.file_ms, v.in_commit_ms) for v in self.versions]
        )
        return [
            VersionRecord(
                table_id=self.table_id,
                version=version.version,
                committed_at=committed_at,
                recorded_at=now,
                committer=_committer(version.info),
                commit_info=version.info,
                counts=Counts(*version.change),
            )
            for version, committed_at in zip(self.versions, times, strict=True)
        ]

    def _verify(self, session: Session) -> None:
        """Compare what the catalog answers with the replay; any difference ends the import."""
        first, last = self.versions[0].version, self.versions[-1].version
        totals = live_totals(session, self.table_id, first, last)
        for version, (number, files, size) in zip(self.versions, totals, strict=True):
            if (files, size) != (version.change.live_files, version.change.live_bytes):
                raise _wrong(
                    f"version {number} has {files} files of {size} bytes in the catalog, and "
                    f"{version.change.live_files} of {version.change.live_bytes} in the log"
                )
        seen = 0
        for path, dv_id, size in live_files(session, self.table_id):
            seen += 1
            known = self.replay.files.get(file_key_of(path, dv_id))
            if known is None or known != (path, size):
                raise _wrong(f"the live file {path!r} {dv_id} of {size} bytes is not in the log")
        if seen != len(self.replay.files):
            raise _wrong(
                f"{seen} live files are in the catalog, {len(self.replay.files)} in the log"
            )


def take_over(
    store: Store,
    storage: Storage,
    *,
    name: str,
    location: str,
    progress: Progress | None = None,
) -> TableRecord:
    """Import the Delta table at `storage` under `name`; its record in the registry."""
    check_name(name)
    with store.read() as session:
        _refuse_taken(store, session, name, location)
    with Spool(storage) as spool:
        history = open_history(list_log(storage), spool, location=location)
        work = _Import(store, history, name, location, progress)
        try:
            with store.write() as session, session.bulk():
                return work.run(session)
        except CommitOutcomeUnknownError:
            found = _look_up(store, name, work.table_id)
            if found is None:
                raise
            return found
        except CatalogConstraintError as error:
            with store.read() as session:
                _refuse_taken(store, session, name, location)
            raise InvalidLogError(
                f"The log of {location} holds a value that the catalog cannot keep",
                why=error.why,
                fix="Correct the action in the log, or restore it from a copy",
            ) from error
        except InvalidActionError as error:
            raise InvalidLogError(
                f"The log of {location} is damaged: {error.what}", why=error.why, fix=error.fix
            ) from error


def default_name(location: str) -> str:
    """The last part of a location."""
    name = unquote(location.rpartition("/")[2]).strip()
    if not name or not name.isprintable():
        raise ConfigurationError(
            f"{location!r} ends in nothing that could be the name of a table",
            fix="Pass name=…, e.g. name='sales.orders'",
        )
    return name


def _refuse_taken(store: Store, session: Session, name: str, location: str) -> None:
    taken = store.table_by_location(session, location)
    if taken is not None:
        raise TableExistsError(
            f"The location {location} is registered already, as table {taken.name!r}",
            fix=f"Use lake.table({taken.name!r}), or drop it first",
        )
    if store.table_by_name(session, name) is not None:
        raise TableExistsError(
            f"There is a table {name!r} already", fix="Choose another name with name=…"
        )


def _look_up(store: Store, name: str, table_id: str) -> TableRecord | None:
    with store.read() as session:
        found = store.table_by_name(session, name)
    return found if found is not None and found.table_id == table_id else None


def _base_ms(history: OpenHistory) -> int:
    """When a state was committed whose commit is gone: before the next one, whatever its files say.

    A checkpoint may be written long after its version.
    """
    last = history.plan.base_pieces[-1]
    files = last.files if isinstance(last, Checkpoint) else (last,)
    following = [file.modified_ms - 1 for file in history.plan.commits[:1]]
    return min([*following, *(file.modified_ms for file in files)])


def _committer(info: CommitInfo | None) -> str | None:
    fields: Mapping[str, Any] = {} if info is None else info.fields
    name = fields.get("userName")
    return name if isinstance(name, str) else None


def _wrong(why: str) -> CorruptCatalogError:
    return CorruptCatalogError(
        "The import would not have given the same table, and was undone",
        why=why,
        fix="This is a fault of deltalakedb: please report it with the _delta_log",
    )
