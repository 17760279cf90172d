"""Fits incoming columns to the columns of a table.

Guarantees:

- Names are matched ignoring case, as Spark does; order does not matter. A column that is missing is
  null if the table allows that. An unknown column is refused.
- A value is never changed: a type is accepted if every value has the same meaning in the type of
  the table. Other values are refused with an error that names the column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from deltalakedb.actions.arrow import DECLARED, schema_to_arrow, type_to_arrow
from deltalakedb.actions.datatypes import (
    STRING,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from deltalakedb.actions.properties import CONSTRAINT_PREFIX, TableProperties
from deltalakedb.conditions.row_filter import row_filter
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import (
    ConstraintViolatedError,
    InvalidConditionError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

    from deltalakedb.actions import Metadata
    from deltalakedb.snapshot import Snapshot


Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """Converts batches of one schema to the columns of a table, with logical names."""

    schema: pa.Schema
    columns: Sequence[tuple[int | None, Convert]]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the columns of the table; raises SchemaMismatchError."""
        import pyarrow as pa

        arrays = []
        for field, (position, convert) in zip(self.schema, self.columns, strict=True):
            if position is None:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            try:
                arrays.append(convert(batch.column(position)))
            except pa.ArrowException as error:
                raise SchemaMismatchError(
                    f"A value of column {field.name!r} does not fit its type {field.type}",
                    why=str(error).splitlines()[0],
                    fix="Convert the column before it is written, or change the table's type",
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def fit(incoming: pa.Schema, schema: StructType, *, table: str) -> Fit:
    """Match incoming columns with those of a table."""
    names = _positions(incoming, table)
    columns: list[tuple[int | None, Convert]] = []
    for field in schema.fields:
        position = names.pop(field.name.lower(), None)
        if position is None:
            _check_may_lack(field, table)
            columns.append((None, _same))
        else:
            source = incoming.field(position).type
            columns.append((position, converter(source, field.type, field.name)))
    if names:
        extra = [incoming.field(position).name for position in names.values()]
        raise SchemaMismatchError(
            f"The data has a column that table {table!r} does not have: {', '.join(extra)}",
            why=f"The table has: {', '.join(schema.names)}",
            fix="Leave it out, or pass merge_schema=True to add it to the table",
        )
    # Arrow marks nullability, but whether a null is there is checked where rows are counted.
    return Fit(nullable(schema_to_arrow(schema)), columns)


def _positions(incoming: pa.Schema, table: str) -> dict[str, int]:
    names: dict[str, int] = {}
    for position, name in enumerate(incoming.names):
        if name.lower() in names:
            raise SchemaMismatchError(
                f"The data for table {table!r} has the column {name!r} twice",
                why="Names of columns are compared ignoring case",
                fix="Rename one of them, or leave it out",
            )
        names[name.lower()] = position
    return names


def _check_may_lack(field: StructField, table: str) -> None:
    if not field.nullable:
        raise SchemaMismatchError(
            f"The data has no column {field.name!r}, which table {table!r} has as NOT NULL",
            fix="Add the column to the data",
        )


def _same(array: Any) -> Any:
    return array


def converter(source: pa.DataType, target: DataType, column: str) -> Convert:
    """Return the converter from one type to the type of a table; raises if there is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(source):
        inner = converter(source.value_type, target, column)
        return lambda array: inner(array.dictionary_decode())
    if isinstance(source, pa.BaseExtensionType):
        inner = converter(source.storage_type, target, column)
        return lambda array: inner(array.storage)
    wanted = type_to_arrow(target)
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), _loose_type(wanted, ids=False))
    if source == wanted and not _is_nested(source):
        return _same
    if target in (VARIANT, VOID):
        raise _refused(column, source, target)
    if isinstance(target, StructType):
        return _struct(source, target, column)
    if isinstance(target, ArrayType):
        return _list(source, target, column)
    if isinstance(target, MapType):
        return _map(source, target, column)
    if not _may_cast(source, wanted):
        raise _refused(column, source, target)
    return lambda array: array.cast(wanted, safe=True)


def _struct(source: pa.DataType, target: StructType, column: str) -> Convert:
    import pyarrow as pa

    if not pa.types.is_struct(source):
        raise _refused(column, source, target)
    names = {field.name.lower(): i for i, field in enumerate(source.fields)}
    parts: list[tuple[int | None, Convert]] = []
    for field in target.fields:
        position = names.pop(field.name.lower(), None)
        inner = f"{column}.{field.name}"
        if position is None:
            _check_may_lack(StructField(inner, field.type, field.nullable), "")
            parts.append((None, _same))
        else:
            parts.append((position, converter(source.field(position).type, field.type, inner)))
    if names:
        extra = ", ".join(f"{column}.{source.field(i).name}" for i in names.values())
        raise SchemaMismatchError(
            f"The data has a field that the table does not have: {extra}",
            fix="Leave it out, or pass merge_schema=True to add it to the table",
        )
    # Loose at every depth: that is how the fields inside come back.
    wanted = _loose_type(type_to_arrow(target), ids=False)
    fields = [wanted.field(i) for i in range(wanted.num_fields)]

    def convert(array: Any) -> Any:
        array = whole(array)
        # `flatten` lets the nulls of the struct show in its fields.
        children = array.flatten()
        built = [
            pa.nulls(len(array), field.type) if position is None else inner(children[position])
            for field, (position, inner) in zip(fields, parts, strict=True)
        ]
        return pa.StructArray.from_arrays(built, fields=fields, mask=array.is_null())

    return convert


def _list(source: pa.DataType, target: ArrayType, column: str) -> Convert:
    import pyarrow as pa

    types = pa.types
    if not (
        types.is_list(source) or types.is_large_list(source) or types.is_fixed_size_list(source)
    ):
        raise _refused(column, source, target)
    inner = converter(source.value_type, target.element_type, f"{column}.element")

    def convert(array: Any) -> Any:
        plain = whole(array.cast(pa.list_(source.value_type)))
        values = inner(plain.values)
        field = pa.field("element", values.type)
        offsets = plain.offsets
        return pa.ListArray.from_arrays(
            offsets,
            values,
            type=pa.list_(field),
            mask=plain.is_null() if plain.null_count else None,
        )

    return convert


def _map(source: pa.DataType, target: MapType, column: str) -> Convert:
    import pyarrow as pa

    if not pa.types.is_map(source):
        raise _refused(column, source, target)
    key = converter(source.key_type, target.key_type, f"{column}.key")
    item = converter(source.item_type, target.value_type, f"{column}.value")

    def convert(array: Any) -> Any:
        array = whole(array)
        keys, items = key(array.keys), item(array.items)
        map_type = pa.map_(
            pa.field("key", keys.type, nullable=False), pa.field("value", items.type)
        )
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=map_type, mask=mask)

    return convert


def whole(array: Any) -> Any:
    """The same values at the beginning of their buffers: pyarrow cannot rebuild a slice."""
    import pyarrow as pa

    return pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def _may_cast(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast that checks every value keeps their meaning."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(wanted):
        return bool(types.is_integer(source))
    if types.is_floating(wanted):
        if types.is_floating(source):
            return bool(source.bit_width <= wanted.bit_width)
        return bool(types.is_integer(source))
    if types.is_decimal(wanted):
        return bool(types.is_integer(source) or types.is_decimal(source))
    if types.is_string(wanted):
        return bool(types.is_string(source) or types.is_large_string(source) or _is_view(source))
    if types.is_binary(wanted):
        kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
        return any(is_kind(source) for is_kind in kinds) or _is_view(source)
    if types.is_date(wanted):
        return bool(types.is_date(source))
    if types.is_timestamp(wanted):
        # With a zone or without: a time of the one kind says nothing of the other.
        return types.is_timestamp(source) and (source.tz is None) == (wanted.tz is None)
    return False


def _is_view(kind: pa.DataType) -> bool:
    return str(kind) in ("string_view", "binary_view")


def nullable(schema: pa.Schema, *, ids: bool = False) -> pa.Schema:
    """The schema with nulls allowed everywhere, and of its metadata at most the `ids` of files.

    A field that must not be null is null in a struct that is, and Arrow would refuse it there.
    """
    import pyarrow as pa

    return pa.schema([_loose(field, ids) for field in schema])


def _loose(field: pa.Field, ids: bool) -> pa.Field:  # noqa: FBT001 - handed on as it came
    loose = field.with_type(_loose_type(field.type, ids)).with_nullable(nullable=True)
    return loose if ids else loose.remove_metadata()


def _loose_type(kind: pa.DataType, ids: bool) -> pa.DataType:  # noqa: FBT001
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([_loose(inner, ids) for inner in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _loose_type(kind.value_type, ids)))
    if pa.types.is_map(kind):
        key = pa.field("key", _loose_type(kind.key_type, ids), nullable=False)
        return pa.map_(key, pa.field("value", _loose_type(kind.item_type, ids)))
    return kind


def _refused(column: str, source: pa.DataType, target: DataType) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Column {column!r} has the type {source}, and the table has it as {target}",
        why="Values of the one cannot be stored as the other without changing them",
        fix="Convert the column before it is written",
    )


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


def with_file_type(column: Any, wanted: pa.DataType) -> Any:
    """Convert a column to the type of the file, whose nested fields can have other names."""
    import pyarrow as pa

    if column.type == wanted:
        return column
    chunks = [_retyped(chunk, wanted) for chunk in column.chunks]
    return pa.chunked_array(chunks, type=wanted)


def _retyped(array: Any, wanted: pa.DataType) -> Any:
    import pyarrow as pa

    kind = array.type
    if kind == wanted:
        return array
    array = whole(array)
    if pa.types.is_struct(kind):
        children = [
            _retyped(array.field(i), wanted.field(i).type) for i in range(wanted.num_fields)
        ]
        return pa.Array.from_buffers(
            wanted, len(array), array.buffers()[:1], array.null_count, 0, children
        )
    if pa.types.is_list(kind):
        children = [_retyped(array.values, wanted.value_type)]
    elif pa.types.is_map(kind):
        entries = [_retyped(array.keys, wanted.key_type), _retyped(array.items, wanted.item_type)]
        fields = [wanted.key_field, wanted.item_field]
        children = [pa.StructArray.from_arrays(entries, fields=fields)]
    else:
        return array.cast(wanted)
    return pa.Array.from_buffers(
        wanted, len(array), array.buffers()[:2], array.null_count, 0, children
    )
