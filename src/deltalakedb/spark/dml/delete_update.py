"""DELETE and UPDATE: only the files that can have matching rows are read, each at most twice.

The first pass evaluates the condition, the second one changes the rows. Both have to see the same
rows. So if rows are only marked as deleted, or a condition could have another result the second
time (it depends on the current time, or on another table), it is evaluated once, and the second
pass selects rows by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.conditions.partition_tests import partitions_read
from deltalakedb.operations.append import all_live_rows, chosen_files, live_rows, rows_of_files
from deltalakedb.spark.dml.assignments import Assignments
from deltalakedb.spark.dml.changes import (
    Emitted,
    RowChange,
    RowEdit,
    Touched,
    columns_named,
    has_counts,
    written_rows,
)
from deltalakedb.spark.dml.conditions import Condition, holds, plan_for, resolved, whole_files
from deltalakedb.spark.io.positions import CHOSEN, flagged, only
from deltalakedb.spark.io.scan import FILE, ROW
from deltalakedb.table import Table
from deltalakedb.transaction.attempt import NOTHING, ReadSet
from deltalakedb.transaction.commit import Committed


def delete(
    spark: SparkSession, table: Table, condition: Any = None, *, alias: str | None = None
) -> Committed | None:
    """Delete the rows for which a condition is true, or all; None if there are none.

    The condition may name columns with the `alias` of the table.
    """
    change = RowChange(spark, table)
    candidates = _candidates(change, condition, alias)
    with change.undo_on_error():
        deleted = _delete(change, candidates)
    metrics = {} if deleted is None else {"numDeletedRows": deleted}
    if not candidates.exact:
        metrics["numCopiedRows"] = 0 if change.with_vectors else written_rows(change.adds)
    return change.commit(
        "DELETE", parameters=candidates.parameters, metrics=metrics, read=candidates.read
    )


def delete_where(change: RowEdit, condition: Any) -> tuple[ReadSet, int | None]:
    """Delete the rows for which a condition is true; what was read, and their number if known."""
    candidates = _candidates(change, condition, None)
    return candidates.read, _delete(change, candidates)


def delete_matching(
    change: RowEdit, files: pa.Table, matching: Callable[[DataFrame], DataFrame]
) -> int:
    """Delete the rows of files that `matching` returns; their number."""
    positions = change.positions(matching(change.rows(files)))
    selection = _by_positions(change, _Candidates(files, exact=False), positions)
    _delete_rows(change, selection)
    return selection.touched.changed


def update(
    spark: SparkSession,
    table: Table,
    condition: Any,
    assignments: Mapping[str, Any],
    *,
    alias: str | None = None,
) -> Committed | None:
    """Set columns of the rows for which a condition is true; None if there are none.

    Expressions may name columns with the `alias` of the table.
    """
    change = RowChange(spark, table)
    assigned = Assignments(change.metadata.schema, assignments, alias=alias)
    candidates = _candidates(change, condition, alias)
    empty = change.empty if alias is None else change.empty.alias(alias)
    after = assigned.applied(empty, alias=alias)
    with change.undo_on_error():
        selection = _selected(change, candidates)
        _update_rows(change, selection, after)
    updated = selection.touched.changed
    copied = written_rows(change.adds) - updated if selection.touched.rows else 0
    return change.commit(
        "UPDATE",
        parameters=candidates.parameters,
        metrics={"numUpdatedRows": updated, "numCopiedRows": max(copied, 0)},
        read=candidates.read,
    )


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The files that can have rows for a condition; if `exact`, all of their rows are."""

    files: pa.Table
    exact: bool
    read: ReadSet = NOTHING
    condition: Condition | None = None
    alias: str | None = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters of the operation in the history."""
        return {"predicate": dumps([] if self.condition is None else [self.condition.original])}

    def rows(self, change: RowEdit, files: pa.Table) -> DataFrame:
        """Rows of files, with the names that the condition uses."""
        metadata = self.condition is not None and self.condition.asks_metadata
        rows = change.rows(files, metadata=metadata)
        return rows if self.alias is None else rows.alias(self.alias)


def _candidates(change: RowEdit, condition: Any, alias: str | None) -> _Candidates:
    if condition is None:
        read = ReadSet(whole_table=True)
        return _Candidates(change.find(None), exact=True, read=read, alias=alias)
    empty = change.empty if alias is None else change.empty.alias(alias)
    checked = resolved(condition, empty)
    predicate = plan_for(change.spark, change.metadata, checked, alias)
    files = change.find(predicate)
    exact = whole_files(predicate, change.metadata)
    if exact is not None:
        files = chosen_files(files, exact)
    paths = frozenset(files["path"].to_pylist())
    read = ReadSet(partitions=partitions_read(predicate, change.metadata), files=paths)
    return _Candidates(files, exact is not None, read, checked, alias)


@dataclass(frozen=True, slots=True)
class _Selection:
    """The rows that change, by file; with their positions, if these select them."""

    candidates: _Candidates
    touched: Touched
    positions: Mapping[str, Any] | None

    def whole(self) -> list[dict[str, Any]]:
        """The files of which all rows change."""
        counts = self.touched.counts
        return [row for row in self.touched.rows if live_rows(row) == counts[row["path"]]]

    def rows(self, change: RowEdit) -> list[DataFrame]:
        """The rows that change, as frames."""
        whole, partial = _split(self.touched.files, {row["path"] for row in self.whole()})
        frames = [self.candidates.rows(change, whole)] if whole.num_rows else []
        if partial.num_rows:
            rows = self.candidates.rows(change, partial)
            if self.positions is None:
                frames.append(rows.where(self._holds()))
            else:
                frames.append(only(rows, self.positions, file=FILE, row=ROW))
        return frames

    def flagged(self, change: RowEdit, files: pa.Table) -> tuple[DataFrame, Column]:
        """All rows of files, and whether they change."""
        rows = self.candidates.rows(change, files)
        if self.positions is None:
            return rows, self._holds()
        return flagged(rows, self.positions, file=FILE, row=ROW), F.col(CHOSEN)

    def _holds(self) -> Column:
        condition = self.candidates.condition
        return holds("true" if condition is None else condition.value)


def _by_positions(
    change: RowEdit, candidates: _Candidates, positions: Mapping[str, Any]
) -> _Selection:
    counts = {name: len(numbers) for name, numbers in positions.items()}
    return _Selection(candidates, change.touched(candidates.files, counts), positions)


def _selected(change: RowEdit, candidates: _Candidates) -> _Selection:
    """The rows for which the condition is true; every candidate file is read once."""
    if candidates.exact:
        touched = change.whole(candidates.files)
        if touched is not None:
            return _Selection(candidates, touched, None)
    condition = candidates.condition
    frame = candidates.rows(change, candidates.files)
    if condition is not None:
        frame = frame.where(condition.column)
    if change.with_vectors or (condition is not None and not condition.steady):
        return _by_positions(change, candidates, change.positions(frame))
    counts = {row[0]: row[1] for row in frame.groupBy(FILE).count().collect()}
    return _Selection(candidates, change.touched(candidates.files, counts), None)


def _delete(change: RowEdit, candidates: _Candidates) -> int | None:
    """Delete the rows of candidates; their number if it is known."""
    if candidates.exact:
        rows = rows_of_files(candidates.files)
        change.remove(rows)
        return all_live_rows(rows)
    selection = _selected(change, candidates)
    _delete_rows(change, selection)
    return selection.touched.changed


def _delete_rows(change: RowEdit, selection: _Selection) -> None:
    touched = selection.touched
    if not touched.rows:
        return
    whole = selection.whole()
    if len(whole) == len(touched.rows):
        # No row stays, and the removed files are the change data.
        change.remove(whole)
        return
    columns = _columns(change)
    if selection.positions is not None and change.with_vectors and has_counts(touched.rows):
        change.mark(touched, selection.positions)
        if change.change_data:
            deleted = [Emitted(F.lit(True), [(columns, "delete")])]  # noqa: FBT003
            change.write_all([(rows, deleted) for rows in selection.rows(change)])
        return
    change.remove(touched.rows)
    rewritten = touched.files
    if not change.change_data:
        _, rewritten = _split(touched.files, {row["path"] for row in whole})
    rows, matches = selection.flagged(change, rewritten)
    outcomes = [
        Emitted(matches, [(columns, "delete")] if change.change_data else []),
        Emitted(~matches, [(columns, None)]),
    ]
    change.write_all([(rows, outcomes)])


def _update_rows(change: RowEdit, selection: _Selection, after: Sequence[Column]) -> None:
    touched = selection.touched
    if not touched.rows:
        return
    before = _columns(change)
    results: list[tuple[Sequence[Column], str | None]] = [(after, None)]
    if change.change_data:
        results += [(before, "update_preimage"), (after, "update_postimage")]
    whole = selection.whole()
    if len(whole) == len(touched.rows):
        change.remove(whole)
    elif selection.positions is not None and change.with_vectors and has_counts(touched.rows):
        change.mark(touched, selection.positions)
    else:
        change.remove(touched.rows)
        rows, matches = selection.flagged(change, touched.files)
        change.write_all([(rows, [Emitted(matches, results), Emitted(~matches, [(before, None)])])])
        return
    updated = [Emitted(F.lit(True), results)]  # noqa: FBT003
    change.write_all([(rows, updated) for rows in selection.rows(change)])


def _columns(change: RowEdit) -> list[Column]:
    return columns_named(field.name for field in change.metadata.schema.fields)


def _split(files: pa.Table, paths: set[str]) -> tuple[pa.Table, pa.Table]:
    """The files with these paths, and the others."""
    mask = pa.array([path in paths for path in files["path"].to_pylist()], pa.bool_())
    return files.filter(mask), files.filter(pc.invert(mask))
