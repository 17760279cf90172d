"""The operations page over HTTP with 10,000 tables and 1,000,000 versions, against a small catalog.

One table has 300,000 versions, 100,000 live files and 200,000 that were removed, whose paths all
come before those of live ones; the others share the rest. Of 200 tables the mirror fails, and one
has drifted. Every page and every resource of the API is asked, a first page and one from the
middle, and searches that find nothing. Goal: none takes longer than 250 ms, and none that shows as
much of either takes more than 3 times what it takes with 100 tables and 10,000 versions.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import deltalakedb
from benchmarks.harness import Ratio, Report, compare, median_ratio, timed
from benchmarks.lakes import catalog_url
from deltalakedb.lake import Lake
from deltalakedb.service.parameters import make_cursor
from deltalakedb.store.dialect import Session
from deltalakedb.store.relations import HEADS, LIVE, TABLES

from support.postgres_server import PostgresServer
from support.web_client import Client, serving

ENGINES = ("postgres", "sqlite")
GOAL_MS = 250
GOAL_GROWTH = 3.0
# These show as much of either catalog. The others sum up all tables, look through many for a few
# (at most 50,000 commits or 10,000 files), or find more in the larger one.
SAME = {
    *("/tables", "/tables?cursor=, from the middle", "/table", "/table?cursor=, from the middle"),
    *("/changes", "/changes?cursor=, from the middle", "/api/v1/tables"),
    *("/api/v1/table", "/api/v1/changes", "/api/v1/versions", "/api/v1/growth", "/api/v1/files"),
    *("/api/v1/contention", "/api/v1/activity", "/api/v1/activity?name="),
}
BIG = "<b>big</b>"
START = 1_700_000_000_000
# Each table commits so often, all of them in turn.
EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Size:
    """How large a catalog is."""

    tables: int
    versions: int
    big_versions: int
    live: int
    behind: int

    @property
    def name(self) -> str:
        """As results have it."""
        return f"{self.tables} tables, {self.versions} versions"

    @property
    def each(self) -> int:
        """Versions of every table but the big one."""
        return (self.versions - self.big_versions) // (self.tables - 1)


SMALL = Size(100, 10_000, 3_000, 1_000, 2)
LARGE = Size(10_000, 1_000_000, 300_000, 100_000, 200)
TINY = Size(10, 1_000, 500, 100, 1)


def run(report: Report, *, quick: bool) -> None:
    """Every request on both catalogs of each engine."""
    sizes = (TINY, SMALL) if quick else (SMALL, LARGE)
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with PostgresServer(fsync=False) as server:
            for engine in ENGINES:
                _engine(report, engine, server, folder, sizes, rounds=2 if quick else 7)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _engine(
    report: Report,
    engine: str,
    server: PostgresServer,
    folder: Path,
    sizes: tuple[Size, Size],
    *,
    rounds: int,
) -> None:
    slowest: dict[str, float] = {}
    growth: dict[str, float] = {}
    with ExitStack() as opened:
        clients = []
        for size in sizes:
            url = catalog_url(engine, server, folder)
            lake = opened.enter_context(deltalakedb.connect(url, mirror="worker"))
            fill(lake, size)
            clients.append(opened.enter_context(serving(lake)))
        asked = [requests(size) for size in sizes]
        for title in asked[0]:
            contestants = {
                size.name: _asker(client, paths[title])
                for size, client, paths in zip(sizes, clients, asked, strict=True)
            }
            for ask in contestants.values():
                ask()
            times = compare(f"{title}, {engine}", contestants, rounds=rounds, report=report)
            small, large = (size.name for size in sizes)
            slowest[title] = report.medians[f"{title}, {engine}"][large] * 1000
            if title in SAME:
                growth[title] = median_ratio(times[large], times[small])
    worst = max(slowest, key=lambda title: slowest[title])
    ms = slowest[worst]
    report.ratios.append(
        Ratio(
            f"slowest of {len(slowest)} requests, {engine}: {worst}",
            engine,
            "",
            ms,
            f"ms, {sizes[1].name}",
            f"≤ {GOAL_MS}",
            ms <= GOAL_MS,
        )
    )
    worst = max(growth, key=lambda title: growth[title])
    value = growth[worst]
    report.ratios.append(
        Ratio(
            f"grows most, {engine}: {worst}",
            sizes[1].name,
            sizes[0].name,
            value,
            f"times what it takes with {sizes[0].name}",
            f"≤ {GOAL_GROWTH}",
            value <= GOAL_GROWTH,
        )
    )


def _asker(client: Client, path: str) -> Any:
    def ask() -> float:
        def work() -> None:
            reply = client(path)
            if reply.status != 200:
                raise AssertionError(f"{path}: {reply.status}: {reply.text[:300]}")

        return timed(work)

    return ask


def requests(size: Size) -> dict[str, str]:
    """What is asked, by what results call it."""
    middle_table = make_cursor(f"table-{1_000_000 + size.tables // 2}")
    middle = START + size.each // 2 * EVERY_MS
    middle_change = make_cursor(middle, str(UUID(int=size.tables // 2)))
    hour = {"since": _iso(middle - 3_600_000), "until": _iso(middle)}
    big = {"name": BIG}

    def of(path: str, **query: str) -> str:
        return f"{path}?{urlencode(query)}" if query else path

    found = {
        "/": "/",
        "/tables": "/tables",
        "/tables?cursor=, from the middle": of("/tables", cursor=middle_table),
        "/tables?contains=": of("/tables", contains="01"),
        "/table": of("/table", **big),
        "/table?cursor=, from the middle": of(
            "/table", **big, cursor=make_cursor(size.big_versions // 2)
        ),
        "/table?operation=, nothing found": of("/table", **big, operation="NONE"),
        "/files": of("/files", **big),
        "/changes": "/changes",
        "/changes?cursor=, from the middle": of("/changes", cursor=middle_change),
        "/changes?committer=&since=&until=, an hour": of("/changes", **hour, committer="user7"),
        "/changes?operation=, nothing found": of("/changes", operation="NONE"),
        "/mirror": "/mirror",
        "/metrics-page": "/metrics-page",
        "/metrics": "/metrics",
    }
    for path in ("summary", "tables", "changes", "metrics", "activity", "contention"):
        found[f"/api/v1/{path}"] = f"/api/v1/{path}"
    for path in ("table", "versions", "growth", "files", "sizes"):
        found[f"/api/v1/{path}"] = of(f"/api/v1/{path}", **big)
    found["/api/v1/activity?name="] = of("/api/v1/activity", **big)
    found["/api/v1/tables?behind=true"] = "/api/v1/tables?behind=true"
    return found


def _iso(ms: int) -> str:
    from deltalakedb.formatting import moment

    return moment(ms) or ""


# --- catalogs -----------------------------------------------------------------------------


def fill(lake: Lake, size: Size) -> None:
    """A catalog of this size, by SQL that writes what commits and the mirror would have written."""
    ids = [str(UUID(int=number)) for number in range(size.tables)]
    names = [BIG, *(f"table-{1_000_000 + number}" for number in range(1, size.tables))]
    heads = [size.big_versions - 1, *[size.each - 1] * (size.tables - 1)]
    with lake.store.dialect.write() as session:
        session.insert(
            TABLES,
            [
                (one, name, f"s3://bucket/{number}", 1, 2, "{}", number, 1, None)
                for number, (one, name) in enumerate(zip(ids, names, strict=True))
            ],
        )
        session.insert(HEADS, list(zip(ids, heads, strict=True)))
        _versions(session, size)
        _files(session, size)
        _mirror(session, size)
    if lake.store.dialect.engine == "postgres":
        # Autovacuum would, sooner or later.
        with lake.store.dialect.write() as session:
            session.script("ANALYZE;")


def _numbers(count: int) -> str:
    return (
        "WITH RECURSIVE s(n) AS "
        f"(SELECT CAST(0 AS BIGINT) UNION ALL SELECT s.n + 1 FROM s WHERE s.n < {count - 1}) "
    )


_VERSION = (
    "INSERT INTO dl_table_versions (table_id, version, committed_at, committer, operation, "
    "operation_params, commit_info, num_actions, num_adds, num_removes, bytes_added, "
    "bytes_removed, live_files, live_bytes, recorded_at) "
)
_COMMIT = (
    "'user' || (s.n % 20), CASE WHEN s.n % 7 = 0 THEN 'MERGE' ELSE 'WRITE' END, "
    """'{"mode": "Append"}', '{"operation": "WRITE"}', 2, 1, 0, 1000, 0, """
)


def _versions(session: Session, size: Size) -> None:
    # Times begin together and go on in turn, so that the newest commits are of many tables.
    step = EVERY_MS * size.each // size.big_versions
    session.script(
        f"{_VERSION} {_numbers(size.big_versions)} "
        f"SELECT t.table_id, s.n, CAST({START} AS BIGINT) + s.n * {step}, "
        f"{_COMMIT} CASE WHEN s.n < {size.live} THEN s.n ELSE {size.live} END, 1000, 1 "
        "FROM s CROSS JOIN dl_tables AS t WHERE t.created_at = 0;"
    )
    session.script(
        f"{_VERSION} {_numbers(size.each)} "
        f"SELECT t.table_id, s.n, CAST({START} AS BIGINT) + s.n * {EVERY_MS} "
        f"+ t.created_at, {_COMMIT} 10, 1000, 1 "
        "FROM s CROSS JOIN dl_tables AS t WHERE t.created_at > 0 ORDER BY 2, 3;"
    )


_FILE = (
    "INSERT INTO dl_active_files (table_id, path, dv_id, added_version, removed_version, "
    "size_bytes, modification_time, data_change, partition_values, stats) "
)


def _files(session: Session, size: Size) -> None:
    gone = size.big_versions - size.live
    body = (
        """1000 + (s.n * 7919) % 100000000, 1, TRUE, '{"day": "2026-11-01"}', """
        """'{"numRecords": 10, "minValues": {"id": 1}, "maxValues": {"id": 9}}' """
    )
    session.script(
        f"{_FILE} {_numbers(size.big_versions)} "
        "SELECT t.table_id, 'part-' || (100000000 + s.n), '', s.n, "
        f"CASE WHEN s.n < {gone} THEN s.n + 1 ELSE {LIVE} END, {body} "
        "FROM s CROSS JOIN dl_tables AS t WHERE t.created_at = 0;"
    )
    session.script(
        f"{_FILE} {_numbers(min(10, size.each))} "
        f"SELECT t.table_id, 'part-' || (100000000 + s.n), '', s.n, {LIVE}, {body} "
        "FROM s CROSS JOIN dl_tables AS t WHERE t.created_at > 0;"
    )


_QUEUED = (
    "INSERT INTO dl_mirror_status (table_id, version, status, attempts, last_error, error_kind, "
    "digest, payload, payload_bytes, next_attempt_at, created_at, updated_at) "
)


def _mirror(session: Session, size: Size) -> None:
    session.script(
        f"{_QUEUED} SELECT v.table_id, v.version, 'SUCCEEDED', 1, NULL, NULL, 'digest', NULL, "
        "1000, 0, v.committed_at, v.committed_at FROM dl_table_versions AS v;"
    )
    session.script(
        "UPDATE dl_mirror_status SET status = 'FAILED', attempts = 7, error_kind = 'transient', "
        "last_error = 'The object store does not answer' WHERE table_id IN "
        f"(SELECT table_id FROM dl_tables WHERE created_at BETWEEN 1 AND {size.behind});"
    )
    session.script(
        "INSERT INTO dl_mirror_tables (table_id, generation, expires_at, checkpoint_version, "
        "cleaned_at, drift, updated_at) SELECT table_id, 1, 0, 10, 0, "
        """'{"version": 3, "reason": "another writer"}', 1 """
        "FROM dl_tables WHERE created_at = 5;"
    )
    session.script(
        "INSERT INTO dl_mirror_tables (table_id, generation, expires_at, checkpoint_version, "
        "cleaned_at, updated_at) SELECT table_id, 1, 0, 10, 0, 1 "
        "FROM dl_tables WHERE created_at <> 5;"
    )
