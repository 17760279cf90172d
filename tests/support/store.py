"""Fixtures that give a test a catalog: every test that asks for `engine` runs on all three.

A catalog is migrated once a session and then copied, so that a fresh one costs milliseconds.
"""

import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from deltalakedb.actions import (
    Action,
    AddFile,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    serialise_commit,
)
from deltalakedb.clock import ManualClock
from deltalakedb.store import Counts, Payload, Store, TableRecord, VersionRecord, account
from deltalakedb.store.dialect import Session
from deltalakedb.store.url import Engine

from support.postgres_server import PostgresServer

ENGINES: tuple[Engine, ...] = ("postgres", "sqlite", "duckdb")
EMPTY_SCHEMA = '{"type":"struct","fields":[]}'

OpenStore = Callable[[str], Store]

_numbers = itertools.count(1)


class Catalogs:
    """Makes fresh catalogs by copying one that was migrated."""

    def __init__(self, folder: Path, postgres: Callable[[], PostgresServer]) -> None:
        self._folder = folder
        self._postgres = postgres
        self._templates: dict[Engine, str] = {}

    @contextmanager
    def fresh(self, engine: Engine) -> Iterator[str]:
        """URL of a catalog with its schema and nothing in it; gone after use."""
        with self.empty(engine, copy_of=self._template(engine)) as url:
            yield url

    @contextmanager
    def empty(self, engine: Engine, *, copy_of: str | None = None) -> Iterator[str]:
        """URL of a catalog without even a schema; gone after use."""
        name = f"catalog_{next(_numbers)}"
        if engine != "postgres":
            folder = self._folder / name
            folder.mkdir()
            if copy_of is not None:
                shutil.copy(copy_of, folder / f"lake.{engine}")
            # Small queries lose more by sharing them out than they gain.
            options = "?threads=1" if engine == "duckdb" else ""
            yield f"{engine}:///{folder}/lake.{engine}{options}"
            shutil.rmtree(folder, ignore_errors=True)
            return
        server = self._postgres()
        server.create_database(name, template=copy_of or "template1")
        yield server.url(name)
        if server.running:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            with psycopg.connect(server.url(), autocommit=True) as admin:
                admin.execute(drop)

    def _template(self, engine: Engine) -> str:
        if engine not in self._templates:
            if engine == "postgres":
                place = self._postgres().create_database(f"template_{next(_numbers)}")
                url = self._postgres().url(place)
            else:
                place = str(self._folder / f"template.{engine}")
                url = f"{engine}:///{place}"
            store = Store.open(url)
            store.migrator.ensure()
            store.close()
            self._templates[engine] = place
        return self._templates[engine]


@pytest.fixture(scope="session")
def catalogs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Catalogs:
    """Fresh catalogs of any engine; Postgres starts only when one of it is asked for."""

    def postgres() -> PostgresServer:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server

    return Catalogs(tmp_path_factory.mktemp("catalogs"), postgres)


# A module's scope keeps the tests of one engine together, and lets hypothesis share a store.
@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    name: Engine = request.param
    return name


@pytest.fixture
def catalog_url(engine: Engine, catalogs: Catalogs) -> Iterator[str]:
    """URL of a fresh catalog of `engine`: the schema is there, and nothing in it."""
    with catalogs.fresh(engine) as url:
        yield url


@pytest.fixture
def empty_catalog_url(engine: Engine, catalogs: Catalogs) -> Iterator[str]:
    """URL of a catalog of `engine` that has not even a schema."""
    with catalogs.empty(engine) as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `store` and `open_store`."""
    return ManualClock()


@pytest.fixture
def open_store(clock: ManualClock) -> Iterator[OpenStore]:
    """Open a catalog URL as it is, migrated or not; it is closed after the test."""
    with ExitStack() as opened:

        def open_url(url: str) -> Store:
            store = Store.open(url, clock=clock)
            opened.callback(store.close)
            return store

        yield open_url


@pytest.fixture
def store(catalog_url: str, open_store: OpenStore) -> Store:
    """An open store on a fresh catalog of `engine`."""
    return open_store(catalog_url)


@pytest.fixture(scope="module")
def shared_store(engine: Engine, catalogs: Catalogs) -> Iterator[Store]:
    """One store of `engine` for all tests of a module that make their own tables in it."""
    with catalogs.fresh(engine) as url:
        store = Store.open(url, clock=ManualClock())
        yield store
        store.close()


def new_table(
    store: Store,
    name: str | None = None,
    *,
    location: str | None = None,
    actions: Sequence[Action] | None = None,
) -> str:
    """Register a table and commit its version 0 (protocol and metaData by default); its id."""
    table_id = str(uuid4())
    name = name or f"t_{table_id}"
    now = store.clock.now_ms()
    record = TableRecord(
        table_id=table_id,
        name=name,
        location=location or f"file:///lake/{name}",
        protocol_min_reader=1,
        protocol_min_writer=2,
        properties={},
        created_at=now,
        updated_at=now,
    )
    if actions is None:
        actions = [Protocol(1, 2), Metadata(id=table_id, schema_string=EMPTY_SCHEMA)]
    with store.write() as session:
        store.register(session, record)
        append(store, session, table_id, actions)
    return table_id


def commit(store: Store, table_id: str, actions: Sequence[Action]) -> int:
    """Commit actions as the next version, in a transaction of its own; that version."""
    with store.write() as session:
        return append(store, session, table_id, actions)


def append(store: Store, session: Session, table_id: str, actions: Sequence[Action]) -> int:
    """Write the next version in an open transaction, counts and closed intervals included."""
    head = store.head(session, table_id)
    version = 0 if head is None else head + 1
    if head is not None:
        assert store.advance_head(session, table_id, expected=head)
    before = None if head is None else store.version(session, table_id, head)
    files = [action for action in actions if isinstance(action, (AddFile, RemoveFile))]
    live = store.live_among(session, table_id, [file.path for file in files])
    counts, closing = account(before.counts if before else Counts(), actions, live)
    info = next((action for action in actions if isinstance(action, CommitInfo)), None)
    now = store.clock.now_ms()
    record = VersionRecord(
        table_id=table_id,
        version=version,
        committed_at=now + version,
        recorded_at=now,
        commit_info=info,
        commit_uuid=str(uuid4()),
        counts=counts,
    )
    store.append_version(
        session,
        record,
        actions,
        payload=payload_of(actions),
        closing=closing,
        first=head is None,
    )
    return version


def payload_of(actions: Sequence[Action]) -> Payload:
    """What the mirror would publish for these actions."""
    data = serialise_commit(actions)
    return Payload(data, hashlib.sha256(data).hexdigest())
