"""Jobs of a child process that the fork server starts."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

# Imported before any fork, so that no child pays for it.
import pyarrow.compute
import pyarrow.csv  # noqa: F401
import pyarrow.parquet as pq  # noqa: F401

import deltalakedb.mirror.checkpoint
import deltalakedb.mirror.cleanup
import deltalakedb.store.duckdb
import deltalakedb.store.postgres
import deltalakedb.store.sqlite  # noqa: F401
from deltalakedb.clock import ManualClock
from deltalakedb.importing import import_table, parsing
from deltalakedb.lake import Lake
from deltalakedb.mirror.worker import Worker
from faults.workload import IMPATIENT, Writer, impatient

from support.faulty_files import FaultyFiles
from support.fork_server import Job
from support.kill_points import KillPoints
from support.lake import add
from support.proposals import append, new_id, propose_until_won

LEASE_SECONDS = 1.0
_LONGEST = 1800.0

# What a worker tells of its failures is not what went wrong here.
logging.getLogger("deltalakedb").setLevel(logging.CRITICAL)


def run(job: Job) -> None:
    """Do a job to its end."""
    _JOBS[job["run"]](job)


def _connect(job: Job, *, mirror: str = "worker") -> Lake:
    lake = Lake.connect(job["url"], mirror=mirror, storage_options=job.get("storage_options"))
    return impatient(lake, mirror)


def _work(job: Job) -> None:
    """Workers until the stop file is there; with a writer beside them where nobody else can be."""
    stop = Path(job["stop"])
    deadline = time.monotonic() + _LONGEST  # whatever happens to the test, no process stays
    with ExitStack() as stack:
        if job.get("rate"):
            faults = FaultyFiles(rate=job["rate"], seed=job["seed"])
            stack.enter_context(faults.installed())
        lake = stack.enter_context(_connect(job))
        workers = [
            Worker(lake.store, owner=owner, lease_seconds=LEASE_SECONDS, schedule=IMPATIENT)
            for owner in job["owners"]
        ]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        Path(job["begun"]).touch()
        writer = Writer(lake.tables(), job["writer"]) if job.get("writer") else None
        while not stop.exists() and time.monotonic() < deadline:
            if writer is not None:
                writer.commit()
            time.sleep(0.01)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


def _die(job: Job) -> None:
    """Publish, and die at point `at` of it; the clock says that the last worker's lease is over."""
    points = KillPoints(job["at"], Path(job["labels"]))
    clock = ManualClock(job["now"])
    inline = job["kind"] == "inline"
    with Lake.connect(
        job["url"],
        mirror="inline" if inline else "worker",
        clock=clock,
        storage_options=job.get("storage_options"),
    ) as lake:
        points.watch_statements(lake.store.dialect.engine)
        points.watch_storage()
        if inline:
            writer = Writer([lake.table("t00")], f"life{job['at']}")
            points.arm()
            writer.commit()
            lake.mirror.drain()
        else:
            worker = Worker(lake.store, step=lambda name: points.reach(f"step {name}"))
            points.arm()
            worker.run_once()
        points.disarm()


def _import(job: Job) -> None:
    """Import a log in many stages, and die at point `at` of it."""
    points = KillPoints(job["at"], Path(job["labels"]))
    in_small_stages()
    with Lake.connect(job["url"], mirror="worker", clock=ManualClock()) as lake:
        points.watch_statements(lake.store.dialect.engine, writes_only=True)
        points.arm()
        lake.import_table(job["log"], name="t", stage_from=1)
        points.disarm()


def in_small_stages() -> None:
    """Two commits are a stage from now on."""
    parsing._BATCH_COMMITS = 1  # type: ignore[misc]
    import_table._STAGE_BATCHES = 2  # type: ignore[misc]


def _propose(job: Job) -> None:
    """Propose a version as another writer, and die at point `at` of it."""
    points = KillPoints(job["at"], Path(job["labels"]))
    with Lake.connect(job["url"], mirror="worker", clock=ManualClock()) as lake:
        points.watch_statements(lake.store.dialect.engine)
        points.watch_storage()
        points.arm()
        lake.ratify(job["location"], job["version"], job["data"].encode())
        points.disarm()


def _contend(job: Job) -> None:
    """Propose, or commit as ours, until the stop file is there; each result goes to a journal."""
    stop, name = Path(job["stop"]), job["name"]
    deadline = time.monotonic() + _LONGEST
    with (
        Lake.connect(job["url"], mirror="inline" if job["own"] else "worker") as lake,
        Path(job["journal"]).open("a", buffering=1) as journal,
    ):
        number = 0
        table = lake.table(job["location"])
        while not stop.exists() and time.monotonic() < deadline:
            number += 1
            path = f"{name}-{number}"
            journal.write(f"begin {path}\n")
            if job["own"]:
                version: int = table.commit([add(path)])
            else:
                data = append(path, txn_id=new_id())
                version = propose_until_won(lake, job["location"], data, start=number)
            journal.write(f"done {path} {int(version)}\n")


_JOBS: Mapping[str, Callable[[Job], None]] = {
    "work": _work,
    "die": _die,
    "import": _import,
    "propose": _propose,
    "contend": _contend,
}
