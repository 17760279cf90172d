"""Fits incoming columns to the columns of a table.

Guarantees:

- Names are matched ignoring case, as Spark does; order does not matter. A column that is missing is
  null if the table allows that. An unknown column is refused.
- A value is never changed: a type is accepted if every value has the same meaning in the type of
  the table. Other values are refused with an error that names the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.arrow import schema_to_arrow, type_to_arrow
from deltalakedb.actions.datatypes import (
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from deltalakedb.errors import SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

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
