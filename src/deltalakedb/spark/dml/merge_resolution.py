"""What the condition and the clauses of a MERGE mean, told by Spark before a row is read.

Both sides have columns, often of the same names. Which one is meant, what each clause sets, and
which columns the table gets from the source are settled here; what cannot be resolved is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from deltalakedb.actions import Metadata
from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.actions.datatypes import ColumnPath, StructType
from deltalakedb.errors import ConfigurationError, InvalidConditionError
from deltalakedb.operations.alter import widen_columns
from deltalakedb.spark.dml.assignments import Assignments, name_parts
from deltalakedb.spark.dml.conditions import as_column, holds, read_back
from deltalakedb.spark.dml.generated import anew, generated_columns
from deltalakedb.spark.dml.store_assignment import Value, by_name, fitted, policy_of
from deltalakedb.spark.io.scan import quoted, spark_says, spark_types
from deltalakedb.spark.io.spark_internals import alias_of, is_connect, join_condition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.spark.dml.changes import RowChange

Kind: TypeAlias = Literal["matched", "not matched", "not matched by source"]
Act: TypeAlias = Literal["update", "delete", "insert"]
ALL: Final = "*"
"""In the place of assignments: every column, from the column of the same name."""
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
        """Under which name the rows that it changes are counted."""
        where = "matched" if self.kind == "matched" else "source"
        return f"{where} {self.act}d"

    def shown(self) -> dict[str, str]:
        """As Delta's history has it."""
        predicate = {} if self.condition is None else {"predicate": str(self.condition)}
        return {**predicate, "actionType": self.act}


def check_clauses(clauses: Sequence[Clause]) -> None:
    """Refuse a MERGE without clauses, and clauses that would never be reached."""
    if not clauses:
        raise ConfigurationError(
            "The MERGE has no clause",
            fix="Say what happens, e.g. .whenMatchedUpdateAll() or .whenNotMatchedInsertAll()",
        )
    for kind in ("matched", "not matched", "not matched by source"):
        same = [clause for clause in clauses if clause.kind == kind]
        if any(clause.condition is None for clause in same[:-1]):
            raise ConfigurationError(
                f"A clause for rows that are {kind} has no condition, and others follow",
                why="They would never be reached",
                fix="Give it a condition, or make it the last one of its kind",
            )


class MergeResolution:
    """What a MERGE means: names of both sides, values by clause, the condition as text."""

    def __init__(
        self,
        spark: SparkSession,
        change: RowChange,
        source: DataFrame,
        *,
        condition: Any,
        clauses: Sequence[Clause],
        alias: str | None,
        evolve: bool,
    ) -> None:
        self._spark = spark
        self._change = change
        self._clauses = clauses
        self._condition = condition
        self._evolve = evolve
        self._columns = source.columns
        self.target = alias or _PLAIN_TARGET
        """What the columns of the table are called by."""
        self.source = alias_of(source) or _PLAIN_SOURCE
        """What the columns of the source are called by."""
        self._given = source.alias(self.source)
        if evolve:
            self._add_columns(source)
        self.values = {
            number: self._values_of(clause)
            for number, clause in enumerate(clauses)
            if clause.act != "delete"
        }
        """The new values of all columns, by the number of the clause."""
        self.apart: set[int] = set()
        """Clauses whose names mean the table's columns, where the source has some of that name."""
        self.text = self._resolved()
        """The condition as text, where it has one."""

    def _add_columns(self, source: DataFrame) -> None:
        """Columns and fields of the source that the table lacks, where a clause would set them."""
        change = self._change
        # Others can take nothing from the source.
        given = [c.assignments for c in self._clauses if c.kind != "not matched by source"]
        used = columns_set(
            [name for names in given if isinstance(names, Mapping) for name in names],
            schema_from_any(source.schema),
            everything=ALL in given,
            table=change.metadata.schema,
            alias=self.target,
        )
        control = widen_columns(change.base, used)
        if control:
            change.parts.control = control
            change.metadata = next(one for one in control if isinstance(one, Metadata))

    def _values_of(self, clause: Clause) -> list[Column]:
        from pyspark.sql import functions as F  # noqa: N812

        schema = self._change.metadata.schema
        types = spark_types(schema)
        given = clause.assignments
        if given == ALL:
            given = self._all(clause)
        assert isinstance(given, Mapping)  # noqa: S101 - the builder takes nothing else
        assigned = Assignments(schema, given, alias=self.target)
        probe, fix = self._probe(clause.kind), self._fix()
        if clause.act == "update":
            return assigned.applied(probe, alias=self.target, fix=fix)
        values = [Value(name, value, types[name]) for name, value in assigned.whole().items()]
        made = dict(zip((value.name for value in values), fitted(probe, values, fix), strict=True))
        nothing = {name: F.lit(None).cast(kind) for name, kind in types.items()}
        return [*({**nothing, **made}).values(), *anew(schema, made)]

    def _fix(self) -> str:
        return (
            f"Columns of the table are {self.target}.name, of the source {self.source}.name; "
            "give both an alias"
        )

    def _probe(self, kind: Kind) -> DataFrame:
        """No rows, with the columns that a clause can name."""
        if kind == "not matched":
            return self._given
        target = self.widened(self._change.empty).alias(self.target)
        return target if kind == "not matched by source" else target.crossJoin(self._given)

    def _all(self, clause: Clause) -> dict[str, Column]:
        from pyspark.sql import functions as F  # noqa: N812

        there = {name.lower(): name for name in self._columns}
        generated = generated_columns(self._change.metadata.schema)
        found: dict[str, Column] = {}
        for field in self._change.metadata.schema.fields:
            name = there.get(field.name.lower())
            if name is not None:
                found[quoted(field.name)] = F.col(f"{quoted(self.source)}.{quoted(name)}")
            elif not self._evolve and field.name not in generated:
                raise InvalidConditionError(
                    f"The source of the MERGE has no column {field.name!r}",
                    why=f"{clause.act}All takes every column of the table from it; it has: "
                    f"{', '.join(self._columns)}",
                    fix="Name the columns to set, or allow for it with withSchemaEvolution()",
                )
        return found

    def _resolved(self) -> str | None:
        """The condition as text, after Spark has resolved it, which tells what is wrong with it."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812

        source = self._given
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
            meant = join_condition(joined)
        except AnalysisException as error:
            raise InvalidConditionError(
                "The MERGE cannot be resolved",
                why=spark_says(error),
                fix=self._fix(),
            ) from error
        if isinstance(self._condition, str):
            return self._condition
        text = str(meant.sql())
        return read_back(text, meant, lambda: join_condition(target.join(source, F.expr(text))))

    def _resolvable(self, kind: Kind) -> list[Column]:
        """What clauses evaluate: with rows of both, of the source alone, or of the table alone."""
        found = []
        for number, clause in enumerate(self._clauses):
            if clause.kind == kind:
                found += self._evaluated(number, clause)
        return found

    def _evaluated(self, number: int, clause: Clause) -> list[Column]:
        when = [] if clause.condition is None else [holds(clause.condition)]
        return [*self.values.get(number, []), *when]

    def _ambiguous(self, joined: DataFrame) -> set[int]:
        """Clauses for rows that the source lacks, which cannot be resolved beside its columns."""
        from pyspark.errors import AnalysisException

        found = set()
        for number, clause in enumerate(self._clauses):
            if clause.kind == "not matched by source":
                try:
                    joined.select(*self._evaluated(number, clause))
                except AnalysisException:
                    found.add(number)
        return found

    def widened(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns that the table gets by this MERGE."""
        from pyspark.sql import functions as F  # noqa: N812

        schema, before = self._change.metadata.schema, self._change.snapshot.schema
        types, known = spark_types(schema), spark_types(before)
        policy = policy_of(self._spark)
        new = {}
        for name, kind in types.items():
            if name not in known:
                new[name] = F.lit(None).cast(kind)
            elif known[name] != kind:
                column = F.col(quoted(name))
                new[name] = by_name(column, known[name], kind, name, policy=policy)
        return rows.withColumns(new) if new else rows


# --- schema evolution ---------------------------------------------------------------------


def columns_set(
    names: Iterable[str], source: StructType, *, everything: bool, table: StructType, alias: str
) -> StructType:
    """The columns and fields of a source that assignments name, or `everything` of it.

    The `alias` of the table may stand before the names. Of a struct only the fields that are set
    are there, unless it is set as a whole.
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
    kept = []
    for field in source.fields:
        path = (*above, field.name.lower())
        if path in named:
            kept.append(field)
        elif isinstance(field.type, StructType) and any(n[: len(path)] == path for n in named):
            kept.append(replace(field, type=_named(field.type, named, path)))
    return StructType(tuple(kept))
