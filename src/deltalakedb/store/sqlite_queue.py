"""The queue of the processes that wait for the write lock of a SQLite file.

SQLite has no queue: a writer that waits tries again and again, and many that do so take the
processor from the one that works. Here those that wait lock a file beside the catalog, for which
the kernel wakes one after the other, and only the first asks SQLite.

Guarantees:

- The queue decides nothing: the write lock of SQLite alone does. Without the file, on systems
  without locks and beside writers that do not queue, everything is as safe.
- A place ends with its block, with an interrupt, or with its process; no transaction has one.
- No writer has to wait for the one before, which may have been stopped: those that wait ask too,
  now and then.
- A forked child has none of the places of its parent.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Final

from deltalakedb.forking import renew_after_fork

if sys.platform != "win32":
    import fcntl

_IDLE_SECONDS: Final = 10.0
# Threads of a process that wait at once; behind a stopped process they wait for ever.
_MOST_THREADS: Final = 16


@contextmanager
def place_in_queue(path: str) -> Iterator[Place]:
    """Take the last place in the queue, and leave it with the block."""
    place = Place(path)
    try:
        yield place
    finally:
        place.leave()


class _Wait:
    """What a writer and the thread that waits for it share; only the thread opens the file."""

    __slots__ = ("is_first", "is_left", "is_over", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_first = False
        # Locks as events: an interrupt cannot divide their steps.
        self.is_over = threading.Lock()
        self.is_over.acquire()
        self.is_left = threading.Lock()
        self.is_left.acquire()

    def serve(self, descriptors: set[int]) -> None:
        """Wait for the front, and hold it until the writer leaves."""
        with suppress(OSError):  # no file may be made here, or it cannot be locked
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            descriptors.add(descriptor)
            try:
                self._hold(descriptor)
            finally:
                descriptors.discard(descriptor)
                os.close(descriptor)
        if not self.is_first:
            self.is_over.release()

    def _hold(self, descriptor: int) -> None:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.is_first = True
            self.is_over.release()
            self.is_left.acquire()
            # A child that was forked by other means than Python's may have the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


class Place:
    """A writer's place in the queue; it ends when it is left or collected."""

    __slots__ = ("_wait", "is_waiting")

    def __init__(self, path: str) -> None:
        self._wait = _Wait(path)
        self.is_waiting = _waiters.take(self._wait)
        """Whether it may still come to the front; also false where there can be no queue."""

    @property
    def is_first(self) -> bool:
        """Whether it has come to the front."""
        return self._wait.is_first

    def wait(self, seconds: float) -> None:
        """Wait for the front, for so many seconds at most; the place is not lost after them."""
        if self.is_waiting and self._wait.is_over.acquire(timeout=seconds):
            self.is_waiting = False

    def leave(self) -> None:
        """Give up the place, or the wait for it."""
        with suppress(RuntimeError, AttributeError):  # it has been left before, or never begun
            self._wait.is_left.release()

    def __del__(self) -> None:
        self.leave()


class _Waiters:
    """Threads that wait in the kernel, where a wait for a lock has no limit."""

    def __init__(self) -> None:
        self._all: set[SimpleQueue[_Wait]] = set()
        self._idle: deque[SimpleQueue[_Wait]] = deque()
        self._descriptors: set[int] = set()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Close the copies of the parent's descriptors, which would hold its places."""
        for descriptor in self._descriptors:
            with suppress(OSError):
                os.close(descriptor)
        self._all, self._idle, self._descriptors = set(), deque(), set()

    def take(self, wait: _Wait) -> bool:
        """Let a thread wait; False where there can be no queue."""
        if sys.platform == "win32":
            return False
        try:
            inbox = self._idle.pop()
        except IndexError:
            if len(self._all) >= _MOST_THREADS:
                return False
            inbox = SimpleQueue()
            self._all.add(inbox)
            name = "deltalakedb-sqlite-queue"
            thread = threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends
                self._all.discard(inbox)
                return False
        inbox.put(wait)
        return True

    def _serve(self, inbox: SimpleQueue[_Wait]) -> None:
        while (wait := self._next(inbox)) is not None:
            wait.serve(self._descriptors)
            del wait
            self._idle.append(inbox)
        self._all.discard(inbox)

    def _next(self, inbox: SimpleQueue[_Wait]) -> _Wait | None:
        """The next wait; None ends the thread."""
        with suppress(Empty):
            return inbox.get(timeout=_IDLE_SECONDS)
        try:
            self._idle.remove(inbox)
        except ValueError:
            # It was taken just now; whoever took it may have been interrupted before `put`.
            with suppress(Empty):
                return inbox.get(timeout=_IDLE_SECONDS)
        return None


_waiters: Final = _Waiters()
