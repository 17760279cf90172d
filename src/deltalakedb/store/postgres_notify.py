"""Word of new work between processes, through a channel of Postgres.

A lost word costs a worker the rest of its pause and nothing else, so nothing here raises when the
server is away: whoever waits then just waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.store.dialect import Listener

if TYPE_CHECKING:
    from threading import Event

CHANNEL: Final = "deltalakedb_mirror"
# How long a wait may overlook that it shall stop.
_SLICE_SECONDS: Final = 0.5

Connect = Callable[[], "psycopg.Connection[Any]"]


class Notifier:
    """Sends word on a connection of its own, outside of any commit.

    Inside a commit it would make all commits of the database take turns until they are on the disk.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def send(self) -> None:
        """Tell whoever listens."""
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                    # Word that is lost with the server is no loss.
                    self._connection.execute("SET synchronous_commit = off")
                self._connection.execute(f"NOTIFY {CHANNEL}")
            except (psycopg.Error, DeltaLakeDbError):
                self._drop()

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class PostgresListener(Listener):
    """Waits for word on a connection of its own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: psycopg.Connection[Any] | None = None

    def wait(self, seconds: float, stop: Event) -> None:
        end = time.monotonic() + seconds
        while not stop.is_set():
            left = end - time.monotonic()
            if left <= 0:
                return
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                    self._connection.execute(f"LISTEN {CHANNEL}")
                    return  # what came before the channel was open must be looked for
                slice_ = min(left, _SLICE_SECONDS)
                for _ in self._connection.notifies(timeout=slice_, stop_after=1):
                    return
            except (psycopg.Error, DeltaLakeDbError):
                self.close()
                stop.wait(min(left, _SLICE_SECONDS))

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
