"""How large a catalog gets, and how fast it stays: constants that are measured, a model of them.

The model is linear: bytes = base + tables·t + commits·c + files added·a + files removed·r, with one
set of constants for each engine, fitted by least squares on catalogs that grow step by step. It is
then asked for a catalog several times as large, which is built and measured: the ratio tells how
far the model can be trusted. Commits are published before anything is measured, as in real life.

`python -m benchmarks sizing` measures; `python -m benchmarks.publish_sizing` writes docs/sizing.md.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import deltalakedb
from benchmarks.harness import Ratio, Report, timed
from benchmarks.lakes import (
    ENGINES,
    Shape,
    add_of,
    catalog_url,
    remove_of,
    settle,
)
from deltalakedb.lake import Lake

from support.postgres_server import PostgresServer

VARIABLES = ("base", "tables", "commits", "added", "removed")
BATCH = 10_000
_PROPERTIES = {
    "deltalakedb.planningColumns": "id",
    # Checkpoints are measured by a scenario of their own.
    "delta.checkpointInterval": "1000000",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each is made before the model is fitted, and how many files it is asked for."""

    tables: int = 200
    small_commits: int = 400
    files: int = 60_000
    check: int = 300_000

    @classmethod
    def quick(cls) -> Sizes:
        return cls(tables=20, small_commits=40, files=20_000, check=40_000)


@dataclass(slots=True)
class Growing:
    """A catalog that grows, and what was found on the way."""

    engine: str
    url: str
    folder: Path
    shape: Shape
    lake: Lake
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VARIABLES[1:], 0))
    points: list[tuple[dict[str, int], int]] = field(default_factory=list)
    constants: dict[str, float] = field(default_factory=dict)
    _next: int = 0

    def measure(self) -> int:
        """Note how many bytes the catalog has now."""
        self.lake.close()
        settle(self.url)
        found = self._bytes()
        self.points.append((dict(self.counts), found))
        self.lake = deltalakedb.connect(self.url, mirror="worker")
        return found

    def _bytes(self) -> int:
        if self.engine == "postgres":
            return int(_ask(self.url, "SELECT pg_database_size(current_database())"))
        path = self.url.split("///", 1)[1]
        if self.engine == "duckdb":
            return Path(path).stat().st_size
        with sqlite3.connect(path) as connection:
            pages, free, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)

    def create_tables(self, count: int) -> float:
        """Seconds for each."""
        began = time.perf_counter()
        for number in range(self.counts["tables"], self.counts["tables"] + count):
            name = f"t{number:05}"
            self.lake.create_table(
                name,
                location=str(self.folder / self.engine / name),
                schema=self.shape.schema,
                partition_by=["day"],
                properties=_PROPERTIES,
            )
        self.counts["tables"] += count
        return (time.perf_counter() - began) / count

    def add(self, files: int, batch: int) -> list[float]:
        """Add files to the first table, some in each commit; the seconds of each commit."""
        table = self.lake.table("t00000")
        times = []
        for begin in range(self._next, self._next + files, batch):
            actions = [
                add_of(self.shape, number, 1)
                for number in range(begin, min(begin + batch, self._next + files))
            ]
            times.append(timed(partial(table.commit, actions)))
        self._next += files
        self.counts["added"] += files
        self.counts["commits"] += len(times)
        return times

    def remove(self, files: int) -> None:
        """Remove the oldest files that are left, in one commit."""
        first = self.counts["removed"]
        actions = [remove_of(self.shape, number, 1) for number in range(first, first + files)]
        self.lake.table("t00000").commit(actions, operation="DELETE")
        self.counts["removed"] += files
        self.counts["commits"] += 1

    def publish(self) -> float:
        """Seconds to publish whatever waits."""
        return timed(self.lake.mirror.run_once)

    def opening(self) -> dict[str, float]:
        """Milliseconds of what users wait for, at the present number of files."""
        table = self.lake.table("t00000")
        day = self.shape.day(self._next // 2)
        low = self._next // 2 * 100
        where = f"day = '{day}' AND id BETWEEN {low} AND {low + 10_000}"
        commits = self.add(5, 1)
        self.publish()
        return {
            "head ms": _median(5, table.snapshot) * 1000,
            "list ms": _median(3, lambda: table.snapshot().files()) * 1000,
            "pruned ms": _median(5, lambda: table.snapshot().files(where=where)) * 1000,
            "commit ms": statistics.median(commits) * 1000,
        }


def run(report: Report, *, quick: bool) -> None:
    """Every engine: grow, fit, predict, measure."""
    sizes = Sizes.quick() if quick else Sizes()
    with tempfile.TemporaryDirectory() as name, PostgresServer() as server:
        for engine in ENGINES:
            with _growing(engine, server, Path(name), sizes) as catalog:
                _grow(catalog, sizes, report)


@contextmanager
def _growing(engine: str, server: PostgresServer, folder: Path, sizes: Sizes) -> Iterator[Growing]:
    url = catalog_url(engine, server, folder)
    lake = deltalakedb.connect(url, mirror="worker")
    growing = Growing(engine, url, folder, Shape(2 * sizes.check, 1, 0), lake)
    try:
        yield growing
    finally:
        growing.lake.close()


def _grow(catalog: Growing, sizes: Sizes, report: Report) -> None:
    found = catalog.constants
    catalog.measure()
    for _ in range(2):
        found["create ms"] = catalog.create_tables(sizes.tables // 2) * 1000
        catalog.publish()
        catalog.measure()
    found["status ms per table"] = (
        _median(3, catalog.lake.mirror.status) * 1000 / catalog.counts["tables"]
    )
    for _ in range(2):
        before = _wal(catalog)
        catalog.add(sizes.small_commits // 2, 1)
        found["WAL bytes per small commit"] = (_wal(catalog) - before) / (sizes.small_commits // 2)
        found["versions published per s"] = sizes.small_commits // 2 / catalog.publish()
        catalog.measure()
    times: list[float] = []
    while catalog.counts["added"] < sizes.files:
        before = _wal(catalog)
        times += catalog.add(BATCH, BATCH)
        found["WAL bytes per file of a large commit"] = (_wal(catalog) - before) / BATCH
        catalog.publish()
        catalog.measure()
    found["files committed per s"] = BATCH / statistics.median(times)
    for _ in range(2):
        catalog.remove(BATCH // 4)
        catalog.publish()
        catalog.measure()
    small = catalog.opening()
    fitted = fit(catalog.points)
    _where_bytes_are(catalog)
    found["log bytes per file"] = _log_bytes(catalog) / catalog.counts["added"]
    while catalog.counts["added"] < sizes.check:
        catalog.add(BATCH, BATCH)
        catalog.publish()
    real = catalog.measure()
    large = catalog.opening()
    listed = catalog.lake.table("t00000").snapshot().files()
    found["Arrow bytes per listed file"] = listed.nbytes / listed.num_rows
    found["list us per file"] = large["list ms"] * 1000 / listed.num_rows
    predicted = predict(fitted, catalog.points[-1][0])
    for name in small:
        found[f"{name}, {sizes.files:,} files"] = small[name]
        found[f"{name}, {sizes.check:,} files"] = large[name]
    found.update({f"bytes: {name}": value for name, value in fitted.items()})
    found.update(predicted=predicted, measured=float(real))
    report.constants[catalog.engine] = found
    report.ratios.append(
        Ratio(
            f"bytes of {sizes.check:,} files, {catalog.engine}",
            "predicted",
            "measured",
            predicted / real,
            f"predicted by the model from {sizes.files:,} files, over measured",
            # DuckDB compresses the better the more there is: a straight line is too much for it.
            "" if catalog.engine == "duckdb" else "0.90 to 1.10",
            None if catalog.engine == "duckdb" else 0.9 <= predicted / real <= 1.1,
        )
    )
    if catalog.engine == "postgres" or not report.notes:
        report.notes = [
            f"{os.cpu_count()} cores; files of a day and an id, statistics of 4 columns"
        ]


def fit(points: list[tuple[dict[str, int], int]]) -> dict[str, float]:
    """The constants that explain the points best; none of them is negative.

    DuckDB gives out blocks of 256 KiB: what is smaller than that may come out as nothing.
    """
    sizes = np.array([float(size) for _, size in points])
    names = list(VARIABLES)
    while True:
        rows = np.array(
            [[1.0 if name == "base" else counts[name] for name in names] for counts, _ in points]
        )
        # Columns of like size, so that none is lost to rounding.
        scale = rows.max(axis=0)
        solved, *_ = np.linalg.lstsq(rows / scale, sizes, rcond=None)
        found = dict(zip(names, (float(one) for one in solved / scale), strict=True))
        lowest = min(found, key=lambda name: found[name])
        if found[lowest] >= 0:
            return {name: found.get(name, 0.0) for name in VARIABLES}
        names.remove(lowest)


def predict(constants: dict[str, float], counts: dict[str, int]) -> float:
    """How many bytes the model expects."""
    return constants["base"] + sum(constants[name] * counts[name] for name in VARIABLES[1:])


def _where_bytes_are(catalog: Growing) -> None:
    """On Postgres: what each relation has for one file, indexes apart."""
    if catalog.engine != "postgres":
        return
    files = catalog.counts["added"]
    for relation, heap, index in _all(
        catalog.url,
        "SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class "
        "WHERE relkind = 'r' AND relname LIKE 'dl\\_%' ORDER BY 2 DESC LIMIT 6",
    ):
        catalog.constants[f"{relation}: bytes per file"] = heap / files
        catalog.constants[f"{relation}: index bytes per file"] = index / files


def _log_bytes(catalog: Growing) -> int:
    folder = catalog.folder / catalog.engine / "t00000" / "_delta_log"
    return sum(path.stat().st_size for path in folder.glob("*.json"))


def _wal(catalog: Growing) -> float:
    if catalog.engine != "postgres":
        return 0.0
    return float(_ask(catalog.url, "SELECT pg_current_wal_lsn() - '0/0'"))


def _median(rounds: int, work: Callable[[], object]) -> float:
    return statistics.median(timed(work) for _ in range(rounds))


def _ask(url: str, sql: str) -> Any:
    return _all(url, sql)[0][0]


def _all(url: str, sql: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()
