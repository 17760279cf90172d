"""The handle of a table, with all its operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.properties import CONSTRAINT_PREFIX
from deltalakedb.arguments import (
    optional_session,
    optional_texts,
    require_flag,
    require_flags,
    require_function,
    require_names,
    require_text,
    require_texts,
    require_whole,
)
from deltalakedb.errors import (
    CommitConflictError,
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
    Fix,
    InvalidArgumentError,
    Option,
)
from deltalakedb.extensions import extension
from deltalakedb.operations import alter
from deltalakedb.operations.append import append
from deltalakedb.operations.drop_features import drop_feature
from deltalakedb.operations.overwrite import overwrite
from deltalakedb.operations.replace import replacement
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.cache import SnapshotCache
from deltalakedb.snapshot.page_builder import after_commit
from deltalakedb.snapshot.resolve import check_version, resolve, to_milliseconds
from deltalakedb.snapshot.snapshot import snapshot_of
from deltalakedb.staging.fit import check_rows
from deltalakedb.storage import normalise_location, open_storage, root_locations
from deltalakedb.store.relations import LIVE
from deltalakedb.store.versions import (
    NO_LIMIT,
    HistoryFilter,
    Known,
    find_history,
    stream_history,
)
from deltalakedb.telemetry import span
from deltalakedb.transaction.commit import AnyAction, TableState, commit_of, state_at, state_of

if TYPE_CHECKING:
    from deltalakedb.actions import Action
    from deltalakedb.importing.adopt import Adopted
    from deltalakedb.mirror.mirror import Mirror
    from deltalakedb.mirror.repair import Repair
    from deltalakedb.mirror.verification import Verification
    from deltalakedb.operations.compact import Compaction, Run
    from deltalakedb.operations.export import Exported
    from deltalakedb.operations.restore import Restore
    from deltalakedb.operations.symlink_manifest import Manifests
    from deltalakedb.operations.vacuum import Vacuum
    from deltalakedb.progress import Progress
    from deltalakedb.retention.expire import Expired, OlderThan
    from deltalakedb.retention.restore import Restored
    from deltalakedb.snapshot.cache import CachedSnapshot
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord, VersionRecord
    from deltalakedb.transaction.attempt import ReadSet
    from deltalakedb.transaction.commit import AppTxn, Commit, Committed
    from deltalakedb.transaction.committer import Committer


class Table:
    """A handle on a registered table.

    It remembers the version that it last saw: when it was opened, by a snapshot of the head, or by
    its own commit. New work starts from that version. Later commits of others are checked by
    Delta's conflict rules; `refresh()` moves to the newest version.

    Any number of threads may share a handle. Each write is checked from the version that it was
    planned from, whatever other threads have seen or committed through the handle meanwhile. Only
    `commit` does not know the base of its actions: threads that share a handle pass `base`.
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
        """The folder or prefix of the data files and the log."""
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
    def allowed_roots(self) -> tuple[str, ...]:
        """Other locations that may hold files of the table: see `allow_roots`."""
        return self._record.allowed_roots

    def allow_roots(self, roots: Iterable[str]) -> tuple[str, ...]:
        """Allow files of the table below these locations too; returns all allowed locations.

        A path of the log to any other location is refused: it could name any file of this machine
        and its network. A shallow clone of this catalog may read its source.
        """
        allowed = root_locations(roots)
        with self._store.write() as session:
            self._record = self._store.allow_roots(session, self._record, allowed)
        return self._record.allowed_roots

    @property
    def version(self) -> int:
        """The version this handle last saw."""
        return self._base().version

    def state(self) -> TableState:
        """The base of the next operation of this handle."""
        return self._base()

    def actions(self, version: int) -> list[Action]:
        """The actions of a version; VersionNotFoundError if it has expired."""
        require_whole("version", version)
        with self._store.read() as session:
            actions = self._store.actions_of(session, self.table_id, version)
        if not actions:
            check_version(self._store, self._record, version)
        return actions

    def now_ms(self) -> int:
        """The time by the clock of the catalog's writers, in milliseconds."""
        return self._store.clock.now_ms()

    def refresh(self) -> int:
        """Open the newest version; return its number."""
        return self._newest().version

    def snapshot(
        self, version: int | None = None, *, timestamp: datetime | str | None = None
    ) -> Snapshot:
        """The table at its newest version, at `version`, or as it was at `timestamp`.

        A time is a datetime or ISO 8601 text (UTC, unless it names a zone), not before the first
        commit nor after the last.
        """
        opened = resolve(
            self._store, self._record, version=version, timestamp=timestamp, known=self._known
        )
        snapshot = snapshot_of(self._store, self._record, opened)
        if version is None and timestamp is None:
            self._known, self._state = opened.known, state_at(self.table_id, opened)
        return snapshot

    def cached_snapshot(self) -> CachedSnapshot:
        """The newest snapshot, with its files in memory.

        Each call reads the head; if it has moved, only the files added and removed since are read.
        It does not change the version that this handle commits on.
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
        """The commits of the table, newest first, at most `limit` (None for all).

        They can be restricted to one operation or committer, and to the time from `since` to
        `until` (both included; a datetime or ISO 8601 text).
        """
        most = NO_LIMIT if limit is None else min(require_whole("limit", limit), NO_LIMIT)
        wanted = _history_filter(operation, committer, since, until)
        with span("deltalakedb.history", table=self.name):
            records = self._store.dialect.ask(
                lambda session: find_history(session, self.table_id, wanted, limit=most)
            )
        self._store.metrics.count("rows_scanned", len(records))
        return records

    def iter_history(
        self,
        *,
        operation: str | None = None,
        committer: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
    ) -> Iterator[VersionRecord]:
        """As `history`, without a limit and in bounded memory.

        A connection is in use from the first commit until the iterator is exhausted, closed or
        collected.
        """
        wanted = _history_filter(operation, committer, since, until)

        def stream() -> Iterator[VersionRecord]:
            with span("deltalakedb.history", table=self.name), self._store.read() as session:
                yield from stream_history(session, self.table_id, wanted)

        return stream()

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
        base: Snapshot | TableState | None = None,
    ) -> Committed:
        """Commit actions as one version, atomically; return that version.

        The commit is rebased on independent commits of others. A conflict raises its class of
        CommitConflictError, and writes nothing.

        - `base` is the snapshot that the actions start from: every later commit is checked. The
          default is the version that this handle last saw, which other threads may change.
        - `expected_version` allows the commit on top of exactly that version only.
        - `app_txn=(app_id, version)` commits at most once: if that version is recorded already, the
          result has `already_committed`.
        - `read` is the read set of the actions, empty by default.
        - `enforced` names the kinds of constraint that the caller has checked the data against.
        - `replaces_all` states that all files that are live afterwards fit the metadata of this
          commit: it replaces all files, or goes back to an earlier version.
        """
        require_flag("replaces_all", replaces_all)
        state = self._started_from(base)
        if base is not None and expected_version not in (None, state.version):
            raise ConfigurationError(
                f"The commit is based on version {state.version}, and expects version "
                f"{expected_version}",
                fix="Pass one of the two",
            )
        commit = commit_of(
            self._record,
            state,
            actions,
            operation=operation,
            parameters=operation_parameters,
            metrics=operation_metrics,
            read=read,
            expected_version=expected_version,
            enforced=enforced,
            replaces_all=replaces_all,
        )
        if expected_version is not None and expected_version > state.version:
            # A caller that names a later version has seen it, even if not through this handle.
            commit = dataclasses.replace(commit, base=self._newest())
        return self.submit(commit.with_app_txn(app_txn, self._store.clock.now_ms()))

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

        Columns are matched by name; with `merge_schema`, missing columns are added to the table.
        NOT NULL and CHECK constraints are enforced, and files get exact statistics. With `app_txn`,
        the rows are added at most once. `user_metadata` is a note in the history.
        """
        commit = append(
            self._record,
            self._base(),
            data,
            storage_options=self._store.storage_options,
            now=self._store.clock.now_ms(),
            merge_schema=merge_schema,
            app_txn=app_txn,
            user_metadata=user_metadata,
            target_bytes=target_bytes,
        )
        try:
            return self.submit(commit)
        except CommitConflictError:
            # Tried again, the rows are planned for the table as it is then.
            self._state = None
            raise

    def overwrite(
        self,
        data: Any,
        *,
        where: str | None = None,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: Sequence[str] | None = None,
        dynamic: bool = False,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> Committed:
        """Replace all rows, or with `where` the rows that fulfil a condition.

        - New rows have to fulfil `where` too. Files in which all rows fulfil it are removed; others
          are rewritten without these rows.
        - `dynamic` replaces only the partitions of the new rows.
        - `overwrite_schema` replaces the columns of the table by those of the new rows, and with
          `partition_by` its partition columns too.
        """
        commit = overwrite(
            self.snapshot(),
            data,
            where=where,
            storage_options=self._store.storage_options,
            now=self._store.clock.now_ms(),
            merge_schema=merge_schema,
            overwrite_schema=overwrite_schema,
            partition_by=partition_by,
            dynamic=dynamic,
            app_txn=app_txn,
            user_metadata=user_metadata,
            target_bytes=target_bytes,
        )
        return self.submit(commit)

    def set_properties(self, properties: Mapping[str, str]) -> Committed:
        """Set table properties; the protocol is upgraded where one of them needs it.

        A CHECK constraint is the property `delta.constraints.<name>`. All rows of the table are
        checked against a new one: ConstraintViolatedError if a row does not fulfil it.
        """
        base = self._base()
        constraints = {
            name: text
            for name, text in alter.as_text(properties).items()
            if name.startswith(CONSTRAINT_PREFIX) and base.metadata.configuration.get(name) != text
        }
        now = self.snapshot() if constraints else None
        change = alter.set_properties(
            self._record,
            base if now is None else state_of(now),
            properties,
            lambda: self.snapshot().domain_metadata,
            verified=now is not None,
        )
        if now is not None:
            check_rows(now, constraints)
        return self.submit(change)

    def unset_properties(self, names: Iterable[str], *, if_exists: bool = False) -> Committed:
        """Remove table properties."""
        require_flag("if_exists", if_exists)
        return self.submit(
            alter.unset_properties(self._record, self._base(), names, if_exists=if_exists)
        )

    def add_columns(self, columns: Any) -> Committed:
        """Add nullable columns at the end: a pyarrow.Schema, Spark StructType or Delta JSON."""
        return self.submit(alter.add_columns(self._record, self._base(), columns))

    def cluster_by(self, columns: Sequence[str]) -> Committed:
        """Cluster the table by other columns from now on, or by none: `[]`.

        Files are ordered by them when the table is optimised on Spark.
        """
        names = require_names("columns", columns)
        now = self.snapshot()
        return self.submit(
            alter.cluster_by(self._record, state_of(now), names, now.domain_metadata)
        )

    def upgrade_protocol(self, *features: str) -> Committed:
        """Add table features to the protocol."""
        require_texts("features", features)
        return self.submit(alter.upgrade_protocol(self._record, self._base(), features))

    def drop_feature(self, name: str) -> Committed:
        """Drop a feature that the table does not use from its protocol.

        Reader features stay: older versions may need them.
        """
        require_text("name", name)
        now = self.snapshot()
        return self.submit(drop_feature(self._record, state_of(now), now.domain_metadata, name))

    def replace(
        self,
        schema: Any,
        *,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        operation: str = "REPLACE TABLE",
    ) -> Committed:
        """Replace the table by an empty one with these columns; arguments as in `create_table`.

        Name, location and history stay, so older versions can be read and restored.
        """
        require_text("operation", operation)
        return self.submit(
            replacement(
                self.snapshot(),
                schema,
                partition_by=partition_by,
                cluster_by=cluster_by,
                properties=properties,
                description=description,
                operation=operation,
                now=self.now_ms(),
            )
        )

    def rename(self, name: str) -> Committed:
        """Rename the table."""
        committed = self.submit(alter.rename(self._record, self._base(), name))
        with self._store.read() as session:
            record = self._store.table_by_name(session, name)
        if record is None:
            raise CorruptCatalogError(
                f"Table {name!r} is not where it was just renamed to",
                fix=f"Another writer renamed or dropped it; see {Fix('lake.tables')}",
            )
        self._record = record
        return committed

    # --- maintenance ----------------------------------------------------------------------

    def optimize(
        self,
        *,
        where: str | None = None,
        target_bytes: int | None = None,
        run: Run | None = None,
        progress: Progress | None = None,
    ) -> Compaction:
        """Rewrite small files as large ones, in the partitions for which `where` is true.

        New files have about `target_bytes` (1 GB); files of that size stay as they are. `run`
        rewrites groups of files outside of this process. `progress` is called with the number of
        groups rewritten so far, and of all.
        """
        from deltalakedb.operations.compact import compact

        commit, result = compact(
            self.snapshot(),
            self._store.clock,
            where=where,
            target_bytes=target_bytes,
            run=run,
            progress=progress,
        )
        if commit is None:
            return result
        return dataclasses.replace(result, version=int(self.submit(commit)))

    def vacuum(
        self,
        *,
        retention_hours: float | None = None,
        dry_run: bool = False,
        allow_short_retention: bool = False,
        progress: Progress | None = None,
    ) -> Vacuum:
        """Delete data files that no version of the last `retention_hours` needs.

        The default is the table's `delta.deletedFileRetentionDuration`, a week unless it is set. A
        shorter retention is refused without `allow_short_retention`: readers of older versions, and
        writers that have not committed yet, would lose their files. With `dry_run` nothing is
        deleted. `progress` is called with the number of files deleted so far, and of all; for the
        steps before, see `deltalakedb.progress`.
        """
        from deltalakedb.operations.vacuum import vacuum

        return vacuum(
            self._store,
            self.snapshot(),
            retention_hours=retention_hours,
            dry_run=dry_run,
            allow_short_retention=allow_short_retention,
            progress=progress,
        )

    def restore(
        self, *, version: int | None = None, timestamp: datetime | str | None = None
    ) -> Restore:
        """Commit a version that equals the table at `version` or `timestamp`.

        A concurrent commit is a conflict. If vacuum has deleted files of that version, the restore
        fails before anything is committed.
        """
        from deltalakedb.operations.restore import restore

        if (version is None) == (timestamp is None):
            raise ConfigurationError(
                "A restore needs a version or a timestamp, and not both",
                fix=f"Pass {Option('version', 3)}, or "
                f"{Option('timestamp', '2026-11-01T00:00:00Z')}",
            )
        now, then = self.snapshot(), self.snapshot(version, timestamp=timestamp)
        commit, result = restore(now, then, timestamp=timestamp, moment=self.now_ms())
        if commit is None:
            return result
        return dataclasses.replace(result, version=int(self.submit(commit)))

    def symlink_manifests(self) -> Manifests:
        """Write manifests of the newest version, for Presto, Athena and Hive."""
        from deltalakedb.operations.symlink_manifest import symlink_manifests

        return symlink_manifests(self.snapshot())

    def export(
        self,
        *,
        drop_features: bool = True,
        verify: bool = True,
        progress: Progress | None = None,
    ) -> Exported:
        """Remove the table from the catalog; any engine may write to it afterwards.

        - All versions are published, compared with the log (unless `verify` is False) and
          checkpointed. Nothing is deleted.
        - A last commit drops in-commit timestamps and unused features, unless `drop_features` is
          False.
        - If the table cannot be exported, a MirrorError is raised, and it stays in the catalog.
        - `lake.export` completes an interrupted export. `import_table` brings the table back, with
          all its versions.
        """
        from deltalakedb.operations.export import export_table

        require_flags(drop_features=drop_features, verify=verify)
        require_function("progress", progress)
        self._mirror.drain()
        return export_table(
            self._store,
            self._committer,
            self._record,
            drop_features=drop_features,
            verify=verify,
            progress=progress,
        )

    # --- the log against the catalog ------------------------------------------------------

    def verify(self, *, spark: Any = None, progress: Progress | None = None) -> Verification:
        """Compare the table with its `_delta_log`: digests of all commits, states, checkpoints.

        - Nothing is changed, and other processes may continue.
        - The result has the number of objects compared and every difference, by version and object;
          `ok` is true if no reader is affected.
        - `progress` is called with the number of versions compared so far, and of all; for other
          steps, see `deltalakedb.progress`.
        - With a Spark session, its executors read the log; the result is the same.
        """
        from deltalakedb.mirror.log_reader import LogReader
        from deltalakedb.mirror.verify import verify_table

        optional_session("spark", spark)
        require_function("progress", progress)
        open_reader = LogReader
        if spark is not None:
            open_reader = on_spark().log_reader(spark, self.location, self._store.storage_options)
        return verify_table(
            self._store, self._storage(), self._record, progress=progress, open_reader=open_reader
        )

    def repair(self, *, dry_run: bool = False, progress: Progress | None = None) -> Repair:
        """Verify the table, and repair every difference that can be repaired safely.

        - Missing commit files are written from the ledger, byte for byte. Those that a power cut
          has shortened on a local disk are completed.
        - Checkpoints, checksums and `_last_checkpoint` are written again.
        - dl_active_files is rebuilt.
        - Foreign commits are not touched: see `adopt`.

        With `dry_run` nothing is written. `progress` is called as by `verify`.
        """
        from deltalakedb.mirror.repair import repair_table

        require_flag("dry_run", dry_run)
        require_function("progress", progress)
        return repair_table(
            self._store, self._storage(), self._record, dry_run=dry_run, progress=progress
        )

    def adopt(self) -> Adopted:
        """Adopt the commits of other writers in `_delta_log` as versions of the catalog.

        They have to follow the newest version, all versions of the catalog have to be published,
        and each commit has to obey the rules. Otherwise AdoptionRefusedError is raised, and nothing
        is changed. The files stay as they are.
        """
        from deltalakedb.importing.adopt import adopt

        adopted, state = adopt(self._store, self._storage(), self._record)
        if state is not None:
            after_commit(self._store, [(self._record, state)])
        return adopted

    # --- old versions ---------------------------------------------------------------------

    def expire(
        self,
        *,
        older_than: OlderThan = None,
        archive: str | None = None,
        dry_run: bool = False,
        spark: Any = None,
    ) -> Expired:
        """Move old versions out of the catalog, into Parquet files at `archive`.

        - Versions since `older_than` stay: a timedelta, text such as '30 days', or a datetime; by
          default the table's `delta.logRetentionDuration`. So do unpublished versions.
        - Nothing is deleted before the archive is complete.
        - With `dry_run` nothing is written; the result lists the versions.
        - With a Spark session, its executors write the archive.
        """
        from deltalakedb.retention.expire import expire_table

        require_flag("dry_run", dry_run)
        optional_session("spark", spark)
        options = self._store.storage_options
        place = None if archive is None else open_storage(normalise_location(archive), options)
        write_parts = None
        if spark is not None and place is not None:
            write_parts = on_spark().spark_parts(spark, place.location, options)
        return expire_table(
            self._store,
            self._record,
            older_than=older_than,
            archive=place,
            dry_run=dry_run,
            write_parts=write_parts,
        )

    def restore_expired(self, archive: str) -> Restored:
        """Restore expired versions from `archive`, the location that `expire` wrote to.

        All versions before the oldest one of the table are restored, or only those of one run if
        `archive` is its folder. Archives are not changed.
        """
        from deltalakedb.retention.restore import restore_expired

        place = open_storage(normalise_location(archive), self._store.storage_options)
        return restore_expired(self._store, self._record, place)

    # --- committing -----------------------------------------------------------------------

    def submit(self, commit: Commit) -> Committed:
        """Commit the result of an operation, a commit that creates the table included."""
        try:
            (committed,) = self._committer.commit([commit])
        except DeltaLakeDbError:
            raise
        except BaseException:
            # It may have happened: new work looks at the newest version.
            self._state = None
            raise
        self._state = committed.state
        return committed

    def _storage(self) -> Storage:
        return open_storage(self.location, self._store.storage_options)

    def _base(self) -> TableState:
        """The state at the version this handle last saw; read once for each operation."""
        state = self._state
        return self._newest() if state is None else state

    def _newest(self) -> TableState:
        opened = resolve(self._store, self._record, known=self._known)
        state = state_at(self.table_id, opened)
        self._known, self._state = opened.known, state
        return state

    def _started_from(self, base: Snapshot | TableState | None) -> TableState:
        if base is None:
            return self._base()
        state: object = state_of(base) if isinstance(base, Snapshot) else base
        if not isinstance(state, TableState) or state.table_id != self.table_id:
            raise InvalidArgumentError(
                f"base={repr(base)[:200]} is no snapshot of table {self.name!r}",
                fix="Pass a result of table.snapshot() of the same table",
            )
        return state


def _history_filter(
    operation: str | None,
    committer: str | None,
    since: datetime | str | None,
    until: datetime | str | None,
) -> HistoryFilter:
    optional_texts(operation=operation, committer=committer)
    first = 0 if since is None else to_milliseconds(since, name="since")
    last = LIVE if until is None else to_milliseconds(until, name="until")
    return HistoryFilter(operation, committer, first, last)


def on_spark() -> Any:
    """The functions of `deltalakedb.spark`: a room above this one, loaded when it is called."""
    return extension("pyspark")
