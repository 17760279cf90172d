"""`df.write` and `writeStream` of a data source: tasks stage files, one commit names them.

- A write is planned for the version that the table has when it begins, and its commit starts from
  that version: a concurrent change of the table's columns or constraints makes it fail.
- Spark aborts a write whenever its commit did not return, which may be after the commit happened:
  the process died, or its answer was lost. So an abort deletes files only if a task failed, and
  no commit can have been tried. A commit that is refused deletes its files itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltalakedb.actions import AddFile
from deltalakedb.actions.datatypes import schema_from_json, schema_to_json, with_nulls
from deltalakedb.errors import (
    ConfigurationError,
    DeltaLakeDbError,
    TableExportedError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations.append import RowPlan, appended, plan_rows
from deltalakedb.operations.overwrite import check_overwrite, check_rearranges, overwritten
from deltalakedb.spark.source.options import SourceOptions
from deltalakedb.staging.stage import stage
from deltalakedb.storage import normalise_location, open_storage, table_location
from deltalakedb.store.table_lookup import as_location
from deltalakedb.table import Table
from deltalakedb.transaction.commit import state_of


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The files of a task, and the version of the table that they were planned from."""

    adds: tuple[AddFile, ...]
    version: int


@dataclass(frozen=True)
class Target:
    """The table that is written to, at the version it had when the write began."""

    options: SourceOptions
    plan: RowPlan = field(repr=False)
    version: int
    overwrite: bool
    dynamic: bool
    data_change: bool

    @classmethod
    def planned(cls, options: SourceOptions, schema: StructType, *, overwrite: bool) -> Target:
        """Plan a write of rows with these columns; create a table that does not exist."""
        replaced = options.replaced(overwrite=overwrite)
        if replaced.matching is not None:
            raise ConfigurationError(
                "The options replaceUsing and replaceOn do not work here",
                why="They are for Spark's own scan, and this is a data source in Python",
                fix="Use replaceWhere, or call deltalakedb.spark.enable(spark) in a classic "
                "session",
            )
        if options.optimize():
            raise ConfigurationError(
                "The option optimizeWrite does not work here",
                why="Rows that come to a data source in Python cannot be shuffled any more",
                fix="Repartition them before they are written, or call "
                "deltalakedb.spark.enable(spark) in a classic session",
            )
        data_change = options.data_change(overwrite=overwrite)
        where, dynamic = replaced.where, replaced.dynamic
        overwrite_schema = overwrite and options.flag("overwriteSchema")
        # Options that no table allows are refused before one is created.
        check_overwrite((), where=where, overwrite_schema=overwrite_schema, dynamic=dynamic)
        with options.open() as lake:
            if data_change:
                table = _get_or_create(lake, options, schema, repartition=overwrite_schema)
            else:
                table = lake.table(options.table)
            state = table.state()
            if overwrite:
                check_overwrite(
                    state.metadata.partition_columns,
                    where=where,
                    overwrite_schema=overwrite_schema,
                    dynamic=dynamic,
                )
            plan = plan_rows(
                table.record,
                state,
                to_arrow_schema(schema, timezone="UTC"),
                storage_options=lake.storage_options,
                merge_schema=options.flag("mergeSchema"),
                overwrite_schema=overwrite_schema,
                partition_by=(options.names("partitionBy") or None) if overwrite_schema else None,
                where=where,
                target_bytes=options.number("targetFileBytes"),
            )
        if not data_change:
            check_rearranges(plan)
        files = replace(plan.stage, codec=options.codec(), max_records=options.max_records())
        plan = replace(plan, stage=files)
        return cls(options, plan, state.version, overwrite, dynamic, data_change)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        return Staged(tuple(stage(self.plan.stage, batches)), self.version)

    def commit(
        self, messages: list[WriterCommitMessage | None], app_txn: tuple[str, int] | None
    ) -> None:
        """Commit the files of all tasks."""
        adds = _all(messages)
        # Spark plans the commit of a batch of a stream again: the tasks had an earlier plan.
        version = min((one.version for one in messages if isinstance(one, Staged)), default=None)
        base = self.version if version is None else version
        with self.options.open() as lake:
            table = lake.table(self.options.table)
            snapshot = table.snapshot(base)
            plan = replace(self.plan, base=state_of(snapshot))
            if self.overwrite:
                now = table.now_ms()
                commit = overwritten(
                    plan,
                    adds,
                    snapshot,
                    now=now,
                    dynamic=self.dynamic,
                    data_change=self.data_change,
                )
            else:
                commit = appended(plan, adds)
            noted = commit.with_note(self.options.text("userMetadata"))
            table.submit(noted.with_app_txn(app_txn, table.now_ms()))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of the tasks that ended, if another failed; vacuum deletes the rest."""
        if any(one is None for one in messages):
            self.plan.undo(_all(messages))


def _all(messages: list[WriterCommitMessage | None]) -> list[AddFile]:
    return [add for one in messages if isinstance(one, Staged) for add in one.adds]


def existing(lake: Lake, options: SourceOptions, *, create: bool = True) -> Table | None:
    """The table; None if it does not exist and may be created."""
    try:
        return lake.table(options.table)
    except TableNotFoundError as missing:
        if create and (options.text("location") is not None or _has_place(lake, options, missing)):
            return None
        raise


def _has_place(lake: Lake, options: SourceOptions, missing: TableNotFoundError) -> bool:
    """Whether a missing table can be created in the warehouse; an exported one still lies there."""
    if isinstance(missing, TableExportedError) or as_location(options.table) is not None:
        return False
    return lake.warehouse is not None


def _get_or_create(
    lake: Lake, options: SourceOptions, schema: StructType, *, repartition: bool
) -> Table:
    location = options.text("location")
    partition_by, cluster_by = options.names("partitionBy"), options.names("clusterBy")
    table = existing(lake, options)
    if table is not None:
        partition_by = [] if repartition else partition_by
        check_layout(table, location, partition_by=partition_by, cluster_by=cluster_by)
        return table
    return lake.create_table(
        options.table,
        location=location,
        schema=columns_of(schema),
        partition_by=partition_by,
        cluster_by=cluster_by,
        properties=dict(options.properties),
    )


def columns_of(schema: StructType) -> StructType:
    """The columns of a table that is created for rows: nulls are allowed everywhere, as in Delta.

    That the first rows have no nulls is no rule for the table.
    """
    nullable = with_nulls(schema_from_json(schema.json()))
    return StructType.fromJson(json.loads(schema_to_json(nullable)))


def check_layout(
    table: Table,
    location: str | None,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
) -> None:
    """Refuse a write that names another location or other columns than the table has.

    They apply to tables that the write creates.
    """
    if location is not None and (place := table_location(location)) != table.location:
        raise ConfigurationError(
            f"The location of table {table.name!r} is not {place}",
            why=f"It exists already, at {table.location}",
            fix="Leave the option location out, or name another table",
        )
    _check_columns(table, "partitioned", partition_by, table.state().metadata.partition_columns)
    if cluster_by:
        _check_columns(table, "clustered", cluster_by, table.snapshot().clustering_columns)


def _check_columns(table: Table, how: str, names: Sequence[str], actual: Sequence[str]) -> None:
    if names and [name.lower() for name in names] != [name.lower() for name in actual]:
        call = "partitionBy" if how == "partitioned" else "clusterBy"
        raise ConfigurationError(
            f"Table {table.name!r} is not {how} by {', '.join(names)}",
            why=f"It is {how} by {', '.join(actual)}" if actual else f"It is not {how} at all",
            fix=f"Leave {call} out: rows go to their partitions anyway"
            + ("" if call == "partitionBy" else "; table.cluster_by(…) takes other columns"),
        )


class BatchWriter(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit; with `txnAppId` and `txnVersion` at most once, as in Delta."""
        self._target.commit(messages, self._target.options.app_txn())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was staged."""
        self._target.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`writeStream`: each batch of a query is committed once, however often it is tried."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._app_id = _app_id(target.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit a batch by its number."""
        self._target.commit(messages, (self._app_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what was staged."""
        self._target.abort(messages)


def _app_id(options: SourceOptions) -> str:
    """The identity of a query across restarts: the option `txnAppId`, or Spark's id of the query.

    Spark's id is in the checkpoint. The location of the checkpoint would not do: if it is deleted,
    the query counts its batches from zero again, and would write nothing.
    """
    app_id = options.text("txnAppId")
    if app_id is not None:
        return app_id
    checkpoint = options.text("checkpointLocation")
    if checkpoint is None:
        raise ConfigurationError(
            "The query has no identity that survives a restart",
            why="A batch is written exactly once by the identity of its query and its number",
            fix='Add .option("checkpointLocation", ...), or a name by .option("txnAppId", ...)',
        )
    try:
        storage = open_storage(normalise_location(checkpoint), options.storage_options)
        return str(json.loads(storage.get("metadata"))["id"])
    except (DeltaLakeDbError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"The name of this query cannot be read from its checkpoint {checkpoint!r}",
            why=str(error),
            fix='Add .option("txnAppId", ...): a name of its own, another one for each query',
        ) from error
