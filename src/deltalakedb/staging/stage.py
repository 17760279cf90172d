"""The staging function: Arrow batches in, data files and their `add` actions out.

It serves plain Arrow writes and every write of Spark's executors alike. It can be sent to another
process: all that it needs to know of a table is in a `StagePlan`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import AddFile, Metadata
from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import VARIANT, VOID, StructType, physical_name
from deltalakedb.actions.partition import encode_partition_value, encode_path, partition_directory
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import StorageError, UnsupportedFeatureError
from deltalakedb.staging.constraints import Constraints
from deltalakedb.staging.counting import Counter, Covered, check_required
from deltalakedb.staging.fit import Fit, fit, nullable, whole
from deltalakedb.staging.partitions import PartitionKey, by_partition
from deltalakedb.staging.sinks import Sinks

if TYPE_CHECKING:
    import pyarrow as pa

TARGET_FILE_BYTES: Final = 128 * 1024 * 1024
_MOST_OPEN_FILES: Final = 64
_ROW_GROUP_ROWS: Final = 1_000_000
_CODECS: Final = {"uncompressed": "none", "lz4_raw": "lz4"}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What writing files of a table takes: where to, by which metadata, how large."""

    table: str
    location: str
    metadata: Metadata
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    target_bytes: int = TARGET_FILE_BYTES
    data_change: bool = True
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What every row has to fulfil, beside the constraints of the table."""
    enforce: bool = True
    """Whether constraints are checked here; Spark has done so by itself."""
    folder: str = ""
    """A folder below the table, for files that are no data files (change data)."""


def stage(plan: StagePlan, batches: Iterable[pa.RecordBatch]) -> list[AddFile]:
    """Write rows as data files; nothing is left of them when it fails."""
    stager = Stager(plan)
    try:
        for batch in batches:
            stager.write(batch)
        return stager.finish()
    except BaseException:
        stager.abort()
        raise


class Stager:
    """Writes batches to as many files as partitions and sizes ask for."""

    def __init__(self, plan: StagePlan) -> None:
        self._plan = plan
        self._layout = _Layout(plan)
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
        check_required(rows, self._layout.covered, table=self._plan.table)
        if self._layout.constraints is not None:
            self._layout.constraints.check(rows)
        for values, part in by_partition(rows, self._layout.partition_columns):
            self._write_part(values, part)

    def finish(self) -> list[AddFile]:
        """Close every file; the actions that add them."""
        for values in list(self._open):
            self._close(values)
        return self._done

    def abort(self) -> None:
        """Delete what was written."""
        for file in self._open.values():
            file.give_up()
        self._open.clear()
        self._sinks.delete(self._keys)

    def _write_part(self, values: PartitionKey, rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                # The one that has not been written to for the longest time.
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
        self._done.append(
            AddFile(
                path=encode_path(file.key),
                partition_values=self._layout.partition_values(values),
                size=size,
                modification_time=time.time_ns() // 1_000_000,
                data_change=self._plan.data_change,
                stats=file.counter.stats(),
            )
        )


class _Layout:
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
        codec = properties.compression_codec.lower()
        self.codec = _CODECS.get(codec, codec)
        self._suffix = "" if self.codec == "none" else f".{self.codec}"
        self._prefix_length = (
            properties.random_prefix_length if properties.randomize_file_prefixes else 0
        )
        self._folder = plan.folder
        self._by_directory = properties.column_mapping_mode == "none" and not self._prefix_length

    def new_key(self, values: PartitionKey) -> str:
        """The name of a new file, which nobody else has."""
        unique = uuid.uuid4()
        parts = [self._folder] if self._folder else []
        if self._prefix_length:
            parts.append(uuid.uuid4().hex[: self._prefix_length])
        elif self.partition_columns and self._by_directory:
            given = dict(zip(self.partition_columns, values, strict=True))
            parts.append(partition_directory(given, self._partition_types))
        parts.append(f"part-{unique}{self._suffix}.parquet")
        return "/".join(parts)

    def partition_values(self, values: PartitionKey) -> dict[str, str | None]:
        """As `add.partitionValues` has them: by physical name."""
        return {
            self._physical[name]: encode_partition_value(value, self._partition_types[name])
            for name, value in zip(self.partition_columns, values, strict=True)
        }


def _check_writable(schema: StructType, table: str) -> None:
    for inner in schema.all_fields():
        if inner.type in (VARIANT, VOID):
            raise UnsupportedFeatureError(
                f"Rows of table {table!r} cannot be written",
                why=f"Column {inner.name!r} has the type {inner.type}, which this release only "
                "reads",
                fix="Write it with another engine, and adopt what that has committed",
            )


class _OpenFile:
    """A Parquet file that rows go into."""

    def __init__(self, key: str, sinks: Sinks, layout: _Layout) -> None:
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
        self._held_rows = 0

    @property
    def size(self) -> int:
        """Bytes so far, with what waits for its row group."""
        return int(self._file.tell()) + sum(int(batch.nbytes) for batch in self._held) // 4

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows with the table's logical columns."""
        self.counter.add(rows)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        if self._held_rows >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> int:
        """Finish the file; its size."""
        with _told(self.key):
            self._flush()
            self._writer.close()
            size: int = self._file.tell()
            self._file.close()
            self._sink.close()
        return size

    def give_up(self) -> None:
        """Leave it unfinished."""
        self._sink.abandon()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        table = pa.Table.from_batches(self._held).select(self._layout.data_columns)
        arrays = [
            _renamed(column, wanted.type)
            for column, wanted in zip(table.columns, self._layout.file_schema, strict=True)
        ]
        with _told(self.key):
            self._writer.write_table(
                pa.Table.from_arrays(arrays, schema=self._layout.file_schema),
                row_group_size=_ROW_GROUP_ROWS,
            )
        self._held, self._held_rows = [], 0


def _renamed(column: Any, wanted: pa.DataType) -> Any:
    """The same values in the type of the file, whose nested fields may have other names."""
    import pyarrow as pa

    if column.type == wanted:
        return column
    chunks = [_retyped(chunk, wanted) for chunk in column.chunks]
    return pa.chunked_array(chunks, type=wanted)


def _retyped(array: Any, wanted: pa.DataType) -> Any:
    import pyarrow as pa

    kind = array.type
    if kind == wanted:
        return array
    array = whole(array)
    if pa.types.is_struct(kind):
        children = [
            _retyped(array.field(i), wanted.field(i).type) for i in range(wanted.num_fields)
        ]
        return pa.Array.from_buffers(
            wanted, len(array), array.buffers()[:1], array.null_count, 0, children
        )
    if pa.types.is_list(kind):
        children = [_retyped(array.values, wanted.value_type)]
    elif pa.types.is_map(kind):
        entries = [_retyped(array.keys, wanted.key_type), _retyped(array.items, wanted.item_type)]
        fields = [wanted.key_field, wanted.item_field]
        children = [pa.StructArray.from_arrays(entries, fields=fields)]
    else:
        return array.cast(wanted)
    return pa.Array.from_buffers(
        wanted, len(array), array.buffers()[:2], array.null_count, 0, children
    )


class _told:  # noqa: N801 - reads as a word where it is used
    """Whatever a store or disk says while a file is written comes out as a StorageError."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            raise StorageError(
                f"Cannot write {self._key}",
                why=str(error).splitlines()[0],
                fix="Check that the store can be reached and the disk has room; nothing of this "
                "write is visible",
            ) from error
