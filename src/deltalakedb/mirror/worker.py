"""The worker: finds tables with unpublished versions, and tends as many at once as it may.

Any number of workers share a catalog. Each takes the lease of a table before it tends it; one that
dies or hangs is succeeded when its lease ends. Between two looks a worker waits for word of new
work (Postgres), or looks again soon (the other engines).
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from deltalakedb.errors import CatalogError, ConfigurationError, DeltaLakeDbError
from deltalakedb.mirror.lease import LEASE_SECONDS, Lease, new_owner
from deltalakedb.mirror.publish import Outcome, Published, Publisher, Storages
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import event, warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.mirror.schedule import RetrySchedule
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.mirror import Work

CONCURRENCY: Final = 8
# After a failure of the catalog itself.
_REST_SECONDS: Final = 1.0


class Worker:
    """Publishes whatever waits, for as many tables at once as `concurrency` says."""

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
        if concurrency < 1:
            raise ConfigurationError(
                f"concurrency={concurrency!r} is no number of tables",
                fix="Pass at least 1",
            )
        self.owner = owner or new_owner()
        self._store = store
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        storages = Storages(store.storage_options)
        self._publisher = Publisher(store, storages, schedule=schedule, step=step)
        self._upkeep = Upkeep(store, storages)
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let the versions that are under way come to their end, then end."""
        self._stop.set()

    # --- once -----------------------------------------------------------------------------

    def run_once(self) -> list[Published]:
        """Try every table that has something to publish, also those that would still wait."""
        work = [item for item in self._find_work() if not item.drifted and not item.busy]
        if not work:
            return []
        with ThreadPoolExecutor(min(self._concurrency, len(work))) as pool:
            done = list(pool.map(lambda item: self._tend(item.table_id, force=True), work))
        return [published for published in done if published is not None]

    # --- for ever -------------------------------------------------------------------------

    def run(self, *, poll_seconds: float | None = None) -> None:
        """Publish until `stop()` is called; a catalog that fails is asked again later."""
        pause = self._store.dialect.poll_seconds if poll_seconds is None else poll_seconds
        event("mirror_worker_started", lambda: {"owner": self.owner})
        under_way: dict[str, Future[Published | None]] = {}
        with (
            ThreadPoolExecutor(self._concurrency) as pool,
            self._store.dialect.listen() as listener,
        ):
            while not self._stop.is_set():
                try:
                    seconds = min(pause, self._start_due(pool, under_way))
                    if under_way and len(under_way) >= self._concurrency:
                        wait(under_way.values(), timeout=seconds, return_when="FIRST_COMPLETED")
                    else:
                        listener.wait(seconds, self._stop)
                except CatalogError as error:
                    self._rest(error)
            wait(under_way.values())
        event("mirror_worker_stopped", lambda: {"owner": self.owner})

    def _rest(self, error: CatalogError) -> None:
        warning("mirror_worker_rests", lambda: {"owner": self.owner, "error": str(error)})
        self._stop.wait(_REST_SECONDS)

    def _start_due(
        self, pool: ThreadPoolExecutor, under_way: dict[str, Future[Published | None]]
    ) -> float:
        """Start whatever is due; in how many seconds the next table will be."""
        for table_id in [key for key, future in under_way.items() if future.done()]:
            under_way.pop(table_id).result()
        now = self._store.clock.now_ms()
        following = float("inf")
        for item in self._find_work():
            if item.drifted or item.busy or item.table_id in under_way:
                continue
            if item.next_attempt_at > now:
                following = min(following, (item.next_attempt_at - now) / 1000)
            elif len(under_way) < self._concurrency:
                under_way[item.table_id] = pool.submit(self._tend, item.table_id)
        return following

    def _find_work(self) -> list[Work]:
        now = self._store.clock.now_ms()
        with self._store.read() as session:
            return queue.find_work(session, owner=self.owner, now=now)

    # --- one table ------------------------------------------------------------------------

    def _tend(self, table_id: str, *, force: bool = False) -> Published | None:
        """Publish a table and look after its log; None where another worker does, or it is gone.

        Never raises: the other tables go on.
        """
        try:
            return self._tend_table(table_id, force=force)
        except Exception as error:  # noqa: BLE001 - one table must not end the worker
            failure = str(error) if isinstance(error, DeltaLakeDbError) else repr(error)
            self._store.metrics.count("mirror_failures_total")
            warning("mirror_table_failed", lambda: {"table_id": table_id, "error": failure})
            return None

    def _tend_table(self, table_id: str, *, force: bool) -> Published | None:
        table = self._table(table_id)
        if table is None:
            return None
        lease = Lease.take(self._store, table_id, self.owner, seconds=self._lease_seconds)
        if lease is None:
            return None
        try:
            published = self._publisher.publish(
                table, force=force, go_on=lambda: lease.hold() and not self._stop.is_set()
            )
            if published.last_version is not None and published.outcome is not Outcome.DRIFTED:
                self._upkeep.tend(table, published.last_version)
            return published
        finally:
            lease.release()

    def _table(self, table_id: str) -> TableRecord | None:
        with self._store.read() as session:
            return self._store.table_by_id(session, table_id)
