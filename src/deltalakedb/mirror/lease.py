"""The lease of a worker on a table: an owner, a generation and an end, in the catalog.

The lease of a worker that died or hung expires, and another one takes the next generation. A lease
only saves work: everything it guards is safe to do twice.
"""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING, Final

from deltalakedb.store import mirror as queue

if TYPE_CHECKING:
    from deltalakedb.store import Store

LEASE_SECONDS: Final = 30.0
LONGEST_LEASE_SECONDS: Final = queue.LONGEST_LEASE_MS / 1000


def new_owner() -> str:
    """A unique name of a worker, with its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Lease:
    """A lease that was taken. `hold()` renews it while the work lasts."""

    def __init__(
        self, store: Store, table_id: str, owner: str, taken: queue.Taken, *, seconds: float
    ) -> None:
        self.table_id = table_id
        self.generation = taken.generation
        self.was_left = taken.was_left
        self._store = store
        self._owner = owner
        self._milliseconds = round(seconds * 1000)
        self._renewed_at = store.clock.now_ms()
        self._lost = False

    @classmethod
    def take(
        cls, store: Store, table_id: str, owner: str, *, seconds: float = LEASE_SECONDS
    ) -> Lease | None:
        """The lease on a table, or None while another worker holds it."""
        now = store.clock.now_ms()
        with store.write() as session:
            taken = queue.take_lease(
                session, table_id, owner=owner, now=now, expires_at=now + round(seconds * 1000)
            )
        if taken is None:
            return None
        return cls(store, table_id, owner, taken, seconds=seconds)

    def hold(self) -> bool:
        """Whether this worker still has the lease; renews it after a third of its time."""
        now = self._store.clock.now_ms()
        # After a clock was turned back, a lease may last too long.
        if not self._lost and abs(now - self._renewed_at) >= self._milliseconds // 3:
            with self._store.write() as session:
                self._lost = not queue.renew_lease(
                    session,
                    self.table_id,
                    owner=self._owner,
                    generation=self.generation,
                    now=now,
                    expires_at=now + self._milliseconds,
                )
            self._renewed_at = now
        return not self._lost

    def release(self) -> None:
        """Release it, so that no worker has to wait for its end."""
        with self._store.write() as session:
            queue.release_lease(
                session,
                self.table_id,
                owner=self._owner,
                generation=self.generation,
                now=self._store.clock.now_ms(),
            )
