"""`readStream` with `readChangeFeed`: the changes of rows are followed, version by version.

A query that is not told where to start begins with the table as it is, all rows of it as inserts,
as Delta has it. A batch has whole versions: limits say how many of them it has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import AddFile, CdcFile, Metadata, RemoveFile
from deltalakedb.errors import SourceChangedError
from deltalakedb.spark.source.datasource import ReadPlan, in_parts
from deltalakedb.spark.source.feed import Changes, planned_changes, table_columns
from deltalakedb.spark.source.stream import Offset, Room, StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from deltalakedb.actions.datatypes import StructType
    from deltalakedb.spark.source.source_options import SourceOptions
    from deltalakedb.table import Table


class FeedStreamReader(StreamReader):
    """Follows the changes of a table."""

    def __init__(self, given: SourceOptions, schema: StructType) -> None:
        super().__init__(given, table_columns(schema))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        begin = reached = Offset.read(start)
        room = Room.of(limit, also_bytes=self._options.number("maxBytesPerTrigger"))
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
                    # What came before can still be read; the next batch will be told.
                    if reached == begin:
                        raise
                    break
                if not room.take_all(sizes):
                    break
                reached = reached.after(version)
            return reached.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What happened between two offsets."""
        last = Offset.read(end)
        first = Offset.read(start).same_query(last)
        with self._options.open() as lake:
            table = self._table(lake, last)
            found = list(self._first_rows(table, first, last)) if first.in_snapshot else []
            if not last.in_snapshot:
                done = first.began if first.in_snapshot else first.version
                kept = self._kept(table, done + 1, last.version)
                if kept <= last.version:
                    found += planned_changes(table, kept, last.version, self._schema)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, each with what happened to it."""
        if isinstance(partition, Changes):
            yield from partition.batches()

    def _kept(self, table: Table, first: int, last: int) -> int:
        """The first of these versions that is there; those before it may be passed over."""
        for version in range(first, last + 1):
            if self._actions(table, version):
                return version
        return last + 1

    def _first_rows(self, table: Table, first: Offset, last: Offset) -> Iterator[Changes]:
        """The table as it was when the query began: all of it is new."""
        then = table.snapshot(first.began)
        files = self._first_files(table, first)
        if last.in_snapshot:
            files = files.slice(0, last.index - first.index)
        self._check_readable(table, then.version, then.metadata)
        plan = replace(ReadPlan.of(table.snapshot()), schema=self._schema).at(then.metadata)
        for some in in_parts(files):
            change = Changes(some, "insert", then.version, then.timestamp)
            change.plan = plan
            yield change

    def _sizes(self, table: Table, version: int) -> list[int]:
        """The sizes of the files that tell what a version changed."""
        actions = self._actions(table, version)
        for action in actions:
            if isinstance(action, Metadata):
                self._check_columns(table, version, action)
        sizes = [action.size for action in actions if isinstance(action, CdcFile)]
        return sizes or [
            a.size or 0 for a in actions if isinstance(a, (AddFile, RemoveFile)) and a.data_change
        ]
