"""The one action whose value differs in shape from its JSON: `metaData` with its `format`.

Guarantee: everything comes back as it was, with one repair: a `format` without `options` is
written with `"options":{}`, because readers fail without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.fields import (
    Field,
    Layout,
    WrongType,
    read_int64,
    read_map,
    read_names,
    read_string,
    split,
    write_extra,
    wrong_field,
)
from deltalakedb.actions.values import Metadata

_FormatParts = tuple[str, dict[str, str], dict[str, Any]]


def _read_format(value: Any) -> _FormatParts:
    if not isinstance(value, Mapping):
        raise WrongType("an object such as {'provider': 'parquet', 'options': {}}")
    if value.get("provider") is None:
        raise WrongType("a format with a provider, such as {'provider': 'parquet', 'options': {}}")
    options = value.get("options")
    rest = {key: item for key, item in value.items() if key not in ("provider", "options")}
    return (
        read_string(value["provider"]),
        {} if options is None else read_map(options),
        jsonvalue.freeze(rest, path="metaData.format"),
    )


LAYOUT: Final = Layout(
    "metaData",
    (
        Field("id", "id", read_string, required=True),
        Field("format", "format_provider", _read_format, required=True),
        # A log may lack the schema (some old ones do); the value says so with None.
        Field("schemaString", "schema_string", read_string),
        Field("partitionColumns", "partition_columns", read_names, required=True),
        Field("configuration", "configuration", read_map, required=True),
        Field("name", "name", read_string),
        Field("description", "description", read_string),
        Field("createdTime", "created_time", read_int64),
    ),
    order=(
        *("id", "name", "description", "format", "schemaString"),
        *("partitionColumns", "configuration", "createdTime"),
    ),
)


def read_metadata(given: Mapping[str, Any]) -> Metadata:
    """Build the value from the protocol's form."""
    built, extra = split(LAYOUT, given)
    provider, options, unknown = built[1]
    built[1:2] = [provider, options]
    built.append({**extra, "format": unknown} if unknown else extra)
    return Metadata(*built)


def write_metadata(value: Metadata) -> dict[str, Any]:
    """Give the protocol's form."""
    form: dict[str, Any] = {
        "provider": value.format_provider,
        "options": dict(sorted(value.format_options.items())),
    }
    unknown = value.extra.get("format")
    if isinstance(unknown, Mapping):
        write_extra(form, unknown)
    out: dict[str, Any] = {"id": value.id}
    if value.name is not None:
        out["name"] = value.name
    if value.description is not None:
        out["description"] = value.description
    out["format"] = form
    if value.schema_string is not None:
        out["schemaString"] = value.schema_string
    out["partitionColumns"] = list(value.partition_columns)
    out["configuration"] = dict(sorted(value.configuration.items()))
    if value.created_time is not None:
        out["createdTime"] = value.created_time
    write_extra(out, value.extra)
    return out


def check_metadata(value: Metadata) -> None:
    """Check a value that somebody built by hand."""
    if not isinstance(value.extra, Mapping):
        raise wrong_field("metaData", "extra", value.extra, "a mapping")
    for name, item in (
        ("format", value.format_options),
        ("configuration", value.configuration),
    ):
        if not isinstance(item, Mapping):
            raise wrong_field("metaData", name, item, "a mapping of strings")
    if not isinstance(value.partition_columns, (list, tuple)):
        raise wrong_field(
            "metaData", "partitionColumns", value.partition_columns, "a tuple of names"
        )
    for key, item in value.extra.items():
        if item is not None and key in LAYOUT.known and key != "format":
            raise wrong_field("metaData", key, item, "its own typed field of the value")
    try:
        read_metadata(write_metadata(value))
    except TypeError as error:
        raise wrong_field("metaData", "extra", value.extra, f"only string keys ({error})") from None
