"""Builds the pages of a listing: compressed Arrow batches of thousands of files.

- Pages are built after a commit when enough files have changed since the last build.
- A failure is harmless: pages only repeat dl_active_files.
- Everything is read before the transaction that writes, because the history up to a version never
  changes. If two processes build pages at once, the compare-and-set on dl_paged_tables stops one.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from deltalakedb.conditions.bounds import (
    Bounds,
    Key,
    column_key,
    indexed_columns,
    key_of,
    page_range,
    read_bounds,
)
from deltalakedb.snapshot import listing, page_texts
from deltalakedb.snapshot.pages import positions_of, read_batch, read_page, write_batch
from deltalakedb.store.relations import (
    FILE_PAGES,
    LIVE,
    PAGE_COLUMNS,
    PAGE_TEXTS,
    PAGED_TABLES,
)
from deltalakedb.telemetry import event, span
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.conditions.predicate import Column
    from deltalakedb.store import Counts, Store, TableRecord
    from deltalakedb.store.dialect import Row, Session

PAGE_FILES: Final = 20_000
LEAST_CHANGES: Final = 1_000
# Pages are due when 1/_SHARE of the live files has changed.
_SHARE: Final = 20
# A page with more removed files than this share is closed; its live files go to new pages.
_MOST_GONE: Final = 0.2
# DuckDB stores larger values apart and as they are; smaller ones compressed, many together.
_LEAST_BYTES: Final = 4_097
# Commits of few files check whether pages are due every so many versions. A process without Arrow
# does so rarely: to load it takes a second, and meanwhile all other writers would begin to.
_LOOK_EVERY: Final = 64
_LOOK_EVERY_WITHOUT_ARROW: Final = 4_096


Changes: TypeAlias = tuple[int, int, int]
"""A version, the number of files it added and removed, and the number of live files after it."""


@dataclass(slots=True)
class _Work:
    """The changes of one build."""

    version: int
    rows: list[Row] = field(default_factory=list)
    columns: list[Row] = field(default_factory=list)
    texts: list[Row] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    updated: dict[int, bytes] = field(default_factory=dict)


class Counted(Protocol):
    """A version of a table with its counts."""

    @property
    def version(self) -> int: ...

    @property
    def counts(self) -> Counts: ...


def after_commit(store: Store, versions: Iterable[tuple[TableRecord, Counted | None]]) -> None:
    """Build the pages of tables with a new version if they are due; never raises."""
    for table, state in versions:
        if state is not None:
            _after_version(store, table, state.version, state.counts)


def _after_version(store: Store, table: TableRecord, version: int, counts: Counts) -> None:
    changes = counts.num_adds + counts.num_removes
    every = _LOOK_EVERY if "pyarrow" in sys.modules else _LOOK_EVERY_WITHOUT_ARROW
    if version % every and changes < LEAST_CHANGES:
        return
    due = changes_due(counts.live_files)
    with _harmless(store, table), span("deltalakedb.make_pages", table=table.name):
        paged = _paged(store, table).version
        if changes >= due or _changes_since(store, table, paged) >= due:
            make_pages(store, table, version)


def during_import(
    store: Store, table_id: str, files: pa.Table | None, changes: Sequence[Changes]
) -> Callable[[TableRecord], None]:
    """Start building the pages of an imported table; call the result to write them.

    `files` has every file of the history with its interval, in version order; without it the files
    are read from the catalog. Neither call raises, and this one returns at once.
    """
    pages: Future[_History | None] | None = None
    if files is not None:
        pool = Threads(max_workers=1, thread_name_prefix="deltalakedb-pages")
        pages = pool.submit(history_pages, table_id, files, list(_due(changes)))
        pool.shutdown(wait=False)

    def finish(table: TableRecord) -> None:
        with _harmless(store, table), span("deltalakedb.make_pages", table=table.name):
            history = None if pages is None else pages.result()
            if history is None:
                make_all_pages(store, table)
            elif changes:
                version = changes[-1][0]
                indexed = _indexed(store, table, version)
                _write_all(store, table, version, history, indexed)

    return finish


def rebuild_pages(store: Store, table: TableRecord) -> None:
    """Build the pages of a table whose history was restored into the catalog; never raises."""
    with _harmless(store, table), span("deltalakedb.make_pages", table=table.name):
        make_all_pages(store, table)


def _write_all(
    store: Store, table: TableRecord, version: int, history: _History, indexed: Sequence[Column]
) -> None:
    rows = history.rows
    with store.write() as session:
        if session.one("paged_table", table_id=table.table_id) is None:
            session.insert(PAGED_TABLES, [(table.table_id, version, len(rows))])
            for row in rows:
                session.insert(FILE_PAGES, [row])
            for row in history.columns(table.table_id, indexed):
                session.insert(PAGE_COLUMNS, [row])
            for groups in history.texts(table.table_id):
                session.insert(PAGE_TEXTS, groups)


@contextmanager
def _harmless(store: Store, table: TableRecord) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an error here would make a commit look failed
        store.metrics.count("page_failures_total")
        failure = str(error)
        event("pages_failed", lambda: {"table": table.name, "error": failure})


def changes_due(live_files: int) -> int:
    """Return the number of added and removed files after which new pages are due."""
    return max(LEAST_CHANGES, live_files // _SHARE)


def make_all_pages(store: Store, table: TableRecord) -> None:
    """Build the pages of the whole history, as commits would have, and compact the last."""
    paged = _paged(store, table).version
    for version, most_gone in _page_versions(store, table, paged):
        make_pages(store, table, version, most_gone=most_gone)


def _page_versions(store: Store, table: TableRecord, paged: int) -> Iterator[tuple[int, float]]:
    with store.read() as session:
        history = session.run("changes_by_version", table_id=table.table_id, version=paged)
    yield from _due(history)


def _due(history: Iterable[Any]) -> Iterator[tuple[int, float]]:
    """Yield the versions at which pages are due, with the share that may be removed."""
    changes = 0
    last = None
    for version, changed, live in history:
        changes += changed
        last = version
        if changes >= changes_due(live):
            yield version, _MOST_GONE
            changes = 0
    if last is not None:
        yield last, 0.0


def make_pages(
    store: Store, table: TableRecord, version: int, *, most_gone: float = _MOST_GONE
) -> bool:
    """Build the pages of a table up to a version; False if another process was faster."""
    import pyarrow as pa

    state = _paged(store, table)
    paged, next_page = state.version, state.next_page
    if version < paged:
        return False
    work = _Work(version)
    columns = (*listing.COLUMNS, "removed_version")
    carried = _age_pages(store, table, paged, work, most_gone) if paged >= 0 else []
    added = listing.files_added(table, paged, version, columns, store.dialect.engine)
    new = listing.read_table(store, table, added)
    files = pa.concat_tables([*(pa.Table.from_batches([batch]) for batch in carried), new])
    indexed = _indexed(store, table, version)
    for start in range(0, files.num_rows, PAGE_FILES):
        page = files.slice(start, PAGE_FILES).combine_chunks()
        number = next_page + len(work.rows)
        work.rows.append(page_row(table.table_id, number, version, page))
        stats, values = (page[name].combine_chunks() for name in ("stats", "partition_values"))
        bounds = read_bounds(indexed, stats, values)
        work.columns += column_rows(table.table_id, number, indexed, bounds)
        work.columns.append(files_row(table.table_id, number, page))
        work.texts += page_texts.text_rows(table.table_id, number, page)
    with store.write() as session:
        return _write(session, table, state, work)


def _age_pages(
    store: Store, table: TableRecord, paged: int, work: _Work, most_gone: float
) -> list[pa.RecordBatch]:
    """Record removes in the open pages; return the live files of pages that are closed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pages = store.dialect.ask(
        lambda session: session.run_binary("open_pages", table_id=table.table_id)
    )
    query = listing.files_removed(table, paged, work.version, ("path", "dv_id", "removed_version"))
    removed = listing.read_table(store, table, query)
    versions = removed["removed_version"].to_pylist()
    carried: list[pa.RecordBatch] = []
    for page_id, num_files, data, stats, removals in pages:
        until = [LIVE] * num_files
        if removals is not None:
            until = read_batch(removals).column(0).to_pylist()
        changed = False
        if removed.num_rows:
            keys = pa.Table.from_batches([read_batch(data, ["path", "dv_id"])])
            for position, number in positions_of(keys, removed):
                # A file may be removed, added and removed again: the first entry is an earlier one.
                if until[position] == LIVE:
                    until[position] = versions[number]
                    changed = True
        gone = sum(at <= work.version for at in until)
        if gone > num_files * most_gone:
            work.closed.append(page_id)
            batch = read_page(data, stats, listing.COLUMNS)
            whole = batch.append_column("removed_version", pa.array(until, pa.int64()))
            carried.append(whole.filter(pc.greater(whole["removed_version"], work.version)))
        if changed:
            # A closed page is updated too: it serves the versions before this one.
            work.updated[page_id] = _removed(until)
    return carried


def page_row(table_id: str, page_id: int, version: int, files: pa.Table) -> Row:
    """Return the row of a page that serves `version` and later versions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    until = files["removed_version"].combine_chunks()
    (batch,) = files.drop_columns(["removed_version", "stats"]).to_batches()
    stats = pa.record_batch([files["stats"].combine_chunks()], names=["stats"])
    removed = None
    if not pc.all(pc.equal(until, LIVE)).as_py():
        removed = write_batch(pa.record_batch([until], names=["removed_version"]))
    data, text = write_batch(batch), write_batch(stats)
    return (table_id, page_id, version, LIVE, files.num_rows, data, removed, text)


def column_rows(
    table_id: str, page_id: int, columns: Sequence[Column], bounds: Mapping[Key, Bounds]
) -> Iterator[Row]:
    """The rows that hold the bounds of columns in the files of a page."""
    import pyarrow as pa

    for column in columns:
        known = bounds[key_of(column)]
        arrays = {"has_value": known.has_value, "has_null": known.has_null}
        if known.low is not None:
            arrays |= {"low": known.low, "high": known.high}
        low, high = page_range(column, known)
        data = write_batch(pa.record_batch(arrays)).ljust(_LEAST_BYTES, b"\0")
        yield (table_id, column_key(column), page_id, str(column.type), low, high, data)


def files_row(table_id: str, page_id: int, files: pa.Table) -> Row:
    """The row that holds the columns of a page without its texts."""
    data = page_texts.files_batch(files).ljust(_LEAST_BYTES, b"\0")
    return (table_id, page_texts.COLUMN_KEY, page_id, page_texts.TYPE, None, None, data)


def _indexed(store: Store, table: TableRecord, version: int) -> list[Column]:
    with store.read() as session:
        metadata = store.metadata_at(session, table.table_id, version)
    return [] if metadata is None else indexed_columns(metadata)


def _removed(until: Sequence[int]) -> bytes:
    import pyarrow as pa

    return write_batch(pa.record_batch({"removed_version": pa.array(until, pa.int64())}))


def _write(session: Session, table: TableRecord, state: _Paged, work: _Work) -> bool:
    after = state.next_page + len(work.rows)
    if state.recorded is None:
        if session.one("paged_table", table_id=table.table_id) is not None:
            return False
        session.insert(PAGED_TABLES, [(table.table_id, work.version, after)])
    elif not session.changed(
        "move_paged_table",
        table_id=table.table_id,
        version=work.version,
        next_page=after,
        expected=state.recorded,
        expected_page=state.next_page,
    ):
        return False
    for page_id in work.closed:
        session.changed(
            "close_page", table_id=table.table_id, page_id=page_id, version=work.version
        )
        session.changed(
            "forget_page_texts", table_id=table.table_id, **page_texts.group_range(page_id)
        )
    for page_id, removed in work.updated.items():
        session.changed("update_page", table_id=table.table_id, page_id=page_id, removed=removed)
    for row in work.rows:
        session.insert(FILE_PAGES, [row])
    for row in work.columns:
        session.insert(PAGE_COLUMNS, [row])
    session.insert(PAGE_TEXTS, work.texts)
    return True


class _Paged(NamedTuple):
    """The version that pages reach (-1: none), the next number, and the version in the row."""

    version: int
    next_page: int
    recorded: int | None


def _paged(store: Store, table: TableRecord) -> _Paged:
    row = store.dialect.ask(lambda session: session.one("paged_table", table_id=table.table_id))
    if row is None:
        return _Paged(-1, 0, None)
    version, next_page, has_pages = row
    return _Paged(version if version or has_pages else -1, next_page, version)


def _changes_since(store: Store, table: TableRecord, version: int) -> int:
    row = store.dialect.ask(
        lambda session: session.one("changes_since", table_id=table.table_id, version=version)
    )
    return 0 if row is None else int(row[0])


# --- the pages of an imported history -------------------------------------------------

# Larger tables could exceed the 32-bit offsets of Arrow strings: their pages come from the catalog.
_MOST_BYTES = 2**30


@dataclass(slots=True)
class _Page:
    """A page to be written: its versions, and the row numbers of its files."""

    valid_from: int
    numbers: pa.Array
    valid_to: int = LIVE


@dataclass(frozen=True, slots=True)
class _History:
    """The pages of a whole history, and their files."""

    rows: list[Row]
    pages: list[_Page]
    files: pa.Table

    def columns(self, table_id: str, indexed: Sequence[Column]) -> Iterator[Row]:
        """The bounds of columns in each page."""
        stats, values = (
            self.files[name].combine_chunks() for name in ("stats", "partition_values")
        )
        whole = read_bounds(indexed, stats, values)
        for number, page in enumerate(self.pages):
            bounds = {key: known.take(page.numbers) for key, known in whole.items()}
            yield from column_rows(table_id, number, indexed, bounds)
            if page.valid_to == LIVE:
                yield files_row(table_id, number, self._files_of(page))

    def texts(self, table_id: str) -> Iterator[list[Row]]:
        """The groups of texts of each page that serves the newest version."""
        for number, page in enumerate(self.pages):
            if page.valid_to == LIVE:
                yield list(page_texts.text_rows(table_id, number, self._files_of(page)))

    def _files_of(self, page: _Page) -> pa.Table:
        return self.files.take(page.numbers).combine_chunks()


def history_pages(table_id: str, files: pa.Table, due: list[tuple[int, float]]) -> _History | None:
    """All pages of a history, built after these versions; None for tables that are too large.

    Each page is written once, because the removes are known in advance. No catalog is needed, so
    this can run beside the import.
    """
    columns = files.select([*listing.COLUMNS, "removed_version"])
    if columns.nbytes > _MOST_BYTES:
        return None
    whole = columns.combine_chunks()
    pages = list(_plan(files, due))
    rows = [_row(table_id, number, page, whole) for number, page in enumerate(pages)]
    return _History(rows, pages, whole)


def _plan(files: pa.Table, due: list[tuple[int, float]]) -> Iterator[_Page]:
    import pyarrow as pa
    import pyarrow.compute as pc

    added = files["added_version"].to_pylist()
    removed = files["removed_version"].combine_chunks()
    pages: list[_Page] = []
    current: list[_Page] = []
    begin = 0
    for version, most_gone in due:
        end = bisect_right(added, version, lo=begin)
        numbers = []
        open_pages = []
        for page in current:
            live = pc.greater(removed.take(page.numbers), version)
            gone = len(live) - (pc.sum(live).as_py() or 0)
            if gone > len(live) * most_gone:
                page.valid_to = version
                numbers.append(page.numbers.filter(live))
            else:
                open_pages.append(page)
        live = pc.greater(removed.slice(begin, end - begin), version)
        numbers.append(pc.add(pc.indices_nonzero(live).cast(pa.int64()), begin))
        every = pa.concat_arrays(numbers)
        new = [
            _Page(version, every.slice(start, PAGE_FILES))
            for start in range(0, len(every), PAGE_FILES)
        ]
        pages += new
        current = open_pages + new
        begin = end
    return iter(pages)


def _row(table_id: str, page_id: int, page: _Page, files: pa.Table) -> Row:
    row = page_row(table_id, page_id, page.valid_from, files.take(page.numbers).combine_chunks())
    return (*row[:3], page.valid_to, *row[4:])
