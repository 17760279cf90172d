from __future__ import annotations

import json
from typing import Any

import pytest

from deltalakedb.actions.datatypes import (
    INTEGER,
    LONG,
    PRIMITIVES,
    STRING,
    VARIANT,
    ArrayType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    column_id,
    max_column_id,
    physical_name,
    schema_from_json,
    schema_to_json,
)
from deltalakedb.actions.schema_checks import assign_column_mapping, check_schema
from deltalakedb.errors import InvalidSchemaError


def field(name: str, data_type: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": True, "metadata": {}, **more}


def text(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "struct", "fields": list(fields), **more})


def struct(*names: str) -> StructType:
    return StructType(tuple(StructField(name, STRING) for name in names))


NESTED = StructType(
    (
        StructField("id", LONG, nullable=False),
        StructField(
            "Person",
            StructType((StructField("name", STRING), StructField("tags", ArrayType(STRING)))),
        ),
        StructField("m", MapType(STRING, StructType((StructField("deep", INTEGER),)))),
    )
)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_primitive_type_is_known_by_its_name(name: str) -> None:
    schema = schema_from_json(text(field("a", name)))
    assert schema.fields[0].type is PRIMITIVES[name]
    assert json.loads(schema_to_json(schema)) == json.loads(text(field("a", name)))


def test_nested_types_metadata_and_unknown_keys_survive() -> None:
    given = text(
        field(
            "d", "decimal(10,2)", metadata={"comment": "c", "n": 1, "deep": {"z": [1.5], "a": {}}}
        ),
        field("s", {"type": "struct", "fields": [field("x", "long", future=1)], "odd": True}),
        field("a", {"type": "array", "elementType": "short", "containsNull": False, "k": None}),
        field(
            "m",
            {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "array", "elementType": "date", "containsNull": True},
                "valueContainsNull": False,
            },
        ),
        version=2,
    )
    assert json.loads(schema_to_json(schema_from_json(given))) == json.loads(given)


def test_collations_in_metadata_are_preserved() -> None:
    given = text(field("c", metadata={"__COLLATIONS": {"c": "icu.UNICODE"}}))
    assert json.loads(schema_to_json(schema_from_json(given))) == json.loads(given)


def test_the_output_is_compact_and_in_the_customary_order() -> None:
    assert schema_to_json(struct("a")) == (
        '{"type":"struct","fields":[{"name":"a","type":"string","nullable":true,"metadata":{}}]}'
    )


def test_decimals_are_read_in_their_looser_forms() -> None:
    schema = schema_from_json(text(field("a", "decimal"), field("b", "decimal( 5 , 3 )")))
    assert [f.type for f in schema.fields] == [DecimalType(10, 0), DecimalType(5, 3)]
    assert str(schema.fields[1].type) == "decimal(5,3)"


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ("{", "JSON"),
        ('"string"', "not a struct"),
        ("[]", "type"),
        (text("x"), "field"),
        (text({"type": "string"}), "name"),
        (text({"name": "a"}), "'a'"),
        (text(field("a", "money")), "'a'.*money"),
        (text(field("a", 5)), "'a'"),
        (text(field("a", {"type": "udt"})), "'a'.*udt"),
        (text(field("a", {"type": "array"})), "'a'.*elementType"),
        (text(field("a", {"type": "map", "keyType": "string"})), "'a'.*valueType"),
        (text(field("a", {"type": "struct"})), "'a'.*fields"),
        (text(field("a", {"type": "struct", "fields": [field("b", "no")]})), r"'a\.b'"),
        (text(field("a", nullable="yes")), "'a'.*nullable"),
        (text(field("a", metadata=[])), "'a'.*metadata"),
    ],
)
def test_a_broken_schema_names_the_column(broken: str, word: str) -> None:
    with pytest.raises(InvalidSchemaError, match=word):
        schema_from_json(broken)


def test_a_nesting_bomb_is_refused() -> None:
    bomb = '{"type":"array","elementType":' * 50_000
    with pytest.raises(InvalidSchemaError, match="nested"):
        schema_from_json(bomb)


def test_fields_are_found_ignoring_case_and_an_exact_match_goes_first() -> None:
    schema = struct("Day", "x", "X")
    assert schema.field("DAY").name == "Day"
    assert schema.field("X").name == "X"
    assert schema.get("nope") is None
    with pytest.raises(InvalidSchemaError, match="Day, x, X"):
        schema.field("nope")


def test_leaves_go_into_structs_and_stop_at_arrays_and_maps() -> None:
    assert NESTED.leaf_columns() == [
        (("id",), LONG),
        (("Person", "name"), STRING),
        (("Person", "tags"), ArrayType(STRING)),
        (("m",), NESTED.fields[2].type),
    ]


def test_all_fields_go_everywhere() -> None:
    names = [f.name for f in NESTED.all_fields()]
    assert names == ["id", "Person", "name", "tags", "m", "deep"]


def test_column_mapping_gives_every_field_an_id_and_a_physical_name() -> None:
    mapped, highest = assign_column_mapping(NESTED, new_name=lambda f: f"col-{f.name}")
    assert highest == 6
    assert [column_id(f) for f in mapped.all_fields()] == [1, 2, 3, 4, 5, 6]
    assert mapped.leaf_columns(physical=True)[1][0] == ("col-Person", "col-name")
    assert mapped.leaf_columns()[1][0] == ("Person", "name")
    assert max_column_id(mapped) == 6


def test_column_mapping_keeps_what_a_field_already_has() -> None:
    old = StructField(
        "a",
        STRING,
        metadata={"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "p"},
    )
    mapped, highest = assign_column_mapping(
        StructType((old, StructField("b", STRING))), new_name=lambda f: f.name
    )
    assert mapped.fields[0] == old
    assert (column_id(mapped.fields[1]), highest) == (10, 10)


def test_a_field_without_mapping_has_its_own_name_and_no_id() -> None:
    plain = StructField("a", STRING)
    assert physical_name(plain) == "a"
    assert column_id(plain) is None
    assert max_column_id(StructType((plain,))) == 0


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (struct("a", "A"), "'a' and 'A'"),
        (struct("a", "a"), "same name"),
        (StructType((StructField("s", struct("x", "X")),)), "inside 's'"),
        (StructType((StructField("s", ArrayType(struct("x", "X"))),)), r"inside 's\.element'"),
        (StructType((StructField("s", MapType(struct("x", "X"), STRING)),)), r"inside 's\.key'"),
        (struct(""), "empty name"),
        (StructType((StructField("d", DecimalType(39, 0)),)), "between 1 and 38"),
        (StructType((StructField("d", DecimalType(0, 0)),)), "between 1 and 38"),
        (StructType((StructField("d", DecimalType(5, 6)),)), "scale"),
        (StructType((StructField("d", DecimalType(5, -1)),)), "scale"),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused(schema: StructType, word: str) -> None:
    with pytest.raises(InvalidSchemaError, match=word):
        check_schema(schema)


@pytest.mark.parametrize("character", list(" ,;{}()\n\t="))
def test_forbidden_characters_need_column_mapping(character: str) -> None:
    schema = struct(f"a{character}b")
    with pytest.raises(InvalidSchemaError, match="columnMapping"):
        check_schema(schema)
    check_schema(schema, column_mapping=True)


def test_a_sound_schema_passes() -> None:
    check_schema(NESTED, partition_columns=["ID"])


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        (["nope"], "no column"),
        (["id", "ID"], "twice"),
        (["Person"], "struct"),
        (["m"], "map"),
        (["v"], "variant"),
    ],
)
def test_partition_columns_must_make_sense(columns: list[str], word: str) -> None:
    schema = StructType((*NESTED.fields, StructField("v", VARIANT)))
    with pytest.raises(InvalidSchemaError, match=word):
        check_schema(schema, partition_columns=columns)


def test_a_table_needs_a_column_that_is_no_partition() -> None:
    with pytest.raises(InvalidSchemaError, match="all of its columns"):
        check_schema(struct("a", "b"), partition_columns=["a", "b"])


def test_types_have_readable_names() -> None:
    assert str(NESTED) == (
        "struct<id:long,Person:struct<name:string,tags:array<string>>,"
        "m:map<string,struct<deep:integer>>>"
    )
