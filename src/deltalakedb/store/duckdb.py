"""DuckDB: a columnar catalog for one process with any number of threads.

Differences from the other engines, and why:

- A DuckDB file belongs to one process. Opening waits for another process up to the time limit,
  then explains. Inside the process every connection shares one database instance.
- Two transactions that touch the same row do not wait for each other, the later one fails. Writers
  therefore take turns by a lock of this process, with the same time limit.
- Row-by-row inserts are slow; anything but a few rows goes in as one Arrow table.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from deltalakedb.errors import (
    REPORT,
    CatalogBusyError,
    CatalogConstraintError,
    CatalogError,
    CatalogUnreachableError,
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
    ForkedProcessError,
    MissingDriverError,
    TransactionAbortedError,
)
from deltalakedb.forking import keep_for_ever
from deltalakedb.store.arrow import as_schema, schema_of
from deltalakedb.store.dialect import (
    KEY_PARAMETERS,
    Dialect,
    Row,
    Session,
    Transaction,
    Translated,
    Translating,
    check_folder,
)
from deltalakedb.store.pool import Pool
from deltalakedb.store.queries import load_queries, select_rows
from deltalakedb.store.relations import METADATA_UPDATES, PROTOCOL_UPDATES, Kind, Relation

try:
    import duckdb
except ImportError as error:
    raise MissingDriverError(
        "A duckdb:/// catalog needs the DuckDB driver, which is not installed",
        fix="Run: pip install 'deltalakedb[duckdb]'",
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.arrow import FileQuery
    from deltalakedb.store.url import CatalogUrl, Engine

_FEW_ROWS = 8
_BATCH_ROWS = 65_536
_PAGES_AT_ONCE = 8
# The greatest list of numbers for which DuckDB uses an index, and how many share a statement.
_NUMBERS, _LOOKUPS = 4, 16
_POLL_SECONDS = 0.05
# json.dumps() would make an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False).encode
# What a file begins with, in bytes, before there is anything in it.
_HEADERS = 3 * 4096
# A commit may fail for more than what is left then.
_LITTLE = 1024 * 1024
_ONE_PROCESS = "A DuckDB file can be open in one process only"


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Instance:
    """The database instance that all catalogs of this process on one file share."""

    connection: duckdb.DuckDBPyConnection
    users: weakref.WeakSet[DuckdbDialect] = field(default_factory=weakref.WeakSet)
    turns: Pool[object] = field(
        default_factory=lambda: Pool(
            object, close=lambda _: None, alive=lambda _: True, size=1, timeout=0
        )
    )
    """The turn to write: a pool with one place, which an interrupt cannot lose."""


_Key = tuple[int, str]


class _Instances:
    """The open files of this process. Waiting for one file does not block the others.

    Only their users keep them: a file whose users were collected is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[_Key, _Instance] = weakref.WeakValueDictionary()
        self._turns: dict[_Key, threading.Lock] = {}

    def take(
        self, key: _Key, user: DuckdbDialect, connect: Callable[[], duckdb.DuckDBPyConnection]
    ) -> _Instance:
        """The instance of a file, opened by `connect` if it is not open yet."""
        with self._turn(key):
            with self._lock:
                instance = self._open.get(key)
            if instance is None:
                instance = _Instance(connect())
            with self._lock:
                instance.users.add(user)
                self._open[key] = instance
            return instance

    def give_back(self, key: _Key, user: DuckdbDialect, instance: _Instance) -> None:
        """Close the file with its last user; releasing twice is no error."""
        with self._turn(key):
            with self._lock:
                instance.users.discard(user)
                if instance.users:
                    return
                if self._open.get(key) is instance:
                    del self._open[key]
            instance.connection.close()

    def _turn(self, key: _Key) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(key, threading.Lock())

    def after_fork(self) -> None:
        """What was locked stays with the other process; so do its open files, by their key."""
        self._lock = threading.Lock()
        self._turns = {}
        for instance in list(self._open.values()):
            # Freeing it would wait for threads of the other process.
            keep_for_ever(instance.connection)


_instances = _Instances()
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_instances.after_fork)


class DuckdbSession(Session):
    """A transaction on one DuckDB cursor."""

    engine: ClassVar[Engine] = "duckdb"
    opens_in_steps: ClassVar[bool] = True

    def __init__(self, connection: duckdb.DuckDBPyConnection, translated: Translated) -> None:
        self._connection = connection
        self._translated = translated

    def execute(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        with self._translated():
            rows = self._connection.execute(sql, params or None).fetchall()
        return _plain(rows)

    def stream(
        self, sql: str, params: Mapping[str, object], *, size: int
    ) -> Iterator[Sequence[Row]]:
        with self._translated():
            result = self._connection.execute(sql, params or None)
            while rows := result.fetchmany(size):
                yield _plain(rows)

    def execute_count(self, sql: str, params: Mapping[str, object]) -> int:
        with self._translated():
            rows = self._connection.execute(sql, params or None).fetchall()
        return int(rows[0][0]) if rows else 0

    def batches(
        self, sql: str, params: Mapping[str, object], *, size: int = _BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Run SQL whose result is fetched as Arrow, by and by."""
        return self._connection.execute(sql, params or None).to_arrow_reader(size)

    def open_version(
        self,
        table_id: str,
        version: int | None,
        timestamp: int | None,
        known_metadata: int,
        known_protocol: int,
    ) -> Row | None:
        # One statement for all of it costs 5 to 10 ms here, these small ones 2 ms together.
        key = {"table_id": table_id}
        head = self.one("head", **key)
        if head is None:
            return None
        if timestamp is not None:
            at_time = self.one("version_at_timestamp", timestamp=timestamp, **key)
            version = None if at_time is None else at_time[0]
        elif version is None:
            version = head[0]
        ledger = self.one("open_ledger", version=version, **key)
        if ledger is None:
            return (head[0], None)
        newest: dict[str, int | None] = dict(self.run("newest_updates", version=version, **key))
        rows: Row = ()
        for kind, relation, cached in (
            ("metadata", METADATA_UPDATES, known_metadata),
            ("protocol", PROTOCOL_UPDATES, known_protocol),
        ):
            wanted = newest[kind]
            row = (None,) * len(relation.columns)
            if wanted not in (None, cached):
                sql = select_rows("duckdb", relation, "version = :version")
                row = self.execute(sql, {"version": wanted, **key})[0]
            rows += row
        return (head[0], *ledger, newest["metadata"], newest["protocol"], *rows)

    def array(self, values: Sequence[str]) -> object:
        # The driver looks at each value of a list for a long while; one text is one value.
        return _encode(values)

    def script(self, sql: str) -> None:
        with self._translated():
            self._connection.execute(sql)

    def pages_at(self, table_id: str, version: int, *, with_stats: bool) -> Iterator[Row]:
        # Some at a time: a result with all of them would be put together in memory first, and
        # nobody could decode one while the next is read. As Arrow, not as bytes of Python: those
        # are copied once more, to memory that is new each time.
        pages = {row[0]: row[2:] for row in self.page_list_at(table_id, version)}
        numbers = list(pages)
        for start in range(0, len(numbers), _PAGES_AT_ONCE):
            chunk = numbers[start : start + _PAGES_AT_ONCE]
            for number, files, stats in self.pages_between(
                table_id, version, chunk[0], chunk[-1], with_stats=with_stats
            ):
                yield (files, stats, *pages[number])

    def pages_between(
        self, table_id: str, version: int, first: int, last: int, *, with_stats: bool
    ) -> Iterator[tuple[int, pa.Buffer, pa.Buffer | None]]:
        keys = {"table_id": table_id, "version": version, "first": first, "last": last}
        query, params = "file_pages_between", keys
        if with_stats:
            query, params = "pages_between", {**keys, "with_stats": 1}
        with self._translated():
            for batch in self.batches(load_queries("duckdb")[query], params, size=1):
                numbers, files, stats = batch.columns
                text = None if stats.null_count else stats.buffers()[2]
                yield numbers[0].as_py(), files.buffers()[2], text

    def page_bounds(self, first: int, last: int, **params: object) -> list[Row]:
        # First where they are: a scan could read the bounds of all columns.
        rows = self.run("page_bounds", first=first, last=last, **params)
        bounds = self._bounds([number for *_, number in rows if number is not None])
        return [(page_id, kind, bounds.get(number)) for page_id, kind, number in rows]

    def _bounds(self, numbers: Sequence[int]) -> dict[int, bytes]:
        bounds: dict[int, bytes] = {}
        for start in range(0, len(numbers), _LOOKUPS * _NUMBERS):
            wanted = numbers[start : start + _LOOKUPS * _NUMBERS]
            params = {f"n{n}": number for n, number in enumerate(wanted)}
            bounds.update(self.execute(_bounds_query(len(wanted)), params))
        return bounds

    def page_texts(self, table_id: str, groups: Sequence[int], *, with_stats: bool) -> list[Row]:
        numbers = ",".join(map(str, groups))
        query = "page_texts" if with_stats else "page_paths"
        params = {"table_id": table_id, "groups": numbers}
        with self._translated():  # thousands of rows, and none has a UUID
            return self._connection.execute(load_queries("duckdb")[query], params).fetchall()

    def page_list_at(self, table_id: str, version: int) -> list[Row]:
        rows = sorted(self.run("page_list_at", table_id=table_id, version=version))
        if not rows or rows[0][3] <= version:
            # Pages begin and end at the version up to which there are any, or before it; what was
            # live there is in them.
            return [(*row, row[3], None) for row in rows]
        marks = self.one("page_marks", table_id=table_id, version=version)
        return [(*row, *(marks or ())) for row in rows]

    def write_keys(self, rows: Sequence[Row]) -> None:
        sql = load_queries("duckdb")["write_keys"]
        self._insert_from("incoming_keys", _keys_as_arrow(rows), sql)

    def _insert_from(
        self, name: str, rows: pa.Table, sql: str, params: Sequence[object] | None = None
    ) -> None:
        """Run SQL that reads `rows` as a relation of this name."""
        with self._translated():
            self._connection.register(name, rows)
            try:
                self._connection.execute(sql, params)
            finally:
                self._connection.unregister(name)

    def insert(self, relation: Relation, rows: Sequence[Row]) -> None:
        if not rows:
            return
        columns = ", ".join(relation.columns)
        if len(rows) <= _FEW_ROWS:
            marks = ", ".join("(" + ", ".join("?" * len(relation.columns)) + ")" for _ in rows)
            values = [value for row in rows for value in row]
            with self._translated():
                self._connection.execute(
                    f"INSERT INTO {relation.name} ({columns}) VALUES {marks}",  # noqa: S608
                    values,
                )
            return
        self._insert_from(
            "incoming_rows",
            _as_arrow(relation, rows),
            f"INSERT INTO {relation.name} ({columns}) SELECT {columns} FROM incoming_rows",  # noqa: S608
        )

    def insert_columns(self, relation: Relation, table_id: str, columns: pa.Table) -> None:
        names = relation.columns[1:]
        chosen = ", ".join(names)
        self._insert_from(
            "incoming_rows",
            columns.select(names),
            f"INSERT INTO {relation.name} (table_id, {chosen}) "  # noqa: S608
            f"SELECT $1, {chosen} FROM incoming_rows",
            [table_id],
        )


@cache
def _bounds_query(count: int) -> str:
    """The query for the bounds of so many numbers: the parameters n0, n1 and so on."""
    one = load_queries("duckdb")["bounds"]
    names = [f"$n{n}" for n in range(count)]
    lists = (", ".join(names[start : start + _NUMBERS]) for start in range(0, count, _NUMBERS))
    return " UNION ALL ".join(one.replace("$numbers", few) for few in lists)


def _plain(rows: Sequence[Row]) -> list[Row]:
    return [tuple(str(v) if type(v) is UUID else v for v in row) for row in rows]


def _keys_as_arrow(rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    types = {"table_id": pa.string(), "path": pa.string(), "dv_id": pa.string()}
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, types.get(name, pa.int64()))
        for column, name in zip(columns, KEY_PARAMETERS, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(KEY_PARAMETERS))


def _as_arrow(relation: Relation, rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    types = {
        Kind.INT: pa.int64(),
        Kind.BOOL: pa.bool_(),
        Kind.LIST: pa.list_(pa.string()),
        Kind.BYTES: pa.binary(),
    }
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, types.get(kind, pa.string()))
        for column, kind in zip(columns, relation.kinds, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(relation.columns))


class _Transaction(Transaction[duckdb.DuckDBPyConnection, DuckdbSession]):
    """A transaction; one that writes waits for its turn first."""

    __slots__ = ("_translating", "_turns", "_url")

    def __init__(
        self,
        pool: Pool[duckdb.DuckDBPyConnection],
        url: CatalogUrl,
        translating: Translating,
        turns: Pool[object] | None,
    ) -> None:
        super().__init__(pool)
        self._url = url
        self._translating = translating
        self._turns = turns

    def _begun(self) -> DuckdbSession:
        try:
            self._take_turn()
            connection = self._connection = self._pool.acquire(self)
            translating = self._translating
            with translating:
                connection.execute("BEGIN TRANSACTION")
            # A session must not keep its transaction: the pool waits for that to be collected.
            return DuckdbSession(connection, lambda: translating)
        except BaseException:
            self._end_turn()
            raise

    def _take_turn(self) -> None:
        if self._turns is None:
            return
        try:
            self._turns.acquire(self, timeout=self._url.timeout)
        except CatalogBusyError:
            raise CatalogBusyError(
                f"{self._url.display} stayed locked by another writer for {self._url.timeout:g} s",
                why="DuckDB commits of one process take turns",
                fix="Try again, or raise timeout=… in the catalog URL",
            ) from None

    def _end_turn(self) -> None:
        if self._turns is not None:
            self._turns.release(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._end_turn()

    def _commit(self) -> None:
        try:
            with self._translating:
                self._connection.execute("COMMIT")
        except DeltaLakeDbError:
            self._rollback()
            raise

    def _rollback(self) -> None:
        _rollback(self._connection)

    def _translate(self, error: BaseException) -> None:
        if isinstance(error, duckdb.Error) or _is_interrupt(error):
            raise _translate(error, self._url) from error


class DuckdbDialect(Dialect):
    """One database file, owned by this process while it is open."""

    engine: ClassVar[Engine] = "duckdb"

    def __init__(self, url: CatalogUrl) -> None:
        self.url = url
        self._translating = Translating(
            (duckdb.Error, RuntimeError), lambda error: _translate(error, url)
        )
        self._key = (os.getpid(), os.path.realpath(url.target))
        self._is_new = not Path(url.target).exists()
        self._instance = self._open()
        self._pool = self._new_pool()
        # Listings last as long as their reader likes: commits must not wait for them.
        self._listings = self._new_pool()

    def _new_pool(self) -> Pool[duckdb.DuckDBPyConnection]:
        return Pool(
            self._instance.connection.cursor,
            close=_close,
            alive=lambda _: True,
            size=self.url.pool_size,
            timeout=self.url.timeout,
        )

    def _open(self) -> _Instance:
        target = Path(self.url.target)
        check_folder(self.url)
        return _instances.take(self._key, self, lambda: self._connect(target))

    def _connect(self, target: Path) -> duckdb.DuckDBPyConnection:
        if _is_sqlite(target):
            # DuckDB would fetch an extension from the internet, and open it with that.
            raise CatalogUnreachableError(
                f"{self.url.display} is a SQLite database",
                why="The catalog URL says that it is one of DuckDB",
                fix=f"Write sqlite:///{target}, or name another file",
            )
        deadline = time.monotonic() + self.url.timeout
        last_chance = False
        while True:
            try:
                return duckdb.connect(str(target), config=dict(self.url.options))
            except (duckdb.InvalidInputException, duckdb.CatalogException) as error:
                raise ConfigurationError(
                    f"{self.url.display} has an option that DuckDB refuses",
                    why=self.url.redact(_first_line(error)),
                    fix="Options after '?' are DuckDB settings, e.g. threads=2",
                ) from error
            except duckdb.IOException as error:
                if not _is_locked(target):
                    if self._is_new:
                        _remove_stump(target)
                    # The other process may have gone between the failure and this look.
                    if last_chance:
                        raise _translate(error, self.url) from error
                    last_chance = True
                    continue
                if time.monotonic() >= deadline:
                    raise CatalogBusyError(
                        f"{self.url.display} stayed open in another process "
                        f"for {self.url.timeout:g} s",
                        why=_ONE_PROCESS,
                        fix="Close it there, raise timeout=… in the catalog URL, "
                        "or use postgresql:// for several processes",
                    ) from error
                time.sleep(_POLL_SECONDS)
            except duckdb.Error as error:
                raise _translate(error, self.url) from error

    def read(self) -> AbstractContextManager[Session]:
        """One consistent state, taken at the first query."""
        return self._transaction(self._pool)

    def list_files(self, query: FileQuery) -> Generator[pa.RecordBatch, None, None]:
        schema = schema_of(query.columns)
        text = self.sql(query.text)
        with self._transaction(self._listings) as session:
            for batch in session.batches(text, query.params):
                yield as_schema(batch, schema)

    def write(self) -> AbstractContextManager[Session]:
        """The one writer of this process, after waiting for the others."""
        return self._transaction(self._pool, turns=self._instance.turns)

    def _transaction(
        self, pool: Pool[duckdb.DuckDBPyConnection], *, turns: Pool[object] | None = None
    ) -> _Transaction:
        if os.getpid() != self._key[0]:
            raise ForkedProcessError(
                f"{self.url.display} was opened before this process was forked",
                why=_ONE_PROCESS,
                fix="Call deltalakedb.connect() in the process that uses it",
            )
        return _Transaction(pool, self.url, self._translating, turns)

    def lock_migrations(self, session: Session) -> None:
        """The writer lock of this process holds off every other migrator."""

    def abandon(self) -> None:
        # Its name goes first: until it is closed, no other process can have opened it.
        if self._is_new and list(self._instance.users) == [self] and self._is_empty():
            for suffix in ("", ".wal"):
                Path(f"{self.url.target}{suffix}").unlink(missing_ok=True)
        self.close()

    def _is_empty(self) -> bool:
        try:
            with self.read() as session:
                return not session.run("has_schema_migrations")
        except DeltaLakeDbError:
            return False

    def close(self) -> None:
        if os.getpid() != self._key[0]:
            return
        for owner in self._pool.held_here():
            self._pool.discard(owner)
            self._instance.turns.discard(owner)
        self._pool.close()
        self._listings.close()
        _instances.give_back(self._key, self, self._instance)


def _rollback(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        # A failed COMMIT has ended the transaction already; a fatal error ends everything.
        return
    except RuntimeError as error:
        raise (KeyboardInterrupt() if _is_interrupt(error) else error) from error


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    # An interrupted statement ends with the next one: until then the file stays open, and opening
    # it again in this process would wait for ever.
    _rollback(connection)
    connection.close()


def _is_locked(target: Path) -> bool:
    """Whether another process holds the file; DuckDB's error has no code for it."""
    try:
        import fcntl
    except ImportError:  # Windows, where a file that is in use cannot be opened at all
        return target.is_file()
    try:
        with target.open("rb+") as handle:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(handle, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _remove_stump(target: Path) -> None:
    """Delete the rest of a file that could not be created: it is smaller than any database."""
    with suppress(OSError):
        if target.stat().st_size < _HEADERS:
            target.unlink()


def _is_full(target: Path) -> bool:
    """Whether the disk is full; DuckDB has no code for it when a commit fails."""
    try:
        return shutil.disk_usage(target.parent).free < _LITTLE
    except OSError:
        return False


def _is_sqlite(target: Path) -> bool:
    """Whether the file begins as those of SQLite do; not looked at where it is open here.

    Closing a file drops every lock that this process has on it.
    """
    try:
        status = target.stat()
        for number in os.listdir("/dev/fd"):  # noqa: PTH208 - names are all that is needed
            with suppress(OSError):
                if os.path.samestat(os.fstat(int(number)), status):
                    return False
        with target.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is a Ctrl-C: the driver raises RuntimeError then, and names what it was."""
    return type(error) is RuntimeError and isinstance(error.__cause__, KeyboardInterrupt)


def _translate(error: BaseException, url: CatalogUrl) -> BaseException:
    if _is_interrupt(error):
        return KeyboardInterrupt()
    reason = url.redact(_first_line(error))
    if isinstance(error, duckdb.TransactionException):
        if _is_full(Path(url.target)):
            return CatalogError(
                f"{url.display} could not grow: the disk is full",
                why="The transaction was rolled back; nothing was lost",
                fix="Free disk space and try again",
            )
        return TransactionAbortedError(
            f"{url.display} refused a transaction that met another one",
            why=reason,
            fix="Try again",
        )
    if isinstance(error, duckdb.ConstraintException):
        return CatalogConstraintError(f"{url.display} refused a row", why=reason)
    if isinstance(error, duckdb.IOException):
        return CatalogUnreachableError(
            f"{url.display} cannot be opened or written",
            why=reason,
            fix="Check that the path is a file in a folder you may write to, "
            "that the disk has room, and that no other process has it open",
        )
    if isinstance(error, (duckdb.SerializationException, duckdb.FatalException)):
        return CorruptCatalogError(
            f"{url.display} is damaged, or was written by another version of DuckDB",
            why=reason,
            fix="Open it with the DuckDB version that wrote it, or restore a backup",
        )
    return CatalogError(f"{url.display} failed", why=reason, fix=REPORT)
