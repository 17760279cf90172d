"""`df.write` and `writeStream` of a data source: tasks stage files, one commit names them.

The plan is made when the write begins, from the version that the table has then. The commit starts
from that version: whoever changed the table's columns or constraints meanwhile makes it fail.

Spark asks to abort a write whenever its commit did not end well, and that may be after it happened:
the process died, or its answer was lost. So files are deleted only where no commit can have been
tried, which is where a task failed, and by the commit itself when it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from deltalakedb.actions import AddFile
from deltalakedb.errors import ConfigurationError, DeltaLakeDbError, TableNotFoundError
from deltalakedb.operations.append import RowPlan, appended, plan_rows
from deltalakedb.operations.overwrite import check_overwrite, check_rearranges, overwritten
from deltalakedb.spark.io.task_results import receive_add, send_add
from deltalakedb.spark.source.source_options import SourceOptions, check_layout, columns_of
from deltalakedb.staging.stage import stage
from deltalakedb.storage import normalise_location, open_storage
from deltalakedb.transaction.commit import state_of

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.lake import Lake
    from deltalakedb.table import Table


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The actions of the files of a task, as JSON, and the version that they were planned from."""

    adds: tuple[str, ...]
    version: int

    def files(self) -> list[AddFile]:
        """The actions."""
        return [receive_add(text) for text in self.adds]


@dataclass(frozen=True)
class Target:
    """The table that is written to, by the version it had when the write began."""

    given: SourceOptions
    plan: RowPlan = field(repr=False)
    version: int
    overwrite: bool
    dynamic: bool
    data_change: bool

    @classmethod
    def planned(cls, given: SourceOptions, schema: StructType, *, overwrite: bool) -> Target:
        """Plan a write of rows with these columns; a table that does not exist is created."""
        from pyspark.sql.pandas.types import to_arrow_schema

        replaced = given.replaced(overwrite=overwrite)
        if replaced.matching is not None:
            raise ConfigurationError(
                "The options replaceUsing and replaceOn do not work here",
                why="They are for Spark's own scan, and this is a data source in Python",
                fix="Use replaceWhere, or call deltalakedb.spark.enable(spark) in a classic "
                "session",
            )
        if given.optimize():
            raise ConfigurationError(
                "The option optimizeWrite does not work here",
                why="Rows that come to a data source in Python cannot be shuffled any more",
                fix="Repartition them before they are written, or call "
                "deltalakedb.spark.enable(spark) in a classic session",
            )
        data_change = given.data_change(overwrite=overwrite)
        where, dynamic = replaced.where, replaced.dynamic
        overwrite_schema = overwrite and given.flag("overwriteSchema")
        # What is wrong whatever the table is like is told before one is created.
        check_overwrite((), where=where, overwrite_schema=overwrite_schema, dynamic=dynamic)
        with given.open() as lake:
            if data_change:
                table = _found_or_created(lake, given, schema, repartition=overwrite_schema)
            else:
                table = lake.table(given.table)
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
                merge_schema=given.flag("mergeSchema"),
                overwrite_schema=overwrite_schema,
                partition_by=(given.names("partitionBy") or None) if overwrite_schema else None,
                where=where,
                target_bytes=given.number("targetFileBytes"),
            )
        if not data_change:
            check_rearranges(plan)
        files = replace(plan.stage, codec=given.codec(), max_records=given.max_records())
        plan = replace(plan, stage=files)
        return cls(given, plan, state.version, overwrite, dynamic, data_change)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        made = stage(self.plan.stage, batches)
        return Staged(tuple(send_add(add) for add in made), self.version)

    def commit(
        self, messages: list[WriterCommitMessage | None], app_txn: tuple[str, int] | None
    ) -> None:
        """Commit the files of all tasks."""
        adds = _all(messages)
        # Spark plans anew for the commit of a batch of a stream: the tasks had an earlier plan.
        version = min((one.version for one in messages if isinstance(one, Staged)), default=None)
        base = self.version if version is None else version
        with self.given.open() as lake:
            table = lake.table(self.given.table)
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
            noted = commit.with_note(self.given.text("userMetadata"))
            table.submit(noted.with_app_txn(app_txn, table.now_ms()))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of the tasks that ended, where another failed; vacuum finds the rest."""
        if any(one is None for one in messages):
            self.plan.undo(_all(messages))


def _all(messages: list[WriterCommitMessage | None]) -> list[AddFile]:
    return [add for one in messages if isinstance(one, Staged) for add in one.files()]


def _found_or_created(
    lake: Lake, given: SourceOptions, schema: StructType, *, repartition: bool
) -> Table:
    try:
        table = lake.table(given.table)
    except TableNotFoundError:
        location = given.text("location")
        if location is None:
            raise
    else:
        check_layout(
            table,
            given.text("location"),
            partition_by=() if repartition else given.names("partitionBy"),
            cluster_by=given.names("clusterBy"),
        )
        return table
    return lake.create_table(
        given.table,
        location=location,
        schema=columns_of(schema),
        partition_by=given.names("partitionBy"),
        cluster_by=given.names("clusterBy"),
        properties=dict(given.properties),
    )


class BatchWriter(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit, at most once where `txnAppId` and `txnVersion` are given, as Delta has it."""
        self._target.commit(messages, self._target.given.app_txn())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was staged."""
        self._target.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`writeStream`: each batch of a query is committed once, however often it is tried."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._app_id = _app_id(target.given)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._target.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit a batch by its number."""
        self._target.commit(messages, (self._app_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what was staged."""
        self._target.abort(messages)


def _app_id(given: SourceOptions) -> str:
    """What a query is known by across its restarts: its own name for it, or Spark's.

    Spark's is in the checkpoint. Its location would not do: a query that begins anew there, because
    somebody deleted the checkpoint, counts its batches from zero and would write nothing.
    """
    named = given.text("txnAppId")
    if named is not None:
        return named
    checkpoint = given.text("checkpointLocation")
    if checkpoint is None:
        raise ConfigurationError(
            "It cannot be told which query this is, after a restart",
            why="A batch is written exactly once by the name of its query and its number",
            fix='Add .option("checkpointLocation", ...), or a name by .option("txnAppId", ...)',
        )
    try:
        storage = open_storage(normalise_location(checkpoint), given.storage_options)
        return str(json.loads(storage.get("metadata"))["id"])
    except (DeltaLakeDbError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"The name of this query cannot be read from its checkpoint {checkpoint!r}",
            why=str(error),
            fix='Add .option("txnAppId", ...): a name of its own, another one for each query',
        ) from error
