"""`readStream`: a table is followed, version by version, file by file.

An offset says where a query began, and how far it has come: all files of the versions up to
`version` are done, and `index` files of what comes next. What comes first is the table as it was
when the query began (`snapshot`), unless it starts after a version of the log. What an offset means
never changes, because history does not: a query that is restarted reads exactly what it would have
read. Spark asks a query that died in its first batch for its beginning once more, when the table
may have moved on: what counts is the beginning that the end of that batch knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

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
from deltalakedb.snapshot.listing import DEFAULT_COLUMNS, files_of_adds
from deltalakedb.spark.source.datasource import FileGroup, ReadPlan, groups
from deltalakedb.spark.source.feed import metadata_at
from deltalakedb.transaction.schema_change import Comparison, schema_problem

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.lake import Lake
    from deltalakedb.spark.source.source_options import SourceOptions
    from deltalakedb.table import Table

_BEFORE: Final = -1


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a query began, and how far it has come."""

    began: int
    snapshot: bool
    """Whether it began with the table as it was at version `began`, or with what came after it."""
    version: int
    index: int = 0
    table: str = ""
    """The id of the table: another one of the same name has other versions."""

    @classmethod
    def first(cls, table: str, began: int, *, snapshot: bool) -> Offset:
        """That of a query that has read nothing."""
        return cls(began, snapshot, _BEFORE if snapshot else began, table=table)

    @classmethod
    def read(cls, given: dict[str, Any]) -> Offset:
        """From Spark's checkpoint."""
        return cls(
            int(given["began"]),
            bool(given["snapshot"]),
            int(given["version"]),
            int(given["index"]),
            str(given.get("table", "")),
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
        """When all of a version is done."""
        return replace(self, version=version, index=0)

    def same_query(self, end: Offset) -> Offset:
        """This offset, or the beginning of the query that a later one is of."""
        if (self.began, self.snapshot) == (end.began, end.snapshot):
            return self
        return Offset.first(end.table, end.began, snapshot=end.snapshot)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a table."""

    def __init__(self, given: SourceOptions, schema: StructType) -> None:
        self._options = given
        self._schema = with_nulls(schema)
        self._until: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Go no further than the newest version there is now."""
        with self._options.open() as lake:
            self._until = lake.table(self._options.table).snapshot().version

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins."""
        given = self._options
        version, moment = given.text("startingVersion"), given.text("startingTimestamp")
        if version is not None and moment is not None:
            raise ConfigurationError(
                "Both startingVersion and startingTimestamp are given", fix="Give one of them"
            )
        with given.open() as lake:
            table = lake.table(given.table)
            head = table.snapshot().version
            if version is None and moment is None:
                return Offset.first(table.table_id, head, snapshot=True).to_dict()
            if moment is not None:
                after = _first_since(table, moment) - 1
            elif version is not None and version.lower() == "latest":
                after = head
            else:
                first = given.number("startingVersion")
                assert first is not None  # noqa: S101 - it was there a moment ago
                table.snapshot(first)
                after = first - 1
            return Offset.first(table.table_id, after, snapshot=False).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """What the options say; Spark knows one limit at a time, see `latestOffset`."""
        files = self._options.number("maxFilesPerTrigger")
        size = self._options.number("maxBytesPerTrigger")
        if files is not None:
            return ReadMaxFiles(files)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        begin = Offset.read(start)
        room = Room.of(limit, also_bytes=self._options.number("maxBytesPerTrigger"))
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
                # What came before can still be read; the next batch will be told.
                if reached == begin:
                    raise
            return reached.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files between two offsets, in groups."""
        import pyarrow as pa

        last = Offset.read(end)
        first = Offset.read(start).same_query(last)
        found: list[tuple[ReadPlan, pa.Table]] = []
        with self._options.open() as lake:
            table = self._table(lake, last)
            # The columns of the query, and not those that the table may have got since.
            plan = replace(ReadPlan.of(table.snapshot()), schema=self._schema)
            for unit in self._units(table, first):
                files = unit.files
                if unit.before.version == last.version:
                    files = files.slice(0, last.index - unit.before.index)
                found.append((plan if unit.then is None else plan.at(unit.then), files))
                if unit.before.version == last.version or unit.after == last:
                    break
        return [
            group
            for then, units in groupby(found, key=itemgetter(0))
            for group in groups(then, pa.concat_tables([files for _, files in units]))
        ]

    def _table(self, lake: Lake, offset: Offset) -> Table:
        """The table that an offset is of."""
        table = lake.table(self._options.table)
        if offset.table and offset.table != table.table_id:
            raise SourceChangedError(
                f"Table {table.name!r} is not the one that this query has read so far",
                why="It was dropped and created again, so its versions are other ones",
                fix="Begin anew, with an empty checkpoint",
            )
        return table

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a group."""
        if not isinstance(partition, FileGroup):
            return  # Spark makes a task without a partition where there are none
        yield from partition.batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing has to be kept or freed."""

    def _units(self, table: Table, begin: Offset) -> Iterator[_Unit]:
        """What comes after an offset: the rest of the snapshot or version, then one by one."""
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
        """Refused where the columns of the files cannot be shown as those of the query."""
        if files.num_rows and then is not None:
            self._check_readable(table, after.version, then)
        return _Unit(before, after, files, then)

    def _first_files(self, table: Table, offset: Offset) -> pa.Table:
        """What an offset leaves of the table as it was when the query began."""
        listed = table.snapshot(offset.began).files(columns=DEFAULT_COLUMNS)
        # Listings have any order, and an offset says how many files are done.
        files = listed.sort_by([("path", "ascending"), ("dv_id", "ascending")])
        return files.slice(offset.index)

    def _head(self, table: Table) -> int:
        return table.snapshot().version if self._until is None else self._until

    def _added(self, table: Table, version: int, actions: Sequence[Action]) -> pa.Table:
        """The files that a version added; refused where it did more than that."""
        adds = [a for a in actions if isinstance(a, AddFile) and a.data_change]
        removes = [a for a in actions if isinstance(a, RemoveFile) and a.data_change]
        given = self._options
        if removes and given.flag("skipChangeCommits"):
            adds, removes = [], []
        if removes and not given.flag("ignoreChanges"):
            allowed = given.flag("ignoreDeletes") and not adds
            if not allowed:
                raise _changed(table, version, deleted=not adds)
        for action in actions:
            if isinstance(action, Metadata):
                self._check_columns(table, version, action)
        return files_of_adds(adds, version)

    def _actions(self, table: Table, version: int) -> list[Action]:
        """What a version did; none where it is gone, and the query may go on without it."""
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
        """Refuse rows with other columns than the query has; some of its own may come later."""
        ours, now = self._schema, with_nulls(table.snapshot().schema)
        if _told(ours) == _told(now):
            return  # What this version had may be an earlier form of them: see `_check_readable`.
        theirs = with_nulls(after.schema)
        changed = [name for name, told in _told(theirs).items() if _told(ours).get(name) != told]
        gone = [one.name for one in ours.fields if theirs.get(one.name) is None]
        changed += [name for name in gone if now.get(name) is None]
        if changed:
            raise SourceChangedError(
                f"Column {changed[0]!r} of table {table.name!r} is new, gone or another one since "
                f"version {version}",
                why="A query has the columns that the table had when it was started",
                fix="Start the query again: it goes on from where it was, with the new columns",
            )

    def _check_readable(self, table: Table, version: int, then: Metadata) -> None:
        """Refuse files whose values would be lost under the columns of the query."""
        if _told(then.schema) == _told(self._schema):
            return
        now = TableProperties(table.snapshot().properties)
        how = Comparison(
            mapped_before=TableProperties(then.configuration).column_mapping_mode != "none",
            mapped_after=now.column_mapping_mode != "none",
            widening=now.enable_type_widening,
        )
        ours, theirs = _told(self._schema), _told(then.schema)
        others = [name for name in ours.keys() & theirs if ours[name][0] != theirs[name][0]]
        problem = schema_problem(then.schema, self._schema, how)
        if others:
            problem = f"the column {min(others)!r} was replaced by another one of that name"
        if problem:
            raise SourceChangedError(
                f"Rows of version {version} of table {table.name!r} cannot be shown with the "
                "columns of this query",
                why=f"Since then, {problem}",
                fix="Begin anew, with an empty checkpoint",
            )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A snapshot or version, as far as it has not been read."""

    before: Offset
    after: Offset
    files: pa.Table
    then: Metadata | None
    """The columns that the files were written with; None where that is not known any more."""


class Room:
    """How much a batch may still take; the first file always has room."""

    def __init__(self, files: int | None, size: int | None) -> None:
        self._files = files
        self._size = size
        self._any = False

    @classmethod
    def of(cls, limit: ReadLimit, *, also_bytes: int | None) -> Room:
        """What a limit of Spark's leaves; with one of files, bytes may be limited too."""
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if files is not None:
            size = also_bytes
        return cls(files, size)

    @property
    def full(self) -> bool:
        """Whether there is no room for any other file."""
        return self._any and (
            (self._files is not None and self._files < 1)
            or (self._size is not None and self._size < 1)
        )

    def take(self, sizes: list[int]) -> int:
        """How many of these files there is room for."""
        for taken, size in enumerate(sizes):
            full = (self._files is not None and self._files < 1) or (
                self._size is not None and self._size < size
            )
            if full and self._any:
                return taken
            self._any = True
            if self._files is not None:
                self._files -= 1
            if self._size is not None:
                self._size -= size
        return len(sizes)

    def take_all(self, sizes: list[int]) -> bool:
        """Whether there is room for all of these files; what comes first always has room."""
        full = (self._files is not None and self._files < len(sizes)) or (
            self._size is not None and self._size < sum(sizes)
        )
        if full and self._any:
            return False
        self._any = self._any or bool(sizes)
        if self._files is not None:
            self._files -= len(sizes)
        if self._size is not None:
            self._size -= sum(sizes)
        return True


def _told(schema: StructType) -> dict[str, tuple[str, DataType]]:
    """The columns of a schema, as far as they tell how files are read."""
    return {f.name: (physical_name(f), f.type) for f in with_nulls(schema).fields}


def _first_since(table: Table, moment: str) -> int:
    """The first version that was committed at a time or later."""
    found = table.history(None, since=moment)
    if not found:
        raise ConfigurationError(
            f"Nothing was committed to table {table.name!r} at {moment} or later",
            fix='Take an earlier time, or .option("startingVersion", "latest")',
        )
    return min(record.version for record in found)


def _changed(table: Table, version: int, *, deleted: bool) -> SourceChangedError:
    what = "deleted rows" if deleted else "changed or deleted rows"
    return SourceChangedError(
        f"Version {version} of table {table.name!r} {what}",
        why="A stream only has rows that are added",
        fix="Say what to do: ignoreDeletes for commits that only delete, skipChangeCommits to "
        "leave out commits that change rows, ignoreChanges to get all rows of the files that they "
        "write; or read the change data feed",
    )
