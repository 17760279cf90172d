"""Connections to Postgres that do not wait for ever, and that know what is between them and it.

- A connection that is silent for the time limit of the catalog URL is looked at from a second one.
  While the server works on the statement, the wait goes on, however long it takes. Where the server
  does not answer, or knows nothing of the statement, the connection is closed and counts as lost.
- Behind a pooler (PgBouncer) each transaction may be another session of the server. Nothing is
  kept in the session then: settings are those of the transaction, and no statement is prepared.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, LiteralString, NoReturn, Self, TypeVar

from psycopg import Connection, Error, OperationalError, sql
from psycopg.errors import ProtocolViolation
from psycopg.types.string import TextLoader

from deltalakedb.errors import ConfigurationError
from deltalakedb.store.dialect import Row
from deltalakedb.store.queries import load_queries

if TYPE_CHECKING:
    from psycopg.abc import PQGen

    from deltalakedb.store.url import CatalogUrl

RV = TypeVar("RV")

LEAST_SECONDS: Final = 2.0
_GRACE_SECONDS: Final = 0.5
_PROBES: Final = 3
# libpq takes 0 and 1 for 2 seconds and for ever.
_LEAST_OF_LIBPQ: Final = 2
_PLANNER: Final = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")


def patience(url: CatalogUrl) -> float:
    """How many seconds a connection may be silent before it is looked at."""
    return max(LEAST_SECONDS, url.timeout)


def driver_options(url: CatalogUrl) -> dict[str, str]:
    """Parameters of libpq that the URL does not have: time limits of the network."""
    seconds = max(_LEAST_OF_LIBPQ, int(patience(url)))
    defaults = {
        "connect_timeout": str(seconds),
        "application_name": "deltalakedb",
        # A peer that is gone is noticed by the system, also where nothing is sent.
        "keepalives_idle": str(seconds),
        "keepalives_interval": str(max(1, seconds // _PROBES)),
        "keepalives_count": str(_PROBES),
        "tcp_user_timeout": str(2 * seconds * 1000),
    }
    return {name: value for name, value in defaults.items() if name not in url.options}


class PostgresConnection(Connection[Row]):
    """A connection in autocommit mode; see the module."""

    url: CatalogUrl
    is_pooled = False
    """Whether a pooler is in between."""

    @classmethod
    def reach(cls, url: CatalogUrl) -> Self:
        """A connection that has yet to be configured."""
        options: dict[str, Any] = driver_options(url)
        connection = cls.connect(url.target, autocommit=True, **options)
        connection.url = url
        return connection

    @classmethod
    def open(cls, url: CatalogUrl) -> Self:
        """A connection with the settings of the catalog."""
        connection = cls.reach(url)
        try:
            connection.configure()
        except BaseException:
            connection.close()
            raise
        return connection

    def configure(self) -> None:
        """Set what the catalog needs, and find out whether a pooler is in between."""
        for name in ("uuid", "json", "jsonb"):
            self.adapters.register_loader(name, TextLoader)
        # A pooler gives its own number instead of the server's. What is set there would be set for
        # others, so it is set only if the numbers agree; in one round trip.
        set_them = sql.SQL(", ").join(
            sql.SQL("CASE WHEN pg_backend_pid() = {} THEN set_config({}, {}, false) END").format(
                self.info.backend_pid, name, value
            )
            for name, value in settings(self.url).items()
        )
        row = self.execute(sql.SQL("SELECT pg_backend_pid(), {}").format(set_them)).fetchone()
        self.is_pooled = row is None or row[0] != self.info.backend_pid
        if self.is_pooled:
            self.prepare_threshold = None
            self._check_transactions()

    def _check_transactions(self) -> None:
        try:
            self.execute("BEGIN")
            self.execute("ROLLBACK")
        except ProtocolViolation as error:
            raise ConfigurationError(
                f"{self.url.display} is a pooler that does not let transactions through",
                why=str(error),
                fix="Let it pool transactions or sessions, not statements (PgBouncer: "
                "pool_mode = transaction)",
            ) from error

    def begin(self, statement: LiteralString) -> None:
        """Begin a transaction, with the settings of the catalog."""
        if not self.is_pooled:
            self.execute(statement)
            return
        texts: list[sql.Composable] = [sql.SQL(statement)]
        for name, value in settings(self.url).items():
            texts.append(sql.SQL("SELECT set_config({}, {}, true)").format(name, value))
        self.execute(sql.SQL("; ").join(texts))

    # --- a server that is silent ----------------------------------------------------------

    def wait(self, gen: PQGen[RV], *how: Any, **options: Any) -> RV:
        """As psycopg does, but not for ever."""
        return super().wait(self._watched(gen), *how, **options)

    def _watched(self, gen: PQGen[RV]) -> Generator[Any, Any, RV]:
        limit = patience(self.url) if hasattr(self, "url") else None
        deadline = time.monotonic() + (limit or 0)
        is_suspect = False
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if limit is not None:
                    now = time.monotonic()
                    if ready:
                        deadline, is_suspect = now + limit, False
                    elif now >= deadline and is_suspect:
                        self.close()
                        _give_up(limit)
                    elif now >= deadline:
                        # An answer may have come in the meantime.
                        is_suspect = not self._is_working()
                        deadline = time.monotonic() + (_GRACE_SECONDS if is_suspect else limit)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result

    def _is_working(self) -> bool:
        return is_working(self.url, None if self.is_pooled else self.info.backend_pid)


def _give_up(limit: float) -> NoReturn:
    raise OperationalError(
        f"the server did not answer for {limit:g} s, and does not work on the statement"
    )


class _Probe(PostgresConnection):
    """A second connection, which nobody looks at."""

    def _is_working(self) -> bool:
        return False


def is_working(url: CatalogUrl, backend: int | None) -> bool:
    """Whether the server answers, and is busy with what the backend was asked to do.

    A backend that waits for its client instead is ended: its locks would stay until the server
    notices by itself that the client is gone, which can take hours. Without a backend, behind a
    pooler, it is enough that the server answers.
    """
    try:
        with _Probe.open(url) as probe:
            if backend is None:
                return True
            asked: Any = load_queries("postgres")["backend_is_working"]
            row = probe.execute(asked, {"backend": backend, "seconds": patience(url)}).fetchone()
    except Error:
        return False
    return row is not None and bool(row[0])


def settings(url: CatalogUrl) -> dict[str, str]:
    """What the catalog sets for its sessions, or where they are shared, for its transactions."""
    # 0 would mean to wait for ever.
    found = {"lock_timeout": f"{max(1, int(url.timeout * 1000))}ms"}
    found |= dict.fromkeys(_PLANNER, "off")
    if url.schema is not None:
        found["search_path"] = sql.Identifier(url.schema).as_string()
    return found
