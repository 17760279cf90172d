"""Taking the head of a table: one wait for its holder, and what a commit has to know then."""

import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from deltalakedb.actions import Action, AddFile, CommitInfo, RemoveFile, Txn
from deltalakedb.errors import (
    CatalogBusyError,
    CatalogConnectionLostError,
    CatalogConstraintError,
    CommitOutcomeUnknownError,
    TransactionAbortedError,
)
from deltalakedb.store import Store
from deltalakedb.store.dialect import Take, Taken
from deltalakedb.store.mirror import set_drift
from deltalakedb.store.relations import TXN_ACTIONS
from store.test_connections import with_options

from support.postgres_server import PostgresServer
from support.store import Catalogs, OpenStore, append, commit, new_table

ODD_PATHS = [
    *("a b", 'quo"te', "back\\slash", "{brace,s}", "NULL", "nul\x00l", "\ue000", "\ue0000"),
    *("tab\tnew\nline", "ünï/😀", "%(x)s %s %%", "$1", "'", '\\"'),
]


def add(path: str) -> AddFile:
    return AddFile(path, {}, 5, 1, data_change=True)


def take(table_id: str, base: int, paths: list[str] | None = None, **options: Any) -> Take:
    known = {"last": base + 64, "commit_uuid": str(uuid4()), "unless_drifted": True}
    return Take(table_id=table_id, base=base, paths=paths or [], **{**known, **options})


class _UndoneError(Exception):
    pass


def taken(store: Store, take: Take) -> Taken:
    """The head as a commit would take it; it is released again."""
    result = None
    try:
        with store.begin_commit(take) as session:
            result = session.take_head(take)
            raise _UndoneError
    except _UndoneError:
        assert result is not None
        return result


def test_a_head_that_nobody_has_moved(store: Store) -> None:
    table_id = new_table(store)
    found = taken(store, take(table_id, 0))
    assert found.version == 1
    assert found.since is None


def test_commits_that_only_add_files_are_told_from_others(store: Store) -> None:
    table_id = new_table(store)
    commit(store, table_id, [CommitInfo({"operation": "WRITE"}), add("a")])
    commit(store, table_id, [add("b"), add("c")])
    since = taken(store, take(table_id, 0)).since
    assert since is not None
    assert (since.commits, since.first, since.version, since.others) == (2, 1, 2, 0)
    with store.read() as session:
        newest = store.version(session, table_id, 2)
    assert newest is not None
    assert (since.committed_at, since.counts) == (newest.committed_at, tuple(newest.counts))
    more: list[list[Action]] = [
        [Txn("app", 1)],
        [CommitInfo({"operation": "x"}), Txn("app", 2), add("d")],
        [add("e"), Txn("app", 3)],
        [RemoveFile("a", data_change=True)],
    ]
    for others, actions in enumerate(more, start=1):
        commit(store, table_id, actions)
        since = taken(store, take(table_id, 0)).since
        assert since is not None
        assert since.others == others


def test_a_commit_of_the_same_uuid_is_recognised(store: Store) -> None:
    table_id = new_table(store)
    commit(store, table_id, [add("a")])
    with store.read() as session:
        record = store.version(session, table_id, 1)
    assert record is not None
    for uuid, own in ((record.commit_uuid, 1), (str(uuid4()), 0)):
        since = taken(store, take(table_id, 0, commit_uuid=uuid)).since
        assert since is not None
        assert since.own == own


def test_only_so_many_commits_are_looked_at(store: Store) -> None:
    table_id = new_table(store)
    for number in range(4):
        commit(store, table_id, [add(str(number))])
    found = taken(store, take(table_id, 0, last=2))
    assert found.version == 5
    assert found.since is not None
    assert (found.since.commits, found.since.version) == (2, 2)


def test_a_table_that_is_missing_or_has_drifted_has_no_head(store: Store) -> None:
    assert taken(store, take(str(uuid4()), 0)).version is None
    table_id = new_table(store)
    with store.write() as session:
        set_drift(session, table_id, {"object_key": "x"}, now=1)
    assert taken(store, take(table_id, 0)).version is None
    assert taken(store, take(table_id, 0, unless_drifted=False)).version == 1


# --- Postgres -----------------------------------------------------------------------------


@pytest.fixture
def postgres(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("postgres") as url:
        yield url


def test_odd_paths_are_found_with_the_head(postgres: str, open_store: OpenStore) -> None:
    store = open_store(postgres)
    table_id = new_table(store)
    commit(store, table_id, [add(path) for path in ODD_PATHS])
    with store.read() as session:
        assert len(store.actions_of(session, table_id, 1)) == len(ODD_PATHS)
        stored = {action.path for action in store.actions_of(session, table_id, 1)}  # type: ignore[union-attr]
    assert stored == set(ODD_PATHS)
    live = taken(store, take(table_id, 1, [*ODD_PATHS, "other", ""])).live
    assert live == {(path, ""): 5 for path in ODD_PATHS}


def test_who_comes_second_waits_and_sees_the_first(postgres: str, open_store: OpenStore) -> None:
    store, other = open_store(postgres), open_store(postgres)
    table_id = new_table(store)
    results: list[Taken] = []
    asked = take(table_id, 0, ["a"])
    assert taken(other, take(table_id, 0)).version == 1  # it is connected
    second = threading.Thread(target=lambda: results.append(taken(other, asked)))
    with store.write() as session:
        append(store, session, table_id, [add("a")])
        second.start()
        while not _is_waiting(postgres):
            pass
    second.join()
    assert results[0].version == 2
    assert results[0].since is not None
    assert results[0].since.commits == 1
    assert results[0].live == {("a", ""): 5}


def _is_waiting(url: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        return found.fetchone() is not None


def test_a_head_that_stays_held_is_an_error_and_leaves_the_connection(
    postgres: str, open_store: OpenStore
) -> None:
    store, other = open_store(postgres), open_store(with_options(postgres, timeout=0.2))
    table_id = new_table(store)
    assert taken(other, take(table_id, 0)).version == 1
    with store.write() as session:
        store.lock_head(session, table_id)
        for _ in range(3):
            with pytest.raises(CatalogBusyError):
                taken(other, take(table_id, 0))
    assert taken(other, take(table_id, 0)).version == 1


def test_a_connection_that_died_while_idle_is_replaced(
    postgres: str, postgres_server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(postgres)
    table_id = new_table(store)
    assert taken(store, take(table_id, 0)).version == 1
    _terminate(postgres_server, postgres)
    assert taken(store, take(table_id, 0)).version == 1


def _terminate(server: PostgresServer, url: str) -> None:
    database = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
            [database],
        )


def test_rows_that_are_refused_with_the_commit_are_no_unknown_outcome(
    postgres: str, open_store: OpenStore
) -> None:
    store = open_store(postgres)
    table_id = new_table(store)

    def record_twice() -> None:
        with store.write() as session, session.batch():
            session.insert(TXN_ACTIONS, [(table_id, 1, "app", 1, None, None)] * 2)

    with pytest.raises(CatalogConstraintError):
        record_twice()
    with store.read() as session:
        assert store.newest_app_txn(session, table_id, "app") is None


def test_rows_of_a_batch_are_there_for_the_next_statement(
    postgres: str, open_store: OpenStore
) -> None:
    store = open_store(postgres)
    table_id = new_table(store)
    with store.write() as session:
        with session.batch():
            session.insert(TXN_ACTIONS, [(table_id, 1, "app", 7, None, None)])
        assert store.newest_app_txn(session, table_id, "app") == (7, 1)


@pytest.mark.parametrize("rows", [1, 0])
def test_a_commit_is_open_only_where_the_server_ended_at_commit(
    rows: int, postgres: str, postgres_server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(postgres)
    table_id = new_table(store)

    def lose() -> None:
        with store.write() as session:
            store.lock_head(session, table_id)
            with session.batch():
                session.insert(TXN_ACTIONS, [(table_id, 1, "app", 7, None, None)] * rows)
            _terminate(postgres_server, postgres)

    with pytest.raises(CatalogConnectionLostError) as caught:
        lose()
    assert isinstance(caught.value, CommitOutcomeUnknownError) == (not rows)


def test_statements_that_are_gone_are_prepared_again(postgres: str, open_store: OpenStore) -> None:
    store = open_store(with_options(postgres, pool_size=1))
    table_id = new_table(store)
    assert taken(store, take(table_id, 0)).version == 1
    with store.read() as session:
        session.execute("DEALLOCATE ALL", {})
    with pytest.raises(TransactionAbortedError):
        taken(store, take(table_id, 0))
    assert taken(store, take(table_id, 0)).version == 1


def test_statements_are_prepared_once(postgres: str, open_store: OpenStore) -> None:
    store = open_store(with_options(postgres, pool_size=1))
    table_id = new_table(store)

    def prepared() -> set[str]:
        with store.read() as session:
            rows = session.execute(
                "SELECT name FROM pg_prepared_statements WHERE name LIKE 'dl_%%'", {}
            )
        return {row[0] for row in rows}

    def work() -> None:
        commit(store, table_id, [add(str(uuid4()))])
        with store.read() as session:
            head = store.head(session, table_id)
            session.read_all()
        assert head is not None
        taken(store, take(table_id, head))

    work()
    before = prepared()
    for _ in range(10):
        work()
    assert prepared() == before != set()
    with store.write() as session:
        session.script("CREATE TEMPORARY TABLE t (n INT); DROP TABLE t")
    work()
    after = prepared()
    assert after.isdisjoint(before)
    work()
    assert prepared() == after != set()


def test_statements_of_the_driver_are_prepared_again_too(
    postgres: str, open_store: OpenStore
) -> None:
    """psycopg notices that statements are dropped only the first time."""
    store = open_store(with_options(postgres, pool_size=1))
    table_id = new_table(store)
    for version in range(1, 5):
        paths = [f"{version}-{number}" for number in range(2)]
        commit(store, table_id, [add(path) for path in paths])
        with store.write() as session:
            session.write_keys([])  # by a relation that is dropped again
            assert session.close_files(table_id, version + 1, [(path, "") for path in paths]) == 2
