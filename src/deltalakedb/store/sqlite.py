"""SQLite: the embedded default. Many readers, one writer at a time, any number of processes.

Differences from the other engines, and why:

- WAL mode, so that readers never wait for the writer; `synchronous=FULL`, so that an acknowledged
  commit survives a power cut (WAL with NORMAL may lose the last ones).
- Writers take the write lock at BEGIN (`IMMEDIATE`): upgrading a read transaction can fail at
  once however long the busy timeout is.
- Lists and JSON are text; booleans are 0 and 1.
- No connection is open while the process forks: see `_open_in_parent`.
- A new catalog is created under a temporary name: otherwise an empty file would stay if the disk
  had no room for its schema.
- Listings are rows of this same driver, and not Arrow from ADBC, which would be twice as fast: it
  brings a second SQLite into the process. The locks of POSIX belong to a process, so the two do not
  see each other's, and one that closes the file deletes the WAL under the other's commits.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from deltalakedb.actions.jsonvalue import texts
from deltalakedb.errors import (
    REPORT,
    CatalogBusyError,
    CatalogConstraintError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnreachableError,
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
    ForkedProcessError,
    InvalidActionError,
)
from deltalakedb.storage.local_files import sync_path
from deltalakedb.store.arrow import batches_of_rows, schema_of
from deltalakedb.store.dialect import (
    KEY_PARAMETERS,
    Dialect,
    Row,
    Session,
    T,
    Transaction,
    Translating,
    Turn,
    check_folder,
)
from deltalakedb.store.pool import FILE_LOCKS, Pool
from deltalakedb.store.queries import load_queries
from deltalakedb.store.relations import Kind, Relation
from deltalakedb.store.sqlite_queue import place_in_queue

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.arrow import FileQuery
    from deltalakedb.store.dialect import Purpose
    from deltalakedb.store.url import CatalogUrl, Engine

_MINIMUM = (3, 37, 0)  # STRICT tables
# SQLite accepts a misspelt value as another setting without an error.
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_PRAGMAS = {
    "cache_size": _NUMBER,
    "mmap_size": _NUMBER,
    "synchronous": re.compile(r"off|normal|full|extra|[0-3]", re.IGNORECASE),
    "temp_store": re.compile(r"default|file|memory|[0-2]", re.IGNORECASE),
}
# In KiB, as it is negative.
_BULK_CACHE = -256 * 1024
# SQLite has the locks of a file in the memory of the process. A forked child has a copy in which
# they are held by connections that it must not use: its own would rely on locks that do not exist.
_open_in_parent: set[str] = set()
_WRITE = "BEGIN IMMEDIATE"
# Files whose last writer of this process had to wait: the next one does not pass those that wait.
_contended: set[str] = set()
# How long writers pause before they try again: the first in the queue at least and at most; the
# others; and all at most where there can be no queue, while the wait is short.
_FIRST_PAUSE_SECONDS = 0.00005
_LONG_PAUSE_SECONDS = 0.02
_QUEUE_SECONDS = 1.0
_PAUSE_SECONDS = 0.002
_SHORT_WAIT_SECONDS = 1.0
_ONE_WRITER = "SQLite lets one process write at a time"


class SqliteSession(Session):
    """A transaction on one SQLite connection."""

    engine: ClassVar[Engine] = "sqlite"

    def __init__(self, connection: sqlite3.Connection, url: CatalogUrl) -> None:
        self._connection = connection
        self._url = url

    # Every statement of every commit passes here: a `try` costs nothing, a context manager does.

    def execute(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        try:
            return self._connection.execute(sql, params).fetchall()
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error

    def cursor(self, sql: str, params: Mapping[str, object]) -> sqlite3.Cursor:
        """Run SQL whose rows are to be fetched by and by."""
        return self._connection.execute(sql, params)

    def stream(
        self, sql: str, params: Mapping[str, object], *, size: int
    ) -> Iterator[Sequence[Row]]:
        try:
            with closing(self._connection.execute(sql, params)) as cursor:
                while rows := cursor.fetchmany(size):
                    yield rows
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error

    def execute_count(self, sql: str, params: Mapping[str, object]) -> int:
        try:
            return self._connection.execute(sql, params).rowcount
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error

    def script(self, sql: str) -> None:
        # executescript() would commit the open transaction first.
        statement = ""
        for line in sql.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.execute(statement, {})
                statement = ""

    @contextmanager
    def bulk(self) -> Iterator[None]:
        # A page that leaves the cache is written at once, and again when it changes again: with
        # the small cache of SQLite each page of an index over paths would be, many times.
        if "cache_size" in self._url.options:
            yield
            return
        before = int(self.execute("PRAGMA cache_size", {})[0][0])
        self.execute(f"PRAGMA cache_size = {_BULK_CACHE}", {})
        try:
            yield
        finally:
            self.execute(f"PRAGMA cache_size = {before}", {})

    def array(self, values: Sequence[str]) -> object:
        _refuse_nul(values)
        return texts(values)

    def close_files(self, table_id: str, version: int, keys: Sequence[tuple[str, str]]) -> int:
        # Joining two json_each() by position would compare each with each.
        for key in keys:
            _refuse_nul(key)
        return self.changed("close_files", table_id=table_id, version=version, keys=texts(keys))

    def write_keys(self, rows: Sequence[Row]) -> None:
        statement = load_queries("sqlite")["write_keys"]
        parameters = [dict(zip(KEY_PARAMETERS, row, strict=True)) for row in rows]
        try:
            self._connection.executemany(statement, parameters)
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error

    def insert(self, relation: Relation, rows: Sequence[Row]) -> None:
        statement, lists = _way_in(relation)
        if lists:
            rows = [_lists_as_json(row, lists) for row in rows]
        try:
            if len(rows) == 1:
                self._connection.execute(statement, rows[0])
            else:
                self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error

    def insert_columns(self, relation: Relation, table_id: str, columns: pa.Table) -> None:
        if not columns.num_rows:
            return
        # Most columns are NULL for most files: these are not bound.
        names = [n for n in relation.columns[1:] if columns[n].null_count < columns.num_rows]
        rows = zip(repeat(table_id), *(columns[name].to_pylist() for name in names))
        marks = ", ".join("?" * (len(names) + 1))
        statement = f"INSERT INTO {relation.name} (table_id, {', '.join(names)}) VALUES ({marks})"  # noqa: S608
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error


@cache
def _way_in(relation: Relation) -> tuple[str, tuple[int, ...]]:
    """The statement that writes a row of a relation, and which of its columns are lists."""
    columns = ", ".join(relation.columns)
    marks = ", ".join("?" * len(relation.columns))
    lists = tuple(i for i, kind in enumerate(relation.kinds) if kind is Kind.LIST)
    return f"INSERT INTO {relation.name} ({columns}) VALUES ({marks})", lists  # noqa: S608


def _refuse_nul(values: Sequence[str]) -> None:
    # json_each() ends a text at NUL, and would silently name another file or none.
    if any("\0" in value for value in values):
        raise InvalidActionError(
            "A path or deletion vector has a NUL character in its name",
            why="No file can have such a name, and SQLite cannot look for it",
            fix="Correct the action",
        )


def _lists_as_json(row: Row, positions: Sequence[int]) -> Row:
    values = list(row)
    for position in positions:
        if values[position] is not None:
            values[position] = texts(values[position])
    return tuple(values)


class _Transaction(Transaction[sqlite3.Connection, SqliteSession]):
    """A transaction that starts with `begin`."""

    __slots__ = ("_begin", "_url")

    def __init__(self, pool: Pool[sqlite3.Connection], url: CatalogUrl, begin: str) -> None:
        super().__init__(pool)
        self._url = url
        self._begin = begin

    def _begun(self) -> SqliteSession:
        connection = self._connection = self._pool.acquire(self)
        try:
            if self._begin is _WRITE:
                _begin_write(connection, self._url)
            else:
                connection.execute(self._begin)
        except sqlite3.Error as error:
            raise _translate(error, self._url) from error
        return SqliteSession(connection, self._url)

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._rollback()
            raise _translate(error, self._url) from error

    def _rollback(self) -> None:
        _rollback(self._connection)

    def _translate(self, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error):
            raise _translate(error, self._url) from error


def _begin_write(connection: sqlite3.Connection, url: CatalogUrl) -> None:
    """Take the write lock; SQLITE_BUSY after the timeout of the URL.

    SQLite itself waits longer and longer between its tries, up to 100 ms: where many processes
    write, one that came late would take the lock again and again before one that waits.
    """
    # As a script: a cached PRAGMA would not take effect again.
    wait = f"PRAGMA busy_timeout = {int(url.timeout * 1000)}"
    script = f"PRAGMA busy_timeout = 0; {_WRITE}; {wait}"
    try:
        if url.target in _contended or not _try_write(connection, script):
            _queue_to_write(connection, url, script)
    finally:
        if not connection.in_transaction:
            connection.executescript(wait)


def _queue_to_write(connection: sqlite3.Connection, url: CatalogUrl, script: str) -> None:
    started = time.monotonic()
    with place_in_queue(f"{os.path.realpath(url.target)}-queue") as place:
        place.wait(min(url.timeout, _QUEUE_SECONDS))
        asked = time.monotonic()
        _contended.discard(url.target)
        while not _try_write(connection, script):
            _contended.add(url.target)
            now = time.monotonic()
            if now - started > url.timeout:
                connection.executescript(script)
                return
            if place.is_waiting:
                place.wait(min(started + url.timeout - now, _QUEUE_SECONDS))
                asked = time.monotonic()
            else:
                time.sleep(_pause(now, started, asked if place.is_first else None))


def _try_write(connection: sqlite3.Connection, script: str) -> bool:
    """Whether a script that begins a transaction has begun it."""
    try:
        connection.executescript(script)
    except sqlite3.OperationalError as error:
        if _code(error) != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _pause(now: float, started: float, asked: float | None) -> float:
    """How long a writer pauses; the first in the queue has `asked` since then."""
    if asked is not None:
        return min(max(_FIRST_PAUSE_SECONDS, (now - asked) / 8), _LONG_PAUSE_SECONDS)
    most = _PAUSE_SECONDS if now - started < _SHORT_WAIT_SECONDS else _LONG_PAUSE_SECONDS
    return random.uniform(0, most)  # noqa: S311 - no secret


def _rollback(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _close(connection: sqlite3.Connection) -> None:
    # A cursor that is still referenced keeps a closed connection and its locks alive.
    _rollback(connection)
    connection.close()


class SqliteDialect(Dialect):
    """One database file."""

    engine: ClassVar[Engine] = "sqlite"

    def __init__(self, url: CatalogUrl) -> None:
        self.url = url
        self._translating = Translating(sqlite3.Error, lambda error: _translate(error, url))
        if sqlite3.sqlite_version_info < _MINIMUM:
            raise ConfigurationError(
                f"This Python carries SQLite {sqlite3.sqlite_version}, which is too old",
                why="The catalog uses STRICT tables, which came with SQLite 3.37",
                fix="Use a newer Python build, or a duckdb:/// or postgresql:// catalog",
            )
        unknown = sorted(set(url.options) - set(_PRAGMAS))
        if unknown:
            raise ConfigurationError(
                f"{url.display} has options that SQLite does not take: {', '.join(unknown)}",
                fix=f"Known: {', '.join(sorted(_PRAGMAS))}, timeout, pool_size",
            )
        for pragma, value in url.options.items():
            if not _PRAGMAS[pragma].fullmatch(value):
                raise ConfigurationError(
                    f"{url.display} has {pragma}={value!r}, which is no value for SQLite",
                    fix=f"It must match: {_PRAGMAS[pragma].pattern}",
                )
        self._pool = self._new_pool()
        # Listings last as long as their reader likes: commits must not wait for them.
        self._listings = self._new_pool()

    def _new_pool(self) -> Pool[sqlite3.Connection]:
        return Pool(
            self._connect,
            close=_close,
            alive=lambda connection: not connection.in_transaction,
            size=self.url.pool_size,
            timeout=self.url.timeout,
            left_open=self._left_open,
        )

    def _left_open(self) -> None:
        _open_in_parent.add(os.path.realpath(self.url.target))

    def _check_process(self) -> None:
        if os.path.realpath(self.url.target) in _open_in_parent:
            raise ForkedProcessError(
                f"{self.url.display} cannot be used in this process",
                why="It was forked while its parent had the catalog open: in the middle of a "
                "listing, or of work of another thread",
                fix="Fork when no listing is half read, or start processes with "
                "multiprocessing.get_context('spawn') or 'forkserver'",
            )

    def _connect(self) -> sqlite3.Connection:
        self._check_process()
        target = Path(self.url.target)
        check_folder(self.url)
        with self._translated():
            connection = sqlite3.connect(
                target,
                timeout=self.url.timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            try:
                self._configure(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _configure(self, connection: sqlite3.Connection) -> None:
        for pragma, value in self.url.options.items():
            connection.execute(f"PRAGMA {pragma} = {value}")
        if "synchronous" not in self.url.options:
            connection.execute("PRAGMA synchronous = FULL")
        # Two processes that create the file together meet here, where the busy timeout does
        # not hold: switching the journal mode needs the file alone for a moment.
        deadline = time.monotonic() + self.url.timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def holds_catalog(self) -> bool:
        """By a connection that only reads: ours switch a file to write-ahead logging."""
        self._check_process()
        target = Path(self.url.target).absolute()
        if target.parent.is_dir() and not target.exists():
            return False
        try:
            peek = sqlite3.connect(f"{target.as_uri()}?mode=ro", uri=True, timeout=self.url.timeout)
            with closing(peek):
                asked = peek.execute(load_queries("sqlite")["has_schema_migrations"])
                return asked.fetchone() is not None
        except sqlite3.Error:
            return True  # opening the file raises a better error

    def make_new(self, fill: Callable[[Dialect], T]) -> T | None:
        """Fill another file and rename it, so that no reader sees a part of it.

        Deleting a file that could not be filled would not do: others may have opened it.
        """
        target = Path(self.url.target)
        if target.exists() or not target.parent.is_dir():
            return None
        fresh = target.with_name(f".{uuid.uuid4().hex}.new")
        other = SqliteDialect(replace(self.url, target=str(fresh)))
        try:
            result = fill(other)
            other._empty_wal()
            other.close()
            os.link(fresh, target)
        except OSError:
            # Another process was faster, or there are no hard links here.
            return None
        finally:
            other.close()
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{fresh}{suffix}").unlink(missing_ok=True)
        with suppress(OSError):  # not every system can
            sync_path(target.parent)
        return result

    def _empty_wal(self) -> None:
        """Bring everything into the file itself; an error where there is no room for it."""
        with self._translated(), closing(self._connect()) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def read(self) -> AbstractContextManager[Session]:
        """One consistent state, taken at the first query."""
        return self._transaction("BEGIN", self._pool)

    def write(self) -> AbstractContextManager[Session]:
        """The one writer, after waiting for the others."""
        return self._transaction(_WRITE, self._pool)

    def list_files(self, query: FileQuery) -> Generator[pa.RecordBatch, None, None]:
        schema = schema_of(query.columns)
        text = self.sql(query.text)
        with (
            self._transaction("BEGIN", self._listings) as session,
            closing(session.cursor(text, query.params)) as cursor,
        ):
            yield from batches_of_rows(cursor.fetchmany, schema)

    def _transaction(self, begin: str, pool: Pool[sqlite3.Connection]) -> _Transaction:
        return _Transaction(pool, self.url, begin)

    def _translated(self) -> Translating:
        return self._translating

    @contextmanager
    def turn(self, table_id: str, purpose: Purpose) -> Iterator[Turn | None]:
        """Processes exclude each other by a file: a row would cost two more transactions."""
        path = f"{os.path.realpath(self.url.target)}-turns"
        with super().turn(table_id, purpose) as turn:
            if turn is None:
                yield None
                return
            with FILE_LOCKS.take(path, f"{purpose} {table_id}") as is_ours:
                yield turn if is_ours else None

    def lock_migrations(self, session: Session) -> None:
        """The write lock of BEGIN IMMEDIATE holds off every other migrator."""

    def close(self) -> None:
        for owner in self._pool.held_here():
            self._pool.discard(owner)
        self._pool.close()
        self._listings.close()


def _code(error: sqlite3.Error) -> int:
    extended: int = getattr(error, "sqlite_errorcode", 0) or 0
    return extended & 0xFF


def _translate(error: sqlite3.Error, url: CatalogUrl) -> DeltaLakeDbError:
    code = _code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CatalogBusyError(
            f"{url.display} stayed locked by another writer for {url.timeout:g} s",
            why=_ONE_WRITER,
            fix="Try again, raise timeout=… in the catalog URL, "
            "or move to postgresql:// where writers work side by side",
        )
    if code == sqlite3.SQLITE_CONSTRAINT:
        return CatalogConstraintError(f"{url.display} refused a row", why=str(error))
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return CatalogPermissionError(
            f"{url.display} cannot be written",
            why=str(error),
            fix="Check the permissions of the file and of its folder "
            "(SQLite keeps -wal and -shm files beside it)",
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return CatalogUnreachableError(
            f"{url.display} cannot be opened",
            why=str(error),
            fix="Check that the path is a file in a folder you may write to",
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return CorruptCatalogError(
            f"{url.display} is no SQLite database, or a damaged one",
            why=str(error),
            fix="Check the path; restore the file from a backup if it was a catalog",
        )
    if code == sqlite3.SQLITE_FULL:
        return CatalogError(
            f"{url.display} could not grow: the disk is full",
            why="The transaction was rolled back; nothing was lost",
            fix="Free disk space and try again",
        )
    if code == sqlite3.SQLITE_IOERR:
        return CatalogError(
            f"{url.display} could not be read or written",
            why=str(error),
            fix="Check that its disk is sound, has room and may be written to, and try again",
        )
    return CatalogError(f"{url.display} failed", why=str(error), fix=REPORT)
