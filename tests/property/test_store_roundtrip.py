"""JSON → value → database row → value → JSON loses nothing, on every engine."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltalakedb.actions import (
    Action,
    AddFile,
    parse_commit,
    parse_line,
    serialise,
    serialise_commit,
)
from deltalakedb.actions.codec import ORDER
from deltalakedb.store import Store
from deltalakedb.store.dialect import Session
from deltalakedb.store.relations import ADD_FILES, UNPLANNED_FILES
from deltalakedb.store.rows import from_row

from support.store import append, new_table

Document = dict[str, Any]

# --- what a log may hold ------------------------------------------------------------------

# NUL, the character that Postgres escapes it with and what follows that there, the last of the
# basic plane, right-to-left marks, combining and astral characters, and all that SQL, JSON and
# COPY give a meaning to.
PECULIAR = "\0\ue00001\uffff\u202e\u0301😀é%$:\\\"'{}[],;\n\r\t\x1f\x7f\x85\u2028 u"

text = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=PECULIAR, max_size=12),
    st.sampled_from(["", "null", "NULL", "\\N", "\\u0000", "\\.", "{}", "\ue0000", "العربية"]),
)
paths = text.map(lambda s: s.replace("\0", "").replace("%00", "")).filter(bool)
int64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0]))
identifiers = text.map(lambda s: s.replace("\0", "")).filter(bool)
natural = st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 2**63 - 1]))
# Beside the ledger the catalog sums sizes up, so that their sum has to fit 64 bits too.
size = st.one_of(st.integers(0, 2**56), st.just(0))
int32 = st.integers(-(2**31), 2**31 - 1)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    text,
    st.integers(-(10**60), 10**60),
    int64,
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from([Decimal("1E+400"), Decimal("-1.5E-400"), Decimal("0.10"), Decimal("1E2")]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
nullable_map = st.dictionaries(text, st.none() | text, max_size=3)
string_map = st.dictionaries(text, text, max_size=3)
statistics = st.one_of(
    text,
    st.sampled_from(
        [
            '{"numRecords":1,"minValues":{"x":NaN},"maxValues":{"x":Infinity,"y":-Infinity}}',
            '{"numRecords":1,"minValues":{"x":"NaN"},"maxValues":{"x":"Infinity"}}',
            '{"numRecords":9223372036854775808,"nullCount":{"a":{"b":0}}}',
            '{"minValues":{"s":"\\u0000"},"maxValues":{"s":"\\ud83d\\ude00"}}',
            '{ "numRecords" : 1.0 }',
        ]
    ),
)
schema_strings = st.one_of(
    anything.map(lambda value: write(value, ascii_only=False)),
    st.sampled_from(
        [
            '{"type":"struct","fields":[]}',
            '{ "type" : "struct",\n "fields" : [ ] }',
            '{"type":"struct","fields":[{"name":"\\u0000\ue000","metadata":{"a":1,"a":2}}]}',
        ]
    ),
)


def fields(
    required: Mapping[str, st.SearchStrategy[Any]],
    optional: Mapping[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[Document]:
    """An object: optional fields absent, null or set, and fields that nobody knows."""
    known = {*required, *optional}
    given_fields = st.fixed_dictionaries(
        dict(required), optional={name: st.none() | kind for name, kind in optional.items()}
    )
    unknown = st.dictionaries(text.filter(lambda name: name not in known), anything, max_size=2)
    return st.tuples(unknown, given_fields).map(lambda pair: {**pair[0], **pair[1]})


deletion_vector = fields(
    {
        "storageType": st.sampled_from("upi") | identifiers,
        "pathOrInlineDv": identifiers,
        "sizeInBytes": int32,
        "cardinality": natural,
    },
    {"offset": int32},
)
tail: dict[str, st.SearchStrategy[Any]] = {
    "stats": statistics,
    "tags": nullable_map,
    "deletionVector": deletion_vector,
    "baseRowId": int64,
    "defaultRowCommitVersion": int64,
}
add = fields(
    {
        "path": paths,
        "partitionValues": nullable_map,
        "size": size,
        "modificationTime": natural,
        "dataChange": st.booleans(),
    },
    {**tail, "clusteringProvider": text},
)
remove = fields(
    {"path": paths, "dataChange": st.booleans()},
    {
        **tail,
        "deletionTimestamp": natural,
        "extendedFileMetadata": st.booleans(),
        "partitionValues": nullable_map,
        "size": size,
    },
)
cdc = fields(
    {"path": paths, "partitionValues": nullable_map, "size": natural, "dataChange": st.booleans()},
    {"tags": nullable_map},
)
metadata = fields(
    {
        "id": text,
        "format": fields({"provider": text, "options": string_map}, {}),
        "partitionColumns": st.lists(text, max_size=3),
        "configuration": string_map,
    },
    {
        "schemaString": schema_strings,
        "name": text,
        "description": text,
        "createdTime": natural,
    },
)
protocol = fields(
    {"minReaderVersion": st.integers(1, 2**31 - 1), "minWriterVersion": st.integers(1, 7)},
    {
        "readerFeatures": st.lists(text, max_size=3),
        "writerFeatures": st.lists(text, max_size=3),
    },
)
txn = fields({"appId": text, "version": int64}, {"lastUpdated": int64})
domain = fields({"domain": text, "configuration": text, "removed": st.booleans()}, {})
commit_info = st.dictionaries(text, anything, max_size=3).flatmap(
    lambda free: st.fixed_dictionaries(
        {},
        optional={
            "operation": anything,
            "operationParameters": anything,
            "operationMetrics": st.dictionaries(text, anything, max_size=3),
            "timestamp": int64,
            "inCommitTimestamp": int64,
            "isBlindAppend": st.booleans(),
        },
    ).map(lambda usual: {**free, **usual})
)
checkpoint_metadata = fields({"version": int64}, {"tags": nullable_map})
sidecar = fields(
    {"path": paths, "sizeInBytes": natural, "modificationTime": int64}, {"tags": nullable_map}
)
unknown_action = st.tuples(text.filter(lambda name: name not in ORDER), anything)


def of_kind(
    name: str, body: st.SearchStrategy[Any], *, at_most: int
) -> st.SearchStrategy[list[Document]]:
    return st.lists(body, max_size=at_most).map(lambda bodies: [{name: b} for b in bodies])


def logical_file(document: Document) -> tuple[str, str]:
    ((_, body),) = document.items()
    vector = body.get("deletionVector")
    if vector is None:
        return body["path"], ""
    offset = vector.get("offset")
    suffix = "" if offset is None else f"@{offset}"
    return body["path"], vector["storageType"] + vector["pathOrInlineDv"] + suffix


def first_of_each(documents: Iterable[Document]) -> list[Document]:
    """Delta forbids two actions of one commit on the same thing; keep the first."""
    kept: dict[object, Document] = {}
    for document in documents:
        ((name, body),) = document.items()
        key: object = {
            "add": lambda d=document: ("file", logical_file(d)),
            "remove": lambda d=document: ("file", logical_file(d)),
            "cdc": lambda b=body: ("cdc", b["path"]),
            "txn": lambda b=body: ("txn", b["appId"]),
            "domainMetadata": lambda b=body: ("domain", b["domain"]),
        }.get(name, object)()
        kept.setdefault(key, document)
    return list(kept.values())


commits = (
    st.tuples(
        of_kind("commitInfo", commit_info, at_most=1),
        of_kind("protocol", protocol, at_most=1),
        of_kind("metaData", metadata, at_most=1),
        of_kind("domainMetadata", domain, at_most=2),
        of_kind("txn", txn, at_most=2),
        of_kind("remove", remove, at_most=3),
        of_kind("add", add, at_most=3),
        of_kind("cdc", cdc, at_most=2),
        of_kind("checkpointMetadata", checkpoint_metadata, at_most=1),
        of_kind("sidecar", sidecar, at_most=1),
        st.lists(unknown_action, max_size=2).map(lambda pairs: [{n: v} for n, v in pairs]),
    )
    .map(lambda kinds: [document for kind in kinds for document in kind])
    .map(first_of_each)
)


def write(value: Any, *, ascii_only: bool) -> str:
    """JSON text in the order of its keys, with numbers as they are."""
    if isinstance(value, dict):
        items = (
            f"{json.dumps(key, ensure_ascii=ascii_only)}:{write(item, ascii_only=ascii_only)}"
            for key, item in value.items()
        )
        return f"{{{','.join(items)}}}"
    if isinstance(value, list):
        return f"[{','.join(write(item, ascii_only=ascii_only) for item in value)}]"
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=ascii_only)


def exact(line: str) -> Any:
    return json.loads(line, parse_float=Decimal)


def parsed(line: str) -> Action:
    (action,) = parse_line(line)
    return action


# --- through the database and back --------------------------------------------------------


def in_order(actions: Iterable[Action]) -> list[Action]:
    return sorted(actions, key=serialise)


def stored_and_read(store: Store, actions: Sequence[Action]) -> list[Action]:
    table_id = new_table(store, actions=actions)
    with store.read() as session:
        again = store.actions_of(session, table_id, 0)
        assert not store.check_active_files(session, table_id)
        live = live_files(store, session, table_id)
        query = store.dialect.sql("SELECT payload FROM dl_mirror_status WHERE table_id = :table_id")
        ((payload,),) = session.execute(query, {"table_id": table_id})
    assert in_order(live) == in_order(a for a in actions if isinstance(a, AddFile))
    assert bytes(payload) == serialise_commit(actions)
    return again


def live_files(store: Store, session: Session, table_id: str) -> list[Action]:
    """The live files of a table as dl_active_files has them."""
    query = (
        f"SELECT {', '.join(UNPLANNED_FILES.columns)} FROM dl_active_files "
        "WHERE table_id = :table_id AND removed_version = 9223372036854775807"
    )
    rows = session.execute(store.dialect.sql(query), {"table_id": table_id})
    return [
        from_row(ADD_FILES, (table, added, path, dv_id, *rest), session)
        for table, path, dv_id, added, _, *rest in rows
    ]


def assert_nothing_lost(store: Store, actions: Sequence[Action]) -> None:
    again = stored_and_read(store, actions)
    assert serialise_commit(again) == serialise_commit(actions)
    assert in_order(again) == in_order(actions)


# Each example is a whole commit; `make soak` runs many more.
@settings(max_examples=settings.default.max_examples // 2 if settings.default else 50)
@given(documents=commits, ascii_only=st.booleans())
@example(
    documents=[
        {"commitInfo": {"operationParameters": {"n": Decimal("1E+400"), "\0": "\ue000"}}},
        {"add": {"path": "p", "partitionValues": {}, "size": 0, "modificationTime": 0,
                 "dataChange": True, "tags": {}, "stats": None, "\0": "\0"}},
    ],
    ascii_only=False,
)  # fmt: skip
def test_any_commit_comes_back_from_the_database_as_it_was(
    shared_store: Store, documents: list[Document], ascii_only: bool
) -> None:
    lines = [write(document, ascii_only=ascii_only) for document in documents]
    actions = [parsed(line) for line in lines]
    for line, action in zip(lines, actions, strict=True):
        assert exact(serialise(action)) == exact(line)
    assert_nothing_lost(shared_store, actions)


@settings(max_examples=settings.default.max_examples // 15 if settings.default else 6)
@given(documents=st.lists(add, min_size=1, max_size=4), removes=st.lists(remove, max_size=4))
def test_a_commit_of_many_files_comes_back_too(
    shared_store: Store, documents: list[Document], removes: list[Document]
) -> None:
    # Enough for the ways in bulk: COPY on Postgres, Arrow on DuckDB.
    many = [{**documents[i % len(documents)], "path": f"a{i}"} for i in range(70)]
    many_removes = [{**removes[i % len(removes)], "path": f"r{i}"} for i in range(70) if removes]
    lines = [write({"add": body}, ascii_only=False) for body in many]
    lines += [write({"remove": body}, ascii_only=False) for body in many_removes]
    assert_nothing_lost(shared_store, [parsed(line) for line in lines])


LONG = "ä\0😀x" * 25_000


@pytest.mark.parametrize(
    "document",
    [
        {
            "add": {
                "path": "p",
                "partitionValues": {LONG: LONG},
                "size": 0,
                "modificationTime": 0,
                "dataChange": True,
                "stats": LONG,
                "tags": {"t": LONG},
                "clusteringProvider": LONG,
                "more": LONG,
            }
        },
        {
            "metaData": {
                "id": LONG,
                "name": LONG,
                "description": LONG,
                "format": {"provider": LONG, "options": {"o": LONG}},
                "schemaString": json.dumps(LONG),
                "partitionColumns": [LONG],
                "configuration": {LONG: LONG},
            }
        },
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [LONG],
                "writerFeatures": [LONG],
            }
        },
        {"domainMetadata": {"domain": "d", "configuration": LONG, "removed": False}},
        {"commitInfo": {"operation": LONG, "operationParameters": {"p": LONG}, "x": LONG}},
        {"sidecar": {"path": LONG.replace("\0", ""), "sizeInBytes": 1, "modificationTime": 1}},
        {LONG: LONG},
    ],
    ids=lambda document: next(iter(document))[:20],
)
def test_very_long_strings_come_back(shared_store: Store, document: Document) -> None:
    assert_nothing_lost(shared_store, [parsed(write(document, ascii_only=False))])


@pytest.mark.parametrize("number", ["1e200000", "1e-200000", "-0.0", "1.50", "9" * 4000])
def test_numbers_of_any_size_come_back(shared_store: Store, number: str) -> None:
    assert_nothing_lost(
        shared_store,
        [
            parsed(f'{{"commitInfo":{{"operationParameters":{{"n":{number}}},"n":{number}}}}}'),
            parsed(f'{{"txn":{{"appId":"a","version":1,"more":{number}}}}}'),
            parsed(f'{{"unknown":[{number}]}}'),
        ],
    )


def test_absent_null_and_empty_are_three_things(shared_store: Store) -> None:
    base = '"partitionValues":{},"size":1,"modificationTime":1,"dataChange":true'
    actions = [
        parsed(f'{{"add":{{"path":"absent",{base}}}}}'),
        parsed(f'{{"add":{{"path":"null",{base},"tags":null,"stats":null}}}}'),
        parsed(f'{{"add":{{"path":"empty",{base},"tags":{{}},"stats":""}}}}'),
        parsed('{"remove":{"path":"absent-r","dataChange":true}}'),
        parsed('{"remove":{"path":"null-r","dataChange":true,"partitionValues":null}}'),
        parsed('{"remove":{"path":"empty-r","dataChange":true,"partitionValues":{}}}'),
        parsed('{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":[]}}'),
    ]
    assert len({serialise(action).replace("-r", "") for action in actions}) == len(actions)
    assert_nothing_lost(shared_store, actions)


# --- real logs ----------------------------------------------------------------------------

COMMIT_FILE = re.compile(r"[0-9]{20}(\.[0-9a-f-]{36})?\.json")


def test_every_golden_commit_comes_back(store: Store, golden_dir: Path) -> None:
    logs: dict[Path, list[Path]] = {}
    for path in sorted(golden_dir.glob("**/_delta_log/**/*.json")):
        if COMMIT_FILE.fullmatch(path.name) and path.stat().st_size:
            logs.setdefault(path.parent, []).append(path)
    assert len(logs) > 10
    for files in logs.values():
        table_id = new_table(store)
        with store.write() as session:
            for file in files:
                actions = parse_commit(file.read_bytes(), file=str(file))
                version = append(store, session, table_id, actions)
                again = store.actions_of(session, table_id, version)
                assert serialise_commit(again) == serialise_commit(actions), file
                assert in_order(again) == in_order(actions), file
            assert not store.check_active_files(session, table_id), files[0]
