"""What Postgres does with the queries of the requirements: writes docs/explain.md.

Loads one table of 200,000 files, half of them removed, in 20,000 commits, beside 20 smaller tables;
then explains each query of explain_patterns.sql, in the form of the requirements (over the ledger)
and in ours (over dl_active_files), and asserts which index serves it. Then it takes each secondary
index away and measures what that costs, and measures the indexes that were left out.

Run: python benchmarks/explain_patterns.py [--quick]
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import psycopg  # noqa: E402

from deltalakedb.clock import ManualClock  # noqa: E402
from deltalakedb.store.migrate import Migrator  # noqa: E402
from deltalakedb.store.postgres import PostgresDialect  # noqa: E402
from deltalakedb.store.relations import (  # noqa: E402
    ADD_FILES,
    HEADS,
    LIVE,
    METADATA_UPDATES,
    MIRROR_STATUS,
    REMOVE_FILES,
    TXN_ACTIONS,
    UNPLANNED_FILES,
    VERSIONS,
    Relation,
)
from deltalakedb.store.url import parse_url  # noqa: E402

from support.postgres_server import PostgresServer  # noqa: E402

PAGE = ROOT / "docs" / "explain.md"
SQL = Path(__file__).with_suffix(".sql")
BIG = UUID(int=0xB16 << 64)
SMALL = UUID(int=0x5A << 64)
TRANSACTION = UUID(int=0x77 << 64)
START_MS = 1_700_000_000_000
ADDS_PER_COMMIT = 10
REMOVES_PER_COMMIT = 5
EMPTY_TABLES = 5_000  # so that the heads fill more than one page
RUNS = 5
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A query, and the index that must appear in its plan."""

    section: str
    title: str
    sql: str
    index: str
    remark: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How a query ran."""

    text: str
    milliseconds: float
    rows: int

    @property
    def indexes(self) -> list[str]:
        """The indexes that it used, in the order of the plan."""
        used = re.findall(r"Index (?:Only )?Scan (?:Backward )?(?:using|on) (\w+)", self.text)
        return list(dict.fromkeys(used))


@dataclass(slots=True)
class Page:
    """The page as it grows."""

    lines: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        self.lines += lines

    def plan(self, pattern: Pattern, plan: Plan) -> None:
        self.add(f"**{pattern.title}**", "", "```sql", pattern.sql, "```", "")
        self.add("```", plan.text, "```", "")
        used = ", ".join(f"`{name}`" for name in plan.indexes)
        served = f"Served by {used}" if used else "No index serves it"
        rows = f"{plan.rows:,} {'row' if plan.rows == 1 else 'rows'}"
        self.add(f"{served}: {rows} in {plan.milliseconds:.2f} ms. {pattern.remark}".strip(), "")


# --- data ---------------------------------------------------------------------------------


def commits(versions: int) -> Iterator[tuple[int, int]]:
    """Each file as (its number, the version that adds it)."""
    for version in range(versions):
        for slot in range(ADDS_PER_COMMIT):
            yield version * ADDS_PER_COMMIT + slot, version


def removed_in(number: int, version: int, versions: int) -> int:
    """Half of the files of a commit are removed by the next one."""
    gone = number % ADDS_PER_COMMIT < REMOVES_PER_COMMIT and version + 1 < versions
    return version + 1 if gone else LIVE


def partition(number: int) -> str:
    year, month, day = 2020 + number // 60_000, number // 5_000 % 12 + 1, number // 178 % 28 + 1
    return json.dumps({"year": str(year), "month": str(month), "day": str(day)})


def stats(number: int) -> str:
    low = number * 100
    return json.dumps(
        {
            "numRecords": 1_000,
            "minValues": {"id": low, "name": f"a{number:09d}", "price": 0.5},
            "maxValues": {"id": low + 99, "name": f"z{number:09d}", "price": 99.5},
            "nullCount": {"id": 0, "name": number % 7, "price": 0},
        }
    )


def path(number: int) -> str:
    # Data files are named by random UUIDs: neighbours in time are none in the alphabet.
    scattered = number * 0x9E3779B97F4A7C15 % 2**64
    return f"part-{scattered:016x}-{number:09d}.snappy.parquet"


def load(dialect: PostgresDialect, table_id: UUID, versions: int) -> None:
    adds, removes, active = [], [], []
    for number, version in commits(versions):
        name, removed = path(number), removed_in(number, version, versions)
        rest = (
            *(128_000_000, START_MS + version, True, partition(number), stats(number)),
            *[None] * 6,
        )
        adds.append((str(table_id), version, name, "", *rest))
        active.append((str(table_id), name, "", version, removed, *rest))
        if removed != LIVE:
            removes.append((str(table_id), removed, name, "", START_MS, True, *[None] * 9))
    counts = (15, ADDS_PER_COMMIT, REMOVES_PER_COMMIT, 1, 1, 1, 1)
    ledger = [
        (
            *(str(table_id), v, START_MS + 1_000 * v, "me", "WRITE", "{}", None, "{}", None),
            str(TRANSACTION) if v == versions // 2 else None,
            *counts,
            START_MS,
        )
        for v in range(versions)
    ]
    mirror = [
        (
            *(str(table_id), v, "PENDING" if v > versions - 4 else "SUCCEEDED", 1, None),
            *("0" * 64, None, 1_000, 0, START_MS, START_MS, None),
        )
        for v in range(versions)
    ]
    txns = [(str(table_id), v, f"app-{v % 5}", v, None, None) for v in range(versions)]
    metadata = [
        (str(table_id), v, "id", None, None, "parquet", "{}", "{}", ["day"], "{}", START_MS, None)
        for v in range(0, versions, 100)
    ]
    content: Sequence[tuple[Relation, list[Row]]] = (
        (ADD_FILES, adds),
        (REMOVE_FILES, removes),
        (UNPLANNED_FILES, active),
        (VERSIONS, ledger),
        (MIRROR_STATUS, mirror),
        (TXN_ACTIONS, txns),
        (METADATA_UPDATES, metadata),
        (HEADS, [(str(table_id), versions - 1)]),
    )
    with dialect.write() as session:
        for relation, rows in content:
            session.insert(relation, rows)


# --- measuring ----------------------------------------------------------------------------


def explain(connection: Connection, sql: str) -> Plan:
    """The plan of the median run of several."""
    found = sorted(
        (_explain_once(connection, sql) for _ in range(RUNS)), key=lambda p: p.milliseconds
    )
    return found[len(found) // 2]


def _explain_once(connection: Connection, sql: str) -> Plan:
    with connection.transaction(force_rollback=True):
        rows = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {sql}".encode()).fetchall()
    text = "\n".join(row[0] for row in rows)
    took = re.search(r"Execution Time: ([\d.]+) ms", text)
    # An UPDATE itself returns nothing; what it changes comes from the node below.
    rows_of = re.findall(r"actual time=\S+ rows=(\d+)", text)
    assert took is not None
    return Plan(text, float(took[1]), int(rows_of[1 if text.startswith("Update") else 0]))


def without(connection: Connection, index: str, sql: str) -> Plan:
    """The plan of a query when an index is not there."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"DROP INDEX {index}".encode())
        return explain(connection, sql)


def size(connection: Connection, name: str) -> str:
    row = connection.execute("SELECT pg_size_pretty(pg_relation_size(%s))", [name]).fetchone()
    assert row is not None
    return str(row[0])


def seconds(connection: Connection, *statements: str) -> float:
    """Median time of statements that are rolled back."""
    times = []
    for _ in range(3):
        with connection.transaction(force_rollback=True):
            start = time.perf_counter()
            for statement in statements:
                connection.execute(statement.encode())
            times.append(time.perf_counter() - start)
    return statistics.median(times)


# --- the patterns -------------------------------------------------------------------------


def load_patterns(values: Mapping[str, str]) -> Iterator[Pattern]:
    """The queries of the file beside this one, with their parameters written in."""
    section = ""
    for block in SQL.read_text().split("\n\n"):
        heads = dict(re.findall(r"^-- (section|title|index|remark): (.*)$", block, re.MULTILINE))
        if "title" in heads:
            section = heads.get("section", section)
            sql = "\n".join(line for line in block.splitlines() if not line.startswith("--"))
            sql = re.sub(r"(?<!:):([a-z_]+)", lambda match: values[match[1]], sql)
            yield Pattern(
                section=section,
                title=heads["title"],
                sql=sql.strip().rstrip(";"),
                index="" if heads["index"] == "none" else heads["index"],
                remark=heads.get("remark", ""),
            )


SECONDARY = (
    ("dl_active_files_interval", "Ours"),
    ("dl_active_files_interval", "Ours, to an early version"),
    ("dl_table_versions_committed_at", "Ours: the version first, then the listing above"),
    ("dl_add_files_path", "The newest add of a path"),
    ("dl_remove_files_path", "Whether a path was removed"),
    ("dl_add_files_partition_values", "In the form of the requirements"),
    ("dl_txn_actions_app", "Progress of an application that never wrote here"),
    ("dl_table_versions_transaction", "The versions of one multi-table transaction"),
    ("dl_mirror_status_backlog", "What is still to be published"),
)


def write_patterns(page: Page, connection: Connection, values: Mapping[str, str]) -> None:
    found: list[tuple[Pattern, Plan]] = []
    section = ""
    for pattern in load_patterns(values):
        if pattern.section != section:
            section = pattern.section
            page.add(f"## {section}", "")
        plan = explain(connection, pattern.sql)
        print(f"{section}: {pattern.title}: {plan.milliseconds:.2f} ms", flush=True)
        if pattern.index:
            assert pattern.index in plan.indexes, f"{pattern.index} is not in\n{plan.text}"
        else:
            assert not plan.indexes, f"an index after all in\n{plan.text}"
        page.plan(pattern, plan)
        found.append((pattern, plan))
    page.add("## What each secondary index earns", "")
    page.add("Each is dropped in a transaction that is rolled back, and its query runs again.", "")
    page.add("| index | size | query | with | without |", "|---|---|---|---|---|")
    for index, title in SECONDARY:
        pattern, plan = next((p, q) for p, q in found if p.index == index and p.title == title)
        bare = without(connection, index, pattern.sql)
        page.add(
            f"| `{index}` | {size(connection, index)} | {pattern.section}: {pattern.title} "
            f"| {plan.milliseconds:.2f} ms | {bare.milliseconds:.2f} ms |"
        )
    page.add("")


# --- the indexes that were left out -------------------------------------------------------

ADD_AGAIN = """
INSERT INTO dl_add_files
SELECT table_id, version + 1000000, path, dv_id, size_bytes, modification_time, data_change,
       partition_values, stats
FROM dl_add_files LIMIT 20000
"""
COMMIT_AGAIN = """
INSERT INTO dl_table_versions
SELECT table_id, version + 1000000, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions LIMIT 20000
"""
LEFT_OUT = (
    ("dl_table_versions (table_id, version DESC)", COMMIT_AGAIN),
    ("dl_add_files (table_id, version DESC, path)", ADD_AGAIN),
    ("dl_add_files USING gin ((stats::jsonb))", ADD_AGAIN),
)


def write_left_out(page: Page, connection: Connection) -> None:
    page.add("## Indexes that were left out", "")
    page.add("What each would cost: its size, and 20,000 rows inserted without and with it.", "")
    page.add("| index | size | built in | without | with |", "|---|---|---|---|---|")
    for index, insert in LEFT_OUT:
        print(index, flush=True)
        bare = seconds(connection, insert)
        with connection.transaction(force_rollback=True):
            start = time.perf_counter()
            connection.execute(f"CREATE INDEX left_out ON {index}".encode())
            built = time.perf_counter() - start
            bytes_ = size(connection, "left_out")
            loaded = seconds(connection, insert)
        page.add(f"| `{index}` | {bytes_} | {built:.1f} s | {bare:.2f} s | {loaded:.2f} s |")
    page.add("")


GIN = "CREATE INDEX gin_stats ON dl_add_files USING gin ((stats::jsonb))"
STATISTICS = (
    (
        "Containment: an exact value",
        """stats::jsonb @> '{"minValues": {"id": 500000}}'""",
        "This is all that GIN can do, and pruning asks for ranges.",
    ),
    (
        "A range",
        """(stats::jsonb #>> '{maxValues,id}')::bigint >= 500000
  AND (stats::jsonb #>> '{minValues,id}')::bigint <= 500999""",
        "GIN is not considered: it knows which keys and values occur, not their order.",
    ),
    (
        "A range as a JSON path, with sequential scans switched off",
        "stats::jsonb @? '$ ? (@.maxValues.id >= 500000 && @.minValues.id <= 500999)'",
        "Postgres would rather read the whole table through any other index.",
    ),
)


def write_gin(page: Page, connection: Connection) -> None:
    """A GIN index on statistics answers containment only."""
    page.add("## Why there is no GIN index on statistics", "")
    page.add(f"The index of the requirements, made for this section only: `{GIN}`.", "")
    connection.execute("VACUUM ANALYZE dl_add_files")
    with connection.transaction(force_rollback=True):
        connection.execute(GIN.encode())
        connection.execute("ANALYZE dl_add_files")
        for number, (title, condition, remark) in enumerate(STATISTICS):
            if number == 2:
                connection.execute("SET LOCAL enable_seqscan = off")
            sql = f"SELECT path FROM dl_add_files\nWHERE table_id = '{BIG}'\n  AND {condition}"
            plan = explain(connection, sql)
            assert ("gin_stats" in plan.indexes) == (number == 0), plan.text
            page.plan(Pattern("", title, sql, "", remark), plan)


# --- the page -----------------------------------------------------------------------------


def parameters(big: int, small: int) -> dict[str, str]:
    """What the parameters of the queries stand for, as SQL."""
    head, old = big - 1, big // 2
    return {
        "big": f"'{BIG}'",
        "small": f"'{SMALL}'",
        "head": str(head),
        "small_head": str(small - 1),
        "old": str(old),
        "small_old": str(small // 2),
        "when": str(START_MS + 1_000 * old),
        "transaction": f"'{TRANSACTION}'",
        "live_path": f"'{path(129)}'",
        "removed_path": f"'{path(120)}'",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little data, no page: does it run?")
    quick = parser.parse_args().quick
    big, small, others = (1_000, 100, 20) if quick else (20_000, 2_000, 20)
    with PostgresServer() as server:
        url = server.url(server.create_database())
        dialect = PostgresDialect(parse_url(url))
        Migrator(dialect, ManualClock()).up()
        start = time.perf_counter()
        load(dialect, BIG, big)
        for number in range(others):
            load(dialect, UUID(int=0x5A << 64 | number), small)
        with dialect.write() as session:
            session.insert(
                HEADS, [(str(UUID(int=0x4EAD << 64 | n)), 0) for n in range(EMPTY_TABLES)]
            )
        dialect.close()
        print(f"loaded in {time.perf_counter() - start:.0f} s", flush=True)
        page = Page()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            introduce(page, connection, commits=big, small=small, others=others)
            write_patterns(page, connection, parameters(big, small))
            write_left_out(page, connection)
            write_gin(page, connection)
    if not quick:
        PAGE.write_text("\n".join(page.lines).rstrip() + "\n")
        print(f"wrote {PAGE.relative_to(ROOT)}")


INTRODUCTION = """\
# Query plans on Postgres

<!-- Written by benchmarks/explain_patterns.py; run it again instead of editing. -->

Postgres {version} with its default settings, two cores. One table (`…b16…`) of {files:,} files,
{live:,} of them live, in {commits:,} commits; beside it {others} tables of {small:,} files each
(together {every:,} rows in `dl_active_files`), and {empty:,} empty tables. Loaded with COPY, then
`VACUUM ANALYZE`. Each plan is the median of {runs} runs; its time is that of
`EXPLAIN (ANALYZE, BUFFERS)`, a little more than that of the bare query.
What follows from it: [decisions/0003-indexes.md](decisions/0003-indexes.md).
"""


def introduce(page: Page, connection: Connection, *, commits: int, small: int, others: int) -> None:
    def one(sql: str) -> Any:
        row = connection.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]

    live = f"table_id = '{BIG}' AND removed_version = {LIVE}"
    page.add(
        INTRODUCTION.format(
            version=one("SHOW server_version").split()[0],
            files=commits * ADDS_PER_COMMIT,
            live=one(f"SELECT count(*) FROM dl_active_files WHERE {live}"),
            commits=commits,
            others=others,
            small=small * ADDS_PER_COMMIT,
            every=one("SELECT count(*) FROM dl_active_files"),
            empty=EMPTY_TABLES,
            runs=RUNS,
        )
    )


if __name__ == "__main__":
    main()
