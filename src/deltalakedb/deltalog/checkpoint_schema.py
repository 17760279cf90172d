"""The Arrow schema of a checkpoint: one nullable struct for each kind of action.

Guarantees:

- Protocol versions, and offset and size of deletion vectors, are 32 bits wide, other numbers 64.
- Everything is nullable, whatever the schema of the table says of its columns.
- Typed statistics and partition values have the physical names of the columns. A struct without
  any field is left out: Parquet has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import Metadata
from deltalakedb.actions.arrow import type_to_arrow
from deltalakedb.actions.datatypes import (
    VOID,
    ColumnPath,
    DataType,
    DecimalType,
    PrimitiveType,
    StructType,
    physical_name,
)
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.statistics import covered_columns

if TYPE_CHECKING:
    import pyarrow as pa

_BOUNDED: Final = frozenset(
    {
        *("byte", "short", "integer", "long", "float", "double"),
        *("string", "date", "timestamp", "timestamp_ntz"),
    }
)
"""Types with bounds; the others only have null counts."""


@dataclass(frozen=True, slots=True)
class CheckpointForm:
    """The optional fields of `add` in the checkpoints of a table."""

    stats_json: bool = True
    stats_struct: StructType | None = None
    """The columns that typed statistics cover; None without typed statistics."""
    partitions: StructType | None = None
    """The partition columns as typed values; None without them."""


def form_of(metadata: Metadata) -> CheckpointForm:
    """The form that the properties of a table set."""
    properties = TableProperties(metadata.configuration)
    stats_json = properties.write_stats_as_json
    if not properties.write_stats_as_struct:
        return CheckpointForm(stats_json)
    schema = metadata.schema
    columns = covered_columns(
        schema,
        partition_columns=metadata.partition_columns,
        # Without JSON, statistics of other columns would be lost: then there is no limit.
        num_indexed=properties.num_indexed_cols if stats_json else -1,
        named=properties.stats_columns if stats_json else None,
    )
    partitions = StructType(tuple(schema.field(name) for name in metadata.partition_columns))
    return CheckpointForm(
        stats_json,
        _only(schema, set(columns), ()),
        partitions if partitions.fields else None,
    )


def _only(struct: StructType, columns: set[ColumnPath], above: ColumnPath) -> StructType:
    """The struct with these leaf columns only, and without empty structs."""
    fields = []
    for field in struct.fields:
        path = (*above, field.name)
        if not isinstance(field.type, StructType):
            if path in columns and field.type != VOID:
                fields.append(field)
            continue
        inner = _only(field.type, columns, path)
        if inner.fields:
            fields.append(type(field)(field.name, inner, metadata=field.metadata))
    return StructType(tuple(fields))


def has_bounds(data_type: DataType) -> bool:
    """Whether typed statistics have the lowest and highest value of a column of this type."""
    if isinstance(data_type, PrimitiveType):
        return data_type.name in _BOUNDED
    return isinstance(data_type, DecimalType)


# --- Arrow --------------------------------------------------------------------------------


def checkpoint_schema(form: CheckpointForm, *, v2: bool = False) -> pa.Schema:
    """The schema of a checkpoint file, or of the top file of a V2 checkpoint."""
    import pyarrow as pa

    control = _control_types()
    columns = {"txn": control["txn"], "add": add_type(form), "remove": remove_type()}
    names = ["metaData", "protocol", "domainMetadata"]
    names += ["checkpointMetadata", "sidecar"] if v2 else []
    return pa.schema({**columns, **{name: control[name] for name in names}})


def sidecar_schema(form: CheckpointForm) -> pa.Schema:
    """The schema of a sidecar: file actions only."""
    import pyarrow as pa

    return pa.schema({"add": add_type(form), "remove": remove_type()})


@cache
def map_type() -> pa.DataType:
    """A map of the protocol: strings to strings or nulls."""
    import pyarrow as pa

    return pa.map_(pa.string(), pa.string())


@cache
def vector_type() -> pa.DataType:
    """A deletion vector descriptor."""
    import pyarrow as pa

    return pa.struct(
        {
            "storageType": pa.string(),
            "pathOrInlineDv": pa.string(),
            "offset": pa.int32(),
            "sizeInBytes": pa.int32(),
            "cardinality": pa.int64(),
        }
    )


def add_type(form: CheckpointForm) -> pa.DataType:
    """An `add`."""
    import pyarrow as pa

    fields = {
        "path": pa.string(),
        "partitionValues": map_type(),
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "tags": map_type(),
        "deletionVector": vector_type(),
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
        "clusteringProvider": pa.string(),
    }
    if form.stats_json:
        fields["stats"] = pa.string()
    if form.stats_struct is not None:
        fields["stats_parsed"] = stats_type(form.stats_struct)
    if form.partitions is not None:
        fields["partitionValues_parsed"] = partitions_type(form.partitions)
    return pa.struct(fields)


@cache
def remove_type() -> pa.DataType:
    """A `remove`."""
    import pyarrow as pa

    return pa.struct(
        {
            "path": pa.string(),
            "deletionTimestamp": pa.int64(),
            "dataChange": pa.bool_(),
            "extendedFileMetadata": pa.bool_(),
            "partitionValues": map_type(),
            "size": pa.int64(),
            "deletionVector": vector_type(),
            "baseRowId": pa.int64(),
            "defaultRowCommitVersion": pa.int64(),
        }
    )


@cache
def _control_types() -> dict[str, pa.DataType]:
    """The actions that are not about files; the last two are of V2 checkpoints only."""
    import pyarrow as pa

    string, long = pa.string(), pa.int64()
    names = pa.list_(pa.field("element", string))
    fields: dict[str, dict[str, pa.DataType]] = {
        "txn": {"appId": string, "version": long, "lastUpdated": long},
        "metaData": {
            "id": string,
            "name": string,
            "description": string,
            "format": pa.struct({"provider": string, "options": map_type()}),
            "schemaString": string,
            "partitionColumns": names,
            "configuration": map_type(),
            "createdTime": long,
        },
        "protocol": {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": names,
            "writerFeatures": names,
        },
        "domainMetadata": {"domain": string, "configuration": string, "removed": pa.bool_()},
        "checkpointMetadata": {"version": long, "tags": map_type()},
        "sidecar": {
            "path": string,
            "sizeInBytes": long,
            "modificationTime": long,
            "tags": map_type(),
        },
    }
    return {name: pa.struct(types) for name, types in fields.items()}


def stats_type(columns: StructType) -> pa.DataType:
    """The type of `add.stats_parsed` for statistics of these columns."""
    import pyarrow as pa

    fields = {"numRecords": pa.int64()}
    bounds = bounds_type(columns)
    if bounds is not None:
        fields["minValues"] = fields["maxValues"] = bounds
    counts = counts_type(columns)
    if counts is not None:
        fields["nullCount"] = counts
    # False where deletion vectors hide rows; absent is true.
    fields["tightBounds"] = pa.bool_()
    return pa.struct(fields)


def bounds_type(columns: StructType) -> pa.DataType | None:
    """The type of `minValues` and `maxValues`; None where no column has bounds."""
    import pyarrow as pa

    fields = {}
    for field in columns.fields:
        if isinstance(field.type, StructType):
            inner = bounds_type(field.type)
            if inner is not None:
                fields[physical_name(field)] = inner
        elif has_bounds(field.type):
            fields[physical_name(field)] = type_to_arrow(field.type)
    return pa.struct(fields) if fields else None


def counts_type(columns: StructType) -> pa.DataType | None:
    """The type of `nullCount`; None without columns."""
    import pyarrow as pa

    fields = {
        physical_name(field): counts_type(field.type)
        if isinstance(field.type, StructType)
        else pa.int64()
        for field in columns.fields
    }
    return pa.struct(fields) if fields else None


def partitions_type(columns: StructType) -> pa.DataType:
    """The type of `add.partitionValues_parsed`."""
    import pyarrow as pa

    return pa.struct({physical_name(f): type_to_arrow(f.type) for f in columns.fields})
