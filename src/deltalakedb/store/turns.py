"""Turns: of all processes and threads that could do the same work, one does it at a time.

A turn only saves work: all that is done in one is safe to do twice. It ends with its block, or with
its process, however that ends.

- Threads of one process exclude each other here, on every engine.
- Processes exclude each other by an advisory lock of Postgres, or by a lock on a file beside the
  catalog of SQLite. A DuckDB catalog has one process.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from deltalakedb.forking import renew_after_fork

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Session

Purpose = Literal["publish", "upkeep"]


class Turn(NamedTuple):
    """A turn that was taken."""

    session: Session | None = None
    """The open transaction that holds it; None where the turn is no transaction."""


class Turns:
    """The turns that threads of this process have, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin without turns: they belong to threads of the parent."""
        self._lock = threading.Lock()
        self._taken = set()

    @contextmanager
    def take(self, name: str) -> Iterator[bool]:
        """Whether the turn is this thread's during the block."""
        with self._lock:
            is_ours = name not in self._taken
            if is_ours:
                self._taken.add(name)
        try:
            yield is_ours
        finally:
            if is_ours:
                with self._lock:
                    self._taken.discard(name)


TURNS: Final = Turns()


class Places:
    """So many of something can be in use at once."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = threading.Semaphore(number)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin with all of them: threads of the parent have the others."""
        self._free = threading.Semaphore(self._number)

    def take(self) -> bool:
        """Whether there was one; it does not wait."""
        return self._free.acquire(blocking=False)

    def give_back(self) -> None:
        """Let another thread have it."""
        self._free.release()


class _LockFile:
    """A file of which this process has locked some bytes.

    POSIX locks belong to the process, and closing any descriptor of the file releases all of them:
    it is opened once, and closed with its last lock.
    """

    __slots__ = ("descriptor", "held")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.held: set[int] = set()


class FileLocks:
    """Locks of this process on bytes of files, by path and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _LockFile] = {}
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin without locks: a child does not inherit those of its parent."""
        for file in self._files.values():
            with suppress(OSError):
                os.close(file.descriptor)
        self._lock = threading.Lock()
        self._files = {}

    @contextmanager
    def take(self, path: str, name: str) -> Iterator[bool]:
        """Whether the lock is this process's during the block; True where files have no locks."""
        byte = zlib.crc32(name.encode())
        is_ours, is_locked = self._try(path, byte)
        try:
            yield is_ours
        finally:
            if is_locked:
                self._release(path, byte)

    def _try(self, path: str, byte: int) -> tuple[bool, bool]:
        if sys.platform == "win32":
            return True, False
        with self._lock:
            file = self._files.get(path)
            if file is not None and byte in file.held:
                return False, False
            if file is None:
                try:
                    file = _LockFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
                except OSError:
                    return True, False  # no file may be made here
                self._files[path] = file
            try:
                fcntl.lockf(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except BlockingIOError:
                self._close_unused(path, file)
                return False, False
            except OSError:
                self._close_unused(path, file)
                return True, False  # this file system has no locks
            file.held.add(byte)
            return True, True

    def _release(self, path: str, byte: int) -> None:
        if sys.platform == "win32":
            return
        with self._lock:
            file = self._files.get(path)
            if file is None or byte not in file.held:
                return  # taken before a fork
            file.held.discard(byte)
            with suppress(OSError):
                fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, byte)
            self._close_unused(path, file)

    def _close_unused(self, path: str, file: _LockFile) -> None:
        if not file.held:
            del self._files[path]
            os.close(file.descriptor)


FILE_LOCKS: Final = FileLocks()
