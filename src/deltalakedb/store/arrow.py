"""Files of the catalog as Arrow: the columns of a listing and their exact types.

An engine returns rows, or Arrow with types of its own; both become the same batches here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalakedb.store.relations import ACTIVE_FILES, REMOVE_FILES, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from deltalakedb.store.dialect import Row

KINDS: Mapping[str, Kind] = {
    name: kind
    for relation in (REMOVE_FILES, ACTIVE_FILES)
    for name, kind in zip(relation.columns, relation.kinds, strict=True)
}
"""What each column of dl_active_files and dl_remove_files holds."""

BATCH_ROWS = 1_000
"""How many rows become one batch where an engine gives rows: few enough to stay in its cache."""


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query on files, whose result has `columns`, with parameters written `:name`.

    `keys` are UUIDs and whole numbers, nothing else; `values` may be of any type that the driver
    takes. `by_index` means that it selects few rows, by an index. `at` is the
    version it lists: once that has expired, it finds nothing.
    """

    text: str
    columns: tuple[str, ...]
    keys: Mapping[str, str | int]
    values: Mapping[str, object] = field(default_factory=dict)
    by_index: bool = False
    at: int | None = None

    @property
    def params(self) -> dict[str, object]:
        """All parameters."""
        return {**self.keys, **self.values}


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of columns of files: string, int64 and bool."""
    import pyarrow as pa

    types = {Kind.INT: pa.int64(), Kind.BOOL: pa.bool_()}
    return pa.schema([(name, types.get(KINDS[name], pa.string())) for name in columns])


def batch_of_rows(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a driver as one batch."""
    import pyarrow as pa

    values = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = []
    for column, kind in zip(values, schema.types, strict=True):
        if kind == pa.bool_():  # SQLite has 0 and 1
            column = [None if value is None else bool(value) for value in column]  # noqa: PLW2901
        arrays.append(pa.array(column, kind))
    return pa.record_batch(arrays, schema=schema)


def batches_of_rows(
    fetch: Callable[[int], Sequence[Row]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The batches of a driver's `fetchmany`."""
    while rows := fetch(BATCH_ROWS):
        yield batch_of_rows(rows, schema)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the driver's types (JSON can be one of them), cast to the types of `schema`."""
    import pyarrow as pa

    if batch.schema.types == schema.types:
        return pa.record_batch(batch.columns, schema=schema)
    arrays = []
    for column, kind in zip(batch.columns, schema.types, strict=True):
        plain = column.storage if isinstance(column, pa.ExtensionArray) else column
        arrays.append(plain if plain.type == kind else plain.cast(kind))
    return pa.record_batch(arrays, schema=schema)
