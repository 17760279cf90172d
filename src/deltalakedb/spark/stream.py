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
from deltalakedb.actions.datatypes import StructType, with_nulls
from deltalakedb.errors import ConfigurationError, SourceChangedError, VersionNotFoundError
from deltalakedb.snapshot.added_files import files_of_adds
from deltalakedb.snapshot.listing import DEFAULT_COLUMNS
from deltalakedb.spark.datasource import FileGroup, ReadPlan, groups

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.lake import Lake
    from deltalakedb.spark.source_options import SourceOptions
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
        self._given = given
        self._schema = with_nulls(schema)
        self._until: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Go no further than the newest version there is now."""
        with self._given.open() as lake:
            self._until = lake.table(self._given.table).snapshot().version

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins."""
        given = self._given
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
        files, size = self._limit("maxFilesPerTrigger"), self._limit("maxBytesPerTrigger")
        if files is not None:
            return ReadMaxFiles(files)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def _limit(self, name: str) -> int | None:
        found = self._given.number(name)
        if found is not None and found < 1:
            raise ConfigurationError(
                f"The option {name!r} is {found}, and nothing would ever be read",
                fix="Give 1 or more, or leave it out",
            )
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        begin = Offset.read(start)
        room = Room.of(limit, also_bytes=self._limit("maxBytesPerTrigger"))
        with self._given.open() as lake:
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
        found: list[pa.Table] = []
        with self._given.open() as lake:
            table = self._table(lake, last)
            # The columns of the query, and not those that the table may have got since.
            plan = replace(ReadPlan.of(table.snapshot()), schema=self._schema)
            for unit in self._units(table, first):
                if unit.before.version == last.version:
                    found.append(unit.files.slice(0, last.index - unit.before.index))
                    break
                found.append(unit.files)
                if unit.after == last:
                    break
        return groups(plan, pa.concat_tables(found)) if found else []

    def _table(self, lake: Lake, offset: Offset) -> Table:
        """The table that an offset is of."""
        table = lake.table(self._given.table)
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
        if offset.in_snapshot:
            after = offset.after(offset.began)
            yield _Unit(offset, after, self._first_files(table, offset))
            offset = after
        head = self._head(table)
        while offset.version < head:
            version = offset.version + 1
            after = offset.after(version)
            files = self._added(table, version)
            yield _Unit(offset, after, files.slice(offset.index))
            offset = after

    def _first_files(self, table: Table, offset: Offset) -> pa.Table:
        """What an offset leaves of the table as it was when the query began."""
        listed = table.snapshot(offset.began).files(columns=DEFAULT_COLUMNS)
        # Listings have any order, and an offset says how many files are done.
        files = listed.sort_by([("path", "ascending"), ("dv_id", "ascending")])
        return files.slice(offset.index)

    def _head(self, table: Table) -> int:
        return table.snapshot().version if self._until is None else self._until

    def _added(self, table: Table, version: int) -> pa.Table:
        """The files that a version added; refused where it did more than that."""
        actions = self._actions(table, version)
        adds = [a for a in actions if isinstance(a, AddFile) and a.data_change]
        removes = [a for a in actions if isinstance(a, RemoveFile) and a.data_change]
        given = self._given
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
            if self._given.text("failOnDataLoss") is not None and not self._given.flag(
                "failOnDataLoss"
            ):
                return []
            raise SourceChangedError(
                f"Version {version} of table {table.name!r} has expired before this query read it",
                why="Rows that it added could be missed",
                fix="Bring it back from its archive (lake.restore_expired), begin anew with an "
                "empty checkpoint, or go on without it: .option('failOnDataLoss', 'false')",
            ) from error

    def _check_columns(self, table: Table, version: int, after: Metadata) -> None:
        """Refuse rows with other columns than the query has; some of its own may come later."""
        changed = [
            column.name
            for column in with_nulls(after.schema).fields
            if (known := self._schema.get(column.name)) is None or known.type != column.type
        ]
        missing = [c.name for c in self._schema.fields if after.schema.get(c.name) is None]
        if missing:
            now = table.snapshot().schema
            changed += [name for name in missing if now.get(name) is None]
        if changed:
            raise SourceChangedError(
                f"Column {changed[0]!r} of table {table.name!r} is new, gone or another one since "
                f"version {version}",
                why="A query has the columns that the table had when it was started",
                fix="Start the query again: it goes on from where it was, with the new columns",
            )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A snapshot or version, as far as it has not been read."""

    before: Offset
    after: Offset
    files: pa.Table


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
