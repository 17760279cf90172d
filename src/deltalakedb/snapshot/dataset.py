"""The rows of a snapshot as a pyarrow dataset, without Spark.

Guarantees:

- Rows, columns and types are the table's at that version: deletion vectors, column mapping,
  partition values and changes of the schema are applied.
- Filters are exact. Files and row groups that they cannot match are not read, nor are columns
  that neither the projection nor the filter needs.
- Memory is bounded: some files are read at once (`fragment_readahead`), one batch of each ahead.
- Batches come in the order of the files given, and of the rows in each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import StructType
from deltalakedb.errors import ConfigurationError, InvalidSchemaError, MissingDriverError
from deltalakedb.snapshot import guarantees
from deltalakedb.snapshot.data_files import DataFile, ReadRequest, TableLayout, read_data_file
from deltalakedb.snapshot.filesystem import TableFiles

if TYPE_CHECKING:
    import duckdb
    import polars as pl

_MODES: Final = ("none", "name", "id")
_BATCH_SIZE: Final = 131_072
_READ_AHEAD: Final = 4


def open_dataset(
    files: pa.Table,
    *,
    location: str,
    schema: StructType,
    partition_columns: Sequence[str] = (),
    column_mapping_mode: str = "none",
    storage_options: Mapping[str, str] | None = None,
    row_filter: pc.Expression | None = None,
) -> SnapshotDataset:
    """The rows of `files`, which are what `Snapshot.files()` returns.

    `row_filter` is a condition on the columns of the table; rows that do not fulfil it are not
    part of the dataset. Nothing is read before rows are asked for.
    """
    if column_mapping_mode not in _MODES:
        raise ConfigurationError(
            f"The column mapping mode is {column_mapping_mode!r}",
            fix=f"It has to be one of {', '.join(_MODES)}",
        )
    columns = ("path", "partition_values", "deletion_vector")
    missing = [name for name in columns if name not in files.column_names]
    if missing:
        raise ConfigurationError(
            f"The list of files has no column {missing[0]!r}",
            why=f"its columns are: {', '.join(files.column_names)}",
            fix="Pass what Snapshot.files() returns",
        )
    names = tuple(schema.field(name).name for name in partition_columns)
    layout = TableLayout(TableFiles(location, storage_options), schema, names, column_mapping_mode)
    return SnapshotDataset(layout, files.select(columns), row_filter)


class SnapshotDataset(pads.UnionDataset):  # type: ignore[misc, unused-ignore]
    """A table at one version as a pyarrow dataset; see `open_dataset`.

    DuckDB, polars and pyarrow read it through `scanner` with columns and filter. It is no dataset
    of pyarrow's own files, so what works on those inside pyarrow (a union of datasets, an Acero
    scan) is refused; use `to_table()` or `scanner().to_reader()` there.
    """

    def __init__(
        self, layout: TableLayout, files: pa.Table, row_filter: pc.Expression | None = None
    ) -> None:
        schema = schema_to_arrow(layout.schema)
        # Without this the C++ half of the object would be empty, and whatever touches it crash.
        super().__init__(schema, [_refused_by_name(schema)])
        self._layout = layout
        self._files = files
        self._row_filter = row_filter
        if row_filter is not None:
            self._check(columns=None, condition=row_filter)

    def __reduce__(self) -> tuple[Any, ...]:
        return SnapshotDataset, (self._layout, self._files, self._row_filter)

    def __repr__(self) -> str:
        return f"<SnapshotDataset of {self._files.num_rows} files at {self._layout.files.location}>"

    def scanner(  # noqa: PLR0917 -- as in pyarrow
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 -- pyarrow's name
        batch_size: int = _BATCH_SIZE,
        batch_readahead: int = 16,
        fragment_readahead: int = _READ_AHEAD,
        fragment_scan_options: Any = None,  # noqa: ARG002 -- pyarrow's signature
        use_threads: bool = True,  # noqa: FBT001, FBT002 -- as in pyarrow
        cache_metadata: bool = True,  # noqa: ARG002, FBT001, FBT002 -- as in pyarrow
        memory_pool: pa.MemoryPool | None = None,
    ) -> pads.Scanner:
        """A scan of these columns and rows, to be used once."""
        condition = self._condition(filter)
        self._check(columns=columns, condition=condition)
        needed = self._needed(columns, condition)
        batches = self._batches(
            needed,
            condition,
            batch_size=batch_size,
            ahead=fragment_readahead if use_threads else 1,
            use_threads=use_threads,
        )
        reader = pa.RecordBatchReader.from_batches(schema_to_arrow(needed), batches)
        return pads.Scanner.from_batches(
            reader,
            columns=self.schema.names if columns is None else columns,
            filter=condition,
            batch_size=batch_size,
            batch_readahead=batch_readahead,
            use_threads=use_threads,
            memory_pool=memory_pool,
        )

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # noqa: A002
        """How many rows there are; without a filter, from the footers of the files alone."""
        condition = self._condition(filter)
        if condition is not None:
            return int(self.scanner(columns=[], filter=filter, **options).count_rows())
        return sum(batch.num_rows for batch in self._batches(StructType(), None))

    def filter(self, expression: pc.Expression) -> SnapshotDataset:
        """The dataset of those rows that fulfil `expression` too."""
        return SnapshotDataset(self._layout, self._files, self._condition(expression))

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[SnapshotFragment]:  # noqa: A002
        """One fragment for each file that the filter can match."""
        files = self._matching_files(self._condition(filter))
        for i in range(files.num_rows):
            one = SnapshotDataset(self._layout, files.slice(i, 1), self._row_filter)
            yield SnapshotFragment(one)

    @property
    def partition_expression(self) -> pc.Expression:
        """What all rows have in common: nothing that is known."""
        return pc.scalar(value=True)

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Refused: the schema is the table's."""
        raise ConfigurationError(
            "The schema of a snapshot cannot be replaced",
            why=f"it is the table's at its version; {len(schema)} other columns were given",
            fix="Cast the result: dataset.to_table().cast(schema)",
        )

    def sort_by(self, sorting: Any, **options: Any) -> pads.InMemoryDataset:
        """All rows in memory, sorted."""
        return pads.InMemoryDataset(self.to_table()).sort_by(sorting, **options)

    def join(self, right_dataset: pads.Dataset, *args: Any, **options: Any) -> Any:
        """Join in memory; see `pyarrow.dataset.Dataset.join`."""
        mine, other = self._joinable(right_dataset)
        return mine.join(other, *args, **options)

    def join_asof(self, right_dataset: pads.Dataset, *args: Any, **options: Any) -> Any:
        """Join in memory; see `pyarrow.dataset.Dataset.join_asof`."""
        mine, other = self._joinable(right_dataset)
        return mine.join_asof(other, *args, **options)

    def _joinable(self, other: pads.Dataset) -> tuple[pads.Dataset, pads.Dataset]:
        if isinstance(other, SnapshotDataset):
            other = pads.InMemoryDataset(other.to_table())
        return pads.InMemoryDataset(self.to_table()), other

    def _condition(self, expression: pc.Expression | None) -> pc.Expression | None:
        if expression is None or self._row_filter is None:
            return self._row_filter if expression is None else expression
        return self._row_filter & expression

    def _check(self, *, columns: Any, condition: pc.Expression | None) -> None:
        """Refuse names that the table does not have before anything is read."""
        try:
            pads.Scanner.from_batches([], schema=self.schema, columns=columns, filter=condition)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidSchemaError(
                "The columns or the filter do not fit the table",
                why=str(error).partition("\n")[0],
                fix=f"The columns are: {', '.join(self.schema.names)}",
            ) from error

    def _needed(self, columns: Any, condition: pc.Expression | None) -> StructType:
        names: set[str] = set()
        if columns is None:
            names.update(self.schema.names)
        elif isinstance(columns, Mapping):
            for expression in columns.values():
                names |= guarantees.names_in(expression, self.schema)
        else:
            names.update(columns)
        if condition is not None:
            names |= guarantees.names_in(condition, self.schema)
        return StructType(tuple(f for f in self._layout.schema.fields if f.name in names))

    def _batches(
        self,
        columns: StructType,
        condition: pc.Expression | None,
        *,
        batch_size: int = _BATCH_SIZE,
        ahead: int = _READ_AHEAD,
        use_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        request = ReadRequest(columns, condition, batch_size, use_threads)
        files = self._matching_files(condition)
        sources = (
            read_data_file(self._layout, DataFile(*file), request)
            for batch in files.to_batches(1024)
            for file in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        return _read_ahead(sources, max(1, min(ahead, files.num_rows)))

    def _matching_files(self, condition: pc.Expression | None) -> pa.Table:
        """The files whose partition values the condition can match."""
        used = set() if condition is None else guarantees.names_in(condition, self.schema)
        used &= set(self._layout.partition_columns)
        if not used:
            return self._files
        paths = self._files.group_by("partition_values").aggregate([("path", "min")])
        texts = paths["partition_values"].to_pylist()
        known = [
            guarantees.of_constants(
                {
                    name: value
                    for name, value in self._layout.partition(text, path=path).items()
                    if name in used
                }
            )
            for text, path in zip(texts, paths["path_min"].to_pylist(), strict=True)
        ]
        found = guarantees.matching(known, condition, self.schema)
        if len(found) == len(texts):
            return self._files
        wanted = pa.array([texts[i] for i in found], paths["partition_values"].type)
        return self._files.filter(pc.is_in(self._files["partition_values"], wanted))


class SnapshotFragment(pads.Fragment):  # type: ignore[misc, unused-ignore]
    """One file of a snapshot; its rows and columns are those of the table."""

    def __init__(self, dataset: SnapshotDataset) -> None:
        self._dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        return SnapshotFragment, (self._dataset,)

    def __repr__(self) -> str:
        return f"<SnapshotFragment {self.path}>"

    @property
    def path(self) -> str:
        """The path as the log has it."""
        return str(self._dataset._files["path"][0])  # noqa: SLF001 -- the fragment's own dataset

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the table: files are converted while they are read."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """The partition values of the file."""
        layout, files = self._dataset._layout, self._dataset._files  # noqa: SLF001
        return guarantees.of_constants(
            layout.partition(files["partition_values"][0].as_py(), path=self.path)
        )

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> pads.Scanner:
        """A scan of the file; `schema` can only be the table's own."""
        if schema is not None and schema != self._dataset.schema:
            self._dataset.replace_schema(schema)
        return self._dataset.scanner(**options)

    def count_rows(self, **options: Any) -> int:
        """How many rows of the file there are."""
        return self._dataset.count_rows(**options)


def to_polars(dataset: SnapshotDataset) -> pl.DataFrame:
    """All rows as a polars DataFrame."""
    try:
        import polars as pl
    except ImportError:
        raise _not_installed("polars") from None
    frame = pl.from_arrow(dataset.to_table())
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 -- a table never becomes a Series
    return frame


def to_duckdb(
    dataset: SnapshotDataset, connection: duckdb.DuckDBPyConnection | None = None
) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation over the dataset, read when it is queried.

    Without a connection it belongs to DuckDB's default one, as `duckdb.sql` does.
    """
    try:
        import duckdb
    except ImportError:
        raise _not_installed("duckdb") from None
    return (duckdb if connection is None else connection).from_arrow(dataset)


def _not_installed(package: str) -> MissingDriverError:
    return MissingDriverError(
        f"The package {package} is not installed", fix=f"Install it: pip install {package}"
    )


def _read_ahead(sources: Iterator[Iterator[Any]], ahead: int) -> Iterator[Any]:
    """Everything from each source in turn, while the next item of `ahead` sources is prepared.

    A worker prepares one item and is free again: nobody who stops in the middle leaves one behind
    that waits for ever.
    """
    pool = ThreadPoolExecutor(ahead, thread_name_prefix="deltalakedb-read")
    try:
        waiting: deque[tuple[Iterator[Any], Any]] = deque()
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


def _refused_by_name(schema: pa.Schema) -> pads.Dataset:
    """A dataset that fails when pyarrow reads it by itself; the name of its file says why."""
    form, here = pads.ParquetFileFormat(), LocalFileSystem()
    fragment = form.make_fragment(
        "a SnapshotDataset is not read like this: use its to_table() or scanner().to_reader()", here
    )
    return pads.FileSystemDataset([fragment], schema, form, here)
