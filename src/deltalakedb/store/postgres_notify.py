"""Word of new work between processes, through a channel of Postgres.

A lost word costs a worker the rest of its pause and nothing else, so nothing here raises when the
server is away: whoever waits then just waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

import psycopg

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.forking import keep_for_ever, renew_after_fork
from deltalakedb.store.postgres_connection import PostgresConnection

CHANNEL: Final = "deltalakedb_mirror"
# How long a listener may overlook that it shall end, and how long it leaves a dead server alone.
_SLICE_SECONDS: Final = 0.5

# Word that is lost with the server is no loss. The setting ends with the transaction: the session
# may be shared.
_NOTIFY: Final = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}; COMMIT"

Connect = Callable[[], PostgresConnection]


class Notifier:
    """Sends word on a connection of its own, outside of any commit.

    Inside a commit it would make all commits of the database take turns until they are on the disk.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: PostgresConnection | None = None
        self._lock = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Leave the connection to the parent, and make one of our own when it is needed."""
        keep_for_ever(self._connection)
        self._connection = None
        self._lock = threading.Lock()

    def send(self) -> None:
        """Tell whoever listens."""
        with self._lock:
            is_old = self._connection is not None
            # A connection that has been lying here may have died with its server.
            if not self._try() and is_old:
                self._try()

    def _try(self) -> bool:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            self._connection.execute(_NOTIFY)
        except (psycopg.Error, DeltaLakeDbError):
            self._drop()
            return False
        return True

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@contextmanager
def listening(connect: Connect, ring: Callable[[], None]) -> Iterator[None]:
    """Call `ring` for every word that comes while the block lasts, from a thread of its own."""
    ended = threading.Event()
    thread = threading.Thread(
        target=_listen, args=(connect, ring, ended), name="deltalakedb-listener", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _listen(connect: Connect, ring: Callable[[], None], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            with closing(connect()) as connection:
                if connection.is_pooled:
                    # Word would come to whoever has the session then: the worker looks for itself.
                    return
                connection.execute(f"LISTEN {CHANNEL}")
                # What came before the channel was open must be looked for.
                ring()
                while not ended.is_set():
                    for _ in connection.notifies(timeout=_SLICE_SECONDS, stop_after=1):
                        ring()
        except (psycopg.Error, DeltaLakeDbError):
            ended.wait(_SLICE_SECONDS)
