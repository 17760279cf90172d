from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.actions.arrow import schema_from_any, schema_from_arrow, schema_to_arrow
from deltalakedb.actions.datatypes import (
    BINARY,
    BYTE,
    DATE,
    FLOAT,
    INTEGER,
    LONG,
    PRIMITIVES,
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
    StructField,
    StructType,
    schema_to_json,
)
from deltalakedb.errors import InvalidArgumentError, InvalidSchemaError

EVERYTHING = StructType(
    (
        *(StructField(name, t) for name, t in PRIMITIVES.items() if t is not VARIANT),
        StructField("required", LONG, nullable=False),
        StructField(
            "dec", DecimalType(38, 18), metadata={"comment": "c", "n": 5, "o": {"a": None}}
        ),
        StructField("arr", ArrayType(ArrayType(STRING, contains_null=False))),
        StructField("map", MapType(STRING, DecimalType(5, 2), value_contains_null=False)),
        StructField(
            "st",
            StructType(
                (StructField("x", DATE, nullable=False, metadata={"delta.columnMapping.id": 3}),)
            ),
        ),
    )
)


def test_every_type_survives_the_way_to_arrow_and_back() -> None:
    assert schema_from_arrow(schema_to_arrow(EVERYTHING)) == EVERYTHING


def test_arrow_types_are_the_ones_data_files_have() -> None:
    arrow = schema_to_arrow(EVERYTHING)
    assert arrow.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert arrow.field("timestamp_ntz").type == pa.timestamp("us")
    assert arrow.field("date").type == pa.date32()
    assert arrow.field("dec").type == pa.decimal128(38, 18)
    assert not arrow.field("required").nullable
    assert not arrow.field("map").type.item_field.nullable


def test_a_variant_is_its_struct_of_two_binaries() -> None:
    arrow = schema_to_arrow(StructType((StructField("v", VARIANT),)))
    assert [f.name for f in arrow.field("v").type] == ["metadata", "value"]


def test_a_void_column_is_always_nullable_in_arrow() -> None:
    schema = StructType(
        (
            StructField("v", VOID, nullable=False),
            StructField("a", ArrayType(VOID, contains_null=False)),
            StructField("m", MapType(STRING, VOID, value_contains_null=False)),
        )
    )
    arrow = schema_to_arrow(schema)
    assert arrow.field("v") == pa.field("v", pa.null())
    assert arrow.field("a").type.value_field.nullable
    assert arrow.field("m").type.item_field.nullable


def test_a_map_of_void_keys_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="void"):
        schema_to_arrow(StructType((StructField("m", MapType(VOID, STRING)),)))


def test_the_physical_schema_has_physical_names_and_field_ids() -> None:
    def mapped(name: str, number: int, data_type: DataType) -> StructField:
        return StructField(
            name,
            data_type,
            metadata={
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
        )

    schema = StructType((mapped("a", 1, StructType((mapped("b", 2, STRING),))),))
    arrow = schema_to_arrow(schema, physical=True)
    assert arrow.names == ["col-1"]
    assert arrow.field(0).metadata == {b"PARQUET:field_id": b"1"}
    inner = arrow.field(0).type.field(0)
    assert (inner.name, inner.metadata) == ("col-2", {b"PARQUET:field_id": b"2"})


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.uint8(), SHORT),
        (pa.uint16(), INTEGER),
        (pa.uint32(), LONG),
        (pa.int8(), BYTE),
        (pa.float16(), FLOAT),
        (pa.large_string(), STRING),
        (pa.string_view(), STRING),
        (pa.large_binary(), BINARY),
        (pa.binary_view(), BINARY),
        (pa.binary(16), BINARY),
        (pa.date64(), DATE),
        (pa.null(), VOID),
        (pa.timestamp("s"), TIMESTAMP_NTZ),
        (pa.timestamp("ns"), TIMESTAMP_NTZ),
        (pa.timestamp("ms", tz="Europe/Berlin"), TIMESTAMP),
        (pa.timestamp("ns", tz="UTC"), TIMESTAMP),
        (pa.dictionary(pa.int8(), pa.string()), STRING),
        (pa.run_end_encoded(pa.int32(), pa.int64()), LONG),
        (pa.decimal32(5, 2), DecimalType(5, 2)),
        (pa.decimal64(10, 2), DecimalType(10, 2)),
        (pa.decimal256(38, 2), DecimalType(38, 2)),
        (pa.large_list(pa.int64()), ArrayType(LONG)),
        (pa.list_(pa.int64(), 3), ArrayType(LONG)),
        (pa.list_view(pa.int64()), ArrayType(LONG)),
        (pa.large_list_view(pa.int64()), ArrayType(LONG)),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), ArrayType(STRING)),
        (pa.uuid(), BINARY),
        (pa.json_(), STRING),
    ],
    ids=str,
)
def test_kindred_arrow_types_become_delta_types(arrow_type: Any, expected: DataType) -> None:
    assert schema_from_arrow(pa.schema([("a", arrow_type)])).fields[0].type == expected


@pytest.mark.parametrize(
    ("arrow_type", "word"),
    [
        (pa.uint64(), "int64"),
        (pa.time32("s"), "string"),
        (pa.time64("us"), "microseconds"),
        (pa.duration("us"), "microseconds"),
        (pa.month_day_nano_interval(), "integers"),
        (pa.dense_union([pa.field("x", pa.int8())]), "member"),
        (pa.sparse_union([pa.field("x", pa.int8())]), "member"),
        (pa.decimal256(50, 2), "38"),
        (pa.decimal128(5, -2), "scale"),
    ],
    ids=str,
)
def test_foreign_arrow_types_are_refused_with_the_column_and_advice(
    arrow_type: Any, word: str
) -> None:
    nested = pa.schema([("outer", pa.struct([("inner", pa.list_(arrow_type))]))])
    with pytest.raises(InvalidSchemaError, match=r"outer\.inner\.element") as caught:
        schema_from_arrow(nested)
    assert word in str(caught.value)


def test_metadata_of_parquet_and_arrow_themselves_stays_behind() -> None:
    field = pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "1", "comment": "x"})
    assert schema_from_arrow(pa.schema([field])).fields[0].metadata == {"comment": "x"}


@pytest.mark.parametrize(
    "metadata", [{b"x": b"\xff"}, {b"deltalakedb.metadata": b"{"}, {b"deltalakedb.metadata": b"5"}]
)
def test_metadata_that_is_no_text_is_refused(metadata: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidSchemaError, match="metadata of the column 'a'"):
        schema_from_arrow(pa.schema([pa.field("a", pa.int64(), metadata=metadata)]))


class SparkLike:
    """A Spark StructType as far as this package looks at it."""

    fields: tuple[object, ...] = ()

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def json(self) -> object:
        return self.answer


def test_a_schema_is_accepted_in_every_form_a_user_has() -> None:
    ours = StructType((StructField("a", LONG),))
    assert schema_from_any(ours) is ours
    assert schema_from_any(pa.schema([("a", pa.int64())])) == ours
    assert schema_from_any(schema_to_json(ours)) == ours
    assert schema_from_any(SparkLike(schema_to_json(ours))) == ours


@pytest.mark.parametrize("x", [None, 5, {"a": "int"}, pa.int64(), SparkLike(5)])
def test_anything_else_is_no_schema(x: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"pyarrow\.Schema"):
        schema_from_any(x)


def test_a_comment_that_is_no_text_is_refused() -> None:
    inner = StructType((StructField("b", LONG, metadata={"comment": 1}),))
    for field in (inner.fields[0], StructField("a", inner)):
        with pytest.raises(InvalidSchemaError, match="comment of column 'b'"):
            schema_from_any(schema_to_json(StructType((field,))))


def test_importing_the_actions_does_not_import_pyarrow() -> None:
    code = (
        "import sys, deltalakedb.actions, deltalakedb.actions.arrow, "
        "deltalakedb.actions.features, deltalakedb.actions.statistics; "
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
