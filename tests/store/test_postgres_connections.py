"""Connections to Postgres: those that die, servers that restart or do not answer, roles, TLS."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from deltalakedb.actions import Txn
from deltalakedb.errors import (
    CatalogConnectionLostError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnreachableError,
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
)
from deltalakedb.store import Store
from store.test_connections import ask, time_limit, with_options

from support.cutting_proxy import CuttingProxy, Moment
from support.postgres_server import PostgresServer, why_no_tls
from support.store import Catalogs, OpenStore, commit, new_table

# --- Postgres -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that this module may stop; with TLS where that can be had."""
    with PostgresServer(fsync=False, ssl=not why_no_tls()) as server:
        yield server


@pytest.fixture
def postgres(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("postgres") as url:
        yield url


def terminate(server: PostgresServer, store: Store) -> None:
    """End the server's side of every connection to the database of `store`."""
    ((database,),) = ask(store, "SELECT current_database()")
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = %s AND pid <> pg_backend_pid()",
            [database],
        )


def test_connections_that_died_while_idle_are_replaced(
    postgres: str, postgres_server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(postgres)
    table_id = new_table(store)
    with store.read(), store.read(), store.read():
        pass
    terminate(postgres_server, store)
    assert commit(store, table_id, [Txn("a", 1)]) == 1
    terminate(postgres_server, store)
    assert ask(store) == [(1,)]


def test_a_connection_that_dies_in_use_is_an_error_once(
    postgres: str, postgres_server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(with_options(postgres, pool_size=2))
    table_id = new_table(store)

    def move_head_on_a_dying_connection() -> None:
        with store.write() as session:
            assert store.advance_head(session, table_id, expected=0)
            terminate(postgres_server, store)
            store.head(session, table_id)

    with pytest.raises(CatalogConnectionLostError) as caught:
        move_head_on_a_dying_connection()
    assert not isinstance(caught.value, CommitOutcomeUnknownError)
    for _ in range(3):  # no place in the pool was lost
        with store.read() as session, store.read():
            assert store.head(session, table_id) == 0


def test_a_restart_of_the_server_is_not_noticed(
    own_server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(own_server.url(own_server.create_database()))
    store.migrator.ensure()
    table_id = new_table(store)
    own_server.restart()
    assert commit(store, table_id, [Txn("a", 1)]) == 1


def test_a_server_that_is_down_is_an_error_until_it_is_back(
    own_server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(own_server.url())
    assert ask(store) == [(1,)]
    own_server.stop()
    try:
        for _ in range(2):
            with pytest.raises(CatalogUnreachableError, match="Check that the server runs"):
                ask(store)
    finally:
        own_server.start()
    assert ask(store) == [(1,)]


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://me@127.0.0.1:{port}/db?connect_timeout=2"
        with time_limit(at_least=1), pytest.raises(CatalogUnreachableError):
            ask(Store.open(url))


def test_a_failed_statement_cannot_be_committed(postgres: str, open_store: OpenStore) -> None:
    store = open_store(postgres)
    with (
        pytest.raises(CatalogError, match="rolled"),
        store.write() as session,
        contextlib.suppress(CatalogError),
    ):
        session.execute("SELECT 1/0", {})


def test_each_transaction_reads_what_was_committed_whatever_the_role_defaults_to(
    postgres: str, open_store: OpenStore
) -> None:
    options = quote("-c default_transaction_isolation=serializable")
    store = open_store(with_options(postgres, options=options))
    assert ask(store, "SHOW transaction_isolation") == [("read committed",)]


@pytest.mark.parametrize(("cut", "committed"), [("after", True), ("before", False)])
def test_a_lost_answer_to_commit_leaves_the_outcome_open(
    cut: Moment,
    committed: bool,
    postgres: str,
    postgres_server: PostgresServer,
    open_store: OpenStore,
) -> None:
    direct = open_store(postgres)
    table_id = new_table(direct)
    ((database,),) = ask(direct, "SELECT current_database()")
    with CuttingProxy(postgres_server.port) as proxy:
        url = postgres_server.url(database, tcp=True).replace(
            f":{postgres_server.port}/", f":{proxy.port}/"
        )
        store = open_store(url)
        assert ask(store) == [(1,)]
        proxy.cut = cut
        with pytest.raises(CommitOutcomeUnknownError):
            commit(store, table_id, [Txn("a", 1)])
        with direct.read() as session:
            assert direct.head(session, table_id) == (1 if committed else 0)
        with pytest.raises(CatalogConnectionLostError) as caught:
            ask(store)
        assert not isinstance(caught.value, CommitOutcomeUnknownError)
        proxy.cut = "never"
        assert ask(store) == [(1,)]


def test_a_custom_schema_is_a_catalog_of_its_own(catalogs: Catalogs, open_store: OpenStore) -> None:
    with catalogs.empty("postgres") as url:
        odd = 'Lakes "of" ä%'
        one = open_store(with_options(url, schema=quote(odd)))
        other = open_store(with_options(url, schema="other"))
        for store in (one, other):
            store.migrator.ensure()
            store.migrator.ensure()
        table_id = new_table(one, "t")
        new_table(other, "t")
        with other.read() as session:
            assert other.head(session, table_id) is None
            assert len(other.tables(session)) == 1
        schemas = ask(one, "SELECT schemaname FROM pg_tables WHERE tablename = 'dl_tables'")
        assert sorted(schemas) == sorted([(odd,), ("other",)])


def test_a_role_that_may_not_do_it_is_told_so(
    postgres: str, postgres_server: PostgresServer, open_store: OpenStore
) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS stranger")
        admin.execute(sql.SQL("CREATE ROLE stranger LOGIN"))
    store = open_store(postgres.replace("postgresql://postgres@", "postgresql://stranger@"))
    with pytest.raises(CatalogPermissionError, match="dl_tables"):
        ask(store, "SELECT * FROM dl_tables")


# --- TLS ----------------------------------------------------------------------------------

needs_tls = pytest.mark.skipif(bool(why_no_tls()), reason=why_no_tls())
IS_ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@needs_tls
def test_tls_can_be_required(own_server: PostgresServer, open_store: OpenStore) -> None:
    store = open_store(own_server.url(tcp=True, sslmode="require"))
    assert ask(store, IS_ENCRYPTED) == [(True,)]


@needs_tls
def test_the_certificate_of_the_server_can_be_verified(
    own_server: PostgresServer, open_store: OpenStore, tmp_path: Path
) -> None:
    verified = {"sslmode": "verify-full", "sslrootcert": str(own_server.certificate)}
    assert ask(open_store(own_server.url(tcp=True, **verified)), IS_ENCRYPTED) == [(True,)]
    with PostgresServer(fsync=False, ssl=True) as stranger:
        verified["sslrootcert"] = str(stranger.certificate)
        with pytest.raises(CatalogUnreachableError, match="certificate"):
            ask(open_store(own_server.url(tcp=True, **verified)))


def test_a_server_without_tls_is_refused_where_tls_is_required(
    postgres_server: PostgresServer, open_store: OpenStore
) -> None:
    with pytest.raises(DeltaLakeDbError, match="SSL") as caught:
        ask(open_store(postgres_server.url(tcp=True, sslmode="require")))
    assert isinstance(caught.value, CatalogUnreachableError)
    assert "TLS options" in caught.value.fix
