"""Reads one data file as batches of the columns of the table.

Guarantees:

- Rows come in the order of the file, without those that its deletion vector hides; these are
  counted by their number in the file, whichever row groups are read.
- Partition columns have the values of the log, even if the file has such columns too.
- One batch is decoded at a time. Row groups that the filter cannot match are not read, nor are
  columns that are not requested. Rows are not filtered here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.arrow import schema_to_arrow, type_to_arrow
from deltalakedb.actions.datatypes import StructType
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.actions.values import DeletionVectorDescriptor
from deltalakedb.conditions import guarantees
from deltalakedb.errors import DataFileError, DeltaLakeDbError, InvalidActionError
from deltalakedb.reading.columns import Converter, FileColumns
from deltalakedb.reading.deletion_vectors import DeletedRows, load_deletion_vector
from deltalakedb.reading.filesystem import RangeReader, TableFiles

SMALL_ROWS: Final = 8192
"""A file with fewer rows is read whole, in one thread: pruning would cost more."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file as in the log; JSON texts are not parsed."""

    path: str
    partition_values: str
    deletion_vector: str | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The properties shared by all files of a table."""

    files: TableFiles
    schema: StructType
    partition_columns: tuple[str, ...]
    mode: str
    zone: tzinfo = UTC
    _partitions: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    def partition(self, partition_values: str, *, path: str = "") -> Mapping[str, Any]:
        """The values of the partition columns as pyarrow scalars, by name."""
        values = self._partitions.get(partition_values)
        if values is None:
            values = self._decode_partition(partition_values, path)
            self._partitions[partition_values] = values
        return values

    def _decode_partition(self, partition_values: str, path: str) -> dict[str, Any]:
        values = jsonvalue.loads(partition_values) if partition_values else {}
        columns = FileColumns(path, self.mode)
        decoded: dict[str, Any] = {}
        for name in self.partition_columns:
            struct_field = self.schema.field(name)
            key = columns.name_of(struct_field)
            if key not in values:
                raise InvalidActionError(
                    f"The file {path} of the table at {self.files.location} has no partition value "
                    f"for the column {name!r}",
                    why=f"its partitionValues are {partition_values[:200]}",
                    fix=f"Correct the log entry: it needs a value, or null, for {key!r}",
                )
            value = decode_partition_value(values[key], struct_field.type, zone=self.zone)
            decoded[struct_field.name] = pa.scalar(value, type_to_arrow(struct_field.type))
        return decoded


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The columns to read, in this order, and the condition that row groups are skipped by."""

    columns: StructType
    condition: Any = None
    batch_size: int = 131_072
    use_threads: bool = True
    schema: Any = field(init=False, compare=False)
    tested: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        schema = schema_to_arrow(self.columns)
        tested = () if self.condition is None else guarantees.names_in(self.condition, schema)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "tested", frozenset(tested))


def read_data_file(layout: TableLayout, file: DataFile, request: ReadRequest) -> Iterator[Any]:
    """Yield the rows of a file as record batches with the requested columns."""
    deleted = deleted_rows(layout, file)
    with layout.files.open(file.path) as source:
        try:
            yield from _FileReader(layout, file, request, deleted, source).batches()
        except DeltaLakeDbError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise layout.files.failed(file.path, error) from None


def empty_rows(count: int) -> Any:
    """A batch without columns that still has rows to count."""
    rows = pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(rows)


def deleted_rows(layout: TableLayout, file: DataFile) -> DeletedRows | None:
    """Return the deleted rows of a file, or None without a deletion vector."""
    if not file.deletion_vector:
        return None
    descriptor = descriptor_of(file.deletion_vector or "{}", file.path)

    def read_range(path: str, start: int, length: int) -> bytes:
        # Type u is a plain path below the table; type p is a URI as it is.
        log_path = layout.files.relative(path) if descriptor.storage_type == "u" else path
        return layout.files.read_range(log_path, start, length)

    name = f"{file.path} of the table at {layout.files.location}"
    return load_deletion_vector(descriptor, data_file=name, read_range=read_range)


def descriptor_of(text: str, path: str) -> DeletionVectorDescriptor:
    """The descriptor of the deletion vector of a file, from its JSON."""
    fields = jsonvalue.loads(text)
    try:
        return DeletionVectorDescriptor(
            storage_type=fields["storageType"],
            path_or_inline_dv=fields["pathOrInlineDv"],
            size_in_bytes=int(fields["sizeInBytes"]),
            cardinality=int(fields["cardinality"]),
            offset=None if fields.get("offset") is None else int(fields["offset"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidActionError(
            f"The deletion vector of {path} is not valid",
            why=f"its descriptor is {text[:200]}",
            fix="Correct the log entry it came from",
        ) from error


class _FileReader:
    """An open file, with the source of each requested column."""

    def __init__(
        self,
        layout: TableLayout,
        file: DataFile,
        request: ReadRequest,
        deleted: DeletedRows | None,
        source: Any,
    ) -> None:
        self._request = request
        self._deleted = deleted
        self._source = source
        self._parquet = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us")
        self._constants = layout.partition(file.partition_values, path=file.path)
        self._arrow_schema = request.schema
        self._converters = self._plan(FileColumns(file.path, layout.mode))
        rows = self._parquet.metadata.num_rows
        if deleted is not None and deleted.last >= rows:
            raise DataFileError(
                f"The deletion vector of {file.path} does not belong to this file",
                why=f"it hides row {deleted.last}, and the file has {rows} rows",
                fix="The file or the log entry was replaced; restore either from a backup",
            )

    def batches(self) -> Iterator[Any]:
        metadata = self._parquet.metadata
        wanted = set(self._row_groups())
        start = 0
        for i in range(metadata.num_row_groups):
            count = metadata.row_group(i).num_rows
            if i in wanted:
                yield from self._row_group(i, start, count)
            start += count

    def _plan(self, columns: FileColumns) -> dict[str, tuple[str, Converter]]:
        """Map each column of the file to its name there and its converter."""
        schema = self._parquet.schema_arrow
        columns.check_ids(schema)
        plan: dict[str, tuple[str, Converter]] = {}
        for wanted in self._request.columns.fields:
            if wanted.name in self._constants:
                continue
            position = columns.find(wanted, schema)
            if position is not None:
                file_field = schema.field(position)
                convert = columns.converter(file_field.type, wanted.type, wanted.name)
                plan[wanted.name] = (file_field.name, convert)
        return plan

    def _row_groups(self) -> list[int]:
        metadata, condition = self._parquet.metadata, self._request.condition
        if condition is None or self._is_small():
            return list(range(metadata.num_row_groups))
        leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        used = self._request.tested
        columns = {
            name: (leaves[file_name], self._arrow_schema.field(name))
            for name, (file_name, _) in self._converters.items()
            # A dot in the path may also mean a nested column.
            if name in used and file_name in leaves and "." not in file_name
        }
        constants = guarantees.of_constants(
            {name: self._constants[name] for name in used if name in self._constants}
        )
        return guarantees.matching(
            [
                constants & guarantees.of_row_group(metadata.row_group(i), columns)
                for i in range(metadata.num_row_groups)
            ],
            condition,
            self._arrow_schema,
        )

    def _is_small(self) -> bool:
        """Whether reading all of it is faster than pruning; never in an object store."""
        metadata = self._parquet.metadata
        few = metadata.num_row_groups <= 1 and metadata.num_rows <= SMALL_ROWS
        return few and not isinstance(self._source, RangeReader)

    def _row_group(self, i: int, start: int, count: int) -> Iterator[Any]:
        names = sorted({file_name for file_name, _ in self._converters.values()})
        size = self._request.batch_size
        if not names:
            for offset in range(0, count, size):
                length = min(size, count - offset)
                yield self._without_deleted(self._batch(None, length), start + offset)
            return
        self._prefetch(i, set(names))
        threads = self._request.use_threads and count > SMALL_ROWS
        batches = self._parquet.iter_batches(
            batch_size=size, row_groups=[i], columns=names, use_threads=threads
        )
        for batch in batches:
            yield self._without_deleted(self._batch(batch, batch.num_rows), start)
            start += batch.num_rows

    def _prefetch(self, i: int, names: set[str]) -> None:
        """Fetch all columns of a row group from an object store in one request."""
        reader = self._source
        if not isinstance(reader, RangeReader):
            return
        row_group = self._parquet.metadata.row_group(i)
        ranges = []
        for j in range(row_group.num_columns):
            chunk = row_group.column(j)
            path = chunk.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in names):
                first = chunk.data_page_offset
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    first = min(first, chunk.dictionary_page_offset)
                ranges.append((first, chunk.total_compressed_size))
        reader.prefetch(ranges)

    def _batch(self, batch: Any, length: int) -> Any:
        if not len(self._arrow_schema):
            return empty_rows(length)
        arrays = []
        for arrow_field in self._arrow_schema:
            name = arrow_field.name
            if name in self._constants:
                arrays.append(pa.repeat(self._constants[name], length))
            elif name in self._converters:
                file_name, convert = self._converters[name]
                arrays.append(convert(batch.column(batch.schema.get_field_index(file_name))))
            else:
                arrays.append(pa.nulls(length, arrow_field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def _without_deleted(self, batch: Any, start: int) -> Any:
        live = None if self._deleted is None else self._deleted.live_mask(start, batch.num_rows)
        return batch if live is None else batch.filter(live)
