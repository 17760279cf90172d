"""A cache of the newest snapshot and its file list.

Each lookup costs one statement. When the head has moved, only the files added and removed since are
read. The ledger records the number of live files of each version: if the updated list has another
number, the whole list is read again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltalakedb.arguments import require_whole
from deltalakedb.forking import ProcessLock
from deltalakedb.snapshot import listing
from deltalakedb.snapshot.pages import without
from deltalakedb.snapshot.resolve import resolve
from deltalakedb.snapshot.snapshot import Snapshot, snapshot_of
from deltalakedb.store.versions import Known

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store import Store, TableRecord

# A table of many small chunks is slow to read: above this number they are combined.
_MANY_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class CachedSnapshot(Snapshot):
    """A snapshot with its files in memory; conditions and other columns go to the catalog."""

    _files: pa.Table = field(repr=False, compare=False)

    def files(
        self,
        where: Any = None,
        *,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """As `Snapshot.files`; from memory for the default columns without `where`."""
        names = listing.check_columns(columns)
        if where is not None or not set(names) <= set(self._files.column_names):
            return Snapshot.files(self, where, columns=names, limit=limit, offset=offset)
        start = require_whole("offset", offset)
        if limit is None and not start:
            return self._files.select(names)
        length = None if limit is None else min(require_whole("limit", limit), listing.NO_LIMIT)
        ordered = self._files.sort_by([("path", "ascending"), ("dv_id", "ascending")])
        return ordered.select(names).slice(start, length)

    def iter_files(
        self,
        batch_size: int = 10_000,
        where: Any = None,
        columns: Iterable[str] | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As `Snapshot.iter_files`; from memory for the default columns without `where`."""
        names = listing.check_columns(columns)
        if where is not None or not set(names) <= set(self._files.column_names):
            return Snapshot.iter_files(self, batch_size, where, names)
        size = require_whole("batch_size", batch_size, least=1)
        return _batches(self._files.select(names), size)


def _batches(files: pa.Table, size: int) -> Generator[pa.RecordBatch, None, None]:
    yield from listing.rebatch(files.to_batches(), size)


class SnapshotCache:
    """Caches the newest snapshot of one table; thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = ProcessLock()
        self._held: CachedSnapshot | None = None
        self._known = Known()

    def newest(self, table: TableRecord) -> CachedSnapshot:
        """Return the newest snapshot; it is never older than one returned before."""
        with self._lock.lock:
            opened = resolve(self._store, table, known=self._known)
            held = self._held
            if held is None or held.table != table or held.version != opened.version:
                snapshot = snapshot_of(self._store, table, opened)
                held = _with_files(snapshot, self._list(snapshot))
                self._held, self._known = held, opened.known
            return held

    def _list(self, snapshot: Snapshot) -> pa.Table:
        held = self._held
        if held is not None and held.version <= snapshot.version:
            moved = self._move(held, snapshot)
            if moved.num_rows == snapshot.num_files:
                return moved
            # Old versions may have expired meanwhile, and their removes with them.
        return snapshot.files()

    def _move(self, held: CachedSnapshot, to: Snapshot) -> pa.Table:
        import pyarrow as pa

        files = held.files()
        if held.version == to.version:
            return files
        removed = listing.read_table(
            self._store, to.table, listing.files_removed(to.table, held.version, to.version)
        )
        added = listing.read_table(
            self._store,
            to.table,
            listing.files_added(
                to.table,
                held.version,
                to.version,
                listing.DEFAULT_COLUMNS,
                self._store.dialect.engine,
            ),
        )
        files = pa.concat_tables([without(files, removed), added])
        many = files.num_columns and files.column(0).num_chunks > _MANY_CHUNKS
        return files.combine_chunks() if many else files


def _with_files(snapshot: Snapshot, files: pa.Table) -> CachedSnapshot:
    return CachedSnapshot(
        snapshot.table,
        snapshot.version,
        snapshot.committed_at,
        snapshot.metadata,
        snapshot.protocol,
        snapshot.counts,
        snapshot._store,  # noqa: SLF001 - the same class
        files,
    )
