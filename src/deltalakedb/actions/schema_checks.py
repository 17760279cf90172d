"""Checks of table schemas, and column mapping for new tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from deltalakedb.actions.datatypes import (
    COLUMN_ID,
    PHYSICAL_NAME,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    max_column_id,
)
from deltalakedb.errors import InvalidSchemaError

MAX_PRECISION: Final = 38
FORBIDDEN_CHARACTERS: Final = frozenset(" ,;{}()\n\t=")
"""Parquet readers of old stumble over these; column mapping frees a table from the rule."""


def check_schema(
    schema: StructType,
    *,
    column_mapping: bool = False,
    partition_columns: Sequence[str] = (),
) -> None:
    """Raise `InvalidSchemaError` unless a table may have this schema.

    Names must be non-empty, unique at each level ignoring case, and (without column mapping)
    free of `FORBIDDEN_CHARACTERS`; decimals within 38 digits; partition columns must exist, be
    of a primitive type, be listed once, and leave at least one data column.
    """
    _check_type(schema, "", column_mapping=column_mapping)
    _check_partitioning(schema, partition_columns)


def check_column_names(schema: StructType) -> None:
    """Raise `InvalidSchemaError` unless names are unique at each level, ignoring case.

    That is what a table of another writer has to have to be read; it may break the other rules.
    """
    _check_inner_names(schema, "")


def _check_inner_names(data_type: DataType, at: str) -> None:
    if isinstance(data_type, StructType):
        _check_unique(data_type, at)
    for step, inner in _inside(data_type):
        _check_inner_names(inner, f"{at}.{step}" if at else step)


def assign_column_mapping(
    schema: StructType, *, new_name: Callable[[StructField], str]
) -> tuple[StructType, int]:
    """Give every field without them a column mapping id and a physical name.

    Returns the schema and the value for `delta.columnMapping.maxColumnId`. `new_name` is asked
    for the physical name of each new field (random for a new column, its own name for a column
    that data files already have).
    """
    ids = _Counter(max_column_id(schema))
    mapped = _map_type(schema, ids, new_name)
    assert isinstance(mapped, StructType)  # noqa: S101 -- a struct maps to a struct
    return mapped, ids.last


class _Counter:
    __slots__ = ("last",)

    def __init__(self, last: int) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last


def _map_type(
    data_type: DataType, ids: _Counter, new_name: Callable[[StructField], str]
) -> DataType:
    if isinstance(data_type, ArrayType):
        return replace(data_type, element_type=_map_type(data_type.element_type, ids, new_name))
    if isinstance(data_type, MapType):
        return replace(
            data_type,
            key_type=_map_type(data_type.key_type, ids, new_name),
            value_type=_map_type(data_type.value_type, ids, new_name),
        )
    if not isinstance(data_type, StructType):
        return data_type
    fields = []
    for field in data_type.fields:
        metadata = dict(field.metadata)
        if COLUMN_ID not in metadata:
            metadata[COLUMN_ID] = ids.next()
        if PHYSICAL_NAME not in metadata:
            metadata[PHYSICAL_NAME] = new_name(field)
        inner = _map_type(field.type, ids, new_name)
        fields.append(replace(field, type=inner, metadata=metadata))
    return replace(data_type, fields=tuple(fields))


def _check_type(data_type: DataType, at: str, *, column_mapping: bool) -> None:
    if isinstance(data_type, DecimalType):
        _check_decimal(data_type, at)
    elif isinstance(data_type, StructType):
        _check_names(data_type, at, column_mapping=column_mapping)
    for step, inner in _inside(data_type):
        _check_type(inner, f"{at}.{step}" if at else step, column_mapping=column_mapping)


def _inside(data_type: DataType) -> Iterator[tuple[str, DataType]]:
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            yield field.name, field.type
    elif isinstance(data_type, ArrayType):
        yield "element", data_type.element_type
    elif isinstance(data_type, MapType):
        yield "key", data_type.key_type
        yield "value", data_type.value_type


def _check_decimal(data_type: DecimalType, at: str) -> None:
    if not 1 <= data_type.precision <= MAX_PRECISION:
        raise InvalidSchemaError(
            f"The column {at!r} has the type {data_type}",
            why=f"the precision of a decimal lies between 1 and {MAX_PRECISION}",
            fix="Choose a smaller precision, or store the value as a string",
        )
    if not 0 <= data_type.scale <= data_type.precision:
        raise InvalidSchemaError(
            f"The column {at!r} has the type {data_type}",
            why="the scale of a decimal lies between 0 and its precision",
            fix="Choose another scale",
        )


def _check_unique(struct: StructType, at: str) -> None:
    inside = f" inside {at!r}" if at else ""
    seen: dict[str, str] = {}
    for field in struct.fields:
        name = field.name
        other = seen.get(name.lower())
        if other is not None:
            raise InvalidSchemaError(
                f"The columns {other!r} and {name!r}{inside} have the same name",
                why="Delta compares column names ignoring case",
                fix="Rename one of them",
            )
        seen[name.lower()] = name


def _check_names(struct: StructType, at: str, *, column_mapping: bool) -> None:
    _check_unique(struct, at)
    inside = f" inside {at!r}" if at else ""
    for field in struct.fields:
        name = field.name
        if not name:
            raise InvalidSchemaError(
                f"A column{inside} has an empty name", fix="Give every column a name"
            )
        bad = sorted(FORBIDDEN_CHARACTERS.intersection(name))
        if bad and not column_mapping:
            raise InvalidSchemaError(
                f"The column name {name!r}{inside} cannot be stored",
                why=f"it contains {', '.join(map(repr, bad))}",
                fix="Rename the column, or set the table property "
                "delta.columnMapping.mode to 'name'",
            )


def _check_partitioning(schema: StructType, partition_columns: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in partition_columns:
        field = schema.field(name)
        if field.name in seen:
            raise InvalidSchemaError(
                f"The partition column {name!r} is listed twice", fix="List it once"
            )
        seen.add(field.name)
        nested = isinstance(field.type, (StructType, ArrayType, MapType))
        if nested or field.type in (VARIANT, VOID):
            raise InvalidSchemaError(
                f"The table cannot be partitioned by {name!r}",
                why=f"its type is {field.type}",
                fix="Partition by a column of a primitive type",
            )
    if seen and len(seen) == len(schema.fields):
        raise InvalidSchemaError(
            "The table cannot be partitioned by all of its columns",
            why="data files would have no column",
            fix="Leave at least one column out of the partitioning",
        )
