"""Spark SQL on tables of a lake, against the same statements on plain Delta tables.

Both are Delta on Spark, each a driver in a process of its own with the same settings: ours as
`configure` makes it, with the service of the lake in it, and the other one with Delta's classes
only. They take turns. What differs is who decides which commit wins, the rows in the catalog that
come of it, and that ours waits for the disk.

Both warm up with the same statements. After each scenario the rows and the commits of both are
counted, and ours are verified.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from pyspark.sql import SparkSession

import deltalakedb
from benchmarks.harness import Ratio, Report, compare, median_ratio, timed
from benchmarks.spark_session import has_delta, lake_session, session
from deltalakedb.lake import Lake
from deltalakedb.table import Table

P = ParamSpec("P")
T = TypeVar("T")

OURS, PLAIN = "ours", "Delta on Spark"
GOAL, GOAL_CROWD = 1.10, 1.0
SESSIONS = 8
# Delta writes a checkpoint every ten commits: each round has one.
INSERTS = 10


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    if not has_delta():
        report.notes.append("Delta on Spark is not there: nothing was measured")
        return
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        url = f"sqlite:///{folder}/lake.db"
        with (
            deltalakedb.connect(url, warehouse=str(folder / OURS)) as lake,
            _Driver(folder, url) as ours,
            _Driver(folder) as plain,
        ):
            both = _Both(lake, {OURS: ours, PLAIN: plain})
            _inserts(report, both, rounds=1 if quick else 20)
            _opening(report, both, files=1_000 if quick else 100_000, rounds=1 if quick else 11)
            _crowd(report, both, each=1 if quick else 5, rounds=1 if quick else 12)
            _merge(report, both, rows=50_000 if quick else 10_000_000, rounds=1 if quick else 5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- drivers ------------------------------------------------------------------------------


class _Driver:
    """A driver of Spark in a process of its own: one of a lake, or of plain Delta without one."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self._process = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_start, initargs=(folder, url)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_stop)
        self._process.shutdown()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function of this module in the driver."""
        return self._process.submit(work, *args, **kwargs).result()


# In the process of a driver: its sessions, of which the first one runs single statements.
_sessions: list[SparkSession] = []
_open = ExitStack()


def _start(folder: Path, url: str | None) -> None:
    tempfile.tempdir = str(folder)
    if url is None:
        spark = session()
        _open.callback(spark.stop)
    else:
        lake = _open.enter_context(deltalakedb.connect(url))
        spark = _open.enter_context(lake_session(lake))
    _sessions.extend(spark.newSession() for _ in range(SESSIONS))


def _stop() -> None:
    _open.close()


def _sql(*statements: str) -> float:
    """Seconds that statements take, one after the other."""
    return timed(lambda: [_rows(statement) for statement in statements])


def _rows(query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in _sessions[0].sql(query).collect()]


def _number(query: str) -> int:
    ((number,),) = _rows(query)
    return int(number)


def _without_cache(query: str) -> float:
    """Seconds that a query takes when no state of a table is in memory."""
    _jvm().org.apache.spark.sql.delta.DeltaLog.clearCache()
    return _sql(query)


def _all_at_once(*statements: str) -> float:
    """Seconds that all sessions take for the same statements."""
    failures: list[BaseException] = []

    def work(session: SparkSession) -> None:
        try:
            for statement in statements:
                session.sql(statement)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    def together() -> None:
        threads = [threading.Thread(target=work, args=(one,)) for one in _sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    seconds = timed(together)
    if failures:
        raise failures[0]
    return seconds


def _collect_garbage() -> None:
    _jvm().System.gc()


def _jvm() -> Any:
    return _sessions[0]._jvm  # noqa: SLF001


# --- both ---------------------------------------------------------------------------------


class _Both:
    """The drivers of both, which have the same tables."""

    def __init__(self, lake: Lake, drivers: dict[str, _Driver]) -> None:
        self.lake = lake
        self.drivers = drivers
        for driver in drivers.values():
            driver.run(_sql, "CREATE DATABASE bench")

    def each(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> dict[str, T]:
        """Run the same in both, one after the other."""
        return {name: driver.run(work, *args, **kwargs) for name, driver in self.drivers.items()}

    def compare(
        self,
        report: Report,
        scenario: str,
        once: Callable[[_Driver], float],
        *,
        rounds: int,
        goal: float,
        commits: int = 1,
    ) -> None:
        """Compare the two, and note what `commits` of ours take longer."""

        def clean(driver: _Driver) -> float:
            # Garbage is collected by the one that made it.
            driver.run(_collect_garbage)
            return once(driver)

        contestants = {name: partial(clean, driver) for name, driver in self.drivers.items()}
        times = compare(scenario, contestants, rounds=rounds, report=report)
        value = median_ratio(times[OURS], times[PLAIN])
        meaning = "times what Delta on Spark takes"
        report.ratios.append(
            Ratio(scenario, OURS, PLAIN, value, meaning, f"≤ {goal:.2f}", met=value <= goal)
        )
        if commits:
            more = statistics.median(a - b for a, b in zip(times[OURS], times[PLAIN], strict=True))
            report.notes.append(
                f"{scenario}: a commit of ours takes {more * 1000 / commits:+.1f} ms more"
            )

    def check(self, table: str, *, rows: int, commits: int) -> None:
        """Both have all rows and commits; ours are those of the catalog."""
        for name, count in self.each(_number, f"SELECT count(*) FROM bench.{table}").items():
            assert count == rows, (name, table, count, rows)
        for name, history in self.each(_rows, f"DESCRIBE HISTORY bench.{table}").items():
            assert len(history) == commits, (name, table, len(history), commits)
        ours = self.lake.table(f"bench.{table}")
        assert ours.snapshot().version == commits - 1
        assert ours.verify().ok


# --- small INSERTs ------------------------------------------------------------------------


def _inserts(report: Report, both: _Both, *, rounds: int) -> None:
    """Small INSERTs one after the other."""
    both.each(_sql, "CREATE TABLE bench.small (id BIGINT) USING delta")
    statements = [f"INSERT INTO bench.small VALUES ({number})" for number in range(INSERTS)]
    warm = 4
    for _ in range(warm):
        both.each(_sql, *statements)
    both.compare(
        report,
        f"{rounds * INSERTS} INSERTs of a row, {INSERTS} at a time",
        lambda driver: driver.run(_sql, *statements),
        rounds=rounds,
        goal=GOAL,
        commits=INSERTS,
    )
    inserts = (warm + rounds) * INSERTS
    both.check("small", rows=inserts, commits=1 + inserts)


# --- opening ------------------------------------------------------------------------------


def _opening(report: Report, both: _Both, *, files: int, rounds: int) -> None:
    """The first count of a table with many files, whose state is in no memory.

    Both have the same log, with a checkpoint; the data files are not there, as nobody opens them.
    """
    table = _many_files(both.lake, files)
    both.lake.mirror.drain()
    ours = Path(table.location.removeprefix("file://"))
    assert list((ours / "_delta_log").glob("*.checkpoint*.parquet")), "the log has no checkpoint"
    copy = ours.with_name("plain")
    shutil.copytree(ours, copy)
    both.drivers[PLAIN].run(_sql, f"CREATE TABLE bench.opened USING delta LOCATION '{copy}'")
    query = "SELECT count(*) FROM bench.opened"
    for count in both.each(_number, query).values():
        assert count == files
    for _ in range(2):
        both.each(_without_cache, query)
    both.compare(
        report,
        f"open {files:,} files, count(*)",
        lambda driver: driver.run(_without_cache, query),
        rounds=rounds,
        goal=GOAL,
        commits=0,
    )


def _many_files(lake: Lake, files: int) -> Table:
    """A table with so many files in its log."""
    columns = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": columns})
    table = lake.create_table("bench.opened", schema=schema)
    bounds = {"minValues": {"id": 1}, "maxValues": {"id": 1}, "nullCount": {"id": 0}}
    stats = json.dumps({"numRecords": 1, **bounds})
    add = {"partitionValues": {}, "size": 1000, "modificationTime": 1, "dataChange": True}
    # A checkpoint at version 10, and a commit after it.
    ends = [number * files // 11 for number in range(12)]
    for first, end in pairwise(ends):
        paths = [f"part-{number:06}.parquet" for number in range(first, end)]
        table.commit([{"add": {**add, "path": path, "stats": stats}} for path in paths])
    return table


# --- sessions that append at once ---------------------------------------------------------


def _crowd(report: Report, both: _Both, *, each: int, rounds: int) -> None:
    """Eight sessions that append to one table at once."""
    both.each(_sql, "CREATE TABLE bench.crowd (id BIGINT) USING delta")
    statements = [f"INSERT INTO bench.crowd VALUES ({number})" for number in range(each)]
    warm = 4
    for _ in range(warm):
        both.each(_all_at_once, *statements)
    inserts = SESSIONS * each
    both.compare(
        report,
        f"{SESSIONS} sessions append to one table, {each} INSERTs each",
        lambda driver: driver.run(_all_at_once, *statements),
        rounds=rounds,
        goal=GOAL_CROWD,
        commits=inserts,
    )
    inserts *= warm + rounds
    both.check("crowd", rows=inserts, commits=1 + inserts)


# --- MERGE --------------------------------------------------------------------------------


def _merge(report: Report, both: _Both, *, rows: int, rounds: int) -> None:
    """A MERGE that updates one row of a hundred, in every file."""
    both.each(
        _sql,
        "CREATE TABLE bench.merged USING delta AS "
        f"SELECT /*+ REPARTITION(8) */ id, id % 1000 AS k, 0 AS n FROM range({rows})",
    )
    turns: dict[_Driver, Iterator[int]] = {one: iter(range(100)) for one in both.drivers.values()}

    def once(driver: _Driver) -> float:
        source = f"SELECT id FROM range({rows}) WHERE id % 100 = {next(turns[driver])}"
        return driver.run(
            _sql,
            f"MERGE INTO bench.merged t USING ({source}) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET n = n + 1",
        )

    for driver in both.drivers.values():
        once(driver)
    scenario = f"MERGE of 1 % into {rows:,} rows"
    both.compare(report, scenario, once, rounds=rounds, goal=GOAL)
    for name, total in both.each(_number, "SELECT sum(n) FROM bench.merged").items():
        assert total == (1 + rounds) * rows // 100, (name, total)
    both.check("merged", rows=rows, commits=2 + rounds)
