"""`replaceWhere`, `replaceUsing` and `replaceOn` of a DataFrame: Spark deletes the old rows.

- `replaceWhere` deletes rows as DELETE does. The condition may be any that Spark evaluates, and has
  the same result for old and new rows; no file passes through the driver.
- `replaceUsing` and `replaceOn` delete the rows that match a new row. The new rows are staged
  first, and matched by their staged files: a DataFrame may have other rows each time it is
  evaluated. All new rows are written, whether they match or not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import AddFile
from deltalakedb.conditions.partition_tests import partitions_read
from deltalakedb.conditions.predicate import Opaque, Predicate, conjunction
from deltalakedb.errors import ConfigurationError, InvalidConditionError
from deltalakedb.operations.append import Matching, RowPlan
from deltalakedb.operations.overwrite import Replaced, Take, as_planned
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import files_of_adds
from deltalakedb.spark.dml.changes import Emitted, RowEdit, columns_named, written_rows
from deltalakedb.spark.dml.conditions import resolved
from deltalakedb.spark.dml.delete_update import delete_matching, delete_where
from deltalakedb.spark.dml.merge_plan import (
    Key,
    MergeCondition,
    read_condition,
    small,
    source_bounds,
)
from deltalakedb.spark.io.scan import FILE_COLUMNS, planned, quoted, scan_files, spark_says
from deltalakedb.spark.io.spark_internals import alias_of
from deltalakedb.transaction.attempt import NOTHING, ReadSet

_TABLE: Final = "__deltalakedb_table"
_ROWS: Final = "__deltalakedb_rows"


def replace_where(spark: SparkSession, snapshot: Snapshot, plan: RowPlan, now: int) -> Take:
    """Check a condition; return the function that deletes its rows, once new ones are staged."""
    edit = RowEdit(spark, as_planned(snapshot, plan), now)
    where = plan.where
    resolved(where, edit.empty)
    return lambda adds: _replaced(edit, adds, lambda: delete_where(edit, where))


def _replaced(
    edit: RowEdit, adds: list[AddFile], delete: Callable[[], tuple[ReadSet, int | None]]
) -> Replaced:
    """Delete rows; return the changes of their files, with all change data."""
    with edit.undo_on_error():
        read, deleted = delete()
        if edit.changes and adds:
            # If a commit has change data, readers of the feed read nothing else.
            columns = columns_named(field.name for field in edit.metadata.schema.fields)
            inserted = [Emitted(F.lit(True), [(columns, "insert")])]  # noqa: FBT003
            edit.write_all([(_staged_rows(edit, adds), inserted)])
    return Replaced(
        removes=edit.removes,
        read=read,
        copied=edit.adds,
        marked=edit.marked,
        changes=edit.changes,
        deleted=deleted,
        staged=tuple(edit.staged),
    )


def _staged_rows(edit: RowEdit, adds: list[AddFile]) -> DataFrame:
    """The rows of staged files."""
    return scan_files(edit.spark, edit.snapshot, files_of_adds(adds, 0, FILE_COLUMNS))


def replace_matching(
    frame: DataFrame, snapshot: Snapshot, plan: RowPlan, matching: Matching, now: int
) -> Take:
    """Check how rows match; return the function that deletes them, once new ones are staged."""
    edit = RowEdit(frame.sparkSession, as_planned(snapshot, plan), now)
    match = _Match(edit, frame, matching)
    match.check()
    return lambda adds: _replaced(edit, adds, lambda: match.delete(adds))


class _Match:
    """The match of rows of a table with new rows, which have the columns of a DataFrame."""

    def __init__(self, edit: RowEdit, frame: DataFrame, matching: Matching) -> None:
        self._edit = edit
        self._schema = edit.metadata.schema
        self._by = matching
        self._columns = [name for name in frame.columns if self._schema.get(name) is not None]
        self._table = _TABLE if matching.using else matching.alias
        self._rows = _ROWS if matching.using else alias_of(frame)

    def check(self) -> None:
        """Refuse columns that are not on both sides, and a condition that Spark cannot resolve."""
        written = {name.lower() for name in self._columns}
        for name in self._by.using:
            if self._schema.get(name) is None or name.lower() not in written:
                side = "table" if self._schema.get(name) is None else "rows to be written"
                names = self._schema.names if side == "table" else self._columns
                raise ConfigurationError(
                    f"The option replaceUsing names the column {name!r}, which the {side} of "
                    f"{self._edit.snapshot.table.name!r} does not have",
                    why=f"The columns are {', '.join(names)}",
                    fix="Name columns that the table and the rows have",
                )
        empty = self._edit.empty
        try:
            _ = self._matching(empty, self._named(empty)).schema
        except AnalysisException as error:
            raise InvalidConditionError(
                f"The condition {self._by.on or ', '.join(self._by.using)} cannot be used",
                why=spark_says(error),
                fix="Each column has to be the table's or the rows', and not both: name the table "
                "by .option('targetAlias', 't'), and the rows by frame.alias('s')",
            ) from error

    def delete(self, adds: list[AddFile]) -> tuple[ReadSet, int]:
        """Delete the rows that match those of staged files; what was read, and their number."""
        if not adds:
            return NOTHING, 0
        edit = self._edit
        rows = self._named(_staged_rows(edit, adds))
        predicate = self._predicate(rows)
        files = edit.find(predicate)
        read = ReadSet(
            partitions=partitions_read(predicate, edit.metadata),
            files=frozenset(files["path"].to_pylist()),
        )
        sent = small(rows, written_rows(adds))
        return read, delete_matching(edit, files, lambda old: self._matching(old, sent))

    def _named(self, rows: DataFrame) -> DataFrame:
        """New rows with the columns and the alias of the DataFrame."""
        names = self._by.using or self._columns
        chosen = rows.select(*columns_named(self._schema.field(name).name for name in names))
        return chosen if self._rows is None else chosen.alias(self._rows)

    def _matching(self, old: DataFrame, new: DataFrame) -> DataFrame:
        """The rows of the table that match a new row."""
        if self._table is not None:
            old = old.alias(self._table)
        if self._by.on is not None:
            return old.join(new, F.expr(self._by.on), "left_semi")
        equal = [
            F.col(f"{_TABLE}.{quoted(name)}") == F.col(f"{_ROWS}.{quoted(name)}")
            for name in self._by.using
        ]
        return old.join(new, reduce(and_, equal), "left_semi")

    def _predicate(self, rows: DataFrame) -> Predicate:
        """A predicate of the rows of the table that can match, to prune files."""
        edit = self._edit
        if self._by.on is None:
            named = [self._schema.field(name).name for name in self._by.using]
            parts = MergeCondition(keys=tuple(Key(name, quoted(name)) for name in named))
        else:
            parts = read_condition(
                self._by.on,
                self._schema,
                target=self._table or "",
                source=self._rows or "",
                source_columns=self._columns,
            )
        known = list(parts.target)
        if parts.keys and edit.snapshot.num_files > 1:
            partitions = list(edit.metadata.partition_columns)
            known += source_bounds(rows, parts.keys, self._schema, partitions)
        translated = [planned(edit.spark, edit.metadata, part) for part in known]
        return conjunction([*translated, Opaque("the rest of the condition")])
