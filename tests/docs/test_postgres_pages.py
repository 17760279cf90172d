"""Pages about Postgres are run as they stand: a real server, its own pg_dump, TLS and roles."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.store.roles import roles_script

from doc_blocks import blocks_of, run_block, run_page
from postgres_server import PostgresServer, can_use_tls


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server for these pages alone: they create databases and roles by plain names."""
    with PostgresServer(fsync=False, ssl=can_use_tls()) as running:
        yield running


@pytest.fixture
def at_server(server: PostgresServer, desk: Path) -> Iterator[PostgresServer]:
    """Clients find the server as they would find their own; it has no database `lake` yet."""
    os.environ.update(
        PGHOST=str(server.folder),
        PGPORT=str(server.port),
        PGUSER="postgres",
        LAKE_URL="postgresql:///lake",
        LAKE_HOST=f"localhost:{server.port}",
        LAKE_CA=str(server.certificate),
        PATH=f"{server._bindir}:{os.environ['PATH']}",
    )
    yield server
    with psycopg.connect(server.url(), autocommit=True) as admin:
        for name in ("lake", "lake_restored"):
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.execute("DROP ROLE IF EXISTS etl")


def test_the_quick_start(at_server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/quick-start.md")
    assert capsys.readouterr().out.splitlines() == ["[1, 3]", "0", "3", "2", "published 1"]


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="the sqlite3 command is not installed")
def test_backup_and_restore(at_server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    at_server.create_database("lake")
    os.environ["RESTORED_URL"] = "postgresql:///lake_restored"
    rows = pa.table({"id": [1, 2]})
    with deltalakedb.connect("sqlite:///lake.db") as small:
        small.create_table("small", location="small", schema=rows.schema).append(rows)
    with deltalakedb.connect("$LAKE_URL") as lake:
        with psycopg.connect(at_server.url("lake")) as owner:
            owner.execute(roles_script())
        orders = lake.create_table("orders", location="orders", schema=rows.schema)
        orders.append(rows)
        names: dict[str, object] = {}
        for block in blocks_of("docs/how-to/backup.md"):
            run_block(block, names)
            if "pg_dump" in block.text:
                orders.append(rows)  # the dump does not know of it; _delta_log does
    assert capsys.readouterr().out.splitlines() == ["orders [2]", "True"]
    with deltalakedb.connect("$RESTORED_URL") as lake:
        assert lake.table("orders").append(rows) == 3
        assert lake.table("orders").snapshot().to_arrow().num_rows == 6
        assert lake.verify("orders").ok
    with deltalakedb.connect("sqlite:///copy.db") as copy:
        assert copy.table("small").snapshot().to_arrow() == rows


def test_upgrading(at_server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    at_server.create_database("lake")
    run_page("docs/how-to/upgrade.md")
    assert capsys.readouterr().out.splitlines() == ["[]"]


@pytest.mark.skipif(not can_use_tls(), reason="no Postgres build with TLS, or no openssl command")
def test_roles_and_tls(at_server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    at_server.create_database("lake")
    with deltalakedb.connect("$LAKE_URL"):
        pass
    os.environ.update(OWNER_URL=at_server.url("lake"), LAKE_PASSWORD="a/b@c")
    names: dict[str, object] = {}
    for block in blocks_of("docs/how-to/roles.md"):
        run_block(block, names)
        if block.language == "sql":
            with psycopg.connect(at_server.url("lake")) as owner:
                owner.execute(block.text.replace("…", "a/b@c"))
    assert capsys.readouterr().out.splitlines() == ["[]"]
    # The role of the page can do what connect() does by default: commit, and publish.
    with deltalakedb.connect(str(names["url"])) as lake:
        rows = pa.table({"id": [1]})
        lake.create_table("t", location="t", schema=rows.schema).append(rows)
        assert [(one.state, one.head) for one in lake.mirror.status()] == [("published", 1)]


def test_connecting(at_server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    at_server.create_database("lake")
    with psycopg.connect(at_server.url("lake"), autocommit=True) as admin:
        admin.execute("CREATE ROLE etl LOGIN PASSWORD 'p@ss/word'")
        admin.execute("ALTER DATABASE lake OWNER TO etl")
        admin.execute("GRANT CREATE ON SCHEMA public TO etl")
    run_page("docs/how-to/connect.md")
    assert capsys.readouterr().out.splitlines() == ["[]"]
