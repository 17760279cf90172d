"""The interface of an engine: transactions, named queries, bulk inserts.

`postgres.py`, `sqlite.py` and `duckdb.py` hold the differences, each with its reason. Driver errors
leave this room only as DeltaLakeDbError, classified by SQLSTATE or error code, never by their text.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from deltalakedb.actions.order_keys import SLOTS
from deltalakedb.errors import CatalogUnreachableError, ForkedProcessError
from deltalakedb.store.pool import TURNS, C, Pool
from deltalakedb.store.queries import load_queries, rewrite
from deltalakedb.store.relations import Relation

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.arrow import FileQuery
    from deltalakedb.store.url import CatalogUrl, Engine

Row = tuple[Any, ...]
T = TypeVar("T")
S = TypeVar("S", bound="Session")


class Translating:
    """Inside `with`, a driver's error becomes one of ours; it may be entered any number of times.

    A class and not a generator, because every statement passes through it.
    """

    __slots__ = ("_kind", "_translate")

    def __init__(
        self,
        kind: type[Exception] | tuple[type[Exception], ...],
        translate: Callable[[Any], BaseException],
    ) -> None:
        self._kind = kind
        self._translate = translate

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and isinstance(error, self._kind):
            raise self._translate(error) from error


Translated = Callable[[], Translating]
_ONE_BY_ONE = nullcontext()
# The pause of a writer that waits for the publisher of its version.
_PAUSE_SECONDS = (0.001, 0.005)


KEY_PARAMETERS = (
    *(f"key{n}_{part}" for n in range(1, SLOTS + 1) for part in ("width", "low", "high")),
    *("table_id", "path", "dv_id", "removed_version"),
)


def rows_of_columns(relation: Relation, table_id: str, columns: pa.Table) -> list[Row]:
    """Columns as rows, each with the id of the table."""
    names = relation.columns[1:]
    return list(zip(repeat(table_id), *(columns[name].to_pylist() for name in names)))


def check_folder(url: CatalogUrl) -> None:
    """Refuse an embedded catalog in a folder that does not exist."""
    folder = Path(url.target).parent
    if not folder.is_dir():
        raise CatalogUnreachableError(
            f"{url.display} cannot be opened",
            why=f"The folder {folder} does not exist",
            fix="Create it, or correct the path (a relative path has three slashes)",
        )


class Take(NamedTuple):
    """A commit that is to take the head of its table."""

    table_id: str
    base: int
    """The version that the commit starts from."""
    last: int
    """The newest version that `Taken.since` may go up to."""
    commit_uuid: str
    paths: Sequence[str]
    """The paths whose live files the commit has to know."""
    unless_drifted: bool


class Since(NamedTuple):
    """The commits after the base of a commit, up to `Take.last`."""

    commits: int
    first: int
    others: int
    """How many of them do anything but add files."""
    own: int
    """How many have the UUID of the commit: one, if an earlier try of it was committed."""
    drifts: int
    """Not 0 where the log of the table holds commits that are not from here."""
    version: int
    committed_at: int
    counts: tuple[int, ...]

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Since:
        """The row of the query commits_since."""
        commits, first, others, own, drifts, version, committed_at, *counts = map(int, row)
        return cls(commits, first, others, own, drifts, version, committed_at, tuple(counts))


class Taken(NamedTuple):
    """The head of a table that a commit has taken, until its transaction ends."""

    version: int | None
    """The version that the commit becomes; None if the table is missing or has drifted."""
    since: Since | None = None
    """The commits of others in between; None where there are none."""
    live: dict[tuple[str, str], int] | None = None
    """The live files of `Take.paths`, if they were looked up: (path, dv_id) and size."""


class Session(ABC):
    """One open transaction. UUIDs and JSON come back as text, lists as lists or JSON text."""

    engine: ClassVar[Engine]
    opens_in_steps: ClassVar[bool] = False
    """Whether opening a table takes several statements, so that one to spare them pays."""

    def run(self, query: str, /, **params: object) -> list[Row]:
        """Run a named query; its rows, or an empty list when it returns none."""
        return self.execute(load_queries(self.engine)[query], params)

    def run_binary(self, query: str, /, **params: object) -> list[Row]:
        """As `run`, for a query that gives large BYTES."""
        return self.run(query, **params)

    def pages_at(self, table_id: str, version: int, *, with_stats: bool) -> Iterable[Row]:
        """The pages that serve a version: files, statistics, removed, and three versions.

        Those are the one up to which there are pages, and the newest at or before this one at
        which pages began and ended, or None. Pages may be read one by one, by an open session.
        """
        return self.run_binary(
            "pages_at", table_id=table_id, version=version, with_stats=int(with_stats)
        )

    def page_list_at(self, table_id: str, version: int) -> list[Row]:
        """The pages that serve a version: number, num_files, removed, and the same versions."""
        return self.run_binary("page_list_at", table_id=table_id, version=version)

    def page_bounds(self, first: int, last: int, **params: object) -> list[Row]:
        """The bounds of a column in pages from a number to another: number, type, bounds.

        Pages that serve the version are among them. Bounds are None where no file of the page can
        match.
        """
        return self.run_binary("page_bounds", first=first, last=last, **params)

    def pages_between(
        self, table_id: str, version: int, first: int, last: int, *, with_stats: bool
    ) -> Iterable[Row]:
        """The pages that serve a version, from a number to another: number, files, statistics."""
        return self.run_binary(
            "pages_between",
            table_id=table_id,
            version=version,
            first=first,
            last=last,
            with_stats=int(with_stats),
        )

    def page_texts(self, table_id: str, groups: Sequence[int], *, with_stats: bool) -> list[Row]:
        """Groups of texts of pages: number, paths and, where wanted, statistics."""
        return self.run_binary(
            "page_texts",
            table_id=table_id,
            groups=",".join(map(str, groups)),
            with_stats=int(with_stats),
        )

    def one(self, query: str, /, **params: object) -> Row | None:
        """The only row of a named query, or None."""
        rows = self.run(query, **params)
        return rows[0] if rows else None

    def changed(self, query: str, /, **params: object) -> int:
        """Run a named INSERT, UPDATE or DELETE; how many rows it changed."""
        return self.execute_count(load_queries(self.engine)[query], params)

    @abstractmethod
    def execute(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        """Run SQL that is already in the driver's parameter style."""

    @abstractmethod
    def execute_count(self, sql: str, params: Mapping[str, object]) -> int:
        """Run SQL that changes rows; how many."""

    @abstractmethod
    def stream(
        self, sql: str, params: Mapping[str, object], *, size: int
    ) -> Iterator[Sequence[Row]]:
        """As `execute`, at most `size` rows at a time, in bounded memory.

        Until it is exhausted or closed, nothing else may be asked of the session.
        """

    @abstractmethod
    def script(self, sql: str) -> None:
        """Run several statements without parameters (migrations)."""

    @abstractmethod
    def insert(self, relation: Relation, rows: Sequence[Row]) -> None:
        """Insert rows, in the column order of the relation, by the engine's fastest safe way."""

    def insert_columns(self, relation: Relation, table_id: str, columns: pa.Table) -> None:
        """Insert very many rows of one table, passed as columns without that of the table id.

        Only relations without lists and bytes.
        """
        self.insert(relation, rows_of_columns(relation, table_id, columns))

    def batch(self) -> AbstractContextManager[None]:
        """Statements inside may be sent together; an engine without that sends them one by one."""
        return _ONE_BY_ONE

    def bulk(self) -> AbstractContextManager[None]:
        """Inside, very many rows are written; an engine that need not know ignores it."""
        return _ONE_BY_ONE

    def array(self, values: Sequence[str]) -> object:
        """A list of strings as a parameter of a named query."""
        return list(values)

    def read_all(self) -> None:  # noqa: B027 - most engines need nothing here
        """What follows in this transaction reads whole relations: let the planner know."""

    def close_files(self, table_id: str, version: int, keys: Sequence[tuple[str, str]]) -> int:
        """End the interval of live files (path, dv_id) at `version`; how many there were."""
        return self.changed(
            "close_files",
            table_id=table_id,
            version=version,
            paths=self.array([path for path, _ in keys]),
            dv_ids=self.array([dv_id for _, dv_id in keys]),
        )

    def take_head(self, take: Take) -> Taken:
        """Move the head of a table to the next version, and hold it until the transaction ends."""
        table_id, base = take.table_id, take.base
        take_head = "take_sound_head" if take.unless_drifted else "take_head"
        head = self.one(take_head, table_id=table_id)
        if head is None:
            return Taken(None)
        if head[0] == base + 1:
            return Taken(base + 1)
        row = self.one(
            "commits_since",
            table_id=table_id,
            version=base,
            last=take.last,
            commit_uuid=take.commit_uuid,
        )
        return Taken(head[0], None if row is None else Since.from_row(row))

    def open_version(
        self,
        table_id: str,
        version: int | None,
        timestamp: int | None,
        known_metadata: int,
        known_protocol: int,
    ) -> Row | None:
        """The row of the query `open_version`."""
        return self.one(
            "open_version",
            table_id=table_id,
            version=version,
            timestamp=timestamp,
            known_metadata=known_metadata,
            known_protocol=known_protocol,
        )

    @abstractmethod
    def write_keys(self, rows: Sequence[Row]) -> None:
        """Set the keys of files; a row has a value for each of KEY_PARAMETERS."""

    def map_parameter(self, document: str) -> object:
        """The JSON text of a map as a parameter of a named query."""
        return document

    def decode_text(self, text: str) -> str:
        """Text of a row as it was before this engine stored it."""
        return text


class Transaction(ABC, Generic[C, S]):
    """One transaction on a connection of a pool: committed on success, else rolled back.

    After an interrupt its connection is closed: the driver may have been in the middle of anything.
    A forked child neither commits nor rolls back: the connection is its parent's.
    It is a class, because a generator would cost every commit more, and because the pool takes a
    connection back whose transaction is collected.
    """

    __slots__ = ("__weakref__", "_connection", "_forks", "_pool")

    def __init__(self, pool: Pool[C]) -> None:
        self._pool = pool
        self._connection: C
        self._forks: int

    def __enter__(self) -> S:
        self._forks = self._pool.forks
        try:
            return self._begun()
        except Exception:
            self._pool.release(self)
            raise
        except BaseException:
            self._pool.discard(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object
    ) -> None:
        if self._pool.forks != self._forks:
            if kind is None:
                raise ForkedProcessError(
                    "The transaction cannot be committed in this process",
                    why="it belongs to the process that forked this one",
                    fix="Begin it again in this process",
                )
            return
        is_known = False
        try:
            if kind is None:
                self._commit()
                is_known = True
            elif issubclass(kind, (Exception, GeneratorExit)):
                self._rollback()
                is_known = True
        except Exception:
            is_known = True
            raise
        finally:
            if is_known:
                self._pool.release(self)
            else:
                self._pool.discard(self)
        if error is not None:
            self._translate(error)

    @abstractmethod
    def _begun(self) -> S:
        """A session on a connection of the pool, whose transaction has begun."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit, or end the transaction and raise one of our errors."""

    @abstractmethod
    def _rollback(self) -> None:
        """End the transaction; raises nothing: the pool closes a connection that is not idle."""

    @abstractmethod
    def _translate(self, error: BaseException) -> None:
        """Raise one of our errors in the place of the driver's."""


Purpose = Literal["publish", "upkeep"]


class Turn(NamedTuple):
    """A turn that was taken."""

    session: Session | None = None
    """The open transaction that holds it; None where the turn is no transaction."""


class Dialect(ABC):
    """An engine, reached through a pool of connections."""

    engine: ClassVar[Engine]
    url: CatalogUrl

    @abstractmethod
    def read(self) -> _SessionContext:
        """A transaction that reads; it sees one consistent state where the engine allows."""

    @abstractmethod
    def write(self) -> _SessionContext:
        """A transaction that writes: committed on success, rolled back on any exception.

        Waits for other writers up to the URL's timeout. Raises CommitOutcomeUnknownError when the
        answer to COMMIT was lost.
        """

    def begin_commit(self, take: Take) -> _SessionContext:  # noqa: ARG002 - for servers
        """As `write`, for a transaction that begins with `take_head(take)`."""
        return self.write()

    def ask(self, question: Callable[[Session], T]) -> T:
        """What `question` finds with one statement that reads; it may be asked twice."""
        with self.read() as session:
            return question(session)

    @abstractmethod
    def list_files(self, query: FileQuery) -> Generator[pa.RecordBatch, None, None]:
        """The batches of a query, in the exact types of its columns, in bounded memory.

        It reads one consistent state on a connection of its own. The connection is taken with the
        first batch, and released when the iterator is exhausted, closed or collected.
        """

    def now_ms(self) -> int:
        """The time by the clock of the database; an embedded one has that of this machine."""
        return time.time_ns() // 1_000_000

    poll_seconds: ClassVar[float] = 0.2
    """How long a worker waits for a notification before it polls."""

    def wake_workers(self) -> None:  # noqa: B027 - only an engine with channels can
        """Notify waiting workers of versions to publish; never raises."""

    @contextmanager
    def listen(self, ring: Callable[[], None]) -> Iterator[None]:  # noqa: ARG002 - not here
        """Inside, `ring` is called whenever `wake_workers` was, by any process; maybe more often.

        Without a channel it never is.
        """
        yield

    @contextmanager
    def turn(self, table_id: str, purpose: Purpose) -> Iterator[Turn | None]:
        """Take the turn to do work for a table; None while another thread or process has it.

        - It ends with the block, or with the process.
        - It only saves work: all that is done in one is safe to do twice.
        - Threads of one process exclude each other on every engine. Processes exclude each other by
          an advisory lock of Postgres, or by a lock on a file beside the catalog of SQLite. A
          DuckDB catalog has one process.
        """
        with TURNS.take(f"{purpose} {table_id}") as is_ours:
            yield Turn() if is_ours else None

    def wait_for_publisher(self, table_id: str, version: int, seconds: float) -> bool:
        """Wait a while for the publisher of a table; whether this version is published now."""
        time.sleep(min(seconds, random.uniform(*_PAUSE_SECONDS)))  # noqa: S311 - no secret
        state = self.ask(
            lambda session: session.one("mirror_state", table_id=table_id, version=version)
        )
        return state is not None and state[0] == "SUCCEEDED"

    def holds_catalog(self) -> bool:
        """Whether a catalog is there, finished or not; looking changes nothing."""
        with self.read() as session:
            return bool(session.run("has_schema_migrations"))

    def make_new(self, fill: Callable[[Dialect], T]) -> T | None:  # noqa: ARG002 - not here
        """Make a catalog that does not exist yet and `fill` it; there is all of it, or nothing.

        None where it exists already, or where the engine has no such way: then it is to be filled
        where it is.
        """
        return None

    def abandon(self) -> None:
        """Close the engine after a failure; delete an empty file that it has created."""
        self.close()

    @abstractmethod
    def lock_migrations(self, session: Session) -> None:
        """Hold off other migrators until the transaction of `session` ends."""

    @abstractmethod
    def close(self) -> None:
        """Release every connection."""

    def sql(self, text: str) -> str:
        """SQL with `:name` parameters, in the driver's style."""
        return rewrite(text, self.engine)


if TYPE_CHECKING:
    _SessionContext = AbstractContextManager[Session]
