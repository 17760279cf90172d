"""The staging function: Arrow batches in, data files and their `add` actions out.

It serves Arrow writes and the writes of Spark's executors. It can run in another process: a
`StagePlan` has all that it needs to know of a table.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from deltalakedb.actions import AddFile, Metadata
from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import VARIANT, VOID, StructType, physical_name
from deltalakedb.actions.partition import encode_partition_value, encode_path, partition_directory
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import InvalidArgumentError, StorageError, UnsupportedFeatureError
from deltalakedb.extensions import extension
from deltalakedb.staging.counting import Counter, Covered, check_required
from deltalakedb.staging.fit import Constraints, Fit, fit, nullable, with_file_type
from deltalakedb.storage import (
    check_options,
    check_process,
    delete_leftovers,
    local_path,
    normalise_location,
    open_object_store,
)
from deltalakedb.storage.local_files import make_folder, sync_path

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from obstore.store import ObjectStore


TARGET_FILE_BYTES: Final = 128 * 1024 * 1024
STAGING_FOLDER: Final = "_deltalakedb_staging_"
"""The prefix of folders inside a table that files are written to before they are moved."""
CODECS: Final = ("none", "uncompressed", "snappy", "gzip", "zstd", "lz4_raw", "brotli")
"""The codecs that Parquet files can be written with."""
_CODECS: Final = {"uncompressed": "none", "lz4_raw": "lz4"}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Everything that a writer needs to know of a table: location, metadata, file size."""

    table: str
    location: str
    metadata: Metadata
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    target_bytes: int = TARGET_FILE_BYTES
    max_records: int | None = None
    """The maximum number of rows of a file; None for no limit."""
    codec: str | None = None
    """One of CODECS; None for that of the table."""
    data_change: bool = True
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Conditions on every row, in addition to the constraints of the table."""
    enforce: bool = True
    """Whether constraints are checked here; Spark has done so by itself."""
    folder: str = ""
    """A folder below the table, for files that are no data files (change data)."""


class Layout:
    """Names, schemas and properties of the files of a table."""

    def __init__(self, plan: StagePlan) -> None:
        metadata = plan.metadata
        properties = TableProperties(metadata.configuration)
        self.schema = metadata.schema
        _check_writable(self.schema, plan.table)
        self.partition_columns = [
            self.schema.field(name).name for name in metadata.partition_columns
        ]
        self._partition_types = {
            name: self.schema.field(name).type for name in self.partition_columns
        }
        self._physical = {
            name: physical_name(self.schema.field(name)) for name in self.partition_columns
        }
        self.constraints = (
            Constraints(metadata, plan.table, plan.conditions) if plan.enforce else None
        )
        self.covered = Covered(self.schema, self.partition_columns, metadata.configuration)
        data = StructType(
            tuple(f for f in self.schema.fields if f.name not in self._partition_types)
        )
        self.data_columns = data.names
        self.file_schema = nullable(schema_to_arrow(data, physical=True), ids=True)
        codec = plan.codec or properties.compression_codec.lower()
        self.codec = _CODECS.get(codec, codec)
        self._suffix = "" if self.codec == "none" else f".{self.codec}"
        self._prefix_length = (
            properties.random_prefix_length if properties.randomize_file_prefixes else 0
        )
        self._folder = plan.folder
        self.rows_are_new = plan.data_change
        """Whether rows are checked for nulls; those that only move to other files were before."""
        self._by_directory = properties.column_mapping_mode == "none" and not self._prefix_length

    def new_key(self, values: PartitionKey) -> str:
        """Return a unique name for a new file."""
        unique = uuid.uuid4()
        parts = [self._folder] if self._folder else []
        if self._prefix_length:
            parts.append(uuid.uuid4().hex[: self._prefix_length])
        elif self.partition_columns and self._by_directory:
            partition = dict(zip(self.partition_columns, values, strict=True))
            parts.append(partition_directory(partition, self._partition_types))
        parts.append(f"part-{unique}{self._suffix}.parquet")
        return "/".join(parts)

    def partition_values(self, values: PartitionKey) -> dict[str, str | None]:
        """Return `add.partitionValues`, by physical name."""
        return {
            self._physical[name]: encode_partition_value(value, self._partition_types[name])
            for name, value in zip(self.partition_columns, values, strict=True)
        }

    def add(self, key: str, values: PartitionKey, size: int, stats: str) -> AddFile:
        """Return the action that adds a new file."""
        return AddFile(
            path=encode_path(key),
            partition_values=self.partition_values(values),
            size=size,
            modification_time=time.time_ns() // 1_000_000,
            data_change=self.rows_are_new,
            stats=stats,
        )


def _check_writable(schema: StructType, table: str) -> None:
    for inner in schema.all_fields():
        if inner.type in (VARIANT, VOID):
            raise UnsupportedFeatureError(
                f"Rows of table {table!r} cannot be written",
                why=f"Column {inner.name!r} has the type {inner.type}, which this release only "
                "reads",
                fix="Write it with another engine, and adopt what that has committed",
            )


PartitionKey = tuple[Any, ...]


def by_partition(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """Yield the values and the rows of each partition; all rows without partition columns."""
    if not batch.num_rows:
        return
    if not columns:
        yield (), batch
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pa.array([0] * batch.num_rows, pa.int64())
    for name in columns:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        scaled = pc.multiply(codes, len(encoded.dictionary))
        codes = pc.add(scaled, encoded.indices.cast(pa.int64()))
    order = pc.sort_indices(codes)
    ordered = codes.take(order)
    ends = pc.run_end_encode(ordered, run_end_type=pa.int64()).run_ends.to_pylist()
    rows = batch if _is_sorted(order, len(ends)) else batch.take(order)
    start = 0
    for end in ends:
        part = rows.slice(start, end - start)
        yield tuple(part.column(name)[0].as_py() for name in columns), part
        start = end


def _is_sorted(order: Any, parts: int) -> bool:
    """Whether all rows are of one partition: then nothing has to be moved."""
    return parts == 1 and len(order) > 0


_MOST_OPEN_FILES: Final = 64
_ROW_GROUP_ROWS: Final = 1_000_000


def stage(plan: StagePlan, batches: Iterable[pa.RecordBatch]) -> list[AddFile]:
    """Write rows as data files; delete them if it fails."""
    stager = Stager(plan)
    try:
        for batch in batches:
            stager.write(batch)
        return stager.finish()
    except BaseException:
        stager.abort()
        raise


class Stager:
    """Writes batches to one or more files per partition."""

    def __init__(self, plan: StagePlan) -> None:
        self._plan = plan
        self._layout = Layout(plan)
        self._sinks = Sinks(plan.location, plan.storage_options)
        self._open: dict[PartitionKey, _OpenFile] = {}
        self._done: list[AddFile] = []
        self._keys: list[str] = []
        self._fit: Fit | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch; all batches have the same schema."""
        if self._fit is None:
            self._fit = fit(batch.schema, self._layout.schema, table=self._plan.table)
        rows = self._fit.apply(batch)
        if self._layout.rows_are_new:
            check_required(rows, self._layout.covered, table=self._plan.table)
        if self._layout.constraints is not None:
            self._layout.constraints.check(rows)
        for values, part in by_partition(rows, self._layout.partition_columns):
            self._write_part(values, part)

    def finish(self) -> list[AddFile]:
        """Close every file; return the actions that add them."""
        for values in list(self._open):
            self._close(values)
        self._sinks.settle()
        return self._done

    def abort(self) -> None:
        """Delete the written files."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        self._sinks.delete(self._keys)

    def _write_part(self, values: PartitionKey, rows: pa.RecordBatch) -> None:
        most = self._plan.max_records
        while most is not None and rows.num_rows:
            written = self._open[values].counter.rows if values in self._open else 0
            part = rows.slice(0, most - written)
            rows = rows.slice(part.num_rows)
            self._write_rows(values, part)
            if written + part.num_rows == most and values in self._open:
                self._close(values)
        if most is None:
            self._write_rows(values, rows)

    def _write_rows(self, values: PartitionKey, rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                # The least recently written file.
                self._close(next(iter(self._open)))
            file = self._create(values)
        self._open[values] = file
        file.write(rows)
        if file.size >= self._plan.target_bytes:
            self._close(values)

    def _create(self, values: PartitionKey) -> _OpenFile:
        key = self._layout.new_key(values)
        self._keys.append(key)
        return _OpenFile(key, self._sinks, self._layout)

    def _close(self, values: PartitionKey) -> None:
        file = self._open.pop(values)
        size = file.close()
        if not file.counter.rows:
            return
        self._done.append(self._layout.add(file.key, values, size, file.counter.stats()))


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, key: str, sinks: Sinks, layout: Layout) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.key = key
        self.counter = Counter(layout.covered)
        self._layout = layout
        self._sink = sinks.create(key)
        self._file = pa.PythonFile(self._sink, mode="w")
        self._writer = pq.ParquetWriter(
            self._file,
            layout.file_schema,
            compression=layout.codec,
            store_schema=False,
            coerce_timestamps="us",
        )
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    @property
    def size(self) -> int:
        """The estimated size, including the rows that are not flushed."""
        return int(self._file.tell()) + self._held_bytes // 4

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows with the table's logical columns."""
        self.counter.add(rows)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += int(rows.nbytes)
        if self._held_rows >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> int:
        """Finish the file; return its size."""
        with _storage_errors(self.key):
            self._flush()
            self._writer.close()
            size: int = self._file.tell()
            self._file.close()
            self._sink.close()
        return size

    def abandon(self) -> None:
        """Discard the file."""
        self._sink.abandon()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        table = pa.Table.from_batches(self._held).select(self._layout.data_columns)
        arrays = [
            with_file_type(column, wanted.type)
            for column, wanted in zip(table.columns, self._layout.file_schema, strict=True)
        ]
        with _storage_errors(self.key):
            self._writer.write_table(
                pa.Table.from_arrays(arrays, schema=self._layout.file_schema),
                row_group_size=_ROW_GROUP_ROWS,
            )
        self._held, self._held_rows, self._held_bytes = [], 0, 0


@contextmanager
def _storage_errors(key: str) -> Iterator[None]:
    """Raise failures to write a file as StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {key}",
            why=str(error).splitlines()[0],
            fix="Check that the store can be reached and the disk has room; nothing of this "
            "write is visible",
        ) from error


# --- files ----------------------------------------------------------------------------


class Sinks:
    """Creates files below one location.

    An unfinished file does not exist for readers: on a local disk it is deleted if writing fails,
    in an object store its parts are never assembled. Finished files survive a power cut after
    `settle`.
    """

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.location = normalise_location(location)
        self._options = check_options(storage_options)
        self._folder = local_path(self.location)
        self._store: ObjectStore | None = None
        self._unsettled: set[Path] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sinks, (self.location, self._options)

    def create(self, key: str) -> Sink:
        """Create a binary file; `close()` finishes it, `abandon()` discards it."""
        if self._folder is not None:
            path = self._folder / key
            try:
                make_folder(path.parent)
                self._unsettled.add(path.parent)
                return Sink(path.open("xb"))
            except OSError as error:
                raise StorageError(
                    f"Cannot write {path}",
                    why=str(error),
                    fix="Check that the disk has room and that you may write there",
                ) from error
        from obstore import open_writer

        check_process(self.location)
        if self._store is None:
            self._store = open_object_store(self.location, self._options)
        return _ObjectSink(open_writer(self._store, key))

    def settle(self) -> None:
        """Sync the names of the finished files to the disk."""
        for folder in self._unsettled:
            with _storage_errors(str(folder)):
                sync_path(folder)
        self._unsettled.clear()

    def delete(self, keys: list[str]) -> None:
        """Delete files that no commit refers to; failures are left to vacuum."""
        delete_leftovers(self.location, keys, self._options)


class Sink:
    """A local file that pyarrow writes sequentially; it is on the disk when it is closed."""

    closed = False
    _abandoned = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._position = 0

    def tell(self) -> int:
        """The number of bytes written."""
        return self._position

    def write(self, data: Any) -> int:
        """Add bytes."""
        # A writer of pyarrow that is collected unfinished still writes its footer.
        if not self._abandoned:
            self._write(data)
        self._position += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: pyarrow calls it, and the file appears when it is complete."""

    def close(self) -> None:
        """Finish the file."""
        if not self.closed:
            self.closed = True
            self._finish()

    def abandon(self) -> None:
        """Discard the file."""
        self._abandoned = True
        if not self.closed:
            self.closed = True
            self._discard()

    def _write(self, data: Any) -> None:
        self._file.write(data)

    def _finish(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _discard(self) -> None:
        self._file.close()


class _ObjectSink(Sink):
    """An object, which appears when it is closed."""

    def _write(self, data: Any) -> None:
        self._file.write(bytes(data))

    def _finish(self) -> None:
        self._file.close()

    def _discard(self) -> None:
        self._file = None


# --- sources of rows ------------------------------------------------------------------


class Source(Protocol):
    """Rows with their columns, which can be staged once."""

    generates: ClassVar[bool]
    """Whether generated columns are computed and checked on the way."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def zone(self) -> tzinfo:
        """The time zone of times without a zone in conditions on the rows."""
        ...

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the rows as data files of a table."""
        ...


@dataclass(slots=True)
class ArrowSource:
    """Batches of this process."""

    generates: ClassVar[bool] = False
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def zone(self) -> tzinfo:
        """UTC, as everywhere outside of Spark."""
        return UTC

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the batches one after the other."""
        return stage(plan, self.batches)


def source_of(data: Any, columns: StructType | None = None) -> Source:
    """Return the source of the rows that a user passes; raises InvalidArgumentError.

    An empty list has no rows of `columns`.
    """
    import pyarrow as pa

    if hasattr(type(data), "generates"):
        ready: Source = data
        return ready
    if isinstance(data, pa.RecordBatch):
        return ArrowSource(data.schema, iter([data]))
    if isinstance(data, pa.Table):
        return ArrowSource(data.schema, iter(data.to_batches()))
    if isinstance(data, (list, tuple)) and not data and columns is not None:
        return ArrowSource(schema_to_arrow(columns), iter(()))
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        # The columns of all rows: pyarrow takes those of the first row only.
        names = dict.fromkeys(name for row in data for name in row)
        table = pa.table({name: [row.get(name) for row in data] for name in names})
        return ArrowSource(table.schema, iter(table.to_batches()))
    if isinstance(data, pa.RecordBatchReader):
        return ArrowSource(data.schema, iter(data))
    other = extension(type(data).__module__.partition(".")[0])
    if other is not None:
        source: Source = other.frame_source(data)
        return source
    scanner = getattr(data, "scanner", None)
    if scanner is not None:
        reader = scanner().to_reader()
        return ArrowSource(reader.schema, iter(reader))
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return ArrowSource(reader.schema, iter(reader))
    raise InvalidArgumentError(
        f"A {type(data).__module__}.{type(data).__qualname__} cannot be written",
        fix="Pass a Spark DataFrame, a pyarrow Table, RecordBatch, reader or dataset, a polars or "
        "pandas data frame, or a list of dicts",
    )
