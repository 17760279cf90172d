"""The documented queries are served by the intended indexes, on Postgres and on SQLite.

With the statistics of real rows, and every scan allowed: the planner chooses. One table of 5,000
files lies beside ten others, as in a catalog that is in use. (DuckDB has one such index, that of
bounds: its zone maps serve ranges, and its plans do not name them.) Lookups by keys are orders to
the planner: they must do without statistics too, and touch few rows beside those that they find.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from deltalakedb.actions.order_keys import HIGHEST, LOWEST, Range, width_class
from deltalakedb.clock import ManualClock
from deltalakedb.conditions import planned
from deltalakedb.snapshot.listing import files_added
from deltalakedb.store import TableRecord
from deltalakedb.store.dialect import Dialect, Row, Session
from deltalakedb.store.migrate import Migrator
from deltalakedb.store.queries import load_queries
from deltalakedb.store.relations import (
    ACTIVE_FILES,
    ADD_FILES,
    FILE_PAGES,
    HEADS,
    LIVE,
    METADATA_UPDATES,
    MIRROR_STATUS,
    PAGE_COLUMNS,
    PAGE_TEXTS,
    PROTOCOL_UPDATES,
    REMOVE_FILES,
    TABLES,
    TXN_ACTIONS,
    VERSIONS,
)
from deltalakedb.store.url import Engine, parse_url
from store.sql.conftest import DIALECTS
from store.sql.test_schema_docs import queries

from support.postgres_server import PostgresServer

TABLE_ID = str(UUID(int=0xF11E << 64))
COMMITS = 500
OTHERS = 10
FILES_PER_COMMIT = 10
HEAD = COMMITS - 1
TRANSACTION = str(UUID(int=0x7A << 64))

DOCUMENTED: dict[str, list[set[str]]] = {
    # Section of docs/schema.md: for each of its queries, the indexes that its plan must name.
    "The head": [{"dl_table_heads_pkey"}],
    "Files at a version": [
        {"dl_active_files_interval"},
        {"dl_table_versions_pkey"},
        {"dl_remove_files_path", "dl_add_files_path"},
        {"dl_active_files_pkey"},
    ],
    "The history of a path": [{"dl_add_files_path"}, {"dl_remove_files_path"}],
    "Time travel by timestamp": [{"dl_table_versions_committed_at"}],
    "Schema, protocol, and the progress of an application at a version": [
        {"dl_metadata_updates_pkey"},
        {"dl_protocol_updates_pkey"},
        {"dl_txn_actions_app"},
    ],
    "Files of a partition": [{"dl_active_files_interval"}, {"dl_add_files_partition_values"}],
    "Optimistic concurrency": [{"dl_table_heads_pkey"}],
    "What the mirror still has to do": [{"dl_mirror_status_backlog"}],
}
# Where a planner rightly does otherwise, or where the page warns of it: catalog, section, query.
EXCEPTIONS: dict[tuple[str, str, int], set[str]] = {
    # Half of the files are live: following the key saves the sorting.
    ("sqlite analysed", "Files at a version", 0): {"dl_active_files_pkey"},
    ("sqlite analysed", "Files of a partition", 0): {"dl_active_files_pkey"},
}
NAMED = {
    # Named queries of the store, likewise.
    "table_by_name": {"dl_tables_name_key"},
    "table_by_location": {"dl_tables_location_key"},
    "table_by_id": {"dl_tables_pkey"},
    "head": {"dl_table_heads_pkey"},
    "heads": {"dl_table_heads_pkey"},
    "advance_head": {"dl_table_heads_pkey"},
    "read_version": {"dl_table_versions_pkey"},
    "version_at_timestamp": {"dl_table_versions_committed_at"},
    "live_among": {"dl_active_files_pkey"},
    "close_files": {"dl_active_files_pkey"},
    "adds_after": {"dl_add_files_pkey"},
    "removes_after": {"dl_remove_files_pkey"},
    "versions_after": {"dl_table_versions_pkey"},
    "commits_since": {"dl_table_versions_pkey", "dl_mirror_tables_pkey"},
    "newest_app_txn": {"dl_txn_actions_app"},
    "pages_at": {"dl_file_pages_validity"},
    "page_bounds": {"dl_page_columns_pkey", "dl_file_pages_validity"},
    "page_texts": {"dl_page_texts_pkey"},
    # What the operations page asks is bounded only as long as it goes by these.
    "browse_versions": {"dl_table_versions_pkey"},
    "browse_changes": {"dl_table_versions_newest"},
    "browse_changes_end": {"dl_table_versions_newest"},
    "browse_growth": {"dl_table_versions_pkey"},
    "browse_files": {"dl_active_files_interval"},
    "browse_sizes": {"dl_active_files_interval"},
    "browse_activity": {"dl_table_versions_newest"},
    "browse_contention": {"dl_table_versions_newest"},
    "browse_versions_at": {"dl_table_versions_committed_at"},
    "browse_files_ahead": {"dl_active_files_interval"},
    "browse_added": {"dl_add_files_pkey", "dl_active_files_pkey"},
    "browse_added_end": {"dl_add_files_pkey"},
    "browse_added_last": {"dl_add_files_pkey"},
}
# Of these, that they need no sorting is the point: it would read everything first.
UNSORTED = [
    *("browse_activity", "browse_contention", "browse_changes", "browse_versions"),
    *("browse_added", "browse_added_end", "browse_added_last"),
]
PLAN = '[{"partition": false, "path": ["id"], "type": "long"}]'
# Slot of the plan, what is looked for, and how many files have it: of the keys in `files`.
LOOKUPS: list[tuple[int, list[Range], int]] = [
    (1, [(2_000, 2_000)], 1),
    (1, [(2_000, 2_099)], 100),
    (1, [(5, 5), (700, 719), (4_990, HIGHEST)], 31),
    (2, [(20_010, 20_010)], 13),
    (3, [(17, 17)], 102),
]
PARAMS: dict[str, object] = {
    "table_id": TABLE_ID,
    "name": "t3",
    "location": "s3://b/t3",
    "version": HEAD,
    "with_stats": 1,
    "column_key": "x",
    "groups": "1,17,300",
    "lowest": 0,
    "highest": 1,
    "type": "long",
    "expected": HEAD,
    "timestamp": 1_000 + HEAD // 2,
    "path": "part-00001000",
    "dv_id": "",
    "limit": 100,
    "app_id": "nobody",
    "value": "1-17",
    "first": 0,
    "last": HEAD,
    "step": 10,
    "before": HEAD,
    "operation": None,
    "committer": None,
    "committed_at": 1_000 + HEAD,
    "since": 1_000,
    "searched": 1_000,
    "first_at": 1_000,
    "first_id": str(UUID(int=0)),
    "commit_uuid": str(UUID(int=1)),
    "last_path": "part-00009999",
    "last_dv_id": "",
}


def files(table_id: str, commits: int) -> Iterator[tuple[Row, Row, Row | None]]:
    """Rows of dl_add_files, dl_active_files and, for every second file, dl_remove_files."""
    for version in range(commits):
        for slot in range(FILES_PER_COMMIT):
            number = version * FILES_PER_COMMIT + slot
            path = f"part-{number * 7919 % 100_003:08d}-{number}"
            rest: Row = (1, 1, True, f'{{"day":"1-{number % 97}"}}', "{}", *[None] * 6)
            gone = version + 1 if slot % 2 and version + 1 < commits else None
            bounds = (number, number), (number * 10, number * 10 + 120), (number % 97, number % 97)
            if number % 100 == 50:  # nothing is known of it
                bounds = (*bounds[:2], (LOWEST, HIGHEST))
            keys = [key for low, high in bounds for key in (width_class(low, high), low, high)]
            yield (
                (table_id, version, path, "", *rest),
                (table_id, path, "", version, gone or LIVE, *rest, *keys),
                (table_id, gone, path, "", 1, True, *[None] * 9) if gone else None,
            )


def fill(session: Session) -> None:
    sizes = {TABLE_ID: COMMITS}
    sizes |= {str(UUID(int=n)): COMMITS for n in range(1, OTHERS + 1)}
    for table_id, commits in sizes.items():
        rows = list(files(table_id, commits))
        session.insert(ADD_FILES, [add for add, _, _ in rows])
        session.insert(ACTIVE_FILES, [active for _, active, _ in rows])
        session.insert(REMOVE_FILES, [remove for _, _, remove in rows if remove])
        versions = range(commits)
        session.insert(
            VERSIONS,
            [(table_id, v, 1_000 + v, *[None] * 7, *[1] * 8) for v in versions],
        )
        session.insert(
            METADATA_UPDATES,
            [
                (table_id, v, "i", None, None, "parquet", "{}", "{}", [], "{}", 1, None)
                for v in versions
            ],
        )
        session.insert(PROTOCOL_UPDATES, [(table_id, v, 1, 2, None, None, None) for v in versions])
        session.insert(
            TXN_ACTIONS, [(table_id, v, f"app-{v % 9}", v, None, None) for v in versions]
        )
        session.insert(
            MIRROR_STATUS,
            [
                (table_id, v, status, 1, None, "d", None, 1, 0, 1, 1, None)
                for v in versions
                for status in ["SUCCEEDED" if v < commits - 2 else "PENDING"]
            ],
        )
        session.insert(HEADS, [(table_id, commits - 1)])
        session.insert(
            FILE_PAGES,
            [(table_id, v, v, v + 10, 1, b"x", None, None) for v in range(commits)],
        )
        session.insert(
            PAGE_COLUMNS,
            [(table_id, "x", v, "long", None, None, b"x") for v in range(commits)],
        )
        session.insert(PAGE_TEXTS, [(table_id, v, b"x", b"x") for v in range(commits)])
    session.insert(
        TABLES,
        [
            (t, f"full{n}", f"s3://b/full{n}", 1, 2, "{}", 1, 1, PLAN, None)
            for n, t in enumerate(sizes)
        ],
    )
    empty = [str(UUID(int=0xE << 64 | n)) for n in range(2_000)]
    session.insert(HEADS, [(table_id, 0) for table_id in empty])
    session.insert(
        TABLES,
        [(t, f"t{n}", f"s3://b/t{n}", 1, 2, "{}", 1, 1, None, None) for n, t in enumerate(empty)],
    )


# SQLite collects statistics only when told to: what the store needs must work without.
@pytest.fixture(scope="module", params=["postgres", "sqlite", "sqlite analysed"])
def catalog(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def filled(
    catalog: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dialect]:
    """A catalog in use, with the statistics that its planner would have."""
    with opened(catalog, request, tmp_path_factory) as dialect:
        yield dialect


@pytest.fixture(scope="module", params=["postgres", "postgres unanalysed", "sqlite"])
def keyed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dialect]:
    """The same, also without statistics."""
    with opened(request.param, request, tmp_path_factory) as dialect:
        yield dialect


@contextmanager
def opened(
    catalog: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dialect]:
    engine: Engine = "postgres" if catalog.startswith("postgres") else "sqlite"
    if engine == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.url(server.create_database())
    else:
        folder: Path = tmp_path_factory.mktemp("plans")
        url = f"sqlite:///{folder}/lake.db"
    dialect = DIALECTS[engine](parse_url(url))
    Migrator(dialect, ManualClock()).up()
    if catalog == "postgres unanalysed":
        with psycopg.connect(url, autocommit=True) as connection:
            for relation in (ACTIVE_FILES, TABLES):
                connection.execute(f"ALTER TABLE {relation.name} SET (autovacuum_enabled = false)")
    with dialect.write() as session:
        fill(session)
    if catalog == "postgres":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    elif catalog == "sqlite analysed":
        with dialect.write() as session:
            session.script("ANALYZE;")
        dialect.close()  # other connections have read the schema without its statistics
        dialect = DIALECTS[engine](parse_url(url))
    yield dialect
    dialect.close()


def used(
    dialect: Dialect,
    sql: str,
    *,
    as_anybody: bool = False,
    more: Mapping[str, object] | None = None,
) -> tuple[set[str], str]:
    """The indexes that the plan of a query names, and the plan."""
    params = {k: v for k, v in PARAMS.items() if re.search(rf"(?<!:)[:(]{k}\b", sql)}
    params |= more or {}
    with dialect.write() as session:
        paths = [f"part-{n:08d}" for n in range(5)]
        params["paths"], params["table_ids"] = session.array(paths), session.array([TABLE_ID])
        params["path_list"] = json.dumps(paths)
        params["keys"] = json.dumps([(path, "") for path in paths])
        params["dv_ids"] = session.array([""] * len(paths))
        if dialect.engine == "postgres":
            if as_anybody:
                # The store's own statements may not read whole relations; people's may.
                session.read_all()
            answer = session.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
            plan = json.loads(answer[0][0])[0]["Plan"]
            return set(_indexes(plan)), json.dumps(plan, indent=1)
        steps = [row[3] for row in session.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    names = re.findall(r"INDEX ([a-z]\w+)", " ".join(steps))
    return {_sqlite_name(name) for name in names}, "\n".join(steps)


def _indexes(plan: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in plan:
        yield plan["Index Name"]
    for below in plan.get("Plans", ()):
        yield from _indexes(below)


def _sqlite_name(name: str) -> str:
    """SQLite numbers the indexes of keys; Postgres names them."""
    key = re.fullmatch(r"sqlite_autoindex_(\w+)_(\d)", name)
    if key is None:
        return name
    suffix = ["pkey", "name_key", "location_key"] if key[1] == TABLES.name else ["pkey"]
    return f"{key[1]}_{suffix[int(key[2]) - 1]}"


def test_documented_queries_use_the_intended_indexes(filled: Dialect, catalog: str) -> None:
    wrong = []
    for title, wanted in DOCUMENTED.items():
        texts = [
            text for name, text, engines in queries() if name == title if filled.engine in engines
        ]
        # What only Postgres can do comes last.
        assert len(texts) in (len(wanted), len(wanted) - 1), title
        for number, (text, expected) in enumerate(zip(texts, wanted, strict=False)):
            names = EXCEPTIONS.get((catalog, title, number), expected)
            indexes, plan = used(filled, filled.sql(text.rstrip().rstrip(";")), as_anybody=True)
            if not names <= indexes:
                wrong.append(f"{title}: {sorted(names)} wanted, {sorted(indexes)} used\n{plan}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("name", NAMED)
def test_named_queries_use_the_intended_indexes(filled: Dialect, name: str) -> None:
    indexes, plan = used(filled, load_queries(filled.engine)[name])
    assert indexes >= NAMED[name], plan


@pytest.mark.parametrize("name", UNSORTED)
def test_pages_of_a_list_come_in_the_order_of_an_index(filled: Dialect, name: str) -> None:
    _, plan = used(filled, load_queries(filled.engine)[name])
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("name", ["live_among", "close_files", "has_path", "has_file", "added"])
def test_files_of_a_table_that_statistics_do_not_know_yet_are_looked_up_by_path(
    filled: Dialect, name: str
) -> None:
    # A table that was filled just now: the planner thinks that it has no files at all, and that any
    # index will do. One that reads all of them for each path takes minutes.
    new = "00000000-0000-0000-0000-0000000000ff"
    if name == "added":
        table = TableRecord(new, "new", "s3://b/new", 1, 2, {}, 1, 1)
        query = files_added(table, 3, HEAD, ("path",), filled.engine)
        sql, params = filled.sql(query.text), dict(query.params)
        for key, value in params.items():  # as they are sent
            sql = re.sub(rf"%\({key}\)s|:{key}\b", f"'{value}'", sql)
        sql, params = sql.partition("UNION ALL")[2], {}
    else:
        sql, params = load_queries(filled.engine)[name], {"table_id": new}
    indexes, plan = used(filled, sql, more=params)
    assert "dl_active_files_pkey" in indexes, plan
    assert "dl_active_files_interval" not in indexes, plan


def test_the_newest_version_needs_no_index_of_its_own(filled: Dialect) -> None:
    sql = (
        "SELECT version FROM dl_table_versions WHERE table_id = :table_id "
        "ORDER BY version DESC LIMIT 1"
    )
    indexes, plan = used(filled, filled.sql(sql))
    assert indexes == {"dl_table_versions_pkey"}
    assert "Backward" in plan if filled.engine == "postgres" else "TEMP B-TREE" not in plan


def test_a_multi_table_transaction_is_found_by_its_index(filled: Dialect) -> None:
    sql = f"SELECT table_id, version FROM dl_table_versions WHERE transaction_id = '{TRANSACTION}'"
    indexes, plan = used(filled, sql)
    assert indexes == {"dl_table_versions_transaction"}, plan


# --- lookups by keys ----------------------------------------------------------------------


def looked_up(dialect: Dialect, slot: int, ranges: list[Range]) -> tuple[str, dict[str, object]]:
    keys = planned.Keys(PLAN, {slot: ranges})
    found = planned.looked_up(dialect.engine, ("path", "stats"), keys, slot)
    return dialect.sql(found.text), {"table_id": TABLE_ID, "version": HEAD, **found.params}


@pytest.mark.parametrize(("slot", "ranges", "count"), LOOKUPS)
def test_keys_are_looked_up_by_their_index(
    keyed: Dialect, slot: int, ranges: list[Range], count: int
) -> None:
    sql, params = looked_up(keyed, slot, ranges)
    indexes, plan = used(keyed, sql, more=params)
    assert indexes == {f"dl_active_files_key{slot}", "dl_tables_pkey"}, plan
    overlap = " OR ".join(f"(key{slot}_low <= {b} AND key{slot}_high >= {a})" for a, b in ranges)
    every = f"SELECT count(*) FROM dl_active_files WHERE table_id = :table_id AND ({overlap})"
    with keyed.read() as session:
        assert session.execute(keyed.sql(every), {"table_id": TABLE_ID}) == [(count,)]


@pytest.mark.parametrize(("slot", "ranges", "count"), LOOKUPS)
def test_a_lookup_touches_few_rows_beside_those_it_finds(
    keyed: Dialect, slot: int, ranges: list[Range], count: int
) -> None:
    if keyed.engine != "postgres":
        pytest.skip("SQLite does not say how many rows it has read")
    sql, params = looked_up(keyed, slot, ranges)
    with keyed.read() as session:
        answer = session.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
    scans = [n for n in _nodes(json.loads(answer[0][0])[0]["Plan"]) if "Index Name" in n]
    (scan,) = [n for n in scans if n["Index Name"] == f"dl_active_files_key{slot}"]
    touched = scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0))
    assert touched <= 2 * count + 20, scan


def test_of_two_columns_both_indexes_are_counted(keyed: Dialect) -> None:
    ranges: dict[int, list[Range]] = {1: [(0, HIGHEST)], 2: [(20_010, 20_010)], 3: [(17, 17)]}
    keys = planned.Keys(PLAN, ranges)
    with keyed.read() as session:
        assert planned.best_slot(session, keys, TABLE_ID) == 2


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def test_every_secondary_index_serves_a_query_of_this_page(filled: Dialect) -> None:
    """An index that no documented query uses has to go."""
    with filled.read() as session:
        rows = session.execute(
            "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"
            if filled.engine == "postgres"
            else "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
            {},
        )
    secondary = {name for (name,) in rows if not name.endswith(("_pkey", "_key"))}
    serving = {index for sets in DOCUMENTED.values() for names in sets for index in names}
    serving |= {index for names in NAMED.values() for index in names}
    serving |= {"dl_table_versions_transaction"}
    serving |= {f"dl_active_files_key{slot}" for slot, _, _ in LOOKUPS}
    assert secondary - serving == set()


@pytest.mark.parametrize("pages", [1, 5, 70])
def test_duckdb_looks_bounds_up_by_their_index(tmp_path: Path, pages: int) -> None:
    """A scan would read the bounds of other columns too, unless the file was just opened."""
    dialect = DIALECTS["duckdb"](parse_url(f"duckdb:///{tmp_path / 'catalog.db'}"))
    Migrator(dialect, ManualClock()).up()
    bounds = {
        (column, page): f"{column} {page}".encode() for page in range(pages) for column in "ab"
    }
    with dialect.write() as session:
        for (column, page), data in bounds.items():
            row = (TABLE_ID, column, page, "long", 0, page, data)
            session.insert(PAGE_COLUMNS, [row])
    with dialect.read() as session:
        plans: list[str] = []
        execute = session.execute

        def explained(sql: str, params: Mapping[str, object]) -> list[Row]:
            if "bounds_id IN" in sql:
                plans.append(execute(f"EXPLAIN ANALYZE {sql}", params)[0][1])
            return execute(sql, params)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "execute", explained)
            rows = session.page_bounds(
                0,
                pages,
                table_id=TABLE_ID,
                version=0,
                column_key="a",
                type="long",
                lowest=1,
                highest=1,
            )
    dialect.close()
    # The first page has no value as great, and is left out.
    expected = {page: bounds["a", page] if page else None for page in range(pages)}
    assert {page: data for page, _, data in rows} == expected
    assert "Sequential Scan" not in "".join(plans)
    lookups = -(-(pages - 1) // 4)
    assert sum(plan.count("Index Scan") for plan in plans) == lookups
