"""Spark SQL, a stream, our API and transactions on the same tables, with kills of each.

Every acknowledged statement is there once, no other more than once, no increment is lost, and each
refusal is one of Delta's conflicts.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

import deltalakedb
from deltalakedb.errors import CommitConflictError, DeltaLakeDbError
from deltalakedb.lake import Lake
from interop.readers import Refused, Unavailable
from spark.delta.lake_spark import LakeSpark, agree

from support.commit_service import CommitService
from support.lake import schema_json
from support.store import Catalogs

ROWS = 4
# What Delta raises where another commit has changed what a statement has read.
CONFLICTS = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "ProtocolChanged", "MetadataChanged")


@dataclass
class Journal:
    """What each statement came to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    added: dict[str, set[str]] = field(
        default_factory=lambda: {"done": set(), "refused": set(), "unknown": set()}
    )
    increments: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def note(self, key: str | None, outcome: str, error: BaseException | None = None) -> None:
        with self.lock:
            if key is None:
                self.increments[outcome] += 1
            else:
                self.added[outcome].add(key)
            if outcome == "unknown":
                self.errors.append(str(error)[:500])


class Driver:
    """A Spark that can be killed; another one takes its place."""

    def __init__(self, start: Callable[[], LakeSpark]) -> None:
        self._start = start
        self.spark = start()
        self.lives = 1

    def kill(self) -> None:
        """End Java and Python at once, and start another one."""
        spark, self.spark = self.spark, self._start()
        self.lives += 1
        spark.kill()
        spark.close()


class Race:
    """The tables, and who works on them until `stop` is set."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.stop = threading.Event()
        self.journal = Journal()
        self._numbers = count()

    def prepare(self, spark: LakeSpark) -> None:
        spark.run("CREATE DATABASE IF NOT EXISTS race")
        spark.run("CREATE TABLE race.log (k STRING) USING delta")
        spark.run("CREATE TABLE race.copy (k STRING) USING delta")
        spark.run("CREATE TABLE race.counters (id BIGINT, n BIGINT) USING delta")
        spark.run(f"INSERT INTO race.counters SELECT id, 0 FROM range({ROWS})")

    def sql(self, name: str, driver: Callable[[], LakeSpark]) -> None:
        """Inserts, increments, compactions: statements of a session."""
        chance = random.Random(name)
        while not self.stop.is_set():
            kind = chance.random()
            if kind < 0.5:
                key = f"{name}-{next(self._numbers)}"
                self._try(driver(), key, f"INSERT INTO race.log VALUES ('{key}')")
            elif kind < 0.95:
                row = chance.randrange(ROWS)
                self._try(
                    driver(),
                    None,
                    f"MERGE INTO race.counters t USING (SELECT {row} AS id) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET n = n + 1",
                )
            else:
                try:
                    driver().run("OPTIMIZE race.log")
                except Refused:
                    continue

    def _try(self, spark: LakeSpark, key: str | None, statement: str) -> None:
        try:
            spark.run(statement)
        except (Refused, OSError, ValueError) as error:
            refused = any(word in str(error) for word in CONFLICTS)
            self.journal.note(key, "refused" if refused else "unknown", error)
            if not refused:
                time.sleep(0.2)
        else:
            self.journal.note(key, "done")

    def api(self, name: str) -> None:
        """Appends of plain Python, and transactions over two tables."""
        with deltalakedb.connect(self.url) as lake:
            while not self.stop.is_set():
                key = f"{name}-{next(self._numbers)}"
                try:
                    if next(self._numbers) % 2:
                        lake.table("race.log").append([{"k": key}])
                    else:
                        with lake.transaction() as tx:
                            tx.table("race.log").append([{"k": key}])
                            tx.table("race.other").append([{"k": key}])
                except CommitConflictError as error:
                    self.journal.note(key, "refused", error)
                except DeltaLakeDbError as error:
                    self.journal.note(key, "unknown", error)
                else:
                    self.journal.note(key, "done")
                time.sleep(0.05)

    def stream(self, driver: Callable[[], LakeSpark]) -> None:
        """A stream from the log to its copy, again and again from its checkpoint."""
        while not self.stop.is_set():
            try:
                driver().stream("race.log", "race.copy", self.folder / "checkpoint")
            except (Refused, OSError, ValueError):
                time.sleep(0.2)

    def check(self, lake: Lake, spark: LakeSpark) -> str:
        """Compare the tables with the journal."""
        spark.stream("race.log", "race.copy", self.folder / "checkpoint")
        journal = self.journal
        log = lake.table("race.log").snapshot().to_arrow()["k"].to_pylist()
        there = set(log)
        assert len(log) == len(there), [k for k, n in Counter(log).items() if n > 1]
        assert journal.added["done"] <= there, journal.added["done"] - there
        assert not journal.added["refused"] & there
        assert there <= journal.added["done"] | journal.added["unknown"]
        copy = lake.table("race.copy").snapshot().to_arrow()["k"].to_pylist()
        assert sorted(copy) == sorted(log)
        total = sum(lake.table("race.counters").snapshot().to_arrow()["n"].to_pylist())
        least = journal.increments["done"]
        assert least <= total <= least + journal.increments["unknown"]
        for name in ("race.log", "race.copy", "race.counters"):
            agree(lake, spark, name)
            versions = [record.version for record in lake.table(name).history(100_000)]
            assert versions == list(range(len(versions) - 1, -1, -1))
        return (
            f"{len(journal.added['done'])} inserts, {least} increments, "
            f"{len(journal.added['refused']) + journal.increments['refused']} refused, "
            f"{len(journal.added['unknown']) + journal.increments['unknown']} without an answer"
        )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def url(request: pytest.FixtureRequest, catalogs: Catalogs) -> Iterator[str]:
    """A catalog; DuckDB's belongs to one process."""
    with catalogs.fresh(request.param) as url:
        yield url


def prepared(url: str, folder: Path) -> Race:
    with deltalakedb.connect(url, warehouse=str(folder / "lake")) as lake:
        lake.create_table("race.other", schema=schema_json(("k", "string")))
    return Race(url, folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_is_killed_while_everyone_writes(
    url: str, tmp_path: Path, lake_spark: LakeSpark
) -> None:
    race = prepared(url, tmp_path)
    with CommitService(url) as server:
        lake_spark.use(server.service)
        race.prepare(lake_spark)
        with ThreadPoolExecutor(5) as threads:
            jobs = [threads.submit(race.sql, name, lambda: lake_spark) for name in ("a", "b")]
            jobs.append(threads.submit(race.api, "api"))
            for _ in range(2):
                time.sleep(3)
                server.kill()
                time.sleep(0.3)
                server.start()
            time.sleep(2)
            race.stop.set()
            for job in jobs:
                job.result()
        with deltalakedb.connect(url) as lake:
            race.check(lake, lake_spark)
        assert race.journal.added["done"]
        assert race.journal.increments["done"]
        # A killed service is no failure: the session repeats its request.
        assert not race.journal.errors, race.journal.errors[:3]
        lake_spark.run("DROP DATABASE race CASCADE")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_everyone_is_killed_for_minutes(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    race = prepared(url, tmp_path)
    chance = random.Random(11)
    numbers = count()
    with CommitService(url) as server:

        def start() -> LakeSpark:
            folder = tmp_path / f"spark{next(numbers)}"
            folder.mkdir()
            return LakeSpark(folder, server.service)

        try:
            drivers = [Driver(start), Driver(start)]
        except Unavailable as missing:
            pytest.skip(str(missing))
        race.prepare(drivers[0].spark)
        with ThreadPoolExecutor(6) as threads:
            jobs = [
                threads.submit(race.sql, "a", lambda: drivers[0].spark),
                threads.submit(race.sql, "b", lambda: drivers[1].spark),
                threads.submit(race.stream, lambda: drivers[0].spark),
                threads.submit(race.api, "api"),
            ]
            deadline = time.monotonic() + 180
            while time.monotonic() < deadline:
                time.sleep(chance.uniform(5, 15))
                if chance.random() < 0.5:
                    server.kill()
                    time.sleep(chance.uniform(0, 2))
                    server.start()
                else:
                    chance.choice(drivers).kill()
            race.stop.set()
            for job in jobs:
                job.result()
        with deltalakedb.connect(url) as lake:
            told = race.check(lake, drivers[0].spark)
        lives = sum(driver.lives for driver in drivers)
        with capsys.disabled():
            sys.stdout.write(f"\n{url.partition(':')[0]}: {told}; {lives} lives of two drivers\n")
        for driver in drivers:
            driver.spark.close()
    assert race.journal.increments["done"] > 10
    assert len(race.journal.added["done"]) > 50
