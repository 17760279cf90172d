"""A catalog of tables as a user holds it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from deltalakedb.arguments import (
    optional_kind,
    optional_session,
    optional_text,
    optional_whole,
    refuse,
    require_flag,
    require_flags,
    require_function,
    require_kind,
    require_session,
    require_text,
    require_texts,
    require_whole,
)
from deltalakedb.errors import (
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
    Fix,
    MirrorError,
    Option,
    TableExistsError,
    TableExportedError,
)
from deltalakedb.extensions import extension
from deltalakedb.forking import ProcessLock
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.operations import alter
from deltalakedb.operations.append import check_write, write_creation
from deltalakedb.snapshot import Snapshot, open_snapshot
from deltalakedb.snapshot.page_builder import after_commit, during_import
from deltalakedb.staging.sources import source_of
from deltalakedb.storage import (
    Storage,
    normalise_location,
    open_storage,
    root_locations,
    table_location,
)
from deltalakedb.store import Store
from deltalakedb.store.mirror import backlog_size
from deltalakedb.store.table_lookup import (
    as_location,
    find_table,
    newest_export,
    not_registered,
    table_exists,
)
from deltalakedb.table import Table
from deltalakedb.transaction.committer import Committer
from deltalakedb.transaction.identity import release, user_name
from deltalakedb.transaction.retry import RetryPolicy
from deltalakedb.transaction.transaction import Transaction

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from deltalakedb.clock import Clock
    from deltalakedb.importing.adopt import Adopted
    from deltalakedb.mirror.endpoint import MetricsEndpoint
    from deltalakedb.mirror.export import Exported
    from deltalakedb.mirror.repair import Repair
    from deltalakedb.mirror.verification import Verification
    from deltalakedb.progress import Progress
    from deltalakedb.retention.expire import Expired, OlderThan
    from deltalakedb.retention.restore import Restored
    from deltalakedb.store import TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.change import AppTxn, Change

_opened: Final[weakref.WeakSet[Lake]] = weakref.WeakSet()
_opening: Final = ProcessLock()


class Lake:
    """Tables whose log lives in one SQL database. Close it, or use it as a context manager."""

    def __init__(
        self,
        store: Store,
        *,
        committer: str | None = None,
        retry: RetryPolicy | None = None,
        mirror: str = "inline",
        on_drift: str = "refuse",
    ) -> None:
        self.closed = False
        self._closing = ExitStack()
        self.store = store
        self.metrics = store.metrics
        self.mirror = Mirror(store, mode=mirror, on_drift=on_drift)
        self._committer = Committer(
            store,
            policy=retry,
            metrics=self.metrics,
            committer=committer if committer is not None else user_name(),
            engine_info=release(),
            on_drift=on_drift,
        )

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        committer: str | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        storage_options: Mapping[str, str] | None = None,
        mirror: str = "inline",
        create: bool = True,
        on_drift: str = "refuse",
    ) -> Self:
        """Open a catalog. Where there is none it is made, or without `create` refused.

        With `mirror="inline"` each commit is published to `_delta_log` before it returns, if the
        object store lets it; with "worker" that is left to `deltalakedb mirror run`. A table whose
        `_delta_log` has commits that the catalog does not have takes none, unless `on_drift` is
        "allow".
        """
        require_flag("create", create)
        if committer is not None:
            require_text("committer", committer)
        optional_kind("retry", retry, RetryPolicy, "a RetryPolicy")
        if clock is not None and not hasattr(clock, "now_ms"):
            refuse("clock", clock, "a clock that has now_ms()")
        store = Store.open(url, clock=clock, storage_options=storage_options)
        try:
            store.migrator.ensure(create=create)
            made = cls(store, committer=committer, retry=retry, mirror=mirror, on_drift=on_drift)
        except BaseException:
            store.abandon()
            raise
        with _opening.lock:
            _opened.add(made)
        return made

    def __repr__(self) -> str:
        return f"Lake({self.store.dialect.url.display!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish the checkpoints that were begun, and release every connection."""
        self.closed = True
        self._closing.close()
        self.mirror.close()
        self.store.close()

    def serve_metrics(self, *, port: int, host: str = "127.0.0.1") -> MetricsEndpoint:
        """Serve the metrics of this process to Prometheus, until the lake or the answer is closed.

        Conflicts and commit latencies are known to the process that commits, and nowhere else.
        Port 0 takes any that is free; `address` of the answer is where to ask.
        """
        from deltalakedb.mirror.endpoint import MetricsEndpoint

        require_whole("port", port)
        require_text("host", host)
        return self._closing.enter_context(MetricsEndpoint(self.metrics, port=port, host=host))

    # --- tables ---------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        location: str,
        schema: Any,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Table:
        """Create a table: version 0, with its protocol and metadata.

        `schema` is a pyarrow.Schema, a Spark StructType or Delta schema JSON. A folder that has a
        `_delta_log` already is refused: `import_table` is for that. With `cluster_by` rows that are
        alike in these columns will share files, once the table is optimised on Spark.
        """
        change = self._creation(
            name,
            location,
            schema,
            partition_by=partition_by,
            cluster_by=cluster_by,
            properties=properties,
            description=description,
        )
        return self._created(change)

    def create_table_as(
        self,
        name: str,
        data: Any,
        *,
        location: str,
        schema: Any = None,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        where: str | None = None,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> Table:
        """Create a table that has rows from its version 0 on: there are both, or neither.

        `data` is what `Table.append` takes; its columns are those of the table, unless `schema`
        says more of them. With `where` rows that do not fulfil it are refused.
        """
        check_write(app_txn=app_txn, user_metadata=user_metadata, target_bytes=target_bytes)
        source = source_of(data)
        columns = source.schema if schema is None else schema
        change, written = write_creation(
            self._creation(
                name,
                location,
                columns,
                partition_by=partition_by,
                cluster_by=cluster_by,
                properties=properties,
            ),
            source,
            storage_options=self.storage_options,
            where=where,
            app_txn=app_txn,
            now=self.store.clock.now_ms(),
            user_metadata=user_metadata,
            target_bytes=target_bytes,
        )
        table: Table = written.committed_by(lambda: self._created(change))
        return table

    def _creation(self, name: str, location: str, schema: Any, **how: Any) -> Change:
        place = table_location(location)
        change = alter.create(name, place, schema, **how, now=self.store.clock.now_ms())
        self._refuse_delta_log(name, place)
        return change

    def _refuse_delta_log(self, name: str, place: str) -> None:
        """Refuse a folder that holds a Delta table; one of ours is called by its name."""
        try:
            alter.refuse_delta_log(place)
        except TableExistsError:
            with self.store.read() as session:
                known = self.store.table_by_name(session, name)
                known = known or self.store.table_by_location(session, place)
            if known is not None:
                raise table_exists(name, place, known.name, known.location) from None
            raise

    def clone_table(
        self,
        source: str,
        location: str,
        name: str | None = None,
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Make a shallow clone: a new table of the files of another one, now or at a version.

        No data is read or written. `properties` are set beside those of the source. With `replace`
        a table that is at the location already is taken, if it is empty. A vacuum of the source
        keeps what clones in the same catalog need.
        """
        from deltalakedb.importing.import_table import default_name
        from deltalakedb.operations.clone import clone_change, replacing_change, roots_of

        require_flag("replace", replace)
        place = table_location(location)
        if name is not None:
            alter.check_name(name)
        snapshot = self.table(source).snapshot(version, timestamp=timestamp)
        if replace:
            with self.store.read() as session:
                known = self.store.table_by_location(session, place)
            if known is not None:
                if name not in (None, known.name):
                    raise table_exists(name, place, known.name, known.location)
                there = Table(self.store, self._committer, self.mirror, known)
                there.allow_roots(roots_of(snapshot))
                there.commit_change(
                    replacing_change(snapshot, there.record, there.state(), properties=properties)
                )
                return there
        name = default_name(place) if name is None else name
        now = self.store.clock.now_ms()
        change = clone_change(snapshot, name=name, location=place, properties=properties, now=now)
        self._refuse_delta_log(name, place)
        return self._created(change)

    def convert_table(
        self,
        location: str,
        name: str | None = None,
        *,
        partition_schema: Any = None,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        zone: tzinfo = UTC,
        progress: Progress | None = None,
    ) -> Table:
        """Make a table of the Parquet files at a location, where they lie.

        Only footers are read, and no data is written. Names that begin with a dot or underscore
        are passed over. Where directories are named by partition values, `partition_schema` has
        those columns with their types (whatever `create_table` takes as a schema); times in these
        names are in `zone`. A folder with a `_delta_log` is refused: `import_table` is for that.
        """
        from deltalakedb.importing.import_table import default_name
        from deltalakedb.operations.convert import convert_change

        require_kind("zone", zone, tzinfo, "a time zone")
        require_function("progress", progress)
        optional_text("description", description)
        place = table_location(location)
        if name is not None:
            alter.check_name(name)
        change = convert_change(
            self.open_storage(place),
            place,
            name=default_name(place) if name is None else name,
            storage_options=self.storage_options,
            partition_schema=partition_schema,
            properties=properties,
            description=description,
            zone=zone,
            progress=progress,
            now=self.store.clock.now_ms(),
        )
        return self._created(change)

    def _created(self, change: Change) -> Table:
        table = Table(self.store, self._committer, self.mirror, change.table)
        table.commit_change(change)
        return table

    def import_table(
        self,
        location: str,
        name: str | None = None,
        *,
        progress: Progress | None = None,
        stage_from: int | None = None,
        spark: Any = None,
        allowed_roots: Sequence[str] = (),
        trust_commits: bool = False,
    ) -> Table:
        """Take over an existing Delta table with its history; nothing is written at `location`.

        All or nothing, and checked against a replay of the log before it counts. Without `name`
        the table is called like the last part of its location. `progress` is called now and then
        with the number of versions read so far, and of all.

        A log of `stage_from` commits or more (10,000 by default) is written in stages that nobody
        sees. If it was killed, the same call goes on after the last of them, and `discard_import`
        forgets them. With `spark`, a Spark session, its executors read and parse the commits.

        A log that names files outside the table, as that of a shallow clone does, is refused unless
        they lie below one of `allowed_roots`, which the catalog keeps with the table. One whose
        checkpoint contradicts its commits is refused unless it shall `trust_commits`.
        """
        from deltalakedb.importing.import_table import STAGE_FROM, default_name, import_table

        require_function("progress", progress)
        optional_session("spark", spark)
        optional_whole("stage_from", stage_from)
        require_flag("trust_commits", trust_commits)
        if name is not None:
            alter.check_name(name)
        place = table_location(location)
        parser = None
        if spark is not None:
            parser = _on_spark().spark_parser(spark, place, self.storage_options)
        record = import_table(
            self.store,
            self.open_storage(place),
            name=default_name(place) if name is None else name,
            location=place,
            progress=progress,
            build_pages=partial(during_import, self.store),
            stage_from=STAGE_FROM if stage_from is None else stage_from,
            parser=parser,
            allowed_roots=root_locations(allowed_roots),
            trust_commits=trust_commits,
        )
        return Table(self.store, self._committer, self.mirror, record)

    def discard_import(self, location: str) -> bool:
        """Forget what there is of an import that did not come to its end; False if nothing is."""
        from deltalakedb.importing.stages import discard

        return discard(self.store, normalise_location(location))

    def open_storage(self, location: str) -> Storage:
        """The objects below a location, with the storage options of this lake."""
        return open_storage(normalise_location(location), self.storage_options)

    @property
    def storage_options(self) -> dict[str, str]:
        """The settings of the object stores that tables lie in, as given to `connect`."""
        return self.store.storage_options

    def table(self, name: str) -> Table:
        """The table of that name, or at that location."""
        with self.store.read() as session:
            return Table(self.store, self._committer, self.mirror, self._find(session, name))

    def tables(self) -> list[Table]:
        """Every table, by name."""
        with self.store.read() as session:
            records = self.store.tables(session)
        return [Table(self.store, self._committer, self.mirror, record) for record in records]

    def drop_table(self, name: str, *, force: bool = False) -> None:
        """Unregister a table: forget its log here. Its files and `_delta_log` stay.

        Versions that are not published yet exist nowhere else: then it is refused, unless it is
        `force`d.
        """
        require_flag("force", force)
        with self.store.write() as session:
            record = self._find(session, name)
            self.store.lock_head(session, record.table_id)
            waiting = 0 if force else backlog_size(session, record.table_id)
            if waiting:
                raise MirrorError(
                    f"Table {name!r} cannot be dropped: {waiting} of its versions are not in its "
                    "_delta_log yet",
                    why="They would be lost",
                    fix=f"Publish them with {Fix('lake.mirror.run_once')} "
                    f"({Fix('lake.mirror.status')} shows the reason if that fails), or pass "
                    f"{Option('force', value=True)} to lose them",
                )
            self.store.forget_table(session, record.table_id)

    def export(
        self,
        name: str,
        *,
        drop_features: bool = True,
        verify: bool = True,
        progress: Progress | None = None,
    ) -> Exported:
        """Let a table leave the catalog: an ordinary Delta table that any engine may write to.

        Everything is published, compared with the log (unless `verify` is False) and checkpointed,
        then the table is unregistered; nothing of it is deleted. Features that it does not need,
        in-commit timestamps first, are dropped in a last commit, unless `drop_features` is False.
        What stands in the way is a MirrorError, and the table stays. An export that was broken off
        is completed by calling this again. `import_table` takes it back, with all its versions.
        """
        from deltalakedb.mirror.export import exported
        from deltalakedb.operations.export import export_table

        require_flags(drop_features=drop_features, verify=verify)
        require_function("progress", progress)
        with self.store.read() as session:
            try:
                record = self._find(session, name)
            except TableExportedError:
                done = newest_export(session, name, as_location(name))
                if done is None:
                    raise
                return exported(done)
        self.mirror.drain()
        return export_table(
            self.store,
            self._committer,
            record,
            drop_features=drop_features,
            verify=verify,
            progress=progress,
        )

    # --- the log against the catalog ------------------------------------------------------

    def verify(
        self,
        name: str,
        *,
        spark: Any = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Compare a table with its `_delta_log`: digests of all commits, states, checkpoints.

        Nothing is changed, and other processes may go on. The result says what was compared and
        what differs, by version and object; `ok` is the short answer. `progress` is called with
        the number of versions looked at so far, and of all; one with a method `phase` hears of
        everything else that is compared, too (`deltalakedb.progress`). With a Spark session the
        log of a huge table is read by its executors; what is found is the same.
        """
        from deltalakedb.mirror.log_reader import LogReader
        from deltalakedb.mirror.verify import verify_table

        optional_session("spark", spark)
        require_function("progress", progress)
        record = self._record(name)
        storage = self.open_storage(record.location)
        open_reader = LogReader
        if spark is not None:
            open_reader = _on_spark().log_reader(spark, record.location, self.storage_options)
        return verify_table(self.store, storage, record, progress=progress, open_reader=open_reader)

    def repair(
        self, name: str, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Repair:
        """Verify a table, and repair what can be repaired safely; the rest is told.

        Commit files that vanished are written from the ledger, byte for byte; those that a power
        cut has shortened on a local disk are completed; checkpoints, checksums and
        `_last_checkpoint` are made anew, and dl_active_files is rebuilt. Foreign commits are not
        touched: see `adopt`. With `dry_run` nothing is written. `progress` is told as by `verify`.
        """
        from deltalakedb.mirror.repair import repair_table

        require_flag("dry_run", dry_run)
        require_function("progress", progress)
        record = self._record(name)
        storage = self.open_storage(record.location)
        return repair_table(self.store, storage, record, dry_run=dry_run, progress=progress)

    def adopt(self, name: str) -> Adopted:
        """Make commits that somebody else wrote to `_delta_log` versions of the catalog.

        They are adopted if they apply cleanly: they follow on the newest version, nothing of ours
        waits to be published, and each keeps the rules. Otherwise nothing is changed, and
        AdoptionRefusedError says why and what to do. The files stay as they are.
        """
        from deltalakedb.importing.adopt import adopt

        record = self._record(name)
        adopted, state = adopt(self.store, self.open_storage(record.location), record)
        if state is not None:
            after_commit(self.store, record, state.version, state.counts)
        return adopted

    # --- old versions ---------------------------------------------------------------------

    def expire(
        self,
        name: str,
        *,
        older_than: OlderThan = None,
        archive: str | None = None,
        dry_run: bool = False,
        spark: Any = None,
    ) -> Expired:
        """Move old versions of a table out of the catalog, into Parquet files at `archive`.

        Everything that can be asked for since `older_than` ago stays: a timedelta, text such as
        '30 days', or a datetime; by default the table's `delta.logRetentionDuration`. So do
        versions that are not published. Nothing is deleted before the archive is complete.
        With `dry_run` nothing is written: the result says what would go. With `spark`, a Spark
        session, its executors write the archive.
        """
        from deltalakedb.retention.expire import expire_table

        require_flag("dry_run", dry_run)
        optional_session("spark", spark)
        place = None if archive is None else self.open_storage(archive)
        write_parts = None
        if spark is not None and place is not None:
            write_parts = _on_spark().spark_parts(spark, place.location, self.storage_options)
        return expire_table(
            self.store,
            self._record(name),
            older_than=older_than,
            archive=place,
            dry_run=dry_run,
            write_parts=write_parts,
        )

    def restore_expired(self, name: str, archive: str) -> Restored:
        """Bring expired versions back from `archive`: the location given to `expire`.

        All that follow on the oldest version of the table come back; with the folder of one run
        only that one. Archives are read, not changed.
        """
        from deltalakedb.retention.restore import restore_expired

        return restore_expired(self.store, self._record(name), self.open_storage(archive))

    def _record(self, name: str) -> TableRecord:
        with self.store.read() as session:
            return self._find(session, name)

    def _find(self, session: Session, name: object) -> TableRecord:
        return find_table(self.store, session, name)

    # --- many tables ----------------------------------------------------------------------

    def sql(self, spark: Any, query: str) -> Any:
        """Run SQL on Spark over tables of this lake, all of them at one instant; a DataFrame.

        WHERE clauses choose the files in the catalog. Views and tables of the session can be named
        too.
        """
        require_session("spark", spark)
        require_text("query", query)
        return _on_spark().sql(spark, self, query)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Change any number of tables, all or nothing, when the block ends without an error.

        It sees all of them at one instant; what it reads of them must not be changed meanwhile.
        """
        transaction = Transaction(self.store, self._committer, self.mirror, self._find)
        try:
            yield transaction
        except BaseException:
            transaction.discard()
            raise
        try:
            transaction.commit()
        except CommitOutcomeUnknownError:
            raise
        except DeltaLakeDbError:
            # Any other interruption may come after the commit, whose files these are then.
            transaction.discard()
            raise

    def snapshot(self, names: Iterable[str]) -> AbstractContextManager[dict[str, Snapshot]]:
        """Tables as they were at one instant, by name."""
        return self._at_one_instant(
            require_texts("names", [names] if isinstance(names, str) else names)
        )

    @contextmanager
    def _at_one_instant(self, wanted: list[str]) -> Iterator[dict[str, Snapshot]]:
        with self.store.read() as session:
            records = {name: self._find(session, name) for name in wanted}
            heads = self.store.heads(session, {one.table_id for one in records.values()})
            at: dict[str, Snapshot] = {}
            for name, record in records.items():
                if record.table_id not in heads:
                    raise not_registered(session, record)
                at[name] = open_snapshot(self.store, session, record, heads[record.table_id])
        yield at


def open_lakes() -> list[Lake]:
    """The lakes that this process has opened and not closed."""
    with _opening.lock:
        return [lake for lake in _opened if not lake.closed]


def _on_spark() -> Any:
    """The functions of `deltalakedb.spark`: a room above this one, loaded when it is called."""
    return extension("pyspark")
