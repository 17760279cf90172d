"""The worker: publishes tables with unpublished versions, several at once.

Guarantees:

- Any number of workers share a catalog. Each takes the lease of a table before it works on it;
  after a worker died or hung, another takes over when the lease ends, upkeep included.
- Between two polls a worker waits for a notification (Postgres), or polls again soon (the other
  engines). No notification is lost: a commit never waits for the next poll.
- Tables take turns: a table with constant writes does not starve the others, and neither do
  checkpoints, of which only a few run at once.
- Only `stop()` ends a worker: after an error of the catalog or a table it tries again.
- Upkeep (checkpoints, checksums, clean-up) runs concurrently with publishing: new commits of the
  table are published meanwhile, and other tables do not wait for it.
- After the release of a lease the backlog is read once more, or other workers are notified: a
  commit that they skipped because of this lease does not wait for their next poll.
- A lease is renewed as long as the work lasts; a worker that lost it starts nothing new.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from deltalakedb.arguments import refuse, require_number, require_whole
from deltalakedb.errors import CatalogError, DeltaLakeDbError
from deltalakedb.mirror.lease import LEASE_SECONDS, LONGEST_LEASE_SECONDS, Lease, new_owner
from deltalakedb.mirror.publish import Outcome, Published, Publisher, RetrySchedule, Storages
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import event, warning

if TYPE_CHECKING:
    from deltalakedb.mirror.upkeep import UpkeepResult
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.mirror import Work

CONCURRENCY: Final = 8
# The pause after an error of the catalog, or of a table that could not be recorded there.
_REST_SECONDS: Final = 1.0
# How long a table keeps its slot while others wait.
_TURN_SECONDS: Final = 0.2
# The number of leased tables per table that is published: the others are in upkeep, or wait for
# it. At most so many run upkeep at once.
_IN_HAND: Final = 4
_UPKEEP_AT_ONCE: Final = 2
# How often to look for tables with overdue upkeep, and when to retry failed upkeep.
_SWEEP_SECONDS: Final = 1.0
_UPKEEP_RETRY_MS: Final = 60_000
_UNFINISHED: Final = (Outcome.CAUGHT_UP, Outcome.INTERRUPTED)


@dataclass(slots=True)
class _Slot:
    """A table that this worker holds."""

    worker: TableWorker
    result: Future[Published | None]


class Worker:
    """Publishes the backlogs of up to `concurrency` tables at once."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str | None = None,
        concurrency: int = CONCURRENCY,
        lease_seconds: float = LEASE_SECONDS,
        schedule: RetrySchedule | None = None,
        step: Callable[[str], None] | None = None,
    ) -> None:
        require_whole("concurrency", concurrency, least=1)
        if not 0 < require_number("lease_seconds", lease_seconds) <= LONGEST_LEASE_SECONDS:
            refuse(
                "lease_seconds",
                lease_seconds,
                f"a number above 0, and at most {LONGEST_LEASE_SECONDS:g}",
            )
        self.owner = owner or new_owner()
        self._store = store
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        storages = Storages(store.storage_options)
        self._schedule = schedule or RetrySchedule()
        self._publisher = Publisher(store, storages, schedule=self._schedule, step=step)
        self._upkeep = Upkeep(store, storages)
        self._upkeep_turns = threading.BoundedSemaphore(min(_UPKEEP_AT_ONCE, concurrency))
        self._bell = Bell()
        self._stopping = False
        self._slots: dict[str, _Slot] = {}
        self._resting: dict[str, float] = {}
        self._crowded = False
        self._swept_at = float("-inf")

    def stop(self) -> None:
        """End after the versions in progress. Safe in a signal handler."""
        self._stopping = True
        self._bell.ring()

    # --- once -----------------------------------------------------------------------------

    def run_once(self, *, only: str | None = None) -> list[Published]:
        """Publish every table with a backlog, also those whose next try is not due.

        With `only`, just the table of that id. A table that another worker holds is skipped, with
        the outcome LEASED.
        """
        now = self._store.clock.now_ms()
        due = [item.table_id for item in self._find_work() if not item.drifted]
        due += [table_id for table_id in self._find_overdue_upkeep(now) if table_id not in due]
        if only is not None:
            due = [table_id for table_id in due if table_id == only]
        if not due:
            return []

        def publish(table_id: str) -> Published | None:
            done = self._run_table(self._new_table_worker().run_once, table_id)
            return self._leased(table_id) if done is None else done

        with ThreadPoolExecutor(min(self._concurrency, len(due))) as pool:
            done = list(pool.map(publish, due))
        return [published for published in done if published is not None]

    def _leased(self, table_id: str) -> Published | None:
        """The outcome of a table that another worker holds; None where none does."""
        with self._store.read() as session:
            table = self._store.table_by_id(session, table_id)
            lease = queue.mirror_table(session, table_id)
        now = self._store.clock.now_ms()
        if table is None or not queue.is_leased(lease.owner, lease.expires_at, now):
            return None
        return Published(
            table.name,
            table_id,
            Outcome.LEASED,
            next_attempt_at=lease.expires_at,
            lease_owner=lease.owner,
        )

    # --- continuously ---------------------------------------------------------------------

    def run(self, *, poll_seconds: float | None = None) -> None:
        """Publish until `stop()` is called."""
        pause = self._store.dialect.poll_seconds if poll_seconds is None else poll_seconds
        event("mirror_worker_started", lambda: {"owner": self.owner})
        with self._store.dialect.listen(self._bell.ring):
            with ThreadPoolExecutor(_IN_HAND * self._concurrency) as pool:
                while not self._stopping:
                    try:
                        seconds = min(pause, self._start_due(pool))
                    except CatalogError as error:
                        self._rest(error)
                    else:
                        self._bell.wait(seconds)
            # Other workers poll again for the tables of this one; and the listener ends at once.
            self._store.dialect.wake_workers()
        event("mirror_worker_stopped", lambda: {"owner": self.owner})

    def _rest(self, error: CatalogError) -> None:
        warning("mirror_worker_rests", lambda: {"owner": self.owner, "error": str(error)})
        end = time.monotonic() + _REST_SECONDS
        while not self._stopping and time.monotonic() < end:
            self._bell.wait(end - time.monotonic())

    def _start_due(self, pool: ThreadPoolExecutor) -> float:
        """Start all tables that are due; returns the seconds until the next poll at the latest."""
        self._slots = {key: slot for key, slot in self._slots.items() if not slot.result.done()}
        now = self._store.clock.now_ms()
        following = float("inf")
        self._crowded = False
        for item in self._find_work():
            if item.table_id in self._slots:
                self._notify(item.table_id)
            elif item.drifted or item.busy:
                continue
            elif self._schedule.has_to_wait(item.next_attempt_at, now):
                following = min(following, (item.next_attempt_at - now) / 1000)
            else:
                following = min(following, self._start(pool, item.table_id))
        if time.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            for table_id in self._find_overdue_upkeep(now):
                if table_id not in self._slots:
                    self._start(pool, table_id)
        return following

    def _notify(self, table_id: str) -> None:
        """Notify the table worker of new versions."""
        slot = self._slots[table_id]
        slot.worker.bell.ring()
        if slot.result.done():
            # It may have ended before the notification.
            self._bell.ring()

    def _start(self, pool: ThreadPoolExecutor, table_id: str) -> float:
        """Start a table if there is a free slot; returns the seconds that it still has to pause."""
        rest = self._resting.pop(table_id, 0.0) - time.monotonic()
        if rest > 0:
            self._resting[table_id] = rest + time.monotonic()
            return rest
        if not self._has_slot():
            self._crowded = True
            if self._has_slot():
                # A table ended before it could know that its slot is wanted.
                self._bell.ring()
            return float("inf")
        worker = self._new_table_worker()
        result = pool.submit(self._run_table, worker.run, table_id)
        self._slots[table_id] = _Slot(worker, result)
        result.add_done_callback(lambda _: self._ended(worker))
        return float("inf")

    def _has_slot(self) -> bool:
        """Whether one more table can be published."""
        held = [slot for slot in self._slots.values() if not slot.result.done()]
        publishing = sum(not slot.worker.in_upkeep for slot in held)
        return publishing < self._concurrency and len(held) < _IN_HAND * self._concurrency

    def _left(self) -> None:
        if self._crowded:
            self._bell.ring()

    def _ended(self, worker: TableWorker) -> None:
        if self._crowded or worker.bell.has_rung():
            self._bell.ring()

    def _find_work(self) -> list[Work]:
        now = self._store.clock.now_ms()
        with self._store.read() as session:
            return queue.find_work(session, owner=self.owner, now=now)

    def _find_overdue_upkeep(self, now: int) -> list[str]:
        with self._store.read() as session:
            return queue.find_neglected(session, now=now, before=now - _UPKEEP_RETRY_MS)

    # --- table workers --------------------------------------------------------------------

    def _new_table_worker(self) -> TableWorker:
        started = time.monotonic()

        def go_on() -> bool:
            if self._stopping:
                return False
            return not self._crowded or time.monotonic() - started < _TURN_SECONDS

        return TableWorker(
            self._store,
            self._publisher,
            self._upkeep,
            owner=self.owner,
            lease_seconds=self._lease_seconds,
            go_on=go_on,
            has_ended=lambda: self._stopping,
            turns=self._upkeep_turns,
            left=self._left,
        )

    def _run_table(
        self, work: Callable[[str], Published | None], table_id: str
    ) -> Published | None:
        """Run a table; never raises: the other tables continue."""
        try:
            return work(table_id)
        except Exception as error:  # noqa: BLE001 - one table must not end the worker
            failure = str(error) if isinstance(error, DeltaLakeDbError) else repr(error)
            self._store.metrics.count("mirror_failures_total")
            warning("mirror_table_failed", lambda: {"table_id": table_id, "error": failure})
            self._resting[table_id] = time.monotonic() + _REST_SECONDS
            return None


# --- one table ----------------------------------------------------------------------------


class Bell:
    """Wakes up one waiting thread; no ring is lost.

    It may be rung in a signal handler, where the locks of `threading` are not allowed.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake up the thread that waits, or will wait next."""
        self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for a ring or the timeout. It consumes all rings so far."""
        with suppress(Empty):
            self._rings.get(timeout=max(0.0, seconds))
            while True:
                self._rings.get_nowait()

    def has_rung(self) -> bool:
        """Whether there is a ring that was not waited for."""
        return not self._rings.empty()


class TableWorker:
    """Publishes a table and runs its upkeep.

    `go_on` is called before each new step; during upkeep, new versions are published until the
    worker `has_ended`.
    """

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        upkeep: Upkeep,
        *,
        owner: str,
        lease_seconds: float,
        go_on: Callable[[], bool],
        has_ended: Callable[[], bool] = lambda: False,
        turns: AbstractContextManager[object] | None = None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self.bell = Bell()
        """Rung when there are new versions to publish."""
        self.in_upkeep = False
        """Whether it runs upkeep, and publishes only new versions."""
        # Limits how many tables run upkeep at once.
        self._turns = turns or nullcontext()
        # Called when the backlog is published and upkeep begins.
        self._left = left
        self._store = store
        self._publisher = publisher
        self._upkeep = upkeep
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._go_on = go_on
        self._has_ended = has_ended

    def run(self, table_id: str) -> Published | None:
        """Publish until the backlog is empty; None where another worker holds the table."""
        table = self._table(table_id)
        total: Published | None = None
        while table is not None:
            round_result = self._with_lease(table, partial(self._publish, table))
            if round_result is None:
                break
            total = _sum(total, round_result)
            if total.outcome is not Outcome.CAUGHT_UP or not self._go_on():
                break
            if not self._has_more(table):
                break
        return total

    def run_once(self, table_id: str) -> Published | None:
        """Publish the backlog of now, whether or not it is due, then run the upkeep.

        None where another worker holds the table, or it was dropped.
        """
        table = self._table(table_id)
        if table is None:
            return None
        total = self._with_lease(table, partial(self._publish_once, table))
        if total is not None and total.outcome is Outcome.CAUGHT_UP and self._has_more(table):
            self._store.dialect.wake_workers()
        return total

    def _table(self, table_id: str) -> TableRecord | None:
        with self._store.read() as session:
            return self._store.table_by_id(session, table_id)

    def _has_more(self, table: TableRecord) -> bool:
        size = self._store.dialect.ask(lambda session: queue.backlog_size(session, table.table_id))
        return size > 0

    def _with_lease(
        self, table: TableRecord, work: Callable[[Lease], Published]
    ) -> Published | None:
        lease = Lease.take(self._store, table.table_id, self._owner, seconds=self._lease_seconds)
        if lease is None:
            return None
        try:
            return work(lease)
        finally:
            lease.release()

    def _publish_once(self, table: TableRecord, lease: Lease) -> Published:
        with self._store.read() as session:
            head = self._store.head(session, table.table_id)
        total = self._publisher.publish(table, force=True, up_to=head, go_on=lease.hold)
        newest = self._newest(table, total, lease)
        if newest is not None:
            self._upkeep.run(table, newest)
        return total

    def _publish(self, table: TableRecord, lease: Lease) -> Published:
        def go_on() -> bool:
            return lease.hold() and self._go_on()

        self.in_upkeep = False
        total = self._publisher.publish(table, go_on=go_on)
        upkeep_version = -1
        newest = self._newest(table, total, lease)
        while newest is not None and newest > upkeep_version:
            total = self._run_upkeep(table, newest, total, lease)
            upkeep_version, newest = newest, total.last_version
            if total.outcome is Outcome.DRIFTED or not go_on():
                break
        return total

    def _newest(self, table: TableRecord, published: Published, lease: Lease) -> int | None:
        """The version to run the upkeep for; None where there is none to run."""
        if published.outcome is Outcome.DRIFTED:
            return None
        if published.last_version is None and lease.was_left:
            # The last owner of the lease did not get to it.
            return self._store.dialect.ask(
                lambda session: queue.newest_published(session, table.table_id)
            )
        return published.last_version

    def _run_upkeep(
        self, table: TableRecord, version: int, total: Published, lease: Lease
    ) -> Published:
        """Run the upkeep of a version, and publish new versions meanwhile, outside of the slots."""

        def go_on() -> bool:
            return lease.hold() and not self._has_ended()

        self.in_upkeep = True
        self._left()
        with ThreadPoolExecutor(1, thread_name_prefix="deltalakedb-upkeep") as thread:
            done: Future[UpkeepResult] = thread.submit(self._upkeep_turn, table, version)
            done.add_done_callback(lambda _: self.bell.ring())
            while not done.done():
                self.bell.wait(self._lease_seconds / 3)
                if done.done() or not go_on():
                    continue
                if total.outcome in _UNFINISHED:
                    total = _sum(total, self._publisher.publish(table, go_on=go_on))
            done.result()
        return total

    def _upkeep_turn(self, table: TableRecord, version: int) -> UpkeepResult:
        with self._turns:
            return self._upkeep.run(table, version)


def _sum(before: Published | None, after: Published) -> Published:
    """The result of two rounds."""
    if before is None:
        return after
    return replace(
        after,
        count=before.count + after.count,
        last_version=before.last_version if after.last_version is None else after.last_version,
        error=after.error or before.error,
    )
