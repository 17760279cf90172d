"""Postgres: any number of writers and processes, on one server.

Differences from the other engines, and why:

- Its text cannot hold NUL, which Delta's strings may. NUL is stored as U+E000 '0' and U+E000 itself
  as U+E000 '1'; both ways are exact, and text without those two characters is stored as it is.
  Columns of type JSON keep their text, where NUL is written as an escape sequence anyway. Those
  of type JSONB cannot hold every number: one that is too great or too fine becomes a string. Only
  copies of what a JSON column holds exactly have numbers at all.
- Waiting for a lock ends by `lock_timeout`; idle connections may be dead after a server restart, so
  a transaction that cannot even begin is begun again on a new connection.
- More than a few rows go in by COPY. The few rows of a `batch` are sent with the next statement, or
  with COMMIT: an error that they cause is raised there.
- A small commit takes two round trips: BEGIN, the head, the commits of others and the live files in
  the first, all its rows and COMMIT in the second.
- Plans are cached, and a plan for a small relation may scan all of it for each path of a
  commit once it is large. Statements here select rows by key, so plans that scan whole relations
  are disabled. (Listings go through ADBC, on connections of their own.)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, LiteralString

from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.clock import RemoteClock
from deltalakedb.errors import (
    CatalogBusyError,
    CatalogConnectionLostError,
    CatalogError,
    CommitOutcomeUnknownError,
    DeltaLakeDbError,
    MissingDriverError,
)
from deltalakedb.forking import ProcessLock
from deltalakedb.store.arrow import batches_of_rows, schema_of
from deltalakedb.store.dialect import (
    KEY_PARAMETERS,
    Dialect,
    Row,
    Session,
    Since,
    T,
    Take,
    Taken,
    Transaction,
    Translated,
    Translating,
    Turn,
)
from deltalakedb.store.pool import Hold, Places, Pool
from deltalakedb.store.queries import load_queries
from deltalakedb.store.relations import Kind, Relation
from deltalakedb.store.roles import Rights

try:
    import psycopg
    from psycopg import pq, sql

    from deltalakedb.store.postgres_connection import (
        PostgresConnection,
        Statement,
        is_forbidden,
        raise_failed,
        rows_of,
        translate,
        unreachable,
    )
except ImportError as error:
    raise MissingDriverError(
        "A postgresql:// catalog needs the Postgres driver, which is not installed",
        fix="Run: pip install 'deltalakedb[postgres]'",
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.arrow import FileQuery
    from deltalakedb.store.dialect import Purpose
    from deltalakedb.store.postgres_arrow import ArrowReader
    from deltalakedb.store.postgres_connection import Notifier
    from deltalakedb.store.url import CatalogUrl, Engine

_FEW_ROWS = 64
_COPY_BYTES = 1024 * 1024
# The digits that JSONB's numbers have before and after the point; others are stored as text.
_GREATEST, _FINEST = 131_072, 16_383
_FAR_EXPONENT = re.compile(r"[0-9]e-?[0-9]{5}")
_MIGRATION_LOCK = 0x64_6C_64_62  # "dldb"
_TURN_LOCK = 0x64_6C_64_74  # "dldt"
_HEAD_LOCK = 0x64_6C_64_68  # "dldh"
_ESCAPE = "\ue000"
_ESCAPED = re.compile(f"{_ESCAPE}([01])")
_UNESCAPED = {"0": "\x00", "1": _ESCAPE}
_BEGIN_READ: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
_BEGIN_WRITE: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresSession(Session):
    """A transaction on one Postgres connection."""

    engine: ClassVar[Engine] = "postgres"

    def __init__(self, connection: PostgresConnection, translated: Translated) -> None:
        self._open = connection
        self._translated = translated
        self._is_batch = False
        self._take: Take | None = None
        self._taken: Taken | None = None
        self.unsent: list[Statement] = []
        """Inserts that are sent with the next statement, or with COMMIT."""

    @property
    def _connection(self) -> PostgresConnection:
        """The connection, which has received all statements up to now."""
        if self.unsent:
            unsent, self.unsent = self.unsent, []
            with self._translated():
                raise_failed(self._open.together(unsent))
        return self._open

    def begin(self, begin: LiteralString, take: Take) -> None:
        """Begin the transaction and take the head of a table, in one round trip."""
        self._taken = self._take_head(take, Statement(begin.encode()))
        self._take = take

    def take_head(self, take: Take) -> Taken:
        if self._taken is not None and self._take is take:
            return self._taken
        return self._take_head(take)

    def _take_head(self, take: Take, *first: Statement) -> Taken:
        encoding = self._open.encoding
        params = {
            "lock": b"%d" % _HEAD_LOCK,
            "table_id": take.table_id.encode(),
            "version": b"%d" % take.base,
            "last": b"%d" % take.last,
            "commit_uuid": take.commit_uuid.encode(),
            "paths": _list_text(take.paths).encode(encoding),
        }
        take_head = "take_sound_head" if take.unless_drifted else "take_head"
        names = ("queue_for_head", take_head, "commits_since", "live_among")
        with self._translated():
            results = raise_failed(
                self._connection.together([*first, *(_statement(name, params) for name in names)])
            )
        head, since, live = (rows_of(result, encoding) for result in results[-3:])
        if not head:
            return Taken(None)
        return Taken(int(head[0][0]), Since.from_row(since[0]) if since else None, self._live(live))

    def _live(self, rows: Sequence[Sequence[str]]) -> dict[tuple[str, str], int]:
        decode = self.decode_text
        return {(decode(path), decode(dv_id)): int(size) for path, dv_id, size in rows}

    def execute(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        with self._translated():
            cursor = self._connection.execute(_literal(sql), self._encoded(params))
            return cursor.fetchall() if cursor.description else []

    def run_binary(self, query: str, /, **params: object) -> list[Row]:
        # As text, bytes would be hexadecimal digits.
        text = _literal(load_queries("postgres")[query])
        with self._translated():
            return self._connection.execute(text, self._encoded(params), binary=True).fetchall()

    def execute_count(self, sql: str, params: Mapping[str, object]) -> int:
        with self._translated():
            return self._connection.execute(_literal(sql), self._encoded(params)).rowcount

    def script(self, sql: str) -> None:
        with self._translated():
            self._connection.execute(_literal(sql))
            # If it drops or alters anything, psycopg drops all statements that are prepared.
            self._connection.forget_prepared()

    def insert(self, relation: Relation, rows: Sequence[Row]) -> None:
        way = _way_in(relation)
        if self._is_batch and len(rows) <= _FEW_ROWS:
            encoding = self._open.encoding
            self.unsent += [way.statement(row, encoding) for row in rows]
            return
        rows = [_encode_row(row, way.coded) for row in rows]
        with self._translated(), self._connection.cursor() as cursor:
            if len(rows) == 1:
                cursor.execute(way.insert, rows[0])
            elif len(rows) <= _FEW_ROWS:
                cursor.executemany(way.insert, rows)
            else:
                with cursor.copy(way.copy) as copy:
                    for row in rows:
                        copy.write_row(row)

    def insert_columns(self, relation: Relation, table_id: str, columns: pa.Table) -> None:
        from deltalakedb.store.postgres_arrow import as_text, plain_columns

        names = plain_columns(relation, columns)
        if names is None:
            super().insert_columns(relation, table_id, columns)
            return
        statement = _literal(f"COPY {relation.name} (table_id, {', '.join(names)}) FROM STDIN")
        with self._translated(), self._connection.cursor() as cursor:  # noqa: SIM117 - the cursor's
            with cursor.copy(statement) as copy:
                for data in as_text(table_id, columns.select(names)):
                    for start in range(0, len(data), _COPY_BYTES):
                        copy.write(data[start : start + _COPY_BYTES])
                    copy.write(b"\n")

    @contextmanager
    def cursor(self, sql: str, params: Mapping[str, object]) -> Iterator[psycopg.ServerCursor[Row]]:
        """Run SQL whose rows stay with the server until they are fetched."""
        with self._connection.cursor(name="deltalakedb_rows") as cursor:
            yield cursor.execute(_literal(sql), self._encoded(params))

    def stream(
        self, sql: str, params: Mapping[str, object], *, size: int
    ) -> Iterator[Sequence[Row]]:
        with self._translated(), self.cursor(sql, params) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._is_batch = True
        try:
            yield
        finally:
            self._is_batch = False

    def read_all(self) -> None:
        self.execute(
            "SET LOCAL enable_seqscan = on;"
            " SET LOCAL enable_hashjoin = on;"
            " SET LOCAL enable_mergejoin = on",
            {},
        )

    def write_keys(self, rows: Sequence[Row]) -> None:
        *_, path, dv_id, _ = range(len(KEY_PARAMETERS))
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(load_queries("postgres")["create_incoming_keys"])
            with cursor.copy("COPY dl_incoming_keys FROM STDIN") as copy:
                for row in rows:
                    encoded = list(row)
                    encoded[path], encoded[dv_id] = _encode(row[path]), _encode(row[dv_id])
                    copy.write_row(encoded)
            cursor.execute(load_queries("postgres")["write_keys"])
            cursor.execute("DROP TABLE dl_incoming_keys")
            self._connection.forget_prepared()  # as in `script`

    def close_files(self, table_id: str, version: int, keys: Sequence[tuple[str, str]]) -> int:
        rows = [
            {"table_id": table_id, "version": version, "path": _encode(p), "dv_id": _encode(d)}
            for p, d in keys
        ]
        with self._translated(), self._connection.cursor() as cursor:
            cursor.executemany(_literal(load_queries("postgres")["close_files"]), rows)
            return cursor.rowcount

    def array(self, values: Sequence[str]) -> object:
        return [_encode(value) for value in values]

    def map_parameter(self, document: str) -> object:
        return _Encoded(_encode_map(document))

    def decode_text(self, text: str) -> str:
        return _ESCAPED.sub(lambda m: _UNESCAPED[m[1]], text) if _ESCAPE in text else text

    @staticmethod
    def _encoded(params: Mapping[str, object]) -> dict[str, Any]:
        return {k: _encode(v) if type(v) is str else v for k, v in params.items()}


@dataclass(frozen=True, slots=True)
class _WayIn:
    """How rows of a relation are written, and which of their columns must be encoded."""

    insert: LiteralString
    copy: LiteralString
    coded: tuple[tuple[int, Kind], ...]
    text: bytes
    formats: tuple[int, ...] | None
    dumps: tuple[Callable[[Any, str], bytes], ...]

    def statement(self, row: Row, encoding: str) -> Statement:
        """The insert of a row as it is sent."""
        params = [
            None if value is None else dump(value, encoding)
            for dump, value in zip(self.dumps, row, strict=True)
        ]
        return Statement(self.text, params, self.formats)


@cache
def _way_in(relation: Relation) -> _WayIn:
    columns = ", ".join(relation.columns)
    into = f"INSERT INTO {relation.name} ({columns}) VALUES"
    marks = ", ".join(["%s"] * len(relation.columns))
    numbers = ", ".join(f"${n}" for n in range(1, len(relation.columns) + 1))
    formats = tuple(int(kind is Kind.BYTES) for kind in relation.kinds)
    return _WayIn(
        _literal(f"{into} ({marks})"),
        _literal(f"COPY {relation.name} ({columns}) FROM STDIN"),
        tuple(
            (position, kind)
            for position, kind in enumerate(relation.kinds)
            if kind in (Kind.TEXT, Kind.MAP, Kind.LIST)
        ),
        f"{into} ({numbers})".encode(),
        formats if any(formats) else None,
        tuple(_DUMPS.get(kind, str.encode) for kind in relation.kinds),
    )


_DUMPS: Mapping[Kind, Callable[[Any, str], bytes]] = {
    Kind.TEXT: lambda value, encoding: _encode(value).encode(encoding),
    Kind.INT: lambda value, _: b"%d" % value,
    Kind.BOOL: lambda value, _: b"t" if value else b"f",
    Kind.MAP: lambda value, encoding: _encode_map(value).encode(encoding),
    Kind.LIST: lambda value, encoding: _list_text(value).encode(encoding),
    Kind.BYTES: lambda value, _: bytes(value),
}
# The other kinds are texts that need no encoding.


def _list_text(values: Sequence[str]) -> str:
    """A list of strings as Postgres writes an array."""
    quoted = [_encode(value).replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"


_PARAMETER = re.compile(r"%\(([a-z_]+)\)s|%%")


@cache
def _numbered(query: str) -> tuple[bytes, tuple[str, ...]]:
    """A named query with parameters $1, $2, …, and their names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "%"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(number, load_queries("postgres")[query])
    return text.encode(), tuple(names)


def _statement(query: str, params: Mapping[str, bytes]) -> Statement:
    text, names = _numbered(query)
    return Statement(text, [params[name] for name in names])


def _literal(text: str) -> LiteralString:
    # SQL comes from this package's files and from the closed set of relations only.
    return text


def _encode(text: str) -> str:
    if _ESCAPE in text:
        text = text.replace(_ESCAPE, f"{_ESCAPE}1")
    return text.replace("\x00", f"{_ESCAPE}0") if "\x00" in text else text


def _encode_row(row: Row, coded: Sequence[tuple[int, Kind]]) -> Row:
    values: list[Any] | None = None
    for position, kind in coded:
        old = row[position]
        if old is None:
            continue
        if kind is Kind.TEXT:
            new: object = _encode(old)
        elif kind is Kind.LIST:
            new = [_encode(item) for item in old]
        else:
            new = _encode_map(old)
        if new is not old:
            values = list(row) if values is None else values
            values[position] = new
    return row if values is None else tuple(values)


class _Encoded(str):
    """Text that must not be encoded once more."""

    __slots__ = ()


def _encode_map(document: str) -> str:
    if (
        "\\u0000" in document
        or _ESCAPE in document
        or len(document) > _FINEST
        or _FAR_EXPONENT.search(document)
    ):
        return dumps(_encode_json(loads(document)))
    return document


def _encode_json(value: Any) -> Any:
    if isinstance(value, str):
        return _encode(value)
    if isinstance(value, list):
        return [_encode_json(item) for item in value]
    if isinstance(value, dict):
        return {_encode(key): _encode_json(item) for key, item in value.items()}
    if isinstance(value, Decimal) and not _is_numeric(value):
        return str(value)
    return value


def _is_numeric(value: Decimal) -> bool:
    return value.adjusted() < _GREATEST and int(value.as_tuple().exponent) >= -_FINEST


_Translating = Mapping[type[CatalogConnectionLostError], Translating]
_COMMIT = Statement(b"COMMIT")
_ROLLBACK = Statement(b"ROLLBACK")


class _Transaction(Transaction[PostgresConnection, PostgresSession]):
    """A transaction that starts with `begin`."""

    __slots__ = (
        "_begin",
        "_clock",
        "_lost_at_commit",
        "_session",
        "_take",
        "_translating",
        "_url",
    )

    def __init__(
        self,
        pool: Pool[PostgresConnection],
        url: CatalogUrl,
        begin: LiteralString,
        translating: _Translating,
        lost_at_commit: type[CatalogConnectionLostError],
        *,
        clock: RemoteClock,
        take: Take | None = None,
    ) -> None:
        super().__init__(pool)
        self._take = take
        self._url = url
        self._begin = begin
        self._translating = translating
        self._lost_at_commit = lost_at_commit
        self._clock = clock

    def _begun(self) -> PostgresSession:
        try:
            return self._try()
        except CatalogConnectionLostError:
            # The server closed this idle connection, and then surely its neighbours too.
            self._pool.discard(self)
            self._pool.discard_idle()
        return self._try()

    def _try(self) -> PostgresSession:
        connection = self._connection = self._pool.acquire(self)
        translating = self._translating[CatalogConnectionLostError]
        # A session must not keep its transaction: the pool waits for that to be collected.
        session = self._session = PostgresSession(connection, lambda: translating)
        take = self._take
        if take is not None and not connection.is_pooled and not self._clock.is_due():
            try:
                session.begin(self._begin, take)
            except DeltaLakeDbError:
                self._rollback()
                raise
            return session
        with translating:
            connection.begin(self._begin)
            if self._clock.is_due():
                self._read_clock()
        return session

    def _read_clock(self) -> None:
        """Read the clock of the server here, so that no transaction waits for it."""
        asked_at = time.monotonic()
        row = self._connection.execute(_literal(load_queries("postgres")["clock"])).fetchone()
        if row is not None:
            self._clock.set(int(row[0]), asked_at=asked_at)

    def _commit(self) -> None:
        lost: type[CatalogConnectionLostError] = self._lost_at_commit
        statements = [*self._session.unsent, _COMMIT]
        try:
            with self._translating[lost]:
                results = self._connection.together(statements)
            if len(results) < len(statements):
                lost = CatalogConnectionLostError  # an insert has failed
            with self._translating[lost]:
                raise_failed(results)
        except DeltaLakeDbError:
            self._rollback()
            raise
        # COMMIT after a failed statement succeeds, as a rollback; see its command tag.
        if results[-1].command_status != b"COMMIT":
            raise CatalogError(
                f"{self._url.display} rolled a transaction back instead of committing it",
                why="A statement inside it had failed",
                fix="Try again; nothing was written",
            )

    def _rollback(self) -> None:
        self._session.unsent.clear()
        status = self._connection.info.transaction_status
        if status != pq.TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                self._connection.together([_ROLLBACK])
                if status == pq.TransactionStatus.INERROR:
                    # Maybe because a prepared statement is gone.
                    self._connection.forget_prepared()

    def _translate(self, error: BaseException) -> None:
        if isinstance(error, psycopg.Error):
            raise _translate(error, self._url, CatalogConnectionLostError) from error


class PostgresDialect(Dialect):
    """One schema of one database."""

    engine: ClassVar[Engine] = "postgres"
    poll_seconds: ClassVar[float] = 2.0  # LISTEN reports new work

    def __init__(self, url: CatalogUrl) -> None:
        self.url = url
        self._translating = {
            lost: Translating(psycopg.Error, partial(_translate, url=url, lost=lost))
            for lost in (CatalogConnectionLostError, CommitOutcomeUnknownError)
        }
        self._pool = self._new_pool()
        # Listings last as long as their reader likes: commits must not wait for them.
        self._listings = self._new_pool()
        self._arrow: ArrowReader | None = None
        self._arrow_lock = ProcessLock()
        self._notifier: Notifier | None = None
        self._is_pooled: bool | None = None
        self._closed = False
        self._clock = RemoteClock()
        self._turn_places = Places(url.pool_size - 1)

    def now_ms(self) -> int:
        """The server's clock: writers and workers on many machines agree on no other."""
        if not self._clock.is_set:
            with self.read():
                pass
        return self._clock.now_ms()

    def _new_pool(self) -> Pool[PostgresConnection]:
        return Pool(
            self._connect,
            close=_close,
            alive=_is_idle,
            size=self.url.pool_size,
            timeout=self.url.timeout,
        )

    def _connect(self) -> PostgresConnection:
        failure: DeltaLakeDbError
        try:
            connection = PostgresConnection.reach(self.url)
        except psycopg.Error as error:
            failure = _unreachable(error, self.url)
        except UnicodeError as error:  # a host name that no resolver can be asked for
            failure = _unreachable(psycopg.OperationalError(str(error)), self.url)
        else:
            try:
                with self._translated():
                    connection.configure()
            except BaseException:
                connection.close()
                raise
            self._is_pooled = self._is_pooled or connection.is_pooled
            return connection
        # Raised outside the handler: libpq's own message may quote the whole URL.
        raise failure

    def read(self) -> AbstractContextManager[Session]:
        """READ COMMITTED: enough, because the ledger of a version never changes."""
        return self._transaction(_BEGIN_READ, CatalogConnectionLostError, self._pool)

    def ask(self, question: Callable[[Session], T]) -> T:
        """One statement is a transaction by itself: two round trips fewer."""
        try:
            return self._ask(question)
        except CatalogConnectionLostError:
            # The server closed this idle connection, and then surely its neighbours too.
            self._pool.discard_idle()
        return self._ask(question)

    def _ask(self, question: Callable[[Session], T]) -> T:
        with Hold(self._pool) as connection:
            if not connection.is_pooled:
                return question(PostgresSession(connection, self._translated))
        return super().ask(question)

    def list_files(self, query: FileQuery) -> Generator[pa.RecordBatch, None, None]:
        # The Arrow driver prepares its statements, which a pooler may pass on to another session.
        if query.values or self._is_behind_pooler():
            return self._rows(query)
        return self._arrow_reader().list_files(query)

    def _is_behind_pooler(self) -> bool:
        if self._is_pooled is None:
            with Hold(self._pool):  # the first connection finds out
                pass
        return bool(self._is_pooled)

    def _rows(self, query: FileQuery) -> Generator[pa.RecordBatch, None, None]:
        from deltalakedb.store.postgres_arrow import decoded

        schema = schema_of(query.columns)
        text = self.sql(query.text)
        with self._transaction(_BEGIN_READ, CatalogConnectionLostError, self._listings) as session:
            if not query.by_index:
                session.read_all()
            with session.cursor(text, query.params) as cursor:
                for batch in batches_of_rows(cursor.fetchmany, schema):
                    yield decoded(batch)

    def _arrow_reader(self) -> ArrowReader:
        with self._arrow_lock.lock:
            if self._arrow is None:
                from deltalakedb.store.postgres_arrow import ArrowReader

                self._arrow = ArrowReader(self.url)
                if self._closed:
                    self._arrow.close()
            return self._arrow

    def write(self) -> AbstractContextManager[Session]:
        """READ COMMITTED; the compare-and-set of a head waits for the writer before it."""
        return self._transaction(_BEGIN_WRITE, CommitOutcomeUnknownError, self._pool)

    def begin_commit(self, take: Take) -> AbstractContextManager[Session]:
        return self._transaction(_BEGIN_WRITE, CommitOutcomeUnknownError, self._pool, take)

    def _transaction(
        self,
        begin: LiteralString,
        lost_at_commit: type[CatalogConnectionLostError],
        pool: Pool[PostgresConnection],
        take: Take | None = None,
    ) -> _Transaction:
        return _Transaction(
            pool, self.url, begin, self._translating, lost_at_commit, clock=self._clock, take=take
        )

    def _translated(
        self, lost: type[CatalogConnectionLostError] = CatalogConnectionLostError
    ) -> Translating:
        return self._translating[lost]

    @contextmanager
    def turn(self, table_id: str, purpose: Purpose) -> Iterator[Turn | None]:
        """Processes exclude each other by an advisory lock, which ends with its transaction.

        The transaction is open during the whole turn, so not every connection may be in one:
        commits need one too. A turn beyond that number excludes only threads of this process.
        """
        with super().turn(table_id, purpose) as turn, self._turn_places.take() as has_place:
            if turn is None or not has_place:
                yield turn
                return
            with self._transaction(_BEGIN_WRITE, CatalogConnectionLostError, self._pool) as session:
                row = session.one("take_turn", lock=_TURN_LOCK, name=_turn(purpose, table_id))
                yield Turn(session) if row is not None and row[0] else None

    def wait_for_publisher(self, table_id: str, version: int, seconds: float) -> bool:
        """Wait for the end of its turn: the lock is granted to all that wait for it at once."""
        with self._turn_places.take() as has_place:
            if has_place:
                with Hold(self._pool) as connection:
                    if not connection.is_pooled:
                        return self._wait(connection, table_id, version, seconds)
        return super().wait_for_publisher(table_id, version, seconds)

    def _wait(
        self, connection: PostgresConnection, table_id: str, version: int, seconds: float
    ) -> bool:
        """One round trip: nothing is held while the answer is on its way."""
        named = load_queries("postgres")
        queries = [named[name] for name in ("limit_waiting", "await_turn", "mirror_state")]
        params = {
            "limit": f"{max(1, round(seconds * 1000))}ms",
            "lock": _TURN_LOCK,
            "name": _turn("publish", table_id),
            "table_id": table_id,
            "version": version,
        }
        try:
            with self._translated():
                cursor = psycopg.ClientCursor(connection)
                cursor.execute(_literal("; ".join((_BEGIN_READ, *queries, "COMMIT"))), params)
                for _ in range(len(queries)):
                    cursor.nextset()
                row = cursor.fetchone()
        except CatalogBusyError:
            connection.execute("ROLLBACK")
            connection.forget_prepared()
            return False
        return row is not None and row[0] == "SUCCEEDED"

    def wake_workers(self) -> None:
        with self._arrow_lock.lock:
            if self._notifier is None:
                from deltalakedb.store.postgres_connection import Notifier

                self._notifier = Notifier(self._connect)
        if not self._closed:
            self._notifier.send()

    @contextmanager
    def listen(self, ring: Callable[[], None]) -> Iterator[None]:
        from deltalakedb.store.postgres_connection import listening

        with listening(self._connect, ring):
            yield

    def lock_migrations(self, session: Session) -> None:
        """Take an advisory lock until the transaction ends; create the schema if it is named."""
        session.execute(
            "SELECT pg_advisory_xact_lock(%(lock)s,"
            " hashtext(coalesce(current_schema(), %(schema)s)))",
            {"lock": _MIGRATION_LOCK, "schema": self.url.schema or ""},
        )
        if self.url.schema is not None:
            exists = session.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = %(schema)s",
                {"schema": self.url.schema},
            )
            if not exists:
                session.script(f"CREATE SCHEMA {sql.Identifier(self.url.schema).as_string()}")

    def close(self) -> None:
        for owner in self._pool.held_here():
            self._pool.discard(owner)
        self._pool.close()
        self._listings.close()
        with self._arrow_lock.lock:
            self._closed = True
            if self._notifier is not None:
                self._notifier.close()
            if self._arrow is not None:
                self._arrow.close()


def _turn(purpose: Purpose, table_id: str) -> str:
    return f"{purpose} {table_id}"


def _is_idle(connection: PostgresConnection) -> bool:
    return not connection.closed and connection.info.transaction_status == pq.TransactionStatus.IDLE


def _close(connection: PostgresConnection) -> None:
    connection.close()


def _reason(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)


def _unreachable(error: psycopg.Error, url: CatalogUrl) -> DeltaLakeDbError:
    refused = isinstance(error, psycopg.ProgrammingError)
    return unreachable(url, _reason(error), refused_options=refused)


def _translate(
    error: psycopg.Error, url: CatalogUrl, lost: type[CatalogConnectionLostError]
) -> DeltaLakeDbError:
    state = error.sqlstate or ""
    broken = not state and isinstance(error, psycopg.OperationalError)
    rights = _rights(url) if is_forbidden(state) else None
    return translate(url, state, _reason(error), broken=broken, lost=lost, rights=rights)


def _rights(url: CatalogUrl) -> Rights | None:
    """What the role may do here; the connection it was refused on can answer nothing just now."""
    try:
        with PostgresConnection.open(url) as asked:
            asked.begin(_BEGIN_READ)
            row = asked.execute(_literal(load_queries("postgres")["rights"])).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else Rights.from_row(row)
