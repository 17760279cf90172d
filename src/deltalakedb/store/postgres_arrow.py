"""Postgres: listings as Arrow, by ADBC's binary COPY, on connections of their own.

COPY takes no parameters, and with parameters ADBC holds the whole result before it gives any of it.
UUIDs and whole numbers are therefore written into the text, by a function that accepts nothing
else. A query with any other value goes through psycopg and a cursor of the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.errors import (
    CatalogConnectionLostError,
    DeltaLakeDbError,
    MissingDriverError,
)
from deltalakedb.store.arrow import KINDS, as_schema, schema_of
from deltalakedb.store.pool import Hold, Pool
from deltalakedb.store.postgres_connection import (
    driver_options,
    is_working,
    patience,
    translate,
    unreachable,
)
from deltalakedb.store.queries import replace_parameters
from deltalakedb.store.relations import Kind, Relation

if TYPE_CHECKING:
    from deltalakedb.store.arrow import FileQuery
    from deltalakedb.store.url import CatalogUrl

try:
    from adbc_driver_manager import dbapi
    from adbc_driver_postgresql import StatementOptions
    from adbc_driver_postgresql import dbapi as postgres
except ImportError as error:
    raise MissingDriverError(
        "Listing files of a postgresql:// catalog needs its Arrow driver, which is not installed",
        fix="Run: pip install 'deltalakedb[postgres]'",
    ) from error


T = TypeVar("T")

_ESCAPE = "\ue000"
_ESCAPE_BYTE = _ESCAPE.encode()[:1]
_OPTIONS = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(4 << 20)}


class _Work(Generic[T]):
    """A call of the driver, in a thread of its own: nothing else can end waiting for a server."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_over = False
        self._then: Callable[[], None] | None = None
        self._result: T
        self._error: BaseException | None = None
        self._bell = threading.Lock()
        self._bell.acquire()

    def start(self) -> None:
        """Begin. The link knows of it by then: an interrupt must not close a link in use."""
        try:
            threading.Thread(target=self._run, name="deltalakedb-arrow", daemon=True).start()
        except RuntimeError:  # the interpreter ends
            self._run()

    def _run(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._has_begun = True
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        with self._lock:
            self._is_over = True
            then = self._then
        self._bell.release()
        if then is not None:
            then()

    def is_over(self, seconds: float) -> bool:
        """Whether it comes to its end within a time."""
        return self._is_over or self._bell.acquire(timeout=seconds)

    def result(self) -> T:
        """The result, or its error is raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def and_then(self, call: Callable[[], None]) -> None:
        """Call something when it is over: now, or later; what has not begun never will."""
        with self._lock:
            if self._has_begun and not self._is_over:
                self._then = call
                return
            self._is_over = True
        call()


class _Link:
    """A connection, and whether it is fit for another listing."""

    def __init__(self, url: CatalogUrl) -> None:
        self._url = url
        self._work: _Work[Any] | None = None
        self._cursor: dbapi.Cursor | None = None
        self._backend: int | None = None
        self._connection: dbapi.Connection | None = None
        self.fit = True
        self.is_new = True
        self.by_index = False

    def connect(self) -> None:
        """Connect: the driver asks for the types of the server then."""

        def call() -> None:
            self._connection = postgres.connect(_conninfo(self._url), autocommit=True)

        self._patiently(call)

    def configure(self) -> None:
        """Set what the catalog needs."""
        row = self._patiently(lambda: self._run(_settings(self._url)).fetchone())
        self._backend = None if row is None else int(row[0])

    def start(self, text: str, *, by_index: bool) -> pa.RecordBatchReader:
        """The result of a query, to be read with `read`.

        The planner may read whole relations, or not: without statistics it may think them tiny.
        Looking each of 100,000 files up by reading all of them would take minutes.
        """
        if by_index != self.by_index:
            setting = "off" if by_index else "on"
            change = f"SELECT set_config('enable_seqscan', '{setting}', false)"
            self._patiently(lambda: self._run(change))
            self.by_index = by_index
        return self._patiently(lambda: self._run(text).fetch_record_batch())

    def read(self, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        """The next batch; None after the last one."""
        return self._patiently(lambda: next(reader, None))

    def answers(self) -> bool:
        """Whether the connection is still good for anything."""
        try:
            self._patiently(lambda: self._run("SELECT 1"))
        except (dbapi.Error, DeltaLakeDbError):
            return False
        return True

    def _run(self, text: str) -> dbapi.Cursor:
        self.finish()
        assert self._connection is not None  # noqa: S101 - it is connected first
        self._cursor = self._connection.cursor(adbc_stmt_kwargs=_OPTIONS)
        self._cursor.execute(text)
        return self._cursor

    def _patiently(self, call: Callable[[], T]) -> T:
        limit = patience(self._url)
        work: _Work[T] = _Work(call)
        self._work = work
        work.start()
        while not work.is_over(limit):
            if is_working(self._url, self._backend) or work.is_over(0):
                continue
            raise CatalogConnectionLostError(
                f"The connection to {self._url.display} was lost",
                why=f"The server did not answer for {limit:g} s, and does not work on the query",
                fix="Try again when the server is back",
            )
        self._work = None
        return work.result()

    def finish(self) -> None:
        """Close the result, if there is one."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None

    def close(self) -> None:
        """Close it, or let the driver do that when it comes back from what it waits for."""
        if self._work is None:
            self._close()
        else:
            self._work.and_then(self._close)

    def _close(self) -> None:
        # The connection is lost: errors of closing it do not matter. RuntimeError: closing the
        # result was interrupted before, or has failed.
        with suppress(dbapi.Error, RuntimeError):
            self.finish()
        self._cursor = None
        with suppress(dbapi.Error, RuntimeError):
            if self._connection is not None:
                self._connection.close()


class ArrowReader:
    """Runs listings on connections that it keeps."""

    def __init__(self, url: CatalogUrl) -> None:
        self._url = url
        self._pool: Pool[_Link] = Pool(
            self._connect,
            close=_Link.close,
            alive=lambda link: link.fit,
            size=url.pool_size,
            timeout=url.timeout,
        )

    def list_files(self, query: FileQuery) -> Generator[pa.RecordBatch, None, None]:
        """The batches of a query that has keys only."""
        schema = schema_of(query.columns)
        text = with_literals(query.text, query.keys)
        while True:
            with Hold(self._pool) as link:
                # In the middle of a COPY, or after an error, it would have to be drained first.
                link.fit = False
                try:
                    reader = self._begun(link, text, by_index=query.by_index)
                except CatalogConnectionLostError:
                    if link.is_new:
                        raise
                else:
                    while (batch := self._next(link, reader)) is not None:
                        yield decoded(as_schema(batch, schema))
                    link.finish()
                    link.fit, link.is_new = True, False
                    return
            # The server closed this idle connection, and then surely its neighbours too.
            self._pool.discard_idle()

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        self._pool.close()

    def _begun(self, link: _Link, text: str, *, by_index: bool) -> pa.RecordBatchReader:
        try:
            return link.start(text, by_index=by_index)
        except dbapi.Error as error:
            raise _translate(error, self._url) from error

    def _next(self, link: _Link, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        try:
            return link.read(reader)
        except (OSError, pa.ArrowException) as error:
            # Arrow's stream loses the SQLSTATE; only whether the connection still answers can be
            # checked.
            raise translate(self._url, "", str(error), broken=not link.answers()) from error

    def _connect(self) -> _Link:
        link = _Link(self._url)
        failure: DeltaLakeDbError
        try:
            link.connect()
        except dbapi.Error as error:
            failure = unreachable(self._url, str(error), refused_options=False)
        except BaseException:
            link.close()
            raise
        else:
            try:
                link.configure()
            except dbapi.Error as error:
                link.close()
                raise _translate(error, self._url) from error
            except BaseException:
                link.close()
                raise
            return link
        # Raised outside the handler: libpq's own message may quote the whole URL.
        raise failure


def _translate(error: dbapi.Error, url: CatalogUrl) -> DeltaLakeDbError:
    broken = not error.sqlstate and isinstance(error, dbapi.OperationalError)
    return translate(url, error.sqlstate or "", str(error), broken=broken)


def _conninfo(url: CatalogUrl) -> str:
    options = [f"{name}={text}" for name, text in driver_options(url).items()]
    joint = "&" if "?" in url.target else "?"
    return url.target + (joint + "&".join(options) if options else "")


def _settings(url: CatalogUrl) -> str:
    # 0 would mean to wait for ever.
    text = (
        "SELECT pg_backend_pid(),"
        f" set_config('lock_timeout', '{max(1, int(url.timeout * 1000))}ms', false)"
    )
    if url.schema is not None:
        text += f", set_config('search_path', {_quoted_identifier(url.schema)}, false)"
    return text


def _quoted_identifier(name: str) -> str:
    """An identifier in double quotes, as a literal; quote_ident() would need a round trip."""
    # Hexadecimal digits cannot end the literal, whatever the name holds.
    digits = ('"' + name.replace('"', '""') + '"').encode().hex()
    return f"convert_from('\\x{digits}'::bytea, 'UTF8')"


def with_literals(text: str, keys: Mapping[str, str | int]) -> str:
    """SQL whose parameters are written into it: UUIDs and whole numbers, nothing else."""
    return replace_parameters(text, lambda name: _literal(keys[name]))


def _literal(value: object) -> str:
    if type(value) is int:
        return f"({value})::bigint"
    if type(value) is str:
        return f"'{UUID(value)}'::uuid"
    message = f"{type(value).__name__} cannot be written into SQL"
    raise TypeError(message)


# --- text ---------------------------------------------------------------------------------


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the two characters that Postgres stores otherwise back in their place."""
    for position, name in enumerate(batch.schema.names):
        kind = KINDS[name]
        if kind not in (Kind.TEXT, Kind.MAP):
            continue
        column = batch.column(position)
        if _has_escape(column):
            # A map is JSON, where NUL has to be an escape sequence.
            nul = "\x00" if kind is Kind.TEXT else "\\u0000"
            column = pc.replace_substring(column, f"{_ESCAPE}0", nul)
            column = pc.replace_substring(column, f"{_ESCAPE}1", _ESCAPE)
            batch = batch.set_column(position, batch.schema.field(position), column)
    return batch


def _has_escape(column: pa.Array) -> bool:
    # Looking for a byte in the whole buffer is ten times faster than for a text in each value.
    data = column.buffers()[-1]
    if data is None or _ESCAPE_BYTE not in data.to_pybytes():
        return False
    return bool(pc.any(pc.match_substring(column, _ESCAPE)).as_py())


# --- COPY -----------------------------------------------------------------------------

_ENCODED: Final = tuple(mark.encode() for mark in ("\0", "\t", "\n", "\r", "\ue000"))
_ENCODED_MAP: Final = r"\\u0000|[0-9]e-?[0-9]{5}"
_LONG: Final = 16_383
_BYTES_AT_ONCE: Final = 32 * 1024 * 1024


def plain_columns(relation: Relation, columns: pa.Table) -> list[str] | None:
    """The columns that are not null everywhere; None where a value is not plain."""
    names = []
    for name, kind in zip(relation.columns[1:], relation.kinds[1:], strict=True):
        column = columns[name]
        if column.null_count < len(column):
            if not _is_plain(column, kind):
                return None
            names.append(name)
    return names


def as_text(table_id: str, columns: pa.Table) -> Iterator[memoryview]:
    """Yield plain columns as text for COPY, in parts; each line begins with the table id."""
    most = max(1, _BYTES_AT_ONCE * columns.num_rows // max(1, columns.nbytes))
    for start in range(0, columns.num_rows, most):
        yield _lines(table_id, columns.slice(start, most))


def _lines(table_id: str, columns: pa.Table) -> memoryview:
    texts = [_texts(column.combine_chunks()) for column in columns.columns]
    ids = pa.scalar(table_id, pa.large_string())
    tab = pa.scalar("\t", pa.large_string())
    lines = pc.binary_join_element_wise(
        ids, *texts, tab, null_handling="replace", null_replacement="\\N"
    )
    every = pa.LargeListArray.from_arrays([0, len(lines)], lines)
    joined = pc.binary_join(every, pa.scalar("\n", pa.large_string()))
    return memoryview(joined.buffers()[2])


def _texts(column: pa.Array) -> pa.Array:
    if column.type == pa.string() and b"\\" in _bytes(column):
        column = pc.replace_substring(column, "\\", "\\\\")
    return column.cast(pa.large_string())


def _is_plain(column: pa.ChunkedArray, kind: Kind) -> bool:
    if kind in (Kind.LIST, Kind.BYTES):
        return False
    if column.type != pa.string():
        return True
    if kind is Kind.MAP:
        # Many files share a partition.
        maps = column.unique()
        encoded = pc.match_substring_regex(maps, _ENCODED_MAP)
        encoded = pc.or_(encoded, pc.greater(pc.binary_length(maps), _LONG))
        if pc.any(encoded).as_py():
            return False
        column = pa.chunked_array([maps])
    return not any(mark in text for text in map(_bytes, column.chunks) for mark in _ENCODED)


def _bytes(texts: pa.Array) -> bytes:
    """All of the texts, one after the other: what none of them has is not in there."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return b""
    ends = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]])
