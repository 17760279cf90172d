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
from collections.abc import Callable
from typing import Generic, TypeVar

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
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._condition = threading.Condition()
        self._idle: list[C] = []
        self._open = 0
        self._closed = False

    def acquire(self) -> C:
        """An idle or new connection; CatalogBusyError when none comes free in time."""
        if self._pid != os.getpid():
            self._reset()
        deadline = time.monotonic() + self._timeout
        with self._condition:
            while True:
                if self._closed:
                    raise CatalogError(
                        "The catalog is closed", fix="Call deltalakedb.connect() again"
                    )
                if self._idle:
                    return self._idle.pop()
                if self._open < self._size:
                    self._open += 1
                    break
                if not self._condition.wait(deadline - time.monotonic()):
                    raise CatalogBusyError(
                        f"All {self._size} connections of this catalog stayed in use "
                        f"for {self._timeout:g} s",
                        fix="Raise pool_size=… or timeout=… in the catalog URL, "
                        "or close what holds them",
                    )
        try:
            return self._connect()
        except BaseException:
            with self._condition:
                self._open -= 1
                self._condition.notify()
            raise

    def release(self, connection: C) -> None:
        """Give a connection back; one that is no longer alive is discarded."""
        if self._pid != os.getpid():
            return
        with self._condition:
            if not self._closed and self._alive(connection):
                self._idle.append(connection)
                self._condition.notify()
                return
            self._open -= 1
            self._condition.notify()
        self._close(connection)

    def discard_idle(self) -> None:
        """Forget idle connections, e.g. after the server went away with all of them."""
        with self._condition:
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._condition.notify_all()
        for connection in idle:
            self._close(connection)

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        if self._pid != os.getpid():
            return
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self.discard_idle()
