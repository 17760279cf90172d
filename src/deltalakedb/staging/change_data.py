"""Change data: rows that were deleted, inserted or changed, in files beside those of the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import AddFile, CdcFile
from deltalakedb.actions.datatypes import (
    STRING,
    StructField,
    StructType,
    schema_to_json,
    with_nulls,
)
from deltalakedb.actions.values import CHANGE_TYPE
from deltalakedb.staging.stage import StagePlan, Stager

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_FOLDER: Final = "_change_data"


def change_data_plan(plan: StagePlan) -> StagePlan:
    """Return the plan for change data of a table that is written by `plan`.

    Deleted rows are recorded as they are: constraints apply to new rows only.
    """
    schema = with_nulls(plan.metadata.schema)
    with_type = StructType((*schema.fields, StructField(CHANGE_TYPE, STRING)))
    metadata = replace(plan.metadata, schema_string=schema_to_json(with_type))
    return replace(plan, metadata=metadata, folder=CHANGE_FOLDER, enforce=False, conditions={})


def cdc_files(staged: Iterable[AddFile]) -> list[CdcFile]:
    """Return the actions for staged files of change data."""
    return [
        CdcFile(path=add.path, partition_values=add.partition_values, size=add.size)
        for add in staged
    ]


class ChangeData:
    """Writes change data batch by batch; an aborted writer deletes its files."""

    def __init__(self, plan: StagePlan) -> None:
        self._stager = Stager(change_data_plan(plan))

    def write(self, batches: Iterable[pa.RecordBatch], kind: str) -> None:
        """Add rows of one kind of change."""
        import pyarrow as pa

        for batch in batches:
            kinds = pa.repeat(pa.scalar(kind), batch.num_rows)
            self._stager.write(batch.append_column(CHANGE_TYPE, kinds))

    def finish(self) -> list[CdcFile]:
        """Close the files; the actions that name them."""
        return cdc_files(self._stager.finish())

    def drop(self) -> None:
        """Delete what was written: it is not needed."""
        self._stager.finish()
        self._stager.abort()

    def give_up(self) -> None:
        """Delete what was written, whatever state it is in."""
        self._stager.abort()
