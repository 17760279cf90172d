"""From a list of files to the batches of a scan.

Guarantees:

- Batches come in the order of the files, and of the rows in each.
- Small files, of which a table may have many, are read in groups by one worker, and their rows are
  filtered together. The first groups are the smallest, so that whoever wants a few rows has not
  to wait for many files.
- Rows are picked out by the worker that decoded them, so nothing waits for pyarrow's threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

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
from deltalakedb.reading.prefetch import read_ahead

_GROUP_BYTES: Final = 1 << 20
_GROUP_FILES: Final = 64
_TINY_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and columns of a batch are wanted; `schema` is that of the result."""

    schema: pa.Schema
    columns: list[str] | Mapping[str, pc.Expression] | None = None
    condition: pc.Expression | None = None

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The wanted part of a batch."""
        if self.condition is None and not isinstance(self.columns, Mapping):
            yield batch if self.columns is None else batch.select(self.columns)
            return
        found = pads.InMemoryDataset(batch).to_table(
            columns=self.columns, filter=self.condition, use_threads=False
        )
        if len(self.schema):
            yield from found.to_batches()
        else:
            yield empty_rows(found.num_rows)


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
        # Opening them is most of the work; it is Python's, where threads only hinder each other.
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
    """Neighbours that are small together; any other file is a group of its own."""
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
    """The same rows; neighbours that have fewer than `enough` rows together are one batch."""
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
