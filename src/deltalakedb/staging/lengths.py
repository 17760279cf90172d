"""CHAR and VARCHAR columns: texts that are longer than the column allows are refused.

Delta stores them as strings; what was declared is in the metadata of the column, as Spark writes
it. Lengths are counted in characters, also inside of structs, arrays and maps. A field that was
declared and is not there (any more), or is no string, limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from deltalakedb.actions.char_types import DECLARED
from deltalakedb.actions.datatypes import STRING, ArrayType, DataType, MapType, StructType
from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.staging.fit import whole

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

Step: TypeAlias = tuple[Literal["field", "element", "key", "value"], str]
"""One level down; only a field has a name."""
_ELEMENT: Final[Step] = ("element", "")
_KEY: Final[Step] = ("key", "")
_VALUE: Final[Step] = ("value", "")


@dataclass(frozen=True, slots=True)
class Limit:
    """How long texts may be in one place of a column."""

    column: str
    steps: tuple[Step, ...]
    length: int

    def __str__(self) -> str:
        told = {"element": "[]", "key": ".key", "value": ".value"}
        return self.column + "".join(told.get(step, f".{name}") for step, name in self.steps)

    def condition(self) -> str:
        """What rows have to fulfil, in Spark's SQL."""
        return _condition(_quoted(self.column), self.steps, self.length)

    def longest(self, column: pa.Array) -> int:
        """How long the longest text is in that place."""
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
            for steps, length in _found(_parsed(field.name, text), field.type):
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


def _found(
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
                yield from _found(wanted[field.name.lower()], field.type, (*above, step))
    elif isinstance(kind, ArrayType) and declared.is_type("array"):
        yield from _found(inside[0], kind.element_type, (*above, _ELEMENT))
    elif isinstance(kind, MapType) and declared.is_type("map"):
        yield from _found(inside[0], kind.key_type, (*above, _KEY))
        yield from _found(inside[1], kind.value_type, (*above, _VALUE))


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
