"""Points at which a process can be killed: between any two effects outside of it.

Every statement to the catalog and every call of an object store can be a point, and whatever the
code under test calls a step. Points are counted from one, in whichever thread they are reached.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deltalakedb.storage import Storage
from deltalakedb.store.dialect import Session
from deltalakedb.store.duckdb import DuckdbSession
from deltalakedb.store.postgres import PostgresSession
from deltalakedb.store.postgres_connection import PostgresConnection
from deltalakedb.store.sqlite import SqliteSession
from deltalakedb.store.url import Engine

_SESSIONS: Mapping[Engine, type[Session]] = {
    "postgres": PostgresSession,
    "sqlite": SqliteSession,
    "duckdb": DuckdbSession,
}
_WRITES = ("take_head", "execute_count", "insert", "insert_columns")
_STATEMENTS = ("execute", *_WRITES)
_STORAGE_WRITES = ("put", "put_if_absent", "settle", "update", "delete_many")
_STORAGE = ("get", "head", *_STORAGE_WRITES)


class KillPoints:
    """Counts the points that are reached, and ends the process at one of them."""

    def __init__(self, fatal: int | str, labels: Path) -> None:
        """`fatal` is the number of a point, or what the first fatal one is called."""
        self._fatal = fatal
        self._labels = labels
        self._reached: int | None = None
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Count from now on."""
        self._reached = 0

    def disarm(self) -> None:
        """Count no more."""
        self._reached = None

    def reach(self, label: str) -> None:
        """Pass a point, or die there; then the file of labels says where."""
        with self._lock:
            if self._reached is None:
                return
            self._reached += 1
            if self._fatal in (self._reached, label):
                with self._labels.open("a") as file:
                    file.write(f"{label}\n")
                self.die()

    def die(self) -> None:
        """End this process at once."""
        os.kill(os.getpid(), signal.SIGKILL)

    # What follows is for a process that is going to end anyway.

    def watch_statements(self, engine: Engine, *, writes_only: bool = False) -> None:
        """Make every statement a point; or those that write: between others nothing changes."""
        session = _SESSIONS[engine]
        for name in _WRITES if writes_only else _STATEMENTS:
            setattr(session, name, self._before(getattr(session, name), "statement"))
        if engine == "postgres":
            self._watch_pipelines()

    def _watch_pipelines(self) -> None:
        """Make a point of every statement of a pipeline, when those before it have been sent."""
        queue = PostgresConnection._queue

        def counted(connection: PostgresConnection, *arguments: Any) -> int:
            connection.pgconn.flush()
            self.reach("statement of a pipeline")
            return queue(connection, *arguments)

        PostgresConnection._queue = counted  # type: ignore[method-assign, assignment]

    def watch_storage(self, *, writes_only: bool = False) -> None:
        """Make a point before and after every call of an object store, or those that write."""
        for name in _STORAGE_WRITES if writes_only else _STORAGE:
            watched = self._before(getattr(Storage, name), "before")
            setattr(Storage, name, self._after(watched))

    def _before(self, method: Callable[..., Any], label: str) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.reach(f"{label} {method.__name__}")
            return method(*arguments, **options)

        counted.__name__ = method.__name__
        return counted

    def _after(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            self.reach(f"after {method.__name__}")
            return found

        counted.__name__ = method.__name__
        return counted
