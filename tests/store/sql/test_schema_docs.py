"""docs/schema.md and relations.py say what the live schema of every engine is; its queries run."""

import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.store.dialect import Dialect, Row, Session
from deltalakedb.store.migrate import Migrator
from deltalakedb.store.relations import (
    ACTIVE_FILES,
    ADD_FILES,
    HEADS,
    LIVE,
    METADATA_UPDATES,
    MIRROR_STATUS,
    PROTOCOL_UPDATES,
    RELATIONS,
    REMOVE_FILES,
    SETTINGS,
    TXN_ACTIONS,
    VERSIONS,
    Kind,
    Relation,
)
from deltalakedb.store.url import Engine
from store.sql.introspection import Column, Description, describe

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "schema.md"
TITLES: dict[Engine, str] = {"postgres": "Postgres", "sqlite": "SQLite", "duckdb": "DuckDB"}

# The type that each engine has for each kind of column; relations.py speaks of kinds only.
TYPES: dict[Engine, dict[Kind, set[str]]] = {
    "postgres": {
        Kind.UUID: {"uuid"},
        Kind.TEXT: {"text"},
        Kind.INT: {"bigint", "integer"},
        Kind.BOOL: {"boolean"},
        Kind.MAP: {"jsonb", "json"},
        Kind.JSON: {"json"},
        Kind.LIST: {"text[]"},
        Kind.BYTES: {"bytea"},
        Kind.STATE: {"dl_mirror_state"},
    },
    "sqlite": {
        **{kind: {"TEXT"} for kind in Kind},
        Kind.INT: {"INTEGER"},
        Kind.BOOL: {"INTEGER"},
        Kind.BYTES: {"BLOB"},
    },
    "duckdb": {
        Kind.UUID: {"UUID"},
        Kind.TEXT: {"VARCHAR"},
        Kind.INT: {"BIGINT", "INTEGER"},
        Kind.BOOL: {"BOOLEAN"},
        Kind.MAP: {"JSON"},
        Kind.JSON: {"JSON"},
        Kind.LIST: {"VARCHAR[]"},
        Kind.BYTES: {"BLOB"},
        Kind.STATE: {"dl_mirror_state"},
    },
}


@dataclass(frozen=True, slots=True)
class Section:
    """A relation or view of the page: its heading and the rows of its tables, by column title."""

    name: str
    columns: list[dict[str, str]]
    keys: list[dict[str, str]]

    def on(self, engine: Engine) -> list[dict[str, str]]:
        """The columns that it has on an engine: a column of one engine has no type on others."""
        return [row for row in self.columns if row[TITLES[engine]]]

    @property
    def common(self) -> set[str]:
        """The names of the columns that it has on every engine."""
        return {code(row["column"]) for row in self.columns if all(map(row.get, TITLES.values()))}


def sections() -> dict[str, Section]:
    found = {}
    for part in re.split(r"^### ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading = re.match(r"`((?:dl|vw)_\w+)`\n", part)
        if heading:
            tables = list(markdown_tables(part))
            columns = [rows for title, rows in tables if title == "column"]
            keys = [rows for title, rows in tables if title == "key or index"]
            assert len(columns) == 1, heading[1]
            found[heading[1]] = Section(heading[1], columns[0], list(chain(*keys)))
    return found


def markdown_tables(text: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Each table as the title of its first column and its rows."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        lines = [[cell.strip() for cell in row[1:-1].split("|")] for row in block.splitlines()]
        titles, rule, *rows = lines
        assert all(set(cell) <= {"-"} for cell in rule)
        yield titles[0], [dict(zip(titles, row, strict=True)) for row in rows]


def code(cell: str) -> str:
    return cell.strip("`")


@pytest.fixture(scope="module")
def page() -> dict[str, Section]:
    return sections()


@pytest.fixture
def migrated(dialect: Dialect) -> Dialect:
    Migrator(dialect, ManualClock()).up()
    return dialect


@pytest.fixture
def live(migrated: Dialect) -> Description:
    return describe(migrated)


def test_every_relation_and_view_is_documented_and_no_other(
    page: dict[str, Section], live: Description
) -> None:
    assert set(page) == set(live.tables) | set(live.views)


def test_columns_types_and_nullability_are_as_documented(
    page: dict[str, Section], live: Description, engine: Engine
) -> None:
    documented = {
        name: [
            (code(row["column"]), row[TITLES[engine]], row["null"] == "yes")
            for row in page[name].on(engine)
        ]
        for name in live.tables
    }
    assert documented == {
        name: [(column.name, column.type, column.nullable) for column in columns]
        for name, columns in live.tables.items()
    }
    assert {row["null"] for name in live.tables for row in page[name].columns} == {"yes", "no"}


def test_checks_are_as_documented(
    page: dict[str, Section], live: Description, engine: Engine
) -> None:
    kinds = {
        (relation.name, column): kind
        for relation in (*RELATIONS, SETTINGS)
        for column, kind in zip(relation.columns, relation.kinds, strict=True)
    }
    for name, columns in live.tables.items():
        for row, column in zip(page[name].on(engine), columns, strict=True):
            documented = {code(row["check"])} if row["check"] else set()
            if engine == "sqlite" and (name, column.name) in kinds:
                documented |= sqlite_checks(kinds[name, column.name], column)
            assert column.checks == documented, (name, column.name)


def sqlite_checks(kind: Kind, column: Column) -> set[str]:
    """What the page says of SQLite once for all columns of a kind."""
    name = column.name
    if kind in (Kind.MAP, Kind.JSON, Kind.LIST):
        valid = f"json_valid({name})"
        # Both accept NULL; the longer form says so.
        return {valid if valid in column.checks else f"{name} IS NULL OR {valid}"}
    if kind is Kind.BOOL:
        return {f"{name} IN (0, 1)"}
    if kind is Kind.STATE:
        return {f"{name} IN ('PENDING', 'FAILED', 'SUCCEEDED')"}
    return set()


def test_keys_and_indexes_are_as_documented(
    page: dict[str, Section], live: Description, engine: Engine
) -> None:
    primary: dict[str, str] = {}
    uniques: set[tuple[str, str]] = set()
    indexes: dict[str, tuple[str, str]] = {}
    for name in live.tables:
        for row in page[name].keys:
            assert row["serves"], row
            if TITLES[engine] not in row["engines"].split(", "):
                continue
            covers = code(row["on"])
            if row["key or index"] == "primary key":
                primary[name] = covers
            elif row["key or index"] == "unique":
                uniques.add((name, covers))
            else:
                indexes[code(row["key or index"])] = (name, covers)
    assert primary == live.primary_keys
    assert uniques == live.uniques
    assert indexes == live.indexes


def test_columns_of_the_views_are_as_documented(
    page: dict[str, Section], live: Description, engine: Engine
) -> None:
    for name, columns in live.views.items():
        assert [code(row["column"]) for row in page[name].columns] == [c.name for c in columns]
        if engine != "sqlite":  # which types its views have depends on its version
            types = [row[TITLES[engine]] for row in page[name].columns]
            assert types == [c.type for c in columns], name


def test_the_enum_is_as_documented(live: Description, engine: Engine) -> None:
    text = PAGE.read_text("utf-8")
    named = re.search(r"^`(\w+)` is the type of [^:]*: an enum of ([^.]*)\.$", text, re.MULTILINE)
    assert named is not None
    labels = tuple(re.findall(r"`(\w+)`", named[2]))
    assert live.enums == ({} if engine == "sqlite" else {named[1]: labels})


def test_everything_on_the_page_has_a_meaning(page: dict[str, Section]) -> None:
    assert [
        (section.name, row["column"])
        for section in page.values()
        for row in section.columns
        if not row["what it is"]
    ] == []


def test_the_drawing_has_every_relation_with_its_key(page: dict[str, Section]) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "schema_drawing.py"))
    boxes = [box for column in script["BOXES"] for box in column]
    ledger = {name for name in page if name.startswith("dl_")} - {"dl_schema_migrations"}
    assert sorted(box.name for box in boxes) == sorted(ledger)
    for box in boxes:
        primary = next(row for row in page[box.name].keys if row["key or index"] == "primary key")
        assert list(box.key) == code(primary["on"]).split(", "), box.name
        columns = {code(row["column"]) for row in page[box.name].columns}
        said = {name for line in box.more for name in re.findall(r"\b[a-z]+(?:_[a-z]+)*", line)}
        assert said - {"unique"} <= columns, box.name
    linked = {name for link in script["LINKS"] for name in link[:2]}
    assert linked == ledger - {SETTINGS.name}


def test_the_drawing_of_the_page_is_what_its_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "schema_drawing.py"))
    assert script["PICTURE"].read_text("utf-8") == script["draw"](), "run the script again"
    picture = script["PICTURE"].relative_to(PAGE.parent).as_posix()
    assert f"]({picture})" in PAGE.read_text("utf-8")


def test_relations_py_matches_the_live_columns_and_kinds(
    page: dict[str, Section], live: Description, engine: Engine
) -> None:
    relations = (*RELATIONS, SETTINGS)
    assert {r.name for r in relations} == set(live.tables) - {"dl_schema_migrations"}
    for relation in relations:
        common = page[relation.name].common
        columns = [column for column in live.tables[relation.name] if column.name in common]
        assert relation.columns == tuple(c.name for c in columns)
        for column, kind in zip(columns, relation.kinds, strict=True):
            assert column.type in TYPES[engine][kind], (relation.name, column.name)


# --- the queries of the page --------------------------------------------------------------

TABLE_ID = "11111111-1111-4111-8111-111111111111"
OTHER_ID = "22222222-2222-4222-8222-222222222222"
DAYS = ("2026-01-01", "2026-01-02")
PARAMS: dict[str, object] = {
    "table_id": TABLE_ID,
    "version": 3,
    "expected": 4,
    "timestamp": 1_003,
    "path": "a",
    "dv_id": "",
    "limit": 2,
    "app_id": "app",
    "value": DAYS[0],
}


def queries() -> list[tuple[str, str, tuple[str, ...]]]:
    """Each query of the page: its section, its text, and the engines it is for."""
    found = []
    for part in re.split(r"^### ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        title = part.splitlines()[0]
        for text in re.findall(r"```sql\n(.*?)```", part, re.DOTALL):
            engines = re.match(r"-- ([a-z ]+)\n", text)
            found.append((title, text, tuple(engines[1].split()) if engines else tuple(TITLES)))
    return found


def test_every_block_of_the_page_is_a_query_that_is_run() -> None:
    assert len(queries()) == PAGE.read_text("utf-8").count("\n```") // 2


def rows_of(relation: Relation, *values: dict[str, object]) -> list[Row]:
    return [tuple(value.get(column) for column in relation.columns) for value in values]


def fill(session: Session) -> None:
    """Five versions: b is removed at 2, a is added again while live at 2, c at 3, d at 4."""

    def add(version: int, path: str, size: int, dv_id: str = "") -> dict[str, object]:
        return {
            "table_id": TABLE_ID,
            "version": version,
            "path": path,
            "dv_id": dv_id,
            "size_bytes": size,
            "modification_time": 1,
            "data_change": True,
            "partition_values": f'{{"day":"{DAYS[size % 2]}"}}',
        }

    def interval(row: dict[str, object], removed: int) -> dict[str, object]:
        return {**row, "added_version": row["version"], "removed_version": removed}

    a0, b0 = add(0, "a", 10), add(0, "b", 11)
    a2, b2, c3, d4 = add(2, "a", 12), add(2, "b", 11, "u1"), add(3, "c", 14), add(4, "d", 15)
    session.insert(ADD_FILES, rows_of(ADD_FILES, a0, b0, a2, b2, c3, d4))
    gone = {"table_id": TABLE_ID, "version": 2, "path": "b", "dv_id": "", "data_change": True}
    session.insert(REMOVE_FILES, rows_of(REMOVE_FILES, gone))
    ends = ((a0, 2), (b0, 2), (a2, LIVE), (b2, LIVE), (c3, LIVE), (d4, LIVE))
    intervals = [interval(row, removed) for row, removed in ends]
    session.insert(ACTIVE_FILES, rows_of(ACTIVE_FILES, *intervals))
    counts = dict.fromkeys(VERSIONS.columns[10:], 1)
    commits = [
        {**counts, "table_id": t, "version": v, "committed_at": 1_000 + v}
        for t in (TABLE_ID, OTHER_ID)
        for v in range(5)
    ]
    session.insert(VERSIONS, rows_of(VERSIONS, *commits))
    session.insert(HEADS, [(TABLE_ID, 4), (OTHER_ID, 4)])
    session.insert(
        METADATA_UPDATES,
        [
            (TABLE_ID, v, "id", None, None, "parquet", "{}", f'{{"v":{v}}}', ["day"], "{}", 1, None)
            for v in (0, 3, 4)
        ],
    )
    session.insert(PROTOCOL_UPDATES, [(TABLE_ID, v, 1, v, None, None, None) for v in (1, 2, 4)])
    session.insert(TXN_ACTIONS, [(TABLE_ID, v, "app", 10 * v, None, None) for v in (1, 2, 4)])
    session.insert(
        MIRROR_STATUS,
        [
            (TABLE_ID, v, status, 0, None, "d", None, 0, 0, 1, 1, None)
            for v, status in enumerate(("SUCCEEDED", "FAILED", "PENDING"))
        ],
    )


@pytest.fixture
def filled(migrated: Dialect) -> Dialect:
    with migrated.write() as session:
        fill(session)
    return migrated


def answers(dialect: Dialect, title: str, **changes: object) -> list[list[Row]]:
    """What the queries of a section return, in the order of the page."""
    found = []
    with dialect.read() as session:
        for name, text, engines in queries():
            if name == title and dialect.engine in engines:
                params = {**PARAMS, **changes}
                used = {k: v for k, v in params.items() if re.search(rf"(?<!:):{k}\b", text)}
                found.append(session.execute(dialect.sql(text.rstrip().rstrip(";")), used))
    assert found, title
    return found


def test_every_query_of_the_page_runs(filled: Dialect) -> None:
    ran = 0
    for _, text, engines in queries():
        if filled.engine in engines:
            used = {k: v for k, v in PARAMS.items() if re.search(rf"(?<!:):{k}\b", text)}
            with filled.write() as session:
                session.execute(filled.sql(text.rstrip().rstrip(";")), used)
            ran += 1
    assert ran >= 12


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, [("a", "", 10), ("b", "", 11)]),
        (1, [("a", "", 10), ("b", "", 11)]),
        (2, [("a", "", 12), ("b", "u1", 11)]),
        (3, [("a", "", 12), ("b", "u1", 11), ("c", "", 14)]),
        (4, [("a", "", 12), ("b", "u1", 11), ("c", "", 14), ("d", "", 15)]),
    ],
)
def test_the_queries_for_files_agree(filled: Dialect, version: int, expected: list[Row]) -> None:
    interval, window, not_exists, page_of_two = answers(
        filled, "Files at a version", version=version
    )
    assert interval == expected
    assert window == expected
    assert not_exists == expected
    assert page_of_two == [row for row in expected if row[:2] > ("a", "")][:2]


def test_the_other_queries_answer_rightly(filled: Dialect, engine: Engine) -> None:
    assert answers(filled, "The head") == [[(4,)]]
    assert answers(filled, "Time travel by timestamp") == [[(3,)]]
    metadata, protocol, txn = answers(
        filled, "Schema, protocol, and the progress of an application at a version"
    )
    assert metadata[0][0] == '{"v":3}'
    assert protocol[0][:2] == (1, 2)
    assert txn == [(20,)]
    of_partition = answers(filled, "Files of a partition")
    assert of_partition[0] == [("a", 12), ("c", 14)]
    if engine == "postgres":
        assert of_partition[1] == [("a", 0, 10), ("a", 2, 12), ("c", 3, 14)]
    assert answers(filled, "What the mirror still has to do") == [[(TABLE_ID, 1, 2)]]


def test_the_check_finds_a_difference_and_rebuilding_mends_it(filled: Dialect) -> None:
    title = "Checking and rebuilding `dl_active_files`"
    check, delete, rebuild, *forget = (text for name, text, _ in queries() if name == title)

    def run(text: str) -> list[Row]:
        with filled.write() as session:
            sql = filled.sql(text.rstrip().rstrip(";"))
            return session.execute(sql, {"table_id": TABLE_ID})

    assert run(check) == [(0, 0)]
    with filled.write() as session:
        session.execute("UPDATE dl_active_files SET removed_version = 4 WHERE path = 'c'", {})
    assert run(check) == [(1, 1)]
    run(delete)
    assert run(check) == [(6, 0)]
    run(rebuild)
    assert run(check) == [(0, 0)]
    # Without keys and pages: whoever rebuilds by hand must not leave the old ones in use.
    assert [re.split(r" +", text)[:3] for text in forget] == [
        ["UPDATE", "dl_tables", "SET"],
        ["DELETE", "FROM", "dl_page_columns"],
        ["DELETE", "FROM", "dl_page_texts"],
        ["DELETE", "FROM", "dl_file_pages"],
        ["UPDATE", "dl_paged_tables", "SET"],
    ]
    for text in forget:
        run(text)
