"""Listings from pages: Arrow batches of thousands of files.

A page holds the files that were live when it was built (`page_builder.py`). The listing of a
version is the pages that serve it, minus the files removed since, plus the files added since; both
come from dl_active_files. The ledger records the number of live files: a result with another number
is discarded.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from deltalakedb.errors import CatalogError
from deltalakedb.snapshot import listing
from deltalakedb.store.arrow import schema_of
from deltalakedb.telemetry import span
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Row, Session

DECODERS: Final = min(4, os.cpu_count() or 1)
# A fifth smaller than by the fastest level and read as fast; higher levels gain next to nothing.
_LZ4_LEVEL: Final = 4
LEAST_FILES: Final = 500
"""A table with fewer live files is listed from dl_active_files."""
LEAST_STREAMED: Final = 50_000
"""A table with fewer live files is streamed from dl_active_files."""


def list_from_pages(
    store: Store, table: TableRecord, version: int, columns: tuple[str, ...], *, expected: int
) -> pa.Table | None:
    """Return the files that are live at a version; None if the pages are incomplete."""
    import pyarrow as pa

    if expected < LEAST_FILES:
        return None
    # Threads of our own, for this call alone: nothing is left of them that a fork could break.
    with Threads(max_workers=DECODERS) as pool:
        with span("deltalakedb.pages", table=table.name):
            read = store.dialect.ask(
                lambda session: _decoding(
                    pool,
                    session.pages_at(table.table_id, version, with_stats="stats" in columns),
                    columns,
                    version,
                )
            )
        if read is None:
            return None
        # While pages are decoded: the files removed and added since.
        paged, since = read.paged, read.since
        removed = added = None
        if version > paged:
            query = listing.files_removed(table, paged, version)
            removed = listing.read_table(store, table, query)
        if version > since:
            query = listing.files_added(table, since, version, columns, store.dialect.engine)
            added = listing.read_table(store, table, query)
        try:
            batches = [decoded.result() for decoded in read.batches]
        except (pa.ArrowException, OSError, ValueError):
            # A damaged page: the caller lists from dl_active_files.
            store.metrics.count("page_failures_total")
            return None
    files = pa.Table.from_batches(batches, schema_of(read.columns))
    if removed is not None:
        files = without(files, removed).select(columns)
    if added is not None:
        files = pa.concat_tables([files, added])
    return files if files.num_rows == expected else None


class _Read(NamedTuple):
    """Pages that are being decoded, and the versions that they cover."""

    paged: int
    since: int
    columns: tuple[str, ...]
    batches: list[Future[pa.RecordBatch]]


def _decoding(
    pool: Threads, pages: Iterable[Row], columns: tuple[str, ...], version: int
) -> _Read | None:
    """Decode each page while the next one is read; None if there are no pages."""
    read = None
    for files, stats, removed, paged, *marks in pages:
        if read is None:
            read = _Read(paged, _newest(marks), _wanted(columns, paged, version), [])
        read.batches.append(pool.submit(_live_files, files, stats, removed, read.columns, version))
    return read


def _newest(marks: Sequence[int | None]) -> int:
    return max(mark for mark in marks if mark is not None)


def _wanted(columns: tuple[str, ...], paged: int, version: int) -> tuple[str, ...]:
    """Return the columns to read: leaving out files removed since takes their keys."""
    return columns if version <= paged else tuple(dict.fromkeys((*columns, "path", "dv_id")))


class Page(NamedTuple):
    """A page that serves a version; `live` is a boolean for each file, or None for all."""

    number: int
    num_files: int
    live: pa.Array | None


class Pages(NamedTuple):
    """The pages of a version, without files removed after `paged` and those added after `since`."""

    pages: Sequence[Page]
    paged: int
    since: int


class Changes(NamedTuple):
    """The files that were removed and added after the pages of a version were built."""

    removed: pa.Table | None
    added: pa.Table


def pages_changed(table: TableRecord) -> CatalogError:
    """The error for a page that is gone."""
    return CatalogError(
        f"The files of table {table.name!r} cannot be listed to the end",
        why="Its pages were rebuilt meanwhile",
        fix="List them again",
    )


def damaged_page(table: TableRecord, error: Exception) -> CatalogError:
    """The error for a page that cannot be decoded."""
    return CatalogError(
        f"A page of table {table.name!r} is damaged",
        why=str(error),
        fix="Run: deltalakedb rebuild; until then files are listed from the rows",
    )


def pages_of(session: Session, table: TableRecord, version: int) -> Pages | None:
    """The pages that serve a version; None where there are none."""
    rows = session.page_list_at(table.table_id, version)
    if not rows:
        return None
    pages = [Page(number, size, _live(until, version)) for number, size, until, *_ in rows]
    paged, *marks = rows[0][3:]
    return Pages(pages, paged, _newest(marks))


def changes_of(
    store: Store,
    table: TableRecord,
    version: int,
    pages: Pages,
    columns: tuple[str, ...],
    *,
    expected: int,
) -> Changes | None:
    """The changes since the pages; None where the files do not add up to the expected number."""
    import pyarrow as pa

    total = sum(p.num_files if p.live is None else p.live.true_count for p in pages.pages)
    removed, added = None, pa.Table.from_batches([], schema_of(columns))
    if version > pages.paged:
        query = listing.files_removed(table, pages.paged, version)
        removed = listing.read_table(store, table, query)
        total -= removed.num_rows
    if version > pages.since:
        query = listing.files_added(table, pages.since, version, columns, store.dialect.engine)
        added = listing.read_table(store, table, query)
    return Changes(removed, added) if total + added.num_rows == expected else None


def stream_pages(
    store: Store, table: TableRecord, version: int, columns: tuple[str, ...], *, expected: int
) -> Generator[pa.RecordBatch, None, None] | None:
    """Yield the files that are live at a version, page by page; None if the pages are incomplete.

    Completeness is checked before the first batch. No connection is held between two batches.
    """
    if expected < LEAST_STREAMED:
        return None
    pages = store.dialect.ask(lambda session: pages_of(session, table, version))
    if pages is None:
        return None
    changes = changes_of(store, table, version, pages, columns, expected=expected)
    if changes is None:
        return None
    return _stream(store, table, version, columns, (pages.pages, changes))


def _stream(
    store: Store,
    table: TableRecord,
    version: int,
    columns: tuple[str, ...],
    source: tuple[Sequence[Page], Changes],
) -> Generator[pa.RecordBatch, None, None]:
    import pyarrow as pa

    pages, changes = source
    removed = changes.removed
    wanted = columns if removed is None else tuple(dict.fromkeys((*columns, "path", "dv_id")))
    for page in pages:
        with span("deltalakedb.pages", table=table.name):
            rows = store.dialect.ask(
                lambda session, number=page.number: list(  # type: ignore[misc]
                    session.pages_between(
                        table.table_id, version, number, number, with_stats="stats" in wanted
                    )
                )
            )
        if not rows:
            raise pages_changed(table)
        try:
            batch = read_page(rows[0][1], rows[0][2], wanted)
        except (pa.ArrowException, OSError, ValueError) as error:
            store.metrics.count("page_failures_total")
            raise damaged_page(table, error) from error
        if page.live is not None:
            batch = batch.filter(page.live)
        store.metrics.count("rows_scanned", batch.num_rows)
        if removed is None:
            yield batch
        else:
            rest = without(pa.Table.from_batches([batch]), removed)
            yield from rest.select(columns).to_batches()
    yield from changes.added.to_batches()


def _live_files(
    files: bytes, stats: bytes | None, removed: bytes | None, columns: Sequence[str], version: int
) -> pa.RecordBatch:
    batch = read_page(files, stats, columns)
    live = _live(removed, version)
    return batch if live is None else batch.filter(live)


def _live(removed: bytes | None, version: int) -> pa.Array | None:
    """A boolean for each file of a page: whether it is live at a version; None where all are."""
    import pyarrow.compute as pc

    if removed is None:
        return None
    live = pc.greater(read_batch(removed, ["removed_version"]).column(0), version)
    return None if live.true_count == len(live) else live


def write_batch(batch: pa.RecordBatch) -> bytes:
    """Return a batch as the bytes of a page."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    codec = pa.Codec("lz4", compression_level=_LZ4_LEVEL)
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read_batch(data: bytes, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return the batch of a page with these columns, in this order."""
    import pyarrow as pa

    # Arrow's threads gain nothing here, and can crash a forked child.
    options = pa.ipc.IpcReadOptions(use_threads=False)
    buffer = pa.py_buffer(data)
    if columns is None:
        return pa.ipc.open_stream(buffer, options=options).read_next_batch()
    names = pa.ipc.read_schema(buffer).names
    options.included_fields = sorted(names.index(name) for name in columns)
    batch = pa.ipc.open_stream(buffer, options=options).read_next_batch()
    return batch.select(list(columns))


def read_page(files: bytes, stats: bytes | None, columns: Sequence[str]) -> pa.RecordBatch:
    """Columns of a page; statistics are stored separately, except by older releases."""
    import pyarrow as pa

    if stats is None or "stats" not in columns:
        return read_batch(files, columns)
    arrays = {"stats": read_batch(stats).column(0)}
    others = [name for name in columns if name != "stats"]
    if others:
        batch = read_batch(files, others)
        arrays |= dict(zip(others, batch.columns, strict=True))
    return pa.record_batch([arrays[name] for name in columns], names=list(columns))


def without(files: pa.Table, removed: pa.Table) -> pa.Table:
    """Return the files that are not in `removed`, by path and dv_id."""
    import pyarrow as pa

    if not removed.num_rows:
        return files
    positions = positions_of(files, removed)
    live = bytearray(b"\1") * files.num_rows
    for position, _ in positions:
        live[position] = 0
    mask = pa.Array.from_buffers(pa.uint8(), len(live), [None, pa.py_buffer(bytes(live))])
    return files.filter(mask.cast(pa.bool_()))


def positions_of(files: pa.Table, keys: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield the positions of files with these keys (path and dv_id), and of their keys."""
    import pyarrow.compute as pc

    wanted = zip(keys["path"].to_pylist(), keys["dv_id"].to_pylist(), strict=True)
    numbers = {key: number for number, key in enumerate(wanted)}
    # A path may stay with another deletion vector: candidates are compared by both.
    positions = pc.indices_nonzero(pc.is_in(files["path"], value_set=keys["path"].combine_chunks()))
    candidates = files.select(["path", "dv_id"]).take(positions)
    pairs = zip(candidates["path"].to_pylist(), candidates["dv_id"].to_pylist(), strict=True)
    for position, pair in zip(positions.to_pylist(), pairs, strict=True):
        if pair in numbers:
            yield position, numbers[pair]
