"""Publishing: the commit files of `_delta_log`, in the order of their versions.

Guarantees:

- Version V+1 is written only after the file of V is known to exist with its recorded bytes.
- A commit file is put if absent, and never overwritten (but see `storage` for stores without
  conditional writes). An existing file is compared: the same bytes are a success (an earlier try
  whose acknowledgement was lost, or another publisher), others come from a foreign writer. Then the
  table has drifted, and publishing stops; nothing is changed.
- Other bytes count when they were read twice and have the size that the store reports: a garbled
  response stops no table.
- The bytes come from the queue, and are compared with their digest before they are written.
- An error of a table is recorded in its row of the queue, unless the catalog itself fails.
- Any number of publishers may work on one table at once: they write the same bytes in the same
  order. Leases and turns only save the double work.
"""

from __future__ import annotations

import hashlib
import random
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from deltalakedb.deltalog.names import LOG, commit_key
from deltalakedb.errors import (
    CatalogError,
    CorruptCatalogError,
    DeltaLakeDbError,
    Fix,
    ForeignCommitError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
    UnexpectedMirrorError,
)
from deltalakedb.forking import ProcessLock
from deltalakedb.storage import Storage, check_process, open_storage
from deltalakedb.store import mirror as queue
from deltalakedb.store.versions import is_published
from deltalakedb.telemetry import event, span, warning
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from deltalakedb.storage import Storage
    from deltalakedb.storage.local_files import NewFile
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.mirror import ErrorKind, WorkItem

T = TypeVar("T")

_THREADS: Final = 8
# The number of files that are open at once.
_WINDOW: Final = 16


class Prefetch:
    """Stages objects ahead, in their order; a context manager."""

    def __init__(self, storage: Storage, objects: Iterable[tuple[str, bytes]]) -> None:
        self.storage = storage
        self._waiting = deque(objects) if storage.is_local else deque[tuple[str, bytes]]()
        self._staged: dict[str, tuple[bytes, Future[NewFile | None]]] = {}
        self._pool: Threads | None = None

    def __enter__(self) -> Self:
        # A single file gains nothing.
        if len(self._waiting) > 1:
            self._pool = Threads(
                min(_THREADS, len(self._waiting)), thread_name_prefix="deltalakedb-publish"
            )
            self._stage()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for _, staged in self._staged.values():
            if not staged.cancelled() and staged.exception() is None:
                _drop(staged.result())

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Put an object if absent, with its staged file if there is one; not yet durable."""
        content, staged = self._staged.pop(key, (None, None))
        file = None if staged is None else staged.result()
        self._stage()
        if content != data:
            _drop(file)
            file = None
        return self.storage.put_if_absent(key, data, settle=False, staged=file)

    def _stage(self) -> None:
        while self._pool is not None and self._waiting and len(self._staged) < _WINDOW:
            key, data = self._waiting.popleft()
            self._staged[key] = data, self._pool.submit(self.storage.stage, key, data)


def _drop(file: NewFile | None) -> None:
    # The file was not needed: an error does no harm.
    with suppress(OSError):
        if file is not None:
            file.close()


_BATCH: Final = 64
_MOST_STORAGES: Final = 256
# How often a commit file with other bytes is read before reading is called unreliable.
_READS: Final = 4


class Outcome(Enum):
    """How publishing a table ended."""

    CAUGHT_UP = "caught up"
    WAITING = "waiting to try again"
    FAILED = "failed"
    DRIFTED = "stopped: the log has drifted"
    INTERRUPTED = "interrupted"
    LEASED = "another worker has it"


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing one table: the number of versions, the last one, and the outcome."""

    table: str
    table_id: str
    outcome: Outcome
    count: int = 0
    last_version: int | None = None
    error: DeltaLakeDbError | None = None
    next_attempt_at: int | None = None
    lease_owner: str | None = None
    """The worker that holds the lease, where the outcome is LEASED; `next_attempt_at` is when the
    lease ends if it is not renewed."""


class Storages:
    """The object stores of tables; the most recently used ones stay open."""

    def __init__(self, options: Mapping[str, str], *, patient: bool = True) -> None:
        self._options = options
        self._patient = patient
        self._open: dict[str, Storage] = {}
        self._lock = ProcessLock()

    def at(self, location: str) -> Storage:
        """The store of a location."""
        with self._lock.lock:
            storage = self._open.pop(location, None)
            if storage is None:
                storage = open_storage(location, self._options, patient=self._patient)
            # Least recently used first.
            self._open[location] = storage
            if len(self._open) > _MOST_STORAGES:
                del self._open[next(iter(self._open))]
            return storage


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """Exponential backoff with jitter for `attempts` tries, then one try per period, without end.

    A permanent error goes to the period at once.
    """

    first_seconds: float = 0.5
    most_seconds: float = 60.0
    attempts: int = 10
    period_seconds: float = 3600.0
    jitter: float = 0.25
    random: Callable[[], float] = field(default=random.random, repr=False)

    @property
    def longest_ms(self) -> int:
        """The longest possible delay."""
        seconds = max(self.period_seconds, self.most_seconds)
        return round(seconds * 1000 * (1 + self.jitter)) + 1

    def has_to_wait(self, due: int, now: int) -> bool:
        """Whether a try is not due yet.

        A wait beyond the longest delay does not count: it comes from a clock that was ahead.
        """
        return now < due <= now + self.longest_ms

    def delay_ms(self, attempts: int, *, permanent: bool) -> int:
        """The delay after so many failed attempts."""
        if permanent or attempts >= self.attempts:
            seconds = self.period_seconds
        else:
            # The exponent is limited, so that the power does not overflow.
            seconds = min(self.most_seconds, self.first_seconds * 2.0 ** min(attempts - 1, 60))
        return max(1, round(seconds * 1000 * (1 + self.jitter * (2 * self.random() - 1))))


@dataclass(slots=True)
class _Batch:
    """The versions that one round has put, and the failure that ended it."""

    first: int
    last: int | None = None
    count: int = 0
    failure: tuple[WorkItem, DeltaLakeDbError] | None = None
    interrupted: bool = False


class _Catalog:
    """The catalog in transactions of its own, or in one that is open already."""

    def __init__(self, store: Store, session: Session | None) -> None:
        self._store = store
        self._session = session

    def ask(self, question: Callable[[Session], T]) -> T:
        """As `Dialect.ask`."""
        if self._session is None:
            return self._store.dialect.ask(question)
        return question(self._session)

    def read(self) -> AbstractContextManager[Session]:
        """As `Store.read`."""
        return self._store.read() if self._session is None else nullcontext(self._session)

    def write(self) -> AbstractContextManager[Session]:
        """As `Store.write`."""
        return self._store.write() if self._session is None else nullcontext(self._session)


def _always() -> bool:
    return True


class Publisher:
    """Publishes the queue of a table."""

    def __init__(
        self,
        store: Store,
        storages: Storages,
        *,
        schedule: RetrySchedule | None = None,
        step: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._storages = storages
        self._schedule = schedule or RetrySchedule()
        # Called between any two steps: where tests kill the process.
        self._step = step or (lambda _: None)

    def publish(
        self,
        table: TableRecord,
        *,
        force: bool = False,
        up_to: int | None = None,
        until: int | None = None,
        go_on: Callable[[], bool] = _always,
        session: Session | None = None,
    ) -> Published:
        """Publish the backlog in order, until it is empty or a version fails.

        A table whose last try failed waits until the next is due, unless `force` is set. Versions
        after `up_to` are left. Once the version `until` is published, no more are read. `go_on` is
        called before each version. Results are recorded in `session`, or else at once.
        """
        # Not a failure of the store: a process that can reach it will publish.
        check_process(table.location)
        catalog = _Catalog(self._store, session)
        count = 0
        last: int | None = None
        while True:
            if until is not None and last is not None and last >= until:
                return self._result(catalog, table, Outcome.CAUGHT_UP, count, last)
            items = catalog.ask(lambda session: queue.backlog(session, table.table_id, _BATCH))
            if up_to is not None:
                items = [item for item in items if item.version <= up_to]
            if not items:
                return self._result(catalog, table, Outcome.CAUGHT_UP, count, last)
            if items[0].drifted:
                return self._result(catalog, table, Outcome.DRIFTED, count, last)
            due = items[0].next_attempt_at
            if self._schedule.has_to_wait(due, self._store.clock.now_ms()) and not force:
                return self._result(
                    catalog, table, Outcome.WAITING, count, last, next_attempt_at=due
                )
            batch = self._put(catalog, table, items, go_on)
            if batch.last is not None:
                self._mark_published(catalog, table, batch.first, batch.last)
                count, last = count + batch.count, batch.last
            if batch.failure is not None:
                return self._mark_failed(catalog, table, batch.failure, count, last)
            if batch.interrupted:
                return self._result(catalog, table, Outcome.INTERRUPTED, count, last)

    # --- writing --------------------------------------------------------------------------

    def _put(
        self,
        catalog: _Catalog,
        table: TableRecord,
        items: list[WorkItem],
        go_on: Callable[[], bool],
    ) -> _Batch:
        try:
            storage = self._storages.at(table.location)
        except Exception as error:  # noqa: BLE001 - as below
            return _Batch(items[0].version, failure=(items[0], _recordable(error)))
        small = ((commit_key(item.version), item.payload) for item in items if item.payload)
        with Prefetch(storage, small) as prefetch:
            batch = self._put_each(catalog, table, items, prefetch, go_on)
        if batch.count:
            try:
                storage.settle(LOG)
            except StorageError as error:
                # Whether they are durable is unknown: all of them are checked again.
                return _Batch(batch.first, failure=(items[0], error))
        return batch

    def _put_each(
        self,
        catalog: _Catalog,
        table: TableRecord,
        items: list[WorkItem],
        prefetch: Prefetch,
        go_on: Callable[[], bool],
    ) -> _Batch:
        batch = _Batch(items[0].version)
        for item in items:
            if not go_on():
                batch.interrupted = True
                break
            try:
                with span("deltalakedb.publish", table=table.name, version=item.version):
                    self._put_one(catalog, table, item, prefetch)
            except Exception as error:  # noqa: BLE001 - recorded in the table's row
                batch.failure = (item, _recordable(error))
                break
            batch.last = item.version
            batch.count += 1
            self._report_published(table, item)
        return batch

    def _put_one(
        self, catalog: _Catalog, table: TableRecord, item: WorkItem, prefetch: Prefetch
    ) -> None:
        """Put a commit file if absent, and compare it otherwise."""
        storage = prefetch.storage
        key = commit_key(item.version)
        data = self._payload(catalog, table, item)
        if data is None:
            return
        self._step("put")
        if prefetch.put_if_absent(key, data):
            self._step("written")
            return
        content = _other_content(storage, key, data)
        if content is not None:
            raise ForeignCommitError(
                f"{storage.location}/{key} is not what version {item.version} of table "
                f"{table.name!r} says",
                why=f"Another writer wrote {len(content)} other bytes there",
                fix="Nothing was overwritten. Compare them with "
                f"{Fix('lake.verify', table.name)}, then adopt the foreign commits with "
                f"{Fix('lake.adopt', table.name)}, or move them out of the log and run "
                f"{Fix('lake.mirror.retry', table.name)}",
                found_digest=hashlib.sha256(content).hexdigest(),
                found_bytes=len(content),
            )
        self._step("found")

    def _payload(self, catalog: _Catalog, table: TableRecord, item: WorkItem) -> bytes | None:
        """The bytes of a version; None where another publisher has published and deleted them."""
        data = item.payload
        if data is None:
            with catalog.read() as session:
                data = queue.payload_of(session, table.table_id, item.version)
                if data is None and is_published(session, table.table_id, item.version):
                    return None
        if data is None or hashlib.sha256(data).hexdigest() != item.digest:
            raise CorruptCatalogError(
                f"The bytes to publish for version {item.version} of table {table.name!r} are "
                f"{'gone' if data is None else 'damaged'}",
                why="Their digest is not the one in dl_mirror_status",
                fix=f"Run {Fix('lake.repair', table.name)}, which rebuilds them from the ledger",
            )
        return data

    # --- recording ------------------------------------------------------------------------

    def _mark_published(self, catalog: _Catalog, table: TableRecord, first: int, last: int) -> None:
        self._step("note")
        now = self._store.clock.now_ms()
        with catalog.write() as session:
            queue.mark_published(session, table.table_id, first, last, now=now)
        self._step("noted")

    def _mark_failed(
        self,
        catalog: _Catalog,
        table: TableRecord,
        failure: tuple[WorkItem, DeltaLakeDbError],
        count: int,
        last: int | None,
    ) -> Published:
        item, error = failure
        now = self._store.clock.now_ms()
        kind: ErrorKind = "transient" if getattr(error, "transient", False) else "permanent"
        delay = self._schedule.delay_ms(item.attempts + 1, permanent=kind == "permanent")
        drift = _drift(item, error, now) if isinstance(error, ForeignCommitError) else None
        with catalog.write() as session:
            is_behind = queue.mark_failed(
                session,
                table.table_id,
                item.version,
                error=str(error),
                kind=kind,
                next_attempt_at=now + delay,
                now=now,
            )
            # A version that another publisher has published meanwhile has no drift.
            if drift is not None and is_behind:
                queue.set_drift(session, table.table_id, drift, now=now)
        self._report_failed(table, item, error, kind)
        outcome = Outcome.FAILED if drift is None else Outcome.DRIFTED
        return self._result(
            catalog, table, outcome, count, last, error=error, next_attempt_at=now + delay
        )

    def _result(
        self,
        catalog: _Catalog,
        table: TableRecord,
        outcome: Outcome,
        count: int,
        last: int | None,
        *,
        error: DeltaLakeDbError | None = None,
        next_attempt_at: int | None = None,
    ) -> Published:
        if outcome is Outcome.CAUGHT_UP:
            self._store.metrics.gauge("mirror_backlog_gauge", 0, table=table.name)
        else:
            size = catalog.ask(lambda session: queue.backlog_size(session, table.table_id))
            self._store.metrics.gauge("mirror_backlog_gauge", size, table=table.name)
        return Published(table.name, table.table_id, outcome, count, last, error, next_attempt_at)

    def _report_published(self, table: TableRecord, item: WorkItem) -> None:
        latency = max(0, self._store.clock.now_ms() - item.created_at)
        self._store.metrics.observe("mirror_latency_ms", latency)
        self._store.metrics.count("mirror_published_total")
        event(
            "mirror_published",
            lambda: {**_named(table, item), "latency_ms": latency, "bytes": item.payload_bytes},
        )

    def _report_failed(
        self, table: TableRecord, item: WorkItem, error: DeltaLakeDbError, kind: ErrorKind
    ) -> None:
        self._store.metrics.count("mirror_failures_total")
        self._store.metrics.count(f"mirror_{kind}_failures_total")
        warning("mirror_failed", lambda: {**_named(table, item), "kind": kind, "error": str(error)})


def _other_content(storage: Storage, key: str, data: bytes) -> bytes | None:
    """The content of an object that is not `data`; None where it is.

    A response can be garbled, so other bytes have to be read twice, and to have the size that the
    store reports.
    """
    seen: set[bytes] = set()
    for _ in range(_READS):
        try:
            content = storage.get(key)
        except ObjectNotFoundError as error:
            raise _vanished(storage, key) from error
        if content == data:
            return None
        if content in seen:
            info = storage.head(key)
            if info is None:
                raise _vanished(storage, key)
            if info.size == len(content):
                return content
        seen.add(content)
    raise StorageUnavailableError(
        f"{storage.location}/{key} cannot be read",
        why=f"{_READS} reads gave {len(seen)} different contents",
        fix="It will be read again; look for what garbles answers on the way to the store",
    )


def _vanished(storage: Storage, key: str) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"{storage.location}/{key} was there, and is not any more",
        why="It was deleted just now",
        fix="It will be written when it is tried again",
    )


def _recordable(error: Exception) -> DeltaLakeDbError:
    """The error to record in the queue; one of the catalog is raised again."""
    if isinstance(error, CatalogError) and not isinstance(error, CorruptCatalogError):
        raise error
    if isinstance(error, DeltaLakeDbError):
        return error
    # Its words may hold anything, secrets included.
    place = traceback.extract_tb(error.__traceback__)[-1]
    return UnexpectedMirrorError(
        f"Publishing met an error that it does not know: {type(error).__name__} in "
        f"{place.filename}, line {place.lineno}",
        fix="It will be tried again. Please report it",
    )


def _named(table: TableRecord, item: WorkItem) -> dict[str, Any]:
    return {
        "table": table.name,
        "table_id": table.table_id,
        "version": item.version,
        "object_key": commit_key(item.version),
        "attempt": item.attempts + 1,
    }


def _drift(item: WorkItem, error: ForeignCommitError, now: int) -> dict[str, Any]:
    return {
        "kind": "foreign commit",
        "version": item.version,
        "object_key": commit_key(item.version),
        "expected_digest": item.digest,
        "expected_bytes": item.payload_bytes,
        "found_digest": error.found_digest,
        "found_bytes": error.found_bytes,
        "detected_at": now,
    }
