"""Converts the columns of one data file to the columns of the table.

Guarantees:

- Columns and nested fields are matched by the column mapping mode: by name, physical name or field
  id, at every depth. A missing column is null; columns that the schema does not have are ignored.
- Types become the table's: wider integers, floats and decimals, dates as timestamps, timestamps
  in microseconds and UTC. A value that does not fit and any other change of type (text for a
  number) raise an error that names the file and the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.actions.arrow import type_to_arrow
from deltalakedb.actions.datatypes import (
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    column_id,
    physical_name,
)
from deltalakedb.actions.values import CHANGE_TYPE
from deltalakedb.errors import DataFileError, UnsupportedFeatureError

Converter: TypeAlias = Callable[[Any], Any]
"""Converts an array of the file to the type of the table."""

_FIELD_ID: Final = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Matches the columns of a table to those of one file; `mode` is none, name or id."""

    file: str
    mode: str

    def find(self, wanted: StructField, fields: Iterable[Any]) -> int | None:
        """Return the position of the field in the file; None if it is missing."""
        if self.mode == "id" and wanted.name != CHANGE_TYPE:
            identity = column_id(wanted)
            if identity is None:
                raise self._wrong(wanted.name, "the table maps columns by id, and it has none")
            ids = [_field_id(f) for f in fields]
            return ids.index(identity) if identity in ids else None
        name = self.name_of(wanted)
        names = [f.name for f in fields]
        matches = [i for i, candidate in enumerate(names) if candidate == name]
        if not matches:
            # Delta's names ignore case, and so do the engines that wrote the file.
            lowered = name.lower()
            matches = [i for i, candidate in enumerate(names) if candidate.lower() == lowered]
        if len(matches) > 1:
            raise self._wrong(wanted.name, f"the file has {len(matches)} columns named {name!r}")
        return matches[0] if matches else None

    def name_of(self, field: StructField) -> str:
        """The name that files and the log use for a field."""
        return field.name if self.mode == "none" else physical_name(field)

    def check_ids(self, schema: pa.Schema) -> None:
        """In mode id, refuse a file without field ids: every column of it would read as null."""
        if self.mode == "id" and len(schema) and not any(_field_id(f) for f in schema):
            raise DataFileError(
                f"Cannot read {self.file}",
                why="the table maps columns by id, and the columns of this file have no ids",
                fix="Write the file again with Parquet field ids, or remove it from the table",
            )

    def converter(self, source: Any, target: DataType, column: str) -> Converter:
        """Return the converter from the type `source` of the file to the type `target`."""
        if isinstance(source, pa.BaseExtensionType):
            inner = self.converter(source.storage_type, target, column)
            return lambda array: inner(array.storage)
        wanted = type_to_arrow(target)
        if target == VOID or pa.types.is_null(source):
            return lambda array: pa.nulls(len(array), wanted)
        if target == VARIANT:
            return self._variant(source, wanted, column)
        if isinstance(target, StructType):
            return self._struct(source, target, wanted, column)
        if isinstance(target, ArrayType):
            return self._list(source, target, wanted, column)
        if isinstance(target, MapType):
            return self._map(source, target, wanted, column)
        return self._leaf(source, wanted, column)

    def _struct(self, source: Any, target: StructType, wanted: Any, column: str) -> Converter:
        if not pa.types.is_struct(source):
            raise self._wrong_type(column, source, wanted)
        children: list[tuple[int | None, Converter, Any]] = []
        for field, arrow_field in zip(target.fields, wanted, strict=True):
            position = self.find(field, source)
            convert: Converter = _unchanged
            if position is not None:
                convert = self.converter(
                    source.field(position).type, field.type, f"{column}.{field.name}"
                )
            children.append((position, convert, arrow_field.type))

        def convert_struct(array: Any) -> Any:
            parts = [
                pa.nulls(len(array), kind) if position is None else convert(array.field(position))
                for position, convert, kind in children
            ]
            return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=array.is_null())

        return convert_struct

    def _list(self, source: Any, target: ArrayType, wanted: Any, column: str) -> Converter:
        types = pa.types
        plain = types.is_list(source)
        if not (plain or types.is_large_list(source) or types.is_fixed_size_list(source)):
            raise self._wrong_type(column, source, wanted)
        convert = self.converter(source.value_type, target.element_type, f"{column}.element")

        def convert_list(array: Any) -> Any:
            if not plain:
                array = array.cast(pa.list_(source.value_field))
            offsets, first, count = _offsets(array)
            values = convert(array.values.slice(first, count))
            return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=array.is_null())

        return convert_list

    def _map(self, source: Any, target: MapType, wanted: Any, column: str) -> Converter:
        if not pa.types.is_map(source):
            raise self._wrong_type(column, source, wanted)
        convert_key = self.converter(source.key_type, target.key_type, f"{column}.key")
        convert_value = self.converter(source.item_type, target.value_type, f"{column}.value")

        def convert_map(array: Any) -> Any:
            offsets, first, count = _offsets(array)
            return pa.MapArray.from_arrays(
                offsets,
                convert_key(array.keys.slice(first, count)),
                convert_value(array.items.slice(first, count)),
                type=wanted,
                mask=array.is_null(),
            )

        return convert_map

    def _variant(self, source: Any, wanted: Any, column: str) -> Converter:
        names = [f.name for f in source] if pa.types.is_struct(source) else []
        if "typed_value" in names:
            raise UnsupportedFeatureError(
                f"Cannot read the column {column!r} of {self.file}",
                why="its variant values are shredded into typed columns",
                fix="Leave the column out, or read the table with an engine that knows shredding",
            )
        if not {"metadata", "value"} <= set(names):
            raise self._wrong_type(column, source, wanted)
        parts = [
            (names.index(f.name), self._leaf(source.field(f.name).type, f.type, column))
            for f in wanted
        ]
        return lambda array: pa.StructArray.from_arrays(
            [convert(array.field(position)) for position, convert in parts],
            fields=list(wanted),
            mask=array.is_null(),
        )

    def _leaf(self, source: Any, wanted: Any, column: str) -> Converter:
        if source == wanted:
            return _unchanged
        values = source.value_type if pa.types.is_dictionary(source) else source
        if not _is_change(values, wanted):
            raise self._wrong_type(column, source, wanted)
        finer = pa.types.is_timestamp(values) and values.unit == "ns"

        def convert_leaf(array: Any) -> Any:
            try:
                plain = array.cast(values)
                if finer:
                    # A cast would round towards 1970; microseconds are what lies before.
                    plain = pc.floor_temporal(plain, unit="microsecond")
                return plain.cast(wanted)
            except pa.ArrowException as error:
                raise self._wrong(column, f"a value does not fit {wanted}: {error}") from error

        return convert_leaf

    def _wrong_type(self, column: str, source: Any, wanted: Any) -> DataFileError:
        return self._wrong(column, f"the file has {source}, and the table has {wanted}")

    def _wrong(self, column: str, why: str) -> DataFileError:
        return DataFileError(
            f"Cannot read the column {column!r} of {self.file}",
            why=why,
            fix="Leave the column out, or write the file again in the types of the table",
        )


def _unchanged(array: Any) -> Any:
    return array


def _offsets(array: Any) -> tuple[Any, int, int]:
    """Where each list begins, counted from the first; the first value, and how many there are.

    The array may be a slice of a longer one, whose values it still carries.
    """
    offsets = array.offsets if len(array) else pa.array([0], pa.int32())
    first = offsets[0].as_py()
    return pc.subtract(offsets, first), first, offsets[-1].as_py() - first


def _field_id(field: Any) -> int | None:
    text = (field.metadata or {}).get(_FIELD_ID)
    return int(text) if text else None


def _is_change(source: Any, wanted: Any) -> bool:
    """Whether a file may have this type for that of the table; values are checked by the cast."""
    types = pa.types
    if types.is_integer(source):
        return bool(
            types.is_integer(wanted) or types.is_floating(wanted) or types.is_decimal(wanted)
        )
    if types.is_date(source):
        return bool(types.is_date(wanted) or types.is_timestamp(wanted))
    return any(
        kind(source) and kind(wanted)
        for kind in (types.is_floating, types.is_decimal, types.is_timestamp, _is_text, _is_boolean)
    )


def _is_text(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_boolean(kind: Any) -> bool:
    return bool(pa.types.is_boolean(kind))
