"""The JSON form of a table schema.

Guarantee: `schema_to_json(schema_from_json(text))` is equivalent to `text`: field metadata and
unknown keys of types and fields are kept. Three repairs are made: spaces inside `decimal(10, 2)`
go, `decimal` alone becomes `decimal(10,0)`, and a field without `metadata` or `nullable` is
written with the defaults `{}` and `true`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.datatypes import (
    PRIMITIVES,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from deltalakedb.errors import InvalidActionError, InvalidSchemaError

_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)", re.ASCII)


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
