"""The schema of a checkpoint: widths, nullability, and what table properties add to it."""

import json
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.actions import Metadata
from deltalakedb.deltalog.checkpoint_schema import checkpoint_schema, form_of, sidecar_schema


def field(name: str, kind: Any, *, nullable: bool = True, physical: str | None = None) -> Any:
    metadata = {} if physical is None else {"delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: Any) -> Any:
    return {"type": "struct", "fields": list(fields)}


def table(
    *fields: Any, properties: dict[str, str] | None = None, partitions: tuple[str, ...] = ()
) -> Metadata:
    return Metadata(
        id="t",
        schema_string=json.dumps(struct(*fields)),
        partition_columns=partitions,
        configuration={f"delta.{name}": value for name, value in (properties or {}).items()},
    )


TYPED = {"checkpoint.writeStatsAsStruct": "true"}
ALL_TYPES = (
    *(field(name, name) for name in ("byte", "short", "integer", "long", "float", "double")),
    *(field(name, name) for name in ("string", "date", "timestamp", "timestamp_ntz")),
    *(field(name, name) for name in ("boolean", "binary", "variant", "void")),
    field("price", "decimal(10,2)"),
    field("list", {"type": "array", "elementType": "long", "containsNull": True}),
)


def leaves(kind: pa.DataType, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], pa.DataType]:
    if not pa.types.is_struct(kind):
        return {path: kind}
    found = {}
    for inner in kind.fields:
        found.update(leaves(inner.type, (*path, inner.name)))
    return found


def nullable_everywhere(fields: Any) -> bool:
    return all(
        inner.nullable
        and (not pa.types.is_struct(inner.type) or nullable_everywhere(inner.type.fields))
        for inner in fields
    )


def test_numbers_have_the_widths_that_readers_insist_on() -> None:
    schema = checkpoint_schema(form_of(table(field("id", "long"))), v2=True)
    protocol, vector = schema.field("protocol").type, schema.field("add").type.field(6).type
    narrow = {
        name: kind
        for column in schema
        for name, kind in leaves(column.type, (column.name,)).items()
        if pa.types.is_int32(kind)
    }
    assert set(narrow) == {
        ("protocol", "minReaderVersion"),
        ("protocol", "minWriterVersion"),
        *(
            (kind, "deletionVector", name)
            for kind in ("add", "remove")
            for name in ("offset", "sizeInBytes")
        ),
    }
    assert protocol.field("readerFeatures").type == pa.list_(pa.field("element", pa.string()))
    assert vector.field("cardinality").type == pa.int64()
    values = schema.field("add").type.field("partitionValues").type
    assert values == pa.map_(pa.string(), pa.string())
    assert values.item_field.nullable


def test_a_checkpoint_has_a_column_for_each_kind_of_action() -> None:
    form = form_of(table(field("id", "long")))
    classic = ["txn", "add", "remove", "metaData", "protocol", "domainMetadata"]
    assert checkpoint_schema(form).names == classic
    assert checkpoint_schema(form, v2=True).names == [*classic, "checkpointMetadata", "sidecar"]
    assert sidecar_schema(form).names == ["add", "remove"]
    assert "stats" not in checkpoint_schema(form).field("remove").type.names
    assert "tags" not in checkpoint_schema(form).field("remove").type.names


def test_statistics_are_json_unless_properties_say_otherwise() -> None:
    columns = (field("id", "long"), field("day", "date"))

    def names(**properties: str) -> set[str]:
        form = form_of(table(*columns, partitions=("day",), properties=properties))
        return {"stats", "stats_parsed", "partitionValues_parsed"} & set(
            checkpoint_schema(form).field("add").type.names
        )

    assert names() == {"stats"}
    assert names(**TYPED) == {"stats", "stats_parsed", "partitionValues_parsed"}
    off = {"checkpoint.writeStatsAsJson": "false"}
    assert names(**off) == set()
    assert names(**off, **TYPED) == {"stats_parsed", "partitionValues_parsed"}


def test_typed_statistics_have_bounds_only_where_readers_know_them() -> None:
    form = form_of(table(*ALL_TYPES, properties=TYPED))
    stats = checkpoint_schema(form).field("add").type.field("stats_parsed").type
    assert stats.names == ["numRecords", "minValues", "maxValues", "nullCount", "tightBounds"]
    assert leaves(stats.field("minValues").type) == {
        ("byte",): pa.int8(),
        ("short",): pa.int16(),
        ("integer",): pa.int32(),
        ("long",): pa.int64(),
        ("float",): pa.float32(),
        ("double",): pa.float64(),
        ("string",): pa.string(),
        ("date",): pa.date32(),
        ("timestamp",): pa.timestamp("us", "UTC"),
        ("timestamp_ntz",): pa.timestamp("us"),
        ("price",): pa.decimal128(10, 2),
    }
    assert stats.field("maxValues").type == stats.field("minValues").type
    counts = leaves(stats.field("nullCount").type)
    assert set(counts) == {(f["name"],) for f in ALL_TYPES if f["name"] != "void"}
    assert set(counts.values()) == {pa.int64()}


def test_typed_columns_have_physical_names_and_are_nullable_whatever_the_table_says() -> None:
    metadata = table(
        field("id", "long", nullable=False, physical="col-1"),
        field("in", struct(field("x", "long", nullable=False, physical="col-3")), physical="col-2"),
        field("day", "date", nullable=False, physical="col-4"),
        partitions=("day",),
        properties={**TYPED, "columnMapping.mode": "name"},
    )
    add = checkpoint_schema(form_of(metadata)).field("add").type
    stats = add.field("stats_parsed").type
    assert set(leaves(stats.field("minValues").type)) == {("col-1",), ("col-2", "col-3")}
    assert add.field("partitionValues_parsed").type == pa.struct({"col-4": pa.date32()})
    assert nullable_everywhere(checkpoint_schema(form_of(metadata)))


def test_structs_without_fields_are_left_out() -> None:
    form = form_of(table(field("day", "date"), partitions=("day",), properties=TYPED))
    stats = checkpoint_schema(form).field("add").type.field("stats_parsed").type
    assert stats.names == ["numRecords", "tightBounds"]
    nested = field("in", struct(field("flag", "boolean")))
    stats = checkpoint_schema(form_of(table(nested, properties=TYPED))).field("add").type
    assert stats.field("stats_parsed").type.names == ["numRecords", "nullCount", "tightBounds"]


@pytest.mark.parametrize(
    ("properties", "columns"),
    [
        ({"dataSkippingNumIndexedCols": "1"}, {"a"}),
        ({"dataSkippingStatsColumns": "b"}, {"b"}),
        # What is not in the JSON either would be lost.
        ({"dataSkippingNumIndexedCols": "1", "checkpoint.writeStatsAsJson": "false"}, {"a", "b"}),
    ],
)
def test_typed_statistics_cover_the_columns_that_have_statistics(
    properties: dict[str, str], columns: set[str]
) -> None:
    form = form_of(
        table(field("a", "long"), field("b", "long"), properties={**TYPED, **properties})
    )
    stats = checkpoint_schema(form).field("add").type.field("stats_parsed").type
    assert set(stats.field("minValues").type.names) == columns
