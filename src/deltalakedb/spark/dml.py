"""DELETE and UPDATE: only the files that can have such rows are read, each at most twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.snapshot.predicate import Constant, Predicate
from deltalakedb.spark.assignments import Assignments
from deltalakedb.spark.changes import (
    Emitted,
    RowChange,
    RowEdit,
    Touched,
    columns_named,
    has_counts,
    live_rows,
    written_rows,
)
from deltalakedb.spark.conditions import (
    as_column,
    holds,
    partitions_read,
    plan_for,
    text_of,
    whole_files,
)
from deltalakedb.spark.scan import FILE
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.writing import rows_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.table import Table
    from deltalakedb.transaction.change import Committed


def delete(spark: SparkSession, table: Table, condition: Any = None) -> Committed | None:
    """Delete the rows for which a condition is true, or all; None where there are none."""
    change = RowChange(spark, table)
    found = _found(change, condition)
    if found.exactly:
        rows = rows_of_files(found.files)
        change.remove(rows)
        counts = [live_rows(row) for row in rows]
        known = {} if None in counts else {"numDeletedRows": sum(c for c in counts if c)}
        return change.commit("DELETE", parameters=found.parameters, metrics=known, read=found.read)
    matches = holds(condition)
    try:
        touched, numbers = _touched(change, found, condition)
        _delete_rows(change, touched, numbers, matches)
    except BaseException:
        change.undo()
        raise
    copied = written_rows(change.parts.adds) if not change.with_vectors else 0
    return change.commit(
        "DELETE",
        parameters=found.parameters,
        metrics={"numDeletedRows": touched.changed, "numCopiedRows": copied},
        read=found.read,
    )


def take_out(change: RowEdit, condition: Any) -> ReadSet:
    """Take the rows for which a condition is true out of a snapshot; what was read for it."""
    found = _found(change, condition)
    if found.exactly:
        change.remove(rows_of_files(found.files))
    else:
        touched, numbers = _touched(change, found, condition)
        _delete_rows(change, touched, numbers, holds(condition))
    return found.read


def update(
    spark: SparkSession, table: Table, condition: Any, assignments: Mapping[str, Any]
) -> Committed | None:
    """Change columns of the rows for which a condition is true; None where there are none."""
    change = RowChange(spark, table)
    given = Assignments(change.metadata.schema, assignments)
    found = _found(change, condition)
    matches = holds("true" if condition is None else condition)
    try:
        touched, numbers = _touched(change, found, "true" if condition is None else condition)
        if touched.rows:
            marking = change.with_vectors and has_counts(touched.rows)
            if marking:
                change.mark(touched, numbers)
            else:
                change.remove(touched.rows)
            rows = change.rows(touched.files)
            _update_rows(change, rows, given, matches, everything=not marking)
    except BaseException:
        change.undo()
        raise
    copied = written_rows(change.parts.adds) - touched.changed if touched.rows else 0
    return change.commit(
        "UPDATE",
        parameters=found.parameters,
        metrics={"numUpdatedRows": touched.changed, "numCopiedRows": max(copied, 0)},
        read=found.read,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The files that may have rows for a condition, or exactly those that have nothing else."""

    files: Any
    exactly: bool
    read: ReadSet
    parameters: Mapping[str, Any]


def _found(change: RowEdit, condition: Any) -> _Found:
    if condition is None:
        files = change.find(None)
        return _Found(files, exactly=True, read=ReadSet(whole_table=True), parameters=_shown(None))
    empty = change.empty()
    predicate = plan_for(change.spark, change.metadata, condition, empty)
    files = change.find(predicate)
    exact = whole_files(predicate, change.metadata)
    if exact is not None:
        files = _filtered(files, predicate, exact)
    paths = frozenset(files["path"].to_pylist())
    return _Found(
        files,
        exactly=exact is not None,
        read=ReadSet(partitions=partitions_read(predicate, change.metadata), files=paths),
        parameters=_shown(text_of(condition, empty) or str(condition)),
    )


def _filtered(files: Any, predicate: Predicate, exact: Any) -> Any:
    import json

    import pyarrow as pa

    if predicate == Constant(value=True):
        return files
    known: dict[str, bool] = {}
    mask = []
    for text in files["partition_values"].to_pylist():
        if text not in known:
            known[text] = exact(json.loads(text))
        mask.append(known[text])
    return files.filter(pa.array(mask, pa.bool_()))


def _shown(condition: str | None) -> Mapping[str, Any]:
    return {"predicate": dumps([] if condition is None else [condition])}


def _touched(change: RowEdit, found: _Found, condition: Any) -> tuple[Touched, dict[str, Any]]:
    """The files that do have such rows; with deletion vectors, which rows they are."""
    frame = change.rows(found.files).where(as_column(condition))
    if change.with_vectors:
        numbers = change.positions(frame)
        return change.touched(found.files, {f: len(n) for f, n in numbers.items()}), numbers
    counted = frame.groupBy(FILE).count().collect()
    return change.touched(found.files, {row[0]: row[1] for row in counted}), {}


def _delete_rows(
    change: RowEdit, touched: Touched, numbers: Mapping[str, Any], matches: Any
) -> None:
    if not touched.rows:
        return
    whole = [row for row in touched.rows if live_rows(row) == touched.counts[row["path"]]]
    if len(whole) == len(touched.rows):
        # Nothing stays, and what goes can be told from the removed files.
        change.remove(whole)
        return
    names = [field.name for field in change.metadata.schema.fields]
    if change.with_vectors and has_counts(touched.rows):
        change.mark(touched, numbers)
        if change.change_data:
            rows = change.rows(touched.files)
            deleted = Emitted(matches, [(columns_named(names), "delete")])
            change.write(rows, [deleted])
        return
    change.remove(touched.rows)
    rewritten = touched.files
    if not change.change_data:
        paths = {row["path"] for row in whole}
        rewritten = _without(touched.files, paths)
    rows = change.rows(rewritten)
    columns = columns_named(names)
    change.write(
        rows,
        [
            Emitted(matches, [(columns, "delete")] if change.change_data else []),
            Emitted(~matches, [(columns, None)]),
        ],
    )


def _without(files: Any, paths: set[str]) -> Any:
    import pyarrow as pa

    return files.filter(pa.array([path not in paths for path in files["path"].to_pylist()]))


def _update_rows(
    change: RowChange, rows: DataFrame, given: Assignments, matches: Any, *, everything: bool
) -> None:
    names = [field.name for field in change.metadata.schema.fields]
    before = columns_named(names)
    after = given.applied(probe=rows)
    made: list[Any] = [(after, None)]
    if change.change_data:
        made += [(before, "update_preimage"), (after, "update_postimage")]
    outcomes = [Emitted(matches, made)]
    if everything:
        outcomes.append(Emitted(~matches, [(before, None)]))
    change.write(rows, outcomes)
