"""A small connection pool, the same for every engine, and turns: exclusive use of anything else.

The pool has at most `size` connections, prefers the oldest, lets callers wait up to a time limit
when all are in use, and starts empty after a fork (a connection that two processes share corrupts
both). It has no threads, so opening a catalog for one query costs one connection, and the error of
a failed connection reaches its caller.

KeyboardInterrupt can arrive between any two instructions, in `finally` and `__exit__` too, so the
pool does not rely on its callers to return connections (nor do turns, which end with the object
that holds them):

- A connection belongs to an owner, an object of the caller, by one assignment. It has its owner
  before the caller receives it, and none after one more assignment.
- The pool holds owners weakly. When an owner is collected that did not return its connection, the
  connection is closed, which ends its transaction, and its place is free.
- All locks are locks of C: `with` cannot be interrupted between taking and holding one, as it can
  with locks in Python (`threading.Condition`).
- A waiting caller checks again after a second at the latest: the notification of a free place can
  be lost with an interrupted thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from deltalakedb.errors import CatalogBusyError, CatalogError
from deltalakedb.forking import keep_for_ever, renew_after_fork

if sys.platform != "win32":
    import fcntl

C = TypeVar("C")

_LOOK_AGAIN_SECONDS: Final = 1.0
# How long a fork waits for connections that other threads use, and how often it looks.
_FORK_SECONDS: Final = 5.0
_FORK_LOOK_SECONDS: Final = 0.0005


class _Place(Generic[C]):
    """A connection, open or being opened; idle while it has no owner."""

    __slots__ = ("connection", "owner", "thread")

    def __init__(self, owner: weakref.ref[object], thread: int) -> None:
        self.connection: C | None = None
        self.owner: weakref.ref[object] | None = owner
        self.thread = thread


class Pool(Generic[C]):
    """Connections opened by `connect`, discarded by `close`, and reused only while `alive`.

    `close` also ends what a connection was in the middle of, and may be called twice. With
    `left_open` no connection stays open while the process forks; it is called in a child where one
    did, because the thread that forked had it, or another one did not give it back in time.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        *,
        close: Callable[[C], None],
        alive: Callable[[C], bool],
        size: int,
        timeout: float,
        left_open: Callable[[], None] | None = None,
    ) -> None:
        self._connect = connect
        self._close = close
        self._alive = alive
        self._size = size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._places: list[_Place[C]] = []
        self._waiting: deque[threading.Lock] = deque()
        self._closed = False
        self._left_open = left_open
        self._forking: int | None = None
        """The thread that is about to fork, which others let go first."""
        self.forks = 0
        """The number of forks between the process that created the pool and this one."""
        _pools.add(self)

    def acquire(self, owner: object, *, timeout: float | None = None) -> C:
        """An idle or new connection; CatalogBusyError when none comes free in time.

        It is the owner's from then on, also if this is interrupted: `release` or `discard` it in
        every case. An owner can have one connection of a pool at a time.
        """
        claim = weakref.ref(owner, self._lost)
        place = self._claim(claim) or self._claim_later(
            claim, self._timeout if timeout is None else timeout
        )
        if place.connection is None:
            place.connection = self._connect()
        return place.connection

    def _claim_later(self, claim: weakref.ref[object], timeout: float) -> _Place[C]:
        """As `_claim`, after waiting for a place."""
        deadline = time.monotonic() + timeout
        while True:
            self._has_room()  # lost places are looked for there
            place = self._claim(claim)
            if place is not None:
                return place
            now = time.monotonic()
            if now >= deadline:
                raise CatalogBusyError(
                    f"All {self._size} connections of this catalog stayed in use for {timeout:g} s",
                    fix="Raise pool_size=… or timeout=… in the catalog URL, "
                    "or close what holds them",
                )
            self._wait(min(deadline - now, _LOOK_AGAIN_SECONDS))

    def _claim(self, claim: weakref.ref[object]) -> _Place[C] | None:
        """A place that belongs to the owner now; None when all are in use."""
        thread = threading.get_ident()
        with self._lock:
            if self._closed:
                raise CatalogError("The catalog is closed", fix="Call deltalakedb.connect() again")
            # The owner of a connection may need a second one to finish.
            if self._forking not in (None, thread) and not _is_busy(thread):
                return None
            for place in self._places:
                if place.owner is None:
                    place.thread = thread
                    place.owner = claim
                    return place
            if len(self._places) < self._size:
                place = _Place(claim, thread)
                self._places.append(place)
                return place
        return None

    def _wait(self, seconds: float) -> None:
        """Until a place is free, or the time is over."""
        bell = threading.Lock()
        bell.acquire()
        self._waiting.append(bell)
        # A place that came free before the bell was there has rung no bell.
        if not self._has_room():
            bell.acquire(timeout=seconds)
        with suppress(ValueError):
            self._waiting.remove(bell)

    def _has_room(self) -> bool:
        if self._forking is not None:
            return False
        places = list(self._places)
        for place in places:
            if place.owner is not None and place.owner() is None:
                self._drop(place)  # again: `_lost` itself was interrupted
        return len(self._places) < self._size or any(place.owner is None for place in places)

    def _wake(self) -> None:
        if self._waiting:
            with suppress(IndexError):  # another thread was faster
                self._waiting.popleft().release()

    @property
    def in_use(self) -> int:
        """How many connections have an owner."""
        return sum(place.owner is not None for place in list(self._places))

    def release(self, owner: object) -> None:
        """Take the connection of an owner back; one that is no longer alive is discarded."""
        place = self._place_of(owner)
        if place is None:
            return  # there is none, or it was taken before a fork, and so the other process's
        with self._lock:
            connection = place.connection
            is_back = not self._closed and connection is not None and self._alive(connection)
            if is_back:
                place.owner = None
        # From here on it may be another thread's.
        if is_back:
            self._wake()
        else:
            self._drop(place)

    def discard(self, owner: object) -> None:
        """Close the connection of an owner, whose state is unknown."""
        place = self._place_of(owner)
        if place is not None:
            self._drop(place)

    def _place_of(self, owner: object) -> _Place[C] | None:
        # A copy: one that is collected elsewhere leaves the list at any moment.
        for place in list(self._places):
            if place.owner is not None and place.owner() is owner:
                return place
        return None

    def _drop(self, place: _Place[C]) -> None:
        # It stays its owner's until it is closed: if this is interrupted, `_lost` does it again.
        if place.connection is not None:
            self._close(place.connection)
        with suppress(ValueError):
            self._places.remove(place)
        self._wake()

    def _lost(self, claim: weakref.ref[object]) -> None:
        # Called wherever an owner is collected, maybe by a thread that holds the lock: this
        # takes none.
        for place in list(self._places):
            if place.owner is claim:
                self._drop(place)

    def discard_idle(self) -> None:
        """Forget idle connections, e.g. after the server went away with all of them."""
        with self._lock:
            idle = [place for place in self._places if place.owner is None]
            for place in idle:
                self._places.remove(place)
        for place in idle:
            self._drop(place)

    def held_here(self) -> list[object]:
        """The owners in this thread that have a connection.

        After an interrupt, what it has left behind may still be reachable from its traceback.
        """
        thread = threading.get_ident()
        places = [place for place in list(self._places) if place.thread == thread]
        owners = [None if place.owner is None else place.owner() for place in places]
        return [owner for owner in owners if owner is not None]

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        with self._lock:
            self._closed = True
        for place in list(self._places):
            if place.owner is None or place.owner() is None:
                self._drop(place)
        while self._waiting:
            self._wake()

    def in_use_by(self, threads: Callable[[int], bool]) -> bool:
        """Whether one of these threads has a connection."""
        places = [place for place in list(self._places) if threads(place.thread)]
        return any(place.owner is not None and place.owner() is not None for place in places)

    def _before_fork(self, thread: int) -> None:
        with self._lock:
            self._forking = thread

    def _after_fork_in_parent(self) -> None:
        self._forking = None
        while self._waiting:
            self._wake()

    def _after_fork(self) -> None:
        # Not even closed: that would talk to the server on the other process's connection.
        keep_for_ever(self._places)
        if self._left_open is not None and self._places:
            self._left_open()
        self.forks += 1
        self._forking = None
        self._lock = threading.Lock()
        self._places = []
        self._waiting = deque()


class Hold(Generic[C]):
    """A connection of a pool during the block; closed after an interrupt, else returned."""

    __slots__ = ("__weakref__", "_pool")

    def __init__(self, pool: Pool[C]) -> None:
        self._pool = pool

    def __enter__(self) -> C:
        try:
            return self._pool.acquire(self)
        except BaseException:
            self._pool.discard(self)
            raise

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is None or issubclass(kind, (Exception, GeneratorExit)):
            self._pool.release(self)
        else:
            self._pool.discard(self)


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def _closed_at_fork() -> list[Pool[Any]]:
    return [pool for pool in list(_pools) if pool._left_open is not None]  # noqa: SLF001 - below too


def _is_busy(thread: int) -> bool:
    return any(pool.in_use_by(lambda other: other == thread) for pool in _closed_at_fork())


def _before_fork() -> None:
    """Wait, for seconds at most, until no other thread has a connection; then close the idle."""
    thread, deadline = threading.get_ident(), time.monotonic() + _FORK_SECONDS
    pools = _closed_at_fork()
    for pool in pools:
        pool._before_fork(thread)  # noqa: SLF001
    while any(pool.in_use_by(lambda other: other != thread) for pool in pools):
        if time.monotonic() > deadline:
            break
        time.sleep(_FORK_LOOK_SECONDS)
    for pool in pools:
        pool.discard_idle()


def _after_fork_in_parent() -> None:
    for pool in _closed_at_fork():
        pool._after_fork_in_parent()  # noqa: SLF001


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._after_fork()  # noqa: SLF001


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


# --- turns --------------------------------------------------------------------------------


class _Holder:
    """The owner of a turn; collecting it ends the turn, also after an interrupt."""

    __slots__ = ("__weakref__",)


class Turns:
    """Turns of threads of this process, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: weakref.WeakValueDictionary[str, _Holder] = weakref.WeakValueDictionary()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin without turns: they belong to threads of the parent."""
        self._lock = threading.Lock()
        self._holders = weakref.WeakValueDictionary()

    @contextmanager
    def take(self, name: str) -> Iterator[bool]:
        """Whether the turn is this thread's during the block."""
        holder = _Holder()
        with self._lock:
            is_ours = self._holders.setdefault(name, holder) is holder
        try:
            yield is_ours
        finally:
            del holder


TURNS: Final = Turns()


class Places:
    """A limited number of places, each used by one thread at a time."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin with all places free: those in use belong to threads of the parent."""
        self._lock = threading.Lock()
        self._holders = weakref.WeakSet()

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Whether this thread has a place during the block; it does not wait."""
        holder = _Holder()
        with self._lock:
            is_free = len(self._holders) < self._number
            if is_free:
                self._holders.add(holder)
        try:
            yield is_free
        finally:
            del holder


class _LockFile:
    """A file of which this process has locked bytes.

    POSIX locks belong to the process, and closing any descriptor of the file releases all of them:
    it is opened once, and closed with its last lock.
    """

    __slots__ = ("descriptor", "holders", "locked")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.locked: set[int] = set()
        self.holders: weakref.WeakValueDictionary[int, _Holder] = weakref.WeakValueDictionary()


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
        holder = _Holder()
        try:
            yield self._try(path, zlib.crc32(name.encode()), holder)
        finally:
            del holder
            with self._lock:
                self._release_unheld(path)

    def _try(self, path: str, byte: int, holder: _Holder) -> bool:
        if sys.platform == "win32":
            return True
        with self._lock:
            self._release_unheld(path)
            file = self._files.get(path)
            if file is None:
                try:
                    file = _LockFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
                except OSError:
                    return True  # no file may be made here
                self._files[path] = file
            elif byte in file.locked:
                return False
            # Held before it is locked: an interrupt in between leaves nothing locked.
            file.holders[byte] = holder
            file.locked.add(byte)
            try:
                fcntl.lockf(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except BlockingIOError:
                file.locked.discard(byte)
                return False
            except OSError:
                file.locked.discard(byte)  # this file system has no locks
            return True

    def _release_unheld(self, path: str) -> None:
        """Unlock the bytes whose holders are gone, and close the file with its last lock."""
        file = self._files.get(path)
        if file is None or sys.platform == "win32":
            return
        for byte in file.locked - set(file.holders):
            with suppress(OSError):
                fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, byte)
            file.locked.discard(byte)
        if not file.locked:
            del self._files[path]
            os.close(file.descriptor)


FILE_LOCKS: Final = FileLocks()
