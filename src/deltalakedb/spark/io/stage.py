"""Spark's executors write data files by the same staging function as everybody else.

Each task writes the rows of its partition and sends the actions of its files back. A task that is
tried again, or runs twice, leaves files that no action names: they are invisible, and vacuum finds
them. What a task refuses comes back as the error that it is, and not as a stack trace of Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from deltalakedb.actions import AddFile, CdcFile
from deltalakedb.actions.partition import decode_path
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.values import CHANGE_TYPE
from deltalakedb.errors import ConfigurationError, ConstraintViolatedError, DeltaLakeDbError
from deltalakedb.spark.dml.generated import filled, generated_conditions
from deltalakedb.spark.dml.store_assignment import unfit
from deltalakedb.spark.io.native_writer import WIDER, stage_natively
from deltalakedb.spark.io.scan import quoted, session_zone, spark_types
from deltalakedb.spark.io.spark_internals import is_connect
from deltalakedb.spark.io.task_results import receive_add, receive_error, send_add, send_error
from deltalakedb.staging.change_data import cdc_files, change_data_plan
from deltalakedb.staging.fit import fit, invariants, limits, nullable
from deltalakedb.staging.stage import Sinks, StagePlan, Stager, stage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.actions.datatypes import StructType
    from deltalakedb.operations.append import RowPlan
    from deltalakedb.operations.overwrite import Take
    from deltalakedb.snapshot import Snapshot

_BROKEN: Final = "deltalakedb:constraint:"
_Write: TypeAlias = Callable[[Iterable[Any]], tuple[list[AddFile], list[AddFile]]]


@dataclass(frozen=True, slots=True)
class FrameSource:
    """The rows of a DataFrame."""

    generates: ClassVar[bool] = True
    frame: DataFrame
    codec: str | None = None
    """Of the new files; None for that of the table."""
    max_records: int | None = None
    """How many rows a new file has at most."""
    optimize: bool | None = None
    """Whether rows are shuffled to fewer, larger files; None for what the table says."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as the batches of the executors will have them.

        With nulls allowed everywhere: what Spark knows of these rows is no rule for a table.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        return nullable(to_arrow_schema(self.frame.schema, timezone="UTC"), ids=True)

    def zone(self) -> tzinfo:
        """The time zone of the session."""
        found = session_zone(self.frame.sparkSession)
        if found is None:
            raise ConfigurationError(
                "The time zone of the session is not known here",
                fix="Set spark.sql.session.timeZone to a name such as Europe/Berlin, or to UTC",
            )
        return found

    def replacing(self, snapshot: Snapshot, plan: RowPlan, now: int) -> Take | None:
        """Spark takes out what these rows replace; not through Connect, where it cannot scan."""
        from deltalakedb.spark.dml.replace import replace_matching, replace_where

        if is_connect(self.frame):
            return None
        if plan.matching is not None:
            return replace_matching(self.frame, snapshot, plan, plan.matching, now)
        return replace_where(self.frame.sparkSession, snapshot, plan, now)

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the rows where they are."""
        # What is wrong with the columns is told before a job begins.
        schema = plan.metadata.schema
        fit(FrameSource(filled(self.frame, schema)).schema, schema, table=plan.table)
        # Expressions of the table are about values of its types: hash(1) is not hash(1L).
        rows = filled(_widened(self.frame, schema), schema)
        plan = replace(plan, codec=self.codec, max_records=self.max_records)
        frame, checked = _constrained(rows, plan)
        return stage_frame(_shuffled(frame, plan) if self._optimizes(plan) else frame, checked)

    def _optimizes(self, plan: StagePlan) -> bool:
        """Whether to shuffle; without adaptive execution it would make more files, and not less."""
        if not is_adaptive(self.frame.sparkSession):
            return False
        if self.optimize is None:
            return TableProperties(plan.metadata.configuration).optimize_write
        return self.optimize


def frame_source(frame: DataFrame) -> FrameSource:
    """A DataFrame as a source of rows."""
    return FrameSource(frame)


def is_adaptive(spark: SparkSession) -> bool:
    """Whether Spark makes partitions of a shuffle larger or smaller when it knows their sizes."""
    return str(spark.conf.get("spark.sql.adaptive.enabled", "true")).lower() == "true"


def _shuffled(frame: DataFrame, plan: StagePlan) -> DataFrame:
    """The rows of each partition of the table together, in tasks of about the same size."""
    return frame.hint("rebalance", *(quoted(name) for name in plan.metadata.partition_columns))


def _widened(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with numbers of the table's types, where those hold all values that there can be."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    types = {name.lower(): kind for name, kind in spark_types(schema).items()}
    casts = {}
    for column in frame.schema.fields:
        kind = types.get(column.name.lower())
        before = column.dataType.simpleString()
        if kind is not None and before in WIDER.get(kind.simpleString(), ()):
            casts[column.name] = F.col(quoted(column.name)).cast(kind)
    return frame.withColumns(casts) if casts else frame


def stage_frame(frame: DataFrame, plan: StagePlan, *, sized: bool = False) -> list[AddFile]:
    """Write the rows of a DataFrame as data files; the actions that add them.

    By Spark's own writer where that can do it, which is the fastest way. It makes one file of what
    a task has, so it is not used where somebody asked for a size, unless tasks are `sized`.
    """
    from pyspark.errors import PySparkException

    try:
        native = stage_natively(frame, plan, sized=sized)
    except PySparkException as error:
        raise _refused(error, plan.table) from error
    if native is not None:
        return native
    return _collected(frame, plan, lambda batches: (stage(plan, batches), []))[0]


def stage_frame_checked(frame: DataFrame, plan: StagePlan) -> list[AddFile]:
    """The same, with rows that fulfil the constraints of the table."""
    return stage_frame(*_constrained(frame, plan))


def stage_changes(frame: DataFrame, plan: StagePlan) -> tuple[list[AddFile], list[CdcFile]]:
    """Write rows, and change data beside them: rows with a `_change_type` are change data.

    Constraints are checked on the rows that will be in the table.
    """
    frame, plan = _constrained(frame, plan, unless=CHANGE_TYPE)
    adds, changes = _collected(frame, plan, _split(plan))
    return adds, cdc_files(changes)


def _split(plan: StagePlan) -> _Write:
    beside = change_data_plan(plan)

    def write(batches: Iterable[Any]) -> tuple[list[AddFile], list[AddFile]]:
        import pyarrow.compute as pc

        rows, changes = Stager(plan), Stager(beside)
        try:
            for batch in batches:
                kept = pc.is_null(batch.column(CHANGE_TYPE))
                rows.write(batch.filter(kept).drop_columns([CHANGE_TYPE]))
                changes.write(batch.filter(pc.invert(kept)))
            return rows.finish(), changes.finish()
        except BaseException:
            rows.abort()
            changes.abort()
            raise

    return write


def _collected(
    frame: DataFrame, plan: StagePlan, write: _Write
) -> tuple[list[AddFile], list[AddFile]]:
    """Let the executors write; nothing of it is left when one of them refuses its rows."""
    from pyspark.errors import PySparkException

    # PySpark cannot send columns that have a dot in their names.
    names = list(frame.columns)
    plain = frame.toDF(*(f"_{i}" for i in range(len(names))))
    try:
        results = plain.mapInArrow(
            _writer(write, names), "file string, beside string, error string"
        )
        found = results.collect()
    except PySparkException as error:
        raise _refused(error, plan.table) from error
    adds = [receive_add(row.file) for row in found if row.file is not None]
    beside = [receive_add(row.beside) for row in found if row.beside is not None]
    errors = [row.error for row in found if row.error is not None]
    if errors:
        written = [decode_path(add.path) for add in (*adds, *beside)]
        Sinks(plan.location, plan.storage_options).delete(written)
        raise receive_error(errors[0])
    return adds, beside


def _writer(write: _Write, columns: list[str]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        results: list[dict[str, str]] = []
        try:
            adds, beside = write(batch.rename_columns(columns) for batch in batches)
            results += [{"file": send_add(add)} for add in adds]
            results += [{"beside": send_add(add)} for add in beside]
        except DeltaLakeDbError as error:
            results.append({"error": send_error(error)})
        names = ("file", "beside", "error")
        yield pa.RecordBatch.from_arrays(
            [pa.array([one.get(name) for one in results], pa.string()) for name in names],
            list(names),
        )

    return run


# --- constraints --------------------------------------------------------------------------


def _constrained(
    frame: DataFrame, plan: StagePlan, *, unless: str | None = None
) -> tuple[DataFrame, StagePlan]:
    """The same rows, checked by Spark itself, which knows every expression of SQL.

    Rows with a value in the column `unless` may break any of them.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

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
        # What is not deterministic stays here; else rows that a join leaves out are asked, too.
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
