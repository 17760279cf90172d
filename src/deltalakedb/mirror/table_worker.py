"""One table in one worker, from taking its lease to releasing it.

Guarantees:

- Upkeep (checkpoints, checksums, clean-up) runs concurrently with publishing: new commits are
  published meanwhile, and other tables do not wait for it.
- After the release of a lease the backlog is read once more, or other workers are notified: a
  commit that they skipped because of this lease does not wait for their next poll.
- The lease is renewed as long as the work lasts; a worker that lost it starts nothing new.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from deltalakedb.mirror.lease import Lease
from deltalakedb.mirror.publish import Outcome, Published
from deltalakedb.store import mirror as queue

if TYPE_CHECKING:
    from deltalakedb.mirror.publish import Publisher
    from deltalakedb.mirror.upkeep import Upkeep, UpkeepResult
    from deltalakedb.store import Store, TableRecord

_UNFINISHED: Final = (Outcome.CAUGHT_UP, Outcome.INTERRUPTED)


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
            found = self._with_lease(table, partial(self._publish, table))
            if found is None:
                break
            total = _sum(total, found)
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
