"""Open and list against the length of the history, and against the number of live files.

No goals: these are the numbers of the plot in docs/benchmarks.md. `plot_reading.py` draws them.
"""

from __future__ import annotations

from benchmarks.harness import Report
from benchmarks.lakes import Shape, churned
from benchmarks.readers import Readers, delta_rs_list
from benchmarks.reading import check_same, race

from support.postgres_server import PostgresServer

HISTORY = "history"
LIVE = "live files"
WITHOUT_CHECKPOINT = "delta-rs, no checkpoint"

_COMMITS = (100, 1_000, 10_000, 50_000)
_FILES = (1_000, 10_000, 100_000, 1_000_000)
_SOME_FILES = 10_000
_SOME_COMMITS = 1_000


def run(report: Report, *, quick: bool) -> None:
    """A point of each curve in turn; at a point all contestants are interleaved."""
    part = 20 if quick else 1
    rounds = 2 if quick else 5
    files, commits = _SOME_FILES // part, _SOME_COMMITS // part
    with PostgresServer(fsync=False) as server:
        for length in _COMMITS[: 2 if quick else None]:
            shape = churned(files, length // part)
            _point(report, server, HISTORY, shape.commits, shape, rounds=rounds)
        for number in _FILES[: 2 if quick else None]:
            live = number // part
            shape = Shape(live, commits, removed=max(live // 10, commits - live))
            _point(report, server, LIVE, live, shape, rounds=rounds)


def _point(
    report: Report, server: PostgresServer, curve: str, size: int, shape: Shape, *, rounds: int
) -> None:
    with Readers(shape, server, report) as readers:
        if shape.live_files <= _SOME_FILES:
            check_same(readers)
        works = {**readers.our_lists(), **readers.peer_lists()}
        if curve == HISTORY:
            # Without one, it replays every commit; with many files that only takes long.
            works[WITHOUT_CHECKPOINT] = lambda: delta_rs_list(readers.log)
        scenario = f"open and list {shape.live_files} files, {shape.commits} commits"
        race(report, f"{curve}: {scenario}", works, rounds=rounds)
    for name, seconds in report.medians[f"{curve}: {scenario}"].items():
        report.curves.setdefault(curve, {}).setdefault(name, {})[size] = seconds
