"""A small connection pool, the same for every engine.

It keeps at most `size` connections, hands out the most recently used one, makes callers wait up
to a time limit when all are in use, and starts anew after a fork (a connection that two processes
share corrupts both). It has no threads of its own, so opening a catalog for one query costs one
connection, and the error of a failed connection reaches the caller who needed it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from deltalakedb.errors import CatalogBusyError, CatalogError

C = TypeVar("C")


class Pool(Generic[C]):
    """Connections made by `connect`, discarded by `close`, and kept only while `alive`."""

    def __init__(
        self,
        connect: Callable[[], C],
        *,
        close: Callable[[C], None],
        alive: Callable[[C], bool],
        size: int,
        timeout: float,
    ) -> None:
        self._connect = connect
        self._close = close
        self._alive = alive
        self._size = size
        self._timeout = timeout
        self._condition = threading.Condition()
        self._idle: list[C] = []
        self._used: dict[int, C] = {}
        self._opening = 0
        self._waiting = 0
        self._closed = False
        _pools.add(self)

    def acquire(self) -> C:
        """An idle or new connection; CatalogBusyError when none comes free in time."""
        deadline: float | None = None
        with self._condition:
            while True:
                if self._closed:
                    raise CatalogError(
                        "The catalog is closed", fix="Call deltalakedb.connect() again"
                    )
                if self._idle:
                    connection = self._idle.pop()
                    self._used[id(connection)] = connection
                    return connection
                if len(self._used) + self._opening < self._size:
                    self._opening += 1
                    break
                deadline = deadline or time.monotonic() + self._timeout
                self._waiting += 1
                try:
                    in_time = self._condition.wait(deadline - time.monotonic())
                finally:
                    self._waiting -= 1
                if not in_time:
                    raise CatalogBusyError(
                        f"All {self._size} connections of this catalog stayed in use "
                        f"for {self._timeout:g} s",
                        fix="Raise pool_size=… or timeout=… in the catalog URL, "
                        "or close what holds them",
                    )
        try:
            connection = self._connect()
        except BaseException:
            with self._condition:
                self._opening -= 1
                self._condition.notify()
            raise
        with self._condition:
            self._opening -= 1
            self._used[id(connection)] = connection
        return connection

    def release(self, connection: C) -> None:
        """Give a connection back; one that is no longer alive is discarded."""
        with self._condition:
            if self._used.pop(id(connection), None) is None:
                return  # taken before a fork, and so the other process's
            if self._waiting:
                self._condition.notify()
            if not self._closed and self._alive(connection):
                self._idle.append(connection)
                return
        self._close(connection)

    def discard_idle(self) -> None:
        """Forget idle connections, e.g. after the server went away with all of them."""
        with self._condition:
            idle, self._idle = self._idle, []
            self._condition.notify_all()
        for connection in idle:
            self._close(connection)

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self.discard_idle()

    def _after_fork(self) -> None:
        # Not even closed: that would talk to the server on the other process's connection.
        _inherited.append((self._idle, self._used))
        self._condition = threading.Condition()
        self._idle = []
        self._used = {}
        self._opening = 0
        self._waiting = 0


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._after_fork()  # noqa: SLF001 - the same module


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
