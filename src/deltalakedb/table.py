"""A table as a user holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltalakedb.errors import CorruptCatalogError
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.cache import SnapshotCache
from deltalakedb.snapshot.listing import NO_LIMIT, check_count
from deltalakedb.snapshot.page_builder import after_commit
from deltalakedb.snapshot.resolve import resolve, to_milliseconds
from deltalakedb.snapshot.retained import needed_files
from deltalakedb.snapshot.snapshot import snapshot_of
from deltalakedb.store.reading import Known, find_history, stream_history
from deltalakedb.store.relations import LIVE
from deltalakedb.telemetry import span
from deltalakedb.transaction import change_table
from deltalakedb.transaction.open import AnyAction, OpenChange, plain_change
from deltalakedb.transaction.state import TableState
from deltalakedb.writing import Written, write_append, write_overwrite

if TYPE_CHECKING:
    from deltalakedb.actions import Action
    from deltalakedb.mirror.service import Mirror
    from deltalakedb.snapshot.cache import CachedSnapshot
    from deltalakedb.snapshot.resolve import OpenedTable
    from deltalakedb.store import Store, TableRecord, VersionRecord
    from deltalakedb.transaction.attempt import ReadSet
    from deltalakedb.transaction.change import AppTxn, Change, Committed
    from deltalakedb.transaction.commit import Committer


class Table:
    """A handle on a registered table.

    It remembers the version it last saw (opening it, a snapshot of the head, or a commit of its
    own). A commit starts from that version: what others committed since is checked by Delta's
    conflict rules, and `refresh()` moves on.
    """

    def __init__(
        self, store: Store, committer: Committer, mirror: Mirror, record: TableRecord
    ) -> None:
        self._store = store
        self._committer = committer
        self._mirror = mirror
        self._record = record
        self._state: TableState | None = None
        self._known = Known()
        self._cache = SnapshotCache(store)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, location={self.location!r})"

    @property
    def name(self) -> str:
        """The name in the catalog."""
        return self._record.name

    @property
    def location(self) -> str:
        """Where the data lies."""
        return self._record.location

    @property
    def table_id(self) -> str:
        """The id of the table in the catalog."""
        return self._record.table_id

    @property
    def record(self) -> TableRecord:
        """The table's row in the catalog."""
        return self._record

    @property
    def version(self) -> int:
        """The version this handle last saw."""
        return self._base().version

    def state(self) -> TableState:
        """What a commit of this handle starts from."""
        return self._base()

    def start_from(self, version: int) -> None:
        """Let the next commit start from a version that was seen earlier, elsewhere.

        What others committed since is checked by the conflict rules.
        """
        found = resolve(self._store, self._record, version=version)
        self._state = _state_of(self.table_id, found)

    def actions(self, version: int) -> list[Action]:
        """What a version's commit says, without its commitInfo."""
        with self._store.read() as session:
            return self._store.actions_of(session, self.table_id, version)

    def now_ms(self) -> int:
        """The time by the clock of the catalog's writers, in milliseconds."""
        return self._store.clock.now_ms()

    def refresh(self) -> int:
        """Look at the newest version; which one it is."""
        found = resolve(self._store, self._record, known=self._known)
        self._known, self._state = found.known, _state_of(self.table_id, found)
        return self._state.version

    def snapshot(
        self, version: int | None = None, *, timestamp: datetime | str | None = None
    ) -> Snapshot:
        """The table at its newest version, at `version`, or as it was at `timestamp`.

        A time is a datetime or ISO 8601 text (UTC, unless it names a zone), not before the first
        commit nor after the last.
        """
        found = resolve(
            self._store, self._record, version=version, timestamp=timestamp, known=self._known
        )
        snapshot = snapshot_of(self._store, self._record, found)
        if version is None and timestamp is None:
            self._known, self._state = found.known, _state_of(self.table_id, found)
        return snapshot

    def cached_snapshot(self) -> CachedSnapshot:
        """The newest snapshot, whose files this handle holds in memory.

        Each call asks only for the head; when it has moved, only what was added and removed since
        is read. It does not change what a commit of this handle starts from.
        """
        return self._cache.newest(self._record)

    def history(
        self,
        limit: int | None = 100,
        *,
        operation: str | None = None,
        committer: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
    ) -> list[VersionRecord]:
        """The newest commits first, `limit` of them (None for all).

        Only those of one operation or committer, or committed from `since` to `until` (both
        included; a datetime or ISO 8601 text), where that is asked for.
        """
        most = NO_LIMIT if limit is None else min(check_count("limit", limit), NO_LIMIT)
        first = 0 if since is None else to_milliseconds(since, name="since")
        last = LIVE if until is None else to_milliseconds(until, name="until")
        with span("deltalakedb.history", table=self.name):
            found = self._store.dialect.ask(
                lambda session: find_history(
                    session,
                    self.table_id,
                    limit=most,
                    operation=operation,
                    committer=committer,
                    since=first,
                    until=last,
                )
            )
        self._store.metrics.count("rows_scanned", len(found))
        return found

    def iter_history(
        self,
        *,
        operation: str | None = None,
        committer: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
    ) -> Iterator[VersionRecord]:
        """All of these commits, newest first, in bounded memory.

        A connection is held from the first one until the iterator is exhausted, closed or
        collected.
        """
        first = 0 if since is None else to_milliseconds(since, name="since")
        last = LIVE if until is None else to_milliseconds(until, name="until")
        with span("deltalakedb.history", table=self.name), self._store.read() as session:
            yield from stream_history(
                session,
                self.table_id,
                operation=operation,
                committer=committer,
                since=first,
                until=last,
            )

    def needed_files(self, since_ms: int) -> Iterator[tuple[str, str | None]]:
        """Paths of all files that the versions since a time need, with their deletion vectors."""
        return needed_files(self._store, self._record, since_ms)

    def commit(
        self,
        actions: Iterable[AnyAction],
        *,
        operation: str = "WRITE",
        operation_parameters: Mapping[str, Any] | None = None,
        operation_metrics: Mapping[str, Any] | None = None,
        expected_version: int | None = None,
        app_txn: AppTxn | None = None,
        read: ReadSet | None = None,
        enforced: Iterable[str] = (),
        replaces_all: bool = False,
    ) -> Committed:
        """Commit actions as one version, atomically; the version it became.

        Independent commits of others are rebased upon; a real conflict raises its class of
        CommitConflictError and writes nothing. With `expected_version` the commit happens only on
        top of exactly that version. With `app_txn=(app_id, version)` it happens at most once: a
        version that is recorded already gives a result with `already_committed`. `read` says what
        was looked at to make the actions (nothing, unless said), `enforced` which kinds of
        constraint the caller has checked the data against. `replaces_all` says that every file
        which is live afterwards fits the metadata of this commit, however that has changed: the
        commit replaces all files, or goes back to an earlier version.
        """
        if (
            operation_parameters is None
            and operation_metrics is None
            and expected_version is None
            and app_txn is None
            and read is None
            and enforced == ()
            and not replaces_all
        ):
            return self.commit_change(plain_change(self._record, self._base(), actions, operation))
        gathered = OpenChange(self._record, self._base())
        gathered.add(
            actions,
            operation=operation,
            parameters=operation_parameters,
            metrics=operation_metrics,
        )
        gathered.depend(
            read=read,
            expected_version=expected_version,
            enforced=enforced,
            replaces_all=replaces_all,
        )
        if expected_version is not None and expected_version > gathered.base.version:
            # Whoever names a later version has seen it, even if not through this handle.
            self.refresh()
            gathered.base = self._base()
        if app_txn is not None:
            gathered.use_app_txn(app_txn, self._store.clock.now_ms())
        return self.commit_change(gathered.change())

    def append(
        self,
        data: Any,
        *,
        merge_schema: bool = False,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> Committed:
        """Add rows: a pyarrow Table, reader or dataset, a polars or pandas frame, a list of dicts.

        Columns are matched by name; with `merge_schema` those that the table lacks are added to it.
        NOT NULL and CHECK constraints are enforced, and files get exact statistics. With `app_txn`
        the rows are added at most once. `user_metadata` is a note in the history.
        """
        written = write_append(
            self._record,
            self._base(),
            data,
            storage_options=self._store.storage_options,
            merge_schema=merge_schema,
            target_bytes=target_bytes,
        )
        return self.commit_written(written.with_user_metadata(user_metadata), app_txn)

    def overwrite(
        self,
        data: Any,
        *,
        where: str | None = None,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        dynamic: bool = False,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> Committed:
        """Replace all rows, or with `where` those that fulfil it, which the new rows must do too.

        Files that have nothing but such rows are removed; others are written anew without them.
        With `dynamic` the partitions that the new rows are in are replaced, and no others. With
        `overwrite_schema` the table gets the columns of the new rows.
        """
        written = write_overwrite(
            self.snapshot(),
            self._base(),
            data,
            where=where,
            storage_options=self._store.storage_options,
            now=self._store.clock.now_ms(),
            merge_schema=merge_schema,
            overwrite_schema=overwrite_schema,
            dynamic=dynamic,
            target_bytes=target_bytes,
        )
        return self.commit_written(written.with_user_metadata(user_metadata), app_txn)

    def commit_written(self, written: Written, app_txn: AppTxn | None = None) -> Committed:
        """Commit what has been staged; it is deleted again where that is refused."""
        committed: Committed = written.committed_by(
            lambda: self.commit(
                written.actions,
                operation=written.operation,
                operation_parameters=written.parameters,
                operation_metrics=written.metrics,
                app_txn=app_txn,
                read=written.read,
                enforced=written.enforced,
                replaces_all=written.replaces_all,
            )
        )
        if committed.already_committed:
            written.undo()
        return committed

    def set_properties(self, properties: Mapping[str, str]) -> Committed:
        """Set table properties; the protocol is upgraded where one of them needs it."""
        return self.commit_change(
            change_table.set_properties(
                self._record, self._base(), properties, lambda: self.snapshot().domain_metadata
            )
        )

    def unset_properties(self, names: Iterable[str], *, if_exists: bool = False) -> Committed:
        """Remove table properties."""
        return self.commit_change(
            change_table.unset_properties(self._record, self._base(), names, if_exists=if_exists)
        )

    def add_columns(self, columns: Any) -> Committed:
        """Add nullable columns at the end: a pyarrow.Schema, Spark StructType or Delta JSON."""
        return self.commit_change(change_table.add_columns(self._record, self._base(), columns))

    def cluster_by(self, columns: Sequence[str]) -> Committed:
        """Cluster the table by other columns from now on, or by none: `[]`.

        Files are ordered by them when the table is optimised on Spark.
        """
        domains = self.snapshot().domain_metadata
        return self.commit_change(
            change_table.cluster_by(self._record, self._base(), columns, domains)
        )

    def upgrade_protocol(self, *features: str) -> Committed:
        """Add table features to the protocol."""
        return self.commit_change(
            change_table.upgrade_protocol(self._record, self._base(), features)
        )

    def rename(self, name: str) -> Committed:
        """Give the table another name."""
        committed = self.commit_change(change_table.rename(self._record, self._base(), name))
        with self._store.read() as session:
            record = self._store.table_by_name(session, name)
        if record is None:
            raise CorruptCatalogError(
                f"Table {name!r} is not where it was just renamed to",
                fix="Another writer renamed or dropped it; see lake.tables()",
            )
        self._record = record
        return committed

    def commit_change(self, change: Change) -> Committed:
        """Commit a change of this table, that which creates it included."""
        (outcome,) = self._committer.commit([change])
        self._state = state = outcome.state
        self._mirror.after_commit([self._record])
        if state is not None:
            after_commit(self._store, self._record, state.version, state.counts)
        return outcome.committed

    def _base(self) -> TableState:
        if self._state is None:
            self.refresh()
        state = self._state
        if state is None:
            raise CorruptCatalogError(f"Table {self.name!r} has no version")
        return state


def _state_of(table_id: str, found: OpenedTable) -> TableState:
    return TableState(
        table_id,
        found.version,
        found.committed_at,
        found.metadata,
        found.protocol,
        found.counts,
    )
