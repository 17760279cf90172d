"""The worker: finds tables with unpublished versions, and tends as many at once as it may.

Guarantees:

- Any number of workers share a catalog. Each takes the lease of a table before it tends it; one
  that dies or hangs is succeeded when its lease ends, also in what it owed the table beside its
  commits.
- Between two looks a worker waits for word of new work (Postgres), or looks again soon (the other
  engines). Word that comes at any moment is heard: a commit never waits for the next look.
- Tables take turns: one that is written to all the time does not keep the others waiting, and nor
  do checkpoints, of which only a few are made at once.
- Nothing ends a worker but `stop()`: a catalog that fails is asked again, and so is a table.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalakedb.arguments import refuse, require_number, require_whole
from deltalakedb.errors import CatalogError, DeltaLakeDbError
from deltalakedb.mirror.lease import LEASE_SECONDS, LONGEST_LEASE_SECONDS, new_owner
from deltalakedb.mirror.publish import Outcome, Published, Publisher, Storages
from deltalakedb.mirror.schedule import RetrySchedule
from deltalakedb.mirror.table_worker import Bell, Tending
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import event, warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.store import Store
    from deltalakedb.store.mirror import Work

CONCURRENCY: Final = 8
# After a failure of the catalog itself, or of a table that could not be noted there.
_REST_SECONDS: Final = 1.0
# How long a table keeps its place while others wait for one.
_TURN_SECONDS: Final = 0.2
# How many tables may be in these hands for each that is published: the others have checkpoints,
# checksums or clean-up under way, or wait for their turn to have it. So many have it at once.
_IN_HAND: Final = 4
_UPKEEP_AT_ONCE: Final = 2
# How often to look for tables that others have left, and when to try again what could not be done.
_SWEEP_SECONDS: Final = 1.0
_UPKEEP_RETRY_MS: Final = 60_000


@dataclass(slots=True)
class _Place:
    """A table that is being tended."""

    tending: Tending
    result: Future[Published | None]


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
        self._places: dict[str, _Place] = {}
        self._resting: dict[str, float] = {}
        self._crowded = False
        self._swept_at = float("-inf")

    def stop(self) -> None:
        """Let the versions that are under way come to their end, then end. Safe in a signal."""
        self._stopping = True
        self._bell.ring()

    # --- once -----------------------------------------------------------------------------

    def run_once(self, *, only: str | None = None) -> list[Published]:
        """Try every table that has something to publish, also those that would still wait.

        With `only` the table of that id, and no other. A table that another worker has is left to
        it, and is in the result as LEASED.
        """
        now = self._store.clock.now_ms()
        found = [item.table_id for item in self._find_work() if not item.drifted]
        found += [table_id for table_id in self._find_neglected(now) if table_id not in found]
        if only is not None:
            found = [table_id for table_id in found if table_id == only]
        if not found:
            return []

        def tend(table_id: str) -> Published | None:
            done = self._tend(self._new_tending().run_once, table_id)
            return self._leased(table_id) if done is None else done

        with ThreadPoolExecutor(min(self._concurrency, len(found))) as pool:
            done = list(pool.map(tend, found))
        return [published for published in done if published is not None]

    def _leased(self, table_id: str) -> Published | None:
        """Who has a table; None where nobody else has."""
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

    # --- for ever -------------------------------------------------------------------------

    def run(self, *, poll_seconds: float | None = None) -> None:
        """Publish until `stop()` is called; a catalog that fails is asked again later."""
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
            # Who was told of work in these hands shall look again; and the listener ends at once.
            self._store.dialect.wake_workers()
        event("mirror_worker_stopped", lambda: {"owner": self.owner})

    def _rest(self, error: CatalogError) -> None:
        warning("mirror_worker_rests", lambda: {"owner": self.owner, "error": str(error)})
        end = time.monotonic() + _REST_SECONDS
        while not self._stopping and time.monotonic() < end:
            self._bell.wait(end - time.monotonic())

    def _start_due(self, pool: ThreadPoolExecutor) -> float:
        """Start whatever is due; in how many seconds to look again at the latest."""
        self._places = {
            key: place for key, place in self._places.items() if not place.result.done()
        }
        now = self._store.clock.now_ms()
        following = float("inf")
        self._crowded = False
        for item in self._find_work():
            if item.table_id in self._places:
                self._tell(item.table_id)
            elif item.drifted or item.busy:
                continue
            elif self._schedule.has_to_wait(item.next_attempt_at, now):
                following = min(following, (item.next_attempt_at - now) / 1000)
            else:
                following = min(following, self._start(pool, item.table_id))
        if time.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            for table_id in self._find_neglected(now):
                if table_id not in self._places:
                    self._start(pool, table_id)
        return following

    def _tell(self, table_id: str) -> None:
        """Tell who tends a table that there is more."""
        place = self._places[table_id]
        place.tending.bell.ring()
        if place.result.done():
            # It may not have heard it.
            self._bell.ring()

    def _start(self, pool: ThreadPoolExecutor, table_id: str) -> float:
        """Tend a table if there is a place for it; in how many seconds, if it has to rest."""
        rest = self._resting.pop(table_id, 0.0) - time.monotonic()
        if rest > 0:
            self._resting[table_id] = rest + time.monotonic()
            return rest
        if not self._has_place():
            self._crowded = True
            if self._has_place():
                # It ended before it could know that its place is wanted.
                self._bell.ring()
            return float("inf")
        tending = self._new_tending()
        result = pool.submit(self._tend, tending.run, table_id)
        self._places[table_id] = _Place(tending, result)
        result.add_done_callback(lambda _: self._ended(tending))
        return float("inf")

    def _has_place(self) -> bool:
        """Whether one more table may be published."""
        held = [place for place in self._places.values() if not place.result.done()]
        publishing = sum(not place.tending.is_beside for place in held)
        return publishing < self._concurrency and len(held) < _IN_HAND * self._concurrency

    def _left(self) -> None:
        if self._crowded:
            self._bell.ring()

    def _ended(self, tending: Tending) -> None:
        if self._crowded or tending.bell.has_rung():
            self._bell.ring()

    def _find_work(self) -> list[Work]:
        now = self._store.clock.now_ms()
        with self._store.read() as session:
            return queue.find_work(session, owner=self.owner, now=now)

    def _find_neglected(self, now: int) -> list[str]:
        with self._store.read() as session:
            return queue.find_neglected(session, now=now, before=now - _UPKEEP_RETRY_MS)

    # --- one table ------------------------------------------------------------------------

    def _new_tending(self) -> Tending:
        started = time.monotonic()

        def go_on() -> bool:
            if self._stopping:
                return False
            return not self._crowded or time.monotonic() - started < _TURN_SECONDS

        return Tending(
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

    def _tend(self, work: Callable[[str], Published | None], table_id: str) -> Published | None:
        """Tend a table; never raises: the other tables go on."""
        try:
            return work(table_id)
        except Exception as error:  # noqa: BLE001 - one table must not end the worker
            failure = str(error) if isinstance(error, DeltaLakeDbError) else repr(error)
            self._store.metrics.count("mirror_failures_total")
            warning("mirror_table_failed", lambda: {"table_id": table_id, "error": failure})
            self._resting[table_id] = time.monotonic() + _REST_SECONDS
            return None
