"""The content of a checkpoint or checksum: the state of a published version.

Guarantees:

- Only published versions: a reader that sees a checkpoint or checksum of a version also looks for
  its commit.
- Files are streamed from the catalog as columns, a page at a time; the next batch is prepared in a
  thread while the last one is written.
- The stream ends with an error where the catalog has not listed exactly the files that its ledger
  counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from deltalakedb.actions import Action, DomainMetadata, Txn
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.checkpoint_file import ROW_GROUP
from deltalakedb.deltalog.checkpoint_rows import ADD_COLUMNS, REMOVE_COLUMNS, RowMaker
from deltalakedb.errors import CorruptCatalogError, Fix, NotPublishedError
from deltalakedb.snapshot.listing import (
    count_tombstones,
    first_tombstone_version,
    read_batches,
    tombstones_at,
)
from deltalakedb.snapshot.pages import LEAST_STREAMED, stream_pages
from deltalakedb.snapshot.snapshot import Snapshot, open_snapshot
from deltalakedb.store.versions import domain_metadata, is_published, txns
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    from datetime import timedelta

    import pyarrow as pa

    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session


@dataclass(frozen=True, slots=True)
class PublishedState:
    """A snapshot with the live app transactions and metadata domains."""

    snapshot: Snapshot
    txns: Sequence[Txn]
    domains: Sequence[DomainMetadata]

    def actions(self) -> list[Action]:
        """Every action of the state that is not about a file."""
        return [self.snapshot.protocol, self.snapshot.metadata, *self.domains, *self.txns]


def read_state(
    store: Store,
    session: Session,
    table: TableRecord,
    version: int,
    *,
    now_ms: Callable[[], int],
) -> PublishedState:
    """The state at a version; NotPublishedError where its commit is not in `_delta_log`.

    `now_ms` is called only where app transactions expire.
    """
    if not is_published(session, table.table_id, version):
        raise NotPublishedError(
            f"Version {version} of table {table.name!r} is not published",
            why="readers would look for a commit file that is not there",
            fix=f"Publish it first: {Fix('lake.mirror.run_once')}",
        )
    snapshot = open_snapshot(store, session, table, version)
    retention = TableProperties(snapshot.properties).set_transaction_retention
    domains = domain_metadata(session, table.table_id, version)
    return PublishedState(
        snapshot,
        _live(txns(session, table.table_id, version), retention, now_ms),
        [DomainMetadata(name, domains[name], removed=False) for name in sorted(domains)],
    )


def _live(
    present: Sequence[Txn], retention: timedelta | None, now_ms: Callable[[], int]
) -> Sequence[Txn]:
    if retention is None:
        return present
    # One without a time has expired.
    oldest = now_ms() - milliseconds(retention)
    return [txn for txn in present if txn.last_updated is not None and txn.last_updated > oldest]


def milliseconds(duration: timedelta) -> int:
    """A duration in whole milliseconds."""
    return round(duration.total_seconds() * 1000)


_MOST_AHEAD: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """The content of the checkpoint of a version."""

    store: Store
    table: TableRecord
    state: PublishedState
    since: int
    """There are no tombstones up to this version."""
    cutoff_ms: int
    most_removes: int
    """The largest possible number of tombstones."""

    @property
    def version(self) -> int:
        """The version."""
        return self.state.snapshot.version

    @property
    def most_actions(self) -> int:
        """The largest possible number of actions."""
        return self.state.snapshot.num_files + self.most_removes + len(self.state.actions())

    def count_files(self) -> int:
        """The exact number of file actions."""
        removes = 0
        if self.most_removes:
            with self.store.read() as session:
                removes = count_tombstones(
                    session, self.table, self.version, since=self.since, cutoff_ms=self.cutoff_ms
                )
        return self.state.snapshot.num_files + removes

    def stream(self, maker: RowMaker) -> Stream:
        """The file actions as rows; a thread prepares them while others are written."""
        return Stream(self._rows(maker))

    def _rows(self, maker: RowMaker) -> Generator[pa.RecordBatch, None, None]:
        import pyarrow as pa

        try:
            for batch in self._removes():
                yield maker.removes(batch)
            listed = 0
            for batch in self._adds():
                listed += batch.num_rows
                yield maker.adds(batch)
        except (pa.ArrowException, ValueError) as error:
            raise self._wrong(f"a file is invalid: {error}") from error
        expected = self.state.snapshot.num_files
        if listed != expected:
            raise self._wrong(f"the catalog lists {listed} files, and its ledger counts {expected}")

    def _wrong(self, why: str) -> CorruptCatalogError:
        return CorruptCatalogError(
            f"Version {self.version} of table {self.table.name!r} cannot be checkpointed",
            why=why,
            fix="Run: deltalakedb rebuild",
        )

    def _adds(self) -> Iterator[pa.RecordBatch]:
        snapshot = self.state.snapshot
        if snapshot.num_files < LEAST_STREAMED:
            return iter(snapshot.files(columns=ADD_COLUMNS).to_batches(max_chunksize=ROW_GROUP))
        # Whole pages: row groups may have different sizes.
        pages = stream_pages(
            self.store, self.table, self.version, ADD_COLUMNS, expected=snapshot.num_files
        )
        return snapshot.iter_files(ROW_GROUP, columns=ADD_COLUMNS) if pages is None else pages

    def _removes(self) -> Iterator[pa.RecordBatch]:
        if not self.most_removes:
            return
        query = tombstones_at(
            self.table, self.version, REMOVE_COLUMNS, since=self.since, cutoff_ms=self.cutoff_ms
        )
        with closing(read_batches(self.store, self.table, query, ROW_GROUP)) as batches:
            yield from batches


def open_source(store: Store, table: TableRecord, version: int, *, now_ms: int) -> Source:
    """Open a published version, without tombstones and app transactions expired at `now_ms`."""
    with store.read() as session:
        state = read_state(store, session, table, version, now_ms=lambda: now_ms)
        retention = TableProperties(state.snapshot.properties).deleted_file_retention
        cutoff = now_ms - milliseconds(retention)
        since = first_tombstone_version(session, table, cutoff)
        row = session.one("removes_between", table_id=table.table_id, since=since, version=version)
    return Source(store, table, state, since, cutoff, int(row[0] or 0) if row else 0)


class Stream:
    """Batches of rows; a thread prepares the next one while the last one is written."""

    def __init__(self, batches: Generator[pa.RecordBatch, None, None]) -> None:
        self._batches = batches
        self._pool = Threads(1, thread_name_prefix="deltalakedb-checkpoint")
        self._next: Future[pa.RecordBatch | None] | None = None
        self._held: pa.RecordBatch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The thread ends first: a generator that runs cannot be closed.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._batches.close()

    def has_more(self) -> bool:
        """Whether there are more rows."""
        return self._peek() is not None

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All remaining rows."""
        while (batch := self._peek()) is not None:
            self._held = None
            yield batch

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The next rows, at most so many."""
        while rows and (batch := self._peek()) is not None:
            piece = batch.slice(0, rows)
            left = batch.num_rows - piece.num_rows
            self._held = batch.slice(piece.num_rows) if left else None
            rows -= piece.num_rows
            yield piece

    def _peek(self) -> pa.RecordBatch | None:
        while self._held is None or not self._held.num_rows:
            following = self._next or self._pool.submit(next, self._batches, None)
            self._next = following
            self._held = following.result()
            if self._held is None:
                return None
            # Two batches with very wide statistics would be too much at once.
            ahead = self._held.nbytes <= _MOST_AHEAD
            self._next = self._pool.submit(next, self._batches, None) if ahead else None
        return self._held
