"""Catalog URLs: what they mean, what is refused, and that no message ever tells a secret."""

import logging
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from deltalakedb.errors import (
    CatalogUnreachableError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidUrlError,
)
from deltalakedb.store import Store
from deltalakedb.store.url import Engine, parse_url

from support.postgres_server import PostgresServer

SECRET = "Zebra-42"


def reach(url: str) -> None:
    """Open a catalog and ask it something."""
    with closing(Store.open(url)) as store, store.read() as session:
        assert session.execute("SELECT 1", {}) == [(1,)]


def everything_told(error: BaseException) -> str:
    """All that a log or a terminal could show of an error, hidden contexts included."""
    told = "".join(traceback.format_exception(error))
    shown: BaseException | None = error
    while shown is not None:
        told += f"{shown}\n{shown!r}\n{shown.args!r}\n"
        shown = shown.__cause__ or shown.__context__
    return told


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_three_slashes_are_relative_and_four_are_absolute(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = tmp_path.resolve()
    assert parse_url(f"{engine}:///lake.db").target == str(here / "lake.db")
    assert parse_url(f"{engine}:///a/../b/lake.db").target == str(here / "b/lake.db")
    absolute = parse_url(f"{engine}:////data/lake.db")
    assert absolute.target == "/data/lake.db"
    assert absolute.display == f"{engine}:////data/lake.db"
    assert absolute.engine == engine


def test_a_file_name_may_hold_anything(tmp_path: Path) -> None:
    name = f"{tmp_path}/ä ?#%41&.db"
    assert parse_url(f"sqlite:///{quote(name)}").target == name
    assert parse_url("sqlite:///~/lake.db").target == str(Path.home() / "lake.db")


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_file_url_opens_where_it_says(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKE_FOLDER", str(tmp_path))
    reach(f"{engine}:///one.db")
    reach(f"{engine}:///{tmp_path}/two.db?timeout=1.5&pool_size=2")
    reach(f"{engine}:///${{LAKE_FOLDER}}/three.db")
    assert {f.name for f in tmp_path.glob("*.db")} == {"one.db", "two.db", "three.db"}


# --- options ------------------------------------------------------------------------------


def test_own_options_are_taken_out_and_the_others_reach_the_driver() -> None:
    url = parse_url(
        "postgresql://me@db.example:6432/lake"
        "?schema=lakes&timeout=2.5&pool_size=3&sslmode=verify-full&application_name=a+b%20c"
    )
    assert (url.schema, url.timeout, url.pool_size) == ("lakes", 2.5, 3)
    assert url.options == {"sslmode": "verify-full", "application_name": "a+b c"}
    assert url.target == (
        "postgresql://me@db.example:6432/lake?sslmode=verify-full&application_name=a%2Bb%20c"
    )
    assert url.display == "postgresql://me@db.example:6432/lake?schema=lakes"


def test_defaults_without_options() -> None:
    url = parse_url("postgres://me@db.example/lake")
    assert (url.engine, url.schema, url.timeout, url.pool_size) == ("postgres", None, 30.0, 16)
    assert url.target == "postgresql://me@db.example/lake"


@pytest.mark.parametrize(
    "hosts", ["db", "db:5432", "[::1]:5432", "a:1,b:2,[fe80::1]", "", "192.0.2.1"]
)
def test_whatever_hosts_libpq_takes(hosts: str) -> None:
    url = parse_url(f"postgresql://me:{SECRET}@{hosts}/lake")
    assert url.target == f"postgresql://me:{SECRET}@{hosts}/lake"
    assert url.display == f"postgresql://me@{hosts}/lake"


@pytest.mark.parametrize(
    "option",
    [
        "timeout=soon",
        "timeout=-1",
        "timeout=nan",
        "timeout=inf",
        "pool_size=0",
        "pool_size=two",
        "pool_size=²",
        "pool_size=1e3",
        "nonsense",
        "=",
    ],
)
@pytest.mark.parametrize("base", ["sqlite:///lake.db", "postgresql://me@h/db"])
def test_an_option_that_cannot_be_meant_is_refused(base: str, option: str) -> None:
    with pytest.raises(ConfigurationError):
        Store.open(f"{base}?{option}")


@pytest.mark.parametrize("schema", ["", "x" * 64, "ä" * 32, "a%00b"])
def test_a_schema_name_that_postgres_would_cut_or_refuse_is_refused(schema: str) -> None:
    with pytest.raises(InvalidUrlError, match="schema"):
        parse_url(f"postgresql://me@h/db?schema={schema}")


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_schema_is_for_postgres_only(engine: Engine) -> None:
    with pytest.raises(InvalidUrlError, match="Postgres"):
        parse_url(f"{engine}:///lake.db?schema=lakes")


@pytest.mark.parametrize(
    "option",
    ["journal_mode=DELETE", "synchronous=fulll", "cache_size=big", "temp_store=3", "threads=2"],
)
def test_sqlite_takes_the_pragmas_it_knows_and_no_misspelt_ones(
    option: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="SQLite"):
        Store.open(f"sqlite:///{tmp_path}/lake.db?{option}")
    reach(f"sqlite:///{tmp_path}/lake.db?synchronous=NORMAL&cache_size=-2000&temp_store=memory")


def test_duckdb_takes_its_own_settings_only(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path}/lake.db?threads=1"
    with closing(Store.open(url)) as store, store.read() as session:
        assert session.execute("SELECT current_setting('threads')", {}) == [(1,)]
    with pytest.raises(ConfigurationError, match="banana"):
        Store.open(f"duckdb:///{tmp_path}/other.db?banana=1")


def test_postgres_options_reach_the_server(postgres_url: str) -> None:
    url = f"{postgres_url}&application_name=my+app&options=-c%20work_mem%3D77kB"
    with closing(Store.open(url)) as store, store.read() as session:
        assert session.execute("SHOW application_name", {}) == [("my+app",)]
        assert session.execute("SHOW work_mem", {}) == [("77kB",)]


# --- wrong URLs ---------------------------------------------------------------------------

NOT_TEXT: list[Any] = [None, 5, b"sqlite:///lake.db", Path("lake.db")]


@pytest.mark.parametrize("url", NOT_TEXT)
def test_a_url_is_text(url: Any) -> None:
    with pytest.raises(InvalidUrlError, match=type(url).__name__):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  \n",
        "lake.db",
        "/data/lake.db",
        "sqlite:lake.db",
        "sqlite:/lake.db",
        "sqlite://lake.db",
        "sqlite://host/lake.db",
        "sqlite:///",
        "duckdb:///folder/",
        "sqlite:///:memory:",
        "duckdb:///:memory:",
        "sqlite:///a%00b",
        "sqlite:///~nobody-of-this-name/lake.db",
        "mysql://host/db",
        "postgresql:host/db",
        "postgresql://host:port/db",
        "postgresql://ho[st/db",
        "postgresql://host/db/more",
        "postgresql://host/db#part",
        "postgresql://host/db?x",
    ],
)
def test_a_wrong_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidUrlError) as caught:
        Store.open(url)
    assert "Use " in caught.value.fix or "Write " in caught.value.fix or "Name " in caught.value.fix


# --- environment variables ----------------------------------------------------------------


def test_variables_are_expanded_wherever_they_stand() -> None:
    environ = {
        "PW": "a/b:c@d#e?f%41+g h",
        "HOST_1": "db.example:6432",
        "DB": "la/ke",
        "MODE": "verify&full",
        "URL": "sqlite:////data/lake.db",
    }
    url = parse_url("postgresql://me:${PW}@$HOST_1/${DB}?sslmode=$MODE", environ=environ)
    password = "a%2Fb%3Ac%40d%23e%3Ff%2541%2Bg%20h"
    assert url.target == (
        f"postgresql://me:{password}@db.example:6432/la%2Fke?sslmode=verify%26full"
    )
    assert url.options == {"sslmode": "verify&full"}
    assert environ["PW"] in url.secrets
    assert parse_url("$URL?timeout=3", environ=environ).target == "/data/lake.db"
    assert parse_url("sqlite:////a/$DB.db", environ=environ).target == "/a/la/ke.db"


def test_a_variable_that_is_not_set_is_named() -> None:
    for url in ("$NOWHERE", "postgresql://me:${NOWHERE}@h/db", "sqlite:///$NOWHERE/x"):
        with pytest.raises(InvalidUrlError, match="NOWHERE"):
            parse_url(url, environ={})


def test_a_dollar_that_is_none_of_a_variable_stays() -> None:
    assert parse_url("sqlite:////a/$1%24HOME", environ={"HOME": "x"}).target == "/a/$1$HOME"


# --- passwords ----------------------------------------------------------------------------

PECULIAR_PASSWORD = "p@ss/w:rd#?%41&+ é$HOME\"'\\"


@pytest.fixture
def peculiar_user(postgres_server: PostgresServer) -> str:
    """A user whose password needs quoting in every way."""
    name = "peculiar user@home"
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(name), sql.Literal(PECULIAR_PASSWORD)
            )
        )
    return name


def test_a_password_may_hold_anything(
    peculiar_user: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_PASSWORD", PECULIAR_PASSWORD)
    monkeypatch.setenv("LAKE_USER", peculiar_user)
    user, password = quote(peculiar_user, safe=""), quote(PECULIAR_PASSWORD, safe="")
    server = f"127.0.0.1:{postgres_server.port}/postgres"
    for url in (
        f"postgresql://{user}:{password}@{server}",
        f"postgresql://${{LAKE_USER}}:${{LAKE_PASSWORD}}@{server}",
        f"postgresql://{server}?user={user}&password={password}",
        f"postgresql://{server}?user=$LAKE_USER&password=$LAKE_PASSWORD",
    ):
        reach(url)
        parsed = parse_url(url)
        assert PECULIAR_PASSWORD not in repr(parsed)
        assert password not in repr(parsed)
        assert parsed.redact(f"<{PECULIAR_PASSWORD}> <{password}>") == "<***> <***>"


UrlMaker = Callable[[PostgresServer, Path], str]
FAILURES: dict[str, UrlMaker] = {
    "wrong password": lambda s, _: f"postgresql://postgres:{SECRET}@127.0.0.1:{s.port}/postgres",
    "wrong password as option": lambda s, _: (
        f"postgresql://postgres@127.0.0.1:{s.port}/postgres?password={SECRET}"
    ),
    "missing database": lambda s, _: (
        f"postgresql://postgres:{SECRET}@/none?host={s.folder}&port={s.port}"
    ),
    "refused": lambda _, __: f"postgresql://me:{SECRET}@127.0.0.1:1/db",
    "unknown host": lambda _, __: f"postgresql://me:{SECRET}@nowhere.invalid/db",
    "impossible host": lambda _, __: f"postgresql://me:{SECRET}@{'a' * 70}.invalid/db",
    "impossible port": lambda _, __: f"postgresql://me:{SECRET}@127.0.0.1:99999/db",
    "no TLS": lambda s, _: (
        f"postgresql://postgres:{SECRET}@127.0.0.1:{s.port}/postgres?sslmode=require"
    ),
    "unknown option": lambda _, __: f"postgresql://me:{SECRET}@h/db?banana=1",
    "wrong value": lambda _, __: f"postgresql://me:{SECRET}@h/db?sslmode=banana",
    "wrong number": lambda _, __: f"postgresql://me:{SECRET}@h/db?connect_timeout=soon",
    "missing root certificate": lambda s, d: (
        f"postgresql://me:{SECRET}@127.0.0.1:{s.port}/db?sslmode=verify-full&sslrootcert={d}/no.crt"
        f"&sslpassword={SECRET}"
    ),
    "bad percent": lambda _, __: f"postgresql://me:{SECRET}%zz@h/db",
    "percent zero": lambda _, __: f"postgresql://me:{SECRET}%00@h/db",
    "bad percent in option": lambda _, __: f"postgresql://me@h/db?password={SECRET}%00",
    "slash in password": lambda _, __: f"postgresql://me:{SECRET}/{SECRET}@h/db",
    "number and slash": lambda _, __: f"postgresql://me:42/{SECRET}@h/db",
    "hash in password": lambda _, __: f"postgresql://me:42#{SECRET}@h/db",
    "question mark in password": lambda _, __: f"postgresql://me:42?{SECRET}@h/db",
    "bracket in password": lambda _, __: f"postgresql://me:[{SECRET}@h/db",
    "odd character in password": lambda _, __: f"postgresql://me:\u2100{SECRET}@h/db",
    "dollar in password": lambda _, __: "postgresql://me:pa$Zebra-42@h/db",
    "dollar in option": lambda _, __: "postgresql://me@h/db?password=$Zebra-42",
    "no name": lambda _, __: f"postgresql://me@h/db?{SECRET}",
    "bad timeout": lambda _, __: f"postgresql://me:{SECRET}@h/db?timeout=x",
    "bad schema": lambda _, __: f"postgresql://me:{SECRET}@h/db?schema=",
    "another engine": lambda _, __: f"mysql://me:{SECRET}@h/db",
    "no engine": lambda _, __: f"me:{SECRET}@h/db",
    "not even that": lambda _, __: f"me:{SECRET}@h://db",
    "sqlite with a host": lambda _, __: f"sqlite://me:{SECRET}@h/db",
    "duckdb with a host": lambda _, __: f"duckdb://me:{SECRET}@h/db",
    "sqlite option": lambda _, d: f"sqlite:///{d}/lake.db?password={SECRET}",
    "duckdb option": lambda _, d: f"duckdb:///{d}/lake.db?encryption_key={SECRET}",
    "duckdb value": lambda _, d: f"duckdb:///{d}/lake.db?threads=2&s3_secret={SECRET}",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_no_failure_tells_the_password(
    failure: str,
    postgres_server: PostgresServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DeltaLakeDbError) as caught:
        reach(FAILURES[failure](postgres_server, tmp_path))
    told = everything_told(caught.value) + caplog.text + "".join(capfd.readouterr())
    assert "Zebra" not in told
    assert isinstance(caught.value, (ConfigurationError, CatalogUnreachableError))
    assert caught.value.fix


def test_nothing_that_is_printed_holds_the_password(postgres_server: PostgresServer) -> None:
    url = postgres_server.url(tcp=True, application_name="x")
    parsed = parse_url(url)
    with closing(Store.open(url)) as store:
        with store.read() as session:
            shown = [parsed, store, store.dialect, session, store.migrator]
            for text in (f(thing) for thing in shown for f in (repr, str)):
                assert postgres_server.password not in text
        with pytest.raises(DeltaLakeDbError) as caught, store.write() as session:
            session.execute("SELECT * FROM nothing", {})
    assert postgres_server.password not in everything_told(caught.value)
    assert f"postgres@127.0.0.1:{postgres_server.port}" in str(caught.value)
