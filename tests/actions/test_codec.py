from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from deltalakedb.actions import (
    Action,
    AddFile,
    CdcFile,
    CheckpointMetadata,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Sidecar,
    Txn,
    UnknownAction,
    as_action,
    from_dict,
    parse_commit,
    parse_line,
    serialise,
    serialise_commit,
    to_dict,
)
from deltalakedb.errors import InvalidActionError, InvalidLogError

ADD: dict[str, Any] = {
    "path": "a.parquet",
    "partitionValues": {},
    "size": 1,
    "modificationTime": 2,
    "dataChange": True,
}
DV: dict[str, Any] = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
FULL: list[dict[str, Any]] = [
    {"commitInfo": {"operation": "WRITE", "timestamp": 5, "weird": {"b": [1, None], "a": 1}}},
    {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
    },
    {
        "metaData": {
            "id": "x",
            "name": "n",
            "description": "d",
            "format": {"provider": "parquet", "options": {"o": "1"}},
            "schemaString": '{"type":"struct","fields":[]}',
            "partitionColumns": ["p"],
            "configuration": {"k": "v"},
            "createdTime": 7,
        }
    },
    {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
    {"txn": {"appId": "app", "version": 3, "lastUpdated": 4}},
    {
        "remove": {
            "path": "b",
            "deletionTimestamp": 9,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {"p": None},
            "size": 3,
            "stats": "{}",
            "tags": {"t": "1"},
            "deletionVector": DV,
            "baseRowId": 1,
            "defaultRowCommitVersion": 2,
        }
    },
    {
        "add": {
            **ADD,
            "partitionValues": {"p": "1", "q": None},
            "stats": '{"numRecords":1}',
            "tags": {"t": None},
            "deletionVector": DV,
            "baseRowId": 1,
            "defaultRowCommitVersion": 2,
            "clusteringProvider": "liquid",
        }
    },
    {
        "cdc": {
            "path": "_change_data/c",
            "partitionValues": {},
            "size": 1,
            "dataChange": False,
            "tags": {},
        }
    },
    {"checkpointMetadata": {"version": 3, "tags": {"a": "b"}}},
    {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 2, "tags": {}}},
    {"somethingNew": [1, "2", None]},
]


def add(**changes: Any) -> dict[str, Any]:
    return {"add": {**ADD, **changes}}


def without(action: str, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {action: {key: value for key, value in given.items() if key != name}}


@pytest.mark.parametrize("document", FULL, ids=lambda d: next(iter(d)))
def test_every_field_survives_in_its_place(document: dict[str, Any]) -> None:
    action = from_dict(document)
    assert to_dict(action) == document
    name = next(iter(document))
    if name != "commitInfo" and isinstance(document[name], dict):
        assert list(to_dict(action)[name]) == list(document[name]), "order of the protocol"
    assert json.loads(serialise(action)) == document
    assert parse_line(serialise(action)) == [action]


def test_typed_values_come_out_of_the_fields() -> None:
    action = from_dict(FULL[6])
    assert isinstance(action, AddFile)
    assert action.partition_values == {"p": "1", "q": None}
    assert action.deletion_vector is not None
    assert action.dv_id == "uab^-aqEH.-t@S}K{vb[*k^@4"
    assert action.clustering_provider == "liquid"
    assert action.extra == {}


def test_unknown_fields_are_kept_and_written_after_the_known_ones_sorted() -> None:
    document = add(zeta=1, alpha={"y": 1, "b": Decimal("1.50")})
    action = from_dict(document)
    assert isinstance(action, AddFile)
    assert action.extra == {"zeta": 1, "alpha": {"y": 1, "b": Decimal("1.5")}}
    assert serialise(action) == (
        '{"add":{"path":"a.parquet","partitionValues":{},"size":1,"modificationTime":2,'
        '"dataChange":true,"alpha":{"b":1.5,"y":1},"zeta":1}}'
    )


def test_an_explicit_null_is_kept_and_absence_stays_absence() -> None:
    action = from_dict(add(stats=None))
    assert isinstance(action, AddFile)
    assert action.stats is None
    assert to_dict(action) == add(stats=None)
    assert to_dict(from_dict(add())) == add()


def test_a_field_set_later_wins_over_the_null_that_was_read() -> None:
    action = from_dict(add(stats=None))
    assert isinstance(action, AddFile)
    assert to_dict(replace(action, stats="{}")) == add(stats="{}")


def test_empty_and_absent_maps_differ() -> None:
    assert to_dict(from_dict(add(tags={}))) == add(tags={})


def test_null_inside_a_deletion_vector_is_kept() -> None:
    inline = {**DV, "storageType": "i", "offset": None, "future": 1.5}
    action = from_dict(add(deletionVector=inline))
    assert isinstance(action, AddFile)
    assert action.dv_id == "i" + DV["pathOrInlineDv"]
    assert json.loads(serialise(action)) == add(deletionVector=inline)


def test_unknown_fields_of_the_format_are_kept() -> None:
    document = {
        "metaData": {**FULL[2]["metaData"], "format": {"provider": "p", "options": {}, "x": 1}}
    }
    action = from_dict(document)
    assert isinstance(action, Metadata)
    assert action.format_provider == "p"
    assert to_dict(action) == document


def test_a_format_without_options_is_repaired() -> None:
    document = {"metaData": {**FULL[2]["metaData"], "format": {"provider": "parquet"}}}
    assert to_dict(from_dict(document))["metaData"]["format"] == {
        "provider": "parquet",
        "options": {},
    }


def test_metadata_without_a_schema_is_tolerated() -> None:
    action = from_dict(without("metaData", FULL[2]["metaData"], "schemaString"))
    assert isinstance(action, Metadata)
    assert action.schema_string is None
    assert action.schema.fields == ()


REQUIRED = {
    "add": ["path", "partitionValues", "size", "modificationTime", "dataChange"],
    "remove": ["path", "dataChange"],
    "cdc": ["path", "partitionValues", "size", "dataChange"],
    "metaData": ["id", "format", "partitionColumns", "configuration"],
    "protocol": ["minReaderVersion", "minWriterVersion"],
    "txn": ["appId", "version"],
    "domainMetadata": ["domain", "configuration", "removed"],
    "checkpointMetadata": ["version"],
    "sidecar": ["path", "sizeInBytes", "modificationTime"],
}


@pytest.mark.parametrize(
    ("name", "missing"), [(name, field) for name, fields in REQUIRED.items() for field in fields]
)
def test_a_missing_required_field_is_named(name: str, missing: str) -> None:
    full = next(document[name] for document in FULL if name in document)
    for broken in (without(name, full, missing), {name: {**full, missing: None}}):
        with pytest.raises(InvalidActionError) as caught:
            from_dict(broken)
        assert repr(name) in str(caught.value)
        assert repr(missing) in str(caught.value)
        assert caught.value.fix


@pytest.mark.parametrize("missing", ["storageType", "pathOrInlineDv", "sizeInBytes", "cardinality"])
def test_a_deletion_vector_needs_its_fields(missing: str) -> None:
    broken = {key: value for key, value in DV.items() if key != missing}
    with pytest.raises(InvalidActionError, match=missing):
        from_dict(add(deletionVector=broken))


@pytest.mark.parametrize(
    "changes",
    [
        {"path": 1},
        {"path": ""},
        {"path": "a\0b"},
        {"path": "a%00b"},
        {"path": "\ud800"},
        {"size": True},
        {"size": "1"},
        {"size": 1.0},
        {"size": -1},
        {"size": 2**63},
        {"modificationTime": -(2**63) - 1},
        {"dataChange": 1},
        {"dataChange": "true"},
        {"stats": {"numRecords": 1}},
        {"stats": 5},
        {"partitionValues": {"a": 1}},
        {"partitionValues": {1: "a"}},
        {"partitionValues": []},
        {"tags": {"a": True}},
        {"deletionVector": "x"},
        {"deletionVector": {**DV, "offset": 2**31}},
        {"deletionVector": {**DV, "sizeInBytes": 2**31}},
        {"deletionVector": {**DV, "cardinality": -1}},
        {"baseRowId": 1.5},
        {"clusteringProvider": 5},
        {"future": {1, 2}},
        {"future": float("nan")},
    ],
)
def test_a_field_of_the_wrong_type_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidActionError, match=next(iter(changes))):
        from_dict(add(**changes))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("protocol", {"minReaderVersion": 2**31}),
        ("protocol", {"minReaderVersion": True}),
        ("protocol", {"readerFeatures": "abc"}),
        ("protocol", {"writerFeatures": [1]}),
        ("metaData", {"format": "parquet"}),
        ("metaData", {"format": {"options": {}}}),
        ("metaData", {"partitionColumns": "p"}),
        ("metaData", {"configuration": {"a": None}}),
        ("metaData", {"configuration": {"a": 1}}),
        ("metaData", {"schemaString": {"type": "struct"}}),
        ("txn", {"version": "1"}),
        ("domainMetadata", {"removed": 0}),
        ("domainMetadata", {"configuration": {}}),
        ("sidecar", {"sizeInBytes": -1}),
    ],
)
def test_other_actions_are_strict_too(name: str, changes: dict[str, Any]) -> None:
    full = next(document[name] for document in FULL if name in document)
    with pytest.raises(InvalidActionError, match=next(iter(changes))):
        from_dict({name: {**full, **changes}})


def test_the_place_of_an_error_is_in_its_message() -> None:
    with pytest.raises(InvalidActionError, match="action 7 of the list"):
        from_dict({"add": {}}, where="action 7 of the list")


@pytest.mark.parametrize("given", [{}, {"add": ADD, "txn": {}}, [], "add", None, 5])
def test_what_is_not_one_action_is_refused(given: Any) -> None:
    with pytest.raises(InvalidActionError, match="not an action"):
        from_dict(given)


def test_the_value_of_a_known_action_must_be_an_object() -> None:
    with pytest.raises(InvalidActionError, match="object"):
        from_dict({"add": [1]})


def test_a_value_passes_through_and_a_mapping_is_built() -> None:
    value = from_dict(add())
    assert as_action(value) is value
    assert as_action(add()) == value


@pytest.mark.parametrize("name", ["metadata", "Add", "commitinfo", "CDC"])
def test_a_known_action_in_the_wrong_case_is_a_slip(name: str) -> None:
    with pytest.raises(InvalidActionError, match="case-sensitive"):
        as_action({name: {}})


_GOOD = AddFile("a", {}, 1, 2, data_change=True)


@pytest.mark.parametrize(
    "value",
    [
        replace(_GOOD, path="a\0"),
        replace(_GOOD, size=1.5),  # type: ignore[arg-type]
        replace(_GOOD, partition_values={"a": 1}),  # type: ignore[dict-item]
        replace(_GOOD, partition_values=None),  # type: ignore[arg-type]
        replace(_GOOD, extra={"x": {1}}),
        replace(_GOOD, extra={"stats": "{}"}),
        replace(_GOOD, extra=[1]),  # type: ignore[arg-type]
        replace(_GOOD, deletion_vector=DeletionVectorDescriptor("u", "x", 2**40, 1)),
        Metadata("x", partition_columns="p"),  # type: ignore[arg-type]
        Metadata("x", configuration=None),  # type: ignore[arg-type]
        Metadata("x", format_options={"a": 1}),  # type: ignore[dict-item]
        Metadata("x", extra={"name": "hidden"}),
        CommitInfo({"a": object()}),
        CommitInfo(None),  # type: ignore[arg-type]
        UnknownAction("add", {}),
        UnknownAction(5, {}),  # type: ignore[arg-type]
        Protocol(1, True),
        "nonsense",
    ],
)
def test_a_value_built_by_hand_is_checked(value: Any) -> None:
    with pytest.raises(InvalidActionError):
        as_action(value)


@pytest.mark.parametrize("document", FULL, ids=lambda d: next(iter(d)))
def test_a_good_value_is_accepted_and_can_be_pickled(document: dict[str, Any]) -> None:
    value = from_dict(document)
    assert as_action(value) is value
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301


def test_a_line_may_hold_several_actions() -> None:
    line = json.dumps({"add": ADD, "new_thing": ["a", "1"]})
    parsed = parse_line(line)
    assert [type(action) for action in parsed] == [AddFile, UnknownAction]
    assert parsed[1] == UnknownAction("new_thing", ["a", "1"])


def test_a_null_known_action_is_no_action_and_a_null_unknown_one_is_kept() -> None:
    assert parse_line(json.dumps({"txn": None, "add": ADD, "new": None})) == [
        from_dict(add()),
        UnknownAction("new", None),
    ]


def test_a_commit_tolerates_bom_crlf_and_blank_lines() -> None:
    line = json.dumps(add())
    data = b"\xef\xbb\xbf" + f"{line}\r\n\r\n  \n{line}".encode()
    assert parse_commit(data, file="f") == [from_dict(add())] * 2


def test_unicode_line_separators_do_not_end_a_line() -> None:
    action = AddFile("a\u2028b\x85c\u2029", {}, 1, 2, data_change=True)
    assert parse_commit(serialise_commit([action]), file="f") == [action]


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (b'{"add":', "JSON"),
        (b'{"add":{}}', "path"),
        (b"\xff", "UTF-8"),
        (b"[]", "not an action"),
        (b'{"x":NaN}', "NaN"),
    ],
)
def test_a_damaged_commit_names_file_and_line(bad: bytes, word: str) -> None:
    data = b'{"a":1}\n\n' + bad + b'\n{"b":2}\n'
    with pytest.raises(InvalidLogError) as caught:
        parse_commit(data, file="00000000000000000007.json")
    message = str(caught.value)
    assert "00000000000000000007.json, line 3" in message
    assert word in message


def test_a_canonical_commit_has_one_order_and_ends_with_a_line_feed() -> None:
    actions = [from_dict(document) for document in reversed(FULL)]
    data = serialise_commit(actions)
    assert data.endswith(b"}\n")
    names = [next(iter(json.loads(line))) for line in data.splitlines()]
    assert names == [
        "commitInfo",
        "protocol",
        "metaData",
        "domainMetadata",
        "txn",
        "remove",
        "add",
        "cdc",
        "checkpointMetadata",
        "sidecar",
        "somethingNew",
    ]


def test_inside_a_kind_actions_are_ordered_by_path_and_deletion_vector() -> None:
    vector = DeletionVectorDescriptor("u", "x", 1, 1)
    ordered: list[Action] = [
        AddFile("a", {}, 1, 1, data_change=True),
        AddFile("a", {}, 1, 1, data_change=True, deletion_vector=vector),
        AddFile("b", {}, 1, 1, data_change=True),
    ]
    assert parse_commit(serialise_commit(ordered[::-1]), file="f") == ordered


def test_an_empty_commit_is_empty() -> None:
    assert serialise_commit([]) == b""
    assert parse_commit(b"", file="f") == []


def test_maps_are_written_sorted_so_that_their_order_does_not_show() -> None:
    one = AddFile("a", {"x": "1", "y": "2"}, 1, 1, data_change=True, tags={"b": "", "a": ""})
    two = AddFile("a", {"y": "2", "x": "1"}, 1, 1, data_change=True, tags={"a": "", "b": ""})
    assert serialise(one) == serialise(two)


def test_a_value_with_text_that_utf8_cannot_hold_is_not_written() -> None:
    with pytest.raises(InvalidActionError, match="surrogate"):
        serialise(AddFile("\ud800", {}, 1, 1, data_change=True))


def test_minimal_values_write_only_what_is_set() -> None:
    assert (
        serialise(RemoveFile("a", data_change=False))
        == '{"remove":{"path":"a","dataChange":false}}'
    )
    assert serialise(CdcFile("a", {}, 1)) == (
        '{"cdc":{"path":"a","partitionValues":{},"size":1,"dataChange":false}}'
    )
    assert serialise(Txn("a", 1)) == '{"txn":{"appId":"a","version":1}}'
    assert serialise(Protocol(1, 2)) == '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'
    assert serialise(DomainMetadata("d", "c", removed=True)) == (
        '{"domainMetadata":{"domain":"d","configuration":"c","removed":true}}'
    )
    assert serialise(CheckpointMetadata(1)) == '{"checkpointMetadata":{"version":1}}'
    assert serialise(Sidecar("s", 1, 2)) == (
        '{"sidecar":{"path":"s","sizeInBytes":1,"modificationTime":2}}'
    )
    assert serialise(Metadata("i", schema_string="{}")) == (
        '{"metaData":{"id":"i","format":{"provider":"parquet","options":{}},"schemaString":"{}",'
        '"partitionColumns":[],"configuration":{}}}'
    )
