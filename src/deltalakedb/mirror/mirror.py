"""`lake.mirror`: publishing, the worker, and the status of each table's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from deltalakedb.arguments import require_text
from deltalakedb.errors import (
    Fix,
    InvalidArgumentError,
    StorageError,
    TableDriftedError,
    TableNotFoundError,
)
from deltalakedb.mirror.drift import DriftCheck
from deltalakedb.mirror.inline import InlineMirror
from deltalakedb.mirror.lease import LEASE_SECONDS
from deltalakedb.mirror.publish import Outcome, Published, Storages
from deltalakedb.mirror.worker import CONCURRENCY, Worker
from deltalakedb.storage import check_process
from deltalakedb.store import mirror as queue

if TYPE_CHECKING:
    from deltalakedb.mirror.publish import RetrySchedule
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.mirror import Overview

State = Literal["published", "pending", "failing", "blocked", "drifted"]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How far the log of a table is behind the catalog, and why."""

    table: str
    table_id: str
    location: str
    head: int
    published_version: int | None
    """The newest version whose commit file is there; None before the first."""
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
        self._inline = InlineMirror(store, schedule=schedule) if mode == "inline" else None

    @contextmanager
    def committing(self, tables: Sequence[tuple[TableRecord, int | None]]) -> Iterator[None]:
        """Around a commit: refuse one to a table whose log has commits that the catalog lacks.

        With each table comes the version that the commit starts from, None for one that it makes.
        The object store is asked before the first commit of this process only, or again after a
        commit was refused.
        """
        for table, version in tables:
            if self._inline is not None:
                check_process(table.location)  # such a commit could never be published here
            if version is None:
                self._drift_check.trust(table)
            elif self._refuses_drift:
                self._drift_check.check_once(table, version)
        try:
            yield
        except TableDriftedError:
            for table, _ in tables:
                self._drift_check.distrust(table)
            raise

    def after_commit(self, versions: Iterable[tuple[TableRecord, object]]) -> None:
        """Publish the new versions, or notify the workers; never raises."""
        if self._inline is None:
            self._store.dialect.wake_workers()
            return
        for table, _ in versions:
            self._inline.after_commit(table)

    def drain(self) -> None:
        """Wait for the checkpoints and checksums that this process has begun."""
        if self._inline is not None:
            self._inline.drain()

    def close(self) -> None:
        """Wait for what was begun; retries are left to other processes."""
        if self._inline is not None:
            self._inline.close()

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
            found
            for record, head in drifted
            if record.table_id not in reported
            and (found := self._check_drifted(record, head)) is not None
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
        found = self._store.table_by_name(session, table)
        if found is None:
            raise TableNotFoundError(
                f"There is no table {table!r}", fix=f"See {Fix('lake.tables')}"
            )
        return [found]


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
