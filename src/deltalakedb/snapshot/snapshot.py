"""Snapshots: a table at one version, read from the catalog.

The ledger of a version never changes, so neither does a snapshot: its listings stay exact whatever
is committed later and whatever isolation the database has. Listings of an expired version are
refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.actions.clustering import clustering_paths, dotted
from deltalakedb.actions.features import check_readable, writer_features
from deltalakedb.arguments import optional_text, require_text, require_texts, require_whole
from deltalakedb.conditions.predicate import Constant
from deltalakedb.conditions.where import predicate_of
from deltalakedb.snapshot import listing
from deltalakedb.snapshot.pages import list_from_pages, stream_pages
from deltalakedb.snapshot.resolve import check_version, resolve, to_datetime
from deltalakedb.store import versions
from deltalakedb.telemetry import span

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa
    import pyarrow.dataset as pads

    from deltalakedb.actions.datatypes import StructType
    from deltalakedb.conditions.predicate import Predicate
    from deltalakedb.reading.dataset import SnapshotRows
    from deltalakedb.snapshot.resolve import OpenedTable
    from deltalakedb.store import Counts, Store, TableRecord
    from deltalakedb.store.dialect import Session


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at `version`, committed at `committed_at` (milliseconds)."""

    table: TableRecord
    version: int
    committed_at: int
    metadata: Metadata
    protocol: Protocol
    counts: Counts
    _store: Store = field(repr=False, compare=False)

    @property
    def timestamp(self) -> datetime:
        """When the version was committed, in UTC."""
        return to_datetime(self.committed_at)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.metadata.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The names of the partition columns."""
        return self.metadata.partition_columns

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties."""
        return self.metadata.configuration

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options of the object store, as passed to `connect`."""
        return self._store.storage_options

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return self.counts.live_files

    @property
    def size_bytes(self) -> int:
        """The size of the live files in bytes."""
        return self.counts.live_bytes

    @property
    def store(self) -> Store:
        """The catalog."""
        return self._store

    @property
    def app_transactions(self) -> dict[str, int]:
        """The newest version of each application by app id; queried at each access."""
        with span("deltalakedb.app_transactions", table=self.table.name):
            transactions = self._store.dialect.ask(
                lambda session: versions.app_transactions(
                    session, self.table.table_id, self.version
                )
            )
            check_version(self._store, self.table, self.version)
            return transactions

    @property
    def domain_metadata(self) -> dict[str, str]:
        """The configuration of each metadata domain that is not removed; queried at each access."""
        with span("deltalakedb.domain_metadata", table=self.table.name):
            domains = self._store.dialect.ask(
                lambda session: versions.domain_metadata(session, self.table.table_id, self.version)
            )
            check_version(self._store, self.table, self.version)
            return domains

    @property
    def clustering_columns(self) -> tuple[str, ...]:
        """The clustering columns; queried at each access."""
        if "clustering" not in writer_features(self.protocol):
            return ()
        paths = clustering_paths(self.metadata, self.domain_metadata)
        return tuple(dotted(path) for path in paths or ())

    def has_file(self, path: str, dv_id: str | None = None) -> bool:
        """Whether a file is live; `path` is spelled as in `files()`.

        With `dv_id` the file must have that deletion vector ('' for none).
        """
        require_text("path", path)
        optional_text("dv_id", dv_id)
        with span("deltalakedb.has_file", table=self.table.name):
            is_live = self._store.dialect.ask(
                lambda session: versions.has_file(
                    session, self.table.table_id, self.version, path, dv_id
                )
            )
            if not is_live:
                check_version(self._store, self.table, self.version)
            return is_live

    def files(
        self,
        where: Any = None,
        *,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """Return the live files, or with `where` the files that can hold matching rows.

        `where` is SQL text, a pyarrow expression, Spark filters, or a predicate of `parse_where`.
        `columns` are names out of `listing.COLUMNS`; the default is what reading the table needs.
        Maps and descriptors are JSON text. With `limit` or `offset` files are ordered by path and
        dv_id, otherwise in no order.
        """
        names = listing.check_columns(columns)
        first = require_whole("offset", offset)
        most = None if limit is None else min(require_whole("limit", limit), listing.NO_LIMIT)
        predicate = predicate_of(where, self.metadata)
        if predicate is not None and predicate != Constant(value=True):
            return self._matching(predicate, names, most, first)
        if most is None and not first:
            files = list_from_pages(
                self._store, self.table, self.version, names, expected=self.num_files
            )
            if files is not None:
                return files
        engine = self._store.dialect.engine
        query = listing.files_at(
            self.table, self.version, names, engine=engine, limit=most, offset=first
        )
        return listing.read_table(self._store, self.table, query)

    def _matching(
        self, predicate: Predicate, names: tuple[str, ...], limit: int | None, offset: int
    ) -> pa.Table:
        from deltalakedb.snapshot.matching import MatchingFiles

        ordered = limit is not None or offset
        wide = tuple(dict.fromkeys((*names, "path", "dv_id"))) if ordered else names
        files = MatchingFiles(
            self._store, self.table, self.version, wide, predicate, self.counts.live_files
        ).read()
        if not ordered:
            return files
        by_path = files.sort_by([("path", "ascending"), ("dv_id", "ascending")])
        return by_path.slice(offset, limit).select(names)

    def iter_files(
        self,
        batch_size: int = 10_000,
        where: Any = None,
        columns: Iterable[str] | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the same files in batches of exactly `batch_size` rows; the last may be smaller.

        Memory is bounded by a few batches. A connection can be held from the first batch until the
        iterator is exhausted, closed or collected.
        """
        names = listing.check_columns(columns)
        size = require_whole("batch_size", batch_size, least=1)
        predicate = predicate_of(where, self.metadata)
        if predicate is not None and predicate != Constant(value=True):
            from deltalakedb.snapshot.matching import MatchingFiles

            matches = MatchingFiles(
                self._store, self.table, self.version, names, predicate, self.counts.live_files
            )
            return listing.rebatched(matches.stream(), size)
        batches = stream_pages(
            self._store, self.table, self.version, names, expected=self.num_files
        )
        if batches is not None:
            return listing.rebatched(batches, size)
        query = listing.files_at(self.table, self.version, names)
        return listing.read_batches(self._store, self.table, query, size)

    # --- rows -----------------------------------------------------------------------------

    def to_arrow_dataset(self, where: Any = None) -> pads.Dataset | SnapshotRows:
        """Return the rows, or those that fulfil `where`, as a dataset that reads on demand.

        A plain table (on a local disk, without deletion vectors, column mapping, nested columns and
        floats) gives a `pyarrow.dataset.Dataset` of its files. Any other table gives an object with
        the reading methods of one. It lists the files that a filter leaves for each scan; the lake
        must be open until then.
        """
        from deltalakedb.reading.dataset import dataset_of

        return dataset_of(self, where)

    def to_arrow(self, where: Any = None, columns: Iterable[str] | None = None) -> pa.Table:
        """Return the rows, or those that fulfil `where`, in memory: all columns, or `columns`."""
        from deltalakedb.reading.dataset import rows_of

        names = None if columns is None else require_texts("columns", columns)
        return rows_of(self, where).to_table(columns=names)

    def to_polars(self, where: Any = None, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """Return the same rows as a polars DataFrame."""
        from deltalakedb.reading.dataset import rows_of, to_polars

        names = None if columns is None else require_texts("columns", columns)
        return to_polars(rows_of(self, where), names)

    def to_duckdb(
        self,
        where: Any = None,
        connection: duckdb.DuckDBPyConnection | None = None,
        columns: Iterable[str] | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the rows, with all columns or `columns`.

        Rows are read when the relation is queried. It belongs to `connection`, by default DuckDB's
        default connection. A plain table (see `to_arrow_dataset`) is read as far as the query needs
        it; of any other table the rows of `where` with these `columns` are read into memory.
        """
        from deltalakedb.reading.dataset import to_duckdb

        names = None if columns is None else require_texts("columns", columns)
        return to_duckdb(self.to_arrow_dataset(where), connection, names)


def open_snapshot(
    store: Store,
    session: Session | None,
    table: TableRecord,
    version: int,
    *,
    honours: Iterable[str] = (),
) -> Snapshot:
    """Open the table at a version; check that its features are supported, or in `honours`."""
    opened = resolve(store, table, version=version, session=session)
    return snapshot_of(store, table, opened, honours=honours)


def snapshot_of(
    store: Store, table: TableRecord, opened: OpenedTable, *, honours: Iterable[str] = ()
) -> Snapshot:
    """Return the snapshot of a resolved version; check that its features are supported."""
    check_readable(opened.protocol, table=table.name, honours=honours)
    if opened.version == opened.head:
        store.metrics.gauge("files_active_gauge", opened.counts.live_files, table=table.name)
    return Snapshot(
        table,
        opened.version,
        opened.committed_at,
        opened.metadata,
        opened.protocol,
        opened.counts,
        store,
    )
