"""Writing a checkpoint: ours from three catalogs against delta-rs's `create_checkpoint`.

The same table for all (`lakes.py`), the same content: one Parquet file, statistics as JSON text, no
tombstones, since all of them have expired. Goals:

- 100,000 files: 5 times as fast as `create_checkpoint` of a table that was opened before;
- 1,000,000 files: at most 500 MB above what the process had before.

What `create_checkpoint` costs depends on the checkpoint before it: with none it replays the log,
otherwise it reads that checkpoint and the commits since. The goal is for the first checkpoint of
a table; the other case, with the checkpoint that is usual ten commits before, stands beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalakedb
from benchmarks.checkpoint_memory import measure
from benchmarks.harness import Ratio, Report, compare, median_ratio, timed
from benchmarks.lakes import (
    ENGINES,
    Shape,
    catalog_url,
    churned,
    import_log,
    settle,
    write_log,
)
from benchmarks.reading_memory import can_measure
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.storage import open_storage

from support.postgres_server import PostgresServer

NAME = "bench"
GOAL = 5.0
MEMORY_GOAL = 500.0
BEFORE = 10
"""How many commits lie between two checkpoints by default."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the tables are."""

    rounds: int
    files: int
    commits: int
    memory_files: int


FULL = Sizes(7, 100_000, 1_000, 1_000_000)
QUICK = Sizes(2, 2_000, 100, 5_000)


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    sizes = QUICK if quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with PostgresServer(fsync=False) as server:
            _speed(report, server, folder, sizes)
            _memory(report, server, folder, sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- speed --------------------------------------------------------------------------------


class Copy:
    """A copy of a log (by links) for one contestant, which can be put back as it was."""

    def __init__(self, log: Path) -> None:
        self.path = log.with_name(f"table-{uuid.uuid4().hex[:12]}")
        self.log = self.path / "_delta_log"
        self.log.mkdir(parents=True)
        for file in (log / "_delta_log").iterdir():
            os.link(file, self.log / file.name)
        self._hint: bytes | None = None
        self._there = {path.name for path in self.log.iterdir()}

    def keep(self) -> None:
        """What is there now stays."""
        hint = self.log / "_last_checkpoint"
        self._hint = hint.read_bytes() if hint.exists() else None
        self._there = {path.name for path in self.log.iterdir()}

    def put_back(self) -> None:
        """Forget what was written since."""
        for path in self.log.iterdir():
            if path.name not in self._there:
                path.unlink()
        if self._hint is not None:
            (self.log / "_last_checkpoint").write_bytes(self._hint)


class DeltaRs:
    """delta-rs on a copy of the log; opening is timed by itself."""

    def __init__(self, log: Path, *, checkpoint_at: int | None = None) -> None:
        from deltalake import DeltaTable

        self.copy = Copy(log)
        self.opening: list[float] = []
        if checkpoint_at is not None:
            DeltaTable(str(self.copy.path), version=checkpoint_at).create_checkpoint()
            self.copy.keep()

    def __call__(self) -> float:
        from deltalake import DeltaTable

        self.copy.put_back()
        opened: list[DeltaTable] = []
        self.opening.append(timed(lambda: opened.append(DeltaTable(str(self.copy.path)))))
        return timed(opened[0].create_checkpoint)


class Ours:
    """Our checkpoint from one catalog, into a copy of the log."""

    def __init__(self, lake: Lake, log: Path) -> None:
        self.copy = Copy(log)
        self._lake = lake
        self._storage = open_storage(str(self.copy.path))

    def __call__(self) -> float:
        self.copy.put_back()
        return timed(self._write)

    def _write(self) -> None:
        store = self._lake.store
        version = self._lake.table(NAME).version
        with store.read() as session:
            record = store.table_by_name(session, NAME)
        if record is None:
            raise AssertionError(f"there is no table {NAME}")
        write_checkpoint(store, self._storage, record, version)


def _speed(report: Report, server: PostgresServer, folder: Path, sizes: Sizes) -> None:
    shape = churned(sizes.files, sizes.commits)
    log = write_log(shape, folder)
    first = DeltaRs(log)
    later = DeltaRs(log, checkpoint_at=sizes.commits - BEFORE)
    lakes: dict[str, Lake] = {}
    try:
        for engine in ENGINES:
            url = catalog_url(engine, server, folder)
            lakes[engine] = deltalakedb.connect(url, mirror="worker")
            import_log(lakes[engine], log, shape, name=NAME)
            settle(url)
        ours = {engine: Ours(lake, log) for engine, lake in lakes.items()}
        contestants: dict[str, Callable[[], float]] = {
            **{f"ours on {engine}": contestant for engine, contestant in ours.items()},
            "delta-rs, first checkpoint": first,
            f"delta-rs, {BEFORE} commits after another": later,
        }
        for contestant in contestants.values():
            contestant()
        _check_same(shape, [first.copy, later.copy, *(one.copy for one in ours.values())])
        first.opening.clear()
        later.opening.clear()
        scenario = f"checkpoint of {sizes.files} files, {sizes.commits} commits"
        times = compare(scenario, contestants, rounds=sizes.rounds, report=report)
    finally:
        for lake in lakes.values():
            lake.close()
    for engine in lakes:
        mine = times[f"ours on {engine}"]
        for name, peer, goal in (
            ("delta-rs, first checkpoint", first, GOAL),
            (f"delta-rs, {BEFORE} commits after another", later, None),
        ):
            alone = median_ratio(times[name], mine)
            both = median_ratio(
                [a + b for a, b in zip(times[name], peer.opening, strict=True)], mine
            )
            _tell(report, engine, name, alone, goal)
            _tell(report, engine, f"{name}, opening included", both, None)
    report.notes.append(
        "delta-rs holds an opened table, and ours is opened in the measured time; ours compresses "
        "(Snappy) and waits for the disk, delta-rs does neither"
    )


def _tell(report: Report, engine: str, peer: str, value: float, goal: float | None) -> None:
    report.ratios.append(
        Ratio(
            f"checkpoint, {engine}",
            f"ours on {engine}",
            peer,
            value,
            f"times as fast as {peer}",
            "" if goal is None else f"≥ {goal:.2f}",
            None if goal is None else value >= goal,
        )
    )


def _check_same(shape: Shape, copies: list[Copy]) -> None:
    """Whoever reads one of the checkpoints finds the same files, with the same statistics."""
    import pyarrow.parquet as pq

    seen = set()
    for copy in copies:
        file = copy.log / f"{shape.commits:020d}.checkpoint.parquet"
        adds = pq.read_table(file, columns=["add"])["add"].combine_chunks().drop_null()
        rows = zip(adds.field("path").to_pylist(), adds.field("stats").to_pylist(), strict=True)
        found = sorted(rows)
        if len(found) != shape.live_files:
            raise AssertionError(f"{file} has {len(found)} files, not {shape.live_files}")
        seen.add(hash(tuple(found)))
    if len(seen) > 1:
        raise AssertionError("the checkpoints do not hold the same files")


# --- memory -------------------------------------------------------------------------------


def _memory(report: Report, server: PostgresServer, folder: Path, sizes: Sizes) -> None:
    if not can_measure():
        report.notes.append("memory: this system does not tell the peak of a process")
        return
    shape = Shape(sizes.memory_files, 100, 0)
    log = write_log(shape, folder)
    for engine in ENGINES:
        url = catalog_url(engine, server, folder)
        with deltalakedb.connect(url, mirror="worker") as lake:
            import_log(lake, log, shape, name=NAME)
        settle(url)
        found = measure(url, NAME, Copy(log).path)
        if found["rows"] != sizes.memory_files + 2:
            raise AssertionError(f"the checkpoint has {found['rows']} rows")
        extra = found["extra_bytes"] / 1e6
        report.ratios.append(
            Ratio(
                f"checkpoint of {sizes.memory_files} files, {engine}",
                f"ours on {engine}",
                "memory",
                extra,
                f"MB above the start (the process had {found['peak_bytes'] / 1e6:.0f} MB in all)",
                f"≤ {MEMORY_GOAL:.0f}",
                extra <= MEMORY_GOAL,
            )
        )
