"""A pool of connections between threads."""

import sqlite3
import threading
from pathlib import Path
from types import TracebackType

from deltalakedb.store.pool import Hold, Pool


class Owner:
    """What a connection is lent to."""


class BusyLock:
    """A lock that another thread is waiting for: that thread works before the next line here."""

    def __init__(self, pool: Pool[sqlite3.Connection], other: Owner) -> None:
        self._lock = threading.Lock()
        self._pool = pool
        self._other = other
        self._thread: threading.Thread | None = threading.Thread(target=self._claim)
        self.claimed: sqlite3.Connection | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.start()
            thread.join()

    def _claim(self) -> None:
        self.claimed = self._pool.acquire(self._other)
        self.claimed.execute("BEGIN")
        self.claimed.execute("INSERT INTO t VALUES (1)")


def test_a_connection_that_comes_back_is_not_closed_under_its_next_owner(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "t.db", isolation_level=None, check_same_thread=False)

    pool = Pool(connect, close=sqlite3.Connection.close, alive=lambda _: True, size=2, timeout=1)
    with Hold(pool) as connection:
        connection.execute("CREATE TABLE t (x)")
    first, second = Owner(), Owner()
    pool.acquire(first)
    busy = BusyLock(pool, second)
    pool._lock = busy  # type: ignore[assignment]
    pool.release(first)
    assert busy.claimed is not None
    busy.claimed.execute("COMMIT")
    assert busy.claimed.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
    pool.release(second)
    pool.close()
