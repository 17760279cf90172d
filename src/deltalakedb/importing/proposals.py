"""Proposals: commits of writers that ask this catalog which of them becomes a version.

Delta on Spark is such a writer, by its log store. It asks before it writes a commit file, and reads
the log for everything else.

Guarantees:

- A proposal that succeeds is a version of the catalog, and its commit file has its very bytes.
- A conflict is reported only when the commit file of the version that won is in the log: the writer
  looks there for what to compare with.
- A table that is new below the warehouse is registered with its version 0; if that cannot be
  published, because another writer has one there, nothing stays registered.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NoReturn

from deltalakedb.actions.planning import plan_of, plan_text
from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import (
    CommitFileMissingError,
    Fix,
    ForeignCommitError,
    TableNotFoundError,
    UnexpectedVersionError,
)
from deltalakedb.mirror.publish import Storages
from deltalakedb.snapshot.page_builder import after_commit
from deltalakedb.storage.warehouse import name_of
from deltalakedb.store import TableRecord
from deltalakedb.transaction.foreign import ForeignCommit
from deltalakedb.transaction.ratify import Ratified, Ratifier

if TYPE_CHECKING:
    from deltalakedb.mirror.mirror import Mirror
    from deltalakedb.store import Store

_UNKNOWN: Final = "The catalog decides only about its own tables"


class Proposals:
    """Takes the proposals of other writers for the tables of a catalog."""

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        *,
        warehouse: str | None,
        ratifier: Ratifier | None = None,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._warehouse = warehouse
        self._ratifier = ratifier or Ratifier(store, roots=[warehouse] if warehouse else [])
        self._storages = Storages(store.storage_options, patient=False)

    def take(
        self, location: str, version: int, data: bytes, *, committer: str | None = None
    ) -> Ratified:
        """Make these bytes a version of the table at a location, and publish them.

        - TableNotFoundError: the table is not one of this catalog.
        - UnexpectedVersionError: another commit is that version, and is in the log.
        - NotPublishedError: it may be decided, and is not in the log yet. Repeat it.
        - CommitFileMissingError: another commit is that version, and its file is not in the log.
        - CommitRejectedError and others: it is refused, and nothing was written.
        """
        commit = ForeignCommit(version, data, commit_key(version))
        table = self._find(location)
        is_new = table is None
        if table is None:
            table = self._new_table(location, commit)
        elif self._storages.at(location).head(commit_key(version)) is not None:
            # A commit file that the catalog does not know cannot be replaced: nothing is decided.
            self._mirror.check_log(table, version - 1)
        base = None if is_new else version - 1
        try:
            with self._mirror.committing([(table, base)]):
                done = self._ratifier.ratify(table, commit, committer=committer, is_new=is_new)
        except UnexpectedVersionError:
            self._show_winner(self._find(location) or table, commit)
            raise
        self._publish(done, is_new=is_new)
        if done.state is not None:
            after_commit(self._store, [(done.table, done.state)])
        return done

    def publish(self, location: str) -> tuple[TableRecord, int]:
        """Publish every version of the table at a location; the table, and its newest version."""
        table = self._find(location)
        if table is None:
            raise _not_ours(location)
        return table, self._mirror.publish_all(table)

    def _find(self, location: str) -> TableRecord | None:
        return self._store.dialect.ask(
            lambda session: self._store.table_by_location(session, location)
        )

    def _new_table(self, location: str, commit: ForeignCommit) -> TableRecord:
        """The record of a table below the warehouse that its version 0 registers."""
        name = None
        if commit.version == 0 and self._warehouse is not None:
            name = name_of(self._warehouse, location)
        if name is None:
            raise _not_ours(location)
        metadata, protocol = commit.summary.metadata, commit.summary.protocol
        now = self._store.clock.now_ms()
        if self._storages.at(location).head(commit_key(0)) is not None:
            raise UnexpectedVersionError(
                f"There is a Delta table at {location} already",
                why="Its log has a version 0 that is not from this catalog",
                fix=f"Import it: {Fix('lake.import_table', location)}",
                winner_version=0,
            )
        return TableRecord(
            table_id=str(uuid.uuid4()),
            name=name,
            location=location,
            # Without a protocol and metaData the rules refuse the commit.
            protocol_min_reader=protocol.min_reader_version if protocol else 1,
            protocol_min_writer=protocol.min_writer_version if protocol else 1,
            properties=metadata.configuration if metadata else {},
            created_at=now,
            updated_at=now,
            plan=plan_text(plan_of(metadata)) if metadata else None,
        )

    def _publish(self, done: Ratified, *, is_new: bool) -> None:
        try:
            self._mirror.publish(done.table, done.version)
        except ForeignCommitError:
            if not is_new or done.repeated:
                raise
            # Another writer was faster, and this catalog has had no part in it.
            with self._store.write() as session:
                self._store.lock_head(session, done.table.table_id)
                self._store.forget_table(session, done.table.table_id)
            raise UnexpectedVersionError(
                f"Another writer has created a table at {done.table.location}",
                fix=f"Import it: {Fix('lake.import_table', done.table.location)}",
                winner_version=0,
            ) from None

    def _show_winner(self, table: TableRecord, commit: ForeignCommit) -> None:
        """Publish the commit that has won; the writer looks for it in the log."""
        key = commit_key(commit.version)
        storage = self._storages.at(table.location)
        if storage.head(key) is not None:
            return
        self._mirror.publish(table, commit.version)
        if storage.head(key) is None:
            _refuse_missing(table, f"{storage.location}/{key}")


def _refuse_missing(table: TableRecord, place: str) -> NoReturn:
    raise CommitFileMissingError(
        f"{place} is not there, and table {table.name!r} has that version",
        why="Its log was deleted, or cleaned up, after it was published",
        fix=f"Restore it with {Fix('lake.repair', table.name)}. If the table was dropped, remove "
        f"it from the catalog too: {Fix('lake.drop_table', table.name)}",
    )


def _not_ours(location: str) -> TableNotFoundError:
    return TableNotFoundError(
        f"No table of this catalog lies at {location}",
        why=_UNKNOWN,
        fix=f"Import it: {Fix('lake.import_table', location)}",
    )
