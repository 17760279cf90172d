"""Resolution of a MERGE by Spark, before a row is read.

Both sides have columns, often of the same names. This module resolves the names in the condition
and the clauses, computes the values that each clause sets and the columns that the table gets from
the source, and refuses names that cannot be resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import Metadata
from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.actions.datatypes import ColumnPath, StructType
from deltalakedb.errors import ConfigurationError, InvalidConditionError
from deltalakedb.operations.alter import widen_columns
from deltalakedb.spark.dml.assignments import Assignments, name_parts
from deltalakedb.spark.dml.changes import RowChange
from deltalakedb.spark.dml.conditions import as_column, holds, round_trip
from deltalakedb.spark.io.generated import generated_columns, recompute_columns
from deltalakedb.spark.io.scan import quoted, spark_says, spark_types
from deltalakedb.spark.io.spark_internals import alias_of, is_connect, join_condition
from deltalakedb.spark.io.store_assignment import Value, cast_by_name, fitted, policy_of

Kind: TypeAlias = Literal["matched", "not matched", "not matched by source"]
Act: TypeAlias = Literal["update", "delete", "insert"]
ALL: Final = "*"
"""Instead of assignments: every column, from the column of the same name."""
_PLAIN_TARGET: Final = "__deltalakedb_target"
_PLAIN_SOURCE: Final = "__deltalakedb_source"


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN clause."""

    kind: Kind
    act: Act
    condition: Any = None
    assignments: Mapping[str, Any] | str | None = None

    @property
    def counted_as(self) -> str:
        """The name of the count of its rows."""
        where = "matched" if self.kind == "matched" else "source"
        return f"{where} {self.act}d"

    def for_history(self) -> dict[str, str]:
        """The clause in the operation parameters, as in Delta's history."""
        predicate = {} if self.condition is None else {"predicate": str(self.condition)}
        return {**predicate, "actionType": self.act}


@dataclass(frozen=True, slots=True)
class Merge:
    """A MERGE: its source, condition and clauses; `alias` is that of the table."""

    source: DataFrame
    condition: Any
    clauses: Sequence[Clause]
    alias: str | None = None
    evolve: bool = False
    """Whether the table gets columns that only the source has."""

    def check(self) -> None:
        """Refuse a MERGE without clauses, and clauses that would never be reached."""
        if not self.clauses:
            raise ConfigurationError(
                "The MERGE has no clause",
                fix="Add one, e.g. .whenMatchedUpdateAll() or .whenNotMatchedInsertAll()",
            )
        for kind in ("matched", "not matched", "not matched by source"):
            same = [clause for clause in self.clauses if clause.kind == kind]
            if any(clause.condition is None for clause in same[:-1]):
                raise ConfigurationError(
                    f"A clause for rows that are {kind} has no condition, and others follow",
                    why="They would never be reached",
                    fix="Add a condition to it, or make it the last one of its kind",
                )


class MergeResolution:
    """A resolved MERGE: the aliases of both sides, values by clause, the condition as text."""

    def __init__(self, spark: SparkSession, change: RowChange, merge: Merge) -> None:
        self._spark = spark
        self._change = change
        self._clauses = merge.clauses
        self._condition = merge.condition
        self._evolve = merge.evolve
        self._columns = merge.source.columns
        self.target = merge.alias or _PLAIN_TARGET
        """The alias of the table."""
        self.source = alias_of(merge.source) or _PLAIN_SOURCE
        """The alias of the source."""
        self._rows = merge.source.alias(self.source)
        if merge.evolve:
            self._add_columns(merge.source)
        self.values = {
            number: self._values_of(clause)
            for number, clause in enumerate(merge.clauses)
            if clause.act != "delete"
        }
        """The new values of all columns, by the number of the clause."""
        self.apart: set[int] = set()
        """Clauses with names of the table's columns that the source has too."""
        self.text = self._resolved()
        """The condition as text, if it has one."""

    def _add_columns(self, source: DataFrame) -> None:
        """Add the columns and fields of the source that clauses set and the table lacks."""
        change = self._change
        # Other clauses cannot use the source.
        assigned = [c.assignments for c in self._clauses if c.kind != "not matched by source"]
        used = columns_set(
            [name for names in assigned if isinstance(names, Mapping) for name in names],
            schema_from_any(source.schema),
            everything=ALL in assigned,
            table=change.metadata.schema,
            alias=self.target,
        )
        change.control = widen_columns(change.base, used)
        if change.control:
            change.metadata = next(one for one in change.control if isinstance(one, Metadata))

    def _values_of(self, clause: Clause) -> list[Column]:
        schema = self._change.metadata.schema
        types = spark_types(schema)
        assignments = self._all(clause) if clause.assignments == ALL else clause.assignments
        assert isinstance(assignments, Mapping)  # noqa: S101 - the builder takes nothing else
        assigned = Assignments(schema, assignments, alias=self.target)
        probe, fix = self._probe(clause.kind), self._fix()
        if clause.act == "update":
            return assigned.applied(probe, alias=self.target, fix=fix)
        values = [Value(name, value, types[name]) for name, value in assigned.whole().items()]
        columns = {name: F.lit(None).cast(kind) for name, kind in types.items()}
        fitting = fitted(probe, values, fix)
        columns |= {value.name: column for value, column in zip(values, fitting, strict=True)}
        return [*columns.values(), *recompute_columns(schema, [value.name for value in values])]

    def _fix(self) -> str:
        return (
            f"Columns of the table are {self.target}.name, of the source {self.source}.name; "
            "set an alias for both"
        )

    def _probe(self, kind: Kind) -> DataFrame:
        """No rows, with the columns that a clause can name."""
        if kind == "not matched":
            return self._rows
        target = self.widened(self._change.empty).alias(self.target)
        return target if kind == "not matched by source" else target.crossJoin(self._rows)

    def _all(self, clause: Clause) -> dict[str, Column]:
        by_lower = {name.lower(): name for name in self._columns}
        generated = generated_columns(self._change.metadata.schema)
        assignments: dict[str, Column] = {}
        for field in self._change.metadata.schema.fields:
            name = by_lower.get(field.name.lower())
            if name is not None:
                assignments[quoted(field.name)] = F.col(f"{quoted(self.source)}.{quoted(name)}")
            elif not self._evolve and field.name not in generated:
                raise InvalidConditionError(
                    f"The source of the MERGE has no column {field.name!r}",
                    why=f"{clause.act}All takes every column of the table from it; it has: "
                    f"{', '.join(self._columns)}",
                    fix="Name the columns to set, or allow for it with withSchemaEvolution()",
                )
        return assignments

    def _resolved(self) -> str | None:
        """Let Spark resolve the condition and the clauses; return the condition as text."""
        source = self._rows
        try:
            target = self.widened(self._change.empty).alias(self.target)
            joined = target.join(source, as_column(self._condition), "inner")
            joined.select(*self._resolvable("matched"))
            source.select(*self._resolvable("not matched"))
            target.select(*self._resolvable("not matched by source"))
            self.apart = self._ambiguous(joined)
            if is_connect(joined):
                _ = joined.schema
                return self._condition if isinstance(self._condition, str) else None
            expected = join_condition(joined)
        except AnalysisException as error:
            raise InvalidConditionError(
                "The MERGE cannot be resolved",
                why=spark_says(error),
                fix=self._fix(),
            ) from error
        if isinstance(self._condition, str):
            return self._condition
        text = str(expected.sql())
        return round_trip(text, expected, lambda: join_condition(target.join(source, F.expr(text))))

    def _resolvable(self, kind: Kind) -> list[Column]:
        """The expressions of the clauses of a kind."""
        return [
            column
            for number, clause in enumerate(self._clauses)
            if clause.kind == kind
            for column in self._evaluated(number, clause)
        ]

    def _evaluated(self, number: int, clause: Clause) -> list[Column]:
        when = [] if clause.condition is None else [holds(clause.condition)]
        return [*self.values.get(number, []), *when]

    def _ambiguous(self, joined: DataFrame) -> set[int]:
        """Clauses for rows without a match that cannot be resolved beside the source's columns."""
        numbers = set()
        for number, clause in enumerate(self._clauses):
            if clause.kind == "not matched by source":
                try:
                    joined.select(*self._evaluated(number, clause))
                except AnalysisException:
                    numbers.add(number)
        return numbers

    def widened(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns that this MERGE adds to the table."""
        schema, before = self._change.metadata.schema, self._change.snapshot.schema
        types, known = spark_types(schema), spark_types(before)
        policy = policy_of(self._spark)
        new = {}
        for name, kind in types.items():
            if name not in known:
                new[name] = F.lit(None).cast(kind)
            elif known[name] != kind:
                column = F.col(quoted(name))
                new[name] = cast_by_name(column, known[name], kind, name, policy=policy)
        return rows.withColumns(new) if new else rows


# --- schema evolution ---------------------------------------------------------------------


def columns_set(
    names: Iterable[str], source: StructType, *, everything: bool, table: StructType, alias: str
) -> StructType:
    """The columns and fields of a source that assignments name, or `everything` of it.

    Names may begin with the `alias` of the table. A struct has only the fields that are set, unless
    it is set as a whole.
    """
    if everything:
        return source
    paths = [tuple(part.lower() for part in name_parts(name)) for name in names]
    return _named(source, [_bare(path, alias.lower(), table, source) for path in paths], ())


def _bare(path: ColumnPath, alias: str, table: StructType, source: StructType) -> ColumnPath:
    if len(path) == 1 or path[0] != alias:
        return path
    known = table.get(path[1]) is not None or source.get(path[1]) is not None
    return path[1:] if known or table.get(alias) is None else path


def _named(source: StructType, named: Sequence[ColumnPath], above: ColumnPath) -> StructType:
    fields = []
    for field in source.fields:
        path = (*above, field.name.lower())
        if path in named:
            fields.append(field)
        elif isinstance(field.type, StructType) and any(n[: len(path)] == path for n in named):
            fields.append(replace(field, type=_named(field.type, named, path)))
    return StructType(tuple(fields))
