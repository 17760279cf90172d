"""Bulk loading: the rows of an imported history, and their totals.

Guarantees:

- `HistoryWriter` fills the ledger and dl_active_files in large inserts, inside the caller's
  transactions. Each add opens an interval that the next action on the same logical file ends.
- Files stay in columns. Large histories are spilled to disk: memory holds the key of each live file
  and a number for each file of the history.
- The keys of all files follow the planned columns of the newest metaData.
- `live_totals` and `live_files` are computed from dl_active_files alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from deltalakedb.actions import Action
from deltalakedb.actions.planning import Plan
from deltalakedb.store.relations import (
    ACTIVE_FILES,
    ADD_FILES,
    HEADS,
    LIVE,
    MIRROR_STATUS,
    REMOVE_FILES,
    UNPLANNED_FILES,
    VERSIONS,
    Relation,
)
from deltalakedb.store.rows import to_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.dialect import Row, Session
    from deltalakedb.store.store import Store

_PAGE: Final = 50_000
_IN_MEMORY: Final = 256 * 1024 * 1024
_SORTED_ROWS: Final = 200_000


class Intervals:
    """From which version to which each added file was live; files are known by their number."""

    def __init__(self) -> None:
        self.removed = array("q")
        """The version that ended each file, in the order in which they were added."""
        self._live: dict[tuple[str, str], int] = {}

    def apply(self, adds: pa.RecordBatch, removes: pa.RecordBatch) -> None:
        """Versions in a row: the next action on a file ends its interval, an add begins one."""
        live, removed = self._live, self.removed
        begins, ends = _by_version(adds), _by_version(removes)
        for version in sorted({*begins, *ends}):
            for key in ends.get(version, ()):
                number = live.pop(key, None)
                if number is not None:
                    removed[number] = version
            for key in begins.get(version, ()):
                number = live.get(key)
                if number is not None:
                    removed[number] = version
                live[key] = len(removed)
                removed.append(LIVE)


class Waiting:
    """Batches that wait for the end: in memory while they are few, then in a file."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = []
        if self._writer is not None:
            self._writer.close()
        if self._folder is not None:
            self._folder.cleanup()

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep a batch; all have the same columns."""
        self._size += batch.nbytes
        if self._writer is not None:
            self._writer.write_batch(batch)
            return
        self._held.append(batch)
        if self._size > _IN_MEMORY:
            self._to_disk()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield everything in order. Nothing can be added afterwards."""
        import pyarrow as pa

        if self._folder is None:
            yield from self._held
            return
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with pa.memory_map(self._path(), "r") as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    @property
    def in_memory(self) -> bool:
        """Whether all of it still is."""
        return self._folder is None

    def _path(self) -> str:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="deltalakedb-import-")
        return str(Path(self._folder.name) / "files.arrow")

    def _to_disk(self) -> None:
        import pyarrow as pa

        self._writer = pa.ipc.new_file(self._path(), self._held[0].schema)
        for batch in self._held:
            self._writer.write_batch(batch)
        self._held = []


class HistoryWriter:
    """Rows of one new table. `write` versions in their order, then `finish`."""

    def __init__(self, table_id: str) -> None:
        self._table_id = table_id
        self._waiting = Waiting()
        self._intervals = Intervals()
        self._used_plans: set[Plan | None] = set()
        self._files: pa.Table | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waiting.__exit__(kind, error, traceback)

    def keep(
        self, adds: pa.RecordBatch, removes: pa.RecordBatch, plans: Sequence[Plan | None]
    ) -> None:
        """Note what versions in a row add and remove; inside one, no file is named twice.

        `plans` are the plans of the keys of the added files; None where they have no keys.
        """
        self._waiting.append(adds)
        self._used_plans.update(plans)
        self._intervals.apply(adds, removes)

    def write(
        self,
        session: Session,
        adds: pa.RecordBatch,
        removes: pa.RecordBatch,
        others: Sequence[tuple[int, Sequence[Action]]],
    ) -> None:
        """Write the ledger rows of versions in a row."""
        import pyarrow as pa

        for relation, batch in ((ADD_FILES, adds), (REMOVE_FILES, removes)):
            if batch.num_rows:
                columns = pa.Table.from_batches([batch]).select(relation.columns[1:])
                session.insert_columns(relation, self._table_id, columns)
        rows: dict[Relation, list[Row]] = {}
        for version, actions in others:
            for relation, new_rows in to_rows(self._table_id, version, actions).items():
                rows.setdefault(relation, []).extend(new_rows)
        for relation, new_rows in rows.items():
            session.insert(relation, new_rows)

    def write_versions(
        self, session: Session, versions: Sequence[Row], status: Sequence[Row]
    ) -> None:
        """Write rows of dl_table_versions and dl_mirror_status, both without the table's id."""
        for relation, rows in ((VERSIONS, versions), (MIRROR_STATUS, status)):
            session.insert(relation, [(self._table_id, *row) for row in rows])

    def finish(self, store: Store, session: Session, version: int, plan: Plan) -> None:
        """The head, and all rows of dl_active_files, with keys by the newest plan."""
        session.insert(HEADS, [(self._table_id, version)])
        relation = ACTIVE_FILES if plan else UNPLANNED_FILES
        # DuckDB has no index to grow: it skips by ranges, which versions in order keep narrow.
        by_key = session.engine != "duckdb"
        for group in self.file_groups():
            session.insert_columns(relation, self._table_id, _sorted(group) if by_key else group)
        if self._used_plans - {plan}:
            # The planned columns changed after files of the history had been read.
            store.replan(session, self._table_id, plan)

    def files(self) -> pa.Table | None:
        """Every file that ever was, in order, with its interval; None where they are too many."""
        if not self._waiting.in_memory:
            return None
        if self._files is None and len(self._intervals.removed):
            batches = list(self._waiting.batches())
            self._files = _with_ends(batches, _int64(self._intervals.removed))
        return self._files

    def file_groups(self) -> Iterator[pa.Table]:
        """Yield the same in batches."""
        whole = self.files()
        if whole is not None:
            for start in range(0, whole.num_rows, _SORTED_ROWS):
                yield whole.slice(start, _SORTED_ROWS)
            return
        removed = _int64(self._intervals.removed)
        start = 0
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._waiting.batches():
            held.append(batch)
            rows += batch.num_rows
            if rows >= _SORTED_ROWS:
                yield _with_ends(held, removed.slice(start, rows))
                start += rows
                held, rows = [], 0
        if rows:
            yield _with_ends(held, removed.slice(start, rows))


def _int64(values: array[int]) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _by_version(files: pa.RecordBatch) -> dict[int, list[tuple[str, str]]]:
    """Path and deletion vector of files that are in the order of versions."""
    import pyarrow.compute as pc

    keys = list(zip(files["path"].to_pylist(), files["dv_id"].to_pylist(), strict=True))
    runs = pc.run_end_encode(files["version"])
    ends = runs.run_ends.to_pylist()
    return {
        version: keys[start:end]
        for version, start, end in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)
    }


def _with_ends(batches: list[pa.RecordBatch], removed: pa.Array) -> pa.Table:
    import pyarrow as pa

    table = pa.Table.from_batches(batches).combine_chunks()
    names = ["added_version" if name == "version" else name for name in table.column_names]
    return table.rename_columns(names).append_column("removed_version", removed)


def _sorted(files: pa.Table) -> pa.Table:
    """In the order of their key: an index that grows at its end grows fast."""
    order = [("path", "ascending"), ("dv_id", "ascending"), ("removed_version", "ascending")]
    return files.sort_by(order)


def live_totals(
    session: Session, table_id: str, first: int, last: int
) -> Iterator[tuple[int, int, int]]:
    """For each version from `first` to `last`: how many files were live, and their bytes.

    It comes from dl_active_files alone.
    """
    files: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for added, removed, count, size in session.run("interval_totals", table_id=table_id):
        files[added] = files.get(added, 0) + int(count)
        sizes[added] = sizes.get(added, 0) + int(size)
        if removed != LIVE:
            files[removed] = files.get(removed, 0) - int(count)
            sizes[removed] = sizes.get(removed, 0) - int(size)
    live_files = live_bytes = 0
    for version in range(first, last + 1):
        live_files += files.get(version, 0)
        live_bytes += sizes.get(version, 0)
        yield version, live_files, live_bytes


def live_files(session: Session, table_id: str) -> Iterator[list[tuple[str, str, int]]]:
    """Path, deletion vector id and size of every live file, a page at a time."""
    path = dv_id = ""
    decode = session.decode_text
    while True:
        rows = session.run(
            "live_files_after", table_id=table_id, path=path, dv_id=dv_id, limit=_PAGE
        )
        page = [(decode(row[0]), decode(row[1]), int(row[2])) for row in rows]
        yield page
        if len(page) < _PAGE:
            return
        path, dv_id, _ = page[-1]
