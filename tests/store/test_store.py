"""The store's verbs mean the same on every engine."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.actions import (
    Action,
    AddFile,
    CommitInfo,
    DeletionVectorDescriptor,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.errors import CatalogConstraintError
from deltalakedb.store import Counts, Store, TableRecord, VersionRecord, account
from deltalakedb.store.dialect import Session
from deltalakedb.store.relations import LIVE, RELATIONS
from deltalakedb.store.rows import ActiveFilesProblem
from deltalakedb.store.url import Engine

from support.store import append, commit, new_table, payload_of

Rows = list[tuple[Any, ...]]


def add(path: str, *, size: int = 1, dv: str | None = None, **more: Any) -> AddFile:
    return AddFile(
        path=path,
        partition_values={},
        size=size,
        modification_time=1,
        data_change=True,
        deletion_vector=vector(dv),
        **more,
    )


def remove(path: str, *, size: int | None = None, dv: str | None = None) -> RemoveFile:
    return RemoveFile(path=path, data_change=True, size=size, deletion_vector=vector(dv))


def vector(name: str | None) -> DeletionVectorDescriptor | None:
    return None if name is None else DeletionVectorDescriptor("u", name, 10, 1)


def query(store: Store, sql: str, **params: object) -> Rows:
    with store.read() as session:
        return session.execute(store.dialect.sql(sql), params)


def change(store: Store, sql: str, **params: object) -> None:
    with store.write() as session:
        session.execute_count(store.dialect.sql(sql), params)


def intervals(store: Store, table_id: str) -> Rows:
    return query(
        store,
        "SELECT path, dv_id, added_version, removed_version FROM dl_active_files "
        "WHERE table_id = :table_id ORDER BY path, dv_id, added_version",
        table_id=table_id,
    )


def problems(store: Store, table_id: str, **options: int) -> Sequence[ActiveFilesProblem]:
    with store.read() as session:
        return store.check_active_files(session, table_id, **options)


def row_counts(store: Store) -> dict[str, int]:
    with store.read() as session:
        return {
            r.name: session.execute(f"SELECT count(*) FROM {r.name}", {})[0][0] for r in RELATIONS
        }


# --- tables -------------------------------------------------------------------------------


def record(name: str = "sales.orders", location: str = "file:///orders") -> TableRecord:
    return TableRecord(
        table_id=str(uuid4()),
        name=name,
        location=location,
        protocol_min_reader=3,
        protocol_min_writer=7,
        properties={"delta.appendOnly": "true", "ключ\0": ""},
        created_at=1,
        updated_at=2,
    )


def test_a_registered_table_is_found_by_name_and_by_location(store: Store) -> None:
    first, second = record(), record("b\0\ue000'\"%", "s3://bucket/ä b\\")
    with store.write() as session:
        store.register(session, first)
        store.register(session, second)
    with store.read() as session:
        for table in (first, second):
            assert store.table_by_name(session, table.name) == table
            assert store.table_by_location(session, table.location) == table
        assert store.table_by_name(session, "sales") is None
        assert store.table_by_location(session, first.name) is None
        assert [t.name for t in store.tables(session)] == [second.name, first.name]


@pytest.mark.parametrize(
    ("name", "location"), [("sales.orders", "file:///other"), ("other", "file:///orders")]
)
def test_a_name_and_a_location_belong_to_one_table(store: Store, name: str, location: str) -> None:
    with store.write() as session:
        store.register(session, record())
    with pytest.raises(CatalogConstraintError), store.write() as session:
        store.register(session, record(name, location))
    with store.read() as session:
        assert len(store.tables(session)) == 1


# --- heads and versions -------------------------------------------------------------------


def test_a_table_without_versions_has_no_head(store: Store) -> None:
    table = record()
    with store.write() as session:
        store.register(session, table)
        assert store.head(session, table.table_id) is None
        assert not store.advance_head(session, table.table_id, expected=0)


def test_the_head_moves_only_from_the_expected_version(store: Store) -> None:
    table_id = new_table(store)
    with store.write() as session:
        assert store.head(session, table_id) == 0
        assert not store.advance_head(session, table_id, expected=1)
        assert store.head(session, table_id) == 0
        assert store.advance_head(session, table_id, expected=0)
        assert not store.advance_head(session, table_id, expected=0)
        assert store.head(session, table_id) == 1


def test_of_two_writers_at_once_one_wins(store: Store) -> None:
    table_id = new_table(store)
    ready = threading.Barrier(2)
    won: list[bool] = []

    def write() -> None:
        ready.wait()
        with store.write() as session:
            won.append(store.advance_head(session, table_id, expected=0))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, True]
    with store.read() as session:
        assert store.head(session, table_id) == 1


def test_heads_of_tables_are_independent(store: Store) -> None:
    one, other = new_table(store), new_table(store)
    assert [commit(store, one, [Txn("a", i)]) for i in (1, 2)] == [1, 2]
    with store.read() as session:
        assert (store.head(session, one), store.head(session, other)) == (2, 0)


@pytest.mark.parametrize(
    "info", [None, CommitInfo(), CommitInfo({"operation": "WRITE\0", "operationParameters": {}})]
)
def test_a_version_says_who_when_and_what(store: Store, info: CommitInfo | None) -> None:
    table_id = new_table(store)
    written = VersionRecord(
        table_id=table_id,
        version=1,
        committed_at=2**62,
        recorded_at=7,
        committer="someone\0\ue000",
        commit_info=info,
        commit_uuid=str(uuid4()),
        transaction_id=str(uuid4()),
        counts=Counts(1, 2, 3, 4, 5, 6, 7),
    )
    with store.write() as session:
        assert store.advance_head(session, table_id, expected=0)
        store.append_version(session, written, [], payload=payload_of([]), closing=[])
    with store.read() as session:
        assert store.version(session, table_id, 1) == written
        assert store.version(session, table_id, 2) is None
        assert store.actions_of(session, table_id, 1) == ([] if info is None else [info])
        assert store.actions_of(session, table_id, 2) == []


def test_a_version_is_written_once(store: Store) -> None:
    table_id = new_table(store)
    again = VersionRecord(table_id=table_id, version=0, committed_at=1, recorded_at=1)
    before = row_counts(store)
    with pytest.raises(CatalogConstraintError), store.write() as session:
        store.append_version(session, again, [add("a")], payload=payload_of([]), closing=[])
    assert row_counts(store) == before


def test_protocol_and_metadata_are_those_of_the_version(store: Store) -> None:
    one, two = Metadata(id="1", configuration={"n": "1"}), Metadata(id="2")
    table_id = new_table(store, actions=[Protocol(1, 2), one])
    commit(store, table_id, [add("a")])
    commit(store, table_id, [Protocol(3, 7, ("x",), ()), two])
    with store.read() as session:
        assert store.metadata_at(session, table_id, 1) == one
        assert store.metadata_at(session, table_id, 2) == two
        assert store.protocol_at(session, table_id, 1) == Protocol(1, 2)
        assert store.protocol_at(session, table_id, 9) == Protocol(3, 7, ("x",), ())
        assert store.protocol_at(session, str(uuid4()), 9) is None


# --- all or nothing -----------------------------------------------------------------------


def test_an_exception_leaves_nothing_of_the_transaction(store: Store) -> None:
    table_id = new_table(store, actions=[add("a")])
    before = row_counts(store)
    with pytest.raises(ZeroDivisionError), store.write() as session:  # noqa: PT012 - its end matters
        append(store, session, table_id, [CommitInfo(), add("b"), remove("a"), Txn("x", 1)])
        store.register(session, record())
        raise ZeroDivisionError
    assert row_counts(store) == before
    assert intervals(store, table_id) == [("a", "", 0, LIVE)]
    with store.read() as session:
        assert store.head(session, table_id) == 0


def test_an_error_of_the_database_leaves_nothing_of_the_transaction(store: Store) -> None:
    table_id = new_table(store)
    before = row_counts(store)
    with pytest.raises(CatalogConstraintError), store.write() as session:
        append(store, session, table_id, [add("b"), replace(add("c"), size=-1)])
    assert row_counts(store) == before
    assert commit(store, table_id, [add("b")]) == 1


def test_a_writer_sees_its_own_work_and_others_only_what_is_committed(store: Store) -> None:
    table_id = new_table(store)
    with store.write() as session:
        append(store, session, table_id, [add("a")])
        assert store.head(session, table_id) == 1
        with store.read() as other:
            assert store.head(other, table_id) == 0
    with store.read() as other:
        assert store.head(other, table_id) == 1


# --- intervals ----------------------------------------------------------------------------


def test_a_removed_file_is_live_until_the_version_that_removed_it(store: Store) -> None:
    table_id = new_table(store, actions=[add("a"), add("b")])
    commit(store, table_id, [Txn("x", 1)])
    commit(store, table_id, [remove("a")])
    assert intervals(store, table_id) == [("a", "", 0, 2), ("b", "", 0, LIVE)]


def test_adding_a_live_file_again_refreshes_it(store: Store) -> None:
    table_id = new_table(store, actions=[add("a", size=1)])
    commit(store, table_id, [add("a", size=5, stats='{"numRecords":1}')])
    assert intervals(store, table_id) == [("a", "", 0, 1), ("a", "", 1, LIVE)]
    with store.read() as session:
        assert store.live_among(session, table_id, ["a"]) == {("a", ""): 5}
        version = store.version(session, table_id, 1)
    assert version is not None
    assert (version.counts.live_files, version.counts.live_bytes) == (1, 5)


def test_a_new_deletion_vector_makes_another_logical_file(store: Store) -> None:
    table_id = new_table(store, actions=[add("a")])
    commit(store, table_id, [remove("a"), add("a", dv="v1")])
    commit(store, table_id, [remove("a", dv="v1"), add("a", dv="v2")])
    assert intervals(store, table_id) == [
        ("a", "", 0, 1),
        ("a", "uv1", 1, 2),
        ("a", "uv2", 2, LIVE),
    ]


def test_a_file_may_come_back_and_go_again(store: Store) -> None:
    table_id = new_table(store, actions=[add("a")])
    for actions in ([remove("a")], [add("a")], [remove("a")]):
        commit(store, table_id, actions)
    assert intervals(store, table_id) == [("a", "", 0, 1), ("a", "", 2, 3)]


def test_removing_what_is_not_live_changes_no_interval(store: Store) -> None:
    table_id = new_table(store, actions=[add("a", dv="v1")])
    commit(store, table_id, [remove("a"), remove("b")])
    assert intervals(store, table_id) == [("a", "uv1", 0, LIVE)]
    assert not problems(store, table_id)


def test_a_logical_file_is_never_live_twice(store: Store, engine: Engine) -> None:
    table_id = new_table(store, actions=[add("a")])
    if engine != "duckdb":
        with pytest.raises(CatalogConstraintError), store.write() as session:
            append_without_closing(store, session, table_id)
        return
    # DuckDB keeps no key on this derived relation (see docs/schema.md); the check finds it.
    with store.write() as session:
        append_without_closing(store, session, table_id)
    assert problems(store, table_id) == [
        ActiveFilesProblem("extra", "a", "", 0, LIVE),
        ActiveFilesProblem("missing", "a", "", 0, 1),
    ]


def append_without_closing(store: Store, session: Session, table_id: str) -> None:
    forgetful = VersionRecord(table_id=table_id, version=1, committed_at=1, recorded_at=1)
    store.append_version(session, forgetful, [add("a")], payload=payload_of([]), closing=[])


def test_live_among_tells_the_live_files_of_the_given_paths_only(store: Store) -> None:
    odd = "ä b%20'\"\\\ue000😀"
    table_id = new_table(
        store, actions=[add("a", size=3), add("a", dv="v1"), add(odd, size=7), add("c"), add("d")]
    )
    new_table(store, actions=[add("elsewhere")])
    commit(store, table_id, [remove("c")])
    with store.read() as session:
        found = store.live_among(session, table_id, ["a", "a", odd, "c", "elsewhere", "none"])
        assert found == {("a", ""): 3, ("a", "uv1"): 1, (odd, ""): 7}
        assert store.live_among(session, table_id, []) == {}


def test_many_files_close_at_once(store: Store) -> None:
    names = [f"part-{i:05d}" for i in range(500)]
    table_id = new_table(store, actions=[add(name) for name in names])
    commit(store, table_id, [remove(name) for name in names[:-1]])
    assert [row for row in intervals(store, table_id) if row[3] == LIVE] == [
        (names[-1], "", 0, LIVE)
    ]


# --- counts -------------------------------------------------------------------------------


def test_account_counts_what_changed_and_what_is_live_after() -> None:
    before = Counts(live_files=3, live_bytes=60)
    live = {("a", ""): 10, ("b", "uv1"): 20}
    actions: list[Action] = [
        CommitInfo(),
        remove("a", size=11),
        remove("gone"),
        remove("b"),
        add("b", size=25, dv="v1"),
        add("new", size=5),
        Txn("x", 1),
    ]
    counts, closing = account(before, actions, live)
    assert closing == [("a", ""), ("b", "uv1")]
    assert counts == Counts(
        num_actions=7,
        num_adds=2,
        num_removes=3,
        bytes_added=30,
        bytes_removed=11,
        live_files=3,
        live_bytes=60,
    )


def test_account_of_nothing_keeps_what_was_live() -> None:
    before = Counts(9, 9, 9, 9, 9, live_files=2, live_bytes=5)
    assert account(before, [], {}) == (Counts(live_files=2, live_bytes=5), [])


# --- dl_active_files against the ledger ---------------------------------------------------


def busy_table(store: Store) -> str:
    table_id = new_table(store, actions=[add("a"), add("b", dv="v1"), add("c")])
    commit(store, table_id, [remove("a"), add("d", tags={}, extra={"x": None})])
    commit(store, table_id, [add("c", size=9), remove("b", dv="v1"), add("b", dv="v2")])
    commit(store, table_id, [add("a")])
    return table_id


def all_columns(store: Store, table_id: str) -> Rows:
    rows = query(store, "SELECT * FROM dl_active_files WHERE table_id = :t", t=table_id)
    return sorted(rows, key=repr)


def test_rebuilding_gives_what_was_maintained(store: Store) -> None:
    table_id = busy_table(store)
    other = new_table(store, actions=[add("x")])
    before, beside = all_columns(store, table_id), all_columns(store, other)
    assert not problems(store, table_id)
    with store.write() as session:
        assert store.rebuild_active_files(session, table_id) == len(before) == 7
    assert all_columns(store, table_id) == before
    assert all_columns(store, other) == beside


def test_rebuilding_repairs_whatever_was_done_to_the_table(store: Store) -> None:
    table_id = busy_table(store)
    before = all_columns(store, table_id)
    change(store, "DELETE FROM dl_active_files WHERE table_id = :t AND path < 'c'", t=table_id)
    change(store, "UPDATE dl_active_files SET size_bytes = 77 WHERE table_id = :t", t=table_id)
    assert problems(store, table_id)
    with store.write() as session:
        store.rebuild_active_files(session, table_id)
    assert not problems(store, table_id)
    assert all_columns(store, table_id) == before


def test_the_check_names_a_row_that_is_missing(store: Store) -> None:
    table_id = busy_table(store)
    change(
        store,
        "DELETE FROM dl_active_files WHERE table_id = :t AND path = 'b' AND dv_id = 'uv1'",
        t=table_id,
    )
    assert problems(store, table_id) == [ActiveFilesProblem("missing", "b", "uv1", 0, 2)]


def test_the_check_names_a_row_too_many(store: Store) -> None:
    table_id = busy_table(store)
    change(
        store,
        "INSERT INTO dl_active_files (table_id, path, dv_id, added_version, removed_version, "
        "size_bytes, modification_time, data_change, partition_values) "
        "SELECT table_id, 'ghost', dv_id, added_version, removed_version, size_bytes, "
        "modification_time, data_change, partition_values FROM dl_active_files "
        "WHERE table_id = :t AND path = 'd'",
        t=table_id,
    )
    assert problems(store, table_id) == [ActiveFilesProblem("extra", "ghost", "", 1, LIVE)]


@pytest.mark.parametrize(
    ("tampering", "removed"),
    [
        ("removed_version = 3", 3),
        ("size_bytes = 2", LIVE),
        ("stats = '{}'", LIVE),
        ("""tags = '{"a":"b"}'""", LIVE),
        ("extra = NULL", LIVE),
    ],
)
def test_the_check_names_a_row_that_differs(store: Store, tampering: str, removed: int) -> None:
    table_id = busy_table(store)
    change(
        store,
        f"UPDATE dl_active_files SET {tampering} WHERE table_id = :t AND path = 'd'",
        t=table_id,
    )
    assert problems(store, table_id) == [
        ActiveFilesProblem("extra", "d", "", 1, removed),
        ActiveFilesProblem("missing", "d", "", 1, LIVE),
    ]


def test_the_check_stops_at_its_limit(store: Store) -> None:
    table_id = busy_table(store)
    change(store, "DELETE FROM dl_active_files WHERE table_id = :t", t=table_id)
    assert len(problems(store, table_id)) == 7
    assert [p.path for p in problems(store, table_id, limit=3)] == ["a", "a", "b"]


# --- the three forms of one question ------------------------------------------------------

INTERVAL = """
    SELECT path, dv_id, added_version, size_bytes FROM dl_active_files
    WHERE table_id = :t AND added_version <= :v AND removed_version > :v"""
WINDOW = """
    SELECT path, dv_id, added_version, size_bytes FROM vw_active_files
    WHERE table_id = :t AND snapshot_version = :v"""
NOT_EXISTS = """
    SELECT a.path, a.dv_id, a.version, a.size_bytes FROM dl_add_files AS a
    WHERE a.table_id = :t AND a.version <= :v
      AND NOT EXISTS (
        SELECT 1 FROM dl_add_files AS l
        WHERE l.table_id = a.table_id AND l.path = a.path AND l.dv_id = a.dv_id
          AND l.version > a.version AND l.version <= :v)
      AND NOT EXISTS (
        SELECT 1 FROM dl_remove_files AS r
        WHERE r.table_id = a.table_id AND r.path = a.path AND r.dv_id = a.dv_id
          AND r.version > a.version AND r.version <= :v)"""

LogicalFile = tuple[str, str | None]
History = list[dict[LogicalFile, str]]
logical_files = st.tuples(st.sampled_from("abc"), st.sampled_from([None, "v1", "v2"]))
histories = st.lists(
    st.dictionaries(logical_files, st.sampled_from(["add", "add", "remove"]), max_size=4),
    min_size=1,
    max_size=6,
)


def replay(live: dict[LogicalFile, int], changes: Mapping[LogicalFile, str], version: int) -> None:
    for file, kind in changes.items():
        if kind == "add":
            live[file] = version
        else:
            live.pop(file, None)


@settings(max_examples=settings.default.max_examples // 5 if settings.default else 20)
@given(history=histories)
def test_every_form_of_the_question_has_the_same_answer_at_every_version(
    shared_store: Store, history: History
) -> None:
    store = shared_store
    table_id = new_table(store)
    with store.write() as session:
        for version, changes in enumerate(history, start=1):
            actions: list[Action] = [
                add(path, dv=dv, size=version) if kind == "add" else remove(path, dv=dv)
                for (path, dv), kind in changes.items()
            ]
            append(store, session, table_id, actions)

    live: dict[LogicalFile, int] = {}
    with store.read() as session:
        for version, changes in enumerate([{}, *history]):
            replay(live, changes, version)
            expected = sorted(
                (path, f"u{dv}" if dv else "", added, added) for (path, dv), added in live.items()
            )
            for form in (INTERVAL, WINDOW, NOT_EXISTS):
                sql = store.dialect.sql(form)
                assert sorted(session.execute(sql, {"t": table_id, "v": version})) == expected
            ledger = store.version(session, table_id, version)
            assert ledger is not None
            assert ledger.counts.live_files == len(live)
            assert ledger.counts.live_bytes == sum(live.values())
        assert not store.check_active_files(session, table_id)

    before = all_columns(store, table_id)
    with store.write() as session:
        store.rebuild_active_files(session, table_id)
    assert all_columns(store, table_id) == before
