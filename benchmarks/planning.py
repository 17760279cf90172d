"""Planning by a column that is not planned, beside the full listing of the same table and delta-rs.

The tables have statistics of six columns; no condition names `id`, whose keys lead to files. In one
column files are in its order, in the other in random order. Goals, on each engine:

- 100,000 files, where a hundredth of them match: at most the time of the full listing, and 20 times
  as fast as delta-rs opens the table and filters by the same column;
- where all match: at most twice the full listing;
- 1,000,000 files: at most 12 times as long as 100,000 in random order, and 3 times in order;
- statistics of 200 columns: at most 1.5 times as long as with six, for what reading a table asks:
  the statistics of the files themselves are 30 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.harness import Report, median_ratio
from benchmarks.lakes import ENGINES, ROWS, Shape, churned, with_checkpoint
from benchmarks.readers import Readers, delta_rs_bounds
from benchmarks.reading import at_most, check_count, faster, plan, race
from deltalakedb.reading.dataset import COLUMNS as READING

from support.postgres_server import PostgresServer

COLUMNS, MANY_COLUMNS = 6, 200
FEW = 250
"""How many files in order match in a small and in a large table."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the tables are."""

    rounds: int
    files: int
    commits: int
    many_files: int
    wide_files: int


FULL = Sizes(9, 100_000, 2_000, 1_000_000, 40_000)
QUICK = Sizes(2, 2_000, 100, 5_000, 1_000)


class Condition(NamedTuple):
    """A condition, its bounds for delta-rs, and how many files match."""

    where: str
    bounds: tuple[str, Any, Any]
    matches: int


def in_random_order(count: int) -> Condition:
    """Files that are spread over the whole table."""
    high = count * ROWS
    return Condition(f"extra0 < {high}", ("extra0", None, high - 1), count)


def in_order(count: int, start: int) -> Condition:
    """Files that were added one after another."""
    low, high = start * ROWS, (start + count) * ROWS
    where = f"extra1 >= {low} AND extra1 < {high}"
    return Condition(where, ("extra1", low, high - 1), count)


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    sizes = QUICK if quick else FULL
    with PostgresServer(fsync=False) as server:
        _shares(report, server, sizes)
        # As many files a commit, so that pages have as many.
        small, large = (
            Shape(files, commits=max(1, files // 50_000), removed=0, columns=COLUMNS)
            for files in (sizes.files, sizes.many_files)
        )
        order = (in_order(FEW, sizes.files // 2), in_order(FEW, sizes.many_files // 2))
        random = (in_random_order(sizes.files // 100), in_random_order(sizes.many_files // 100))
        goals = {"in random order": (random, 12.0), f"{FEW} files in order": (order, 3.0)}
        _growth(report, server, (small, large), goals, rounds=sizes.rounds)
        narrow, wide = (
            Shape(sizes.wide_files, commits=20, removed=0, columns=columns)
            for columns in (COLUMNS, MANY_COLUMNS)
        )
        same = in_random_order(sizes.wide_files // 100)
        goals = {f"statistics of {MANY_COLUMNS} columns": ((same, same), 1.5)}
        _growth(report, server, (narrow, wide), goals, rounds=sizes.rounds, columns=READING)


def _shares(report: Report, server: PostgresServer, sizes: Sizes) -> None:
    """Conditions beside the full listing and delta-rs."""
    few = sizes.files // 100
    conditions = {
        f"{few} files in random order": in_random_order(few),
        f"{few} files in order": in_order(few, sizes.files // 2),
        "all files": in_random_order(sizes.files),
    }
    shape = churned(sizes.files, sizes.commits, columns=COLUMNS)
    with Readers(shape, server, report, peers=False) as readers:
        checked = with_checkpoint(readers.log)
        for kind, (where, bounds, matches) in conditions.items():
            works: dict[str, Callable[[], Any]] = {
                f"ours on {engine}": plan(reader, where) for engine, reader in readers.ours.items()
            }
            works["delta-rs"] = lambda bounds=bounds: delta_rs_bounds(checked, *bounds)  # type: ignore[misc]
            for name, work in works.items():
                check_count(name, work(), matches)
            works |= {f"{name}, all": work for name, work in readers.our_lists().items()}
            times = race(report, f"{kind} of {sizes.files}", works, rounds=sizes.rounds)
            for engine in readers.ours:
                scenario, ours = f"{kind}, {engine}", f"ours on {engine}"
                names = (ours, f"{ours}, all")
                value = median_ratio(*(times[name] for name in names))
                goal = 2.0 if matches == sizes.files else 1.0
                at_most(report, scenario, names, value, "times our full listing", goal=goal)
                least = None if matches == sizes.files else 20.0
                faster(report, scenario, times, ours=ours, peer="delta-rs", goal=least)


def _growth(
    report: Report,
    server: PostgresServer,
    shapes: tuple[Shape, Shape],
    goals: dict[str, tuple[tuple[Condition, Condition], float]],
    *,
    rounds: int,
    columns: Sequence[str] | None = None,
) -> None:
    """The same conditions in a small and in a large table."""
    small, large = (f"{one.live_files} files, {one.columns} columns" for one in shapes)
    with (
        Readers(shapes[0], server, report, peers=False) as few,
        Readers(shapes[1], server, report, peers=False) as many,
    ):
        for kind, (conditions, goal) in goals.items():
            works: dict[str, Callable[[], Any]] = {}
            for readers, size, one in zip((few, many), (small, large), conditions, strict=True):
                for engine, reader in readers.ours.items():
                    name = f"{engine}, {size}"
                    works[name] = plan(reader, one.where, columns)
                    check_count(name, works[name](), one.matches)
            times = race(report, f"{kind}: {large}", works, rounds=rounds)
            for engine in ENGINES:
                names = (f"{engine}, {large}", f"{engine}, {small}")
                value = median_ratio(*(times[name] for name in names))
                scenario = f"{kind}, {large}, {engine}"
                at_most(report, scenario, names, value, f"times the same with {small}", goal=goal)
