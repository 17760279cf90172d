"""`readStream`: a table is followed, version by version, file by file.

- An offset has the start of a query and its position: all files of the versions up to `version`
  are done, and `index` files of the next one. A query starts with the table as it was then
  (`snapshot`), unless it starts after a version of the log.
- The files of an offset never change, because history does not: a query that is restarted reads
  the same files.
- Spark asks a query that died in its first batch for its start once more, when the table may have
  new versions. The start in the end offset of that batch counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from deltalakedb.actions import Action, AddFile, Metadata, RemoveFile
from deltalakedb.actions.datatypes import DataType, StructType, physical_name, with_nulls
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import ConfigurationError, Fix, SourceChangedError, VersionNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.snapshot.listing import DEFAULT_COLUMNS, files_of_adds
from deltalakedb.spark.source.datasource import FileGroup, ReadPlan, groups
from deltalakedb.spark.source.feed import metadata_at
from deltalakedb.spark.source.options import SourceOptions, exclusive
from deltalakedb.table import Table
from deltalakedb.transaction.schema_change import Comparison, schema_problem

_BEFORE: Final = -1


@dataclass(frozen=True, slots=True)
class Offset:
    """The start of a query, and its position."""

    began: int
    snapshot: bool
    """Whether it started with the snapshot of version `began`; otherwise with the next version."""
    version: int
    index: int = 0
    table: str = ""
    """The id of the table: another one of the same name has other versions."""

    @classmethod
    def first(cls, table: str, began: int, *, snapshot: bool) -> Offset:
        """The offset of a query that has read nothing."""
        return cls(began, snapshot, _BEFORE if snapshot else began, table=table)

    @classmethod
    def read(cls, offset: dict[str, Any]) -> Offset:
        """From Spark's checkpoint."""
        return cls(
            int(offset["began"]),
            bool(offset["snapshot"]),
            int(offset["version"]),
            int(offset["index"]),
            str(offset.get("table", "")),
        )

    def to_dict(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        return {
            "table": self.table,
            "began": self.began,
            "snapshot": int(self.snapshot),
            "version": self.version,
            "index": self.index,
        }

    @property
    def in_snapshot(self) -> bool:
        """Whether the snapshot has not been read to its end."""
        return self.snapshot and self.version == _BEFORE

    def after(self, version: int) -> Offset:
        """The offset when all of a version is done."""
        return replace(self, version=version, index=0)

    def same_query(self, end: Offset) -> Offset:
        """This offset, or the first one of the query that the end offset belongs to."""
        if (self.began, self.snapshot) == (end.began, end.snapshot):
            return self
        return Offset.first(end.table, end.began, snapshot=end.snapshot)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a table."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = with_nulls(schema)
        self._until: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Go no further than the newest version there is now."""
        with self._options.open() as lake:
            self._until = lake.table(self._options.table).snapshot().version

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """The start of a new query."""
        options = self._options
        version, moment = options.text("startingVersion"), options.text("startingTimestamp")
        if version is not None and moment is not None:
            raise exclusive("startingVersion", "startingTimestamp")
        with options.open() as lake:
            table = lake.table(options.table)
            head = table.snapshot().version
            if version is None and moment is None:
                return Offset.first(table.table_id, head, snapshot=True).to_dict()
            if moment is not None:
                after = _first_since(table, moment) - 1
            elif version is not None and version.lower() == "latest":
                after = head
            else:
                first = options.number("startingVersion")
                assert first is not None  # noqa: S101 - see above
                table.snapshot(first)
                after = first - 1
            return Offset.first(table.table_id, after, snapshot=False).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit in the options; Spark has one limit at a time, see `latestOffset`."""
        files = self._options.number("maxFilesPerTrigger")
        size = self._options.number("maxBytesPerTrigger")
        if files is not None:
            return ReadMaxFiles(files)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch."""
        begin = Offset.read(start)
        room = Room.of(limit, max_bytes=self._options.number("maxBytesPerTrigger"))
        with self._options.open() as lake:
            table = self._table(lake, begin)
            reached = begin
            try:
                for unit in self._units(table, begin):
                    taken = room.take(unit.files["size_bytes"].to_pylist())
                    if taken < unit.files.num_rows:
                        return replace(unit.before, index=unit.before.index + taken).to_dict()
                    reached = unit.after
                    if room.full:
                        break
            except SourceChangedError:
                # Earlier files can still be read; the next batch gets the error.
                if reached == begin:
                    raise
            return reached.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files between two offsets, in groups."""
        last = Offset.read(end)
        first = Offset.read(start).same_query(last)
        parts: list[tuple[ReadPlan, pa.Table]] = []
        with self._options.open() as lake:
            table = self._table(lake, last)
            # The columns of the query, and not those that the table may have got since.
            plan = replace(ReadPlan.of(table.snapshot()), schema=self._schema)
            for unit in self._units(table, first):
                files = unit.files
                if unit.before.version == last.version:
                    files = files.slice(0, last.index - unit.before.index)
                parts.append((plan if unit.then is None else plan.at(unit.then), files))
                if unit.before.version == last.version or unit.after == last:
                    break
        return [
            group
            for then, units in groupby(parts, key=itemgetter(0))
            for group in groups(then, pa.concat_tables([files for _, files in units]))
        ]

    def _table(self, lake: Lake, offset: Offset) -> Table:
        """The table that an offset belongs to."""
        table = lake.table(self._options.table)
        if offset.table and offset.table != table.table_id:
            raise SourceChangedError(
                f"Table {table.name!r} is not the one that this query has read so far",
                why="It was dropped and created again, so its versions are other ones",
                fix="Start again, with an empty checkpoint",
            )
        return table

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a group; Spark runs a task without one where there are none."""
        if isinstance(partition, FileGroup):
            yield from partition.batches()

    def commit(self, end: dict[str, Any]) -> None:
        """There is nothing to free."""

    def _units(self, table: Table, begin: Offset) -> Iterator[_Unit]:
        """The rest of the snapshot or version after an offset, then each later version."""
        offset = begin
        then = metadata_at(table, offset.began if offset.in_snapshot else offset.version)
        if offset.in_snapshot:
            after = offset.after(offset.began)
            yield self._unit(table, offset, after, self._first_files(table, offset), then)
            offset = after
        head = self._head(table)
        while offset.version < head:
            version = offset.version + 1
            after = offset.after(version)
            actions = self._actions(table, version)
            files = self._added(table, version, actions)
            then = next((one for one in actions if isinstance(one, Metadata)), then)
            yield self._unit(table, offset, after, files.slice(offset.index), then)
            offset = after

    def _unit(
        self, table: Table, before: Offset, after: Offset, files: pa.Table, then: Metadata | None
    ) -> _Unit:
        """Refuse files whose columns cannot be read as those of the query."""
        if files.num_rows and then is not None:
            self._check_columns_fit(table, after.version, then)
        return _Unit(before, after, files, then)

    def _first_files(self, table: Table, offset: Offset) -> pa.Table:
        """The files of the snapshot that the query started with, after those that are done."""
        listed = table.snapshot(offset.began).files(columns=DEFAULT_COLUMNS)
        # Listings have any order, and an offset counts files.
        files = listed.sort_by([("path", "ascending"), ("dv_id", "ascending")])
        return files.slice(offset.index)

    def _head(self, table: Table) -> int:
        return table.snapshot().version if self._until is None else self._until

    def _added(self, table: Table, version: int, actions: Sequence[Action]) -> pa.Table:
        """The files that a version added; refuse a version that did more."""
        adds = [a for a in actions if isinstance(a, AddFile) and a.data_change]
        removes = [a for a in actions if isinstance(a, RemoveFile) and a.data_change]
        options = self._options
        if removes and options.flag("skipChangeCommits"):
            adds, removes = [], []
        if removes and not options.flag("ignoreChanges"):
            allowed = options.flag("ignoreDeletes") and not adds
            if not allowed:
                raise _changed(table, version, deleted=not adds)
        for action in actions:
            if isinstance(action, Metadata):
                self._check_columns(table, version, action)
        return files_of_adds(adds, version)

    def _actions(self, table: Table, version: int) -> list[Action]:
        """The actions of a version; none of an expired one that the query may skip."""
        try:
            return table.actions(version)
        except VersionNotFoundError as error:
            if self._options.text("failOnDataLoss") is not None and not self._options.flag(
                "failOnDataLoss"
            ):
                return []
            raise SourceChangedError(
                f"Version {version} of table {table.name!r} has expired before this query read it",
                why="Rows that it added could be missed",
                fix=f"Restore it from its archive ({Fix('lake.restore_expired', ...)}), restart "
                "with an empty checkpoint, or continue without it: "
                "`.option('failOnDataLoss', 'false')`",
            ) from error

    def _check_columns(self, table: Table, version: int, after: Metadata) -> None:
        """Refuse rows with other columns than the query has."""
        ours, now = self._schema, with_nulls(table.snapshot().schema)
        if _layout(ours) == _layout(now):
            return  # The columns of this version may be an earlier form: see `_check_columns_fit`.
        theirs = with_nulls(after.schema)
        expected = _layout(ours)
        changed = [name for name, kind in _layout(theirs).items() if expected.get(name) != kind]
        gone = [one.name for one in ours.fields if theirs.get(one.name) is None]
        changed += [name for name in gone if now.get(name) is None]
        if changed:
            raise SourceChangedError(
                f"Column {changed[0]!r} of table {table.name!r} is new, gone or another one since "
                f"version {version}",
                why="A query has the columns that the table had when it was started",
                fix="Start the query again: it continues where it stopped, with the new columns",
            )

    def _check_columns_fit(self, table: Table, version: int, then: Metadata) -> None:
        """Refuse files whose values would be lost under the columns of the query."""
        ours, theirs = _layout(self._schema), _layout(then.schema)
        if theirs == ours:
            return
        now = TableProperties(table.snapshot().properties)
        how = Comparison(
            mapped_before=TableProperties(then.configuration).column_mapping_mode != "none",
            mapped_after=now.column_mapping_mode != "none",
            widening=now.enable_type_widening,
        )
        others = [name for name in ours.keys() & theirs if ours[name][0] != theirs[name][0]]
        problem = schema_problem(then.schema, self._schema, how)
        if others:
            problem = f"the column {min(others)!r} was replaced by another one of that name"
        if problem:
            raise SourceChangedError(
                f"Rows of version {version} of table {table.name!r} cannot be read with the "
                "columns of this query",
                why=f"Since then, {problem}",
                fix="Start again, with an empty checkpoint",
            )


@dataclass(frozen=True, slots=True)
class _Unit:
    """The unread part of a snapshot or version."""

    before: Offset
    after: Offset
    files: pa.Table
    then: Metadata | None
    """The metadata that the files were written with; None if it has expired."""


class Room:
    """The files and bytes that a batch may still take; the first file always fits."""

    def __init__(self, files: int | None, size: int | None) -> None:
        self._files = math.inf if files is None else files
        self._bytes = math.inf if size is None else size
        self._empty = True

    @classmethod
    def of(cls, limit: ReadLimit, *, max_bytes: int | None) -> Room:
        """The room of a limit of Spark's; with one of files, bytes may be limited too."""
        if isinstance(limit, ReadMaxFiles):
            return cls(limit.max_files, max_bytes)
        return cls(None, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)

    @property
    def full(self) -> bool:
        """Whether no other file fits."""
        return not self._empty and (self._files < 1 or self._bytes < 1)

    def take(self, sizes: list[int]) -> int:
        """Take as many of these files as fit; their number."""
        for taken, size in enumerate(sizes):
            if not self.take_all([size]):
                return taken
        return len(sizes)

    def take_all(self, sizes: list[int]) -> bool:
        """Take all of these files, or none if they do not fit."""
        if not self._empty and (self._files < len(sizes) or self._bytes < sum(sizes)):
            return False
        self._empty = self._empty and not sizes
        self._files -= len(sizes)
        self._bytes -= sum(sizes)
        return True


def _layout(schema: StructType) -> dict[str, tuple[str, DataType]]:
    """The physical name and type of each column, which decide how files are read."""
    return {f.name: (physical_name(f), f.type) for f in with_nulls(schema).fields}


def _first_since(table: Table, moment: str) -> int:
    """The first version that was committed at a time or later."""
    records = table.history(None, since=moment)
    if not records:
        raise ConfigurationError(
            f"Nothing was committed to table {table.name!r} at {moment} or later",
            fix='Use an earlier time, or .option("startingVersion", "latest")',
        )
    return min(record.version for record in records)


def _changed(table: Table, version: int, *, deleted: bool) -> SourceChangedError:
    what = "deleted rows" if deleted else "changed or deleted rows"
    return SourceChangedError(
        f"Version {version} of table {table.name!r} {what}",
        why="A stream only has rows that are added",
        fix="Set ignoreDeletes for commits that only delete, skipChangeCommits to leave out "
        "commits that change rows, or ignoreChanges to get all rows of the files that they write; "
        "or read the change data feed",
    )
