"""`readStream`: a table is followed, version by version, file by file.

An offset says how far a query has come: all files of the versions up to `version` are done, and
`index` files of what comes next. What comes first is the table as it was when the query began
(`snapshot`), unless it starts at a version or time of the log. What an offset means never changes,
because history does not: a query that is restarted reads exactly what it would have read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from deltalakedb.actions import AddFile, Metadata, RemoveFile
from deltalakedb.errors import ConfigurationError, SourceChangedError
from deltalakedb.snapshot.listing import DEFAULT_COLUMNS
from deltalakedb.spark.datasource import FileGroup, ReadPlan, groups
from deltalakedb.spark.stream_files import files_of_adds

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.lake import Lake
    from deltalakedb.spark.source_options import SourceOptions
    from deltalakedb.table import Table

_NO_SNAPSHOT: Final = -1


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has come."""

    version: int
    index: int = 0
    snapshot: int = _NO_SNAPSHOT

    @classmethod
    def read(cls, given: dict[str, Any]) -> Offset:
        """From Spark's checkpoint."""
        return cls(int(given["version"]), int(given["index"]), int(given["snapshot"]))

    def to_dict(self) -> dict[str, int]:
        """For Spark's checkpoint."""
        return {"version": self.version, "index": self.index, "snapshot": self.snapshot}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a table."""

    def __init__(self, given: SourceOptions) -> None:
        self._given = given
        self._until: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Go no further than the newest version there is now."""
        with self._given.open() as lake:
            self._until = lake.table(self._given.table).snapshot().version

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
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
            if version is not None and version.lower() == "latest":
                return Offset(head).to_dict()
            if version is not None:
                first = given.number("startingVersion")
                assert first is not None  # noqa: S101 - it was there a moment ago
                table.snapshot(first)
                return Offset(first - 1).to_dict()
            if moment is not None:
                return Offset(_first_since(table, moment) - 1).to_dict()
            return Offset(_NO_SNAPSHOT, 0, head).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """What `maxFilesPerTrigger` or `maxBytesPerTrigger` say."""
        files = self._given.number("maxFilesPerTrigger")
        size = self._given.number("maxBytesPerTrigger")
        if files is not None and size is None:
            return ReadMaxFiles(files)
        if size is not None and files is None:
            return ReadMaxBytes(size)
        if files is not None:
            raise ConfigurationError(
                "Both maxFilesPerTrigger and maxBytesPerTrigger are given", fix="Give one of them"
            )
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """How far the next batch goes."""
        begin = Offset.read(start)
        room = _Room.of(limit)
        with self._given.open() as lake:
            table = lake.table(self._given.table)
            reached = begin
            for unit in self._units(lake, table, begin):
                taken = room.take(unit.files["size_bytes"].to_pylist())
                if taken < unit.files.num_rows:
                    return Offset(
                        unit.before.version, unit.before.index + taken, unit.before.snapshot
                    ).to_dict()
                reached = unit.after
            return reached.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files between two offsets, in groups."""
        import pyarrow as pa

        first, last = Offset.read(start), Offset.read(end)
        found: list[pa.Table] = []
        with self._given.open() as lake:
            table = lake.table(self._given.table)
            plan = ReadPlan.of(table.snapshot())
            for unit in self._units(lake, table, first):
                if unit.before.version == last.version and unit.before.snapshot == last.snapshot:
                    found.append(unit.files.slice(0, last.index - unit.before.index))
                    break
                found.append(unit.files)
                if unit.after == last:
                    break
        return groups(plan, pa.concat_tables(found)) if found else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a group."""
        assert isinstance(partition, FileGroup)  # noqa: S101 - see partitions
        yield from partition.batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing has to be kept or freed."""

    def _units(self, _lake: Lake, table: Table, begin: Offset) -> Iterator[_Unit]:
        """What comes after an offset: the rest of the snapshot or version, then one by one."""
        offset = begin
        if offset.snapshot != _NO_SNAPSHOT:
            files = table.snapshot(offset.snapshot).files(columns=DEFAULT_COLUMNS)
            after = Offset(offset.snapshot)
            yield _Unit(offset, after, files.slice(offset.index))
            offset = after
        head = table.snapshot().version if self._until is None else self._until
        while offset.version < head:
            version = offset.version + 1
            after = Offset(version)
            files = self._added(table, version)
            yield _Unit(offset, after, files.slice(offset.index))
            offset = after

    def _added(self, table: Table, version: int) -> pa.Table:
        """The files that a version added; refused where it did more than that."""
        actions = table.actions(version)
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
            if isinstance(action, Metadata) and version > 0:
                self._check_columns(table, version, action)
        return files_of_adds(adds, version)

    def _check_columns(self, table: Table, version: int, after: Metadata) -> None:
        before = table.snapshot(version - 1).schema
        if before != after.schema:
            raise SourceChangedError(
                f"The columns of table {table.name!r} changed in version {version}",
                why="A query has the columns that the table had when it began",
                fix="Start the query again: it goes on from where it was, with the new columns",
            )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A snapshot or version, as far as it has not been read."""

    before: Offset
    after: Offset
    files: pa.Table


class _Room:
    """How much a batch may still take; the first file always has room."""

    def __init__(self, files: int | None, size: int | None) -> None:
        self._files = files
        self._size = size
        self._any = False

    @classmethod
    def of(cls, limit: ReadLimit) -> _Room:
        """What a limit of Spark's leaves."""
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return cls(files, size)

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
