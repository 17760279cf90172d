"""MERGE: rows of a source change, delete and add rows of a table, in one version.

How it is done:

1. The source is materialised, so that it is the same each time it is looked at.
2. The files that may have matching rows are joined with it, once. What is kept of that are pairs
   of positions: which row of which file, which row of the source, and which clause it is.
3. The files that have rows which change are read a second time, and written anew with their rows
   changed (or only the changed rows, where the table has deletion vectors). Rows of the source
   that matched nothing are inserted.

A condition is evaluated once for each pair of rows, and never again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.conditions.partition_tests import partitions_read
from deltalakedb.conditions.predicate import Constant, Opaque, Predicate, conjunction
from deltalakedb.errors import AmbiguousMergeError
from deltalakedb.operations.append import live_rows
from deltalakedb.spark.dml.changes import (
    Emitted,
    RowChange,
    Touched,
    has_counts,
    written_rows,
)
from deltalakedb.spark.dml.conditions import as_column, holds
from deltalakedb.spark.dml.merge_plan import read_condition, small, source_bounds
from deltalakedb.spark.dml.merge_resolution import Clause, Kind, MergeResolution, check_clauses
from deltalakedb.spark.io.scan import FILE, ROW, planned, quoted
from deltalakedb.spark.io.spark_internals import release_checkpoint
from deltalakedb.transaction.attempt import ReadSet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.table import Table
    from deltalakedb.transaction.commit import Committed

_SOURCE_ROW: Final = "__deltalakedb_source_row"
_CLAUSE: Final = "__deltalakedb_clause"
_AT_FILE: Final = "__deltalakedb_at_file"
_AT_ROW: Final = "__deltalakedb_at_row"
_WHEN: Final = "__deltalakedb_when_"
_NO_CLAUSE: Final = -1


def merge(
    spark: SparkSession,
    table: Table,
    source: DataFrame,
    *,
    condition: Any,
    clauses: Sequence[Clause],
    alias: str | None = None,
    evolve: bool = False,
) -> tuple[Committed | None, dict[str, int]]:
    """Merge a source into a table; the commit, if anything changed, and counts of rows."""
    check_clauses(clauses)
    made = _Merge(
        spark, table, source, condition=condition, clauses=clauses, alias=alias, evolve=evolve
    )
    return made.run()


class _Merge:
    """One MERGE."""

    def __init__(
        self,
        spark: SparkSession,
        table: Table,
        source: DataFrame,
        *,
        condition: Any,
        clauses: Sequence[Clause],
        alias: str | None,
        evolve: bool,
    ) -> None:
        self._spark = spark
        self._change = RowChange(spark, table)
        self._clauses = clauses
        self._changing = [c for c in clauses if c.kind != "not matched"]
        self._inserting = [c for c in clauses if c.kind == "not matched"]
        self._by_source = any(c.kind == "not matched by source" for c in clauses)
        self._condition = condition
        self._given_source = source
        self._kept: list[DataFrame] = []
        self._resolution = MergeResolution(
            spark,
            self._change,
            source,
            condition=condition,
            clauses=clauses,
            alias=alias,
            evolve=evolve,
        )

    def run(self) -> tuple[Committed | None, dict[str, int]]:
        """Find, write, commit."""
        try:
            return self._run()
        finally:
            for frame in self._kept:
                release_checkpoint(frame)

    def _run(self) -> tuple[Committed | None, dict[str, int]]:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        numbered = self._given_source.withColumn(_SOURCE_ROW, F.monotonically_increasing_id())
        kept = self._keep(numbered)
        source_rows = kept.count()
        self._source = small(kept, source_rows).alias(self._resolution.source)
        predicate = self._predicate()
        files = self._change.find(predicate)
        pairs = self._pairs(files)
        decided, counts, touched = self._decided(files, pairs)
        metrics = dict(counts)
        metrics["numSourceRows"] = source_rows
        try:
            self._write(pairs, decided, touched, metrics)
        except BaseException:
            self._change.undo()
            raise
        test = partitions_read(predicate, self._change.metadata)
        read = ReadSet(partitions=test, files=frozenset(files["path"].to_pylist()))
        committed = self._change.commit(
            "MERGE", parameters=self._parameters(), metrics=metrics, read=read
        )
        return committed, metrics

    def _keep(self, frame: DataFrame) -> DataFrame:
        """The rows as they are now, held by the executors until the MERGE is done."""
        kept = frame.localCheckpoint()
        self._kept.append(kept)
        return kept

    # --- finding ----------------------------------------------------------------------------

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
            source_columns=self._given_source.columns,
        )
        known = list(parts.target)
        if parts.keys and change.snapshot.num_files > 1:
            known += source_bounds(
                self._source, parts.keys, old.schema, list(old.partition_columns)
            )
        found = [planned(self._spark, old, part) for part in known]
        return conjunction([*found, Opaque("the rest of the condition")])

    def _pairs(self, files: Any) -> DataFrame:
        """Which row of the table, which row of the source, and which clause; what has none too."""
        from pyspark.sql import functions as F  # noqa: N812

        how = "left" if self._by_source else "inner"
        target = self._resolution.widened(self._change.rows(files)).alias(self._resolution.target)
        conditions = {i: self._clauses[i].condition for i in self._resolution.apart}
        target = target.withColumns(
            {f"{_WHEN}{i}": holds(given) for i, given in conditions.items() if given is not None}
        )
        joined = target.join(self._source, as_column(self._condition), how)
        matched = F.col(_SOURCE_ROW).isNotNull()
        clause = self._clause_number(matched)
        found = joined.select(
            F.col(FILE).alias(_AT_FILE),
            F.col(ROW).alias(_AT_ROW),
            F.col(_SOURCE_ROW),
            clause.alias(_CLAUSE),
        )
        # Rows that nothing happens to are of no use, unless their partner is to be inserted.
        kept = F.col(_CLAUSE) != _NO_CLAUSE
        if self._inserting:
            kept = kept | F.col(_SOURCE_ROW).isNotNull()
        return self._keep(found.where(kept))

    def _clause_number(self, matched: Column) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

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
        """One clause for each row of the table that changes, with the row of the source."""
        from pyspark.sql import functions as F  # noqa: N812

        change = self._change
        if not self._changing:
            return None, {}, change.touched(files, {})
        decided = self._keep(
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
                why="Which of them it should take its values from is not said",
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
        """Whether it makes no difference which row of the source it is."""
        matched = [clause for clause in self._clauses if clause.kind == "matched"]
        return len(matched) == 1 and matched[0].act == "delete" and matched[0].condition is None

    # --- writing ----------------------------------------------------------------------------

    def _write(
        self,
        pairs: DataFrame,
        decided: DataFrame | None,
        touched: Touched,
        metrics: dict[str, int],
    ) -> None:
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
                counts = [live_rows(row) for row in touched.rows]
                known = [count for count in counts if count is not None]
                copied = sum(known) - touched.changed if len(known) == len(counts) else None
            if not marking or change.change_data or self._updates():
                changed = self._changed(decided, touched, marking=marking)
                apart = self._changed_apart(decided, touched)
                parts += [one for one in (changed, apart) if any(made.rows for made in one[1])]
        if self._inserting:
            parts.append(self._inserted(pairs))
        if parts:
            change.write_all(parts)
        output = written_rows(change.parts.adds)
        updated = sum(metrics.get(name, 0) for name in ("matched updated", "source updated"))
        deleted = sum(metrics.get(name, 0) for name in ("matched deleted", "source deleted"))
        if copied is None:
            # Files without statistics do not tell how many rows they had.
            copied = output - updated - self._count_inserted(pairs)
        found = dict(metrics)
        metrics.clear()
        metrics.update(
            {
                "numSourceRows": found["numSourceRows"],
                "numTargetRowsInserted": output - copied - updated,
                "numTargetRowsUpdated": updated,
                "numTargetRowsDeleted": deleted,
                "numTargetRowsMatchedUpdated": found.get("matched updated", 0),
                "numTargetRowsMatchedDeleted": found.get("matched deleted", 0),
                "numTargetRowsNotMatchedBySourceUpdated": found.get("source updated", 0),
                "numTargetRowsNotMatchedBySourceDeleted": found.get("source deleted", 0),
                "numTargetRowsCopied": copied,
                "numOutputRows": output,
                "numTargetFilesAdded": len(change.parts.adds),
                "numTargetFilesRemoved": len(change.parts.removes) - len(change.parts.marked),
                "numTargetChangeFilesAdded": len(change.parts.changes),
            }
        )

    def _updates(self) -> bool:
        return any(clause.act == "update" for clause in self._changing)

    def _changed(
        self, decided: DataFrame, touched: Touched, *, marking: bool
    ) -> tuple[DataFrame, list[Emitted]]:
        """The rows of the files that change, each with its clause and its partner."""
        from pyspark.sql import functions as F  # noqa: N812

        change = self._change
        target = self._resolution.widened(change.rows(touched.files)).alias(self._resolution.target)
        where = (F.col(FILE) == F.col(_AT_FILE)) & (F.col(ROW) == F.col(_AT_ROW))
        chosen = decided.withColumnRenamed(_SOURCE_ROW, "__deltalakedb_partner")
        partner = F.col("__deltalakedb_partner") == F.col(_SOURCE_ROW)
        # First what is small with what is small: the rows of the table are then joined once.
        chosen = small(chosen.join(self._source, partner, "left"), touched.changed)
        rows = target.join(chosen, where, "inner" if marking else "left")
        names = [field.name for field in change.metadata.schema.fields]
        before = [F.col(f"{quoted(self._resolution.target)}.{quoted(name)}") for name in names]
        outcomes = []
        for number, clause in enumerate(self._clauses):
            if clause.kind == "not matched":
                continue
            applies = F.coalesce(F.col(_CLAUSE) == number, F.lit(False))  # noqa: FBT003
            apart = number in self._resolution.apart and clause.act == "update"
            made = [] if apart else self._emitted(number, clause, before)
            outcomes.append(Emitted(applies, made))
        if not marking:
            outcomes.append(Emitted(F.col(_CLAUSE).isNull(), [(before, None)]))
        return rows, outcomes

    def _changed_apart(
        self, decided: DataFrame, touched: Touched
    ) -> tuple[DataFrame, list[Emitted]]:
        """Rows that get values of their own, with no columns of the source beside theirs."""
        from pyspark.sql import functions as F  # noqa: N812

        numbers = [i for i in sorted(self._resolution.apart) if self._clauses[i].act == "update"]
        if not numbers:
            return decided, []
        change = self._change
        target = self._resolution.widened(change.rows(touched.files)).alias(self._resolution.target)
        where = (F.col(FILE) == F.col(_AT_FILE)) & (F.col(ROW) == F.col(_AT_ROW))
        chosen = decided.where(F.col(_CLAUSE).isin(numbers)).select(_AT_FILE, _AT_ROW, _CLAUSE)
        rows = target.join(small(chosen, touched.changed), where)
        names = [field.name for field in change.metadata.schema.fields]
        before = [F.col(f"{quoted(self._resolution.target)}.{quoted(name)}") for name in names]
        return rows, [
            Emitted(F.col(_CLAUSE) == i, self._emitted(i, self._clauses[i], before))
            for i in numbers
        ]

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
        """The rows of the source that matched nothing."""
        from pyspark.sql import functions as F  # noqa: N812

        partners = pairs.select(F.col(_SOURCE_ROW).alias("__deltalakedb_partner")).distinct()
        alone = self._source.join(
            partners, F.col(_SOURCE_ROW) == F.col("__deltalakedb_partner"), "left_anti"
        )
        outcomes = []
        for number, clause in enumerate(self._clauses):
            if clause.kind != "not matched":
                continue
            applies = F.lit(True) if clause.condition is None else holds(clause.condition)  # noqa: FBT003
            values = self._resolution.values[number]
            made: list[tuple[list[Column], str | None]] = [(values, None)]
            if self._change.change_data:
                made.append((values, "insert"))
            outcomes.append(Emitted(applies, made))
        return alone, outcomes

    def _count_inserted(self, pairs: DataFrame) -> int:
        """How many rows of the source are inserted."""
        if not self._inserting:
            return 0
        alone, outcomes = self._inserted(pairs)
        return alone.where(reduce(or_, [outcome.when for outcome in outcomes])).count()

    def _parameters(self) -> dict[str, Any]:
        def shown(kind: Kind) -> str:
            return dumps([clause.shown() for clause in self._clauses if clause.kind == kind])

        return {
            "predicate": dumps([self._resolution.text or str(self._condition)]),
            "matchedPredicates": shown("matched"),
            "notMatchedPredicates": shown("not matched"),
            "notMatchedBySourcePredicates": shown("not matched by source"),
        }
