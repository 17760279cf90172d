"""CHAR and VARCHAR columns: texts that are longer than the column allows are refused.

Delta stores them as strings; what was declared is in the metadata of the column, as Spark writes
it. Lengths are counted in characters, and also inside of structs, arrays and maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.char_types import DECLARED
from deltalakedb.actions.datatypes import StructType
from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.staging.fit import whole

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp


def limited(schema: StructType) -> Iterator[tuple[str, exp.DataType]]:
    """The columns with limits on the length of texts, each with its declared type."""
    for field in schema.fields:
        text = field.metadata.get(DECLARED)
        if isinstance(text, str):
            yield field.name, _parsed(field.name, text)


def length_conditions(schema: StructType) -> dict[str, str]:
    """What rows have to fulfil, in Spark's SQL, by a name for each."""
    found = {}
    for name, declared in limited(schema):
        condition = _condition(_quoted(name), declared)
        if condition is not None:
            found[f"{declared.sql('spark')} of {name}"] = condition
    return found


def too_long(values: pa.Array, declared: exp.DataType) -> bool:
    """Whether a text is longer than its type allows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    limit = _limit(declared)
    inside = declared.expressions
    kind = values.type
    if limit is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        longest = pc.max(pc.utf8_length(values)).as_py()
        return longest is not None and longest > limit
    if declared.is_type("struct") and pa.types.is_struct(kind):
        names = {field.name.lower(): field.name for field in kind}
        fields = [(names.get(field.name.lower()), field.args["kind"]) for field in inside]
        return any(too_long(pc.struct_field(values, [name]), of) for name, of in fields if name)
    if declared.is_type("array") and pa.types.is_list(kind):
        return too_long(values.flatten(), inside[0])
    if declared.is_type("map") and pa.types.is_map(kind):
        there = whole(values.drop_null())
        return too_long(there.keys, inside[0]) or too_long(there.items, inside[1])
    return False


def _parsed(name: str, text: str) -> exp.DataType:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        return exp.DataType.build(text, dialect="spark")
    except SqlglotError as error:
        raise UnsupportedFeatureError(
            f"Rows cannot be written here: the type {text!r} of column {name!r} is not understood",
            why=f"It stands in the column's metadata ({DECLARED}) and limits the length of texts",
            fix="Correct the metadata of the column with the engine that wrote it",
        ) from error


def _condition(value: str, declared: exp.DataType, depth: int = 0) -> str | None:
    limit = _limit(declared)
    if limit is not None:
        return f"({value} IS NULL OR length({value}) <= {limit})"
    inside = declared.expressions
    if declared.is_type("struct"):
        parts = [
            _condition(f"{value}.{_quoted(field.name)}", field.args["kind"], depth)
            for field in inside
        ]
        return _all(parts)
    if declared.is_type("array"):
        return _each(value, inside[0], depth)
    if declared.is_type("map"):
        keys = _each(f"map_keys({value})", inside[0], depth)
        return _all([keys, _each(f"map_values({value})", inside[1], depth)])
    return None


def _each(values: str, declared: exp.DataType, depth: int) -> str | None:
    one = f"one_{depth}"
    condition = _condition(one, declared, depth + 1)
    return condition and f"({values} IS NULL OR forall({values}, {one} -> {condition}))"


def _all(conditions: list[str | None]) -> str | None:
    return " AND ".join(found for found in conditions if found) or None


def _limit(declared: exp.DataType) -> int | None:
    if declared.is_type("varchar", "char"):
        given: Any = declared.expressions
        return int(given[0].name) if given else None
    return None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
