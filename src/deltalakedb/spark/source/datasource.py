"""`format("deltalakedb")`: tables of a lake for `spark.read`, `df.write` and streams.

Spark runs the parts of a data source in processes of their own: planning, each task, and the
commit. They share plain values only, and each opens the catalog by its URL. Tasks do not open it:
they get the files to read, or the plan of the write.

`DeltaTable.toDF()` reads faster (Spark's own scan, which reads only the columns it needs); this
reader serves programs that need a data source, such as those of Spark Connect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType as SparkStruct

from deltalakedb.actions import Metadata
from deltalakedb.actions.datatypes import (
    StructType,
    physical_name,
    schema_from_json,
    schema_to_json,
    with_nulls,
)
from deltalakedb.actions.properties import TableProperties
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import ConfigurationError
from deltalakedb.reading.dataset import open_dataset
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import DEFAULT_COLUMNS
from deltalakedb.spark.source.options import (
    FORMAT,
    READS,
    SourceOptions,
    Use,
    not_a_table_of_spark,
)

if TYPE_CHECKING:
    import pyarrow as pa


_FILES_A_TASK: Final = 64
_BYTES_A_TASK: Final = 128 * 1024 * 1024


class DeltaLakeDbSource(DataSource):
    """A table of a lake; its name is the path, its catalog an option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        if "provider" in options:
            # Spark sets it for a table of its own.
            raise not_a_table_of_spark(f"CREATE TABLE … USING {FORMAT}")
        self._options = SourceOptions.read(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> SparkStruct:
        """The columns of the table, or of its change data feed, at the version in the options."""
        self._check(*READS)
        with self._options.open() as lake:
            if self._options.change_feed:
                from deltalakedb.spark.source.feed import feed_columns

                return _spark_schema(feed_columns(lake, self._options))
            return _spark_schema(self._options.snapshot(lake).schema)

    def _check(self, *uses: Use) -> None:
        self._options.check(*uses)
        for option in ("where", "metadata"):
            if self._options.text(option) is not None:
                raise ConfigurationError(
                    f"The option {option!r} is not known here",
                    why="It is for Spark's own scan, and this is a data source in Python",
                    fix="Leave it out, or call deltalakedb.spark.enable(spark)",
                )

    def reader(self, schema: SparkStruct) -> DataSourceReader:
        """Reads rows, or the change data of versions."""
        self._check(Use.READ)
        if self._options.change_feed:
            from deltalakedb.spark.source.feed import FeedReader

            return FeedReader(self._options, schema_from_json(schema.json()))
        # Spark refuses a reader that takes filters unless spark.sql.python.filterPushdown.enabled.
        return (
            _FilteringReader(self._options)
            if self._options.flag("pushFilters")
            else _Reader(self._options)
        )

    def writer(self, schema: SparkStruct, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        """Appends or overwrites rows."""
        from deltalakedb.spark.source.writer import BatchWriter, Target

        self._options.check(Use.WRITE)
        return BatchWriter(Target.planned(self._options, schema, overwrite=overwrite))

    def streamReader(self, schema: SparkStruct) -> DataSourceStreamReader:  # noqa: N802
        """Follows the table, or the changes of its rows."""
        from deltalakedb.spark.source.feed_stream import FeedStreamReader
        from deltalakedb.spark.source.stream import StreamReader

        if self._options.version is not None or self._options.timestamp is not None:
            raise ConfigurationError(
                "A stream follows a table, and is not read at one version",
                fix="Set its start by startingVersion or startingTimestamp",
            )
        self._options.check(Use.READ_STREAM)
        kind = FeedStreamReader if self._options.change_feed else StreamReader
        return kind(self._options, schema_from_json(schema.json()))

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: SparkStruct,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamArrowWriter:
        """Adds the rows of each batch exactly once."""
        from deltalakedb.spark.source.writer import StreamWriter, Target

        self._options.check(Use.WRITE_STREAM)
        return StreamWriter(Target.planned(self._options, schema, overwrite=overwrite))


def _spark_schema(schema: StructType) -> SparkStruct:
    """Nulls are allowed everywhere: Spark would rely on a NOT NULL that old files may break."""
    return SparkStruct.fromJson(json.loads(schema_to_json(with_nulls(schema))))


# --- reading ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadPlan:
    """All that a task needs to read files of a table, without its catalog."""

    location: str
    schema: StructType
    partition_columns: tuple[str, ...]
    column_mapping_mode: str
    storage_options: Mapping[str, str]
    allowed_roots: tuple[str, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> ReadPlan:
        """The plan for the files of a snapshot."""
        return cls(
            snapshot.table.location,
            with_nulls(snapshot.schema),
            snapshot.partition_columns,
            TableProperties(snapshot.properties).column_mapping_mode,
            dict(snapshot.storage_options),
            snapshot.table.allowed_roots,
        )

    def at(self, then: Metadata) -> ReadPlan:
        """The plan for files of an earlier version, whose partition columns may be others."""
        partitions = {physical_name(then.schema.field(name)) for name in then.partition_columns}
        names = [f.name for f in self.schema.fields if physical_name(f) in partitions]
        return replace(self, partition_columns=tuple(names))

    def batches(self, files: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of files."""
        rows = open_dataset(
            files,
            location=self.location,
            schema=self.schema,
            partition_columns=self.partition_columns,
            column_mapping_mode=self.column_mapping_mode,
            storage_options=self.storage_options,
            allowed_roots=self.allowed_roots,
        )
        yield from rows.to_batches()


class FileGroup(InputPartition):
    """Files that a task reads, and the plan; the reader was sent before they were known."""

    def __init__(self, plan: ReadPlan, files: pa.Table) -> None:
        super().__init__((plan, files))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the files."""
        plan, files = self.value
        yield from plan.batches(files)


def groups(plan: ReadPlan, files: pa.Table) -> list[FileGroup]:
    """Files in groups for tasks."""
    return [FileGroup(plan, part) for part in in_parts(files)]


def in_parts(files: pa.Table) -> Iterator[pa.Table]:
    """Files in parts of about the same size, in their order."""
    start, size = 0, 0
    for end, one in enumerate(files["size_bytes"].to_pylist()):
        if end > start and (size + one > _BYTES_A_TASK or end - start >= _FILES_A_TASK):
            yield files.slice(start, end - start).combine_chunks()
            start, size = end, 0
        size += one
    if start < files.num_rows:
        yield files.slice(start).combine_chunks()


class _Reader(DataSourceReader):
    """Reads a snapshot."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        """The files that can have rows for the filters, in groups."""
        with self._options.open() as lake:
            snapshot = self._options.snapshot(lake)
            metadata = snapshot.metadata
            where = parse_where(
                self._filters, metadata.schema, metadata.partition_columns, strict=False
            )
            files = snapshot.files(where=where, columns=DEFAULT_COLUMNS)
            plan = ReadPlan.of(snapshot)
        return groups(plan, files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a group."""
        if not isinstance(partition, FileGroup):
            return  # Spark makes a task without a partition where there are none
        yield from partition.batches()


class _FilteringReader(_Reader):
    """The same with the filters of Spark, which it passes only if the session allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's
        """Use the filters to prune files; return all, as a file may have other rows too."""
        self._filters = list(filters)
        yield from filters
