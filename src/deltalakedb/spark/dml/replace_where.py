"""`replaceWhere` of a DataFrame: the rows that go are found and taken out by Spark, as by DELETE.

So a condition may be whatever Spark evaluates, it means the same for the rows that go and for those
that come (times are in the zone of the session), and no file passes through the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deltalakedb.operations.overwrite import Going, Take, as_planned
from deltalakedb.snapshot.listing import files_of_adds
from deltalakedb.spark.dml.changes import Emitted, RowEdit, columns_named
from deltalakedb.spark.dml.conditions import resolved
from deltalakedb.spark.dml.delete_update import take_out
from deltalakedb.spark.io.scan import FILE_COLUMNS, scan_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.actions import AddFile
    from deltalakedb.operations.append import RowPlan
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.transaction.attempt import ReadSet


def replacing(spark: SparkSession, snapshot: Snapshot, plan: RowPlan, now: int) -> Take:
    """Check a condition; what takes the rows for it out, once new ones are staged."""
    edit = RowEdit(spark, as_planned(snapshot, plan), now)
    where = plan.where
    resolved(where, edit.empty)

    return lambda adds: taken_out(edit, adds, lambda: take_out(edit, where))


def taken_out(
    edit: RowEdit, adds: list[AddFile], take: Callable[[], tuple[ReadSet, int | None]]
) -> Going:
    """Take rows out; what becomes of their files, and the change data of it all."""
    try:
        read, deleted = take()
        if edit.parts.changes:
            # Readers of the feed look at nothing but change data, where a commit has any.
            _tell_inserts(edit, adds)
    except BaseException:
        edit.undo()
        raise
    parts = edit.parts
    return Going(
        removes=parts.removes,
        read=read,
        kept=parts.adds,
        marked=parts.marked,
        changes=parts.changes,
        deleted=deleted,
        staged=tuple(parts.keys),
    )


def _tell_inserts(edit: RowEdit, adds: list[AddFile]) -> None:
    """The rows of files that have just been written, as change data."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not adds:
        return
    rows = staged_rows(edit, adds)
    columns = columns_named(field.name for field in edit.metadata.schema.fields)
    edit.write(rows, [Emitted(F.lit(True), [(columns, "insert")])])  # noqa: FBT003


def staged_rows(edit: RowEdit, adds: list[AddFile]) -> DataFrame:
    """The rows of files that have just been written."""
    return scan_files(edit.spark, edit.snapshot, files_of_adds(adds, 0, FILE_COLUMNS))
