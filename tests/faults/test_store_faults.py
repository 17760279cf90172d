"""An object store of which every tenth request goes wrong: the mirror converges all the same.

While it does, every commit file appears after the one before it, once, and is never touched again.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.mirror.worker import Worker
from deltalakedb.store.url import Engine
from faults.proof import check_tables, check_uploads, wait_until_published
from faults.watch import LogWatch
from faults.workload import IMPATIENT, Writer, create_tables, impatient

from support import faulty_files, faulty_s3
from support.faulty_files import FaultyFiles
from support.faulty_s3 import FaultyS3
from support.mirror_logs import log_of
from support.s3 import S3Server

TABLES = 8
WORKERS = 2
LEASE_SECONDS = 5.0
CONVERGED = 90.0
"""Seconds after which a mirror that has not caught up is stuck, on whatever machine."""
PLACES = ("local", "local with named files", "s3")
Faults = FaultyS3 | FaultyFiles
Watch = LogWatch | FaultyS3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", PLACES)
def test_the_mirror_converges(
    request: pytest.FixtureRequest, catalog_url: str, tmp_path: Path, place: str, engine: Engine
) -> None:
    if place != "local" and engine != "sqlite":
        pytest.skip("how objects are written does not depend on the engine; the long form has it")
    withstand(request, catalog_url, tmp_path, place, seconds=1, fewest=40)


@pytest.mark.soak
@pytest.mark.parametrize("place", PLACES)
def test_the_mirror_converges_after_minutes(
    request: pytest.FixtureRequest, catalog_url: str, tmp_path: Path, place: str
) -> None:
    withstand(request, catalog_url, tmp_path, place, seconds=60, fewest=400)


def withstand(
    request: pytest.FixtureRequest,
    url: str,
    folder: Path,
    place: str,
    *,
    seconds: float,
    fewest: int,
) -> None:
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        bucket = server.new_bucket()
        with FaultyS3(server, seed=len(url)) as proxy:
            options = (server.storage_options, proxy.storage_options)
            work(url, f"s3://{bucket}/lake", proxy, options, seconds=seconds, fewest=fewest)
            tell(place, proxy, faulty_s3.KINDS)
        check_uploads(server, bucket)
        return
    faults = FaultyFiles(named=place != "local", seed=len(url))
    work(url, str(folder), faults, ({}, {}), seconds=seconds, fewest=fewest)
    tell(place, faults, faulty_files.KINDS)


def tell(place: str, faults: Faults, kinds: tuple[str, ...]) -> None:
    """Say what went wrong (`pytest -s` shows it), and that it was nearly everything that can."""
    sys.stdout.write(f"\n{place}: {faults.requests} requests, {dict(faults.faults)}\n")
    assert faults.faults.total() > 0.05 * faults.requests
    assert len(faults.faults) >= len(kinds) - 2, set(kinds) - set(faults.faults)


def work(
    url: str,
    place: str,
    faults: Faults,
    options: tuple[dict[str, str], dict[str, str]],
    *,
    seconds: float,
    fewest: int,
) -> None:
    """Commit for some seconds, half of it published right away, and let the mirror catch up."""
    sound, faulty = options
    with ExitStack() as opened:
        lake = opened.enter_context(connect(url, sound))
        tables = create_tables(lake, place, TABLES)
        with ExitStack() as failing:
            watch: Watch
            if isinstance(faults, FaultyS3):
                watch = faults
            else:
                for table in tables:
                    log_of(table).mkdir(parents=True)
                watch = failing.enter_context(LogWatch(map(log_of, tables)))
                failing.enter_context(faults.installed())
            busy = failing.enter_context(connect(url, faulty, mirror="inline"))
            queued = failing.enter_context(connect(url, faulty))
            failing.enter_context(running(queued))
            halves = tables[: TABLES // 2], tables[TABLES // 2 :]
            writers = [
                Writer([busy.table(table.name) for table in halves[0]], "inline"),
                Writer([queued.table(table.name) for table in halves[1]], "queued"),
            ]
            write(writers, seconds, lambda: faults.faults.total() >= fewest)
            wait_until_published(lake, seconds=CONVERGED)
            assert watch.violations == []
        assert watch.violations == []
        check_tables(lake, [lake.table(table.name) for table in tables])
        assert watch.commits == TABLES + sum(writer.commits for writer in writers)


def connect(url: str, options: dict[str, str], *, mirror: str = "worker") -> Lake:
    lake = deltalakedb.connect(url, storage_options=options, mirror=mirror)
    return impatient(lake, mirror)


@contextmanager
def running(lake: Lake) -> Iterator[None]:
    """Workers in threads while the block lasts."""
    workers = [
        Worker(lake.store, lease_seconds=LEASE_SECONDS, schedule=IMPATIENT) for _ in range(WORKERS)
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(CONVERGED)
            assert not thread.is_alive()


def write(writers: list[Writer], seconds: float, enough: Callable[[], bool]) -> None:
    """Let every writer commit in a thread of its own; nothing that fails below may fail them."""
    deadline = time.monotonic() + seconds
    failures: list[BaseException] = []

    def commit(writer: Writer) -> None:
        try:
            while time.monotonic() < deadline or not enough():
                writer.commit()
                time.sleep(0.01)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=commit, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
