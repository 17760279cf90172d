"""A thread that is there only while there is something to do.

Jobs have a key: a later one with the same key takes the place of one that has not begun. The thread
keeps the process alive until the jobs that are due are done, but waits for no later ones then. When
the interpreter is past waiting for threads, a job that is due runs in the calling thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from deltalakedb.forking import renew_after_fork, without_forks

# How long the thread stays without a job, for the next one to find it; and how often it looks up.
_IDLE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do, not before `due` (of `time.monotonic`)."""

    key: Hashable
    work: Callable[[], None]
    due: float = 0.0


class Background:
    """Does jobs one after the other, in the order in which they are due. Jobs do not raise.

    The thread calls `prepare` first, while nobody can fork.
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
