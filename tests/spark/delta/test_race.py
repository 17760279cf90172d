"""Everyone on the same tables: sessions of Spark in SQL and by paths, a stream, and our API.

Each of them is killed now and then, and so is the service. In the end each version is there once,
every acknowledged statement has had its effect once, no increment is lost, and each refusal was one
of Delta's conflicts with a commit that is there.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pytest

import deltalakedb
from deltalakedb.storage import local_path
from interop.readers import Refused, Unavailable
from spark.delta.lake_spark import LakeSpark, agree

from support.commit_service import CommitService
from support.lake import schema_json
from support.store import Catalogs

ROWS = 4
SECONDS = 400
WRITER = Path(__file__).with_name("race_writer.py")
TABLES = ("race.log", "race.copy", "race.counters", "race.other")
# What Delta raises where another commit has changed what a statement has read.
CONFLICT = "DELTA_CONCURRENT_"

Outcome = Literal["done", "refused", "killed", "failed"]


@dataclass
class Journal:
    """What each statement came to; `killed` are those whose session, or program, was killed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: dict[Outcome, set[str]] = field(
        default_factory=lambda: {"done": set(), "refused": set(), "killed": set(), "failed": set()}
    )
    increments: Counter[Outcome] = field(default_factory=Counter)
    others: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Failures, and refusals for no reason."""

    def note(
        self, kind: str, key: str | None, outcome: Outcome, error: str = "", *, moved: bool = False
    ) -> None:
        """Note a statement; `moved` is whether another commit came meanwhile."""
        with self.lock:
            if key is not None:
                self.keys[outcome].add(key)
            elif kind == "increment":
                self.increments[outcome] += 1
            else:
                self.others[kind, outcome] += 1
            if outcome == "refused":
                name = error.partition("]")[0].partition("(")[0]
                self.refusals[f"{kind}: {name}"] += 1
                # Nothing in the race can conflict with rows that are only added.
                if key is not None or not moved:
                    self.wrong.append(f"{kind} {key} was refused for no reason: {error[:500]}")
            elif outcome == "failed":
                self.wrong.append(f"{kind} {key} failed: {error[:500]}")


class Driver:
    """A Spark that can be killed; another one takes its place."""

    def __init__(self, start: Callable[[], LakeSpark]) -> None:
        self._start = start
        self._dead: list[LakeSpark] = []
        self.spark = start()

    def kill(self) -> None:
        """End Java and Python at once, while another one takes over."""
        spark, self.spark = self.spark, self._start()
        self._dead.append(spark)
        spark.kill()
        spark.close()

    def was_killed(self, spark: LakeSpark) -> bool:
        """Whether this one was killed."""
        return spark in self._dead


class Program:
    """The program of our API; it can be killed, and is started again."""

    def __init__(self, url: str, journal: Journal) -> None:
        self._url, self._journal = url, journal
        self._numbers = count()
        self._threads = ThreadPoolExecutor(1)
        self._start()

    def _start(self) -> None:
        name = f"api{next(self._numbers)}"
        self._process = subprocess.Popen(
            [sys.executable, WRITER, self._url, name, str(ROWS)], stdout=subprocess.PIPE, text=True
        )
        self._listener: Future[None] = self._threads.submit(self._listen, self._process)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        pending: Mapping[str, Any] | None = None
        assert process.stdout is not None
        with process.stdout as lines:
            for line in map(json.loads, lines):
                outcome = line["outcome"]
                pending = line if outcome == "started" else None
                if pending is None:
                    self._journal.note(
                        *(line["kind"], line["key"], outcome, line.get("error", "")),
                        moved=line.get("moved", False),
                    )
        if pending is not None:
            self._journal.note(pending["kind"], pending["key"], "killed")

    def kill(self) -> None:
        """End it at once, and start it again."""
        self.end()
        self._start()

    def end(self) -> None:
        """End it at once."""
        assert self._process.poll() is None, "it has ended by itself"
        self._process.kill()
        self._process.wait()
        self._listener.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.end()
        self._threads.shutdown()


class Race:
    """The tables, and who works on them until `stop` is set."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.stop = threading.Event()
        self.journal = Journal()
        self._numbers = count()
        self.lake = deltalakedb.connect(url)

    def prepare(self, spark: LakeSpark) -> None:
        spark.run("CREATE DATABASE IF NOT EXISTS race")
        spark.run("CREATE TABLE race.log (k STRING) USING delta")
        spark.run("CREATE TABLE race.copy (k STRING) USING delta")
        spark.run("CREATE TABLE race.counters (id BIGINT, n BIGINT) USING delta")
        spark.run(f"INSERT INTO race.counters SELECT id, 0 FROM range({ROWS})")

    def sql(self, name: str, driver: Driver) -> None:
        """Inserts, increments and compactions: statements of a session."""
        chance = random.Random(name)
        while not self.stop.is_set():
            kind = chance.random()
            if kind < 0.4:
                key = f"insert-{name}-{next(self._numbers)}"
                statement = f"INSERT INTO race.log VALUES ('{key}')"
                self._try(driver, "insert", key, "race.log", running(statement))
            elif kind < 0.9:
                row = chance.randrange(ROWS)
                statement = (
                    f"MERGE INTO race.counters t USING (SELECT {row} AS id) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET n = n + 1"
                )
                self._try(driver, "increment", None, "race.counters", running(statement))
            else:
                self._try(driver, "compaction", None, "race.log", running("OPTIMIZE race.log"))

    def paths(self, name: str, driver: Driver) -> None:
        """A program that writes rows to a path, and knows no names."""
        location = local_path(self.lake.table("race.log").location)
        assert location is not None
        while not self.stop.is_set():
            key = f"path-{name}-{next(self._numbers)}"
            query = f"SELECT '{key}' AS k"
            append = partial(LakeSpark.write, query=query, path=location, mode="append")
            self._try(driver, "write", key, "race.log", append)
            time.sleep(0.3)

    def stream(self, driver: Driver) -> None:
        """A stream from the log to its copy, again and again from its checkpoint."""
        copy: dict[str, Any] = {"source": "race.log", "target": "race.copy"}
        copy["checkpoint"] = self.folder / "checkpoint"
        while not self.stop.is_set():
            self._try(driver, "stream", None, "race.copy", partial(LakeSpark.stream, **copy))

    def _try(
        self,
        driver: Driver,
        kind: str,
        key: str | None,
        table: str,
        work: Callable[[LakeSpark], None],
    ) -> None:
        spark = driver.spark
        head = self.lake.table(table).version
        try:
            work(spark)
        except (Refused, OSError, ValueError) as error:
            text = str(error)
            if driver.was_killed(spark):
                self.journal.note(kind, key, "killed")
            elif CONFLICT in text:
                moved = self.lake.table(table).version > head
                self.journal.note(kind, key, "refused", text[text.index(CONFLICT) :], moved=moved)
            else:
                self.journal.note(kind, key, "failed", text)
        else:
            self.journal.note(kind, key, "done")

    def check(self, spark: LakeSpark) -> str:
        """Compare the tables with the journal; the numbers."""
        spark.stream("race.log", "race.copy", self.folder / "checkpoint")
        journal = self.journal
        assert not journal.wrong, (len(journal.wrong), journal.wrong[:5])
        keys = {name: self._keys(name) for name in ("race.log", "race.copy", "race.other")}
        log = keys["race.log"]
        assert journal.keys["done"] <= log, journal.keys["done"] - log
        assert log <= journal.keys["done"] | journal.keys["killed"]
        assert keys["race.copy"] == log
        # Both tables of a transaction, or neither.
        assert keys["race.other"] == {key for key in log if key.startswith("transaction-")}
        counters = self.lake.table("race.counters").snapshot().to_arrow()
        total, least = sum(counters["n"].to_pylist()), journal.increments["done"]
        assert least <= total <= least + journal.increments["killed"]
        versions = 0
        for name in TABLES:
            agree(self.lake, spark, name)
            versions += self._check_log(name)
        kinds = Counter(key.rpartition("-")[0].rstrip("0123456789") for key in journal.keys["done"])
        killed = len(journal.keys["killed"]) + journal.increments["killed"]
        return (
            f"{versions} versions; {len(journal.keys['done'])} inserts ({_text(kinds)}) and "
            f"{least} increments acknowledged; {killed} without an answer, of which "
            f"{len(journal.keys['killed'] & log) + total - least} are there; others "
            f"{_text(journal.others)}; refused {_text(journal.refusals)}"
        )

    def _keys(self, name: str) -> set[str]:
        """The keys of a table, each of which it has once."""
        keys = self.lake.table(name).snapshot().to_arrow()["k"].to_pylist()
        assert len(keys) == len(set(keys)), [key for key, n in Counter(keys).items() if n > 1]
        return set(keys)

    def _check_log(self, name: str) -> int:
        """Each version is in the catalog and in the log once, and no commit is two of them."""
        table = self.lake.table(name)
        head = table.version
        assert [one.version for one in table.history(head + 2)] == list(range(head, -1, -1))
        location = local_path(table.location)
        assert location is not None
        files = sorted(path for path in (location / "_delta_log").glob("*.json"))
        assert [int(path.stem) for path in files] == list(range(head + 1))
        ids: Counter[str] = Counter()
        for path in files:
            infos = [json.loads(line).get("commitInfo") for line in path.read_text().splitlines()]
            ids.update(info["txnId"] for info in infos if info and "txnId" in info)
        # A transaction over several tables has one id, of which each has a version.
        assert max(ids.values()) == 1, [one for one, n in ids.items() if n > 1]
        return head + 1


def running(statement: str) -> Callable[[LakeSpark], None]:
    """A statement, to be run by a session."""
    return partial(LakeSpark.run, statement=statement)


def _text(counts: Counter[Any]) -> str:
    names = {" ".join(key) if isinstance(key, tuple) else key: n for key, n in counts.items()}
    return ", ".join(f"{name} {n}" for name, n in sorted(names.items())) or "none"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def race(request: pytest.FixtureRequest, tmp_path: Path, catalogs: Catalogs) -> Iterator[Race]:
    """A race over a catalog; DuckDB's belongs to one process."""
    with catalogs.fresh(request.param) as url:
        with deltalakedb.connect(url, warehouse=str(tmp_path / "lake")) as lake:
            lake.create_table("race.other", schema=schema_json(("k", "string")))
        race = Race(url, tmp_path)
        yield race
        race.lake.close()


@contextmanager
def working(race: Race, *jobs: Callable[[], None]) -> Iterator[None]:
    """Everyone works until the end of the block."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        started = [threads.submit(job) for job in jobs]
        try:
            yield
        finally:
            race.stop.set()
        for job in started:
            job.result()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_is_killed_while_everyone_writes(race: Race, lake_spark: LakeSpark) -> None:
    driver = Driver(lambda: lake_spark)
    with CommitService(race.url) as server:
        lake_spark.use(server.service)
        race.prepare(lake_spark)
        jobs = [partial(race.sql, "a", driver), partial(race.sql, "b", driver)]
        jobs.append(partial(race.paths, "c", driver))
        with Program(race.url, race.journal) as program, working(race, *jobs):
            for _ in range(2):
                time.sleep(3)
                server.kill()
                program.kill()
                time.sleep(0.3)
                server.start()
            time.sleep(2)
        # A killed service is no failure: the session repeats its request.
        race.check(lake_spark)
        assert race.journal.keys["done"]
        assert race.journal.increments["done"]
        lake_spark.run("DROP DATABASE race CASCADE")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_everyone_is_killed_for_minutes(race: Race, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(11)
    numbers = count()
    kills: Counter[str] = Counter()
    with CommitService(race.url) as server:

        def start() -> LakeSpark:
            folder = race.folder / f"spark{next(numbers)}"
            folder.mkdir()
            return LakeSpark(folder, server.service)

        def kill_service() -> None:
            server.kill()
            time.sleep(chance.uniform(0, 2))
            server.start()

        try:
            one, two = Driver(start), Driver(start)
        except Unavailable as missing:
            pytest.skip(str(missing))
        race.prepare(one.spark)
        jobs = [partial(race.sql, "a", one), partial(race.sql, "b", two)]
        jobs += [partial(race.stream, one), partial(race.paths, "c", two)]
        with Program(race.url, race.journal) as program, working(race, *jobs):
            victims = {
                "the service": kill_service,
                "the first session and the stream": one.kill,
                "the second session and the writer to a path": two.kill,
                "the program": program.kill,
            }
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                for victim in chance.sample(sorted(victims), len(victims)):
                    time.sleep(chance.uniform(8, 20))
                    victims[victim]()
                    kills[victim] += 1
        numbers_of_all = race.check(one.spark)
        one.spark.close()
        two.spark.close()
    with capsys.disabled():
        catalog = race.url.partition(":")[0]
        sys.stdout.write(f"\n{catalog}, {SECONDS} s: {numbers_of_all}; killed: {_text(kills)}\n")
    assert min(kills.values()) > 1
    done = race.journal.keys["done"]
    for writer in ("insert-a", "insert-b", "path-c", "insert-api", "transaction-api"):
        assert any(key.startswith(writer) for key in done), writer
    assert race.journal.increments["done"] > 50
    assert race.journal.others["stream", "done"] > 1
