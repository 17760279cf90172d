"""Importing a log into each of our catalogs, against delta-rs opening the same log.

The log has 20,000 commits and no checkpoint (`lakes.py`): whoever opens it has to read and replay
all of it. delta-rs keeps the newest state in memory; an import keeps every version in the catalog,
checks it against a replay and makes the pages that listings come from. Goal: at most 1.5 times the
time that delta-rs needs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalakedb
from benchmarks.harness import Ratio, Report, compare, median_ratio, timed
from benchmarks.lakes import ENGINES, Shape, catalog_url, churned, write_log

from support.postgres_server import PostgresServer

NAME = "bench"
GOAL = 1.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the log is."""

    rounds: int
    files: int
    commits: int


FULL = Sizes(3, 100_000, 20_000)
QUICK = Sizes(1, 2_000, 200)


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    sizes = QUICK if quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with PostgresServer(fsync=False) as server:
            _speed(report, server, folder, sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _speed(report: Report, server: PostgresServer, folder: Path, sizes: Sizes) -> None:
    shape = churned(sizes.files, sizes.commits)
    log = write_log(shape, folder)
    contestants: dict[str, Callable[[], float]] = {"delta-rs": lambda: _open(log, shape)}
    for engine in ENGINES:
        contestants[f"ours on {engine}"] = _importer(engine, server, folder, log, shape)
    # Everybody is warm: modules are imported, and the files have come from the disk.
    few = Shape(1_000, 20, 0)
    small = write_log(few, folder)
    for engine in ENGINES:
        _importer(engine, server, folder, small, few)()
    _open(log, shape)
    scenario = f"import of {sizes.commits} commits, {shape.added} files"
    times = compare(scenario, contestants, rounds=sizes.rounds, report=report)
    for engine in ENGINES:
        name = f"ours on {engine}"
        value = median_ratio(times[name], times["delta-rs"])
        meaning = "times what delta-rs needs to open it"
        report.ratios.append(
            Ratio(f"import, {engine}", name, "delta-rs", value, meaning, f"≤ {GOAL}", value <= GOAL)
        )
    report.notes.append(
        "the catalog is new and connected; pages for listings, and the comparison with a replay, "
        "are part of an import"
    )


def _open(log: Path, shape: Shape) -> float:
    from deltalake import DeltaTable

    opened: list[DeltaTable] = []
    seconds = timed(lambda: opened.append(DeltaTable(str(log))))
    if opened[0].version() != shape.commits:
        raise AssertionError(f"delta-rs is at version {opened[0].version()}, not {shape.commits}")
    return seconds


def _importer(
    engine: str, server: PostgresServer, folder: Path, log: Path, shape: Shape
) -> Callable[[], float]:
    def work() -> float:
        catalogs = Path(tempfile.mkdtemp(dir=folder))
        try:
            with deltalakedb.connect(catalog_url(engine, server, catalogs)) as lake:
                seconds = timed(lambda: lake.import_table(str(log), name=NAME))
                found = lake.table(NAME).snapshot()
                if (found.version, found.num_files) != (shape.commits, shape.live_files):
                    raise AssertionError(f"{engine}: {found.num_files} files at {found.version}")
                if lake.metrics.read().get("page_failures_total"):
                    raise AssertionError(f"{engine}: pages could not be made")
        finally:
            shutil.rmtree(catalogs)
        return seconds

    return work
