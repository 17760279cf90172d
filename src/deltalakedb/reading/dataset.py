"""Reads the rows of a snapshot without Spark.

`SnapshotRows` reads every table. If pyarrow reads the same rows from the same files
(`plain_dataset.py`), users get a dataset of pyarrow instead.

Guarantees:

- Rows, columns and types are the table's at that version: deletion vectors, column mapping,
  partition values and changes of the schema are applied.
- Filters are exact. Files and row groups that they cannot match are not read, nor are columns
  that neither the projection nor the filter needs. The rows of a snapshot are listed by the
  catalog for each scan.
- Memory is bounded: a few files, or groups of small ones, are read at once (`fragment_readahead`),
  one batch of each ahead.
- Batches come in the order of the files, and of the rows in each.
- A list of files can hold files without matching rows, and never lacks one that has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import DOUBLE, FLOAT, StructType
from deltalakedb.actions.properties import TableProperties
from deltalakedb.arguments import optional_kind
from deltalakedb.conditions import guarantees
from deltalakedb.conditions.predicate import (
    And,
    Constant,
    Opaque,
    Or,
    Predicate,
    conjunction,
    disjunction,
)
from deltalakedb.conditions.row_filter import row_filter as expression_of
from deltalakedb.conditions.where import parse_where, predicate_of
from deltalakedb.errors import (
    ConfigurationError,
    InvalidConditionError,
    InvalidSchemaError,
    MissingDriverError,
)
from deltalakedb.reading import plain_dataset
from deltalakedb.reading.data_files import ReadRequest, TableLayout
from deltalakedb.reading.filesystem import TableFiles
from deltalakedb.reading.scan import RowScanner, Selection, scan

if TYPE_CHECKING:
    import duckdb
    import polars as pl

    from deltalakedb.actions import Metadata
    from deltalakedb.actions import Protocol as TableProtocol
    from deltalakedb.store import TableRecord

_NAN: Final = re.compile(r"\bnan\b", re.IGNORECASE)
COLUMNS: Final = ("path", "partition_values", "deletion_vector", "size_bytes")
"""The columns of `Snapshot.files()` that reading needs."""


class ReadableSnapshot(Protocol):
    """The interface of a snapshot that reading needs."""

    @property
    def table(self) -> TableRecord: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def protocol(self) -> TableProtocol: ...
    @property
    def schema(self) -> StructType: ...
    @property
    def partition_columns(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def storage_options(self) -> Mapping[str, str]: ...

    def files(self, where: Any = None, *, columns: Iterable[str] | None = None) -> pa.Table:
        """The files that can have rows which fulfil `where`."""


class FileList(Protocol):
    """Files of one table at one version."""

    def narrowed(self, condition: pc.Expression) -> FileList:
        """Return the files that can match a pyarrow expression, or more."""

    def table(self) -> pa.Table:
        """The files, with `COLUMNS`."""


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """A list of files in memory."""

    files: pa.Table

    def narrowed(self, condition: pc.Expression) -> ListedFiles:  # noqa: ARG002 -- there are no statistics here
        return self

    def table(self) -> pa.Table:
        return self.files


@dataclass(frozen=True, slots=True)
class CatalogFiles:
    """The files of a snapshot, listed by the catalog for each scan."""

    snapshot: ReadableSnapshot
    predicate: Predicate

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has no connection to the catalog.
        return ListedFiles, (self.table(),)

    def narrowed(self, condition: pc.Expression) -> CatalogFiles:
        planned = _plannable(condition, self.snapshot)
        return CatalogFiles(self.snapshot, conjunction([self.predicate, planned]))

    def table(self) -> pa.Table:
        where = None if self.predicate == Constant(value=True) else self.predicate
        return self.snapshot.files(where, columns=COLUMNS)


def _plannable(condition: pc.Expression, snapshot: ReadableSnapshot) -> Predicate:
    """Return the part of a pyarrow expression that the catalog evaluates with the same result."""
    # To pyarrow NaN is unequal and in no order, to us as to Spark it is the greatest number.
    if _NAN.search(str(condition)):
        return Constant(value=True)
    try:
        predicate = parse_where(
            condition, snapshot.schema, snapshot.partition_columns, strict=False
        )
    except InvalidConditionError:
        # pyarrow, which filters the rows, compares types that we do not.
        return Constant(value=True)
    return _without_floats(predicate)


def _without_floats(predicate: Predicate) -> Predicate:
    if isinstance(predicate, And):
        return conjunction(_without_floats(part) for part in predicate.parts)
    if isinstance(predicate, Or):
        return disjunction(_without_floats(part) for part in predicate.parts)
    if isinstance(predicate, Constant | Opaque) or predicate.column.type not in (FLOAT, DOUBLE):
        return predicate
    return Opaque(str(predicate))


_MODES: Final = ("none", "name", "id")
_BATCH_SIZE: Final = 131_072
_READ_AHEAD: Final = 4


def dataset_of(snapshot: ReadableSnapshot, where: Any = None) -> pads.Dataset | SnapshotRows:
    """Return the rows that fulfil `where`: a pyarrow dataset if the table is plain."""
    predicate = predicate_of(where, snapshot.metadata)
    layout = layout_of(snapshot)
    if plain_dataset.is_plain(layout, snapshot.protocol):
        condition = None if predicate is None else expression_of(predicate)
        dataset = plain_dataset.open_plain(layout, snapshot.files(predicate, columns=COLUMNS))
        if dataset is not None:
            return dataset if condition is None else dataset.filter(condition)
    return rows_of(snapshot, predicate)


def rows_of(snapshot: ReadableSnapshot, where: Any = None) -> SnapshotRows:
    """Return the rows of a snapshot that fulfil `where`, in any form that `parse_where` accepts."""
    predicate = predicate_of(where, snapshot.metadata)
    layout = layout_of(snapshot)
    if predicate is None:
        return SnapshotRows(layout, CatalogFiles(snapshot, Constant(value=True)))
    return SnapshotRows(layout, CatalogFiles(snapshot, predicate), expression_of(predicate))


def layout_of(snapshot: ReadableSnapshot) -> TableLayout:
    """Return the layout of the files of a snapshot."""
    table = snapshot.table
    return _layout(
        TableFiles(table.location, snapshot.storage_options, table.allowed_roots),
        snapshot.schema,
        snapshot.partition_columns,
        TableProperties(snapshot.properties).column_mapping_mode,
    )


def open_dataset(
    files: pa.Table,
    *,
    location: str,
    schema: StructType,
    partition_columns: Sequence[str] = (),
    column_mapping_mode: str = "none",
    storage_options: Mapping[str, str] | None = None,
    allowed_roots: Sequence[str] = (),
    row_filter: pc.Expression | None = None,
) -> SnapshotRows:
    """The rows of `files`, which are what `Snapshot.files()` returns.

    `allowed_roots` are where files may lie beside the location (`Table.allowed_roots`).
    `row_filter` is a condition on the columns of the table; rows that do not fulfil it are left
    out. Nothing is read before rows are asked for.
    """
    if column_mapping_mode not in _MODES:
        raise ConfigurationError(
            f"The column mapping mode is {column_mapping_mode!r}",
            fix=f"It has to be one of {', '.join(_MODES)}",
        )
    missing = [name for name in COLUMNS if name not in files.column_names]
    if missing:
        raise ConfigurationError(
            f"The list of files has no column {missing[0]!r}",
            why=f"its columns are: {', '.join(files.column_names)}",
            fix="Pass what Snapshot.files() returns",
        )
    layout = _layout(
        TableFiles(location, storage_options, allowed_roots),
        schema,
        partition_columns,
        column_mapping_mode,
    )
    return SnapshotRows(layout, ListedFiles(files.select(COLUMNS)), row_filter)


def _layout(
    files: TableFiles,
    schema: StructType,
    partition_columns: Sequence[str],
    column_mapping_mode: str,
) -> TableLayout:
    names = tuple(schema.field(name).name for name in partition_columns)
    return TableLayout(files, schema, names, column_mapping_mode)


class SnapshotRows:
    """The rows of a table at one version; see `open_dataset`.

    It has the methods of a pyarrow dataset that read. DuckDB, polars and pyarrow take it as a
    table in memory, by Arrow's C interface. It is no dataset of pyarrow's: that would show rows
    that deletion vectors hide, and columns under the names that they have in files.
    """

    def __init__(
        self, layout: TableLayout, files: FileList, row_filter: pc.Expression | None = None
    ) -> None:
        self._schema = schema_to_arrow(layout.schema)
        self._layout = layout
        self._files = files
        self._row_filter = row_filter
        if row_filter is not None:
            self._projected(None, row_filter)

    def __reduce__(self) -> tuple[Any, ...]:
        return SnapshotRows, (self._layout, self._files, self._row_filter)

    def __repr__(self) -> str:
        return f"<SnapshotRows of the table at {self._layout.files.location}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 -- pyarrow's name
        batch_size: int = _BATCH_SIZE,
        *,
        fragment_readahead: int = _READ_AHEAD,
        use_threads: bool = True,
    ) -> RowScanner:
        """A scan of these columns and rows; all other ways to read go through it.

        `columns` are names, or expressions by name.
        """
        wanted = _checked(columns)
        condition = self._condition(filter)
        schema = self._projected(wanted, condition)
        request = ReadRequest(self._needed(wanted, condition), condition, batch_size, use_threads)

        def batches() -> Iterator[pa.RecordBatch]:
            files = self._matching_files(filter)
            selection = Selection(schema, wanted, condition)
            ahead = fragment_readahead if use_threads else 1
            return scan(self._layout, files, request, selection, ahead)

        return RowScanner(dataset_schema=self.schema, schema=schema, batches=batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scanner().__arrow_c_stream__(requested_schema)

    def to_table(self, columns: Any = None, **options: Any) -> pa.Table:
        """The rows in memory; arguments as of `scanner`."""
        return self.scanner(columns, **options).to_table()

    def to_batches(self, columns: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows as record batches; arguments as of `scanner`."""
        return self.scanner(columns, **options).to_batches()

    def to_reader(self, columns: Any = None, **options: Any) -> pa.RecordBatchReader:
        """The rows as a stream of record batches; arguments as of `scanner`."""
        return self.scanner(columns, **options).to_reader()

    def head(self, num_rows: int, columns: Any = None, **options: Any) -> pa.Table:
        """The first rows; arguments as of `scanner`."""
        return self.scanner(columns, **options).head(num_rows)

    def take(self, indices: Any, columns: Any = None, **options: Any) -> pa.Table:
        """The rows of these numbers; arguments as of `scanner`."""
        return self.scanner(columns, **options).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # noqa: A002
        """How many rows there are; without a filter, from the footers of the files alone."""
        return self.scanner([], filter, **options).count_rows()

    def filter(self, expression: pc.Expression) -> SnapshotRows:
        """Those rows that fulfil `expression` too."""
        condition = self._condition(expression)
        self._projected(None, condition)
        return SnapshotRows(self._layout, self._files.narrowed(expression), condition)

    def sort_by(self, sorting: Any) -> pa.Table:
        """All rows in memory, sorted."""
        return self.to_table().sort_by(sorting)

    def _condition(self, expression: pc.Expression | None) -> pc.Expression | None:
        if expression is None or self._row_filter is None:
            return self._row_filter if expression is None else expression
        return self._row_filter & expression

    def _projected(self, columns: Any, condition: pc.Expression | None) -> pa.Schema:
        """The schema of a scan; names that the table does not have are refused."""
        try:
            scanner = pads.Scanner.from_batches(
                [], schema=self.schema, columns=columns, filter=condition
            )
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidSchemaError(
                "The columns or the filter do not fit the table",
                why=str(error).partition("\n")[0],
                fix=f"The columns are: {', '.join(self.schema.names)}",
            ) from error
        return scanner.projected_schema

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

    def _matching_files(self, asked: pc.Expression | None) -> pa.Table:
        """The files that may hold rows of the dataset which fulfil `asked`."""
        listed = self._files if asked is None else self._files.narrowed(asked)
        files, condition = listed.table(), self._condition(asked)
        used = set() if condition is None else guarantees.names_in(condition, self.schema)
        used &= set(self._layout.partition_columns)
        if not used:
            return files
        paths = files.group_by("partition_values").aggregate([("path", "min")])
        texts = paths["partition_values"].to_pylist()
        partitions = [
            guarantees.of_constants(
                {
                    name: value
                    for name, value in self._layout.partition(text, path=path).items()
                    if name in used
                }
            )
            for text, path in zip(texts, paths["path_min"].to_pylist(), strict=True)
        ]
        matches = guarantees.matching(partitions, condition, self.schema)
        if len(matches) == len(texts):
            return files
        wanted = pa.array([texts[i] for i in matches], paths["partition_values"].type)
        return files.filter(pc.is_in(files["partition_values"], wanted))


def _checked(columns: Any) -> list[str] | Mapping[str, pc.Expression] | None:
    """The columns as a list, or as expressions by name; any iterable of names will do."""
    if columns is None or isinstance(columns, Mapping):
        return columns
    if isinstance(columns, str):
        raise ConfigurationError(
            f"columns={columns!r} is one name", fix=f"Pass a list of names: [{columns!r}]"
        )
    try:
        return list(columns)
    except TypeError:
        raise ConfigurationError(
            f"columns={columns!r} names no columns", fix="Pass a list of names"
        ) from None


# --- other engines in this process ----------------------------------------------------


def to_polars(rows: SnapshotRows, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """All rows as a polars DataFrame, with all columns or those named."""
    try:
        import polars as pl
    except ImportError:
        raise _not_installed("polars") from None
    frame = pl.from_arrow(rows.to_table(columns=columns))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 -- a table never becomes a Series
    return frame


def to_duckdb(
    rows: pads.Dataset | SnapshotRows,
    connection: duckdb.DuckDBPyConnection | None = None,
    columns: Iterable[str] | None = None,
) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation over the rows, read when it is queried.

    Without a connection it belongs to DuckDB's default one, as `duckdb.sql` does.
    """
    try:
        import duckdb
    except ImportError:
        raise _not_installed("duckdb") from None
    optional_kind("connection", connection, duckdb.DuckDBPyConnection, "a connection of DuckDB")
    opened = duckdb if connection is None else connection
    if columns is None:
        return opened.from_arrow(rows)
    names = list(columns)
    unknown = [name for name in names if name not in rows.schema.names]
    if unknown:
        raise InvalidSchemaError(
            f"The table has no column {unknown[0]!r}",
            fix=f"The columns are: {', '.join(rows.schema.names)}",
        )
    # DuckDB asks a dataset of pyarrow's for the columns that it needs, and a stream for all.
    source = rows.scanner(names) if isinstance(rows, SnapshotRows) else rows
    return opened.from_arrow(source).select(*map(duckdb.ColumnExpression, names))


def _not_installed(package: str) -> MissingDriverError:
    return MissingDriverError(
        f"The package {package} is not installed", fix=f"Install it: pip install {package}"
    )
