"""The optional migration that shards the file relations on Postgres, and the way back."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import CatalogError, MigrationError
from deltalakedb.store.dialect import Dialect, Row, Session
from deltalakedb.store.migrate import Migration, Migrator, load_migrations, load_optional
from deltalakedb.store.relations import (
    ACTIVE_FILES,
    ADD_FILES,
    CDC_FILES,
    HEADS,
    LIVE,
    REMOVE_FILES,
    UNPLANNED_FILES,
    VERSIONS,
)
from store.sql.conftest import OpenDialect
from store.sql.introspection import dump

from support.postgres_server import PostgresServer

NAME = "shard_files"
SHARDED = (ADD_FILES, REMOVE_FILES, CDC_FILES, ACTIVE_FILES)
VIEWS = ("vw_latest_action_per_path", "vw_active_files", "vw_ledger_intervals")
TABLES = [str(UUID(int=0x5EED << 64 | n)) for n in range(40)]


@pytest.fixture(params=[None, 'My "Lakes"'], ids=["default schema", "custom schema"])
def dialect(
    request: pytest.FixtureRequest, postgres_url: str, open_dialect: OpenDialect
) -> Dialect:
    schema = request.param
    return open_dialect(postgres_url + (f"&schema={schema}" if schema else ""))


@pytest.fixture
def migrator(dialect: Dialect) -> Migrator:
    """The plain schema, with a few files in each of many tables."""
    migrator = Migrator(dialect, ManualClock())
    migrator.up()
    with dialect.write() as session:
        fill(session)
    return migrator


def fill(session: Session) -> None:
    adds: list[Row] = []
    removes: list[Row] = []
    intervals: list[Row] = []
    rest = (1, True, '{"day": "\ue0001"}', None, None, None, None, None, None, None)
    for number, table_id in enumerate(TABLES):
        for i in range(number % 5 + 2):
            path = f"part-{i}.parquet"
            adds.append((table_id, 0, path, "", i, *rest))
            if i == 1:
                removes.append((table_id, 1, path, "", 5, True, *[None] * 9))
            intervals.append((table_id, path, "", 0, 1 if i == 1 else LIVE, i, *rest))
    session.insert(ADD_FILES, adds)
    session.insert(REMOVE_FILES, removes)
    session.insert(UNPLANNED_FILES, intervals)
    session.insert(CDC_FILES, [(t, 1, "c", 1, False, "{}", None, None) for t in TABLES])
    session.insert(HEADS, [(t, 1) for t in TABLES])
    counts = [0] * (len(VERSIONS.columns) - 10)
    commits = [(t, v, v, *[None] * 7, *counts) for t in TABLES for v in (0, 1)]
    session.insert(VERSIONS, commits)


def content(dialect: Dialect) -> dict[str, list[Row]]:
    names = [*(relation.name for relation in SHARDED), *VIEWS]
    with dialect.read() as session:
        return {
            name: session.execute(f"SELECT t::text FROM {name} AS t ORDER BY 1", {})
            for name in names
        }


def kinds(dialect: Dialect) -> dict[str, str]:
    with dialect.read() as session:
        rows = session.execute(
            "SELECT relname, relkind::text FROM pg_class "
            "WHERE relnamespace = quote_ident(current_schema())::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition",
            {},
        )
    return dict(rows)


def scanned(dialect: Dialect, sql: str, **params: object) -> set[str]:
    """The tables that the plan of a query reads."""
    with dialect.read() as session:
        answer = session.execute("EXPLAIN (FORMAT JSON) " + dialect.sql(sql), params)
    return set(_relations(json.loads(answer[0][0])[0]["Plan"]))


def _relations(plan: dict[str, Any]) -> Iterator[str]:
    if "Relation Name" in plan:
        yield plan["Relation Name"]
    for below in plan.get("Plans", ()):
        yield from _relations(below)


def test_sharding_keeps_every_row_and_every_view(dialect: Dialect, migrator: Migrator) -> None:
    before = content(dialect)
    assert all(before.values())
    assert migrator.apply_optional(NAME) is True
    assert content(dialect) == before
    assert {name for name, kind in kinds(dialect).items() if kind == "p"} == {
        relation.name for relation in SHARDED
    }


def test_sharding_keeps_columns_keys_checks_and_indexes(
    dialect: Dialect, migrator: Migrator
) -> None:
    before = dump(dialect)
    migrator.apply_optional(NAME)
    after = dump(dialect)
    assert after["columns"] == before["columns"]
    assert after["constraints"] == before["constraints"]
    assert after["views"] == before["views"]
    assert after["grants"] == before["grants"]
    only = [
        (table, name, text.replace(" ON ONLY ", " ON ")) for table, name, text in after["indexes"]
    ]
    assert only == before["indexes"]


def test_there_are_sixteen_shards_and_they_are_used(dialect: Dialect, migrator: Migrator) -> None:
    migrator.apply_optional(NAME)
    with dialect.read() as session:
        for relation in SHARDED:
            shards = session.execute(
                "SELECT count(*) FROM pg_inherits WHERE inhparent = %(name)s::regclass",
                {"name": relation.name},
            )
            used = session.execute(f"SELECT count(DISTINCT tableoid) FROM {relation.name}", {})
            assert shards == [(16,)]
            assert used[0][0] > 8


def test_a_query_for_one_table_reads_one_shard(dialect: Dialect, migrator: Migrator) -> None:
    migrator.apply_optional(NAME)
    for relation in SHARDED:
        for table_id in TABLES[:3]:
            names = scanned(
                dialect,
                f"SELECT * FROM {relation.name} WHERE table_id = :table_id",
                table_id=table_id,
            )
            assert len(names) == 1
            assert names.pop().startswith(f"{relation.name}_")
    for view in VIEWS:
        where = "table_id = :table_id" + (" AND snapshot_version = 1" * (view != VIEWS[-1]))
        names = scanned(dialect, f"SELECT * FROM {view} WHERE {where}", table_id=TABLES[0])
        shards = [name for name in names if name != "dl_table_versions"]
        assert len(shards) == 2, view
        assert {name.rpartition("_")[0] for name in shards} == {"dl_add_files", "dl_remove_files"}
    everything = scanned(dialect, "SELECT * FROM dl_add_files")
    assert len(everything) == 16


def test_the_named_queries_work_on_shards(dialect: Dialect, migrator: Migrator) -> None:
    migrator.apply_optional(NAME)
    table_id = TABLES[3]
    with dialect.write() as session:
        paths = ["part-0.parquet", "part-1.parquet"]
        live = session.run("live_among", table_id=table_id, paths=paths)
        assert [row[0] for row in live] == ["part-0.parquet"]
        assert session.close_files(table_id, 2, [(path, "") for path in paths]) == 1
        assert len(session.run("compare_active_files", table_id=table_id, limit=9)) == 2
        session.changed("delete_active_files", table_id=table_id)
        session.changed("rebuild_active_files", table_id=table_id)
        assert session.run("compare_active_files", table_id=table_id, limit=9) == []


def test_constraints_hold_on_shards(dialect: Dialect, migrator: Migrator) -> None:
    migrator.apply_optional(NAME)
    add = (TABLES[0], 0, "part-0.parquet", "", 0, 1, True, "{}", *[None] * 7)
    bad_version = (TABLES[0], -1, *add[2:])
    for row in (add, bad_version):
        with pytest.raises(CatalogError, match="refused a row"), dialect.write() as session:
            session.insert(ADD_FILES, [row])


def test_reverting_gives_the_same_schema_and_the_same_rows(
    dialect: Dialect, migrator: Migrator
) -> None:
    rows, schema, records = content(dialect), dump(dialect), migrator.applied()
    for _ in range(2):
        migrator.apply_optional(NAME)
        assert dump(dialect) != schema
        assert migrator.revert_optional(NAME) is True
        assert content(dialect) == rows
        assert dump(dialect) == schema
        assert migrator.applied() == records


def test_sharding_is_recorded_with_its_checksum(dialect: Dialect, migrator: Migrator) -> None:
    migrator.apply_optional(NAME)
    migration = load_optional("postgres")[NAME]
    record = migrator.applied()[-1]
    assert (record.version, record.name, record.checksum) == (9001, NAME, migration.checksum)
    migrator.ensure()
    with dialect.write() as session:
        session.execute("UPDATE dl_schema_migrations SET checksum = 'x' WHERE version = 9001", {})
    with pytest.raises(MigrationError, match="differs from the file"):
        migrator.ensure()


def test_sharding_twice_does_nothing_and_its_script_refuses(
    dialect: Dialect, migrator: Migrator
) -> None:
    script = load_optional("postgres")[NAME]
    with pytest.raises(CatalogError, match="not sharded"), dialect.write() as session:
        session.script(script.down)
    assert migrator.revert_optional(NAME) is False
    migrator.apply_optional(NAME)
    before = dump(dialect)
    assert migrator.apply_optional(NAME) is False
    with pytest.raises(CatalogError, match="sharded already"), dialect.write() as session:
        session.script(script.up)
    assert dump(dialect) == before


def test_the_regular_way_down_goes_through_the_shards(dialect: Dialect, migrator: Migrator) -> None:
    migrator.apply_optional(NAME)
    assert migrator.down()[0].version == 9001
    assert kinds(dialect) == {"dl_schema_migrations": "r"}
    assert migrator.applied() == []
    migrator.up()


def test_a_later_migration_applies_to_shards_and_survives_the_way_back(
    dialect: Dialect, migrator: Migrator
) -> None:
    known = list(load_migrations("postgres"))
    up = (
        "ALTER TABLE dl_add_files ADD COLUMN note text DEFAULT 'n' CHECK (note <> '');"
        "CREATE INDEX dl_add_files_note ON dl_add_files (note) WHERE note <> 'n';"
    )
    later = Migration(len(known) + 1, "note", up, "ALTER TABLE dl_add_files DROP COLUMN note;")
    newer = Migrator(dialect, ManualClock(), migrations=[*known, later])
    newer.up()
    plain = dump(dialect)
    newer.down(len(known))
    migrator.apply_optional(NAME)
    newer.up()
    newer.revert_optional(NAME)
    assert dump(dialect) == plain


def test_grants_options_comments_and_foreign_views_survive_both_ways(
    dialect: Dialect, migrator: Migrator
) -> None:
    suffix = str(dialect.url.schema is None).lower()
    owner, other = f"shard_owner_{suffix}", f"shard_other_{suffix}"
    with dialect.write() as session:
        session.script(
            f"CREATE ROLE {owner}; CREATE ROLE {other};"
            f"GRANT SELECT, INSERT ON dl_add_files TO {other};"
            f"GRANT SELECT ON dl_add_files TO {owner} WITH GRANT OPTION;"
            f"GRANT UPDATE (removed_version) ON dl_active_files TO {other};"
            "GRANT SELECT ON dl_remove_files TO PUBLIC;"
            f"GRANT SELECT ON vw_active_files TO {other};"
            "ALTER TABLE dl_add_files SET (fillfactor = 90);"
            "COMMENT ON COLUMN dl_add_files.path IS 'hello';"
            "CREATE VIEW sizes WITH (security_barrier = true) AS "
            "SELECT table_id, sum(size_bytes) AS total FROM dl_active_files GROUP BY table_id;"
            f"GRANT SELECT ON sizes TO {other};"
            f"GRANT CREATE ON SCHEMA {_schema(session)} TO {owner};"
            f"ALTER TABLE dl_cdc_files OWNER TO {owner};"
            f"ALTER DEFAULT PRIVILEGES GRANT DELETE ON TABLES TO {other};"
        )
    try:
        before = dump(dialect), details(dialect)
        migrator.apply_optional(NAME)
        assert dump(dialect)["grants"] == before[0]["grants"]
        assert details(dialect) == before[1]
        migrator.revert_optional(NAME)
        assert (dump(dialect), details(dialect)) == before
    finally:
        with dialect.write() as session:
            session.script(
                f"REASSIGN OWNED BY {owner}, {other} TO CURRENT_USER;"
                f"DROP OWNED BY {owner}, {other};"
                f"DROP ROLE {owner}, {other};"
            )


def _schema(session: Session) -> str:
    name: str = session.execute("SELECT quote_ident(current_schema())", {})[0][0]
    return name


def details(dialect: Dialect) -> list[list[Row]]:
    with dialect.read() as session:
        return [
            session.execute(
                "SELECT attrelid::regclass::text, attname, attacl::text FROM pg_attribute "
                "WHERE attacl IS NOT NULL AND attrelid >= 16384 ORDER BY 1, 2",
                {},
            ),
            session.execute("SELECT col_description('dl_add_files'::regclass, 3)", {}),
            session.execute("SELECT reloptions::text FROM pg_class WHERE relname = 'sizes'", {}),
            session.execute("SELECT table_id, total FROM sizes ORDER BY 1", {}),
        ]


@pytest.mark.parametrize(
    "obstacle",
    [
        "CREATE POLICY p ON dl_add_files USING (true)",
        "CREATE PUBLICATION p FOR TABLE dl_cdc_files",
        "CREATE MATERIALIZED VIEW p AS SELECT path FROM dl_active_files",
    ],
)
def test_what_cannot_be_carried_over_is_refused_and_nothing_changes(
    dialect: Dialect, migrator: Migrator, obstacle: str
) -> None:
    with dialect.write() as session:
        session.script(obstacle)
    before = content(dialect), dump(dialect), migrator.applied()
    with pytest.raises(CatalogError):
        migrator.apply_optional(NAME)
    assert (content(dialect), dump(dialect), migrator.applied()) == before


def test_the_owner_of_a_database_needs_no_superuser(
    postgres_server: PostgresServer, open_dialect: OpenDialect
) -> None:
    name = postgres_server.create_database()
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE lake_owner LOGIN")
        connection.execute(f"ALTER DATABASE {name} OWNER TO lake_owner")
    url = postgres_server.url(name).replace("postgres@", "lake_owner@", 1)
    dialect = open_dialect(url)
    try:
        migrator = Migrator(dialect, ManualClock())
        migrator.up()
        before = dump(dialect)
        assert migrator.apply_optional(NAME)
        assert migrator.revert_optional(NAME)
        assert dump(dialect) == before
    finally:
        dialect.close()
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name}")
            connection.execute("DROP ROLE lake_owner")
