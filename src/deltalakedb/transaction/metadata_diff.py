"""What changed between two versions of a table's metadata, and whether a writer must care."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from deltalakedb.actions.datatypes import (
    COLUMN_ID,
    PHYSICAL_NAME,
    ArrayType,
    DataType,
    MapType,
    StructType,
)
from deltalakedb.actions.values import Metadata

ROW_TRACKING_DOMAIN: Final = "delta.rowTracking"
_WATERMARK: Final = "delta.identity.highWaterMark"
_MAPPING_MODE: Final = "delta.columnMapping.mode"

# Properties that a winner may set while we write, and the only value it may give them; None for
# any. Files written before the change are right after it.
_HARMLESS: Final[Mapping[str, str | None]] = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": None,
    "delta.rowTracking.materializedRowCommitVersionColumnName": None,
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": None,
    "delta.inCommitTimestampEnablementTimestamp": None,
    "delta.checkpointPolicy": "v2",
    _MAPPING_MODE: "name",
    "delta.columnMapping.maxColumnId": None,
}
_OFF: Final = (None, "", "0", "false", "none", "classic")


def is_harmless_change(before: Metadata, after: Metadata) -> bool:
    """Whether files written for `before` are right under `after` too.

    True for a change of nothing but identity high-water marks, and for switching on row tracking,
    deletion vectors, in-commit timestamps, V2 checkpoints or column mapping by name.
    """
    same = replace(after, schema_string=before.schema_string, configuration=before.configuration)
    if same != before:
        return False
    mapped = False
    for name, value in after.configuration.items():
        old = before.configuration.get(name)
        if value == old:
            continue
        if name not in _HARMLESS or not _switched_on(old, value, _HARMLESS[name]):
            return False
        mapped = mapped or name == _MAPPING_MODE
    if before.configuration.keys() - after.configuration.keys():
        return False
    if before.schema_string == after.schema_string:
        return True
    return _essence(before, mapped=mapped) == _essence(after, mapped=mapped)


def _switched_on(old: str | None, new: str, wanted: str | None) -> bool:
    was_off = (None if old is None else old.strip().lower()) in _OFF
    return was_off and (wanted is None or new.strip().lower() == wanted)


def changed_parts(before: Metadata, after: Metadata) -> list[str]:
    """The names of the parts that differ, for the message of a conflict."""
    parts = []
    if before.schema_string != after.schema_string:
        parts.append("the schema")
    if before.partition_columns != after.partition_columns:
        parts.append("the partition columns")
    names = before.configuration.keys() | after.configuration.keys()
    parts += [
        f"the property {name!r}"
        for name in sorted(names)
        if before.configuration.get(name) != after.configuration.get(name)
    ]
    if (before.name, before.description) != (after.name, after.description):
        parts.append("the name or description")
    return parts or ["the identity of the table"]


def _essence(metadata: Metadata, *, mapped: bool) -> DataType:
    """The schema without annotations that a harmless change may touch."""

    def without_harmless(name: str, annotations: Mapping[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in annotations.items() if key != _WATERMARK}
        # A column that existed keeps its own name in data files when mapping is switched on.
        if mapped and rest.get(PHYSICAL_NAME, name) == name:
            rest.pop(PHYSICAL_NAME, None)
            rest.pop(COLUMN_ID, None)
        return rest

    return _with_annotations(metadata.schema, without_harmless)


def _with_annotations(
    data_type: DataType, change: Callable[[str, Mapping[str, Any]], dict[str, Any]]
) -> DataType:
    if isinstance(data_type, StructType):
        return replace(
            data_type,
            fields=tuple(
                replace(
                    field,
                    type=_with_annotations(field.type, change),
                    metadata=change(field.name, field.metadata),
                )
                for field in data_type.fields
            ),
        )
    if isinstance(data_type, ArrayType):
        return replace(data_type, element_type=_with_annotations(data_type.element_type, change))
    if isinstance(data_type, MapType):
        return replace(
            data_type,
            key_type=_with_annotations(data_type.key_type, change),
            value_type=_with_annotations(data_type.value_type, change),
        )
    return data_type
