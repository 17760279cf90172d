"""Checks rows before they are written: CHECK constraints, invariants, and lengths of texts.

A row that makes a condition false or unknown is refused, as in Delta. A condition that
`parse_where` does not support is not skipped: the write is refused. Delta stores CHAR and VARCHAR
columns as strings; the declared type is in the metadata of the column, as Spark writes it. Lengths
are counted in characters, also inside structs, arrays and maps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from deltalakedb.actions.arrow import DECLARED
from deltalakedb.actions.datatypes import STRING, ArrayType, DataType, MapType, StructType
from deltalakedb.actions.properties import CONSTRAINT_PREFIX, TableProperties
from deltalakedb.conditions.row_filter import row_filter
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import (
    ConstraintViolatedError,
    InvalidConditionError,
    UnsupportedFeatureError,
)
from deltalakedb.staging.fit import whole

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

    from deltalakedb.actions import Metadata
    from deltalakedb.snapshot import Snapshot

ENFORCED = frozenset({"checkConstraints", "invariants"})
"""The table features that `Constraints` enforces."""


class Constraints:
    """The conditions that every row of a table fulfils."""

    def __init__(
        self, metadata: Metadata, table: str, more: Mapping[str, str] | None = None
    ) -> None:
        self._table = table
        schema = metadata.schema
        self._limits = list(limits(schema))
        conditions = {
            **TableProperties(metadata.configuration).constraints,
            **dict(invariants(schema)),
            **(more or {}),
        }
        self._filters: list[tuple[str, str, Any]] = []
        for name, condition in conditions.items():
            try:
                predicate = parse_where(condition, schema, metadata.partition_columns)
                self._filters.append((name, condition, row_filter(predicate)))
            except InvalidConditionError as error:
                raise UnsupportedFeatureError(
                    f"Rows of table {table!r} cannot be written here: its constraint {name!r} "
                    f"({condition}) cannot be evaluated",
                    why=str(error),
                    fix="Write through Spark, which evaluates any SQL expression",
                ) from error

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse a batch with a row that breaks a condition."""
        import pyarrow as pa

        for limit in self._limits:
            longest = limit.longest(batch.column(limit.column))
            if longest > limit.length:
                raise ConstraintViolatedError(
                    f"Rows that were to be written to table {self._table!r} have texts that are "
                    f"too long for column {str(limit)!r}",
                    why=f"It has {limit.length} characters at most, and one of them has {longest}",
                    fix="Shorten them, or leave those rows out",
                )
        if not self._filters or not batch.num_rows:
            return
        rows = pa.Table.from_batches([batch])
        for name, condition, expression in self._filters:
            broken = batch.num_rows - rows.filter(expression).num_rows
            if broken:
                raise ConstraintViolatedError(
                    f"{broken} of the rows to be written to table {self._table!r} break its "
                    f"constraint {name!r}",
                    why=f"Every row has to fulfil: {condition}",
                    fix="Correct those rows, or leave them out",
                )


def check_rows(snapshot: Snapshot, constraints: Mapping[str, str]) -> None:
    """Refuse CHECK constraints, by the names of their properties, that rows of a table break."""
    named = {name.removeprefix(CONSTRAINT_PREFIX): text for name, text in constraints.items()}
    asked = Constraints(snapshot.metadata, snapshot.table.name, named)
    for batch in snapshot.to_arrow_dataset().to_batches():
        asked.check(batch)


def invariants(schema: StructType) -> Iterator[tuple[str, str]]:
    """Return the invariants of columns, by name."""
    for field in schema.fields:
        text = field.metadata.get("delta.invariants")
        if isinstance(text, str):
            yield f"invariant of {field.name}", json.loads(text)["expression"]["expression"]


Step: TypeAlias = tuple[Literal["field", "element", "key", "value"], str]
"""One level down; only a field has a name."""
_ELEMENT: Final[Step] = ("element", "")
_KEY: Final[Step] = ("key", "")
_VALUE: Final[Step] = ("value", "")


@dataclass(frozen=True, slots=True)
class Limit:
    """The maximum length of texts at one path of a column."""

    column: str
    steps: tuple[Step, ...]
    length: int

    def __str__(self) -> str:
        suffixes = {"element": "[]", "key": ".key", "value": ".value"}
        return self.column + "".join(suffixes.get(step, f".{name}") for step, name in self.steps)

    def condition(self) -> str:
        """The condition in Spark SQL."""
        return _condition(_quoted(self.column), self.steps, self.length)

    def longest(self, column: pa.Array) -> int:
        """Return the length of the longest text at the path."""
        import pyarrow.compute as pc

        values = column
        for step in self.steps:
            values = _below(values, step)
        return pc.max(pc.utf8_length(values)).as_py() or 0


def limits(schema: StructType) -> Iterator[Limit]:
    """All limits on the length of texts."""
    for field in schema.fields:
        text = field.metadata.get(DECLARED)
        if isinstance(text, str):
            for steps, length in _limits_of(_parsed(field.name, text), field.type):
                yield Limit(field.name, steps, length)


def _parsed(column: str, text: str) -> exp.DataType:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        return exp.DataType.build(text, dialect="spark")
    except SqlglotError as error:
        raise UnsupportedFeatureError(
            f"Rows cannot be written here: the type {text!r} of column {column!r} is not "
            "understood",
            why=f"It stands in the column's metadata ({DECLARED}) and limits the length of texts",
            fix="Correct the metadata of the column with the engine that wrote it",
        ) from error


def _limits_of(
    declared: exp.DataType, kind: DataType, above: tuple[Step, ...] = ()
) -> Iterator[tuple[tuple[Step, ...], int]]:
    inside: Any = declared.expressions
    if declared.is_type("varchar", "char"):
        if inside and kind == STRING:
            yield above, int(inside[0].name)
    elif isinstance(kind, StructType) and declared.is_type("struct"):
        wanted = {field.name.lower(): field.args["kind"] for field in inside}
        for field in kind.fields:
            if field.name.lower() in wanted:
                step: Step = ("field", field.name)
                yield from _limits_of(wanted[field.name.lower()], field.type, (*above, step))
    elif isinstance(kind, ArrayType) and declared.is_type("array"):
        yield from _limits_of(inside[0], kind.element_type, (*above, _ELEMENT))
    elif isinstance(kind, MapType) and declared.is_type("map"):
        yield from _limits_of(inside[0], kind.key_type, (*above, _KEY))
        yield from _limits_of(inside[1], kind.value_type, (*above, _VALUE))


def _condition(value: str, steps: tuple[Step, ...], length: int) -> str:
    if not steps:
        return f"{value} IS NULL OR length({value}) <= {length}"
    (step, name), below = steps[0], steps[1:]
    if step == "field":
        return _condition(f"{value}.{_quoted(name)}", below, length)
    values = {"key": f"map_keys({value})", "value": f"map_values({value})"}.get(step, value)
    one = f"one_{len(below)}"
    return f"{values} IS NULL OR forall({values}, {one} -> {_condition(one, below, length)})"


def _below(values: Any, step: Step) -> Any:
    import pyarrow.compute as pc

    name = step[1]
    if step == _ELEMENT:
        return values.flatten()
    if step in {_KEY, _VALUE}:
        # What a null around them hides is no value.
        there = whole(values.drop_null())
        return there.keys if step == _KEY else there.items
    return pc.struct_field(values, [name])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
