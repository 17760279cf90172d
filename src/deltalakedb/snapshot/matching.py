"""Files that may hold rows for a condition on any column; Arrow compares their bounds.

Three ways lead to the candidates, and the same comparison decides in each:

- keys in the catalog, where the condition names a planned column that leads to few files;
- pages: their columns of bounds are read, and a page itself only where a file of it may match;
- the rows of dl_active_files, for tables without pages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.conditions import planned
from deltalakedb.conditions.bounds import Bounds, Key, column_key, key_of, read_bounds
from deltalakedb.conditions.key_ranges import key_ranges
from deltalakedb.conditions.predicate import Column, Constant, Predicate, columns_of
from deltalakedb.conditions.pruning import matching_files
from deltalakedb.forking import owned
from deltalakedb.snapshot import listing
from deltalakedb.snapshot.pages import (
    DECODERS,
    LEAST_FILES,
    Page,
    PagedFiles,
    damaged_page,
    open_pages,
    pages_changed,
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

    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session

_TEXTS: Final = ("stats", "partition_values")
_KEY: Final = ("path", "dv_id")
# Where fewer files of a page match, one in so many, their statistics are looked up, not decoded.
_FEW: Final = 50
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class _PagesChangedError(Exception):
    """Pages were made anew while they were read; the rows of the catalog have the same files."""


@dataclass(frozen=True, slots=True)
class MatchingFiles:
    """The files that are live at a version and may hold rows for a predicate.

    `expected` is the number of live files, by the ledger: pages that have another are not used.
    """

    store: Store
    table: TableRecord
    version: int
    columns: tuple[str, ...]
    predicate: Predicate
    expected: int

    def read(self) -> pa.Table:
        """All of them."""
        import pyarrow as pa

        with span("deltalakedb.files", table=self.table.name):
            try:
                # Threads of our own, for this call alone: a fork finds none of them.
                with Threads(max_workers=DECODERS) as pool:
                    batches = list(self._batches(pool))
            except (_PagesChangedError, pa.ArrowException, OSError, ValueError):
                # Pages that are damaged or were made anew: the rows have the answer.
                self.store.metrics.count("page_failures_total")
                batches = list(self._of_rows())
            files = pa.Table.from_batches(batches, schema_of(self.columns))
        if not files.num_rows:
            check_version(self.store, self.table, self.version)
        self.store.metrics.count("rows_scanned", files.num_rows)
        return files

    def stream(self) -> Generator[pa.RecordBatch, None, None]:
        """All of them in batches, a page at a time."""
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
        if self.predicate == Constant(value=False):
            return
        keyed = self._by_keys()
        if keyed is not None:
            yield from self._filtered(keyed.to_batches())
            return
        paged = None
        if self.expected >= LEAST_FILES:
            paged = open_pages(
                self.store, self.table, self.version, self._wide, expected=self.expected
            )
        if paged is None:
            yield from self._of_rows()
            return
        yield from self._of_pages(paged, pool)
        yield from self._filtered(paged.added.to_batches())

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
        """Files with their statistics at hand: those that may match."""
        for batch in batches:
            bounds = read_bounds(self._named, batch["stats"], batch["partition_values"])
            matches = batch.filter(matching_files(self.predicate, bounds, batch.num_rows))
            if matches.num_rows:
                yield matches.select(list(self.columns))

    def _by_keys(self) -> pa.Table | None:
        """The files that the keys of a planned column lead to; None where these are no help."""
        import pyarrow as pa

        dialect, table_id = self.store.dialect, self.table.table_id
        row = dialect.ask(lambda session: session.one("plan", table_id=table_id))
        keys = planned.keys_of(self.predicate, None if row is None else row[0])
        if keys is None:
            return None
        if keys.finds_nothing:
            return pa.Table.from_batches([], schema_of(self._wide))
        slot = None
        if dialect.engine != "duckdb":  # which reads columns, and looks nothing up
            slot = dialect.ask(lambda session: planned.best_slot(session, keys, table_id))
        if slot is None:
            return None
        lookup = planned.looked_up(dialect.engine, self._wide, keys, slot)
        return listing.read_looked_up(self.store, self.table, self.version, self._wide, lookup)

    # --- pages ----------------------------------------------------------------------------

    def _of_pages(
        self, paged: PagedFiles, pool: Threads | None
    ) -> Generator[pa.RecordBatch, None, None]:
        bounds = self._bounds_by_page()
        narrow = tuple(name for name in dict.fromkeys((*self.columns, *_KEY)) if name != "stats")
        decoding = []
        for page in paged.pages:
            positions = self._positions(page, bounds.get(page.number, {}))
            if positions is None or not len(positions):
                continue
            many = "stats" in self.columns and len(positions) > page.num_files // _FEW
            columns = (*narrow, "stats") if many else narrow
            files, stats = self._page(page, with_stats=many)
            if pool is None:
                yield from self._finished(_take(files, stats, columns, positions), paged)
            else:
                decoding.append(pool.submit(_take, files, stats, columns, positions))
        for rows in decoding:
            yield from self._finished(rows.result(), paged)

    def _bounds_by_page(self) -> dict[int, Mapping[Key, Bounds] | None]:
        """The bounds that pages keep, by page; None for a page without a match."""
        pages: dict[int, dict[Key, Bounds] | None] = {}
        for column in self._named:
            ranges = key_ranges(self.predicate, column)
            params = {
                "table_id": self.table.table_id,
                "version": self.version,
                "column_key": column_key(column),
                "lowest": _LOWEST if ranges is None else min((a for a, _ in ranges), default=0),
                "highest": _HIGHEST if ranges is None else max((b for _, b in ranges), default=-1),
            }
            for number, data_type, data in self._ask_bounds(params):
                known = pages.setdefault(number, {})
                if data is None:
                    pages[number] = None
                elif known is not None and data_type == str(column.type):
                    known[key_of(column)] = _stored(data)
        return dict(pages)

    def _ask_bounds(self, params: Mapping[str, object]) -> Sequence[tuple[int, str, bytes | None]]:
        return self.store.dialect.ask(lambda session: session.run_binary("page_bounds", **params))

    def _positions(self, page: Page, known: Mapping[Key, Bounds] | None) -> pa.Array | None:
        """Where the live files of a page stand that may match; None where there are none."""
        import pyarrow.compute as pc

        if known is None:
            return None
        missing = [column for column in self._named if key_of(column) not in known]
        if missing:
            texts = read_page(*self._page(page, with_stats=True), _TEXTS)
            parsed = read_bounds(missing, texts["stats"], texts["partition_values"])
            known = {**known, **parsed}
        mask = matching_files(self.predicate, known, page.num_files)
        if page.removed is not None:
            until = read_batch(page.removed, ["removed_version"]).column(0)
            mask = pc.and_(mask, pc.greater(until, self.version))
        return pc.indices_nonzero(mask)

    def _page(self, page: Page, *, with_stats: bool) -> tuple[bytes, bytes | None]:
        row = self.store.dialect.ask(
            lambda session: session.page(self.table.table_id, page.number, with_stats=with_stats)
        )
        if row is None:
            raise _PagesChangedError
        return row[0], row[1]

    def _finished(
        self, rows: pa.RecordBatch, paged: PagedFiles
    ) -> Generator[pa.RecordBatch, None, None]:
        """Rows of a page, without files removed since, with their statistics."""
        import pyarrow as pa

        batches = [rows]
        if paged.removed is not None:
            batches = without(pa.Table.from_batches([rows]), paged.removed).to_batches()
        for batch in batches:
            if "stats" in self.columns and "stats" not in batch.schema.names:
                texts = pa.array(self._look_up_stats(batch), pa.string())
                yield batch.append_column("stats", texts).select(list(self.columns))
            else:
                yield batch.select(list(self.columns))

    def _look_up_stats(self, files: pa.RecordBatch) -> list[str | None]:
        paths, vectors = files["path"].to_pylist(), files["dv_id"].to_pylist()

        def ask(session: Session) -> dict[tuple[str, str], str | None]:
            rows = session.run(
                "stats_among",
                table_id=self.table.table_id,
                version=self.version,
                paths=session.array(list(dict.fromkeys(paths))),
            )
            decode = session.decode_text
            return {
                (decode(path), decode(dv_id)): None if text is None else decode(text)
                for path, dv_id, text in rows
            }

        texts = self.store.dialect.ask(ask)
        try:
            return [texts[key] for key in zip(paths, vectors, strict=True)]
        except KeyError:
            check_version(self.store, self.table, self.version)
            raise _PagesChangedError from None


def _take(
    files: bytes, stats: bytes | None, columns: Sequence[str], positions: pa.Array
) -> pa.RecordBatch:
    return read_page(files, stats, columns).take(positions)


def _stored(data: bytes) -> Bounds:
    batch = read_batch(data)
    ordered = "low" in batch.schema.names
    return Bounds(
        batch["low"] if ordered else None,
        batch["high"] if ordered else None,
        batch["has_value"],
        batch["has_null"],
    )
