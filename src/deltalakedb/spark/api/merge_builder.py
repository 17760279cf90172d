"""The clauses of a MERGE, one after the other, as in `delta.tables.DeltaMergeBuilder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from deltalakedb.spark.api.arguments import (
    check_assignments,
    check_condition,
    check_frame,
    check_syntax,
)
from deltalakedb.spark.dml.merge import merge
from deltalakedb.spark.dml.merge_resolution import ALL, Act, Clause, Kind, Merge
from deltalakedb.table import Table

_Condition = Any
_AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"


class DeltaMergeBuilder:
    """The builder of a MERGE; `execute()` runs it as one commit."""

    def __init__(
        self,
        spark: SparkSession,
        table: Table,
        source: DataFrame,
        condition: _Condition,
        alias: str | None,
    ) -> None:
        self._spark = spark
        self._table = table
        check_frame("source", source)
        check_condition(condition)
        check_syntax(spark, [condition])
        self._source = source
        self._condition = condition
        self._alias = alias
        self._clauses: list[Clause] = []
        self._evolve = False

    def whenMatchedUpdate(
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002 - Delta's name
    ) -> DeltaMergeBuilder:
        """Change columns of rows that match."""
        return self._add("matched", "update", condition, check_assignments("set", set))

    def whenMatchedUpdateAll(self, condition: str | Column | None = None) -> DeltaMergeBuilder:
        """Set all columns of rows that match from the source."""
        return self._add("matched", "update", condition, ALL)

    def whenMatchedDelete(self, condition: str | Column | None = None) -> DeltaMergeBuilder:
        """Delete rows that match."""
        return self._add("matched", "delete", condition, None)

    def whenNotMatchedInsert(
        self,
        condition: str | Column | None = None,
        values: Mapping[str, str | Column] | None = None,
    ) -> DeltaMergeBuilder:
        """Insert rows of the source that match nothing; other columns are null."""
        return self._add("not matched", "insert", condition, check_assignments("values", values))

    def whenNotMatchedInsertAll(self, condition: str | Column | None = None) -> DeltaMergeBuilder:
        """Insert rows of the source that match nothing, with all their columns."""
        return self._add("not matched", "insert", condition, ALL)

    def whenNotMatchedBySourceUpdate(
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002 - Delta's name
    ) -> DeltaMergeBuilder:
        """Change columns of rows of the table that nothing in the source matches."""
        return self._add(
            "not matched by source", "update", condition, check_assignments("set", set)
        )

    def whenNotMatchedBySourceDelete(
        self, condition: str | Column | None = None
    ) -> DeltaMergeBuilder:
        """Delete rows of the table that nothing in the source matches."""
        return self._add("not matched by source", "delete", condition, None)

    def withSchemaEvolution(self) -> DeltaMergeBuilder:
        """Add columns to the table that clauses set and only the source has."""
        self._evolve = True
        return self

    def execute(self) -> DataFrame:
        """Merge; return the numbers of rows affected, updated, deleted and inserted."""
        evolve = self._evolve or self._spark.conf.get(_AUTO_MERGE, "false") == "true"
        request = Merge(self._source, self._condition, self._clauses, self._alias, evolve)
        _, counts = merge(self._spark, self._table, request)
        numbers = [
            counts["numTargetRowsUpdated"],
            counts["numTargetRowsDeleted"],
            counts["numTargetRowsInserted"],
        ]
        return self._spark.createDataFrame(
            [(sum(numbers), *numbers)],
            "num_affected_rows bigint, num_updated_rows bigint, num_deleted_rows bigint, "
            "num_inserted_rows bigint",
        )

    def _add(
        self,
        kind: Kind,
        act: Act,
        condition: _Condition,
        assignments: Mapping[str, Any] | str | None,
    ) -> DeltaMergeBuilder:
        if condition is not None:
            check_condition(condition)
        values = assignments.values() if isinstance(assignments, Mapping) else ()
        check_syntax(self._spark, [condition, *values])
        self._clauses.append(Clause(kind, act, condition, assignments))
        return self
