"""The files that can hold rows for a condition on any column; Arrow compares their bounds.

Three ways lead to the candidates, and the same comparison decides in each:

- keys in the catalog, where the condition names a planned column that leads to few files;
- pages: their columns of bounds are read, and a page itself only where a file of it may match;
- the rows of dl_active_files, for tables without pages.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from deltalakedb.conditions import planned
from deltalakedb.conditions.bounds import (
    Bounds,
    Key,
    column_key,
    key_of,
    read_bounds,
)
from deltalakedb.conditions.key_ranges import key_ranges
from deltalakedb.conditions.predicate import Column, Constant, Predicate, columns_of
from deltalakedb.conditions.pruning import matching_files
from deltalakedb.forking import owned
from deltalakedb.snapshot import listing
from deltalakedb.snapshot.page_texts import is_few, read_few
from deltalakedb.snapshot.pages import (
    DECODERS,
    LEAST_FILES,
    Changes,
    Page,
    Pages,
    changes_of,
    damaged_page,
    pages_changed,
    pages_of,
    read_batch,
    read_page,
    without,
)
from deltalakedb.snapshot.resolve import check_version
from deltalakedb.store.arrow import schema_of
from deltalakedb.telemetry import span
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.conditions.planned import Sql
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session

_TEXTS: Final = ("stats", "partition_values")
_KEY: Final = ("path", "dv_id")
_PAGES_AT_ONCE: Final = 8
T = TypeVar("T")
_Compared: TypeAlias = "tuple[Pages, Mapping[int, pa.Array]]"
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class _PagesChangedError(Exception):
    """Pages were rebuilt while they were read; the rows of the catalog have the same files."""


@dataclass(frozen=True, slots=True)
class MatchingFiles:
    """The files that are live at a version and can hold rows for a predicate.

    `expected` is the number of live files, by the ledger: pages that have another are not used.
    """

    store: Store
    table: TableRecord
    version: int
    columns: tuple[str, ...]
    predicate: Predicate
    expected: int

    def read(self) -> pa.Table:
        """Read all of them."""
        import pyarrow as pa

        with span("deltalakedb.files", table=self.table.name):
            try:
                # Threads of our own, for this call alone: a fork finds none of them.
                with Threads(max_workers=DECODERS) as pool:
                    batches = list(self._batches(pool))
            except (_PagesChangedError, pa.ArrowException, OSError, ValueError):
                # Pages that are damaged or were rebuilt: the rows have the same files.
                self.store.metrics.count("page_failures_total")
                batches = list(self._of_rows())
            files = pa.Table.from_batches(batches, schema_of(self.columns))
        if not files.num_rows:
            check_version(self.store, self.table, self.version)
        self.store.metrics.count("rows_scanned", files.num_rows)
        return files

    def stream(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield all of them in batches, a page at a time."""
        import pyarrow as pa

        matches = 0
        try:
            with closing(self._batches(None)) as batches:
                for batch in batches:
                    matches += batch.num_rows
                    self.store.metrics.count("rows_scanned", batch.num_rows)
                    yield batch
        except _PagesChangedError:
            raise pages_changed(self.table) from None
        except (pa.ArrowException, OSError, ValueError) as error:
            self.store.metrics.count("page_failures_total")
            raise damaged_page(self.table, error) from error
        if not matches:
            check_version(self.store, self.table, self.version)

    def _batches(self, pool: Threads | None) -> Generator[pa.RecordBatch, None, None]:
        if self._contradicts_itself():
            return
        lookup, compared = self.store.dialect.ask(self._ways)
        keyed = None if lookup is None else self._by_keys(lookup)
        if keyed is not None:
            yield from self._filtered(keyed.to_batches())
            return
        if compared is None and lookup is not None and self.expected >= LEAST_FILES:
            compared = self.store.dialect.ask(self._compare)
        if compared is None:
            yield from self._of_rows()
            return
        pages, positions = compared
        reading = self._read_pages(pages, positions, pool)
        # While pages are read: the files removed and added since.
        changes = changes_of(
            self.store, self.table, self.version, pages, self._wide, expected=self.expected
        )
        if changes is None:
            yield from self._of_rows()
            return
        matches: Iterable[pa.RecordBatch] = (
            self._live(batch, changes) for batches in reading for batch in batches()
        )
        for batch in matches:
            yield batch.select(list(self.columns))
        yield from self._filtered(changes.added.to_batches())

    @property
    def _wide(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *_TEXTS)))

    @property
    def _named(self) -> tuple[Column, ...]:
        return columns_of(self.predicate)

    def _of_rows(self) -> Generator[pa.RecordBatch, None, None]:
        query = listing.files_at(self.table, self.version, self._wide)
        rows = self.store.dialect.list_files(query)
        name = f"The listing of the files of table {self.table.name!r}"
        with closing(owned(rows, name)) as batches:
            yield from self._filtered(batches)

    def _filtered(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Filter files with their statistics by the predicate."""
        for batch in batches:
            bounds = read_bounds(self._named, batch["stats"], batch["partition_values"])
            matches = batch.filter(matching_files(self.predicate, bounds, batch.num_rows))
            if matches.num_rows:
                yield matches.select(list(self.columns))

    def _contradicts_itself(self) -> bool:
        # A literal may equal several values of a column that was widened from single precision.
        columns = [column for column in self._named if not column.was_float]
        return self.predicate == Constant(value=False) or any(
            key_ranges(self.predicate, column) == [] for column in columns
        )

    def _ways(self, session: Session) -> tuple[Sql | None, _Compared | None]:
        """The lookup by keys of a planned column; where these lead to many files, the pages."""
        table_id = self.table.table_id
        row = session.one("plan", table_id=table_id)
        keys = planned.keys_of(self.predicate, None if row is None else row[0])
        if keys is not None:
            lookup = planned.few_files(session, keys, table_id, self._wide)
            if lookup is not None:
                return lookup, None
        return None, self._compare(session) if self.expected >= LEAST_FILES else None

    def _by_keys(self, lookup: Sql) -> pa.Table | None:
        """The files that keys lead to; None where the plan has changed."""
        return listing.read_looked_up(self.store, self.table, self.version, self._wide, lookup)

    # --- pages ----------------------------------------------------------------------------

    def _compare(self, session: Session) -> _Compared | None:
        """The pages, and the positions of matching files by page; None where there are no pages."""
        pages = pages_of(session, self.table, self.version)
        return None if pages is None else (pages, self._positions(session, pages.pages))

    def _read_pages(
        self, pages: Pages, positions: Mapping[int, pa.Array], pool: Threads | None
    ) -> Sequence[Callable[[], list[pa.RecordBatch]]]:
        """The matching files of a few pages each; with a pool they are being read.

        The thread that reads a page decodes it before the next: its memory is used again.
        """
        keys = _KEY if self.version > pages.paged else ()
        columns = tuple(dict.fromkeys((*self.columns, *keys)))
        few = {
            page.number: positions[page.number]
            for page in pages.pages
            if page.number in positions and is_few(positions[page.number], page.num_files)
        }

        def take(number: int, files: bytes, stats: bytes | None) -> pa.RecordBatch:
            batch = read_page(files, stats, columns)
            matches = positions[number]
            return batch if len(matches) == batch.num_rows else batch.take(matches)

        ask = self.store.dialect.ask

        def read(run: Sequence[int]) -> list[pa.RecordBatch]:
            with_stats = "stats" in columns
            return ask(lambda session: self._each(session, run, take, with_stats=with_stats))

        def read_grouped(run: Sequence[int]) -> dict[int, pa.RecordBatch]:
            grouped = {number: few[number] for number in run if number in few}
            where = (self.table.table_id, self.version)
            return ask(lambda session: read_few(session, *where, grouped, columns))

        def read_one(run: Sequence[int]) -> list[pa.RecordBatch]:
            return list((read_grouped(run) if run[0] in few else {}).values()) or read(run)

        if pool is None:
            return [partial(read_one, run) for run in _runs(pages.pages, positions, 1)]
        # In this thread: each group takes the interpreter's lock, which threads would fight for.
        found = read_grouped(list(few)) if few else {}
        whole = positions.keys() - found
        most = min(_PAGES_AT_ONCE, -(-len(whole) // DECODERS))
        runs = _runs(pages.pages, whole, most)
        return [lambda: list(found.values()), *(pool.submit(read, run).result for run in runs)]

    def _positions(self, session: Session, pages: Sequence[Page]) -> dict[int, pa.Array]:
        """The positions of live files that can match, by page; pages without any are left out."""
        import pyarrow.compute as pc

        stored = self._stored_bounds(session, pages)
        possible = [page for page in pages if stored.get(page.number, {}) is not None]
        if not possible:
            return {}
        known = [self._bounds(session, page, stored.get(page.number) or {}) for page in possible]
        columns = [key_of(column) for column in self._named]
        bounds = {key: Bounds.joined([one[key] for one in known]) for key in columns}
        mask = matching_files(self.predicate, bounds, sum(page.num_files for page in possible))
        positions = {}
        start = 0
        for page in possible:
            matches = mask.slice(start, page.num_files)
            start += page.num_files
            if page.live is not None:
                matches = pc.and_(matches, page.live)
            if matches.true_count:
                positions[page.number] = pc.indices_nonzero(matches)
        return positions

    def _stored_bounds(
        self, session: Session, among: Sequence[Page]
    ) -> dict[int, dict[Key, Bounds | None] | None]:
        """The stored bounds by page; None for a page that cannot match, and for another type."""
        pages: dict[int, dict[Key, Bounds | None] | None] = {}
        first, last = among[0].number, among[-1].number
        for column in self._named:
            ranges = key_ranges(self.predicate, column)
            params = {
                "table_id": self.table.table_id,
                "version": self.version,
                "column_key": column_key(column),
                "type": str(column.type),
                "lowest": _LOWEST if ranges is None else min((a for a, _ in ranges), default=0),
                "highest": _HIGHEST if ranges is None else max((b for _, b in ranges), default=-1),
            }
            for number, data_type, data in session.page_bounds(first, last, **params):
                known = pages.setdefault(number, {})
                if data is None:
                    pages[number] = None
                elif known is not None:
                    is_typed = data_type == str(column.type)
                    known[key_of(column)] = _decoded(data) if is_typed else None
        return pages

    def _bounds(
        self, session: Session, page: Page, stored: Mapping[Key, Bounds | None]
    ) -> Mapping[Key, Bounds]:
        """The bounds of the named columns in a page; parsed where none are stored."""
        bounds = {key: known for key, known in stored.items() if known is not None}
        if any(len(known.has_value) != page.num_files for known in bounds.values()):
            raise _PagesChangedError
        missing = [column for column in self._named if key_of(column) not in bounds]
        if missing:
            read = lambda _, files, stats: read_page(files, stats, _TEXTS)  # noqa: E731
            (batch,) = self._each(session, [page.number], read, with_stats=True)
            bounds |= read_bounds(missing, batch["stats"], batch["partition_values"])
        return bounds

    def _each(
        self, session: Session, numbers: Sequence[int], work: Callable[..., T], *, with_stats: bool
    ) -> list[T]:
        """The results of `work` for adjacent pages; it takes their number, files, statistics."""
        rows = session.pages_between(
            self.table.table_id, self.version, numbers[0], numbers[-1], with_stats=with_stats
        )
        results = [work(*row) for row in rows]
        if len(results) < len(numbers):
            raise _PagesChangedError
        return results

    def _live(self, files: pa.RecordBatch, changes: Changes) -> pa.RecordBatch:
        """Files of a page, without those removed since."""
        import pyarrow as pa

        if changes.removed is None or not changes.removed.num_rows:
            return files
        rest = without(pa.Table.from_batches([files]), changes.removed).combine_chunks()
        return rest.to_batches()[0] if rest.num_rows else files.slice(0, 0)


def _runs(
    pages: Sequence[Page], wanted: Container[int], most: int
) -> Generator[list[int], None, None]:
    """The numbers of adjacent wanted pages, at most `most` at a time."""
    run: list[int] = []
    for page in pages:
        is_wanted = page.number in wanted
        if is_wanted:
            run.append(page.number)
        if run and (not is_wanted or len(run) == most):
            yield run
            run = []
    if run:
        yield run


def _decoded(data: bytes) -> Bounds:
    batch = read_batch(data)
    ordered = "low" in batch.schema.names
    return Bounds(
        batch["low"] if ordered else None,
        batch["high"] if ordered else None,
        batch["has_value"],
        batch["has_null"],
    )
