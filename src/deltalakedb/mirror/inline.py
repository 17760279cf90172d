"""Publishing in the process that commits: right after each commit, without a worker.

Guarantees:

- An error here never fails the commit, which has happened: it is recorded in the queue, counted,
  and retried.
- An unhealthy store, or a long backlog, delays a commit by seconds at most. After a failure,
  commits are not delayed at all until the next try is due.
- Upkeep and retries run in a background thread, which ends when it has no job. `close()` waits for
  the jobs that have begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.forking import renew_after_fork, without_forks
from deltalakedb.mirror.publish import Outcome, Published, Publisher, RetrySchedule, Storages
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.telemetry import warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.store import Store, TableRecord

# How long a commit may publish an older backlog.
_PATIENCE_SECONDS: Final = 5.0


def _import_upkeep() -> None:
    """Import the modules of the thread: a fork during an import would break the child."""
    import deltalakedb.mirror.checkpoint
    import deltalakedb.mirror.cleanup  # noqa: F401


class InlineMirror:
    """Publishes what this process commits."""

    def __init__(self, store: Store, *, schedule: RetrySchedule | None = None) -> None:
        self._store = store
        brief = Storages(store.storage_options, patient=False)
        self._publisher = Publisher(store, brief, schedule=schedule)
        self._upkeep = Upkeep(store, Storages(store.storage_options))
        self._background = Background("deltalakedb-mirror", prepare=_import_upkeep)

    def after_commit(self, table: TableRecord) -> None:
        """Publish the backlog of a table for some seconds at most; never raises."""
        end = time.monotonic() + _PATIENCE_SECONDS
        self._publish(table, lambda: time.monotonic() < end)

    def _publish(self, table: TableRecord, go_on: Callable[[], bool]) -> None:
        try:
            published = self._publisher.publish(table, go_on=go_on)
        except Exception as error:  # noqa: BLE001 - an error would look like a failed commit
            self._failed(table, "mirror_table_failed", error)
        else:
            self._follow_up(table, published)

    def drain(self) -> None:
        """Wait for the checkpoints and checksums of what was published."""
        self._background.drain()

    def close(self) -> None:
        """Wait for the jobs that are due; retries are left to other processes."""
        self._background.close()

    def _follow_up(self, table: TableRecord, published: Published) -> None:
        version = published.last_version
        if version is not None and published.outcome is not Outcome.DRIFTED:
            self._background.put(
                Job(("upkeep", table.table_id), lambda: self._run_upkeep(table, version))
            )
        if published.outcome in (Outcome.FAILED, Outcome.WAITING, Outcome.INTERRUPTED):
            wait_ms = (published.next_attempt_at or 0) - self._store.clock.now_ms()
            due = time.monotonic() + max(0.001, wait_ms / 1000)
            self._background.put(Job(("publish", table.table_id), lambda: self._retry(table), due))

    def _retry(self, table: TableRecord) -> None:
        self._publish(table, self._background.is_open)

    def _run_upkeep(self, table: TableRecord, version: int) -> None:
        try:
            self._upkeep.run(table, version)
        except Exception as error:  # noqa: BLE001 - the thread serves other tables too
            self._failed(table, "mirror_upkeep_failed", error)

    def _failed(self, table: TableRecord, what: str, error: Exception) -> None:
        failure = str(error) if isinstance(error, DeltaLakeDbError) else repr(error)
        self._store.metrics.count("mirror_failures_total")
        warning(what, lambda: {"table": table.name, "table_id": table.table_id, "error": failure})


# --- the background thread ----------------------------------------------------------------


# How long the thread waits for a job before it ends, and the interval of its checks.
_IDLE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """Work to do, not before `due` (of `time.monotonic`)."""

    key: Hashable
    work: Callable[[], None]
    due: float = 0.0


class Background:
    """Runs jobs one after the other, in the order in which they are due. Jobs do not raise.

    - A job replaces one with the same key that has not begun.
    - The thread keeps the process alive until the jobs that are due are done. When the interpreter
      no longer waits for threads, a job that is due runs in the calling thread.
    - The thread calls `prepare` first, while forks are blocked.
    """

    def __init__(self, name: str, *, prepare: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._prepare = prepare
        # Held by itself: an interrupt can come between the two halves of entering a condition.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._drained: list[threading.Lock] = []
        self._jobs: dict[Hashable, Job] = {}
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin without jobs: those that wait are done by the parent, which has the thread."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._drained = []
        self._jobs = {}
        self._thread = None
        self._busy = False

    def put(self, job: Job) -> None:
        """Have a job done; after `close()` only what is due at once."""
        with self._lock:
            if self._closed and job.due > 0:
                return
            if self._is_running() or self._start():
                self._jobs[job.key] = job
                self._changed.notify_all()
                return
        if job.due == 0:
            job.work()

    def is_open(self) -> bool:
        """Whether nobody waits for the end."""
        return not self._closed and threading.main_thread().is_alive()

    def drain(self) -> None:
        """Wait until every job that is due at once is done."""
        while True:
            with self._lock:
                if not self._busy and not any(job.due == 0 for job in self._jobs.values()):
                    return
                bell = threading.Lock()
                bell.acquire()
                self._drained.append(bell)
            bell.acquire(timeout=_IDLE_SECONDS)

    def close(self) -> None:
        """Do what is due, drop the rest, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> bool:
        """Start the thread; False where Python would end without waiting for it."""
        if not threading.main_thread().is_alive():
            return False
        self._thread = threading.Thread(target=self._run, name=self._name)
        self._thread.start()
        return True

    def _run(self) -> None:
        with without_forks():
            self._prepare()
        idle_since = time.monotonic()
        while True:
            with self._lock:
                job = self._next()
                if job is None:
                    if self._is_over(idle_since):
                        self._thread = None
                        return
                    self._changed.wait(_IDLE_SECONDS)
                    continue
                self._busy = True
            try:
                job.work()
            finally:
                with self._lock:
                    self._busy = False
                    while self._drained:
                        self._drained.pop().release()
            idle_since = time.monotonic()

    def _next(self) -> Job | None:
        """The job that is due, taken from the list."""
        if not self._jobs:
            return None
        key, job = min(self._jobs.items(), key=lambda item: item[1].due)
        if job.due > time.monotonic():
            return None
        del self._jobs[key]
        return job

    def _is_over(self, idle_since: float) -> bool:
        if self._closed or not threading.main_thread().is_alive():
            return True
        return not self._jobs and time.monotonic() - idle_since >= _IDLE_SECONDS
