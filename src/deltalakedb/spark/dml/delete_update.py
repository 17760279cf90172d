"""DELETE and UPDATE: only the files that can have such rows are read, each at most twice.

The first time it is found which rows a condition is true for, the second time they are changed.
They have to be the same rows. So where rows are only marked as deleted, or a condition could change
its mind (it asks for the time, or another table), it is evaluated once: the second time rows are
told by their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.conditions.partition_tests import partitions_read
from deltalakedb.operations.append import all_live_rows, live_rows, rows_of_files
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
from deltalakedb.spark.dml.conditions import (
    Condition,
    holds,
    plan_for,
    resolved,
    whole_files,
)
from deltalakedb.spark.dml.positions import CHOSEN, flagged, only
from deltalakedb.spark.io.scan import FILE, ROW
from deltalakedb.transaction.attempt import ReadSet

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.table import Table
    from deltalakedb.transaction.commit import Committed


def delete(
    spark: SparkSession, table: Table, condition: Any = None, *, alias: str | None = None
) -> Committed | None:
    """Delete the rows for which a condition is true, or all; None where there are none.

    Columns may be named with the `alias` of the table before them.
    """
    change = RowChange(spark, table)
    found = _found(change, condition, alias)
    if found.exactly:
        rows = rows_of_files(found.files)
        change.remove(rows)
        deleted = all_live_rows(rows)
        known = {} if deleted is None else {"numDeletedRows": deleted}
        return change.commit("DELETE", parameters=found.parameters, metrics=known, read=found.read)
    try:
        chosen = _chosen(change, found)
        _delete_rows(change, chosen)
    except BaseException:
        change.undo()
        raise
    copied = written_rows(change.parts.adds) if not change.with_vectors else 0
    return change.commit(
        "DELETE",
        parameters=found.parameters,
        metrics={"numDeletedRows": chosen.touched.changed, "numCopiedRows": copied},
        read=found.read,
    )


def take_out(change: RowEdit, condition: Any) -> tuple[ReadSet, int | None]:
    """Take the rows for which a condition is true out of a snapshot.

    What was read for it, and how many rows they are, if that is known.
    """
    found = _found(change, condition, None)
    if found.exactly:
        rows = rows_of_files(found.files)
        change.remove(rows)
        return found.read, all_live_rows(rows)
    chosen = _chosen(change, found)
    _delete_rows(change, chosen)
    return found.read, chosen.touched.changed


def take_out_matching(
    change: RowEdit, files: pa.Table, read: ReadSet, matching: Callable[[DataFrame], DataFrame]
) -> int:
    """Take those rows of files out that `matching` keeps; how many they are."""
    found = _Found(
        files, exactly=False, read=read, parameters=_shown(None), condition=None, alias=None
    )
    positions = change.positions(matching(change.rows(files)))
    counts = {name: len(numbers) for name, numbers in positions.items()}
    chosen = _Chosen(found, change.touched(files, counts), positions)
    _delete_rows(change, chosen)
    return chosen.touched.changed


def update(
    spark: SparkSession,
    table: Table,
    condition: Any,
    assignments: Mapping[str, Any],
    *,
    alias: str | None = None,
) -> Committed | None:
    """Change columns of the rows for which a condition is true; None where there are none.

    Columns may be named with the `alias` of the table before them.
    """
    change = RowChange(spark, table)
    given = Assignments(change.metadata.schema, assignments, alias=alias)
    found = _found(change, condition, alias)
    empty = change.empty if alias is None else change.empty.alias(alias)
    after = given.applied(empty, alias=alias)
    try:
        chosen = _chosen(change, found)
        _update_rows(change, chosen, after)
    except BaseException:
        change.undo()
        raise
    updated = chosen.touched.changed
    copied = written_rows(change.parts.adds) - updated if chosen.touched.rows else 0
    return change.commit(
        "UPDATE",
        parameters=found.parameters,
        metrics={"numUpdatedRows": updated, "numCopiedRows": max(copied, 0)},
        read=found.read,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The files that may have rows for a condition, or exactly those that have nothing else."""

    files: pa.Table
    exactly: bool
    read: ReadSet
    parameters: Mapping[str, Any]
    condition: Condition | None
    alias: str | None

    def rows(self, change: RowEdit, files: pa.Table) -> DataFrame:
        """Rows of files as the condition names their columns."""
        asks = self.condition is not None and self.condition.asks_metadata
        rows = change.rows(files, metadata=asks)
        return rows if self.alias is None else rows.alias(self.alias)


def _found(change: RowEdit, given: Any, alias: str | None) -> _Found:
    if given is None:
        files = change.find(None)
        read = ReadSet(whole_table=True)
        return _Found(
            files, exactly=True, read=read, parameters=_shown(None), condition=None, alias=alias
        )
    empty = change.empty if alias is None else change.empty.alias(alias)
    condition = resolved(given, empty)
    predicate = plan_for(change.spark, change.metadata, condition, alias)
    files = change.find(predicate)
    exact = whole_files(predicate, change.metadata)
    if exact is not None:
        files = _filtered(files, exact)
    paths = frozenset(files["path"].to_pylist())
    return _Found(
        files,
        exactly=exact is not None,
        read=ReadSet(partitions=partitions_read(predicate, change.metadata), files=paths),
        parameters=_shown(condition.shown),
        condition=condition,
        alias=alias,
    )


def _filtered(files: pa.Table, exact: Any) -> pa.Table:
    import json

    import pyarrow as pa

    known: dict[str, bool] = {}
    mask = []
    for text in files["partition_values"].to_pylist():
        if text not in known:
            known[text] = exact(json.loads(text))
        mask.append(known[text])
    return files.filter(pa.array(mask, pa.bool_()))


def _shown(condition: str | None) -> Mapping[str, Any]:
    return {"predicate": dumps([] if condition is None else [condition])}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows that change: of which files, and how many; their positions, where these decide."""

    found: _Found
    touched: Touched
    positions: Mapping[str, Any] | None

    def whole(self) -> list[dict[str, Any]]:
        """The files all of whose rows are among them."""
        counts = self.touched.counts
        return [row for row in self.touched.rows if live_rows(row) == counts[row["path"]]]

    def rows(self, change: RowEdit) -> list[DataFrame]:
        """These rows and no others."""
        paths = {row["path"] for row in self.whole()}
        all_of, some_of = _split(self.touched.files, paths)
        frames = [self.found.rows(change, all_of)] if all_of.num_rows else []
        if some_of.num_rows:
            rows = self.found.rows(change, some_of)
            if self.positions is None:
                frames.append(rows.where(self._holds()))
            else:
                frames.append(only(rows, self.positions, file=FILE, row=ROW))
        return frames

    def told_apart(self, change: RowEdit, files: pa.Table) -> tuple[DataFrame, Column]:
        """All rows of files, and whether they are among these."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        rows = self.found.rows(change, files)
        if self.positions is None:
            return rows, self._holds()
        return flagged(rows, self.positions, file=FILE, row=ROW), F.col(CHOSEN)

    def _holds(self) -> Column:
        return holds("true" if self.found.condition is None else self.found.condition.given)


def _chosen(change: RowEdit, found: _Found) -> _Chosen:
    """Which rows a condition is true for; every file that may have some is read once."""
    if found.exactly:
        touched = change.whole(found.files)
        if touched is not None:
            return _Chosen(found, touched, None)
    condition = found.condition
    frame = found.rows(change, found.files)
    if condition is not None:
        frame = frame.where(condition.column)
    if change.with_vectors or (condition is not None and not condition.steady):
        positions = change.positions(frame)
        counts = {name: len(numbers) for name, numbers in positions.items()}
        return _Chosen(found, change.touched(found.files, counts), positions)
    counted = frame.groupBy(FILE).count().collect()
    return _Chosen(found, change.touched(found.files, {row[0]: row[1] for row in counted}), None)


def _delete_rows(change: RowEdit, chosen: _Chosen) -> None:
    touched = chosen.touched
    if not touched.rows:
        return
    whole = chosen.whole()
    if len(whole) == len(touched.rows):
        # Nothing stays, and what goes can be told from the removed files.
        change.remove(whole)
        return
    columns = _columns(change)
    if chosen.positions is not None and change.with_vectors and has_counts(touched.rows):
        change.mark(touched, chosen.positions)
        if change.change_data:
            change.write_all([(rows, [_always(columns, "delete")]) for rows in chosen.rows(change)])
        return
    change.remove(touched.rows)
    rewritten = touched.files
    if not change.change_data:
        _, rewritten = _split(touched.files, {row["path"] for row in whole})
    rows, matches = chosen.told_apart(change, rewritten)
    change.write(
        rows,
        [
            Emitted(matches, [(columns, "delete")] if change.change_data else []),
            Emitted(~matches, [(columns, None)]),
        ],
    )


def _update_rows(change: RowEdit, chosen: _Chosen, after: Sequence[Column]) -> None:
    touched = chosen.touched
    if not touched.rows:
        return
    before = _columns(change)
    made: list[tuple[Sequence[Column], str | None]] = [(after, None)]
    if change.change_data:
        made += [(before, "update_preimage"), (after, "update_postimage")]
    whole = chosen.whole()
    if len(whole) == len(touched.rows):
        change.remove(whole)
    elif chosen.positions is not None and change.with_vectors and has_counts(touched.rows):
        change.mark(touched, chosen.positions)
    else:
        change.remove(touched.rows)
        rows, matches = chosen.told_apart(change, touched.files)
        change.write(rows, [Emitted(matches, made), Emitted(~matches, [(before, None)])])
        return
    change.write_all([(rows, [Emitted(_true(), made)]) for rows in chosen.rows(change)])


def _always(columns: Sequence[Column], kind: str | None) -> Emitted:
    return Emitted(_true(), [(columns, kind)])


def _true() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(True)  # noqa: FBT003


def _columns(change: RowEdit) -> list[Column]:
    return columns_named(field.name for field in change.metadata.schema.fields)


def _split(files: pa.Table, paths: set[str]) -> tuple[pa.Table, pa.Table]:
    """The files with these paths, and the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.array([path in paths for path in files["path"].to_pylist()], pa.bool_())
    return files.filter(mask), files.filter(pc.invert(mask))
