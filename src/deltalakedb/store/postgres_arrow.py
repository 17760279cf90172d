"""Postgres: listings as Arrow, by ADBC's binary COPY, on connections of their own.

COPY takes no parameters, and with parameters ADBC holds the whole result before it gives any of it.
UUIDs and whole numbers are therefore written into the text, by a function that accepts nothing
else. A query with any other value goes through psycopg and a cursor of the server.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
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
from deltalakedb.store.postgres_errors import translate, unreachable
from deltalakedb.store.queries import replace_parameters
from deltalakedb.store.relations import Kind

try:
    from adbc_driver_manager import dbapi
    from adbc_driver_postgresql import StatementOptions
    from adbc_driver_postgresql import dbapi as postgres
except ImportError as error:
    raise MissingDriverError(
        "Listing files of a postgresql:// catalog needs its Arrow driver, which is not installed",
        fix="Run: pip install 'deltalakedb[postgres]'",
    ) from error

if TYPE_CHECKING:
    from deltalakedb.store.arrow import FileQuery
    from deltalakedb.store.url import CatalogUrl

_ESCAPE = "\ue000"
_ESCAPE_BYTE = _ESCAPE.encode()[:1]
_OPTIONS = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(4 << 20)}


@dataclass(slots=True, eq=False)
class _Link:
    """A connection, and whether it is fit for another listing."""

    connection: dbapi.Connection
    fit: bool = True
    is_new: bool = True
    by_index: bool = False

    def prepare(self, *, by_index: bool) -> None:
        """Let the planner read whole relations, or not: without statistics it may think them tiny.

        Looking each of 100,000 files up by reading all of them would take minutes.
        """
        if by_index != self.by_index:
            setting = "off" if by_index else "on"
            self.execute(f"SELECT set_config('enable_seqscan', '{setting}', false)").close()
            self.by_index = by_index

    def execute(self, text: str) -> dbapi.Cursor:
        cursor = self.connection.cursor(adbc_stmt_kwargs=_OPTIONS)
        try:
            cursor.execute(text)
        except BaseException:
            cursor.close()
            raise
        return cursor

    def close(self) -> None:
        # Whatever is left of a lost connection, there is nobody to tell about it.
        with suppress(dbapi.Error):
            self.connection.close()


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
                    cursor = self._begun(link, text, by_index=query.by_index)
                except CatalogConnectionLostError:
                    if link.is_new:
                        raise
                else:
                    with cursor:
                        reader = cursor.fetch_record_batch()
                        while (batch := self._next(link, reader)) is not None:
                            yield decoded(as_schema(batch, schema))
                    link.fit, link.is_new = True, False
                    return
            # The server closed this idle connection, and then surely its neighbours too.
            self._pool.discard_idle()

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        self._pool.close()

    def _begun(self, link: _Link, text: str, *, by_index: bool) -> dbapi.Cursor:
        try:
            link.prepare(by_index=by_index)
            return link.execute(text)
        except dbapi.Error as error:
            raise _translate(error, self._url) from error

    def _next(self, link: _Link, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None
        except (OSError, pa.ArrowException) as error:
            # Arrow's stream loses the SQLSTATE on its way; whether the connection still answers
            # is what can be found out.
            raise translate(self._url, "", str(error), broken=not _answers(link)) from error

    def _connect(self) -> _Link:
        failure: DeltaLakeDbError
        try:
            link = _Link(postgres.connect(_conninfo(self._url), autocommit=True))
        except dbapi.Error as error:
            failure = unreachable(self._url, str(error), refused_options=False)
        else:
            try:
                link.execute(_settings(self._url)).close()
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


def _answers(link: _Link) -> bool:
    try:
        link.execute("SELECT 1").close()
    except dbapi.Error:
        return False
    return True


def _conninfo(url: CatalogUrl) -> str:
    # libpq itself takes 0 and 1 for 2 seconds and for ever.
    defaults = {
        "connect_timeout": str(max(2, int(url.timeout))),
        "application_name": "deltalakedb",
    }
    given = [f"{name}={text}" for name, text in defaults.items() if name not in url.options]
    joint = "&" if "?" in url.target else "?"
    return url.target + (joint + "&".join(given) if given else "")


def _settings(url: CatalogUrl) -> str:
    # 0 would mean to wait for ever.
    text = f"SELECT set_config('lock_timeout', '{max(1, int(url.timeout * 1000))}ms', false)"
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
