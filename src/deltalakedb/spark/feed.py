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
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField as SparkField
from pyspark.sql.types import StructType as SparkStruct

from deltalakedb.actions import AddFile, CdcFile, RemoveFile
from deltalakedb.actions.datatypes import LONG, STRING, TIMESTAMP, StructField, StructType
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.snapshot.added_files import files_of_adds
from deltalakedb.snapshot.data_files import DataFile, TableLayout, deleted_rows
from deltalakedb.snapshot.dataset import layout_of
from deltalakedb.spark.datasource import ReadPlan, in_parts
from deltalakedb.spark.scan import spark_types
from deltalakedb.staging.change_data import CHANGE_TYPE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.lake import Lake
    from deltalakedb.spark.source_options import SourceOptions
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

    def __init__(self, given: SourceOptions) -> None:
        self._given = given

    def partitions(self) -> Sequence[InputPartition]:
        """The changes of each version."""
        with self._given.open() as lake:
            return list(planned_changes(lake, self._given))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files, each with what happened to it."""
        if isinstance(partition, Changes):
            yield from partition.batches()
        # Spark makes a task without a partition where there are none.


def feed_frame(spark: SparkSession, lake: Lake, given: SourceOptions) -> DataFrame:
    """The same as a DataFrame that the driver plans; its tasks read the files."""
    found = planned_changes(lake, given)
    schema = feed_schema(lake.table(given.table).snapshot().schema)
    types = spark_types(schema)
    # PySpark cannot send columns that have a dot in their names.
    plain = SparkStruct([SparkField(f"_{i}", kind) for i, kind in enumerate(types.values())])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in batch.column(0):
                for rows in pickle.loads(one.as_py()).batches():  # noqa: S301 - made below
                    yield rows.rename_columns(plain.names)

    sent = spark.createDataFrame([(pickle.dumps(one),) for one in found], "changes binary")
    return sent.mapInArrow(read, plain).toDF(*types)


def planned_changes(lake: Lake, given: SourceOptions) -> list[Changes]:
    """What happened to which files in the versions that are asked for."""
    table = lake.table(given.table)
    first, last = _range(given, table)
    newest = table.snapshot(last)
    plan = ReadPlan.of(newest)
    layout = layout_of(newest)
    moments = {
        record.version: record.committed_at
        for record in table.history(
            None, since=table.snapshot(first).timestamp, until=newest.timestamp
        )
    }
    found: list[Changes] = []
    for version in range(first, last + 1):
        for change in changes_of(table, version, moments[version], layout):
            # The reader itself was sent to the tasks before this was known.
            change.plan = plan
            found.append(change)
    return found


def changes_of(
    table: Table, version: int, committed_at: int, layout: TableLayout
) -> Iterator[Changes]:
    """What happened to which files in a version."""
    actions = table.actions(version)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=committed_at)
    told = [action for action in actions if isinstance(action, CdcFile)]
    if told:
        files = files_of_adds([_as_add(one) for one in told], version)
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


def _range(given: SourceOptions, table: Table) -> tuple[int, int]:
    head = table.snapshot().version
    first, since = given.number("startingVersion"), given.text("startingTimestamp")
    last, until = given.number("endingVersion"), given.text("endingTimestamp")
    if (first is None) == (since is None) or (last is not None and until is not None):
        raise ConfigurationError(
            "It is not clear which versions to read the changes of",
            fix="Give startingVersion or startingTimestamp, and, if not up to now, endingVersion "
            "or endingTimestamp",
        )
    if since is not None:
        found = [record.version for record in table.history(None, since=since)]
        first = min(found) if found else head + 1
    if until is not None:
        last = table.snapshot(timestamp=until).version
    assert first is not None  # noqa: S101 - given, or found
    last = head if last is None else last
    table.snapshot(last)
    if first > last:
        raise ConfigurationError(
            f"There are no versions from {first} to {last}",
            fix=f"The newest version is {head}",
        )
    return first, last
