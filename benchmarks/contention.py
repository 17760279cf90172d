"""Many processes that append to one table, published inline or left to a worker, beside peers.

Each process commits one existing file at a time, as fast as it can, for some seconds. Ours runs on
Postgres and SQLite; with `inline` a commit is in `_delta_log` when it returns, with `worker` it is
durable in the catalog. DuckLake (its catalog on the same Postgres) and delta-rs register a file of
the same kind. The bare loops are the SQL of such a commit straight through the driver, where those
that wait are served in their order: what sixteen processes cost without any code of ours.
Contestants run in turn, each on a table of its own. Goals, with sixteen processes:

- at least 0.75 of the rate of one process (worker), and 0.9 (inline);
- at least three times the rate of DuckLake (worker), and its rate (inline);
- no commit is refused, and the 99th percentile of the latency is at most ten times the median.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import deltalakedb
from benchmarks.bare import BareLoop, delta_rs_append, new_add
from benchmarks.commits import SCHEMA
from benchmarks.ducklake import attach_ducklake
from benchmarks.harness import Ratio, Report
from deltalakedb.store.url import parse_url

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.postgres_server import PostgresServer

_SIZES: Final = (1, 4, 16, 64)
_MANY: Final = 16
# DuckLake and its catalog take more than one connection for each process.
_CONNECTIONS: Final = {"max_connections": "400"}
_OURS: Final = ("postgres inline", "postgres worker", "sqlite inline", "sqlite worker")
_BARE: Final = ("bare loop on postgres", "bare loop on sqlite")
_PEERS: Final = ("DuckLake on postgres", "delta-rs")
_WARM_COMMITS: Final = 3
_MOST_TAIL: Final = 10


@dataclass(frozen=True, slots=True)
class Target:
    """The table that the processes of a run append to."""

    contestant: str
    catalog: str
    table: str
    folder: str


@dataclass(slots=True)
class Result:
    """What all processes of a run have measured."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def rate(self) -> float:
        """Commits in a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """The latency that this share of the commits did not exceed, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    sizes, seconds, rounds = ((1, 4), 1.0, 1) if quick else (_SIZES, 10.0, 1)
    measure(report, (*_OURS, *_BARE, *_PEERS), sizes, seconds=seconds, rounds=rounds)


def measure(
    report: Report, contestants: Sequence[str], sizes: Sequence[int], *, seconds: float, rounds: int
) -> None:
    """Run each contestant with each number of processes, in turn, and report the ratios."""
    results: dict[tuple[str, int], list[Result]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(PostgresServer(fsync=True, settings=_CONNECTIONS))
        for _ in range(rounds):
            for size in sizes:
                for contestant in contestants:
                    try:
                        target = _new_target(contestant, server, folder)
                    except ImportError as missing:
                        report.notes.append(f"{contestant} left out: {missing}")
                        continue
                    result = _run_processes(target, size, seconds)
                    results.setdefault((contestant, size), []).append(result)
                    print(_line(contestant, size, result), file=sys.stderr, flush=True)
    for (contestant, size), found in results.items():
        report.notes.extend(_line(contestant, size, result) for result in found)
    for contestant in contestants:
        if contestant in _OURS:
            _add_ratios(report, contestant, results)


def _line(contestant: str, size: int, result: Result) -> str:
    return (
        f"{contestant}, {size} processes: {result.rate:.0f} commits/s, "
        f"p50 {result.percentile(0.5) * 1000:.1f} ms, p99 {result.percentile(0.99) * 1000:.1f} ms, "
        f"{result.refused} refused"
    )


def _add_ratios(
    report: Report, contestant: str, results: dict[tuple[str, int], list[Result]]
) -> None:
    is_inline = contestant.endswith("inline")
    many = results.get((contestant, _MANY))
    if not many:
        return

    def add(peer: str, value: float, meaning: str, goal: str, *, is_met: bool | None) -> None:
        scenario = f"{_MANY} processes on one table, {contestant}"
        report.ratios.append(Ratio(scenario, contestant, peer, value, meaning, goal, is_met))

    if one := results.get((contestant, 1)):
        least = 0.9 if is_inline else 0.75
        share = _rates(many, one)
        add("one", share, "of the rate of one", f"≥ {least}", is_met=share >= least)
    bare = f"bare loop on {contestant.split(maxsplit=1)[0]}"
    if not is_inline and (many_bare := results.get((bare, _MANY))):
        if one_bare := results.get((bare, 1)):
            share = _rates(many_bare, one_bare)
            add(bare, share, "the bare loop, of the rate of one", "", is_met=None)
        add(bare, _rates(many, many_bare), "of the bare loop's rate", "", is_met=None)
    tail = statistics.median(r.percentile(0.99) / max(r.percentile(0.5), 1e-9) for r in many)
    add("p50", tail, "p99 in p50s", "≤ 10", is_met=tail <= _MOST_TAIL)
    refused = sum(result.refused for result in many)
    add("refused", refused, "commits refused", "0", is_met=refused == 0)
    for peer in _PEERS:
        if found := results.get((peer, _MANY)):
            times = _rates(many, found)
            if peer.startswith("DuckLake") and contestant.startswith("postgres"):
                goal = 1.0 if is_inline else 3.0
                add(peer, times, f"times {peer}", f"≥ {goal:g}", is_met=times >= goal)
            else:
                add(peer, times, f"times {peer}", "", is_met=None)


def _rates(ours: list[Result], others: list[Result]) -> float:
    pairs = zip(ours, others, strict=True)
    return statistics.median(a.rate / max(b.rate, 1e-9) for a, b in pairs)


def _new_target(contestant: str, server: PostgresServer, folder: Path) -> Target:
    place = folder / uuid.uuid4().hex
    place.mkdir()
    catalog = f"sqlite:///{place / 'lake.db'}"
    if "postgres" in contestant:
        catalog = server.url(server.create_database())
    target = Target(contestant, catalog, "t", str(place))
    if contestant in (*_OURS, *_BARE):
        mode = contestant.split()[1] if contestant in _OURS else "worker"
        with deltalakedb.connect(catalog, mirror=mode) as lake:
            lake.create_table("t", location=str(place / "t"), schema=SCHEMA)
    elif contestant == "delta-rs":
        import pyarrow as pa
        from deltalake import DeltaTable

        DeltaTable.create(str(place / "t"), schema=pa.schema([("id", pa.int64())]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"id": [1, 2, 3]}), place / "file.parquet")
        connection = _ducklake(target)
        connection.execute("CREATE TABLE lake.t (id BIGINT)")
        connection.close()
    return target


# --- the processes ------------------------------------------------------------------------


def _run_processes(target: Target, size: int, seconds: float) -> Result:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.contention"])
    pipes: list[Connection] = []
    processes = []
    for _ in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_append_for, args=(theirs, target, seconds))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    result = Result(seconds)
    for pipe in pipes:
        latencies, refused = pipe.recv()
        result.latencies += latencies
        result.refused += refused
    for process in processes:
        process.join()
    return result


def _append_for(pipe: Connection, target: Target, seconds: float) -> None:
    with _appender(target) as append:
        for _ in range(_WARM_COMMITS):
            _is_refused(append)
        pipe.send("ready")
        pipe.recv()
        latencies: list[float] = []
        refused = 0
        now = time.perf_counter()
        end = now + seconds
        while now < end:
            is_refused = _is_refused(append)
            after = time.perf_counter()
            if is_refused:
                refused += 1
            elif after <= end:
                latencies.append(after - now)
            now = after
        pipe.send((latencies, refused))
    pipe.close()


def _is_refused(append: Callable[[], object]) -> bool:
    try:
        append()
    except Exception:  # noqa: BLE001 - whatever it is, this commit did not happen
        return True
    return False


@contextmanager
def _appender(target: Target) -> Iterator[Callable[[], object]]:
    """A function that appends one file."""
    if target.contestant in _OURS:
        mode = target.contestant.split()[1]
        with deltalakedb.connect(target.catalog, mirror=mode, create=False) as lake:
            table = lake.table(target.table)
            yield lambda: table.commit([new_add()])
    elif target.contestant in _BARE:
        with deltalakedb.connect(target.catalog, mirror="worker", create=False) as lake:
            bare = BareLoop(target.catalog, lake.table(target.table).table_id)
        yield lambda: bare.send_in_turn([new_add()])
        bare.close()
    elif target.contestant == "delta-rs":
        yield delta_rs_append(f"{target.folder}/t")
    else:
        connection = _ducklake(target)
        file = f"{target.folder}/file.parquet"
        call = f"CALL ducklake_add_data_files('lake', 't', '{file}')"
        yield lambda: connection.execute(call)
        connection.close()


def _ducklake(target: Target) -> Any:
    dsn = parse_url(target.catalog).target
    return attach_ducklake(f"postgres:{dsn}", target.folder)
