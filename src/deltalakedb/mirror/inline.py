"""Publishing in the process that commits: right after each commit, without a worker.

Guarantees:

- A commit that has happened is never told as failed because of the log: whatever goes wrong here is
  noted in the queue, counted, and tried again.
- A store that is ill, or a long backlog, holds a commit up for seconds at most. The commits after a
  failure are not held up at all until it is time for another try.
- Checkpoints, checksums, clean-up and further tries happen in a thread of their own, which ends
  when it has nothing to do. `close()` waits for what was begun.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.mirror.background import Background, Job
from deltalakedb.mirror.publish import Outcome, Published, Publisher, Storages
from deltalakedb.mirror.upkeep import Upkeep
from deltalakedb.telemetry import warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.mirror.schedule import RetrySchedule
    from deltalakedb.store import Store, TableRecord

# How long a commit may publish what others have left.
_PATIENCE_SECONDS: Final = 5.0


def _import_upkeep() -> None:
    """Import what the thread needs, which a fork in the middle would break in the child."""
    import deltalakedb.mirror.checkpoint
    import deltalakedb.mirror.cleanup  # noqa: F401


class InlineMirror:
    """Publishes what this process commits."""

    def __init__(self, store: Store, *, schedule: RetrySchedule | None = None) -> None:
        self._store = store
        brief = Storages(store.storage_options, patient=False)
        self._publisher = Publisher(store, brief, schedule=schedule)
        self._upkeep = Upkeep(store, Storages(store.storage_options))
        self._background = Background("deltalakedb-mirror", prepare=_import_upkeep)

    def after_commit(self, table: TableRecord) -> None:
        """Publish what waits of a table, for some seconds; never raises."""
        end = time.monotonic() + _PATIENCE_SECONDS
        self._publish(table, lambda: time.monotonic() < end)

    def _publish(self, table: TableRecord, go_on: Callable[[], bool]) -> None:
        try:
            published = self._publisher.publish(table, go_on=go_on)
        except Exception as error:  # noqa: BLE001 - whoever sees one takes the commit for failed
            self._failed(table, "mirror_table_failed", error)
        else:
            self._follow_up(table, published)

    def drain(self) -> None:
        """Wait for the checkpoints and checksums of what was published."""
        self._background.drain()

    def close(self) -> None:
        """Wait for checkpoints that are due; further tries are left to others."""
        self._background.close()

    def _follow_up(self, table: TableRecord, published: Published) -> None:
        version = published.last_version
        if version is not None and published.outcome is not Outcome.DRIFTED:
            self._background.put(Job(("tend", table.table_id), lambda: self._tend(table, version)))
        if published.outcome in (Outcome.FAILED, Outcome.WAITING, Outcome.INTERRUPTED):
            wait_ms = (published.next_attempt_at or 0) - self._store.clock.now_ms()
            due = time.monotonic() + max(0.001, wait_ms / 1000)
            self._background.put(Job(("publish", table.table_id), lambda: self._again(table), due))

    def _again(self, table: TableRecord) -> None:
        self._publish(table, self._background.is_open)

    def _tend(self, table: TableRecord, version: int) -> None:
        try:
            self._upkeep.tend(table, version)
        except Exception as error:  # noqa: BLE001 - the thread serves other tables too
            self._failed(table, "mirror_upkeep_failed", error)

    def _failed(self, table: TableRecord, what: str, error: Exception) -> None:
        failure = str(error) if isinstance(error, DeltaLakeDbError) else repr(error)
        self._store.metrics.count("mirror_failures_total")
        warning(what, lambda: {"table": table.name, "table_id": table.table_id, "error": failure})
