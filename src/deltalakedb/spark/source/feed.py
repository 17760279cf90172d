"""The change data feed: which rows were inserted, updated and deleted, by version.

Where a commit has files of change data, they say it. Where it has none, its rows tell by
themselves: those of added files were inserted, those of removed ones deleted, and where only the
deletion vector of a file changed, the rows that it hides now. That is exact for tables that keep a
feed, and for commits that only add or only remove; any other commit is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

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
from deltalakedb.reading.data_files import DataFile, TableLayout, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.snapshot.listing import files_of_adds
from deltalakedb.snapshot.resolve import to_datetime
from deltalakedb.spark.io.scan import spark_types
from deltalakedb.spark.source.datasource import ReadPlan, in_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.lake import Lake
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.spark.source.source_options import SourceOptions
    from deltalakedb.table import Table

VERSION: Final = "_commit_version"
MOMENT: Final = "_commit_timestamp"


def feed_schema(schema: StructType) -> StructType:
    """The columns of the table, and those of the feed."""
    return StructType(
        (
            # Whether they may be null is a matter of rows that are written, not of what is told.
            *(replace(field, nullable=True) for field in schema.fields),
            StructField(CHANGE_TYPE, STRING),
            StructField(VERSION, LONG),
            StructField(MOMENT, TIMESTAMP),
        )
    )


class Changes(InputPartition):
    """Files whose rows changed in one way in one version; `rows` only those, where it is given."""

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
        """Whether the files are gone, and were written before this version."""
        return self.kind == "delete" and self.rows is None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, each with what happened to it."""
        import pyarrow as pa

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
            yield pa.RecordBatch.from_arrays(arrays, [*names, CHANGE_TYPE, VERSION, MOMENT])


class FeedReader(DataSourceReader):
    """Reads the changes of versions."""

    def __init__(self, given: SourceOptions, schema: StructType) -> None:
        self._options = given
        self._columns = table_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The changes of each version."""
        with self._options.open() as lake:
            table = lake.table(self._options.table)
            return planned_changes(table, *feed_range(self._options, table), self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, each with what happened to it."""
        if isinstance(partition, Changes):
            yield from partition.batches()
        # Spark makes a task without a partition where there are none.


def feed_frame(spark: SparkSession, lake: Lake, given: SourceOptions) -> DataFrame:
    """The same as a DataFrame that the driver plans; its tasks read the files."""
    table = lake.table(given.table)
    first, last = feed_range(given, table)
    columns = table.snapshot(last).schema
    found = planned_changes(table, first, last, columns)
    types = spark_types(feed_schema(columns))
    # PySpark cannot send columns that have a dot in their names.
    plain = SparkStruct([SparkField(f"_{i}", kind) for i, kind in enumerate(types.values())])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in batch.column(0):
                for rows in pickle.loads(one.as_py()).batches():  # noqa: S301 - made below
                    yield rows.rename_columns(plain.names)

    sent = spark.createDataFrame([(pickle.dumps(one),) for one in found], "changes binary")
    return sent.mapInArrow(read, plain).toDF(*types)


def feed_columns(lake: Lake, given: SourceOptions) -> StructType:
    """The columns of the feed: those that the table has at the end of the versions."""
    return feed_schema(_end(given, lake.table(given.table)).schema)


def table_columns(schema: StructType) -> StructType:
    """The columns of the table among those of its feed."""
    return StructType(schema.fields[: -len(feed_schema(StructType(())).fields)])


def planned_changes(table: Table, first: int, last: int, columns: StructType) -> list[Changes]:
    """What happened to which files from one version to another, to be read with these columns."""
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
    found: list[Changes] = []
    for version in range(first, last + 1):
        actions = table.actions(version)
        for action in actions:
            if isinstance(action, Metadata):
                after = action
                _check_columns(table, action, columns, version)
        for change in changes_of(table, version, actions, moments[version], layout):
            # The reader itself was sent to the tasks before this was known.
            change.plan = plan.at(before if change.of_removed else after)
            found.append(change)
        before = after
    return found


def metadata_at(table: Table, version: int) -> Metadata | None:
    """The columns of a version; None before the first, and where it has expired."""
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
    """What happened to which files in a version."""
    moment = to_datetime(committed_at)
    change_files = [action for action in actions if isinstance(action, CdcFile)]
    if change_files:
        files = files_of_adds([_as_add(one) for one in change_files], version)
        yield from _grouped(files, None, version, moment)
        return
    adds = {a.path: a for a in actions if isinstance(a, AddFile) and a.data_change}
    removes = {a.path: a for a in actions if isinstance(a, RemoveFile) and a.data_change}
    if adds and removes:
        _check_kept(table, version)
    both = adds.keys() & removes.keys()
    new = [add for path, add in adds.items() if path not in both]
    gone = [_as_add(remove) for path, remove in removes.items() if path not in both]
    yield from _grouped(files_of_adds(new, version), "insert", version, moment)
    yield from _grouped(files_of_adds(gone, version), "delete", version, moment)
    for path in sorted(both):
        before, after = _as_add(removes[path]), adds[path]
        hidden, shown = _hidden(layout, before, version), _hidden(layout, after, version)
        whole = files_of_adds([replace(after, deletion_vector=None)], version)
        for kind, rows in (("delete", _less(shown, hidden)), ("insert", _less(hidden, shown))):
            if len(rows):
                yield Changes(whole, kind, version, moment, rows=rows)


def _grouped(
    files: pa.Table, kind: str | None, version: int, moment: datetime
) -> Iterator[Changes]:
    for some in in_parts(files):
        yield Changes(some, kind, version, moment)


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
    import pyarrow as pa

    (row,) = files_of_adds([add], version).to_pylist()
    if row["deletion_vector"] is None:
        return pa.array([], pa.int64())
    file = DataFile(row["path"], row["partition_values"], row["deletion_vector"])
    found = deleted_rows(layout, file)
    return pa.array([], pa.int64()) if found is None else found.numbers()


def _less(some: pa.Array, others: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return some.filter(pc.invert(pc.is_in(some, others)))


def _check_kept(table: Table, version: int) -> None:
    """A commit that adds and removes says which rows changed only if the table keeps a feed."""
    if not TableProperties(table.snapshot(version).properties).enable_change_data_feed:
        raise UnsupportedFeatureError(
            f"Which rows changed in version {version} of table {table.name!r} is not known",
            why="It added and removed files, and the table did not keep a change data feed then",
            fix="Read versions that only add rows; set delta.enableChangeDataFeed for later ones",
        )


def _check_columns(table: Table, then: Metadata, columns: StructType, version: int) -> None:
    """Refuse versions whose rows have columns that the feed cannot show."""
    widening = TableProperties(table.snapshot().properties).enable_type_widening
    known = {physical_name(field): field for field in columns.fields}
    for field in then.schema.fields:
        shown = known.get(physical_name(field))
        if shown is None or (shown.type != field.type and not widening):
            raise SourceChangedError(
                f"Column {field.name!r} of table {table.name!r} at version {version} is gone or "
                "another one at the end of the versions that are read",
                why="Its values would be lost",
                fix="Read the versions before that change and those after it apart, by "
                "endingVersion and startingVersion",
            )


def feed_range(given: SourceOptions, table: Table) -> tuple[int, int]:
    """The first and the last version that are asked for."""
    head = table.snapshot().version
    first, since = given.number("startingVersion"), given.text("startingTimestamp")
    if (first is None) == (since is None):
        raise ConfigurationError(
            "It is not clear which versions to read the changes of",
            fix="Give startingVersion or startingTimestamp, and, if not up to now, endingVersion "
            "or endingTimestamp",
        )
    last = _end(given, table).version
    if since is not None:
        found = [record.version for record in table.history(None, since=since)]
        first = min(found) if found else head + 1
    assert first is not None  # noqa: S101 - given, or found
    if first > last:
        raise ConfigurationError(
            f"There are no versions from {first} to {last}",
            fix=f"The newest version is {head}",
        )
    return first, last


def _end(given: SourceOptions, table: Table) -> Snapshot:
    """The last version that is asked for; the newest, where none is named."""
    last, until = given.number("endingVersion"), given.text("endingTimestamp")
    if last is not None and until is not None:
        raise ConfigurationError(
            "Both endingVersion and endingTimestamp are given", fix="Give one of them"
        )
    return table.snapshot(last, timestamp=until)
