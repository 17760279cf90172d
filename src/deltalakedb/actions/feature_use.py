"""Which table features the metadata of a table makes use of, and through what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from deltalakedb.actions.properties import CONSTRAINT_PREFIX, FEATURE_PREFIX, TableProperties
from deltalakedb.actions.schema import (
    TIMESTAMP_NTZ,
    VARIANT,
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from deltalakedb.actions.values import Metadata
from deltalakedb.errors import ConfigurationError

Use: TypeAlias = str
"""The words for what uses a feature, such as "the property delta.appendOnly"."""

_BY_PROPERTY: Final = {
    "delta.appendOnly": "appendOnly",
    "delta.enableChangeDataFeed": "changeDataFeed",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableIcebergCompatV1": "icebergCompatV1",
    "delta.enableIcebergCompatV2": "icebergCompatV2",
    "delta.enableIcebergCompatV3": "icebergCompatV3",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
    "delta.enableVariantShredding": "variantShredding",
}
_BY_FIELD_METADATA: Final = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.identity.step": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
    "__COLLATIONS": "collations",
}
_BY_TYPE: Final = {TIMESTAMP_NTZ: "timestampNtz", VARIANT: "variantType"}


def features_in_use(metadata: Metadata) -> dict[str, Use]:
    """Map each feature that properties or schema make use of to the words for what uses it.

    `delta.feature.<name>` entries count as use, with the name as it was written. A property that
    cannot be read raises `ConfigurationError`.
    """
    uses: dict[str, Use] = {}
    for feature, use in (*_property_uses(metadata), *_schema_uses(metadata.schema)):
        uses.setdefault(feature, use)
    return uses


def _property_uses(metadata: Metadata) -> Iterator[tuple[str, Use]]:
    properties = TableProperties(metadata.configuration)
    for name, feature in _BY_PROPERTY.items():
        if properties.value(name) is True:
            yield feature, f"the property {name}"
    if properties.column_mapping_mode != "none":
        yield "columnMapping", "the property delta.columnMapping.mode"
    if properties.checkpoint_policy == "v2":
        yield "v2Checkpoint", "the property delta.checkpointPolicy"
    if properties.checkpoint_protection_before_version > 0:
        name = "delta.requireCheckpointProtectionBeforeVersion"
        yield "checkpointProtection", f"the property {name}"
    for name, text in metadata.configuration.items():
        if name.startswith(CONSTRAINT_PREFIX):
            yield "checkConstraints", f"the property {name}"
        elif name.startswith(FEATURE_PREFIX):
            if text not in ("supported", "enabled"):
                raise ConfigurationError(
                    f"The table property {name!r} has the value {text!r}",
                    why="a feature can only be asked for",
                    fix="Set it to 'supported'",
                )
            yield name.removeprefix(FEATURE_PREFIX), f"the property {name}"


def _schema_uses(schema: StructType) -> Iterator[tuple[str, Use]]:
    for field in schema.all_fields():
        for key, feature in _BY_FIELD_METADATA.items():
            if key in field.metadata:
                yield feature, f"the column {field.name!r} ({key})"
        for data_type in _types_of(field):
            # Nested types hold mappings and cannot be looked up; none of them is a feature.
            if isinstance(data_type, PrimitiveType) and data_type in _BY_TYPE:
                yield _BY_TYPE[data_type], f"the column {field.name!r} ({data_type})"


def _types_of(field: StructField) -> Iterator[DataType]:
    """The types a field is made of, without the fields of a struct: they come by themselves."""
    todo: list[DataType] = [field.type]
    while todo:
        data_type = todo.pop()
        yield data_type
        if isinstance(data_type, ArrayType):
            todo.append(data_type.element_type)
        elif isinstance(data_type, MapType):
            todo += [data_type.key_type, data_type.value_type]
