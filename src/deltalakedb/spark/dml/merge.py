"""MERGE: rows of a source change, delete and add rows of a table, in one commit.

1. The source is materialised, so that it has the same rows each time it is read.
2. The files that can have matching rows are joined with it, once. The result are pairs of
   positions: a row of a file, a row of the source, and the number of a clause.
3. The files with rows that change are read a second time, and rewritten with the changes (or only
   the changed rows are written, if the table has deletion vectors). Rows of the source that match
   nothing are inserted.

A condition is evaluated once for each pair of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.conditions.partition_tests import partitions_read
from deltalakedb.conditions.predicate import Constant, Opaque, Predicate, conjunction
from deltalakedb.errors import AmbiguousMergeError
from deltalakedb.operations.append import all_live_rows
from deltalakedb.spark.dml.changes import (
    Emitted,
    RowChange,
    Touched,
    has_counts,
    written_rows,
)
from deltalakedb.spark.dml.conditions import as_column, holds
from deltalakedb.spark.dml.merge_plan import read_condition, small, source_bounds
from deltalakedb.spark.dml.merge_resolution import Clause, Kind, Merge, MergeResolution
from deltalakedb.spark.io.scan import FILE, ROW, planned, quoted
from deltalakedb.spark.io.spark_internals import release_checkpoint
from deltalakedb.table import Table
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Committed

_SOURCE_ROW: Final = "__deltalakedb_source_row"
_CLAUSE: Final = "__deltalakedb_clause"
_AT_FILE: Final = "__deltalakedb_at_file"
_AT_ROW: Final = "__deltalakedb_at_row"
_WHEN: Final = "__deltalakedb_when_"
_PARTNER: Final = "__deltalakedb_partner"
_NO_CLAUSE: Final = -1


def merge(
    spark: SparkSession, table: Table, request: Merge
) -> tuple[Committed | None, dict[str, int]]:
    """Merge a source into a table; the commit, if anything changed, and the metrics."""
    request.check()
    run = _Run(spark, table, request)
    try:
        return run.merge()
    finally:
        run.release()


class _Run:
    """The run of one MERGE."""

    def __init__(self, spark: SparkSession, table: Table, request: Merge) -> None:
        self._spark = spark
        self._change = RowChange(spark, table)
        self._request = request
        self._clauses = request.clauses
        self._changing = [c for c in request.clauses if c.kind != "not matched"]
        self._inserting = [c for c in request.clauses if c.kind == "not matched"]
        self._by_source = any(c.kind == "not matched by source" for c in request.clauses)
        self._checkpoints: list[DataFrame] = []
        self._resolution = MergeResolution(spark, self._change, request)

    def merge(self) -> tuple[Committed | None, dict[str, int]]:
        """Find the rows that change, write them, commit."""
        numbered = self._request.source.withColumn(_SOURCE_ROW, F.monotonically_increasing_id())
        rows = self._checkpoint(numbered)
        source_rows = rows.count()
        self._source = small(rows, source_rows).alias(self._resolution.source)
        predicate = self._predicate()
        files = self._change.find(predicate)
        pairs = self._pairs(files)
        decided, counts, touched = self._decided(files, pairs)
        with self._change.undo_on_error():
            copied = self._write(pairs, decided, touched)
            metrics = {"numSourceRows": source_rows, **self._metrics(counts, copied, pairs)}
        test = partitions_read(predicate, self._change.metadata)
        read = ReadSet(partitions=test, files=frozenset(files["path"].to_pylist()))
        committed = self._change.commit(
            "MERGE", parameters=self._parameters(), metrics=metrics, read=read
        )
        return committed, metrics

    def release(self) -> None:
        """Delete the checkpoints on the executors."""
        for frame in self._checkpoints:
            release_checkpoint(frame)

    def _checkpoint(self, frame: DataFrame) -> DataFrame:
        """The rows as they are now, stored by the executors until the MERGE is done."""
        stored = frame.localCheckpoint()
        self._checkpoints.append(stored)
        return stored

    # --- the rows that change ---------------------------------------------------------------

    def _predicate(self) -> Predicate:
        change = self._change
        if self._by_source:
            return Constant(value=True)
        old = change.snapshot.metadata
        parts = read_condition(
            self._resolution.text,
            old.schema,
            target=self._resolution.target,
            source=self._resolution.source,
            source_columns=self._request.source.columns,
        )
        known = list(parts.target)
        if parts.keys and change.snapshot.num_files > 1:
            known += source_bounds(
                self._source, parts.keys, old.schema, list(old.partition_columns)
            )
        translated = [planned(self._spark, old, part) for part in known]
        return conjunction([*translated, Opaque("the rest of the condition")])

    def _pairs(self, files: Any) -> DataFrame:
        """A row of the table, a row of the source, and the number of a clause, if one applies."""
        how = "left" if self._by_source else "inner"
        conditions = {i: self._clauses[i].condition for i in self._resolution.apart}
        target = self._target_rows(files).withColumns(
            {f"{_WHEN}{i}": holds(when) for i, when in conditions.items() if when is not None}
        )
        joined = target.join(self._source, as_column(self._request.condition), how)
        matched = F.col(_SOURCE_ROW).isNotNull()
        clause = self._clause_number(matched)
        pairs = joined.select(
            F.col(FILE).alias(_AT_FILE),
            F.col(ROW).alias(_AT_ROW),
            F.col(_SOURCE_ROW),
            clause.alias(_CLAUSE),
        )
        # Pairs without a clause are needed only to know which rows of the source have a match.
        needed = F.col(_CLAUSE) != _NO_CLAUSE
        if self._inserting:
            needed = needed | F.col(_SOURCE_ROW).isNotNull()
        return self._checkpoint(pairs.where(needed))

    def _target_rows(self, files: Any) -> DataFrame:
        rows = self._resolution.widened(self._change.rows(files))
        return rows.alias(self._resolution.target)

    def _clause_number(self, matched: Column) -> Column:
        number: Column | None = None
        for i, clause in enumerate(self._clauses):
            if clause.kind == "not matched":
                continue
            applies = matched if clause.kind == "matched" else ~matched
            if clause.condition is not None:
                apart = i in self._resolution.apart
                applies = applies & (F.col(f"{_WHEN}{i}") if apart else holds(clause.condition))
            number = F.when(applies, F.lit(i)) if number is None else number.when(applies, F.lit(i))
        return F.lit(_NO_CLAUSE) if number is None else number.otherwise(F.lit(_NO_CLAUSE))

    def _decided(
        self, files: Any, pairs: DataFrame
    ) -> tuple[DataFrame | None, dict[str, int], Touched]:
        """The clause and the row of the source for each row of the table that changes."""
        change = self._change
        if not self._changing:
            return None, {}, change.touched(files, {})
        decided = self._checkpoint(
            pairs.where(F.col(_CLAUSE) != _NO_CLAUSE)
            .groupBy(_AT_FILE, _AT_ROW)
            .agg(
                F.count("*").alias("__partners"),
                F.min(_CLAUSE).alias(_CLAUSE),
                F.min(_SOURCE_ROW).alias(_SOURCE_ROW),
            )
        )
        counted = (
            decided.groupBy(_AT_FILE, _CLAUSE)
            .agg(F.count("*").alias("rows"), F.max("__partners").alias("partners"))
            .collect()
        )
        if any(row.partners > 1 for row in counted) and not self._only_deletes():
            raise AmbiguousMergeError(
                f"Several rows of the source match one row of table {change.table.name!r}",
                why="It could take its values from each of them",
                fix="Make the rows of the source unique for the condition, e.g. by "
                "dropDuplicates, or narrow the condition of the clause",
            )
        by_file: dict[str, int] = {}
        counts: dict[str, int] = {}
        for row in counted:
            by_file[row[_AT_FILE]] = by_file.get(row[_AT_FILE], 0) + row.rows
            name = self._clauses[row[_CLAUSE]].counted_as
            counts[name] = counts.get(name, 0) + row.rows
        return decided, counts, change.touched(files, by_file)

    def _only_deletes(self) -> bool:
        """Whether every row of the source has the same effect on a row that it matches."""
        matched = [clause for clause in self._clauses if clause.kind == "matched"]
        return len(matched) == 1 and matched[0].act == "delete" and matched[0].condition is None

    # --- writing ----------------------------------------------------------------------------

    def _write(self, pairs: DataFrame, decided: DataFrame | None, touched: Touched) -> int | None:
        """Write all rows; return the number of rows that are copied, if it is known."""
        change = self._change
        copied: int | None = 0
        parts: list[tuple[DataFrame, Sequence[Emitted]]] = []
        if decided is not None and touched.rows:
            marking = change.with_vectors and has_counts(touched.rows)
            if marking:
                positions = decided.withColumnsRenamed({_AT_FILE: FILE, _AT_ROW: ROW})
                change.mark(touched, change.positions(positions))
            else:
                change.remove(touched.rows)
                live = all_live_rows(touched.rows)
                copied = None if live is None else live - touched.changed
            updates = any(clause.act == "update" for clause in self._changing)
            if not marking or change.change_data or updates:
                changed = self._changed(decided, touched, marking=marking)
                apart = self._changed_apart(decided, touched)
                parts += [one for one in (changed, apart) if any(result.rows for result in one[1])]
        if self._inserting:
            parts.append(self._inserted(pairs))
        if parts:
            change.write_all(parts)
        return copied

    def _metrics(
        self, counts: Mapping[str, int], copied: int | None, pairs: DataFrame
    ) -> dict[str, int]:
        change = self._change
        output = written_rows(change.adds)
        updated = counts.get("matched updated", 0) + counts.get("source updated", 0)
        if copied is None:
            # Files without statistics: their number of rows is not known.
            copied = output - updated - self._count_inserted(pairs)
        return {
            "numTargetRowsInserted": output - copied - updated,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": counts.get("matched deleted", 0)
            + counts.get("source deleted", 0),
            "numTargetRowsMatchedUpdated": counts.get("matched updated", 0),
            "numTargetRowsMatchedDeleted": counts.get("matched deleted", 0),
            "numTargetRowsNotMatchedBySourceUpdated": counts.get("source updated", 0),
            "numTargetRowsNotMatchedBySourceDeleted": counts.get("source deleted", 0),
            "numTargetRowsCopied": copied,
            "numOutputRows": output,
            "numTargetFilesAdded": len(change.adds),
            "numTargetFilesRemoved": len(change.removes) - len(change.marked),
            "numTargetChangeFilesAdded": len(change.changes),
        }

    def _changed(
        self, decided: DataFrame, touched: Touched, *, marking: bool
    ) -> tuple[DataFrame, list[Emitted]]:
        """The rows of the files that change, each with its clause and its partner."""
        chosen = decided.withColumnRenamed(_SOURCE_ROW, _PARTNER)
        # First the small frames: the rows of the table are then joined once.
        chosen = chosen.join(self._source, F.col(_PARTNER) == F.col(_SOURCE_ROW), "left")
        chosen = small(chosen, touched.changed)
        target = self._target_rows(touched.files)
        rows = target.join(chosen, _same_position(), "inner" if marking else "left")
        before = self._before()
        outcomes = []
        for number, clause in enumerate(self._clauses):
            if clause.kind == "not matched":
                continue
            applies = F.coalesce(F.col(_CLAUSE) == number, F.lit(False))  # noqa: FBT003
            apart = number in self._resolution.apart and clause.act == "update"
            results = [] if apart else self._emitted(number, clause, before)
            outcomes.append(Emitted(applies, results))
        if not marking:
            outcomes.append(Emitted(F.col(_CLAUSE).isNull(), [(before, None)]))
        return rows, outcomes

    def _changed_apart(
        self, decided: DataFrame, touched: Touched
    ) -> tuple[DataFrame, list[Emitted]]:
        """The rows whose new values cannot be resolved beside the columns of the source."""
        numbers = [i for i in sorted(self._resolution.apart) if self._clauses[i].act == "update"]
        if not numbers:
            return decided, []
        chosen = decided.where(F.col(_CLAUSE).isin(numbers)).select(_AT_FILE, _AT_ROW, _CLAUSE)
        target = self._target_rows(touched.files)
        rows = target.join(small(chosen, touched.changed), _same_position())
        before = self._before()
        return rows, [
            Emitted(F.col(_CLAUSE) == i, self._emitted(i, self._clauses[i], before))
            for i in numbers
        ]

    def _before(self) -> list[Column]:
        """The columns of the table before the change."""
        target = quoted(self._resolution.target)
        fields = self._change.metadata.schema.fields
        return [F.col(f"{target}.{quoted(field.name)}") for field in fields]

    def _emitted(
        self, number: int, clause: Clause, before: list[Column]
    ) -> list[tuple[list[Column], str | None]]:
        feed = self._change.change_data
        if clause.act == "delete":
            return [(before, "delete")] if feed else []
        after = self._resolution.values[number]
        changes: list[tuple[list[Column], str | None]] = [
            (before, "update_preimage"),
            (after, "update_postimage"),
        ]
        return [(after, None), *(changes if feed else [])]

    def _inserted(self, pairs: DataFrame) -> tuple[DataFrame, list[Emitted]]:
        """The rows of the source that match nothing."""
        partners = pairs.select(F.col(_SOURCE_ROW).alias(_PARTNER)).distinct()
        alone = self._source.join(partners, F.col(_SOURCE_ROW) == F.col(_PARTNER), "left_anti")
        outcomes = []
        for number, clause in enumerate(self._clauses):
            if clause.kind != "not matched":
                continue
            applies = F.lit(True) if clause.condition is None else holds(clause.condition)  # noqa: FBT003
            values = self._resolution.values[number]
            results: list[tuple[list[Column], str | None]] = [(values, None)]
            if self._change.change_data:
                results.append((values, "insert"))
            outcomes.append(Emitted(applies, results))
        return alone, outcomes

    def _count_inserted(self, pairs: DataFrame) -> int:
        """The number of rows of the source that are inserted."""
        if not self._inserting:
            return 0
        alone, outcomes = self._inserted(pairs)
        return alone.where(reduce(or_, [outcome.when for outcome in outcomes])).count()

    def _parameters(self) -> dict[str, Any]:
        def clauses(kind: Kind) -> str:
            return dumps([clause.for_history() for clause in self._clauses if clause.kind == kind])

        return {
            "predicate": dumps([self._resolution.text or str(self._request.condition)]),
            "matchedPredicates": clauses("matched"),
            "notMatchedPredicates": clauses("not matched"),
            "notMatchedBySourcePredicates": clauses("not matched by source"),
        }


def _same_position() -> Column:
    return (F.col(FILE) == F.col(_AT_FILE)) & (F.col(ROW) == F.col(_AT_ROW))
