"""Spark's executors write data files, by the staging function of the other rooms.

- Each task writes the rows of its partition, and returns the actions of its files.
- A task that is retried, or runs twice, leaves files that no action names: they are invisible, and
  vacuum deletes them.
- An error that a task raises is raised in the driver, without the stack trace of Spark.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import ClassVar, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import to_arrow_schema

from deltalakedb.actions import AddFile, CdcFile
from deltalakedb.actions.datatypes import StructType
from deltalakedb.actions.partition import decode_path
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.values import CHANGE_TYPE
from deltalakedb.errors import ConfigurationError, ConstraintViolatedError, DeltaLakeDbError
from deltalakedb.operations.append import RowPlan
from deltalakedb.operations.overwrite import Take
from deltalakedb.snapshot import Snapshot
from deltalakedb.spark.io.generated import generated_conditions, with_generated
from deltalakedb.spark.io.native_writer import WIDER, stage_natively
from deltalakedb.spark.io.scan import quoted, spark_types
from deltalakedb.spark.io.spark_internals import is_connect
from deltalakedb.spark.io.store_assignment import unfit
from deltalakedb.spark.io.timestamps import session_zone
from deltalakedb.staging.change_data import cdc_files, change_data_plan
from deltalakedb.staging.fit import fit, invariants, limits, nullable
from deltalakedb.staging.stage import Sinks, StagePlan, Stager, stage

_BROKEN: Final = "deltalakedb:constraint:"
_Written: TypeAlias = tuple[list[AddFile], list[AddFile]]
"""Data files, and files of change data."""
_Write: TypeAlias = Callable[[Iterable[pa.RecordBatch]], _Written]


@dataclass(frozen=True, slots=True)
class FrameSource:
    """The rows of a DataFrame."""

    generates: ClassVar[bool] = True
    frame: DataFrame
    codec: str | None = None
    """The codec of the new files; None for that of the table."""
    max_records: int | None = None
    """The most rows of a new file."""
    optimize: bool | None = None
    """Whether rows are shuffled to fewer, larger files; None for the table's property."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches; all are nullable, whatever Spark knows of these rows."""
        return nullable(to_arrow_schema(self.frame.schema, timezone="UTC"), ids=True)

    def zone(self) -> tzinfo:
        """The time zone of the session."""
        zone = session_zone(self.frame.sparkSession)
        if zone is None:
            raise ConfigurationError(
                "Python does not know the time zone of the session",
                fix="Set spark.sql.session.timeZone to a name such as Europe/Berlin, or to UTC",
            )
        return zone

    def replacing(self, snapshot: Snapshot, plan: RowPlan, now: int) -> Take | None:
        """Let Spark delete the rows that these replace; Spark Connect cannot scan, and does not."""
        from deltalakedb.spark.dml.replace import replace_matching, replace_where

        if is_connect(self.frame):
            return None
        if plan.matching is not None:
            return replace_matching(self.frame, snapshot, plan, plan.matching, now)
        return replace_where(self.frame.sparkSession, snapshot, plan, now)

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the rows on the executors."""
        # Refuse wrong columns before a job begins.
        schema = plan.metadata.schema
        fit(FrameSource(with_generated(self.frame, schema)).schema, schema, table=plan.table)
        # Expressions of the table get values of its types: hash(1) is not hash(1L).
        rows = with_generated(_widened(self.frame, schema), schema)
        plan = replace(plan, codec=self.codec, max_records=self.max_records)
        frame, checked = _constrained(rows, plan)
        return stage_frame(_shuffled(frame, plan) if self._optimizes(plan) else frame, checked)

    def _optimizes(self, plan: StagePlan) -> bool:
        """Whether to shuffle; without adaptive execution, a shuffle would write more files."""
        if not is_adaptive(self.frame.sparkSession):
            return False
        if self.optimize is None:
            return TableProperties(plan.metadata.configuration).optimize_write
        return self.optimize


def frame_source(frame: DataFrame) -> FrameSource:
    """A DataFrame as a source of rows."""
    return FrameSource(frame)


def is_adaptive(spark: SparkSession) -> bool:
    """Whether Spark adapts the partitions of a shuffle to their sizes."""
    return str(spark.conf.get("spark.sql.adaptive.enabled", "true")).lower() == "true"


def _shuffled(frame: DataFrame, plan: StagePlan) -> DataFrame:
    """The rows of each partition of the table together, in tasks of about the same size."""
    return frame.hint("rebalance", *(quoted(name) for name in plan.metadata.partition_columns))


def _widened(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with numbers cast to the table's types, where no value can be lost."""
    types = {name.lower(): kind for name, kind in spark_types(schema).items()}
    casts = {}
    for column in frame.schema.fields:
        kind = types.get(column.name.lower())
        before = column.dataType.simpleString()
        if kind is not None and before in WIDER.get(kind.simpleString(), ()):
            casts[column.name] = F.col(quoted(column.name)).cast(kind)
    return frame.withColumns(casts) if casts else frame


def stage_frame(frame: DataFrame, plan: StagePlan, *, sized: bool = False) -> list[AddFile]:
    """Write the rows of a DataFrame as data files; return the actions that add them.

    Spark's own writer is the fastest way, and used if it can. It writes one file in each task: for
    a target size it is only used if the tasks are `sized`.
    """
    try:
        native = stage_natively(frame, plan, sized=sized)
    except PySparkException as error:
        raise _refused(error, plan.table) from error
    if native is not None:
        return native
    return _collected(frame, plan, lambda batches: (stage(plan, batches), []))[0]


def stage_frame_checked(frame: DataFrame, plan: StagePlan) -> list[AddFile]:
    """The same, with a check of the table's constraints."""
    return stage_frame(*_constrained(frame, plan))


def stage_changes(frame: DataFrame, plan: StagePlan) -> tuple[list[AddFile], list[CdcFile]]:
    """Write rows, and change data beside them: rows with a `_change_type` are change data.

    Constraints are checked on the rows that will be in the table.
    """
    frame, plan = _constrained(frame, plan, unless=CHANGE_TYPE)
    adds, changes = _collected(frame, plan, _split(plan))
    return adds, cdc_files(changes)


def _split(plan: StagePlan) -> _Write:
    """Write rows and change data to files of their own."""
    change_data = change_data_plan(plan)

    def write(batches: Iterable[pa.RecordBatch]) -> _Written:
        rows, changes = Stager(plan), Stager(change_data)
        try:
            for batch in batches:
                is_row = pc.is_null(batch.column(CHANGE_TYPE))
                rows.write(batch.filter(is_row).drop_columns([CHANGE_TYPE]))
                changes.write(batch.filter(pc.invert(is_row)))
            return rows.finish(), changes.finish()
        except BaseException:
            rows.abort()
            changes.abort()
            raise

    return write


def _collected(frame: DataFrame, plan: StagePlan, write: _Write) -> _Written:
    """Let the executors write; no file stays if a task refuses its rows."""
    names = list(frame.columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result: _Written | DeltaLakeDbError
        try:
            result = write(batch.rename_columns(names) for batch in batches)
        except DeltaLakeDbError as error:
            result = error
        yield pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], names=["result"])

    # PySpark cannot send columns that have a dot in their names.
    plain = frame.toDF(*(f"_{i}" for i in range(len(names))))
    try:
        rows = plain.mapInArrow(run, "result binary").collect()
    except PySparkException as error:
        raise _refused(error, plan.table) from error
    results = [pickle.loads(row.result) for row in rows]  # noqa: S301 - from our tasks
    errors = [one for one in results if isinstance(one, DeltaLakeDbError)]
    written = [one for one in results if not isinstance(one, DeltaLakeDbError)]
    adds = [add for files, _ in written for add in files]
    changes = [add for _, files in written for add in files]
    if errors:
        keys = [decode_path(add.path) for add in (*adds, *changes)]
        Sinks(plan.location, plan.storage_options).delete(keys)
        raise errors[0]
    return adds, changes


# --- constraints --------------------------------------------------------------------------


def _constrained(
    frame: DataFrame, plan: StagePlan, *, unless: str | None = None
) -> tuple[DataFrame, StagePlan]:
    """Let Spark check the constraints, whose expressions may be any in its SQL.

    Rows with a value in the column `unless` are not checked.
    """
    conditions = {
        **TableProperties(plan.metadata.configuration).constraints,
        **dict(invariants(plan.metadata.schema)),
        **{f"length of {one}": one.condition() for one in limits(plan.metadata.schema)},
        **generated_conditions(plan.metadata.schema),
        **plan.conditions,
    }
    if not conditions:
        return frame, plan
    present = {name.lower() for name in frame.columns}
    for field in plan.metadata.schema.fields:
        if field.name.lower() not in present:
            frame = frame.withColumn(field.name, F.lit(None))
    for name, condition in conditions.items():
        failure = F.raise_error(F.lit(f"{_BROKEN}{json.dumps([name, condition])}"))
        holds = F.coalesce(F.expr(f"({condition})"), F.lit(False))  # noqa: FBT003
        if unless is not None:
            holds = F.col(unless).isNotNull() | holds
        # A filter that is not deterministic is not pushed below a join, to rows that it drops.
        frame = frame.where(holds | (F.spark_partition_id() < 0) | failure.isNull())
    return frame, replace(plan, conditions={}, enforce=False)


def _refused(error: Exception, table: str) -> Exception:
    text = str(error)
    start = text.find(_BROKEN)
    if start < 0:
        return unfit(text, table) or error
    (name, condition), _ = json.JSONDecoder().raw_decode(text[start + len(_BROKEN) :])
    return ConstraintViolatedError(
        f"Rows that were to be written to table {table!r} break its constraint {name!r}",
        why=f"Every row has to fulfil: {condition}",
        fix="Correct those rows, or leave them out",
    )
