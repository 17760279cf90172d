"""Spark's executors write data files by the same staging function as everybody else.

Each task writes the rows of its partition and sends the actions of its files back. A task that is
tried again, or runs twice, leaves files that no action names: they are invisible, and vacuum finds
them. What a task refuses comes back as the error that it is, and not as a stack trace of Python.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import AddFile
from deltalakedb.actions.codec import from_dict, to_dict
from deltalakedb.actions.partition import decode_path
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import ConstraintViolatedError, DeltaLakeDbError
from deltalakedb.staging.constraints import invariants
from deltalakedb.staging.fit import fit
from deltalakedb.staging.sinks import Sinks
from deltalakedb.staging.stage import StagePlan, stage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_BROKEN = "deltalakedb:constraint:"


@dataclass(frozen=True, slots=True)
class FrameSource:
    """The rows of a DataFrame."""

    frame: DataFrame

    @property
    def schema(self) -> pa.Schema:
        """The columns, as the batches of the executors will have them."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.frame.schema, timezone="UTC")

    def stage(self, plan: StagePlan) -> list[AddFile]:
        """Write the rows where they are."""
        # What is wrong with the columns is told before a job begins.
        fit(self.schema, plan.metadata.schema, table=plan.table)
        frame, plan = _constrained(self.frame, plan)
        return stage_frame(frame, plan)


def frame_source(frame: DataFrame) -> FrameSource:
    """A DataFrame as a source of rows."""
    return FrameSource(frame)


def stage_frame(frame: DataFrame, plan: StagePlan) -> list[AddFile]:
    """Write the rows of a DataFrame as data files; the actions that add them."""
    from pyspark.errors import PySparkException

    try:
        told = frame.mapInArrow(_writer(plan), "file string, error string").collect()
    except PySparkException as error:
        raise _refused(error, plan.table) from error
    adds = [_add(row.file) for row in told if row.file is not None]
    errors = [row.error for row in told if row.error is not None]
    if errors:
        Sinks(plan.location, plan.storage_options).delete([decode_path(a.path) for a in adds])
        failure: DeltaLakeDbError = pickle.loads(base64.b64decode(errors[0]))  # noqa: S301 - ours
        raise failure
    return adds


def _writer(plan: StagePlan) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        files: list[str | None] = []
        errors: list[str | None] = []
        try:
            for add in stage(plan, batches):
                files.append(json.dumps(to_dict(add)))
                errors.append(None)
        except DeltaLakeDbError as error:
            files.append(None)
            errors.append(base64.b64encode(pickle.dumps(error)).decode("ascii"))
        yield pa.RecordBatch.from_arrays(
            [pa.array(files, pa.string()), pa.array(errors, pa.string())], ["file", "error"]
        )

    return write


def _add(text: str) -> AddFile:
    action = from_dict(json.loads(text))
    assert isinstance(action, AddFile)  # noqa: S101 - the writer above sends nothing else
    return action


# --- constraints --------------------------------------------------------------------------


def _constrained(frame: DataFrame, plan: StagePlan) -> tuple[DataFrame, StagePlan]:
    """The same rows, checked by Spark itself, which knows every expression of SQL."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    conditions = {
        **TableProperties(plan.metadata.configuration).constraints,
        **dict(invariants(plan.metadata.schema)),
        **plan.conditions,
    }
    if not conditions:
        return frame, plan
    present = {name.lower() for name in frame.columns}
    for field in plan.metadata.schema.fields:
        if field.name.lower() not in present:
            frame = frame.withColumn(field.name, F.lit(None))
    for name, condition in conditions.items():
        told = F.raise_error(F.lit(f"{_BROKEN}{json.dumps([name, condition])}"))
        holds = F.coalesce(F.expr(f"({condition})"), F.lit(False))  # noqa: FBT003
        frame = frame.where(holds | told.isNull())
    return frame, replace(plan, conditions={}, enforce=False)


def _refused(error: Exception, table: str) -> Exception:
    text = str(error)
    start = text.find(_BROKEN)
    if start < 0:
        return error
    (name, condition), _ = json.JSONDecoder().raw_decode(text[start + len(_BROKEN) :])
    return ConstraintViolatedError(
        f"Rows that were to be written to table {table!r} break its constraint {name!r}",
        why=f"Every row has to fulfil: {condition}",
        fix="Correct those rows, or leave them out",
    )
