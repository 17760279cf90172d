"""Migrations: up and down leave nothing and lose nothing, and whatever does not fit is refused."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    CatalogConstraintError,
    CatalogError,
    ConfigurationError,
    MigrationError,
    SchemaOutdatedError,
    SchemaTooNewError,
)
from deltalakedb.store.dialect import Dialect, Row
from deltalakedb.store.migrate import Migration, Migrator, load_migrations, load_optional
from deltalakedb.store.relations import LIVE, PAGE_COLUMNS, RELATIONS, TABLES, Kind, Relation
from deltalakedb.store.url import Engine, parse_url
from store.sql.conftest import DIALECTS, OpenDialect
from store.sql.introspection import describe, dump

from support.postgres_server import PostgresServer

CLOCK = ManualClock()
TABLE_ID = "11111111-1111-4111-8111-111111111111"
NOTES = "CREATE TABLE dl_notes (note INTEGER NOT NULL);"
EXTRA_TABLE = Migration(0, "notes", NOTES, "DROP TABLE dl_notes;")


def migrator(dialect: Dialect, migrations: Sequence[Migration] | None = None) -> Migrator:
    return Migrator(dialect, CLOCK, migrations=migrations)


def shipped(dialect: Dialect) -> list[Migration]:
    return list(load_migrations(dialect.engine))


def with_next(dialect: Dialect, **changes: str) -> list[Migration]:
    """The migrations of a later release: one more than this one's."""
    known = shipped(dialect)
    return [*known, replace(EXTRA_TABLE, version=len(known) + 1, **changes)]


# --- up and down --------------------------------------------------------------------------


def test_up_then_down_then_up_gives_the_same_schema(dialect: Dialect) -> None:
    migrator(dialect).up()
    first = dump(dialect)
    migrator(dialect).down()
    emptied = describe(dialect)
    migrator(dialect).up()
    assert dump(dialect) == first
    assert set(emptied.tables) == {"dl_schema_migrations"}
    assert (emptied.views, emptied.indexes, emptied.enums) == ({}, {}, {})


def test_down_undoes_each_migration_exactly(dialect: Dialect) -> None:
    migrations = with_next(dialect)
    states = []
    for migration in migrations:
        migrator(dialect, migrations).up(migration.version)
        states.append(dump(dialect))
    for migration, state in zip(reversed(migrations), reversed(states), strict=True):
        assert dump(dialect) == state
        undone = migrator(dialect, migrations).down(migration.version - 1)
        assert [m.version for m in undone] == [migration.version]


def test_bounds_of_an_older_duckdb_catalog_are_found_by_their_new_numbers(tmp_path: Path) -> None:
    dialect = DIALECTS["duckdb"](parse_url(f"duckdb:///{tmp_path / 'catalog.db'}"))
    migrator(dialect).up(10)
    rows = [
        valid_row(PAGE_COLUMNS, page_id=page, low=None, high=None, bounds=bytes([page]))
        for page in range(10)
    ]
    with dialect.write() as session:
        session.insert(PAGE_COLUMNS, rows)
    values = dict(zip(PAGE_COLUMNS.columns, rows[0], strict=True))
    wanted = {name: values[name] for name in ("table_id", "column_key", "type")}
    for _ in range(2):
        migrator(dialect).up()
        with dialect.read() as session:
            found = session.page_bounds(2, 8, version=0, lowest=0, highest=0, **wanted)
        assert {page: bounds for page, _, bounds in found} == {n: bytes([n]) for n in range(2, 9)}
        migrator(dialect).down(10)
        assert count(dialect, PAGE_COLUMNS) == 10
    dialect.close()


def test_up_is_recorded_with_name_checksum_and_time(dialect: Dialect) -> None:
    done = migrator(dialect).up()
    assert list(done) == shipped(dialect)
    records = migrator(dialect).applied()
    assert [(r.version, r.name, r.checksum, r.applied_at) for r in records] == [
        (m.version, m.name, m.checksum, CLOCK.now_ms()) for m in done
    ]


def test_up_again_does_nothing(dialect: Dialect) -> None:
    migrator(dialect).up()
    before = dump(dialect), migrator(dialect).applied()
    assert migrator(dialect).up() == []
    assert (dump(dialect), migrator(dialect).applied()) == before


def test_up_stops_at_its_target(dialect: Dialect) -> None:
    migrations = with_next(dialect)
    first = migrations[-2].version
    migrator(dialect, migrations).up(first)
    assert [m.version for m in migrator(dialect, migrations).pending()] == [first + 1]
    assert "dl_notes" not in describe(dialect).tables


@pytest.mark.parametrize("target", [-1, 9999])
def test_a_target_that_does_not_exist_is_refused(dialect: Dialect, target: int) -> None:
    with pytest.raises(ConfigurationError, match=f"no schema version {target}"):
        migrator(dialect).up(target)
    with pytest.raises(ConfigurationError, match=f"no schema version {target}"):
        migrator(dialect).down(target)


def test_ensure_creates_the_schema_once_and_then_only_checks(dialect: Dialect) -> None:
    migrator(dialect).ensure()
    records = migrator(dialect).applied()
    CLOCK.advance(1)
    migrator(dialect).ensure()
    assert migrator(dialect).applied() == records


def test_the_schema_survives_closing(
    dialect: Dialect, catalog_url: str, open_dialect: OpenDialect
) -> None:
    migrator(dialect).up()
    before = dump(dialect)
    dialect.close()
    again = open_dialect(catalog_url)
    migrator(again).ensure()
    assert dump(again) == before


# --- what is refused ----------------------------------------------------------------------


def test_a_changed_migration_is_refused(dialect: Dialect) -> None:
    migrator(dialect).up()
    for way in ("up", "down"):
        first, *rest = shipped(dialect)
        changed = replace(first, **{way: getattr(first, way) + "\n-- changed\n"})
        for use in (Migrator.up, Migrator.down, Migrator.ensure, Migrator.pending):
            with pytest.raises(MigrationError, match=r"0001_ledger .* differs from the file"):
                use(migrator(dialect, [changed, *rest]))
    migrator(dialect).ensure()


def test_a_renamed_migration_is_refused(dialect: Dialect) -> None:
    migrator(dialect).up()
    first, *rest = shipped(dialect)
    with pytest.raises(MigrationError, match="differs from the file"):
        migrator(dialect, [replace(first, name="other"), *rest]).ensure()


def test_a_checkout_with_other_newlines_is_the_same_migration(dialect: Dialect) -> None:
    migrator(dialect).up()
    windows = [
        replace(m, up=m.up.replace("\n", "\r\n"), down=m.down.replace("\n", "\r\n"))
        for m in shipped(dialect)
    ]
    migrator(dialect, windows).ensure()


def test_a_recorded_migration_that_is_missing_here_is_refused(dialect: Dialect) -> None:
    migrations = with_next(dialect)
    last = migrations[-1]
    later = [*migrations, replace(last, version=last.version + 1, name="z", up=";", down=";")]
    migrator(dialect, migrations).up()
    without = [m for m in later if m is not last]
    with pytest.raises(MigrationError, match=f"{last.version:04d}_notes, which this installation"):
        migrator(dialect, without).ensure()


def test_an_unknown_optional_migration_is_refused(dialect: Dialect) -> None:
    migrator(dialect).up()
    with dialect.write() as session:
        session.changed("record_migration", version=9999, name="x", checksum="x", applied_at=0)
    with pytest.raises(MigrationError, match="9999_x, which this installation lacks"):
        migrator(dialect).ensure()


def test_a_newer_schema_is_refused(dialect: Dialect) -> None:
    migrator(dialect, with_next(dialect)).up()
    for use in (Migrator.up, Migrator.down, Migrator.ensure, Migrator.pending):
        with pytest.raises(SchemaTooNewError, match="Upgrade deltalakedb"):
            use(migrator(dialect))
    assert "dl_notes" in describe(dialect).tables


def test_an_outdated_schema_is_refused_by_ensure_and_left_alone(dialect: Dialect) -> None:
    migrator(dialect).up()
    before = dump(dialect)
    with pytest.raises(SchemaOutdatedError, match="deltalakedb migrate"):
        migrator(dialect, with_next(dialect)).ensure()
    assert dump(dialect) == before


def test_a_gap_is_refused(dialect: Dialect) -> None:
    migrations = with_next(dialect)
    migrator(dialect, migrations).up()
    with dialect.write() as session:
        session.changed("forget_migration", version=1)
    for use in (Migrator.up, Migrator.ensure):
        with pytest.raises(MigrationError, match="lacks migration 0001_ledger"):
            use(migrator(dialect, migrations))


def test_an_optional_migration_of_another_name_is_refused(dialect: Dialect) -> None:
    migrator(dialect).up()
    with pytest.raises(ConfigurationError, match="no optional migration 'nothing'"):
        migrator(dialect).apply_optional("nothing")


def test_an_optional_migration_needs_the_schema(dialect: Dialect) -> None:
    for name in load_optional(dialect.engine):
        with pytest.raises(MigrationError, match="needs an up-to-date schema"):
            migrator(dialect).apply_optional(name)


@pytest.mark.parametrize("at_once", [True, False], ids=["from empty", "on top"])
def test_a_failing_migration_leaves_nothing_behind(dialect: Dialect, at_once: bool) -> None:
    if not at_once:
        migrator(dialect).up()
    before = dump(dialect), migrator(dialect).applied()
    broken = with_next(dialect, up=NOTES + "\nINSERT INTO dl_nowhere VALUES (1);")
    with pytest.raises(CatalogError):
        migrator(dialect, broken).up()
    assert (dump(dialect), migrator(dialect).applied()) == before
    migrator(dialect, with_next(dialect)).up()


def test_a_failing_down_leaves_everything(dialect: Dialect) -> None:
    broken = with_next(dialect, down="DROP TABLE dl_notes;\nDROP TABLE dl_nowhere;")
    migrator(dialect, broken).up()
    before = dump(dialect), migrator(dialect).applied()
    with pytest.raises(CatalogError):
        migrator(dialect, broken).down()
    assert (dump(dialect), migrator(dialect).applied()) == before


# --- several at once ----------------------------------------------------------------------


def test_migrators_in_many_threads_apply_each_migration_once(
    catalog_url: str, open_dialect: OpenDialect
) -> None:
    dialects = [open_dialect(catalog_url) for _ in range(6)]
    start = threading.Barrier(len(dialects))
    done: list[int] = []
    failures: list[BaseException] = []

    def run(dialect: Dialect) -> None:
        start.wait()
        try:
            done.append(len(migrator(dialect).up()))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=run, args=(dialect,)) for dialect in dialects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(done) == [0, 0, 0, 0, 0, len(shipped(dialects[0]))]
    migrator(dialects[0]).ensure()


ANOTHER_PROCESS = """
import sys
from deltalakedb.clock import SystemClock
from deltalakedb.store.migrate import Migrator
from deltalakedb.store.url import parse_url
url = parse_url(sys.argv[1])
if url.engine == "postgres":
    from deltalakedb.store.postgres import PostgresDialect as Dialect
else:
    from deltalakedb.store.sqlite import SqliteDialect as Dialect
print("ready", flush=True)
sys.stdin.readline()
migrator = Migrator(Dialect(url), SystemClock())
migrator.ensure()
print(len(migrator.applied()))
"""


# DuckDB is left out: one of its files cannot be open in two processes.
@pytest.mark.parametrize("engine", ["postgres", "sqlite"], indirect=True)
def test_migrators_in_many_processes_apply_each_migration_once(
    catalog_url: str, open_dialect: OpenDialect
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ANOTHER_PROCESS, catalog_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    dialect = open_dialect(catalog_url)
    assert answers == [(f"{len(shipped(dialect))}\n", "")] * len(processes)
    assert migrator(dialect).pending() == []


# --- schemas of Postgres ------------------------------------------------------------------


def with_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={quote(schema)}"


def test_two_schemas_of_one_database_are_two_catalogs(
    postgres_url: str, open_dialect: OpenDialect
) -> None:
    default = open_dialect(postgres_url)
    north, south = (open_dialect(with_schema(postgres_url, s)) for s in ("north", 'So"uth %'))
    for dialect in (default, north, south):
        migrator(dialect).ensure()
    with north.write() as session:
        session.insert(TABLES, [valid_row(TABLES)])
    assert [count(dialect, TABLES) for dialect in (default, north, south)] == [0, 1, 0]
    expected = dump(default)
    assert dump(north) == expected
    assert dump(south) == expected
    migrator(north).down()
    assert set(describe(north).tables) == {"dl_schema_migrations"}
    assert dump(south) == expected


def test_a_custom_schema_puts_nothing_into_public(
    postgres_url: str, open_dialect: OpenDialect
) -> None:
    migrator(open_dialect(with_schema(postgres_url, "lakes"))).up()
    default = open_dialect(postgres_url)
    assert describe(default).tables == {}
    assert migrator(default).applied() == []


def test_migrators_of_two_schemas_do_not_wait_for_each_other(
    postgres_url: str, open_dialect: OpenDialect
) -> None:
    north = open_dialect(with_schema(postgres_url, "north"))
    south = open_dialect(with_schema(postgres_url, "south") + "&timeout=1")
    with north.write() as session:
        north.lock_migrations(session)
        migrator(south).up()


def test_a_migrator_that_waits_too_long_says_so(
    postgres_server: PostgresServer, open_dialect: OpenDialect
) -> None:
    url = postgres_server.url(postgres_server.create_database())
    holder, waiter = open_dialect(url), open_dialect(url + "&timeout=0.2")
    with holder.write() as session:
        holder.lock_migrations(session)
        with pytest.raises(CatalogError, match="timeout"):
            migrator(waiter).up()
    migrator(waiter).up()


# --- rows that the schema refuses ---------------------------------------------------------

AT_LEAST_ONE = frozenset(
    {"protocol_min_reader", "protocol_min_writer", "min_reader_version", "min_writer_version"}
)
# Numbers that the protocol leaves free.
ANY_NUMBER = frozenset(
    {
        *("txn_version", "last_update", "base_row_id", "default_row_commit_version"),
        *(f"key{n}_{part}" for n in (1, 2, 3) for part in ("width", "low", "high")),
        *("low", "high"),
    }
)
_VALUES: dict[Kind, Any] = {
    Kind.UUID: TABLE_ID,
    Kind.TEXT: "text",
    Kind.INT: 7,
    Kind.BOOL: True,
    Kind.MAP: '{"a": "b", "c": null}',
    Kind.JSON: '{"a": [1, "b", null]}',
    Kind.LIST: ["a", "b"],
    Kind.BYTES: b"\x00\xff",
    Kind.STATE: "PENDING",
}


def valid_row(relation: Relation, **changes: object) -> Row:
    values = {c: _VALUES[k] for c, k in zip(relation.columns, relation.kinds, strict=True)}
    if "removed_version" in values:
        values["removed_version"] = LIVE
    if "valid_to" in values:
        values["valid_to"] = LIVE
    return tuple((values | changes).values())


def count(dialect: Dialect, relation: Relation) -> int:
    with dialect.read() as session:
        found: int = session.execute(f"SELECT count(*) FROM {relation.name}", {})[0][0]
        return found


def refuses(dialect: Dialect, relation: Relation, **changes: object) -> type[BaseException]:
    """The error that a bad row meets, alone and among many (which go in another way)."""
    row = valid_row(relation, **changes)
    errors = []
    for rows in ([row], [row, *[valid_row(relation, table_id=_id(i)) for i in range(100)]]):
        with pytest.raises(CatalogError) as raised, dialect.write() as session:
            session.insert(relation, rows)
        errors.append(raised.type)
    assert count(dialect, relation) == 0
    assert errors[0] is errors[1]
    return errors[0]


def _id(number: int) -> str:
    return f"22222222-2222-4222-8222-{number:012d}"


def ids(relation: Relation) -> str:
    return relation.name


@pytest.fixture
def migrated(dialect: Dialect) -> Dialect:
    migrator(dialect).up()
    return dialect


@pytest.mark.parametrize("relation", RELATIONS, ids=ids)
def test_a_valid_row_is_accepted(migrated: Dialect, relation: Relation) -> None:
    with migrated.write() as session:
        session.insert(relation, [valid_row(relation)])
    assert count(migrated, relation) == 1


@pytest.mark.parametrize("relation", RELATIONS, ids=ids)
def test_negative_versions_sizes_counts_and_times_are_refused(
    migrated: Dialect, relation: Relation
) -> None:
    for column, kind in zip(relation.columns, relation.kinds, strict=True):
        if kind is Kind.INT and column not in ANY_NUMBER:
            assert refuses(migrated, relation, **{column: -1}) is CatalogConstraintError, column


@pytest.mark.parametrize("relation", RELATIONS, ids=ids)
def test_a_protocol_version_below_one_is_refused(migrated: Dialect, relation: Relation) -> None:
    for column in AT_LEAST_ONE.intersection(relation.columns):
        assert refuses(migrated, relation, **{column: 0}) is CatalogConstraintError, column


@pytest.mark.parametrize("relation", RELATIONS, ids=ids)
def test_null_is_refused_where_the_protocol_requires_a_value(
    migrated: Dialect, relation: Relation
) -> None:
    columns = describe(migrated).tables[relation.name]
    # Others are columns of one engine, which fills them itself.
    required = [c.name for c in columns if not c.nullable and c.name in relation.columns]
    assert "table_id" in required
    for column in required:
        assert refuses(migrated, relation, **{column: None}) is CatalogConstraintError, column


@pytest.mark.parametrize("relation", RELATIONS, ids=ids)
def test_text_that_is_not_json_is_refused(migrated: Dialect, relation: Relation) -> None:
    for column, kind in zip(relation.columns, relation.kinds, strict=True):
        if kind in (Kind.MAP, Kind.JSON):
            refuses(migrated, relation, **{column: '{"a": '})


@pytest.mark.parametrize("relation", RELATIONS, ids=ids)
def test_a_doubled_key_is_refused(migrated: Dialect, relation: Relation) -> None:
    if relation.name not in describe(migrated).primary_keys:
        assert migrated.engine == "duckdb"
        assert relation.name in ("dl_active_files", "dl_page_texts")
        pytest.skip("DuckDB keeps no key on this derived relation: see docs/schema.md")
    row = valid_row(relation)
    with pytest.raises(CatalogConstraintError), migrated.write() as session:
        session.insert(relation, [row, row])
    with migrated.write() as session:
        session.insert(relation, [row])
    with pytest.raises(CatalogConstraintError), migrated.write() as session:
        session.insert(relation, [row])
    assert count(migrated, relation) == 1


@pytest.mark.parametrize("column", ["name", "location"])
def test_a_doubled_name_or_location_is_refused(migrated: Dialect, column: str) -> None:
    others = {"name": "b", "location": "b", column: "a"}
    with migrated.write() as session:
        session.insert(TABLES, [valid_row(TABLES, name="a", location="a")])
    with pytest.raises(CatalogConstraintError), migrated.write() as session:
        session.insert(TABLES, [valid_row(TABLES, table_id=_id(1), **others)])


def test_a_mirror_status_that_does_not_exist_is_refused(migrated: Dialect) -> None:
    relation = next(r for r in RELATIONS if r.name == "dl_mirror_status")
    for status in ("DONE", "pending", ""):
        refuses(migrated, relation, status=status)


def test_an_interval_that_ends_before_it_begins_is_refused(migrated: Dialect) -> None:
    relation = next(r for r in RELATIONS if r.name == "dl_active_files")
    for removed in (6, 7):
        changes = {"added_version": 7, "removed_version": removed}
        assert refuses(migrated, relation, **changes) is CatalogConstraintError


def test_a_boolean_is_nothing_but_true_or_false(migrated: Dialect, engine: Engine) -> None:
    bad = 2 if engine == "sqlite" else "perhaps"
    for relation in RELATIONS:
        for column, kind in zip(relation.columns, relation.kinds, strict=True):
            if kind is Kind.BOOL:
                with pytest.raises(CatalogError), migrated.write() as session:
                    session.insert(relation, [valid_row(relation, **{column: bad})])
                assert count(migrated, relation) == 0
