"""Opening a table: ours on three engines against delta-rs with a fresh checkpoint and DuckLake.

All read the very same table (`lakes.py`). Goals, with 100,000 live files and 20,000 commits:

- open and list: 8 times as fast as delta-rs on Postgres, 10 on DuckDB, 5 on SQLite;
- head lookup: at most 2 ms over a round trip of the driver;
- the middle version: at most twice our head open, and 30 times as fast as delta-rs;
- a partition and a range: 10 times as fast as delta-rs;
- 50,000 commits of history instead of 100: at most 1.2 times;
- a condition that 100 files meet, in 1,000,000 files instead of 100,000: at most 3 times;
- `iter_files` over 1,000,000 files: at most 200 MB.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import deltalakedb
from benchmarks.bare import BareLoop
from benchmarks.harness import Contestant, Ratio, Report, compare, median_ratio, timed, timed_each
from benchmarks.lakes import ENGINES, ROWS, Shape, churned, live_at, with_checkpoint
from benchmarks.readers import (
    NAME,
    OurReader,
    Readers,
    delta_rs_filter,
    delta_rs_list,
    delta_rs_uris,
)
from benchmarks.reading_memory import can_measure, measure

from support.postgres_server import PostgresServer

OPEN_GOALS = {"postgres": 8.0, "sqlite": 5.0, "duckdb": 10.0}
MATCHES = 100
"""How many files a selective condition returns."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the tables are."""

    rounds: int
    files: int
    commits: int
    growth_files: int
    growth_commits: tuple[int, int]
    planning_files: tuple[int, int]
    lookups: int


FULL = Sizes(7, 100_000, 20_000, 10_000, (100, 50_000), (100_000, 1_000_000), 100)
QUICK = Sizes(2, 2_000, 200, 500, (20, 600), (1_000, 5_000), 10)


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    sizes = QUICK if quick else FULL
    with PostgresServer(fsync=False) as server:
        with Readers(churned(sizes.files, sizes.commits), server, report) as readers:
            check_same(readers)
            _open(report, readers, sizes)
            _head_lookup(report, readers, sizes)
            _travel(report, readers, sizes)
            _predicate(report, readers, sizes)
            _connect(report, readers, sizes)
        _growth(report, server, sizes)
        _planning(report, server, sizes)


# --- comparing ----------------------------------------------------------------------------


def race(
    report: Report, scenario: str, works: Mapping[str, Callable[[], Any]], *, rounds: int
) -> dict[str, list[float]]:
    """Run every piece of work once to warm up, then once a round."""
    for work in works.values():
        work()
    contestants: dict[str, Contestant] = {
        name: lambda work=work: timed(work)  # type: ignore[misc]
        for name, work in works.items()
    }
    return compare(scenario, contestants, rounds=rounds, report=report)


def faster(
    report: Report,
    scenario: str,
    times: dict[str, list[float]],
    *,
    ours: str,
    peer: str,
    goal: float | None = None,
) -> None:
    """How many times as fast we are; a goal is a least value."""
    value = median_ratio(times[peer], times[ours])
    met = None if goal is None else value >= goal
    shown = "" if goal is None else f"≥ {goal:.2f}"
    report.ratios.append(Ratio(scenario, ours, peer, value, f"times as fast as {peer}", shown, met))


def at_most(
    report: Report,
    scenario: str,
    names: tuple[str, str],
    value: float,
    meaning: str,
    *,
    goal: float,
) -> None:
    """Report a value; the goal is the greatest that it may have."""
    report.ratios.append(
        Ratio(scenario, *names, value, meaning, f"≤ {goal:.2f}", met=value <= goal)
    )


def check_same(readers: Readers) -> None:
    """Everybody lists the same files, at the head and at an older version."""
    middle = readers.shape.commits // 2
    for version, count in ((None, readers.shape.live_files), (middle, None)):
        paths = sorted(delta_rs_list(readers.checked, version)["path"].to_pylist())
        expected = live_at(readers.shape, middle) if count is None else count
        if len(paths) != expected:
            raise AssertionError(f"delta-rs lists {len(paths)} files, not {expected}")
        for name, files in readers.our_lists(version).items():
            if sorted(files()["path"].to_pylist()) != paths:
                raise AssertionError(f"{name} lists other files than delta-rs at {version}")
        for name, lake in readers.ducklakes.items():
            if lake.list_files(version).num_rows != expected:
                raise AssertionError(f"{name} lists other files than delta-rs at {version}")


# --- one table, every reader --------------------------------------------------------------


def _open(report: Report, readers: Readers, sizes: Sizes) -> None:
    scenario = f"open and list {sizes.files} files, {sizes.commits} commits"
    report.notes.append(
        "open and list: our catalogs are connected and the handle is new each time; we give "
        "statistics as JSON text, delta-rs as columns, DuckLake none"
    )
    works = {**readers.our_lists(), **readers.peer_lists()}
    works["delta-rs without statistics"] = lambda: delta_rs_list(readers.checked, statistics=False)
    times = race(report, scenario, works, rounds=sizes.rounds)
    for engine in readers.ours:
        name = f"open and list, {engine}"
        faster(
            report, name, times, ours=f"ours on {engine}", peer="delta-rs", goal=OPEN_GOALS[engine]
        )
        for peer in ("delta-rs without statistics", *readers.ducklakes):
            faster(report, name, times, ours=f"ours on {engine}", peer=peer)


def _head_lookup(report: Report, readers: Readers, sizes: Sizes) -> None:
    """`snapshot()` of a handle that is held, beside `SELECT 1` of the driver."""
    for engine, reader in readers.ours.items():
        scenario = f"head lookup, {engine}"
        table = reader.lake.table(NAME)
        driver = BareLoop(reader.url, table.table_id)
        times = compare(
            scenario,
            {
                "ours": _mean(table.snapshot, sizes.lookups),
                "driver": _mean(
                    lambda driver=driver: driver.connection.execute("SELECT 1").fetchall(),  # type: ignore[misc]
                    sizes.lookups,
                ),
            },
            rounds=sizes.rounds,
            report=report,
        )
        driver.close()
        over = statistics.median(
            (ours - bare) * 1000 for ours, bare in zip(times["ours"], times["driver"], strict=True)
        )
        at_most(
            report, scenario, ("ours", "driver"), over, "ms over the driver's round trip", goal=2
        )


def _mean(work: Callable[[], Any], times: int) -> Contestant:
    return lambda: timed_each(lambda _: work(), range(times)) / times


def _travel(report: Report, readers: Readers, sizes: Sizes) -> None:
    middle = sizes.commits // 2
    scenario = f"open and list version {middle} of {sizes.commits}"
    report.notes.append(
        "travel: delta-rs has the one checkpoint at the head, so it replays the log from its "
        "start; beside it, the best case, where a checkpoint of that very version exists"
    )
    lucky = with_checkpoint(readers.log, middle)
    works = {**readers.our_lists(middle), **readers.peer_lists(middle)}
    works["delta-rs, checkpoint there"] = lambda: delta_rs_list(lucky, middle)
    works |= {f"{name}, head": work for name, work in readers.our_lists().items()}
    times = race(report, scenario, works, rounds=min(3, sizes.rounds))
    for engine in readers.ours:
        name, ours = f"travel to the middle, {engine}", f"ours on {engine}"
        value = median_ratio(times[ours], times[f"{ours}, head"])
        at_most(report, name, (ours, f"{ours}, head"), value, "times our head open", goal=2)
        faster(report, name, times, ours=ours, peer="delta-rs", goal=30)
        for peer in ("delta-rs, checkpoint there", *readers.ducklakes):
            faster(report, name, times, ours=ours, peer=peer)


def _predicate(report: Report, readers: Readers, sizes: Sizes) -> None:
    """One partition and a tenth of the ids; delta-rs in the faster of its two ways."""
    shape = readers.shape
    report.notes.append(
        "partition and range: delta-rs is the faster one of file_uris(file_pruning_predicate=…), "
        "which gives paths only, and get_add_actions() filtered with pyarrow. DuckLake is left "
        "out: it prunes while it scans, and the data files do not exist"
    )
    first, last = shape.live_files // 2, shape.live_files // 2 + shape.live_files // 10 - 1
    low, high, day = first * ROWS, (last + 1) * ROWS - 1, shape.day(first)
    expected = sum(shape.day(number) == day for number in range(first, last + 1))
    where = f"day = '{day}' AND id BETWEEN {low} AND {high}"
    works: dict[str, Callable[[], Any]] = {
        f"ours on {engine}": lambda reader=reader: reader.plan(where)  # type: ignore[misc]
        for engine, reader in readers.ours.items()
    }
    works["delta-rs, file_uris"] = lambda: delta_rs_uris(readers.checked, where)
    works["delta-rs, add actions"] = lambda: delta_rs_filter(readers.checked, day, low, high)
    for name, work in works.items():
        check_count(name, work(), expected)
    scenario = f"partition and range, {expected} of {sizes.files} files"
    times = race(report, scenario, works, rounds=sizes.rounds)
    times["delta-rs"] = [
        min(pair)
        for pair in zip(times["delta-rs, file_uris"], times["delta-rs, add actions"], strict=True)
    ]
    for engine in readers.ours:
        name = f"partition and range, {engine}"
        faster(report, name, times, ours=f"ours on {engine}", peer="delta-rs", goal=10)


def check_count(name: str, files: Any, expected: int) -> None:
    """Check how many files were listed."""
    if files.num_rows != expected:
        raise AssertionError(f"{name} finds {files.num_rows} files, not {expected}")


def _connect(report: Report, readers: Readers, sizes: Sizes) -> None:
    """The same as `_open` from nothing: our connections are closed, and made anew each time."""
    for reader in readers.ours.values():
        reader.close()
    works: dict[str, Callable[[], Any]] = {
        f"ours on {engine}": lambda url=reader.url: _connect_and_list(url)  # type: ignore[misc]
        for engine, reader in readers.ours.items()
    }
    works["delta-rs"] = lambda: delta_rs_list(readers.checked)
    scenario = f"connect, open and list {sizes.files} files"
    times = race(report, scenario, works, rounds=sizes.rounds)
    for engine in readers.ours:
        name = f"connect, open and list, {engine}"
        faster(report, name, times, ours=f"ours on {engine}", peer="delta-rs")


def _connect_and_list(url: str) -> None:
    with deltalakedb.connect(url) as lake:
        lake.table(NAME).snapshot().files()


# --- what must not matter -----------------------------------------------------------------


def _growth(report: Report, server: PostgresServer, sizes: Sizes) -> None:
    """The same live files after a short and after a long history."""
    short, long = sizes.growth_commits
    scenario = f"open and list {sizes.growth_files} files, {short} or {long} commits"
    with (
        Readers(churned(sizes.growth_files, short), server, report, peers=False) as young,
        Readers(churned(sizes.growth_files, long), server, report, peers=False) as old,
    ):
        works = {f"{name}, {short} commits": work for name, work in young.our_lists().items()}
        works |= {f"{name}, {long} commits": work for name, work in old.our_lists().items()}
        times = race(report, scenario, works, rounds=sizes.rounds)
    for engine in ENGINES:
        names = (f"ours on {engine}, {long} commits", f"ours on {engine}, {short} commits")
        value = median_ratio(times[names[0]], times[names[1]])
        meaning = f"times the open after {short} commits"
        at_most(report, f"{long} commits of history, {engine}", names, value, meaning, goal=1.2)


def _planning(report: Report, server: PostgresServer, sizes: Sizes) -> None:
    """A condition that 100 files meet, in a small and in a large table; then all files in turn."""
    few, many = (
        Shape(files, commits=20, removed=0, days=files // MATCHES) for files in sizes.planning_files
    )
    with (
        Readers(few, server, report, peers=False) as small,
        Readers(many, server, report, peers=False) as large,
    ):
        for kind, condition in (("partition", _partition), ("id range", _id_range)):
            works: dict[str, Callable[[], Any]] = {}
            for readers in (small, large):
                where = condition(readers.shape)
                for engine, reader in readers.ours.items():
                    work = plan(reader, where)
                    name = f"{engine}, {readers.shape.live_files} files"
                    check_count(name, work(), MATCHES)
                    works[name] = work
            scenario = f"{MATCHES} files by {kind}"
            times = race(report, scenario, works, rounds=max(sizes.rounds, 2))
            for engine in ENGINES:
                _grown(report, f"{scenario}, {engine}", engine, times, sizes)
        for reader in large.ours.values():
            reader.close()
            _memory(report, reader, many.live_files)


def plan(reader: OurReader, where: str, columns: Sequence[str] | None = None) -> Callable[[], Any]:
    """Open the table and list the files of a condition."""
    return lambda: reader.plan(where, columns)


def _partition(shape: Shape) -> str:
    return f"day = '{date.fromisoformat(shape.day(0)) + timedelta(days=shape.days // 2)}'"


def _id_range(shape: Shape) -> str:
    first = shape.live_files // 2
    return f"id >= {first * ROWS} AND id < {(first + MATCHES) * ROWS}"


def _grown(
    report: Report, scenario: str, engine: str, times: dict[str, list[float]], sizes: Sizes
) -> None:
    few, many = (f"{engine}, {files} files" for files in sizes.planning_files)
    value = median_ratio(times[many], times[few])
    meaning = f"times the same from {sizes.planning_files[0]} files"
    if engine == "sqlite":  # no goal was set for it
        report.ratios.append(Ratio(scenario, many, few, value, meaning))
    else:
        at_most(report, scenario, (many, few), value, meaning, goal=3)


def _memory(report: Report, reader: OurReader, files: int) -> None:
    """Peak memory of the loop in a process of its own, above what it had before."""
    scenario = f"iter_files over {files} files, {reader.engine}"
    if not can_measure():
        report.notes.append(f"{scenario} left out: this system does not tell peak memory")
        return
    found = measure(reader.url, NAME)
    if found["rows"] != files:
        raise AssertionError(f"{scenario}: {found['rows']} rows came")
    extra = found["extra_bytes"] / 1_000_000
    at_most(report, scenario, ("ours", ""), extra, "MB of extra memory at its peak", goal=200)
