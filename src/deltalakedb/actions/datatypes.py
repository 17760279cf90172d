"""The types of Delta columns as frozen values, and the JSON form of a schema.

Names are looked up ignoring case, as Delta does; their case is preserved. Each nested type and
each field has the unknown JSON keys in `extra`.

`schema_to_json(schema_from_json(text))` is equivalent to `text`: field metadata and unknown keys
are preserved, with three repairs: `decimal(10, 2)` loses its space, `decimal` becomes
`decimal(10,0)`, and a field without `metadata` or `nullable` has the defaults `{}` and `true`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from deltalakedb.actions import jsonvalue
from deltalakedb.errors import InvalidActionError, InvalidSchemaError

PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
COLUMN_ID: Final = "delta.columnMapping.id"

ColumnPath: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type without parameters."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalType:
    """An exact number of `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list of elements of one type."""

    element_type: DataType
    contains_null: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"array<{self.element_type}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map from keys of one type to values of one type."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"map<{self.key_type},{self.value_type}>"


@dataclass(frozen=True, slots=True)
class StructField:
    """A named column or nested field; `metadata` holds what Delta attaches to it."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StructType:
    """An ordered list of fields; the schema of a table is one of these."""

    fields: tuple[StructField, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"struct<{','.join(f'{f.name}:{f.type}' for f in self.fields)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> StructField:
        """Find a field ignoring case; raises `InvalidSchemaError` listing what there is."""
        match = self.get(name)
        if match is None:
            raise InvalidSchemaError(
                f"There is no column {name!r}",
                why=f"the columns are: {', '.join(self.names) or '(none)'}",
                fix="Use one of these names",
            )
        return match

    def get(self, name: str) -> StructField | None:
        """Find a field ignoring case; an exact match goes first."""
        wanted = name.lower()
        match = None
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
            if match is None and candidate.name.lower() == wanted:
                match = candidate
        return match

    def leaf_columns(self, *, physical: bool = False) -> list[tuple[ColumnPath, DataType]]:
        """List paths and types in schema order, going into structs only.

        Arrays and maps are leaves: statistics and predicates do not reach inside them. With
        `physical` the paths use physical names.
        """
        return [
            (tuple(physical_name(f) if physical else f.name for f in fields), fields[-1].type)
            for fields in _leaves(self, ())
        ]

    def all_fields(self) -> Iterator[StructField]:
        """Every field at any depth, inside arrays and maps too; a parent before its children."""
        yield from _fields_below(self)


DataType: TypeAlias = PrimitiveType | DecimalType | ArrayType | MapType | StructType

STRING: Final = PrimitiveType("string")
LONG: Final = PrimitiveType("long")
INTEGER: Final = PrimitiveType("integer")
SHORT: Final = PrimitiveType("short")
BYTE: Final = PrimitiveType("byte")
FLOAT: Final = PrimitiveType("float")
DOUBLE: Final = PrimitiveType("double")
BOOLEAN: Final = PrimitiveType("boolean")
BINARY: Final = PrimitiveType("binary")
DATE: Final = PrimitiveType("date")
TIMESTAMP: Final = PrimitiveType("timestamp")
TIMESTAMP_NTZ: Final = PrimitiveType("timestamp_ntz")
VARIANT: Final = PrimitiveType("variant")
VOID: Final = PrimitiveType("void")

PRIMITIVES: Final[Mapping[str, PrimitiveType]] = {
    primitive.name: primitive
    for primitive in (
        *(STRING, LONG, INTEGER, SHORT, BYTE, FLOAT, DOUBLE, BOOLEAN, BINARY),
        *(DATE, TIMESTAMP, TIMESTAMP_NTZ, VARIANT, VOID),
    )
}


def physical_name(struct_field: StructField) -> str:
    """The name in data files, partition values and statistics."""
    name = struct_field.metadata.get(PHYSICAL_NAME)
    return name if isinstance(name, str) else struct_field.name


def was_float(struct_field: StructField) -> bool:
    """Whether the column was of type float, whose bounds are written as shorter text than double's.

    What the text says as a double is not what the files have.
    """
    changes = struct_field.metadata.get("delta.typeChanges")
    return isinstance(changes, list) and any(
        isinstance(change, dict) and change.get("fromType") == "float" for change in changes
    )


def without_physical_names(struct: StructType) -> StructType:
    """The schema as a table without column mapping has it: there, such names mean nothing."""
    fields = []
    for field_ in struct.fields:
        metadata = {k: v for k, v in field_.metadata.items() if k != PHYSICAL_NAME}
        inner = field_.type
        if isinstance(inner, StructType):
            inner = without_physical_names(inner)
        fields.append(replace(field_, metadata=metadata, type=inner))
    return replace(struct, fields=tuple(fields))


def with_nulls(struct: StructType) -> StructType:
    """The same columns with nulls allowed everywhere, in elements, values and fields too.

    Reads use it, because files of other writers may break NOT NULL. So does a table that takes its
    columns from rows: later rows may have nulls.
    """
    fields = (replace(f, type=type_with_nulls(f.type), nullable=True) for f in struct.fields)
    return replace(struct, fields=tuple(fields))


def type_with_nulls(kind: DataType) -> DataType:
    """The same type with nulls allowed everywhere below."""
    if isinstance(kind, StructType):
        return with_nulls(kind)
    if isinstance(kind, ArrayType):
        return replace(kind, element_type=type_with_nulls(kind.element_type), contains_null=True)
    if isinstance(kind, MapType):
        return replace(
            kind,
            key_type=type_with_nulls(kind.key_type),
            value_type=type_with_nulls(kind.value_type),
            value_contains_null=True,
        )
    return kind


def column_id(struct_field: StructField) -> int | None:
    """The column mapping id of a field, where it has one."""
    value = struct_field.metadata.get(COLUMN_ID)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def max_column_id(schema: StructType) -> int:
    """The highest column mapping id anywhere in the schema; 0 where there is none."""
    return max((column_id(f) or 0 for f in schema.all_fields()), default=0)


def _leaves(
    struct: StructType, above: tuple[StructField, ...]
) -> Iterator[tuple[StructField, ...]]:
    for struct_field in struct.fields:
        path = (*above, struct_field)
        if isinstance(struct_field.type, StructType):
            yield from _leaves(struct_field.type, path)
        else:
            yield path


def _fields_below(data_type: DataType) -> Iterator[StructField]:
    if isinstance(data_type, StructType):
        for struct_field in data_type.fields:
            yield struct_field
            yield from _fields_below(struct_field.type)
    elif isinstance(data_type, ArrayType):
        yield from _fields_below(data_type.element_type)
    elif isinstance(data_type, MapType):
        yield from _fields_below(data_type.key_type)
        yield from _fields_below(data_type.value_type)


# --- JSON form ------------------------------------------------------------------------

_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)", re.ASCII)

_GEOSPATIAL: Final = re.compile(r"(geometry|geography)\([^()]{1,200}\)")


def is_geospatial(data_type: DataType) -> bool:
    """Whether a type is a geometry or geography, with its reference system as the parameter."""
    return isinstance(data_type, PrimitiveType) and "(" in data_type.name


def schema_from_json(text: str) -> StructType:
    """Parse the `schemaString` of a table."""
    try:
        document = jsonvalue.loads(text)
    except InvalidActionError as error:
        raise InvalidSchemaError(
            "The schema is not JSON",
            why=error.why or error.what,
            fix="Pass the schema as Delta writes it: a JSON object of type struct",
        ) from error
    parsed = _type_from(document, "schema")
    if not isinstance(parsed, StructType):
        raise InvalidSchemaError(
            "The schema is not a struct",
            why=f"it is {parsed}",
            fix='Wrap the columns: {"type":"struct","fields":[…]}',
        )
    return parsed


def schema_to_json(struct: StructType) -> str:
    """Write the schema as compact Delta JSON."""
    return jsonvalue.dumps_ordered(type_to_json_value(struct))


def type_to_json_value(data_type: DataType) -> Any:
    """Give the JSON value of a type: a name, or an object for nested types."""
    if isinstance(data_type, (PrimitiveType, DecimalType)):
        return str(data_type)
    out: dict[str, Any]
    if isinstance(data_type, ArrayType):
        out = {
            "type": "array",
            "elementType": type_to_json_value(data_type.element_type),
            "containsNull": data_type.contains_null,
        }
    elif isinstance(data_type, MapType):
        out = {
            "type": "map",
            "keyType": type_to_json_value(data_type.key_type),
            "valueType": type_to_json_value(data_type.value_type),
            "valueContainsNull": data_type.value_contains_null,
        }
    else:
        out = {"type": "struct", "fields": [_field_to(f) for f in data_type.fields]}
    return _with_extra(out, data_type.extra)


def _field_to(struct_field: StructField) -> dict[str, Any]:
    out = {
        "name": struct_field.name,
        "type": type_to_json_value(struct_field.type),
        "nullable": struct_field.nullable,
        "metadata": jsonvalue.canonical(struct_field.metadata),
    }
    return _with_extra(out, struct_field.extra)


def _with_extra(out: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    for key in sorted(extra):
        if key not in out:
            out[key] = jsonvalue.canonical(extra[key])
    return out


def _type_from(value: Any, at: str) -> DataType:
    if isinstance(value, str):
        return _named_type(value, at)
    if not isinstance(value, Mapping):
        raise _bad(at, f"the type is {value!r}", "Write a type name or an object with a type")
    kind = value.get("type")
    if kind == "struct":
        items = value.get("fields")
        if not isinstance(items, list):
            raise _bad(at, "a struct needs a list of fields", "Add 'fields'")
        return StructType(
            tuple(_field_from(item, at) for item in items), _rest(value, ("type", "fields"))
        )
    if kind == "array":
        return ArrayType(
            _type_from(_needed(value, "elementType", at), f"{at}.element"),
            _flag(value, "containsNull", at),
            _rest(value, ("type", "elementType", "containsNull")),
        )
    if kind == "map":
        return MapType(
            _type_from(_needed(value, "keyType", at), f"{at}.key"),
            _type_from(_needed(value, "valueType", at), f"{at}.value"),
            _flag(value, "valueContainsNull", at),
            _rest(value, ("type", "keyType", "valueType", "valueContainsNull")),
        )
    raise _bad(at, f"{kind!r} is not a type of Delta", "Use struct, array, map or a type name")


def _named_type(name: str, at: str) -> DataType:
    primitive = PRIMITIVES.get(name)
    if primitive is not None:
        return primitive
    match = _DECIMAL.fullmatch(name)
    if match is not None:
        return DecimalType(int(match[1]), int(match[2]))
    if name == "decimal":
        return DecimalType(10, 0)
    if _GEOSPATIAL.fullmatch(name) is not None:
        return PrimitiveType(name)
    raise _bad(
        at,
        f"{name!r} is not a type of Delta",
        f"Use one of: {', '.join(PRIMITIVES)}, decimal(p,s), struct, array, map",
    )


def _field_from(value: Any, at: str) -> StructField:
    if not isinstance(value, Mapping):
        raise _bad(at, f"a field is {value!r}", "Write an object with name and type")
    name = value.get("name")
    if not isinstance(name, str):
        raise _bad(at, f"a field has the name {name!r}", "Give each field a name")
    here = name if at == "schema" else f"{at}.{name}"
    metadata = value.get("metadata", {})
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, Mapping):
        raise _bad(here, f"its metadata is {metadata!r}", "Write an object")
    return StructField(
        name,
        _type_from(_needed(value, "type", here), here),
        _flag(value, "nullable", here),
        dict(metadata),
        _rest(value, ("name", "type", "nullable", "metadata")),
    )


def _needed(value: Mapping[str, Any], key: str, at: str) -> Any:
    if value.get(key) is None:
        raise _bad(at, f"{key!r} is missing", f"Add {key!r}")
    return value[key]


def _flag(value: Mapping[str, Any], key: str, at: str) -> bool:
    flag = value.get(key, True)
    if not isinstance(flag, bool):
        raise _bad(at, f"{key!r} is {flag!r}", "Write true or false")
    return flag


def _rest(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in names}


def _bad(at: str, why: str, fix: str) -> InvalidSchemaError:
    what = "The schema is not valid" if at == "schema" else f"The column {at!r} is not valid"
    return InvalidSchemaError(what, why=why, fix=fix)
