"""Jobs of a child process that the fork server starts."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Imported before any fork, so that no child pays for it.
import pyarrow as pa  # noqa: F401

import deltalakedb.store.duckdb
import deltalakedb.store.postgres
import deltalakedb.store.sqlite  # noqa: F401
from concurrency.dying import commit_and_die
from concurrency.journal import Journal
from concurrency.shifts import Person
from concurrency.writer import Stop, read, write
from deltalakedb.lake import Lake
from deltalakedb.transaction.retry import RetryPolicy

from support.fork_server import Job

_LONGEST = 3000.0
PATIENT = RetryPolicy(max_attempts=1_000_000, max_seconds=600, max_delay=0.1)
"""Rides out a server that is killed and restarted again and again."""


def run(job: Job) -> None:
    """Do a job to its end."""
    _JOBS[job["run"]](job)


def _connect(job: Job) -> Lake:
    return Lake.connect(job["url"], retry=PATIENT if job.get("outages") else None, mirror="worker")


def _stop(job: Job) -> Stop:
    file = Path(job["stop"])
    deadline = time.monotonic() + _LONGEST  # whatever happens to the test, no process stays
    return lambda: file.exists() or time.monotonic() > deadline


def _work(job: Job, lake: Lake) -> None:
    journal, outages = Path(job["journal"]), bool(job.get("outages"))
    if job["run"] in ("shifts", "watch"):
        person = Person(lake, Journal(journal), journal.stem)
        (person.watch if job["run"] == "watch" else person.write)(_stop(job))
    elif job["run"] == "read":
        read(lake, journal, outages=outages, stop=_stop(job))
    else:
        write(lake, journal, blind=job["blind"], outages=outages, stop=_stop(job))


def _one(job: Job) -> None:
    with _connect(job) as lake:
        _work(job, lake)


def _threads(job: Job) -> None:
    """Many workers on one catalog in one process."""
    failures: list[BaseException] = []

    def work(one: Job) -> None:
        try:
            _work(one, lake)
        except BaseException as error:
            failures.append(error)
            raise

    with _connect(job) as lake:
        threads = [threading.Thread(target=work, args=[one]) for one in job["jobs"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


_JOBS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "write": _one,
    "read": _one,
    "shifts": _one,
    "watch": _one,
    "threads": _threads,
    "die": commit_and_die,
}
