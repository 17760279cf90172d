"""When a commit happens.

Guarantees:

- Commit times strictly increase per table, as in-commit timestamps have to.
- Time is that of the database. An embedded database has no other clock than this machine's: one
  that is years ahead of everything that the catalog has recorded is refused. Such a commit could
  not be taken back, and all later ones of the table would have to follow it.
- A table whose newest commit lies in the future goes on, a millisecond at a time, with a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.formatting import format_time
from deltalakedb.store.store import LONGEST_IDLE_MS
from deltalakedb.telemetry import warning

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session

# Clocks of sound machines differ by less.
_AHEAD_MS: Final = 60_000


class CommitTimes:
    """Gives commits their times."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._checked: int | None = None
        self._warned: set[str] = set()

    def now(self, session: Session) -> int:
        """The time that a commit is recorded at; ClockError where the clock cannot be right."""
        now = self._store.clock.now_ms()
        # What was checked once needs no further look before the clock has jumped.
        if self._checked is None or now - self._checked > LONGEST_IDLE_MS:
            self._store.check_clock(session, now)
        self._checked = now
        return now

    def after(self, previous: int, now: int, table: TableRecord) -> int:
        """The time of a commit that follows on one at `previous`."""
        if previous - now > _AHEAD_MS and table.table_id not in self._warned:
            self._warned.add(table.table_id)
            warning(
                "commit_time_ahead",
                lambda: {
                    "table": table.name,
                    "table_id": table.table_id,
                    "newest_commit": format_time(previous),
                    "clock": format_time(now),
                    "error": "The newest commit is later than the clock says. Until the clock gets "
                    "there, each commit is a millisecond after the one before",
                },
            )
        return max(now, previous + 1)
