"""The change data feed: which rows were inserted, updated and deleted, by version.

The changes of a commit are those in its files of change data. A commit without such files inserted
the rows of the files that it added, and deleted those of the files that it removed; where only the
deletion vector of a file changed, it deleted the rows that are hidden now. That is exact for tables
with a feed, and for commits that only add or only remove; any other commit is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField as SparkField
from pyspark.sql.types import StructType as SparkStruct

from deltalakedb.actions import Action, AddFile, CdcFile, Metadata, RemoveFile
from deltalakedb.actions.datatypes import (
    LONG,
    STRING,
    TIMESTAMP,
    StructField,
    StructType,
    physical_name,
)
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.values import CHANGE_TYPE
from deltalakedb.errors import (
    ConfigurationError,
    SourceChangedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.reading.data_files import DataFile, TableLayout, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import files_of_adds
from deltalakedb.snapshot.resolve import to_datetime
from deltalakedb.spark.io.scan import spark_types
from deltalakedb.spark.source.datasource import ReadPlan, in_parts
from deltalakedb.spark.source.options import SourceOptions, exclusive
from deltalakedb.table import Table

_VERSION: Final = "_commit_version"
_TIMESTAMP: Final = "_commit_timestamp"


def feed_schema(schema: StructType) -> StructType:
    """The columns of the table, and those of the feed."""
    return StructType(
        (
            # NOT NULL is a rule for writes, and older rows may break it.
            *(replace(field, nullable=True) for field in schema.fields),
            StructField(CHANGE_TYPE, STRING),
            StructField(_VERSION, LONG),
            StructField(_TIMESTAMP, TIMESTAMP),
        )
    )


class Changes(InputPartition):
    """Files whose rows changed in one way in one version; with `rows`, only rows by number."""

    def __init__(
        self,
        files: pa.Table,
        kind: str | None,
        version: int,
        moment: datetime,
        *,
        rows: pa.Array | None = None,
    ) -> None:
        super().__init__(None)
        self.plan: ReadPlan | None = None
        self.files = files
        self.kind = kind
        self.version = version
        self.moment = moment
        self.rows = rows

    @property
    def of_removed(self) -> bool:
        """Whether these are removed files, written before this version."""
        return self.kind == "delete" and self.rows is None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns of the feed."""
        assert self.plan is not None  # noqa: S101
        plan = self.plan
        names = [field.name for field in plan.schema.fields]
        if self.kind is None:
            with_type = StructType((*plan.schema.fields, StructField(CHANGE_TYPE, STRING)))
            plan = replace(plan, schema=with_type)
        batches = plan.batches(self.files)
        if self.rows is not None:
            batches = iter(pa.Table.from_batches(batches).take(self.rows).to_batches())
        for batch in batches:
            count = batch.num_rows
            arrays = list(batch.columns)
            if self.kind is not None:
                arrays.append(pa.array([self.kind] * count, pa.string()))
            arrays.append(pa.array([self.version] * count, pa.int64()))
            arrays.append(pa.array([self.moment] * count, pa.timestamp("us", "UTC")))
            yield pa.RecordBatch.from_arrays(arrays, [*names, CHANGE_TYPE, _VERSION, _TIMESTAMP])


class FeedReader(DataSourceReader):
    """Reads the changes of versions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = table_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The changes of each version."""
        with self._options.open() as lake:
            table = lake.table(self._options.table)
            return planned_changes(table, *feed_range(self._options, table), self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; Spark runs a task without one where there are none."""
        if isinstance(partition, Changes):
            yield from partition.batches()


def feed_frame(spark: SparkSession, lake: Lake, options: SourceOptions) -> DataFrame:
    """The same as a DataFrame that the driver plans; its tasks read the files."""
    table = lake.table(options.table)
    first, last = feed_range(options, table)
    columns = table.snapshot(last).schema
    changes = planned_changes(table, first, last, columns)
    types = spark_types(feed_schema(columns))
    # PySpark cannot send columns that have a dot in their names.
    plain = SparkStruct([SparkField(f"_{i}", kind) for i, kind in enumerate(types.values())])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in batch.column(0):
                for rows in pickle.loads(one.as_py()).batches():  # noqa: S301 - from below
                    yield rows.rename_columns(plain.names)

    sent = spark.createDataFrame([(pickle.dumps(one),) for one in changes], "changes binary")
    return sent.mapInArrow(read, plain).toDF(*types)


def feed_columns(lake: Lake, options: SourceOptions) -> StructType:
    """The columns of the feed: those that the table has at the last version."""
    return feed_schema(_end(options, lake.table(options.table)).schema)


def table_columns(schema: StructType) -> StructType:
    """The columns of the table among those of its feed."""
    return StructType(schema.fields[: -len(feed_schema(StructType(())).fields)])


def planned_changes(table: Table, first: int, last: int, columns: StructType) -> list[Changes]:
    """The changes from one version to another, to be read with these columns."""
    newest = table.snapshot(last)
    plan = replace(ReadPlan.of(newest), schema=columns)
    layout = layout_of(newest)
    after = table.snapshot(first).metadata
    _check_columns(table, after, columns, first)
    before = metadata_at(table, first - 1) or after
    moments = {
        record.version: record.committed_at
        for record in table.history(
            None, since=table.snapshot(first).timestamp, until=newest.timestamp
        )
    }
    changes: list[Changes] = []
    for version in range(first, last + 1):
        actions = table.actions(version)
        for action in actions:
            if isinstance(action, Metadata):
                after = action
                _check_columns(table, action, columns, version)
        for change in changes_of(table, version, actions, moments[version], layout):
            # The reader itself was sent to the tasks before this was known.
            change.plan = plan.at(before if change.of_removed else after)
            changes.append(change)
        before = after
    return changes


def metadata_at(table: Table, version: int) -> Metadata | None:
    """The metadata of a version; None before the first, and of an expired one."""
    if version < 0:
        return None
    try:
        return table.snapshot(version).metadata
    except VersionNotFoundError:
        return None


def changes_of(
    table: Table,
    version: int,
    actions: Sequence[Action],
    committed_at: int,
    layout: TableLayout,
) -> Iterator[Changes]:
    """The changes of a version."""
    moment = to_datetime(committed_at)
    change_files = [action for action in actions if isinstance(action, CdcFile)]
    if change_files:
        files = files_of_adds([_as_add(one) for one in change_files], version)
        yield from _grouped(files, None, version, moment)
        return
    adds = {a.path: a for a in actions if isinstance(a, AddFile) and a.data_change}
    removes = {a.path: a for a in actions if isinstance(a, RemoveFile) and a.data_change}
    if adds and removes:
        _check_has_feed(table, version)
    both = adds.keys() & removes.keys()
    new = [add for path, add in adds.items() if path not in both]
    gone = [_as_add(remove) for path, remove in removes.items() if path not in both]
    yield from _grouped(files_of_adds(new, version), "insert", version, moment)
    yield from _grouped(files_of_adds(gone, version), "delete", version, moment)
    for path in sorted(both):
        before, after = _as_add(removes[path]), adds[path]
        was, now = _hidden(layout, before, version), _hidden(layout, after, version)
        whole = files_of_adds([replace(after, deletion_vector=None)], version)
        for kind, rows in (("delete", _less(now, was)), ("insert", _less(was, now))):
            if len(rows):
                yield Changes(whole, kind, version, moment, rows=rows)


def _grouped(
    files: pa.Table, kind: str | None, version: int, moment: datetime
) -> Iterator[Changes]:
    for part in in_parts(files):
        yield Changes(part, kind, version, moment)


def _as_add(action: CdcFile | RemoveFile) -> AddFile:
    return AddFile(
        path=action.path,
        partition_values=action.partition_values or {},
        size=action.size or 0,
        modification_time=0,
        data_change=False,
        deletion_vector=action.deletion_vector if isinstance(action, RemoveFile) else None,
    )


def _hidden(layout: TableLayout, add: AddFile, version: int) -> pa.Array:
    (row,) = files_of_adds([add], version).to_pylist()
    if row["deletion_vector"] is None:
        return pa.array([], pa.int64())
    file = DataFile(row["path"], row["partition_values"], row["deletion_vector"])
    deleted = deleted_rows(layout, file)
    return pa.array([], pa.int64()) if deleted is None else deleted.numbers()


def _less(numbers: pa.Array, others: pa.Array) -> pa.Array:
    return numbers.filter(pc.invert(pc.is_in(numbers, others)))


def _check_has_feed(table: Table, version: int) -> None:
    """Refuse a commit that adds and removes files of a table without a feed."""
    if not TableProperties(table.snapshot(version).properties).enable_change_data_feed:
        raise UnsupportedFeatureError(
            f"Which rows changed in version {version} of table {table.name!r} is not known",
            why="It added and removed files, and the table had no change data feed then",
            fix="Read versions that only add rows; set delta.enableChangeDataFeed for later ones",
        )


def _check_columns(table: Table, then: Metadata, columns: StructType, version: int) -> None:
    """Refuse versions whose rows have columns that the feed does not have."""
    widening = TableProperties(table.snapshot().properties).enable_type_widening
    known = {physical_name(field): field for field in columns.fields}
    for field in then.schema.fields:
        column = known.get(physical_name(field))
        if column is None or (column.type != field.type and not widening):
            raise SourceChangedError(
                f"Column {field.name!r} of table {table.name!r} at version {version} is gone or "
                "another one at the end of the versions that are read",
                why="Its values would be lost",
                fix="Read the versions before that change and those after it apart, by "
                "endingVersion and startingVersion",
            )


def feed_range(options: SourceOptions, table: Table) -> tuple[int, int]:
    """The first and the last version of the feed."""
    head = table.snapshot().version
    first, since = options.number("startingVersion"), options.text("startingTimestamp")
    if (first is None) == (since is None):
        raise ConfigurationError(
            "The change data feed has no first version",
            fix="Set startingVersion or startingTimestamp; and, unless you read up to now, "
            "endingVersion or endingTimestamp",
        )
    last = _end(options, table).version
    if since is not None:
        versions = [record.version for record in table.history(None, since=since)]
        first = min(versions, default=head + 1)
    assert first is not None  # noqa: S101 - one of the two is set
    if first > last:
        raise ConfigurationError(
            f"There are no versions from {first} to {last}",
            fix=f"The newest version is {head}",
        )
    return first, last


def _end(options: SourceOptions, table: Table) -> Snapshot:
    """The last version of the feed; by default the newest of the table."""
    last, until = options.number("endingVersion"), options.text("endingTimestamp")
    if last is not None and until is not None:
        raise exclusive("endingVersion", "endingTimestamp")
    return table.snapshot(last, timestamp=until)
