"""JSON to value to JSON loses nothing, and the canonical bytes depend on the content alone."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions import (
    Action,
    as_action,
    from_dict,
    parse_commit,
    parse_line,
    serialise,
    serialise_commit,
    to_dict,
)
from deltalakedb.actions.jsonvalue import dumps, freeze, loads
from deltalakedb.errors import InvalidActionError, InvalidLogError

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
SIZE = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PATH = TEXT.filter(lambda t: t != "" and "\0" not in t and "%00" not in t)
IDENTIFIER = TEXT.filter(lambda t: t != "" and "\0" not in t)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda d: d.as_tuple().exponent != 0
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | DECIMALS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
MAP = st.dictionaries(TEXT, st.none() | TEXT, max_size=3)
STRICT_MAP = st.dictionaries(TEXT, TEXT, max_size=3)


@st.composite
def objects(draw: st.DrawFn, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    """Required fields, optional ones absent, null or set, and unknown ones; in any order."""
    found = {name: draw(strategy) for name, strategy in required.items()}
    for name, strategy in optional.items():
        if draw(st.booleans()):
            found[name] = draw(st.none() | strategy)
    unknown = draw(st.dictionaries(TEXT, JSON, max_size=2))
    found = {**{k: v for k, v in unknown.items() if k not in optional}, **found}
    return {name: found[name] for name in draw(st.permutations(list(found)))}


VECTOR = objects(
    {
        "storageType": IDENTIFIER,
        "pathOrInlineDv": IDENTIFIER,
        "sizeInBytes": INT32,
        "cardinality": SIZE,
    },
    {"offset": INT32},
)
TAIL: dict[str, Any] = {
    "stats": TEXT,
    "tags": MAP,
    "deletionVector": VECTOR,
    "baseRowId": INT64,
    "defaultRowCommitVersion": INT64,
}
FILE: dict[str, Any] = {
    "path": PATH,
    "partitionValues": MAP,
    "size": SIZE,
    "dataChange": st.booleans(),
}
KINDS: dict[str, Any] = {
    "add": objects({**FILE, "modificationTime": INT64}, {**TAIL, "clusteringProvider": TEXT}),
    "remove": objects(
        {"path": PATH, "dataChange": st.booleans()},
        {
            "deletionTimestamp": INT64,
            "extendedFileMetadata": st.booleans(),
            "partitionValues": MAP,
            "size": SIZE,
            **TAIL,
        },
    ),
    "cdc": objects(FILE, {"tags": MAP}),
    "metaData": objects(
        {
            "id": TEXT,
            "format": objects({"provider": TEXT, "options": STRICT_MAP}, {}),
            "partitionColumns": st.lists(TEXT, max_size=2),
            "configuration": STRICT_MAP,
        },
        {"schemaString": TEXT, "name": TEXT, "description": TEXT, "createdTime": INT64},
    ),
    "protocol": objects(
        {"minReaderVersion": INT32, "minWriterVersion": INT32},
        {
            "readerFeatures": st.lists(TEXT, max_size=2),
            "writerFeatures": st.lists(TEXT, max_size=2),
        },
    ),
    "txn": objects({"appId": TEXT, "version": INT64}, {"lastUpdated": INT64}),
    "domainMetadata": objects(
        {"domain": TEXT, "configuration": TEXT, "removed": st.booleans()}, {}
    ),
    "commitInfo": st.dictionaries(TEXT, JSON, max_size=4),
    "checkpointMetadata": objects({"version": INT64}, {"tags": MAP}),
    "sidecar": objects(
        {"path": PATH, "sizeInBytes": SIZE, "modificationTime": INT64}, {"tags": MAP}
    ),
}
KNOWN = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind]))
UNKNOWN = st.tuples(TEXT.filter(lambda name: name not in KINDS), JSON)
DOCUMENT = (KNOWN | UNKNOWN).map(lambda pair: {pair[0]: pair[1]})


def as_text(value: Any) -> str:
    """JSON written by another hand than the codec's, numbers at whatever form Decimal has."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} : {as_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_text, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def exact(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


@given(DOCUMENT)
def test_json_to_value_to_json_is_the_same_document(document: dict[str, Any]) -> None:
    (action,) = parse_line(as_text(document))
    assert exact(serialise(action)) == document
    assert to_dict(action) == document


@given(DOCUMENT)
def test_text_and_dict_give_the_same_value_and_a_value_is_its_own_canonical_form(
    document: dict[str, Any],
) -> None:
    action = from_dict(document)
    assert parse_line(as_text(document)) == [action]
    assert parse_line(serialise(action)) == [action]
    assert as_action(action) is action


@given(st.lists(DOCUMENT, max_size=6).flatmap(lambda d: st.tuples(st.just(d), st.permutations(d))))
def test_canonical_bytes_do_not_depend_on_order(
    pair: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    one, other = ([from_dict(document) for document in documents] for documents in pair)
    data = serialise_commit(one)
    assert data == serialise_commit(other)
    again = parse_commit(data, file="f")
    assert serialise_commit(again) == data
    assert len(again) == len(one)


@given(JSON)
def test_canonical_json_reads_back_equal_and_is_a_fixed_point(value: Any) -> None:
    text = dumps(value)
    assert loads(text) == value
    assert dumps(loads(text)) == text
    assert freeze(value) == value


@given(DECIMALS, st.integers(0, 10))
def test_a_number_has_one_text_however_it_is_written(number: Decimal, zeros: int) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    longer = Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert dumps(longer) == dumps(number)
    assert loads(dumps(number)) == number
    assert isinstance(loads(dumps(number)), Decimal)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_as_itself(number: float) -> None:
    assert float(loads(dumps(number))) == number


@given(st.binary(max_size=60) | TEXT.map(str.encode))
def test_arbitrary_bytes_are_parsed_or_refused_in_words(data: bytes) -> None:
    try:
        actions: list[Action] = parse_commit(data, file="f")
    except InvalidLogError as error:
        assert "f, line " in str(error)  # noqa: PT017 -- both outcomes are checked
    else:
        assert isinstance(serialise_commit(actions), bytes)


@given(KNOWN, JSON)
def test_a_field_replaced_by_anything_is_accepted_or_refused_in_words(
    pair: tuple[str, dict[str, Any]], value: Any
) -> None:
    kind, fields = pair
    for name in fields:
        try:
            action = from_dict({kind: {**fields, name: value}})
        except InvalidActionError as error:
            assert error.why and error.fix  # noqa: PT017, PT018 -- both outcomes are checked
        else:
            assert loads(serialise(action)) == loads(as_text({kind: {**fields, name: value}})) or (
                name == "format"
            )
