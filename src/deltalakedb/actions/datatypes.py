"""The types of Delta columns as frozen values.

Names are looked up ignoring case, as Delta does; their case is preserved. Each nested type and
each field has the unknown JSON keys in `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from deltalakedb.errors import InvalidSchemaError

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

    For what is read, whatever the schema promises: files of other writers may break the promise.
    And for tables that are made of rows: the rows at hand do not speak for those to come.
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
