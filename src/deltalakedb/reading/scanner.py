"""A scan of the rows of a snapshot, with the methods of a pyarrow Scanner.

Guarantees:

- It can be used any number of times; each use reads the files anew.
- No thread of pyarrow calls into Python: whoever takes a batch runs what makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from deltalakedb.reading.data_files import empty_rows


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
        found, missing = [], num_rows
        batches = self._batches()
        while missing > 0 and (batch := next(batches, None)) is not None:
            found.append(batch.slice(0, missing))
            missing -= batch.num_rows
        return pa.Table.from_batches(found, schema=self._schema)

    def take(self, indices: Any) -> pa.Table:
        """The rows of these numbers."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """How many rows there are."""
        return sum(batch.num_rows for batch in self._batches())
