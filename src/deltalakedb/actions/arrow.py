"""Converts Delta schemas to and from Arrow; pyarrow is imported by the functions.

Guarantees:

- `schema_from_arrow(schema_to_arrow(s))` is `s`, but for variant, whose Arrow form is its struct
  of two binaries, and for void that is not nullable, which Arrow does not have.
- Arrow types without an exact Delta counterpart are widened (unsigned integers, half floats) or
  refused with the column's name; nothing is narrowed silently. Timestamps of any unit become
  Delta's, which have microseconds.
- Field metadata is preserved: text as it is, other values as JSON under `METADATA_KEY`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    column_id,
    physical_name,
    schema_from_json,
)
from deltalakedb.actions.schema_checks import MAX_PRECISION
from deltalakedb.errors import InvalidActionError, InvalidArgumentError, InvalidSchemaError

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_KEY: Final = b"deltalakedb.metadata"
"""Arrow field metadata that holds, as a JSON object, the Delta metadata that is not text."""
_FIELD_ID: Final = b"PARQUET:field_id"
_OTHERS_KEYS: Final = (b"PARQUET:", b"ARROW:")
_VARIANT_EXTENSIONS: Final = ("arrow.parquet.variant", "parquet.variant")


def schema_from_any(x: Any) -> StructType:
    """Accept a schema as a user has it; comments that are no text are refused.

    A `StructType` of this package, a `pyarrow.Schema`, the JSON text of a Delta schema, or a
    Spark `StructType` (known by its `json()` method; pyspark is not imported), whose CHAR and
    VARCHAR become strings that remember their length.
    """
    schema = _understood(x)
    _check_comments(schema)
    return schema


def _understood(x: Any) -> StructType:
    if isinstance(x, StructType):
        return x
    if isinstance(x, str):
        return schema_from_json(x)
    if type(x).__module__.partition(".")[0] == "pyarrow":
        import pyarrow as pa

        if isinstance(x, pa.Schema):
            return schema_from_arrow(x)
    to_json = getattr(x, "json", None)
    if callable(to_json) and hasattr(x, "fields"):
        text = to_json()
        if isinstance(text, str):
            return schema_from_json(chars_as_strings(text, x.fields))
    raise InvalidArgumentError(
        "Cannot understand the schema",
        why=f"it is a {type(x).__module__}.{type(x).__qualname__}",
        fix="Pass a pyarrow.Schema, a Spark StructType or the JSON text of a Delta schema",
    )


def _check_comments(struct: StructType) -> None:
    """Delta on Spark fails to open a table with a comment that is no text."""
    for field in struct.fields:
        comment = field.metadata.get("comment")
        if comment is not None and not isinstance(comment, str):
            raise InvalidSchemaError(
                f"The comment of column {field.name!r} is {comment!r}", fix="Write it as text"
            )
        if isinstance(field.type, StructType):
            _check_comments(field.type)


def schema_to_arrow(schema: StructType, *, physical: bool = False) -> pa.Schema:
    """Give the Arrow schema.

    With `physical` it is the schema of data files: physical names, and the column mapping id as
    Parquet field id, instead of logical names and Delta metadata.
    """
    import pyarrow as pa

    return pa.schema([_to_field(f, physical=physical) for f in schema.fields])


def type_to_arrow(data_type: DataType, *, physical: bool = False) -> pa.DataType:
    """Give the Arrow type of one column."""
    import pyarrow as pa

    if isinstance(data_type, PrimitiveType):
        return _primitives()[data_type]
    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, ArrayType):
        element = type_to_arrow(data_type.element_type, physical=physical)
        nullable = data_type.contains_null or data_type.element_type == VOID
        return pa.list_(pa.field("element", element, nullable=nullable))
    if isinstance(data_type, MapType):
        if data_type.key_type == VOID:
            raise InvalidSchemaError(
                "A map with keys of type void has no Arrow form",
                why="a key is never null, and void has no other value",
                fix="Give the keys of the map a type",
            )
        return pa.map_(
            pa.field("key", type_to_arrow(data_type.key_type, physical=physical), nullable=False),
            pa.field(
                "value",
                type_to_arrow(data_type.value_type, physical=physical),
                nullable=data_type.value_contains_null or data_type.value_type == VOID,
            ),
        )
    return pa.struct([_to_field(f, physical=physical) for f in data_type.fields])


def schema_from_arrow(schema: pa.Schema) -> StructType:
    """Give the Delta schema; raises `InvalidSchemaError` naming a column that has none."""
    return StructType(tuple(_from_field(field, field.name) for field in schema))


def type_from_arrow(arrow_type: pa.DataType, *, column: str = "value") -> DataType:
    """Give the Delta type of an Arrow type; `column` is named in an error."""
    import pyarrow as pa

    types = pa.types
    if isinstance(arrow_type, pa.BaseExtensionType):
        if arrow_type.extension_name in _VARIANT_EXTENSIONS:
            return VARIANT
        return type_from_arrow(arrow_type.storage_type, column=column)
    if types.is_dictionary(arrow_type) or types.is_run_end_encoded(arrow_type):
        return type_from_arrow(arrow_type.value_type, column=column)
    if types.is_nested(arrow_type):
        return _from_nested(arrow_type, column)
    if types.is_decimal(arrow_type):
        return _from_decimal(arrow_type, column)
    if types.is_timestamp(arrow_type):
        return TIMESTAMP_NTZ if arrow_type.tz is None else TIMESTAMP
    for matches, data_type in _matchers():
        if matches(arrow_type):
            return data_type
    raise _refused(column, arrow_type)


def _from_nested(arrow_type: Any, column: str) -> DataType:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(arrow_type):
        return StructType(tuple(_from_field(f, f"{column}.{f.name}") for f in arrow_type))
    if types.is_map(arrow_type):
        return MapType(
            type_from_arrow(arrow_type.key_type, column=f"{column}.key"),
            type_from_arrow(arrow_type.item_type, column=f"{column}.value"),
            arrow_type.item_field.nullable,
        )
    if types.is_union(arrow_type):
        raise _refused(column, arrow_type)
    # All other types are lists: plain, large, of fixed size, and views.
    return ArrayType(
        type_from_arrow(arrow_type.value_type, column=f"{column}.element"),
        arrow_type.value_field.nullable,
    )


def _from_decimal(arrow_type: Any, column: str) -> DecimalType:
    precision, scale = arrow_type.precision, arrow_type.scale
    if precision > MAX_PRECISION or not 0 <= scale <= precision:
        raise InvalidSchemaError(
            f"The column {column!r} cannot be stored in a Delta table",
            why=f"its type is {arrow_type}, and Delta's decimals have up to {MAX_PRECISION} "
            "digits and a scale between 0 and the precision",
            fix="Cast it to a decimal within these bounds",
        )
    return DecimalType(precision, scale)


def _from_field(field: Any, column: str) -> StructField:
    return StructField(
        field.name,
        type_from_arrow(field.type, column=column),
        field.nullable,
        _metadata_from(field.metadata, column),
    )


def _metadata_from(metadata: Mapping[bytes, bytes] | None, column: str) -> dict[str, Any]:
    decoded: dict[str, Any] = {}
    for key, value in (metadata or {}).items():
        if key.startswith(_OTHERS_KEYS):
            continue
        try:
            if key == METADATA_KEY:
                decoded.update(jsonvalue.loads(value))
            else:
                decoded[key.decode("utf-8")] = value.decode("utf-8")
        except (UnicodeDecodeError, InvalidActionError, TypeError, ValueError) as error:
            raise InvalidSchemaError(
                f"The metadata of the column {column!r} cannot be stored",
                why=f"the value of {key!r} is not valid UTF-8 or JSON",
                fix="Remove the entry from the Arrow field, or write it as UTF-8 text",
            ) from error
    return decoded


def _to_field(field: StructField, *, physical: bool) -> Any:
    import pyarrow as pa

    arrow_type = type_to_arrow(field.type, physical=physical)
    metadata: dict[bytes, bytes] = {}
    if physical:
        identity = column_id(field)
        if identity is not None:
            metadata[_FIELD_ID] = str(identity).encode()
        name = physical_name(field)
    else:
        name = field.name
        others: dict[str, Any] = {}
        for key, value in field.metadata.items():
            encoded = key.encode()
            if isinstance(value, str) and not encoded.startswith((*_OTHERS_KEYS, METADATA_KEY)):
                metadata[encoded] = value.encode()
            else:
                others[key] = value
        if others:
            metadata[METADATA_KEY] = jsonvalue.dumps(others).encode()
    # Arrow insists that a column without values is nullable; no row could break the promise.
    nullable = field.nullable or field.type == VOID
    return pa.field(name, arrow_type, nullable, metadata or None)


@cache
def _primitives() -> Mapping[PrimitiveType, Any]:
    import pyarrow as pa

    return {
        STRING: pa.string(),
        LONG: pa.int64(),
        INTEGER: pa.int32(),
        SHORT: pa.int16(),
        BYTE: pa.int8(),
        FLOAT: pa.float32(),
        DOUBLE: pa.float64(),
        BOOLEAN: pa.bool_(),
        BINARY: pa.binary(),
        DATE: pa.date32(),
        TIMESTAMP: pa.timestamp("us", tz="UTC"),
        TIMESTAMP_NTZ: pa.timestamp("us"),
        VARIANT: pa.struct(
            [
                pa.field("metadata", pa.binary(), nullable=False),
                pa.field("value", pa.binary(), nullable=False),
            ]
        ),
        VOID: pa.null(),
    }


@cache
def _matchers() -> tuple[tuple[Callable[[Any], bool], PrimitiveType], ...]:
    import pyarrow as pa

    types = pa.types
    return (
        (types.is_int64, LONG),
        (types.is_int32, INTEGER),
        (types.is_int16, SHORT),
        (types.is_int8, BYTE),
        (types.is_uint8, SHORT),
        (types.is_uint16, INTEGER),
        (types.is_uint32, LONG),
        (types.is_float64, DOUBLE),
        (types.is_float32, FLOAT),
        (types.is_float16, FLOAT),
        (types.is_boolean, BOOLEAN),
        (types.is_string, STRING),
        (types.is_large_string, STRING),
        (types.is_string_view, STRING),
        (types.is_binary, BINARY),
        (types.is_large_binary, BINARY),
        (types.is_binary_view, BINARY),
        (types.is_fixed_size_binary, BINARY),
        (types.is_date, DATE),
        (types.is_null, VOID),
    )


_ADVICE: Final = {
    "uint64": "Cast it to int64, or to decimal128(20, 0) if the values need all 64 bits",
    "time": "Store it as a string, or as an integer of microseconds",
    "duration": "Store it as an integer of microseconds",
    "month_day_nano_interval": "Store its parts as integers",
    "dense_union": "Store one column for each member",
    "sparse_union": "Store one column for each member",
}


def _refused(column: str, arrow_type: Any) -> InvalidSchemaError:
    name = str(arrow_type)
    advice = next((text for start, text in _ADVICE.items() if name.startswith(start)), None)
    return InvalidSchemaError(
        f"The column {column!r} cannot be stored in a Delta table",
        why=f"its type is {name}, which Delta does not have",
        fix=advice or "Cast it to a type that Delta has",
    )


# --- CHAR and VARCHAR of a Spark schema -----------------------------------------------

DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""The key of the declared type in the metadata of a column."""
_INNER: Final = ("elementType", "keyType", "valueType")
_LIMITED: Final = re.compile(r"(var)?char\(\d+\)")


def chars_as_strings(text: str, spark_fields: Iterable[Any]) -> str:
    """Replace CHAR and VARCHAR in the JSON of a Spark schema by strings.

    Delta has no such types: the declared type goes to the metadata of the column, as in Spark.
    """
    if not _LIMITED.search(text):
        return text
    schema = json.loads(text)
    for field, spark_field in zip(schema["fields"], spark_fields, strict=True):
        kind = _as_string(field["type"])
        if kind != field["type"]:
            field["metadata"] = {**field["metadata"], DECLARED: spark_field.dataType.simpleString()}
            field["type"] = kind
    return json.dumps(schema)


def _as_string(kind: Any) -> Any:
    if isinstance(kind, str):
        return "string" if _LIMITED.fullmatch(kind) else kind
    if isinstance(kind.get("fields"), list):
        fields = [{**field, "type": _as_string(field["type"])} for field in kind["fields"]]
        return {**kind, "fields": fields}
    inner = {name: _as_string(kind[name]) for name in _INNER if name in kind}
    return {**kind, **inner}
