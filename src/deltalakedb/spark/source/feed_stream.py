"""`readStream` with `readChangeFeed`: the changes of rows are followed, version by version.

A query without a start begins with the table as it is, all of its rows as inserts, as in Delta. A
batch has whole versions, as many as its limits allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from deltalakedb.actions import AddFile, CdcFile, Metadata, RemoveFile
from deltalakedb.actions.datatypes import StructType
from deltalakedb.errors import SourceChangedError
from deltalakedb.spark.source.datasource import ReadPlan, in_parts
from deltalakedb.spark.source.feed import Changes, planned_changes, table_columns
from deltalakedb.spark.source.options import SourceOptions
from deltalakedb.spark.source.stream import Offset, Room, StreamReader
from deltalakedb.table import Table


class FeedStreamReader(StreamReader):
    """Follows the changes of a table."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, table_columns(schema))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch."""
        begin = reached = Offset.read(start)
        room = Room.of(limit, max_bytes=self._options.number("maxBytesPerTrigger"))
        with self._options.open() as lake:
            table = self._table(lake, reached)
            if reached.in_snapshot:
                files = self._first_files(table, reached)
                taken = room.take(files["size_bytes"].to_pylist())
                if taken < files.num_rows:
                    return replace(reached, index=reached.index + taken).to_dict()
                reached = reached.after(reached.began)
            head = self._head(table)
            while reached.version < head and not room.full:
                version = reached.version + 1
                try:
                    sizes = self._sizes(table, version)
                except SourceChangedError:
                    # Earlier versions can still be read; the next batch gets the error.
                    if reached == begin:
                        raise
                    break
                if not room.take_all(sizes):
                    break
                reached = reached.after(version)
            return reached.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The changes between two offsets."""
        last = Offset.read(end)
        first = Offset.read(start).same_query(last)
        with self._options.open() as lake:
            table = self._table(lake, last)
            changes = list(self._first_rows(table, first, last)) if first.in_snapshot else []
            if not last.in_snapshot:
                done = first.began if first.in_snapshot else first.version
                # Expired versions that the query may skip have no actions.
                for version in range(done + 1, last.version + 1):
                    if self._actions(table, version):
                        changes += planned_changes(table, version, last.version, self._schema)
                        break
        return changes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; Spark runs a task without one where there are none."""
        if isinstance(partition, Changes):
            yield from partition.batches()

    def _first_rows(self, table: Table, first: Offset, last: Offset) -> Iterator[Changes]:
        """The rows of the snapshot that the query started with, as inserts."""
        then = table.snapshot(first.began)
        files = self._first_files(table, first)
        if last.in_snapshot:
            files = files.slice(0, last.index - first.index)
        self._check_columns_fit(table, then.version, then.metadata)
        plan = replace(ReadPlan.of(table.snapshot()), schema=self._schema).at(then.metadata)
        for part in in_parts(files):
            change = Changes(part, "insert", then.version, then.timestamp)
            change.plan = plan
            yield change

    def _sizes(self, table: Table, version: int) -> list[int]:
        """The sizes of the files that have the changes of a version."""
        actions = self._actions(table, version)
        for action in actions:
            if isinstance(action, Metadata):
                self._check_columns(table, version, action)
        sizes = [action.size for action in actions if isinstance(action, CdcFile)]
        return sizes or [
            a.size or 0 for a in actions if isinstance(a, (AddFile, RemoveFile)) and a.data_change
        ]
