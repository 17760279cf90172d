"""Postgres that stops answering, without an end of the connection: nobody waits for ever."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psycopg
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.errors import (
    CatalogConnectionLostError,
    CatalogError,
    CatalogUnreachableError,
    CommitOutcomeUnknownError,
)
from deltalakedb.store import postgres_connection
from deltalakedb.store.arrow import FileQuery
from store.test_connections import ask

from support.cutting_proxy import COMMIT, CuttingProxy
from support.postgres_server import PostgresServer
from support.store import Catalogs, OpenStore, new_table

pytestmark = pytest.mark.timeout(120)

Silence = Literal["never", "old", "all", "before commit", "after commit"]


class SilentProxy(CuttingProxy):
    """Passes bytes on until it is silent: it keeps connections open, and passes nothing on.

    - `old`: those that are there; new ones are served;
    - `all`: new ones get no answer either;
    - `before commit`, `after commit`: the next connection that commits; the server has heard of
      the COMMIT, or not.
    """

    def __init__(self, port: int) -> None:
        self.silence: Silence = "never"
        self._silent: set[threading.Event] = set()
        self._known: set[threading.Event] = set()
        super().__init__(port)

    def fall_silent(self, silence: Silence) -> None:
        self.silence = silence
        if silence in ("old", "all"):
            self._silent |= self._known

    def _pass_on(
        self, client: socket.socket, server: socket.socket, committing: threading.Event
    ) -> None:
        self._known.add(committing)
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                is_commit = COMMIT in data
                if is_commit and self.silence == "before commit":
                    self._silent.add(committing)
                if self.silence != "all" and committing not in self._silent:
                    if is_commit and self.silence == "after commit":
                        self._silent.add(committing)
                    server.sendall(data)

    def _pass_back(
        self, client: socket.socket, server: socket.socket, committing: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self.silence != "all" and committing not in self._silent:
                    client.sendall(data)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than any URL can ask for, so that the tests do not take minutes."""
    monkeypatch.setattr(postgres_connection, "LEAST_SECONDS", 0.5)


@pytest.fixture
def direct(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("postgres") as url:
        yield url


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[SilentProxy]:
    with SilentProxy(postgres_server.port) as running:
        yield running


@pytest.fixture
def url(direct: str, proxy: SilentProxy, postgres_server: PostgresServer) -> str:
    name = str(psycopg.conninfo.conninfo_to_dict(direct)["dbname"])
    given = postgres_server.url(name, tcp=True, timeout="0.5")
    return given.replace(f":{postgres_server.port}/", f":{proxy.port}/")


def test_a_statement_that_is_not_answered_is_given_up(
    url: str, proxy: SilentProxy, open_store: OpenStore
) -> None:
    store = open_store(url)

    def ask_twice() -> None:
        with store.read() as session:
            session.execute("SELECT 1", {})
            proxy.fall_silent("all")
            session.execute("SELECT 1", {})

    with pytest.raises(CatalogConnectionLostError, match=r"did not answer for 0\.5 s"):
        ask_twice()
    proxy.fall_silent("never")
    assert ask(store) == [(1,)]


def test_a_pool_of_silent_connections_is_replaced(
    url: str, proxy: SilentProxy, open_store: OpenStore
) -> None:
    store = open_store(url)
    with store.read(), store.read(), store.read():
        pass
    proxy.fall_silent("old")
    assert ask(store) == [(1,)]


@pytest.mark.soak
def test_a_server_that_answers_nobody_is_unreachable(
    url: str, proxy: SilentProxy, open_store: OpenStore
) -> None:
    store = open_store(url)
    assert ask(store) == [(1,)]
    proxy.fall_silent("all")
    with pytest.raises(CatalogUnreachableError):
        ask(store)
    store.close()


def test_a_listing_that_is_not_answered_is_given_up(
    url: str, proxy: SilentProxy, open_store: OpenStore
) -> None:
    store = open_store(url)
    table_id = new_table(store)
    text = "SELECT path FROM dl_active_files WHERE table_id = :table_id"
    query = FileQuery(text, ("path",), {"table_id": table_id})
    assert list(store.dialect.list_files(query)) == []
    proxy.fall_silent("old")
    # The idle connection is replaced by one that is answered.
    assert list(store.dialect.list_files(query)) == []
    proxy.fall_silent("all")
    with pytest.raises(CatalogError, match=r"did not answer|cannot be reached"):
        list(store.dialect.list_files(query))
    store.close()


@pytest.mark.parametrize("silence", ["before commit", "after commit"])
def test_a_commit_that_is_not_answered_happens_once(
    silence: Silence, url: str, direct: str, proxy: SilentProxy, tmp_path: Path
) -> None:
    with deltalakedb.connect(url, mirror="worker") as lake:
        table = lake.create_table(
            "t", location=tmp_path.as_uri(), schema=pa.schema([("id", pa.int64())])
        )
        proxy.fall_silent(silence)
        release_after_commit(proxy)
        assert table.append(pa.table({"id": [1]})) == 1
    with deltalakedb.connect(direct, mirror="worker") as lake:
        found = lake.table("t").snapshot()
        assert (found.version, found.to_arrow().to_pylist()) == (1, [{"id": 1}])


def release_after_commit(proxy: SilentProxy) -> None:
    """Let later connections commit; the one that is silent stays so."""

    def watch() -> None:
        while not proxy._silent:
            done.wait(0.01)
        proxy.silence = "never"

    done = threading.Event()
    threading.Thread(target=watch, daemon=True).start()


def test_the_outcome_of_a_commit_that_nobody_answers_for_stays_open(
    url: str, proxy: SilentProxy, open_store: OpenStore
) -> None:
    store = open_store(url)
    table_id = new_table(store)
    proxy.fall_silent("after commit")
    with pytest.raises(CommitOutcomeUnknownError), store.write() as session:
        assert store.advance_head(session, table_id, expected=0)


def test_a_statement_that_takes_long_is_not_given_up(url: str, open_store: OpenStore) -> None:
    assert ask(open_store(url), "SELECT 1 FROM pg_sleep(2)") == [(1,)]


@pytest.mark.soak
def test_word_to_workers_is_not_waited_for(
    url: str, proxy: SilentProxy, open_store: OpenStore
) -> None:
    store = open_store(url)
    store.dialect.wake_workers()
    proxy.fall_silent("all")
    store.dialect.wake_workers()
    store.close()


def test_the_system_is_told_to_look_for_dead_peers(url: str, open_store: OpenStore) -> None:
    store = open_store(f"{url}&keepalives_count=7")
    with store.read() as session:
        connection = session._connection  # type: ignore[attr-defined]
        with socket.socket(fileno=socket.dup(connection.fileno())) as end:
            options = {
                name: end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            }
    assert options == {"TCP_KEEPIDLE": 2, "TCP_KEEPCNT": 7, "TCP_USER_TIMEOUT": 4000}
