"""Spark SQL on tables of a lake, against the same statements on plain Delta tables.

Everyone is Delta on Spark, in one Spark: the sessions of a lake have the address of its service,
and those of plain Delta do not. What differs is who decides which commit wins, and the rows in the
catalog that come of it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import deltalakedb
from benchmarks.harness import Ratio, Report, compare, median_ratio, timed
from benchmarks.spark_session import has_delta, lake_session
from deltalakedb.lake import Lake

OURS, PLAIN = "ours", "Delta on Spark"
GOAL, GOAL_CROWD = 1.10, 1.0
SESSIONS = 8


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    if not has_delta():
        report.notes.append("Delta on Spark is not there: nothing was measured")
        return
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        warehouse = str(folder / "lake")
        with (
            deltalakedb.connect(f"sqlite:///{folder}/lake.db", warehouse=warehouse) as lake,
            lake_session(lake) as spark,
        ):
            both = _Both(lake, spark, folder)
            _inserts(report, both, count=5 if quick else 40, rounds=1 if quick else 5)
            _opening(report, both, files=1_000 if quick else 100_000, rounds=1 if quick else 7)
            _crowd(report, both, each=1 if quick else 6, rounds=1 if quick else 5)
            _merge(report, both, rows=50_000 if quick else 10_000_000, rounds=1 if quick else 5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Both:
    """Sessions of the lake and of plain Delta, in the same Spark."""

    def __init__(self, lake: Lake, spark: SparkSession, folder: Path) -> None:
        self.lake = lake
        self._spark = spark
        self._folder = folder

    def session(self, name: str) -> SparkSession:
        """A new session of a contestant; one without the address of a service is plain Delta."""
        session = self._spark.newSession()
        if name == PLAIN:
            session.conf.set("deltalakedb.uri", "")
        return session

    def sessions(self) -> dict[str, SparkSession]:
        """A new session of each."""
        return {name: self.session(name) for name in (OURS, PLAIN)}

    def table(self, name: str, table: str) -> str:
        """A table in statements: by its path, so that Spark's own catalog has no part in it."""
        return f"delta.`{self.place(name, table)}`"

    def place(self, name: str, table: str) -> Path:
        """Where the table of a contestant lies."""
        return self._folder / ("lake" if name == OURS else "plain") / table


def _compare(
    report: Report, scenario: str, once: Callable[[str], float], *, rounds: int, goal: float
) -> None:
    """Compare the two, and note what ours takes more."""
    contestants = {OURS: partial(once, OURS), PLAIN: partial(once, PLAIN)}
    times = compare(scenario, contestants, rounds=rounds, report=report)
    value = median_ratio(times[OURS], times[PLAIN])
    meaning = "of the time of Delta on Spark"
    report.ratios.append(
        Ratio(scenario, OURS, PLAIN, value, meaning, f"≤ {goal:.2f}", met=value <= goal)
    )
    more = statistics.median(a - b for a, b in zip(times[OURS], times[PLAIN], strict=True))
    report.notes.append(f"{scenario}: {more * 1000:+.1f} ms")


def _inserts(report: Report, both: _Both, *, count: int, rounds: int) -> None:
    """Small INSERTs one after the other."""
    scenario = "Spark SQL, INSERT of a row"
    sessions = both.sessions()
    for name, session in sessions.items():
        session.sql(f"CREATE TABLE {both.table(name, 'small')} (id BIGINT) USING delta")
        _insert(session, both.table(name, "small"), 3)

    def once(name: str) -> float:
        table = both.table(name, "small")
        return timed(lambda: _insert(sessions[name], table, count)) / count

    _compare(report, scenario, once, rounds=rounds, goal=GOAL)
    _check(both, "small")


def _insert(session: SparkSession, table: str, count: int) -> None:
    for number in range(count):
        session.sql(f"INSERT INTO {table} VALUES ({number})")


def _opening(report: Report, both: _Both, *, files: int, rounds: int) -> None:
    """The first count of a table with many files, whose state nobody has in memory."""
    scenario = f"Spark SQL, open {files:,} files"
    sessions = both.sessions()
    columns = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    table = both.lake.create_table(
        "opened", schema=json.dumps({"type": "struct", "fields": columns})
    )
    bounds = {"minValues": {"id": 1}, "maxValues": {"id": 1}, "nullCount": {"id": 0}}
    stats = json.dumps({"numRecords": 1, **bounds})
    step = max(1, files // 10)
    for first in range(0, files, step):
        table.commit(
            [
                {
                    "add": {
                        "path": f"part-{number:06}.parquet",
                        "partitionValues": {},
                        "size": 1000,
                        "modificationTime": 1,
                        "dataChange": True,
                        "stats": stats,
                    }
                }
                for number in range(first, min(files, first + step))
            ]
        )
    both.lake.mirror.drain()
    shutil.copytree(both.place(OURS, "opened"), both.place(PLAIN, "opened"))

    def once(name: str) -> float:
        session = sessions[name]
        jvm: Any = session._jvm  # noqa: SLF001
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        query = f"SELECT count(*) FROM {both.table(name, 'opened')}"
        started = time.perf_counter()
        ((rows,),) = session.sql(query).collect()
        seconds = time.perf_counter() - started
        assert rows == files
        return seconds

    _compare(report, scenario, once, rounds=rounds, goal=GOAL)


def _crowd(report: Report, both: _Both, *, each: int, rounds: int) -> None:
    """Eight sessions that append to one table at once."""
    scenario = f"Spark SQL, {SESSIONS} sessions append to one table"
    sessions = {name: [both.session(name) for _ in range(SESSIONS)] for name in (OURS, PLAIN)}
    for name, (first, *_) in sessions.items():
        first.sql(f"CREATE TABLE {both.table(name, 'crowd')} (id BIGINT) USING delta")
        for session in sessions[name]:
            _insert(session, both.table(name, "crowd"), 1)

    def once(name: str) -> float:
        table = both.table(name, "crowd")
        return timed(lambda: _all_at_once(sessions[name], table, each))

    _compare(report, scenario, once, rounds=rounds, goal=GOAL_CROWD)
    for name, (first, *_) in sessions.items():
        ((rows,),) = first.sql(f"SELECT count(*) FROM {both.table(name, 'crowd')}").collect()
        assert rows == SESSIONS * (1 + each * rounds), (name, rows)
    _check(both, "crowd")


def _all_at_once(sessions: Sequence[SparkSession], table: str, each: int) -> None:
    failures: list[BaseException] = []

    def work(session: SparkSession) -> None:
        try:
            _insert(session, table, each)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _merge(report: Report, both: _Both, *, rows: int, rounds: int) -> None:
    """A MERGE that updates one row of a hundred."""
    scenario = f"Spark SQL, MERGE of 1 % into {rows:,} rows"
    sessions = both.sessions()
    for name, session in sessions.items():
        session.sql(
            f"CREATE TABLE {both.table(name, 'merged')} USING delta AS "
            f"SELECT /*+ REPARTITION(8) */ id, id % 1000 AS k, 0 AS n FROM range({rows})"
        )
    turns: dict[str, Iterator[int]] = {name: iter(range(100)) for name in (OURS, PLAIN)}

    def once(name: str) -> float:
        turn = next(turns[name])
        source = f"SELECT id FROM range({rows}) WHERE id % 100 = {turn}"
        statement = (
            f"MERGE INTO {both.table(name, 'merged')} t USING ({source}) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET n = n + 1"
        )
        return timed(lambda: sessions[name].sql(statement).collect())

    _compare(report, scenario, once, rounds=rounds, goal=GOAL)
    for name, session in sessions.items():
        ((total,),) = session.sql(f"SELECT sum(n) FROM {both.table(name, 'merged')}").collect()
        assert total == rounds * rows // 100, (name, total)
    _check(both, "merged")


def _check(both: _Both, table: str) -> None:
    """The catalog decided every commit, and the log is its copy."""
    assert both.lake.verify(table).ok
    assert both.lake.table(table).history(1)[0].operation is not None
