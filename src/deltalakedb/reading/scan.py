"""Scans a list of files: reads, filters and projects their rows.

Guarantees:

- Batches come in the order of the files, and of the rows in each.
- Small files, of which a table may have many, are read in groups by one worker, and their rows are
  filtered together. The first groups are the smallest, so that a few rows do not wait for many
  files.
- The worker that decodes rows also filters them: no thread of pyarrow calls into Python.
- A scanner can be used any number of times; each use reads the files again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from deltalakedb.reading.data_files import (
    SMALL_ROWS,
    DataFile,
    ReadRequest,
    TableLayout,
    empty_rows,
    read_data_file,
)
from deltalakedb.threads import Threads

_GROUP_BYTES: Final = 1 << 20
_GROUP_FILES: Final = 64
_TINY_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows and columns to select from a batch; `schema` is that of the result."""

    schema: pa.Schema
    columns: list[str] | Mapping[str, pc.Expression] | None = None
    condition: pc.Expression | None = None

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the selected part of a batch."""
        if self.condition is None and not isinstance(self.columns, Mapping):
            yield batch if self.columns is None else batch.select(self.columns)
            return
        rows = pads.InMemoryDataset(batch).to_table(
            columns=self.columns, filter=self.condition, use_threads=False
        )
        if len(self.schema):
            yield from rows.to_batches()
        else:
            yield empty_rows(rows.num_rows)


def scan(
    layout: TableLayout, files: pa.Table, request: ReadRequest, selection: Selection, ahead: int
) -> Iterator[pa.RecordBatch]:
    """The selected rows of `files`, of which `ahead` (or groups of small ones) are read at once."""
    sources = (_read(layout, group, request, selection) for group in _groups(_each(files)))
    return read_ahead(sources, _workers(layout, files, ahead))


def _workers(layout: TableLayout, files: pa.Table, ahead: int) -> int:
    count: int = files.num_rows
    if (
        count
        and layout.files.is_local
        and pc.sum(files["size_bytes"]).as_py() < _TINY_BYTES * count
    ):
        # Opening them is most of the work, and it holds the interpreter lock: threads do not help.
        return 1
    return max(1, min(ahead, count))


def _read(
    layout: TableLayout, group: list[DataFile], request: ReadRequest, selection: Selection
) -> Iterator[pa.RecordBatch]:
    batches = chain.from_iterable(read_data_file(layout, file, request) for file in group)
    for batch in _together(batches, min(request.batch_size, SMALL_ROWS)):
        yield from selection.of(batch)


def _each(files: pa.Table) -> Iterator[DataFile]:
    for batch in files.to_batches(1024):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield DataFile(*values)


def _groups(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Group adjacent small files; any other file is a group of its own."""
    group: list[DataFile] = []
    size, most = 0, 1
    for file in files:
        if group and (len(group) == most or size + file.size_bytes > _GROUP_BYTES):
            yield group
            group, size, most = [], 0, min(2 * most, _GROUP_FILES)
        group.append(file)
        size += file.size_bytes
    if group:
        yield group


def _together(batches: Iterable[pa.RecordBatch], enough: int) -> Iterator[pa.RecordBatch]:
    """Combine adjacent batches with fewer than `enough` rows together."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if held and rows + batch.num_rows > enough:
            yield _one(held, rows)
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield _one(held, rows)


def _one(batches: list[pa.RecordBatch], rows: int) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches[0].num_columns else empty_rows(rows)


T = TypeVar("T")


def read_ahead(sources: Iterator[Iterator[T]], ahead: int) -> Iterator[T]:
    """Yield the items of each source in turn; prepare the next items of `ahead` sources meanwhile.

    A worker prepares one item and is free again: a consumer that stops early leaves no worker
    behind that waits for ever.
    """
    pool = Threads(ahead, thread_name_prefix="deltalakedb-read")
    try:
        waiting: deque[tuple[Iterator[T], Future[T | None]]] = deque()
        while True:
            while len(waiting) < ahead and (source := next(sources, None)) is not None:
                waiting.append((source, pool.submit(next, source, None)))
            if not waiting:
                return
            source, future = waiting[0]
            item = future.result()
            if item is None:
                waiting.popleft()
                continue
            waiting[0] = (source, pool.submit(next, source, None))
            yield item
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class RowScanner:
    """Batches of `schema` as often as `batches` is called."""

    def __init__(
        self,
        *,
        dataset_schema: pa.Schema,
        schema: pa.Schema,
        batches: Callable[[], Iterator[pa.RecordBatch]],
    ) -> None:
        self._dataset_schema = dataset_schema
        self._schema = schema
        self._batches = batches

    @property
    def dataset_schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._dataset_schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the batches."""
        return self._schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches."""
        return self._batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as a stream."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # In memory: DuckDB lets threads of pyarrow's read ahead of a query, and a process that ends
        # in the middle of one would hang where they wait for Python. `to_reader()` is bounded.
        return self.to_table().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """The rows in memory."""
        if len(self._schema):
            return pa.Table.from_batches(self._batches(), schema=self._schema)
        return pa.Table.from_batches([empty_rows(self.count_rows())])

    def head(self, num_rows: int) -> pa.Table:
        """The first rows; no more files are read than they need, and those read ahead."""
        parts, missing = [], num_rows
        batches = self._batches()
        while missing > 0 and (batch := next(batches, None)) is not None:
            parts.append(batch.slice(0, missing))
            missing -= batch.num_rows
        return pa.Table.from_batches(parts, schema=self._schema)

    def take(self, indices: Any) -> pa.Table:
        """The rows at these positions."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self._batches())
