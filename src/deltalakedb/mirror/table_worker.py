"""One table in the hands of one worker, from taking its lease to giving it back.

Guarantees:

- Checkpoints, checksums and clean-up run beside publishing: commits that come meanwhile are
  published meanwhile, and tables that wait to be published wait for none of it.
- Who gives a lease back looks for work once more, or tells others to: a commit of which they were
  told while they saw the table in these hands waits for nobody's next look.
- The lease is renewed as long as the work lasts; who has lost it begins nothing new.
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
    from deltalakedb.mirror.upkeep import Tended, Upkeep
    from deltalakedb.store import Store, TableRecord

_UNFINISHED: Final = (Outcome.CAUGHT_UP, Outcome.INTERRUPTED)


class Bell:
    """Wakes up one thread that waits; a ring is never lost.

    It may be rung in a signal handler, which locks of Python's `threading` do not bear.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake up who waits, or who will."""
        self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Until there was a ring, or the time is over. All rings until now are heard by it."""
        with suppress(Empty):
            self._rings.get(timeout=max(0.0, seconds))
            while True:
                self._rings.get_nowait()

    def has_rung(self) -> bool:
        """Whether somebody has rung whom nobody has heard."""
        return not self._rings.empty()


class Tending:
    """Publishes a table and looks after its log.

    `go_on` is asked before anything new is begun; what comes while the log is looked after is
    published until the worker `has_ended`.
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
        """To be rung when there is something new to publish."""
        self.is_beside = False
        """Whether it only looks after the log, and publishes what comes meanwhile."""
        # Held by as many as may look after their logs at once.
        self._turns = turns or nullcontext()
        # Called when it has published what was there.
        self._left = left
        self._store = store
        self._publisher = publisher
        self._upkeep = upkeep
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._go_on = go_on
        self._has_ended = has_ended

    def run(self, table_id: str) -> Published | None:
        """Publish until there is nothing more; None where another worker has the table."""
        table = self._table(table_id)
        total: Published | None = None
        while table is not None:
            found = self._with_lease(table, partial(self._tend, table))
            if found is None:
                break
            total = _sum(total, found)
            if total.outcome is not Outcome.CAUGHT_UP or not self._go_on():
                break
            if not self._has_more(table):
                break
        return total

    def run_once(self, table_id: str) -> Published | None:
        """Publish what is there now, also what would still wait, and look after the log after it.

        None where another worker has the table, or it is gone.
        """
        table = self._table(table_id)
        if table is None:
            return None
        total = self._with_lease(table, partial(self._tend_once, table))
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

    def _tend_once(self, table: TableRecord, lease: Lease) -> Published:
        with self._store.read() as session:
            head = self._store.head(session, table.table_id)
        total = self._publisher.publish(table, force=True, up_to=head, go_on=lease.hold)
        newest = self._newest(table, total, lease)
        if newest is not None:
            self._upkeep.tend(table, newest)
        return total

    def _tend(self, table: TableRecord, lease: Lease) -> Published:
        def go_on() -> bool:
            return lease.hold() and self._go_on()

        self.is_beside = False
        total = self._publisher.publish(table, go_on=go_on)
        tended = -1
        newest = self._newest(table, total, lease)
        while newest is not None and newest > tended:
            total = self._tend_beside(table, newest, total, lease)
            tended, newest = newest, total.last_version
            if total.outcome is Outcome.DRIFTED or not go_on():
                break
        return total

    def _newest(self, table: TableRecord, published: Published, lease: Lease) -> int | None:
        """The version that the log is to be brought up to; None where it needs nothing."""
        if published.outcome is Outcome.DRIFTED:
            return None
        if published.last_version is None and lease.was_left:
            # Whoever had it before did not come to this.
            return self._store.dialect.ask(
                lambda session: queue.newest_published(session, table.table_id)
            )
        return published.last_version

    def _tend_beside(
        self, table: TableRecord, version: int, total: Published, lease: Lease
    ) -> Published:
        """Look after the log at a version, and go on publishing meanwhile, in nobody's place."""

        def go_on() -> bool:
            return lease.hold() and not self._has_ended()

        self.is_beside = True
        self._left()
        with ThreadPoolExecutor(1, thread_name_prefix="deltalakedb-upkeep") as thread:
            done: Future[Tended] = thread.submit(self._look_after, table, version)
            done.add_done_callback(lambda _: self.bell.ring())
            while not done.done():
                self.bell.wait(self._lease_seconds / 3)
                if done.done() or not go_on():
                    continue
                if total.outcome in _UNFINISHED:
                    total = _sum(total, self._publisher.publish(table, go_on=go_on))
            done.result()
        return total

    def _look_after(self, table: TableRecord, version: int) -> Tended:
        with self._turns:
            return self._upkeep.tend(table, version)


def _sum(before: Published | None, after: Published) -> Published:
    """Two rounds of publishing a table as one."""
    if before is None:
        return after
    return replace(
        after,
        count=before.count + after.count,
        last_version=before.last_version if after.last_version is None else after.last_version,
        error=after.error or before.error,
    )
