"""The queue of the processes that write to a SQLite file.

SQLite has no queue: a writer that waits tries again and again, and sixteen of them spend most of
the time of two cores on that. Here a writer first locks a file beside the catalog, for which the
kernel wakes one writer after the other, and only the first in the queue tries to begin.

Guarantees:

- The queue decides nothing: the write lock of SQLite alone does. Writers that do not queue, and
  file systems without locks, are as safe as before.
- A place in the queue ends with its value, its transaction or its process.
- A forked child has none of the places of its parent.
- The file exists only where writers have met.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from deltalakedb.forking import renew_after_fork

if sys.platform != "win32":
    import fcntl

_IDLE_SECONDS: Final = 10.0


class Place:
    """A place in the queue; the first one from when `wait` returns True until `leave`."""

    __slots__ = ("_descriptor", "_forks", "_reached")

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._forks = _open_places.forks
        self._reached: threading.Lock | None = None

    def open(self, path: str, *, create: bool = False) -> bool:
        """Open the file of the queue; False where there is none, or can be none."""
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except OSError:
            return False
        _open_places.descriptors.add(self._descriptor)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for this place to be the first.

        False where it is not after so many seconds, and where files cannot be locked.
        """
        if self._descriptor is None or sys.platform == "win32":
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError:
            return False  # this file system has no locks
        else:
            return True
        reached = self._reached = threading.Lock()
        reached.acquire()
        try:
            _waiters.wait_for(self)
        except RuntimeError:
            return False  # no thread can be started: the interpreter ends
        return reached.acquire(timeout=seconds)

    def block(self) -> None:
        """Wait without a limit, in a thread of its own."""
        if self._descriptor is not None and self._reached is not None and sys.platform != "win32":
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._reached.release()

    def leave(self) -> None:
        """Give the place up; the next one is woken."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self._forks == _open_places.forks:
            _open_places.descriptors.discard(descriptor)
            with suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.leave()


class _OpenPlaces:
    """The descriptors of this process: a forked child would hold the locks of its parent."""

    def __init__(self) -> None:
        self.forks = 0
        self.descriptors: set[int] = set()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self.forks += 1
        for descriptor in self.descriptors:
            with suppress(OSError):
                os.close(descriptor)
        self.descriptors = set()


class _Waiters:
    """Threads that wait in the kernel, which knows no time limit for a lock."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[Place]] = deque()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._idle = deque()

    def wait_for(self, place: Place) -> None:
        """Let a thread wait for a place."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            name = "deltalakedb-sqlite-queue"
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put(place)

    def _serve(self, inbox: SimpleQueue[Place]) -> None:
        while True:
            try:
                place = inbox.get(timeout=_IDLE_SECONDS)
            except Empty:
                try:
                    self._idle.remove(inbox)
                except ValueError:
                    continue  # it has just been taken: a place comes
                return
            place.block()
            # Whoever gave up waiting has dropped it: then it is left here.
            del place
            self._idle.append(inbox)


_open_places: Final = _OpenPlaces()
_waiters: Final = _Waiters()
