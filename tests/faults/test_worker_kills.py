"""SIGKILL of mirror workers at random, while tables are written to: others take over.

Every commit file appears after the one before it, once, and in the end every log is complete.
"""

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from faults.proof import check_tables, wait_until_published
from faults.test_store_faults import CONVERGED, running
from faults.watch import LogWatch
from faults.workload import Writer, create_tables, impatient

from support.faulty_s3 import FaultyS3
from support.fork_server import Child, ForkServer
from support.mirror_logs import log_of
from support.s3 import S3Server

TABLES = 20
WORKERS: dict[Engine, int] = {"postgres": 4, "sqlite": 2, "duckdb": 1}
"""Processes; those of DuckDB cannot share a catalog, so one of them has four workers as threads."""
THREADS = 4
Watch = LogWatch | FaultyS3


class Crew:
    """Worker processes that are killed and started again."""

    def __init__(
        self, fork_server: ForkServer, folder: Path, job: dict[str, Any], engine: Engine
    ) -> None:
        self._server = fork_server
        self._folder = folder
        self._engine = engine
        self._job = {**job, "run": "work", "stop": str(folder / "stop")}
        self._lives = 0
        self._running: list[tuple[Child, list[str], Path]] = []

    def __enter__(self) -> Self:
        for _ in range(WORKERS[self._engine]):
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child, _, _ in self._running:
            child.kill()
            child.wait()

    def start(self) -> None:
        """Start one more."""
        self._lives += 1
        threads = THREADS if self._engine == "duckdb" else 1
        owners = [f"worker{self._lives}.{number}" for number in range(threads)]
        begun = self._folder / f"begun{self._lives}"
        writer = f"writer{self._lives}" if self._engine == "duckdb" else None
        job = {**self._job, "owners": owners, "begun": str(begun), "writer": writer}
        child = self._server.start({**job, "seed": self._lives})
        self._running.append((child, owners, begun))

    def kill(self, chance: random.Random, watch: Watch) -> list[str]:
        """Kill one of those that have begun, after some progress; who it was."""
        enough = watch.commits + chance.randrange(10)
        while watch.commits < enough or not any(begun.exists() for _, _, begun in self._running):
            self.check()
            time.sleep(0.005)
        time.sleep(chance.random() * 0.1)
        victim = chance.choice([one for one in self._running if one[2].exists()])
        self._running.remove(victim)
        child, owners, _ = victim
        child.kill()
        status = child.wait()
        assert status == -9, f"{owners} ended with {status}:\n{self._server.log.read_text()}"
        return owners

    def check(self) -> None:
        """Whether those that nobody killed are alive."""
        for child, owners, _ in self._running:
            assert child.status is None, f"{owners} ended:\n{self._server.log.read_text()}"

    def finish(self) -> None:
        """Let everybody come to an end."""
        (self._folder / "stop").touch()
        while self._running:
            child, owners, _ = self._running.pop()
            status = child.wait()
            assert status == 0, f"{owners} ended with {status}:\n{self._server.log.read_text()}"


@pytest.mark.timeout(300)
def test_workers_that_are_killed_are_succeeded(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path
) -> None:
    kill_workers(crew, catalog_url, engine, tmp_path, kills=8 if engine == "duckdb" else 15)


@pytest.mark.soak
def test_hundreds_of_workers_are_killed_while_files_fail(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path
) -> None:
    kill_workers(crew, catalog_url, engine, tmp_path, kills=400, rate=0.1)


@pytest.mark.soak
def test_hundreds_of_workers_are_killed_while_a_bucket_fails(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path, s3_server: S3Server
) -> None:
    with FaultyS3(s3_server) as proxy:
        kill_workers(crew, catalog_url, engine, tmp_path, kills=400, proxy=proxy, server=s3_server)


def kill_workers(
    fork_server: ForkServer,
    url: str,
    engine: Engine,
    folder: Path,
    *,
    kills: int,
    rate: float = 0.0,
    proxy: FaultyS3 | None = None,
    server: S3Server | None = None,
) -> None:
    chance = random.Random(f"{engine}{kills}")
    place = str(folder) if server is None else f"s3://{server.new_bucket()}/lake"
    sound = {} if server is None else server.storage_options
    job = {"url": url, "rate": rate, "storage_options": proxy.storage_options if proxy else {}}
    with connect(url, sound) as lake:
        tables = create_tables(lake, place, TABLES)
    with ExitStack() as stack:
        watch: Watch
        if proxy is not None:
            watch = proxy
        else:
            for table in tables:
                log_of(table).mkdir(parents=True)
            watch = stack.enter_context(LogWatch(map(log_of, tables)))
        people = stack.enter_context(Crew(fork_server, folder, job, engine))
        if engine == "duckdb":
            kill_alone(people, watch, chance, kills)
        with connect(url, sound) as lake:
            if engine != "duckdb":
                kill_beside(people, watch, lake, chance, kills)
            with running(lake):
                wait_until_published(lake, seconds=CONVERGED)
            assert watch.violations == []
            found = [lake.table(table.name) for table in tables]
            check_tables(lake, found)
            versions = sum(table.version + 1 for table in found)
    assert watch.violations == []
    # How many commits there are is a matter of the machine; some are, beside those that create.
    assert watch.commits == versions > TABLES


def connect(url: str, options: dict[str, str]) -> Lake:
    lake = deltalakedb.connect(url, storage_options=options, mirror="worker")
    return impatient(lake, "worker")


def kill_alone(people: Crew, watch: Watch, chance: random.Random, kills: int) -> None:
    """Nobody else can open the catalog: those that are killed are all there is."""
    for _ in range(kills):
        people.kill(chance, watch)
        people.start()
    people.finish()


def kill_beside(people: Crew, watch: Watch, lake: Lake, chance: random.Random, kills: int) -> None:
    """Commit all the time, and see who dies with a table in his hands."""
    orphans = 0
    with writing(Writer(lake.tables(), "writer")):
        for _ in range(kills):
            dead = people.kill(chance, watch)
            orphans += sum(status.lease_owner in dead for status in lake.mirror.status())
            people.start()
    wait_until_published(lake, seconds=CONVERGED, alive=people.check)
    people.finish()
    assert orphans > 0


class writing:  # noqa: N801 - used like a function
    """A writer that commits in a thread while the block lasts."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        assert self._failures == []

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.01):
                self._writer.commit()
        except BaseException as error:
            self._failures.append(error)
            raise
