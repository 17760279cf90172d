"""Connections to Postgres: time limits, poolers, errors and notifications.

- A connection that is silent for the time limit of the catalog URL is checked from a second one.
  While the server executes the statement, the wait continues. If the server does not answer or does
  not know the statement, the connection is closed and counts as lost.
- Behind a pooler (PgBouncer) each transaction can be another session of the server. Then settings
  are set per transaction, and no statement is prepared.
- `together` sends statements in one round trip, by libpq's pipeline mode: psycopg's own costs more
  than the round trips that it saves. Their parameters are in the formats of the protocol already.
- Errors are classified by SQLSTATE, for both drivers.
- Notifications of new work are optional: a lost one costs a worker the rest of its pause, so
  sending and listening never raise when the server is away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    LiteralString,
    NamedTuple,
    NoReturn,
    Self,
    TypeVar,
)

import psycopg
from psycopg import Connection, Error, OperationalError, generators, sql
from psycopg.errors import ProtocolViolation, error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.types.string import TextLoader

from deltalakedb.errors import (
    REPORT,
    CatalogBusyError,
    CatalogConnectionLostError,
    CatalogConstraintError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnreachableError,
    ConfigurationError,
    DeltaLakeDbError,
    TransactionAbortedError,
)
from deltalakedb.forking import keep_for_ever, renew_after_fork
from deltalakedb.store.dialect import Row
from deltalakedb.store.queries import load_queries
from deltalakedb.store.roles import MAKE_ROLES, MIRROR, READER, WRITER

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

    from deltalakedb.store.roles import Rights
    from deltalakedb.store.url import CatalogUrl

RV = TypeVar("RV")

LEAST_SECONDS: Final = 2.0
_GRACE_SECONDS: Final = 0.5
_PROBES: Final = 3
# libpq takes 0 and 1 for 2 seconds and for ever.
_LEAST_OF_LIBPQ: Final = 2
# A prepared statement that the session does not have.
_NOT_PREPARED: Final = b"26000"
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


class Statement(NamedTuple):
    """A statement with the parameters $1, $2, … as the protocol has them."""

    text: bytes
    params: Sequence[bytes | None] | None = None
    formats: Sequence[int] | None = None
    """0 for a parameter that is text, 1 for bytes; None if all are text."""


class PostgresConnection(Connection[Row]):
    """A connection in autocommit mode; see the module."""

    url: CatalogUrl
    is_pooled = False
    """Whether a pooler is in between."""
    encoding = "utf-8"
    """That of texts which are sent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prepared_names: dict[bytes, bytes] = {}
        self._num_prepared = 0

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
        self.encoding = self.info.encoding
        for name in ("uuid", "json", "jsonb"):
            self.adapters.register_loader(name, TextLoader)
        # A pooler has a number of its own. Settings of its connections would apply to others, so
        # they are set only if the number is that of the server; in one round trip.
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

    # --- many statements in one round trip ------------------------------------------------

    def together(self, statements: Sequence[Statement]) -> list[PGresult]:
        """Send statements at once; return their results, up to the first that failed.

        - They are prepared by their first use, unless they have no parameters.
        - OperationalError if the connection was lost before any of them failed. It is closed then,
          and after an interrupt.
        """
        pgconn = self.pgconn
        results: list[PGresult] = []
        new: list[bytes] = []
        try:
            pgconn.enter_pipeline_mode()
            sizes = [self._queue(statement, new) for statement in statements]
            pgconn.pipeline_sync()
            self.wait(_fetch_all(pgconn, sizes, new, results))
            pgconn.exit_pipeline_mode()
        except BaseException as error:
            self.close()
            if not isinstance(error, Error) or not (results and failed(results[-1])):
                raise
        if failed(results[-1]):
            if results[-1].error_field(DiagnosticField.SQLSTATE) == _NOT_PREPARED:
                self._prepared_names.clear()
            for text in new:
                self._prepared_names.pop(text, None)
        return results

    def _queue(self, statement: Statement, new: list[bytes]) -> int:
        """Queue a statement, after one that prepares it if it is `new`; return their number."""
        text, params, formats = statement
        if params is None or self.is_pooled:
            self.pgconn.send_query_params(text, params, param_formats=formats)
            return 1
        name = self._prepared_names.get(text)
        if name is not None:
            self.pgconn.send_query_prepared(name, params, param_formats=formats)
            return 1
        self._num_prepared += 1
        name = self._prepared_names[text] = b"dl_%d" % self._num_prepared
        new.append(text)
        self.pgconn.send_prepare(name, text)
        self.pgconn.send_query_prepared(name, params, param_formats=formats)
        return 2

    def forget_prepared(self) -> None:
        """Prepare all statements again, ours and those of psycopg."""
        if self.is_pooled:
            return
        self._prepared_names.clear()
        # psycopg looks at the result of a statement only where its text is new.
        self._num_prepared += 1
        self.execute(f"DEALLOCATE ALL /* {self._num_prepared} */".encode())

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


def _fetch_all(
    pgconn: PGconn, sizes: Sequence[int], new: list[bytes], results: list[PGresult]
) -> PQGen[None]:
    """Fetch the last result of each statement, or the first that failed, and the end of all.

    Statements that are prepared then are no longer `new`.
    """
    yield from generators.send(pgconn)
    for size in sizes:
        for number in range(1, size + 1):
            fetched = yield from generators.fetch_many(pgconn)
            if not fetched:
                raise OperationalError("the connection was closed")
            if results and failed(results[-1]):
                continue
            if number == size or failed(fetched[-1]):
                results.append(fetched[-1])
            else:
                del new[0]
    yield from generators.fetch_many(pgconn)


def failed(result: PGresult) -> bool:
    """Whether the result of a statement is an error."""
    return result.status == ExecStatus.FATAL_ERROR


def raise_failed(results: list[PGresult]) -> list[PGresult]:
    """Return the results; raise the error of the last, if it failed."""
    if failed(results[-1]):
        raise error_from_result(results[-1])
    return results


def rows_of(result: PGresult, encoding: str) -> list[list[str]]:
    """The rows of a result whose columns are never NULL, as text."""
    return [
        [
            (result.get_value(row, column) or b"").decode(encoding)
            for column in range(result.nfields)
        ]
        for row in range(result.ntuples)
    ]


def _give_up(limit: float) -> NoReturn:
    raise OperationalError(
        f"the server did not answer for {limit:g} s, and does not work on the statement"
    )


class _Probe(PostgresConnection):
    """A second connection, which is not checked itself."""

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
    values = {"lock_timeout": f"{max(1, int(url.timeout * 1000))}ms"}
    values |= dict.fromkeys(_PLANNER, "off")
    if url.schema is not None:
        values["search_path"] = sql.Identifier(url.schema).as_string()
    return values


# --- errors ---------------------------------------------------------------------------

_ANY_ROLE = (
    f"Grant it what it lacks: {READER} to read, {WRITER} to commit, {MIRROR} to publish. "
    f"`{MAKE_ROLES}` makes these roles"
)
_BUSY = frozenset({"55P03", "57014", "53300"})
_ABORTED = frozenset({"40001", "40P01", _NOT_PREPARED.decode()})
_GONE = frozenset({"57P01", "57P02", "57P03", "57P05"})


def unreachable(url: CatalogUrl, reason: str, *, refused_options: bool) -> DeltaLakeDbError:
    """Return the error for a failed connection attempt."""
    if refused_options:
        return CatalogUnreachableError(
            f"{url.display} has options that Postgres refuses",
            why=_redacted(reason, url),
            fix="Options after '?' are libpq parameters, e.g. sslmode=require",
        )
    return CatalogUnreachableError(
        f"{url.display} cannot be reached",
        why=_redacted(reason, url),
        fix="Check that the server runs and listens there, and the user, password, database "
        "and TLS options of the catalog URL",
    )


def is_forbidden(state: str) -> bool:
    """Whether the role lacks a right."""
    # 3F000: no schema of the search path may be used.
    return state in ("42501", "3F000")


def translate(
    url: CatalogUrl,
    state: str,
    reason: str,
    *,
    broken: bool,
    lost: type[CatalogConnectionLostError] = CatalogConnectionLostError,
    rights: Rights | None = None,
) -> DeltaLakeDbError:
    """Return the error for a statement that failed with `state`, or with a `broken` connection.

    `rights` are those of the role, where it `is_forbidden` and they could be asked for.
    """
    reason = _redacted(reason, url)
    if state in _ABORTED:
        return TransactionAbortedError(
            f"{url.display} ended a transaction that met another one", why=reason, fix="Try again"
        )
    if state in _BUSY:
        return CatalogBusyError(
            f"{url.display} stayed locked by another transaction for {url.timeout:g} s"
            if state == "55P03"
            else f"{url.display} is too busy",
            why=reason,
            fix="Try again, or raise timeout=… in the catalog URL",
        )
    if state.startswith("23"):
        return CatalogConstraintError(f"{url.display} refused a row", why=reason)
    if state == "54000":
        return CatalogConstraintError(
            f"{url.display} cannot index a text that is so long",
            why=reason,
            fix="Shorten the path, name, appId or domain: about 2600 bytes are always accepted",
        )
    if is_forbidden(state):
        return CatalogPermissionError(
            f"The database role of {url.display} may not do this",
            why=reason,
            fix=_ANY_ROLE if rights is None else rights.advice(),
        )
    if broken or state in _GONE or state.startswith("08"):
        return lost(
            f"The connection to {url.display} was lost",
            why=reason,
            fix="Try again when the server is back",
        )
    return CatalogError(
        f"{url.display} failed", why=f"{reason} (SQLSTATE {state or 'none'})", fix=REPORT
    )


def _redacted(reason: str, url: CatalogUrl) -> str:
    return url.redact(" ".join(reason.split()))


# --- notifications --------------------------------------------------------------------

CHANNEL: Final = "deltalakedb_mirror"
# The least time between two notifications, and how long their thread waits for the next.
# Sixteen writers that each send fifty in a second slow their commits down by a fifth.
_PAUSE_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 1.0
# How often a listener checks whether to end, and its pause after a failed connection.
_SLICE_SECONDS: Final = 0.5

# A notification may be lost with the server. The setting ends with the transaction, because the
# session may be shared.
_NOTIFY: Final = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}; COMMIT"

Connect = Callable[[], PostgresConnection]


class Notifier:
    """Sends notifications on a connection of its own, by a thread of its own.

    - Inside a commit, NOTIFY would serialise all commits of the database until they are on the
      disk; after it, it would be one more round trip.
    - The first notification after a pause is sent at once. While more are due, one is sent for
      all of them, each tenth of a second.
    - The thread ends when it has nothing to do.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: PostgresConnection | None = None
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_due = False
        self._bell = threading.Event()
        self._closed = threading.Event()

    def after_fork(self) -> None:
        """Leave the connection to the parent; the child opens its own when needed."""
        keep_for_ever(self._connection)
        self._connection = None
        self._start()

    def send(self) -> None:
        """Notify all listeners, soon."""
        with self._lock:
            if self._closed.is_set():
                return
            self._is_due = True
            self._bell.set()
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="deltalakedb-notifier", daemon=True
                )
                with suppress(RuntimeError):  # the interpreter ends
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while self._has_work():
            self._is_due = False
            is_old = self._connection is not None
            # An idle connection may have died with its server.
            if not self._try() and is_old:
                self._try()
            self._closed.wait(_PAUSE_SECONDS)

    def _has_work(self) -> bool:
        """Wait for a notification that is due; False ends the thread."""
        if not self._is_due and not self._closed.is_set():
            self._bell.wait(_IDLE_SECONDS)
        with self._lock:
            self._bell.clear()
            if not self._is_due:
                self._thread = None
            return self._is_due

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
        """Send the notification that is due, and close the connection."""
        with self._lock:
            self._closed.set()
            self._bell.set()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@contextmanager
def listening(connect: Connect, ring: Callable[[], None]) -> Iterator[None]:
    """Call `ring` for every notification during the block, from a thread of its own."""
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
                    # Behind a pooler another client would receive them: the worker polls.
                    return
                connection.execute(f"LISTEN {CHANNEL}")
                # Work that came before LISTEN has no notification.
                ring()
                while not ended.is_set():
                    for _ in connection.notifies(timeout=_SLICE_SECONDS, stop_after=1):
                        ring()
        except (psycopg.Error, DeltaLakeDbError):
            ended.wait(_SLICE_SECONDS)
