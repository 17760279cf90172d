"""`lake.mirror`: publishing, the worker, and the status of each table's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from deltalakedb.arguments import require_text
from deltalakedb.errors import (
    DeltaLakeDbError,
    Fix,
    ForeignCommitError,
    InvalidArgumentError,
    NotPublishedError,
    StorageError,
    TableDriftedError,
    TableNotFoundError,
)
from deltalakedb.forking import renew_after_fork, without_forks
from deltalakedb.mirror.drift import DriftCheck
from deltalakedb.mirror.lease import LEASE_SECONDS
from deltalakedb.mirror.publish import Outcome, Published, Publisher, RetrySchedule, Storages
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.mirror.worker import CONCURRENCY, Worker
from deltalakedb.storage import check_process
from deltalakedb.store import mirror as queue
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.store.versions import is_published
from deltalakedb.telemetry import warning

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.mirror import Overview


class Versioned(Protocol):
    """The state of a table at a version."""

    @property
    def version(self) -> int: ...


State = Literal["published", "pending", "failing", "blocked", "drifted"]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How far the log of a table is behind the catalog, and why."""

    table: str
    table_id: str
    location: str
    head: int
    published_version: int | None
    """The newest version with a commit file; None before the first."""
    backlog: int
    backlog_bytes: int
    lag_ms: int
    """How long the oldest unpublished version has been waiting."""
    state: State
    """`published`, `pending`, `failing` (will be retried), `blocked` (needs an operator) or
    `drifted`."""
    attempts: int
    last_error: str | None
    next_attempt_at: int | None
    checkpoint_version: int | None
    checkpoint_error: str | None
    lease_owner: str | None
    drift: Mapping[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


class Mirror:
    """The log in the object store, following the catalog."""

    def __init__(
        self,
        store: Store,
        *,
        mode: str = "inline",
        schedule: RetrySchedule | None = None,
        on_drift: str = "refuse",
    ) -> None:
        if mode not in ("inline", "worker"):
            raise InvalidArgumentError(
                f"mirror={mode!r} is no way to publish",
                fix="Pass 'inline' to publish right after each commit, or 'worker' to leave it to "
                "`deltalakedb mirror run`",
            )
        if on_drift not in ("refuse", "allow"):
            raise InvalidArgumentError(
                f"on_drift={on_drift!r} is no way to treat a table that has drifted",
                fix="Pass 'refuse' to commit nothing to it, or 'allow' to commit what then cannot "
                "be published",
            )
        self.mode = mode
        self._refuses_drift = on_drift == "refuse"
        self._drift_check = DriftCheck(store, Storages(store.storage_options, patient=False))
        self._store = store
        self._schedule = schedule
        self._direct = InlineMirror(store, schedule=schedule)
        self._inline = self._direct if mode == "inline" else None

    @contextmanager
    def committing(self, tables: Sequence[tuple[TableRecord, int | None]]) -> Iterator[None]:
        """Wrap a commit; refuse one to a table whose log has commits that the catalog lacks.

        Each table comes with the base version of the commit, None if the commit creates it. The
        object store is read before the first commit of this process only, and again after a commit
        was refused.
        """
        for table, version in tables:
            if self._inline is not None:
                check_process(table.location)  # such a commit could never be published here
            if version is None:
                self._drift_check.sound.add(table.table_id)
            elif self._refuses_drift and table.table_id not in self._drift_check.sound:
                self._drift_check.check_before_commit(table, version)
        try:
            yield
        except TableDriftedError:
            for table, _ in tables:
                self._drift_check.sound.discard(table.table_id)
            raise

    def after_commit(self, versions: Iterable[tuple[TableRecord, Versioned | None]]) -> None:
        """Publish the new versions, or notify the workers; never raises."""
        if self._inline is None:
            self._store.dialect.wake_workers()
            return
        for table, state in versions:
            self._inline.after_commit(table, None if state is None else state.version)

    def check_log(self, table: TableRecord, version: int) -> None:
        """TableDriftedError where the log has a commit after a version that the catalog lacks."""
        self._drift_check.check(table, version)

    def publish(self, table: TableRecord, version: int) -> None:
        """Publish a version and those before it, in either mode; NotPublishedError if that fails.

        No checkpoint follows: the caller, or the engine behind it, makes those that are due.
        """
        check_process(table.location)
        self._direct.publish(table, version)

    def publish_all(self, table: TableRecord) -> int:
        """Publish all versions, in either mode; returns the newest one."""
        with self._store.read() as session:
            head = self._store.head(session, table.table_id)
            if head is None:
                raise not_registered(session, table)
            behind = queue.backlog_size(session, table.table_id) > 0
        if behind:
            self.publish(table, head)
        return head

    def drain(self) -> None:
        """Wait for the checkpoints and checksums that this process has begun."""
        self._direct.drain()

    def close(self) -> None:
        """Wait for the publishing and upkeep that are due; other processes do the retries."""
        self._direct.close()

    # --- publishing -----------------------------------------------------------------------

    def run_once(self, *, concurrency: int = CONCURRENCY) -> list[Published]:
        """Publish the backlog of every table once; returns the result of each.

        Tables that have drifted are skipped. So are those that another worker holds: their outcome
        is LEASED, with its owner.
        """
        return self.worker(concurrency=concurrency).run_once()

    def run(
        self, *, concurrency: int = CONCURRENCY, until: Callable[[Worker], None] | None = None
    ) -> None:
        """Publish continuously, in this thread. `until` receives the worker first, to stop it."""
        worker = self.worker(concurrency=concurrency)
        if until is not None:
            until(worker)
        worker.run()

    def worker(
        self, *, concurrency: int = CONCURRENCY, lease_seconds: float = LEASE_SECONDS
    ) -> Worker:
        """A worker of this catalog; `worker.run()` in a thread, `worker.stop()` from another."""
        return Worker(
            self._store,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            schedule=self._schedule,
        )

    # --- status ---------------------------------------------------------------------------

    def status(self) -> list[TableStatus]:
        """Every table, by name."""
        now = self._store.clock.now_ms()
        with self._store.read() as session:
            rows = queue.overview(session)
        return [_status(row, now) for row in rows]

    def retry(self, table: str | None = None) -> list[Published]:
        """Publish a table (or every table) again at once; one that has drifted is compared again.

        Leases are broken: a worker that holds the table loses it, and nothing else.
        """
        if table is not None:
            require_text("table", table)
        now = self._store.clock.now_ms()
        drifted: list[tuple[TableRecord, int]] = []
        with self._store.write() as session:
            chosen = self._selected(session, table)
            for record in chosen:
                if queue.mirror_table(session, record.table_id).drift is not None:
                    drifted.append((record, self._store.head(session, record.table_id) or 0))
                queue.retry_table(session, record.table_id, now=now)
        self._store.dialect.wake_workers()
        done = self.worker().run_once(only=None if table is None else chosen[0].table_id)
        reported = {one.table_id for one in done if one.outcome is not Outcome.CAUGHT_UP}
        return done + [
            published
            for record, head in drifted
            if record.table_id not in reported
            and (published := self._check_drifted(record, head)) is not None
        ]

    def _check_drifted(self, table: TableRecord, head: int) -> Published | None:
        """Check a log without backlog; None where it has not drifted."""
        try:
            self._drift_check.check(table, head)
        except TableDriftedError as error:
            return Published(table.name, table.table_id, Outcome.DRIFTED, error=error)
        except StorageError as error:
            return Published(table.name, table.table_id, Outcome.FAILED, error=error)
        return None

    def _selected(self, session: Session, table: str | None) -> Sequence[TableRecord]:
        if table is None:
            return self._store.tables(session)
        record = self._store.table_by_name(session, table)
        if record is None:
            raise TableNotFoundError(
                f"There is no table {table!r}", fix=f"See {Fix('lake.tables')}"
            )
        return [record]


def state_of(
    *,
    oldest: int | None,
    drift: Mapping[str, Any] | None,
    status: str | None,
    error_kind: str | None,
) -> State:
    """The state of a table whose oldest unpublished version is `oldest`: see TableStatus."""
    if drift is not None:
        return "drifted"
    if oldest is None:
        return "published"
    if status == "FAILED":
        return "blocked" if error_kind == "permanent" else "failing"
    return "pending"


def _status(row: Overview, now: int) -> TableStatus:
    published = row.head if row.oldest is None else row.oldest - 1
    state = state_of(
        oldest=row.oldest, drift=row.lease.drift, status=row.status, error_kind=row.error_kind
    )
    return TableStatus(
        table=row.name,
        table_id=row.table_id,
        location=row.location,
        head=row.head,
        published_version=published if published >= 0 else None,
        backlog=row.backlog,
        backlog_bytes=row.backlog_bytes,
        lag_ms=0 if row.waiting_since is None else max(0, now - row.waiting_since),
        state=state,
        attempts=row.attempts or 0,
        last_error=row.last_error,
        next_attempt_at=row.next_attempt_at or None,
        checkpoint_version=row.lease.checkpoint_version,
        checkpoint_error=row.lease.checkpoint_error,
        lease_owner=row.lease.owner
        if queue.is_leased(row.lease.owner, row.lease.expires_at, now)
        else None,
        drift=row.lease.drift,
    )


# How long a commit may publish an older backlog.
_PATIENCE_SECONDS: Final = 5.0
# How long a commit waits for another publisher before it publishes beside it.
_TURN_SECONDS: Final = 3.0
# The pause before upkeep that another process was running is checked again.
_UPKEEP_PAUSE_SECONDS: Final = 0.5


def _import_upkeep() -> None:
    """Import the modules of the thread: a fork during an import would break the child."""
    import deltalakedb.mirror.checkpoint
    import deltalakedb.mirror.cleanup  # noqa: F401


class InlineMirror:
    """Publishes the commits of this process.

    - One process publishes a table at a time, with all versions that wait; the others wait for its
      result. If that does not come, they publish beside it.
    - One process runs the upkeep of a table at a time, and never a process that has only waited.
    """

    def __init__(self, store: Store, *, schedule: RetrySchedule | None = None) -> None:
        self._store = store
        brief = Storages(store.storage_options, patient=False)
        self._publisher = Publisher(store, brief, schedule=schedule)
        self._upkeep = Upkeep(store, Storages(store.storage_options))
        self._background = Background("deltalakedb-mirror", prepare=_import_upkeep)

    def after_commit(self, table: TableRecord, version: int | None) -> None:
        """Publish a version and those before it, for a few seconds at most; never raises."""
        self._attempt(table, lambda: self._publish_in_turn(table, version))

    def _publish_in_turn(
        self, table: TableRecord, version: int | None, *, force: bool = False
    ) -> Published | None:
        """The result of publishing; None where another process has published the version."""
        dialect = self._store.dialect
        end = time.monotonic() + _TURN_SECONDS
        while version is not None and (seconds := end - time.monotonic()) > 0:
            with dialect.turn(table.table_id, "publish") as turn:
                if turn is not None:
                    return self._publisher.publish(
                        table,
                        force=force,
                        go_on=_for_seconds(),
                        until=version,
                        session=turn.session,
                    )
            if dialect.wait_for_publisher(table.table_id, version, seconds):
                return None
        return self._publisher.publish(table, force=force, go_on=_for_seconds())

    def publish(self, table: TableRecord, version: int) -> None:
        """Publish a version and those before it; NotPublishedError where it is not then."""
        published = self._publish_in_turn(table, version, force=True)
        with self._store.read() as session:
            if is_published(session, table.table_id, version):
                return
        error = None if published is None else published.error
        if isinstance(error, ForeignCommitError):
            raise error
        outcome = "another process publishes it" if published is None else published.outcome.value
        raise NotPublishedError(
            f"Version {version} of table {table.name!r} is not in _delta_log yet",
            why=str(error) if error is not None else outcome,
            fix=f"Try again. {Fix('lake.mirror.status')} shows the state of the table",
        ) from error

    def _attempt(self, table: TableRecord, publish: Callable[[], Published | None]) -> None:
        try:
            published = publish()
        except Exception as error:  # noqa: BLE001 - an error would look like a failed commit
            self._failed(table, "mirror_table_failed", error)
        else:
            if published is not None:
                self._follow_up(table, published)

    def drain(self) -> None:
        """Wait for the checkpoints and checksums of what was published."""
        self._background.drain()

    def close(self) -> None:
        """Wait for the jobs that are due or required; other processes do the retries."""
        self._background.close()

    def _follow_up(self, table: TableRecord, published: Published) -> None:
        version = published.last_version
        if version is not None and published.outcome is not Outcome.DRIFTED:
            self._put_upkeep(table, version)
        if published.outcome in (Outcome.FAILED, Outcome.WAITING, Outcome.INTERRUPTED):
            wait_ms = (published.next_attempt_at or 0) - self._store.clock.now_ms()
            due = time.monotonic() + max(0.001, wait_ms / 1000)
            self._background.put(Job(("publish", table.table_id), lambda: self._retry(table), due))

    def _retry(self, table: TableRecord) -> None:
        go_on = self._background.is_open
        self._attempt(table, lambda: self._publisher.publish(table, go_on=go_on))

    def _put_upkeep(self, table: TableRecord, version: int, due: float = 0.0) -> None:
        key = ("upkeep", table.table_id)
        work = lambda: self._run_upkeep(table, version)  # noqa: E731
        self._background.put(Job(key, work, due, required=True))

    def _run_upkeep(self, table: TableRecord, version: int) -> None:
        try:
            with self._store.dialect.turn(table.table_id, "upkeep") as turn:
                # At the end of the process there is no later try: it runs beside the other one.
                if turn is not None or not self._background.is_open():
                    self._upkeep.run(table, version)
                    return
        except Exception as error:  # noqa: BLE001 - the thread serves other tables too
            self._failed(table, "mirror_upkeep_failed", error)
        else:
            self._put_upkeep(table, version, time.monotonic() + _UPKEEP_PAUSE_SECONDS)

    def _failed(self, table: TableRecord, what: str, error: Exception) -> None:
        failure = str(error) if isinstance(error, DeltaLakeDbError) else repr(error)
        self._store.metrics.count("mirror_failures_total")
        warning(what, lambda: {"table": table.name, "table_id": table.table_id, "error": failure})


def _for_seconds() -> Callable[[], bool]:
    end = time.monotonic() + _PATIENCE_SECONDS
    return lambda: time.monotonic() < end


# --- the background thread ----------------------------------------------------------------


# How long the thread waits for a job before it ends, and the interval of its checks.
_IDLE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """Work to do, not before `due` (of `time.monotonic`); at the end, if it is `required`."""

    key: Hashable
    work: Callable[[], None]
    due: float = 0.0
    required: bool = False


class Background:
    """Runs jobs one after the other, in the order in which they are due. Jobs do not raise.

    - A job replaces one with the same key that has not begun, unless that is due earlier.
    - The thread keeps the process alive until the jobs that are due or required are done. When the
      interpreter no longer waits for threads, a job that is due runs in the calling thread.
    - The thread calls `prepare` first, while forks are blocked.
    """

    def __init__(self, name: str, *, prepare: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._prepare = prepare
        # A lock of its own: an interrupt can come while a condition is entered.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._drained: list[threading.Lock] = []
        self._jobs: dict[Hashable, Job] = {}
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin without jobs: the parent has the thread, and runs those that wait."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._drained = []
        self._jobs = {}
        self._thread = None
        self._busy = False

    def put(self, job: Job) -> None:
        """Run a job; after `close()` only one that is due at once, or required."""
        with self._lock:
            if self._closed and job.due > 0 and not job.required:
                return
            queued = self._jobs.get(job.key)
            if queued is not None and queued.due < job.due:
                return
            if self._is_running() or self._start():
                self._jobs[job.key] = job
                self._changed.notify_all()
                return
        if job.due == 0:
            job.work()

    def is_open(self) -> bool:
        """Whether it is neither closed nor at the end of the process."""
        return not self._closed and threading.main_thread().is_alive()

    def drain(self) -> None:
        """Wait until every job that is due at once is done."""
        while True:
            with self._lock:
                if not self._busy and not any(job.due == 0 for job in self._jobs.values()):
                    return
                bell = threading.Lock()
                bell.acquire()
                self._drained.append(bell)
            bell.acquire(timeout=_IDLE_SECONDS)

    def close(self) -> None:
        """Run the jobs that are due or required, drop the others, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> bool:
        """Start the thread; False where Python would end without waiting for it."""
        if not threading.main_thread().is_alive():
            return False
        self._thread = threading.Thread(target=self._run, name=self._name)
        self._thread.start()
        return True

    def _run(self) -> None:
        with without_forks():
            self._prepare()
        idle_since = time.monotonic()
        while True:
            with self._lock:
                job = self._next()
                if job is None:
                    if self._is_over(idle_since):
                        self._thread = None
                        return
                    self._changed.wait(_IDLE_SECONDS)
                    continue
                self._busy = True
            try:
                job.work()
            finally:
                with self._lock:
                    self._busy = False
                    while self._drained:
                        self._drained.pop().release()
            idle_since = time.monotonic()

    def _next(self) -> Job | None:
        """The job that is due, taken from the list."""
        now, is_last = time.monotonic(), not self.is_open()
        due = [job for job in self._jobs.values() if job.due <= now or (is_last and job.required)]
        if not due:
            return None
        job = min(due, key=lambda job: job.due)
        del self._jobs[job.key]
        return job

    def _is_over(self, idle_since: float) -> bool:
        if self._closed or not threading.main_thread().is_alive():
            return True
        return not self._jobs and time.monotonic() - idle_since >= _IDLE_SECONDS
