"""Roles on a real Postgres, logged in by password over TCP: each can do its job, and no more."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from urllib.parse import quote

import psycopg
import pytest

from deltalakedb.actions import (
    AddFile,
    CdcFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.clock import ManualClock
from deltalakedb.errors import CatalogError, CatalogPermissionError
from deltalakedb.store import Store
from deltalakedb.store.migrate import load_optional
from deltalakedb.store.queries import load_queries
from deltalakedb.store.relations import (
    ACTION_RELATIONS,
    ACTIVE_FILES,
    EXPORTED_TABLES,
    FILE_PAGES,
    HEADS,
    IMPORT_STAGES,
    MIRROR_STATUS,
    MIRROR_TABLES,
    PAGE_COLUMNS,
    PAGE_TEXTS,
    PAGED_TABLES,
    RELATIONS,
    SETTINGS,
    TABLES,
    VERSIONS,
)
from deltalakedb.store.roles import (
    MIRROR,
    READER,
    WRITER,
    Rights,
    roles_down_script,
    roles_script,
)
from deltalakedb.store.settings import require_warehouse, write_warehouse

from support.postgres_server import PostgresServer
from support.store import commit, new_table

ROLES = ("reader", "writer", "mirror")
LEDGER = (VERSIONS, *ACTION_RELATIONS)
EVERYTHING = [
    *(relation.name for relation in RELATIONS),
    SETTINGS.name,
    "dl_schema_migrations",
    "vw_latest_action_per_path",
    "vw_active_files",
    "vw_ledger_intervals",
]
PAGES = {FILE_PAGES.name, PAGE_COLUMNS.name, PAGE_TEXTS.name, PAGED_TABLES.name}
# What each role may do, beyond SELECT on everything.
GRANTED = {
    "reader": {},
    "writer": {
        "INSERT": {r.name for r in RELATIONS if r not in (MIRROR_TABLES, EXPORTED_TABLES)},
        "UPDATE": {TABLES.name, HEADS.name, ACTIVE_FILES.name, *PAGES},
        "DELETE": {ACTIVE_FILES.name, IMPORT_STAGES.name, *PAGES},
    },
    "mirror": {
        "INSERT": {MIRROR_TABLES.name},
        "UPDATE": {MIRROR_STATUS.name, MIRROR_TABLES.name},
    },
}
PASSWORD = "p@ss/word 1"
FILE = AddFile(path="a.parquet", partition_values={}, size=1, modification_time=1, data_change=True)
GONE = RemoveFile(path="a.parquet", data_change=True, deletion_timestamp=1)


@dataclass(frozen=True, slots=True)
class Catalog:
    """A migrated catalog with its roles, its owner's store, and the stores of people in them."""

    owner: Store
    login: Callable[..., Store]


@pytest.fixture(scope="module", params=["public", "lakes"])
def catalog(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[Catalog]:
    """Nobody here but the fixture itself is a superuser."""
    schema = request.param
    database = postgres_server.create_database()
    owner = f"owner_{schema}"
    people = {f"{role}_{schema}": f"deltalakedb_{role}" for role in ROLES}
    both = f"both_{schema}"
    with ExitStack() as after:
        with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
            run(admin, f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD '{PASSWORD}'")
            run(admin, f"ALTER DATABASE {database} OWNER TO {owner}")
        after.callback(clean, postgres_server, database, [owner])

        def login(role: str, *, named: str = schema) -> Store:
            user = f"{role}_{schema}"
            url = (
                f"postgresql://{user}:{quote(PASSWORD, safe='')}@127.0.0.1:{postgres_server.port}"
                f"/{database}?schema={named}&timeout=5"
            )
            store = Store.open(url, clock=ManualClock())
            after.callback(store.close)
            return store

        owners = login("owner")
        owners.migrator.ensure()
        with owners.write() as session:
            session.script(roles_script())
        with owners.write() as session:
            for person, role in people.items():
                session.script(f"CREATE ROLE {person} LOGIN PASSWORD '{PASSWORD}' IN ROLE {role}")
            session.script(
                f"CREATE ROLE {both} LOGIN PASSWORD '{PASSWORD}' "
                "IN ROLE deltalakedb_writer, deltalakedb_mirror"
            )
            session.script(f"CREATE ROLE nobody_{schema} LOGIN PASSWORD '{PASSWORD}'")
        after.callback(
            clean, postgres_server, database, [*people, both, f"nobody_{schema}"], drop=False
        )
        yield Catalog(owners, login)


def run(connection: psycopg.Connection, statement: str) -> None:
    connection.execute(statement.encode())


def clean(server: PostgresServer, database: str, roles: list[str], *, drop: bool = True) -> None:
    """Roles outlive databases: what a test leaves would meet the next one."""
    if drop:
        with psycopg.connect(server.url(database), autocommit=True) as admin:
            for schema in ("public", "lakes"):
                found = admin.execute("SELECT to_regnamespace(%s)", [schema]).fetchone()
                if found and found[0]:
                    run(admin, f"SET search_path = {schema}")
                    run(admin, roles_down_script())
    with psycopg.connect(server.url(), autocommit=True) as admin:
        if drop:
            run(admin, f"DROP DATABASE {database} WITH (FORCE)")
        for role in roles:
            run(admin, f"DROP ROLE {role}")


@pytest.fixture
def table_id(catalog: Catalog) -> str:
    return new_table(catalog.owner)


def refused(store: Store, statement: str) -> None:
    with pytest.raises(CatalogPermissionError, match="may not do this"), store.write() as session:
        session.script(statement)


# --- each does its job --------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_connect_and_read_everything(
    catalog: Catalog, table_id: str, role: str
) -> None:
    store = catalog.login(role)
    store.migrator.ensure()
    with store.read() as session:
        assert store.head(session, table_id) == 0
        assert table_id in {table.table_id for table in store.tables(session)}
        assert store.metadata_at(session, table_id, 0) is not None
        assert store.check_active_files(session, table_id) == []
        for name in EVERYTHING:
            session.execute(f"SELECT count(*) FROM {name}", {})


def test_a_writer_creates_tables_and_commits_every_kind_of_action(catalog: Catalog) -> None:
    store = catalog.login("writer")
    store.migrator.ensure()
    table_id = new_table(store)
    commit(store, table_id, [CommitInfo({"operation": "WRITE"}), FILE, Txn("app", 1)])
    commit(
        store,
        table_id,
        [
            GONE,
            AddFile(**{**{f: getattr(FILE, f) for f in FILE.__slots__}, "path": "b.parquet"}),
            CdcFile(path="c.parquet", partition_values={}, size=1, data_change=False),
            Metadata(id=table_id, schema_string='{"type":"struct","fields":[]}'),
            Protocol(1, 2),
            DomainMetadata("d", "{}", removed=False),
        ],
    )
    with store.write() as session:
        assert store.head(session, table_id) == 2
        assert store.lock_head(session, table_id) == 2
        session.changed("rename_table", table_id=table_id, name=f"r{table_id}", updated_at=1)
        assert session.changed(
            "update_table",
            table_id=table_id,
            protocol_min_reader=1,
            protocol_min_writer=2,
            properties="{}",
            updated_at=1,
            plan=None,
        )
        assert session.execute(
            "SELECT count(*) FROM dl_mirror_status WHERE table_id = %(id)s", {"id": table_id}
        ) == [(3,)]


def test_a_writer_can_rebuild_the_active_files(catalog: Catalog) -> None:
    store = catalog.login("writer")
    table_id = new_table(store)
    commit(store, table_id, [FILE])
    with store.write() as session:
        assert store.rebuild_active_files(session, table_id) == 1
        assert store.check_active_files(session, table_id) == []


def test_the_mirror_records_what_it_has_published(catalog: Catalog, table_id: str) -> None:
    with catalog.login("mirror").write() as session:
        found = session.execute(
            "SELECT payload FROM dl_mirror_status WHERE table_id = %(id)s FOR UPDATE SKIP LOCKED",
            {"id": table_id},
        )
        assert found[0][0]
        changed = session.execute_count(
            "UPDATE dl_mirror_status SET status = 'SUCCEEDED', attempts = 1, last_error = NULL, "
            "payload = NULL, next_attempt_at = 0, updated_at = 5 WHERE table_id = %(id)s",
            {"id": table_id},
        )
        assert changed == 1


def test_a_login_in_both_roles_commits_and_publishes(catalog: Catalog) -> None:
    store = catalog.login("both")
    table_id = new_table(store)
    with store.write() as session:
        session.execute_count(
            "UPDATE dl_mirror_status SET status = 'SUCCEEDED' WHERE table_id = %(id)s",
            {"id": table_id},
        )


# --- and no more --------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("verb", ["INSERT", "UPDATE", "DELETE", "TRUNCATE"])
def test_a_role_has_the_privileges_of_its_job_only(
    catalog: Catalog, table_id: str, role: str, verb: str
) -> None:
    store = catalog.login(role)
    granted = GRANTED[role].get(verb, set())
    for name in EVERYTHING:
        with store.read() as session:
            allowed = session.execute(
                f"SELECT has_table_privilege(%(name)s, '{verb}')"
                if verb in ("DELETE", "TRUNCATE")
                else f"SELECT has_any_column_privilege(%(name)s, '{verb}')",
                {"name": name},
            )
        assert allowed == [(name in granted,)], name


@pytest.mark.parametrize("role", [*ROLES, "both"])
def test_nobody_changes_or_deletes_what_the_ledger_says(
    catalog: Catalog, table_id: str, role: str
) -> None:
    store = catalog.login(role)
    for relation in LEDGER:
        for column in relation.columns:
            refused(store, f"UPDATE {relation.name} SET {column} = {column}")
        refused(store, f"DELETE FROM {relation.name}")
        refused(store, f"TRUNCATE {relation.name}")


@pytest.mark.parametrize("role", [*ROLES, "both"])
def test_nobody_changes_the_identity_of_what_moves(
    catalog: Catalog, table_id: str, role: str
) -> None:
    store = catalog.login(role)
    for statement in (
        "UPDATE dl_tables SET table_id = table_id",
        "UPDATE dl_tables SET created_at = 0",
        "UPDATE dl_table_heads SET table_id = table_id",
        "UPDATE dl_active_files SET path = path",
        "UPDATE dl_active_files SET added_version = 0",
        "UPDATE dl_mirror_status SET digest = ''",
        "UPDATE dl_mirror_status SET version = 0",
        "DELETE FROM dl_tables",
        "DELETE FROM dl_table_heads",
        "DELETE FROM dl_mirror_status",
        "UPDATE dl_schema_migrations SET name = ''",
        "DELETE FROM dl_schema_migrations",
    ):
        refused(store, statement)


def test_a_reader_cannot_commit(catalog: Catalog, table_id: str) -> None:
    store = catalog.login("reader")
    with pytest.raises(CatalogPermissionError):
        new_table(store)
    with pytest.raises(CatalogPermissionError):
        commit(store, table_id, [FILE])
    with pytest.raises(CatalogPermissionError), store.write() as session:
        store.rebuild_active_files(session, table_id)


def test_the_mirror_cannot_commit_and_a_writer_cannot_claim_to_have_published(
    catalog: Catalog, table_id: str
) -> None:
    with pytest.raises(CatalogPermissionError):
        commit(catalog.login("mirror"), table_id, [FILE])
    refused(catalog.login("writer"), "UPDATE dl_mirror_status SET status = 'SUCCEEDED'")


@pytest.mark.parametrize("role", [*ROLES, "both"])
def test_dropping_a_table_is_the_owners(catalog: Catalog, table_id: str, role: str) -> None:
    store = catalog.login(role)
    with pytest.raises(CatalogPermissionError), store.write() as session:
        store.forget_table(session, table_id)
    with catalog.owner.write() as session:
        assert store.head(session, table_id) == 0
        catalog.owner.forget_table(session, table_id)


@pytest.mark.parametrize("role", [*ROLES, "both"])
def test_no_role_changes_the_schema(catalog: Catalog, role: str) -> None:
    store = catalog.login(role)
    for statement in (
        "CREATE TABLE dl_mine (a int)",
        "CREATE VIEW vw_mine AS SELECT 1",
        "CREATE INDEX ON dl_add_files (size_bytes)",
        "ALTER TABLE dl_add_files ADD COLUMN a int",
        "ALTER TABLE dl_add_files DISABLE TRIGGER ALL",
        "DROP TABLE dl_add_files",
        "DROP VIEW vw_active_files",
    ):
        refused(store, statement)
    with pytest.raises(CatalogPermissionError):
        store.migrator.down()
    assert store.migrator.applied()


@pytest.mark.parametrize("role", [*ROLES, "both"])
def test_no_role_passes_its_privileges_on(catalog: Catalog, role: str) -> None:
    # Postgres answers a GRANT without the right to it with a warning.
    with catalog.login(role).write() as session:
        session.script("GRANT SELECT ON dl_tables TO PUBLIC")
    with catalog.login("nobody").read() as session:
        assert session.execute(
            "SELECT has_table_privilege(c.oid, 'SELECT') FROM pg_class AS c "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relname = 'dl_tables' AND n.nspname = %(schema)s",
            {"schema": catalog.owner.dialect.url.schema},
        ) == [(False,)]


def test_a_login_without_a_role_is_told_what_to_do(catalog: Catalog) -> None:
    store = catalog.login("nobody")
    with pytest.raises(CatalogError) as raised:
        store.migrator.ensure()
    if catalog.owner.dialect.url.schema == "public":  # which everybody may look into
        assert raised.type is CatalogPermissionError
        assert "To read, run GRANT deltalakedb_reader TO nobody_public" in raised.value.fix


@pytest.mark.parametrize(
    ("role", "lacks"),
    [
        ("reader", "GRANT deltalakedb_writer, deltalakedb_mirror TO"),
        ("writer", "GRANT deltalakedb_mirror TO"),
        ("mirror", "GRANT deltalakedb_writer TO"),
        ("both", "migrating take its owner, owner_"),
    ],
)
def test_whoever_is_refused_is_told_which_role_is_missing(
    catalog: Catalog, role: str, lacks: str
) -> None:
    store = catalog.login(role)
    with pytest.raises(CatalogPermissionError) as raised, store.write() as session:
        session.script("DELETE FROM dl_table_versions")
    assert lacks in raised.value.fix
    assert PASSWORD not in str(raised.value)
    # What it names is what helps: the rights of the role are those that it tells.
    found = rights_of(store)
    expected = {
        "reader": (READER,),
        "writer": (READER, WRITER),
        "mirror": (READER, MIRROR),
        "both": (READER, WRITER, MIRROR),
    }[role]
    assert (found.roles, found.owns, found.has_roles) == (expected, False, True)
    assert found.user.startswith(f"{role}_")


def rights_of(store: Store) -> Rights:
    (row,) = store.dialect.ask(lambda session: session.run("rights"))
    return Rights.from_row(row)


def test_the_owner_owns(catalog: Catalog) -> None:
    found = rights_of(catalog.owner)
    assert (found.owns, found.owner) == (True, found.user)


def test_rights_of_somebody_who_sees_no_catalog(postgres_url: str) -> None:
    with closing(Store.open(postgres_url)) as store:
        found = rights_of(store)
    assert (found.owner, found.roles, found.owns) == (None, (), False)
    assert "sees no catalog here" in found.advice()


def test_roles_that_do_not_exist_are_made_first() -> None:
    rights = Rights("Ann", True, False, False, False, has_roles=False, owner="lake")
    assert rights.advice().startswith(
        'To commit and publish, make the roles with `deltalakedb roles | psql "$OWNER_URL"`, then '
        'run GRANT deltalakedb_writer, deltalakedb_mirror TO "Ann" as lake, the owner of the '
        "catalog."
    )


def test_the_roles_end_at_their_schema(catalog: Catalog) -> None:
    elsewhere = catalog.login("owner", named="elsewhere")
    elsewhere.migrator.ensure()
    try:
        for role in ROLES:
            store = catalog.login(role, named="elsewhere")
            with pytest.raises(CatalogError):
                store.migrator.ensure()
            refused(store, "SELECT 1 FROM elsewhere.dl_tables")
    finally:
        with elsewhere.write() as session:
            session.script("DROP SCHEMA elsewhere CASCADE")


# --- the scripts --------------------------------------------------------------------------


def grants(store: Store) -> list[tuple[object, ...]]:
    with store.read() as session:
        return session.execute(
            "SELECT 'r', relname, '', relacl::text FROM pg_class "
            "WHERE relnamespace = quote_ident(current_schema())::regnamespace "
            "UNION ALL SELECT 'a', attrelid::regclass::text, attname, attacl::text "
            "FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid >= 16384 "
            "UNION ALL SELECT 'n', nspname, '', nspacl::text FROM pg_namespace "
            "WHERE nspname = current_schema() ORDER BY 1, 2, 3",
            {},
        )


def test_running_the_script_again_changes_nothing(catalog: Catalog) -> None:
    before = grants(catalog.owner)
    for _ in range(2):
        with catalog.owner.write() as session:
            session.script(roles_script())
    assert grants(catalog.owner) == before


def test_the_roles_hold_on_sharded_relations(catalog: Catalog, table_id: str) -> None:
    for name in load_optional("postgres"):
        catalog.owner.migrator.apply_optional(name)
    try:
        test_a_writer_can_rebuild_the_active_files(catalog)
        test_every_role_can_connect_and_read_everything(catalog, table_id, "reader")
        test_nobody_changes_or_deletes_what_the_ledger_says(catalog, table_id, "writer")
    finally:
        for name in load_optional("postgres"):
            catalog.owner.migrator.revert_optional(name)


# Queries that only the owner of the schema runs: migrations.
OWNERS = {
    *("create_schema_migrations", "record_migration", "forget_migration"),
    *("add_setting", "write_setting", "delete_setting"),
}


def test_every_query_of_the_store_is_within_some_role(catalog: Catalog) -> None:
    """A new query that changes rows needs a grant in roles.sql, or a place in OWNERS."""
    pattern = re.compile(r"\b(INSERT) INTO (\w+)|\b(UPDATE) (dl_\w+)|\b(DELETE) FROM (\w+)")
    needed = {
        (name, *[part for part in found if part])
        for name, text in load_queries("postgres").items()
        for found in pattern.findall(text)
        if name not in OWNERS
    }
    assert len(needed) >= 5
    lacking = [
        (name, verb, relation)
        for name, verb, relation in sorted(needed)
        if not any(relation in GRANTED[role].get(verb, set()) for role in ROLES)
    ]
    assert lacking == []


def test_only_the_owner_sets_the_warehouse(catalog: Catalog) -> None:
    write_warehouse(catalog.owner, "s3://bucket/lake")
    for role in (*ROLES, "both"):
        store = catalog.login(role)
        require_warehouse(store, "s3://bucket/lake")
        for location in ("s3://bucket/other", None):
            with pytest.raises(CatalogPermissionError, match=r"setting the warehouse|GRANT"):
                write_warehouse(store, location)
    write_warehouse(catalog.owner, None)
    with pytest.raises(CatalogPermissionError):
        require_warehouse(catalog.login("both"), "s3://bucket/lake")


def test_taking_the_roles_back_leaves_nothing_of_them(postgres_server: PostgresServer) -> None:
    url = postgres_server.url(postgres_server.create_database())
    stores = [Store.open(url + f"&schema={name}") for name in ("one", "two")]

    def leftovers() -> int:
        with stores[0].read() as session:
            found: int = session.execute(
                "SELECT (SELECT count(*) FROM pg_class WHERE relacl::text LIKE '%%deltalakedb_%%')"
                " + (SELECT count(*) FROM pg_attribute WHERE attacl::text LIKE '%%deltalakedb_%%')"
                " + (SELECT count(*) FROM pg_namespace WHERE nspacl::text LIKE '%%deltalakedb_%%')",
                {},
            )[0][0]
            return found

    before = []
    for store in stores:
        store.migrator.ensure()
        before.append(grants(store))
    for store in stores:
        with store.write() as session:
            session.script(roles_script())
    assert leftovers() > 0
    for store in stores:
        with store.write() as session:
            session.script(roles_down_script())
    assert leftovers() == 0
    with stores[0].write() as session:
        session.script(roles_down_script())
    assert [strip(grants(store)) for store in stores] == [strip(one) for one in before]
    for store in stores:
        store.close()


def strip(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Without what the owner may do: it is written down only once something was granted."""
    return [(*row[:3], None if row[3] and "=" in str(row[3]) else row[3]) for row in rows]
