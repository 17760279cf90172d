"""The launcher that every Postgres test stands on keeps its own promises."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support import postgres_server as launcher
from support.postgres_server import PostgresServer, PostgresUnavailableError, is_alive, why_no_tls


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync=False) as server:
        yield server


def query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return row[0] if row else None


def test_a_database_is_new_and_speaks_utf8(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    assert first != second
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert query(postgres_server.url(first), tables) == 0
    assert query(postgres_server.url(second), "SHOW server_encoding") == "UTF8"


def test_tcp_asks_for_the_password_and_the_socket_does_not(
    postgres_server: PostgresServer,
) -> None:
    assert query(postgres_server.url(), "SELECT 1") == 1
    assert query(postgres_server.url(tcp=True), "SELECT 1") == 1
    wrong = postgres_server.url(tcp=True).replace(postgres_server.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_a_killed_server_is_dead_and_recovers_what_was_committed(server: PostgresServer) -> None:
    url = server.url(server.create_database())
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS x")
    with psycopg.connect(url) as witness:
        pids = server.pids
        server.kill()
        assert not server.running
        assert [pid for pid in pids if is_alive(pid)] == pids[1:2], "all but the watchdog"
        with pytest.raises(psycopg.OperationalError):
            witness.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    server.restart()
    assert query(url, "SELECT x FROM t") == 7
    assert "was not properly shut down" in server.log


def test_a_restarted_server_keeps_its_urls(server: PostgresServer) -> None:
    url = server.url(server.create_database(), tcp=True)
    server.restart()
    assert query(url, "SELECT 1") == 1


@pytest.mark.skipif(bool(why_no_tls()), reason=why_no_tls())
def test_a_server_with_tls_can_be_verified() -> None:
    with PostgresServer(fsync=False, ssl=True) as server:
        url = server.url(tcp=True, sslmode="verify-full", sslrootcert=str(server.certificate))
        assert query(url, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") is True


def test_closing_leaves_no_process_and_no_folder() -> None:
    server = PostgresServer(fsync=False)
    server.start()
    pids = server.pids
    assert len(pids) > 3
    server.close()
    assert not any(is_alive(pid) for pid in pids)
    assert not server.folder.exists()


def test_killing_the_process_that_started_a_server_ends_the_server() -> None:
    script = """if True:
        import json, time
        from support.postgres_server import PostgresServer
        server = PostgresServer(fsync=False)
        server.start()
        print(json.dumps([str(server.folder), server.pids]), flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(launcher.__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        try:
            folder, pids = json.loads(owner.stdout.readline())
        finally:
            owner.kill()
    assert len(pids) > 3
    deadline = time.monotonic() + 30
    while Path(folder).exists() or any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_installation_that_the_server_cannot_reach_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reachable = launcher._Account.can_run

    def only_copies(self: launcher._Account, program: Path, *, cwd: Path) -> bool:
        return cwd in program.parents and reachable(self, program, cwd=cwd)

    monkeypatch.setattr(launcher._Account, "can_run", only_copies)
    with PostgresServer(fsync=False) as server:
        assert server.folder in server._bindir.parents
        assert query(server.url(), "SELECT 1") == 1


def test_no_binaries_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTALAKEDB_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(PostgresUnavailableError, match=r"make setup.*apt install postgresql"):
        PostgresServer()
