"""The plan for writing files of a table, and their layout: names, columns, partitions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import AddFile, Metadata
from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import VARIANT, VOID, StructType, physical_name
from deltalakedb.actions.partition import encode_partition_value, encode_path, partition_directory
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.staging.constraints import Constraints
from deltalakedb.staging.counting import Covered
from deltalakedb.staging.fit import nullable

if TYPE_CHECKING:
    import pyarrow as pa

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
