"""The handle of a catalog, with all its operations."""

from __future__ import annotations

import getpass
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, tzinfo
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from deltalakedb.arguments import (
    optional_kind,
    optional_session,
    optional_text,
    optional_whole,
    refuse,
    require_bytes,
    require_flag,
    require_function,
    require_kind,
    require_session,
    require_text,
    require_texts,
    require_whole,
)
from deltalakedb.errors import (
    ConfigurationError,
    Fix,
    MirrorError,
    Option,
    TableExistsError,
    TableExportedError,
    TableNotFoundError,
)
from deltalakedb.forking import ProcessLock
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.operations import alter
from deltalakedb.operations.append import check_write, create_as
from deltalakedb.snapshot import Snapshot, open_snapshot
from deltalakedb.snapshot.page_builder import after_commit, during_import
from deltalakedb.staging.stage import source_of
from deltalakedb.storage import (
    Storage,
    name_of,
    normalise_location,
    open_storage,
    place_of,
    root_locations,
    table_location,
    warehouse_location,
)
from deltalakedb.store import Store
from deltalakedb.store.mirror import backlog_size
from deltalakedb.store.settings import read_warehouse, require_warehouse, write_warehouse
from deltalakedb.store.table_lookup import (
    as_location,
    find_table,
    newest_export,
    not_registered,
    table_exists,
)
from deltalakedb.table import Table, on_spark
from deltalakedb.transaction.committer import Committer
from deltalakedb.transaction.retry import RetryPolicy
from deltalakedb.transaction.transaction import Transaction
from deltalakedb.transaction_table import TransactionTable

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from deltalakedb.asgi import MetricsEndpoint
    from deltalakedb.clock import Clock
    from deltalakedb.importing.adopt import Adopted
    from deltalakedb.importing.proposals import Proposals
    from deltalakedb.mirror.repair import Repair
    from deltalakedb.mirror.verification import Verification
    from deltalakedb.operations.export import Exported
    from deltalakedb.progress import Progress
    from deltalakedb.retention.expire import Expired, OlderThan
    from deltalakedb.retention.restore import Restored
    from deltalakedb.store import TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.transaction.commit import AppTxn, Commit
    from deltalakedb.transaction.ratify import Ratified

T = TypeVar("T")
_opened: Final[weakref.WeakSet[Lake]] = weakref.WeakSet()
_opening: Final = ProcessLock()


class Lake:
    """A connection to a catalog. Close it, or use it as a context manager."""

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
            committer=committer if committer is not None else _user_name(),
            engine_info=_release(),
            on_drift=on_drift,
            guard=self.mirror.committing,
            subscribers=(self.mirror.after_commit, partial(after_commit, store)),
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
        warehouse: str | None = None,
    ) -> Self:
        """Open a catalog; a missing one is created, or refused if `create` is False.

        - `mirror="inline"` publishes each commit to `_delta_log` before it returns, if the object
          store is available. "worker" leaves that to `deltalakedb mirror run`.
        - A table whose `_delta_log` has commits that the catalog does not have accepts no commit,
          unless `on_drift` is "allow".
        - Tables without a location lie below the `warehouse`, which the catalog keeps.
        """
        require_flag("create", create)
        place = None if warehouse is None else warehouse_location(warehouse)
        if committer is not None:
            require_text("committer", committer)
        optional_kind("retry", retry, RetryPolicy, "a RetryPolicy")
        if clock is not None and not hasattr(clock, "now_ms"):
            refuse("clock", clock, "a clock that has now_ms()")
        store = Store.open(url, clock=clock, storage_options=storage_options)
        try:
            store.migrator.ensure(create=create)
            if place is not None:
                require_warehouse(store, place)
            lake = cls(store, committer=committer, retry=retry, mirror=mirror, on_drift=on_drift)
        except BaseException:
            store.abandon()
            raise
        with _opening.lock:
            _opened.add(lake)
        return lake

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
        """Finish the checkpoints that are due, and release every connection."""
        self.closed = True
        self._closing.close()
        self.mirror.close()
        self.store.close()

    def serve_metrics(self, *, port: int, host: str = "127.0.0.1") -> MetricsEndpoint:
        """Serve the metrics of this process to Prometheus, until the lake or the result is closed.

        Only the process that commits knows its conflicts and commit latencies. Port 0 chooses a
        free port; `address` of the result is the URL.
        """
        from deltalakedb.asgi import MetricsEndpoint

        require_whole("port", port)
        require_text("host", host)
        return self.until_closed(MetricsEndpoint(self.metrics, port=port, host=host))

    def until_closed(self, held: AbstractContextManager[T]) -> T:
        """Enter a context, and leave it when the lake is closed."""
        return self._closing.enter_context(held)

    # --- the warehouse --------------------------------------------------------------------

    @property
    def warehouse(self) -> str | None:
        """The location below which tables without one lie; None if the catalog has none.

        `sales.orders` lies at `<warehouse>/sales.db/orders`, and `orders` at `<warehouse>/orders`.
        """
        with self.store.read() as session:
            return read_warehouse(session)

    def set_warehouse(self, location: str | None) -> None:
        """Set another warehouse for new tables, or none. Existing tables stay where they are."""
        write_warehouse(self.store, None if location is None else warehouse_location(location))

    def _place(self, name: str | None, location: str | None) -> str:
        """The location of a new table: by default its place in the warehouse."""
        if location is not None:
            return table_location(location)
        alter.check_name(name)
        warehouse = self.warehouse
        if warehouse is None:
            raise ConfigurationError(
                f"Table {name!r} has no location",
                why="The catalog has no warehouse, in which tables without a location lie",
                fix="Pass a location, or set a warehouse once, for example: "
                f"{Fix('lake.set_warehouse', 's3://bucket/lake')}",
            )
        return place_of(warehouse, str(name))

    def _name(self, name: str | None, place: str) -> str:
        """The name of a new table: by default that of its place in the warehouse, or its folder."""
        from deltalakedb.importing.import_table import default_name

        if name is not None:
            return name
        warehouse = self.warehouse
        return (warehouse and name_of(warehouse, place)) or default_name(place)

    # --- tables ---------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        location: str | None = None,
        schema: Any,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table: version 0, with its protocol and metadata.

        - `schema` is a pyarrow.Schema, a Spark StructType or Delta schema JSON.
        - Without a `location` the table lies in the `warehouse`. A folder with a `_delta_log` is
          refused: import it with `import_table`.
        - With `cluster_by`, Spark's OPTIMIZE writes rows with similar values in these columns to
          the same files.
        - With `if_not_exists`, an existing table of that name is returned. It is refused if its
          columns, partitioning or clustering are others, or the location, a property or the
          description that are passed.
        """
        parts = {
            "partition_by": partition_by,
            "cluster_by": cluster_by,
            "properties": properties,
            "description": description,
        }
        if require_flag("if_not_exists", if_not_exists):
            table = self._existing(name, location, schema, parts)
            if table is not None:
                return table
        try:
            return self._created(self._creation(name, location, schema, **parts))
        except TableExistsError:
            # Another writer may have created it meanwhile.
            table = self._existing(name, location, schema, parts) if if_not_exists else None
            if table is None:
                raise
            return table

    def _existing(
        self, name: str, location: str | None, schema: Any, parts: Mapping[str, Any]
    ) -> Table | None:
        """The table of that name, if it is the one that a call would create; None without one."""
        from deltalakedb.operations.if_not_exists import refuse_other_table

        place = None if location is None else table_location(location)
        alter.check_name(name)
        with self.store.read() as session:
            record = self.store.table_by_name(session, name)
        if record is None:
            return None
        now = self.store.clock.now_ms()
        asked = alter.create(name, record.location, schema, **parts, now=now)
        table = Table(self.store, self._committer, self.mirror, record)
        refuse_other_table(
            table.snapshot(),
            asked,
            location=place,
            properties=parts["properties"],
            description=parts["description"],
        )
        return table

    def create_table_as(
        self,
        name: str,
        data: Any,
        *,
        location: str | None = None,
        schema: Any = None,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        where: str | None = None,
        app_txn: AppTxn | None = None,
        user_metadata: str | None = None,
        target_bytes: int | None = None,
    ) -> Table:
        """Create a table with rows in one commit, version 0.

        `data` is any input of `Table.append`. The table has its columns, or those of `schema`.
        Without a `location` it lies in the `warehouse`. With `where`, rows that do not fulfil the
        condition are refused.
        """
        check_write(app_txn=app_txn, user_metadata=user_metadata, target_bytes=target_bytes)
        source = source_of(data)
        columns = source.schema if schema is None else schema
        commit = create_as(
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
        return self._created(commit)

    def _creation(self, name: str, location: str | None, schema: Any, **how: Any) -> Commit:
        place = self._place(name, location)
        commit = alter.create(name, place, schema, **how, now=self.store.clock.now_ms())
        self._refuse_delta_log(name, place)
        return commit

    def _refuse_delta_log(self, name: str, place: str) -> None:
        """Refuse a folder with a Delta table; the error names one of this catalog."""
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
        location: str | None = None,
        name: str | None = None,
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Create a shallow clone: a new table with the files of another one, now or at a version.

        No data is read or written. It needs a location or a name: without a location it lies in
        the `warehouse`. `properties` are added to those of the source. With `replace`, an empty
        table at the location becomes the clone. A vacuum of the source keeps the files that clones
        in the same catalog need.
        """
        from deltalakedb.operations.clone import clone, clone_into, roots_of

        require_flag("replace", replace)
        if name is not None:
            alter.check_name(name)
        place = self._place(name, location)
        snapshot = self.table(source).snapshot(version, timestamp=timestamp)
        if replace:
            with self.store.read() as session:
                known = self.store.table_by_location(session, place)
            if known is not None:
                if name not in (None, known.name):
                    raise table_exists(name, place, known.name, known.location)
                there = Table(self.store, self._committer, self.mirror, known)
                there.allow_roots(roots_of(snapshot))
                there.submit(
                    clone_into(snapshot, there.record, there.state(), properties=properties)
                )
                return there
        name = self._name(name, place)
        now = self.store.clock.now_ms()
        commit = clone(snapshot, name=name, location=place, properties=properties, now=now)
        self._refuse_delta_log(name, place)
        return self._created(commit)

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
        """Turn the Parquet files at a location into a table, in place.

        Only footers are read, and no data is written. Names that begin with a dot or an underscore
        are ignored. If directories are named after partition values, `partition_schema` has these
        columns with their types, as a schema of `create_table`; times in the names are in `zone`.
        A folder with a `_delta_log` is refused: import it with `import_table`.
        """
        from deltalakedb.operations.convert import convert

        require_kind("zone", zone, tzinfo, "a time zone")
        require_function("progress", progress)
        optional_text("description", description)
        place = table_location(location)
        if name is not None:
            alter.check_name(name)
        commit = convert(
            self.open_storage(place),
            place,
            name=self._name(name, place),
            storage_options=self.storage_options,
            partition_schema=partition_schema,
            properties=properties,
            description=description,
            zone=zone,
            progress=progress,
            now=self.store.clock.now_ms(),
        )
        return self._created(commit)

    def _created(self, commit: Commit) -> Table:
        table = Table(self.store, self._committer, self.mirror, commit.table)
        table.submit(commit)
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
        """Import an existing Delta table with its history; nothing is written at `location`.

        - The table is imported as a whole or not at all, and compared with a replay of its log.
        - The default `name` is the last part of the location, or in the `warehouse` the name whose
          place it is.
        - `progress` is called with the number of versions read so far, and of all.
        - A log of `stage_from` commits or more (10,000 by default) is written in stages that no
          reader sees. After an interruption, the same call continues with the next stage;
          `discard_import` deletes them.
        - With a Spark session in `spark`, its executors read and parse the commits.
        - A log that names files outside the table, such as that of a shallow clone, is refused
          unless they are below one of `allowed_roots`, which the catalog keeps with the table.
        - A log whose checkpoint contradicts its commits is refused unless `trust_commits` is set.
        """
        from deltalakedb.importing.import_table import STAGE_FROM, import_table

        require_function("progress", progress)
        optional_session("spark", spark)
        optional_whole("stage_from", stage_from)
        require_flag("trust_commits", trust_commits)
        if name is not None:
            alter.check_name(name)
        place = table_location(location)
        parser = None
        if spark is not None:
            parser = on_spark().spark_parser(spark, place, self.storage_options)
        record = import_table(
            self.store,
            self.open_storage(place),
            name=self._name(name, place),
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
        """Delete the stages of an interrupted import; False if there are none."""
        from deltalakedb.importing.stages import discard

        return discard(self.store, normalise_location(location))

    def open_storage(self, location: str) -> Storage:
        """Open the object store at a location, with the storage options of this lake."""
        return open_storage(normalise_location(location), self.storage_options)

    @property
    def storage_options(self) -> dict[str, str]:
        """The settings of the object stores of the tables, as passed to `connect`."""
        return self.store.storage_options

    def table(self, name: str) -> Table:
        """The table of that name, or at that location."""
        with self.store.read() as session:
            return Table(self.store, self._committer, self.mirror, self._find(session, name))

    def __getitem__(self, name: str) -> Table:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        with self.store.read() as session:
            try:
                self._find(session, name)
            except TableNotFoundError:
                return False
        return True

    def tables(self) -> list[Table]:
        """Every table, by name."""
        with self.store.read() as session:
            records = self.store.tables(session)
        return [Table(self.store, self._committer, self.mirror, record) for record in records]

    def drop_table(self, name: str, *, force: bool = False) -> None:
        """Remove a table from the catalog. Its files and its `_delta_log` stay.

        A table with unpublished versions, which exist nowhere else, is refused without `force`.
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
        """Unregister a table, and leave an ordinary Delta table; see `Table.export`.

        For a table that was exported before, the result is that of its export.
        """
        from deltalakedb.operations.export import exported

        try:
            table = self.table(name)
        except TableExportedError:
            with self.store.read() as session:
                done = newest_export(session, name, as_location(name))
            if done is None:
                raise
            return exported(done)
        return table.export(drop_features=drop_features, verify=verify, progress=progress)

    def verify(
        self, name: str, *, spark: Any = None, progress: Progress | None = None
    ) -> Verification:
        """Compare a table with its `_delta_log`; see `Table.verify`."""
        return self.table(name).verify(spark=spark, progress=progress)

    def repair(
        self, name: str, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Repair:
        """Verify a table, and repair it as far as that is safe; see `Table.repair`."""
        return self.table(name).repair(dry_run=dry_run, progress=progress)

    def adopt(self, name: str) -> Adopted:
        """Make commits of other writers in `_delta_log` versions; see `Table.adopt`."""
        return self.table(name).adopt()

    def expire(
        self,
        name: str,
        *,
        older_than: OlderThan = None,
        archive: str | None = None,
        dry_run: bool = False,
        spark: Any = None,
    ) -> Expired:
        """Move old versions of a table out of the catalog; see `Table.expire`."""
        return self.table(name).expire(
            older_than=older_than, archive=archive, dry_run=dry_run, spark=spark
        )

    def restore_expired(self, name: str, archive: str) -> Restored:
        """Bring expired versions of a table back; see `Table.restore_expired`."""
        return self.table(name).restore_expired(archive)

    def _find(self, session: Session, name: object) -> TableRecord:
        return find_table(self.store, session, name)

    # --- commits of other writers ---------------------------------------------------------

    def ratify(
        self, location: str, version: int, commit: bytes, *, committer: str | None = None
    ) -> Ratified:
        """Make the bytes of a commit file a version of the table at a location, and publish them.

        - This is how other writers commit: they propose a version, with conflicts resolved.
        - If another commit is that version, UnexpectedVersionError is raised, and nothing changes.
        - The same proposal again is the same success, and writes nothing twice.
        - When this returns, the commit file is in `_delta_log`. NotPublishedError says that the
          object store failed: repeat the call.
        - A version 0 below the warehouse registers a new table.
        - `committer` is recorded in the history, by default the user that the commit names.
        """
        require_text("location", location)
        require_whole("version", version)
        if committer is not None:
            require_text("committer", committer)
        done = self.proposals.take(
            table_location(location),
            version,
            require_bytes("commit", commit),
            committer=committer,
        )
        self._committer.saw(done.table.table_id, done.version)
        return done

    @property
    def proposals(self) -> Proposals:
        """The commits of other writers that this lake decides about."""
        from deltalakedb.importing.proposals import Proposals

        return Proposals(self.store, self.mirror, warehouse=self.warehouse)

    # --- many tables ----------------------------------------------------------------------

    def sql(self, spark: Any, query: str) -> Any:
        """Run a query on Spark over tables of this lake, at one instant; returns a DataFrame.

        The catalog prunes files by WHERE clauses. The query may also name views and tables of the
        session.
        """
        require_session("spark", spark)
        require_text("query", query)
        return on_spark().sql(spark, self, query)

    @contextmanager
    def transaction(self) -> Iterator[Transaction[TransactionTable]]:
        """A transaction over any number of tables, committed when the block ends without an error.

        It sees all tables at one instant. The commit is refused if a concurrent commit has changed
        what the transaction has read.
        """
        transaction = self._begin()
        try:
            yield transaction
        except BaseException:
            transaction.discard()
            raise
        transaction.commit()

    def _begin(self) -> Transaction[TransactionTable]:
        return Transaction(self.store, self._committer, self._find, TransactionTable)

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


def _user_name() -> str | None:
    """The user of this process; None for one without a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container user may have no name; that is no reason to refuse a commit.
        return None


def _release() -> str:
    """The engineInfo of commits."""
    try:
        return f"deltalakedb/{version('deltalakedb')}"
    except PackageNotFoundError:
        return "deltalakedb/unreleased"
