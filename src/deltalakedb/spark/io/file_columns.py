"""The columns of a table as its data files have them, for Spark's reader."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType as SparkStruct

from deltalakedb.actions.datatypes import (
    ArrayType,
    MapType,
    StructField,
    StructType,
    column_id,
    physical_name,
    schema_to_json,
)
from deltalakedb.actions.properties import TableProperties

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot


def mapping_mode(snapshot: Snapshot) -> str:
    """How columns are mapped to those of the files: none, name or id."""
    return TableProperties(snapshot.properties).column_mapping_mode


def name_in_files(snapshot: Snapshot, column: StructField) -> str:
    """The name of a column in the files."""
    return column.name if mapping_mode(snapshot) == "none" else physical_name(column)


def file_schema(snapshot: Snapshot) -> StructType:
    """The schema of a table with the names that columns and their fields have in the files."""
    schema = snapshot.schema
    return schema if mapping_mode(snapshot) == "none" else _with_physical_names(schema)


def _with_physical_names(struct: StructType) -> StructType:
    fields = []
    for field in struct.fields:
        kind = (
            _with_physical_names(field.type) if isinstance(field.type, StructType) else field.type
        )
        fields.append(replace(field, name=physical_name(field), type=kind))
    return StructType(tuple(fields))


def to_spark(fields: Iterable[StructField]) -> SparkStruct:
    """The fields as a schema of Spark."""
    return SparkStruct.fromJson(json.loads(schema_to_json(StructType(tuple(fields)))))


def field_in_files(field: StructField, *, ids: bool) -> StructField:
    """A field as data files have it; all are nullable, as a file may lack a column."""
    metadata = {}
    identity = column_id(field)
    if ids and identity is not None:
        metadata = {"parquet.field.id": identity}
    return StructField(physical_name(field), _type_in_files(field.type, ids=ids), metadata=metadata)


def _type_in_files(kind: Any, *, ids: bool) -> Any:
    if isinstance(kind, StructType):
        return StructType(tuple(field_in_files(inner, ids=ids) for inner in kind.fields))
    if isinstance(kind, ArrayType):
        return ArrayType(_type_in_files(kind.element_type, ids=ids))
    if isinstance(kind, MapType):
        return MapType(
            _type_in_files(kind.key_type, ids=ids), _type_in_files(kind.value_type, ids=ids)
        )
    return kind
