"""The clock that decides which files have expired, compared with the object store's own.

A clock that is ahead would delete files that are still needed. A clock that is behind only keeps
more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.deltalog.names import LOG, commit_key
from deltalakedb.errors import ClockError
from deltalakedb.formatting import format_time

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store

# Much for a clock; retentions are days.
_AHEAD_MS: Final = 3_600_000


def check_ahead(
    store: Store, storage: Storage, now: int, *, newest: int = 0, folder: str = LOG
) -> None:
    """Raise ClockError where `now` is ahead of the object store's clock.

    `newest` is the time of its newest object: while that is recent, the store is not asked. A
    clock that the catalog was opened with is not checked.
    """
    if store.has_own_clock:
        return
    with store.read() as session:
        store.check_clock(session, now)
    if now - newest <= _AHEAD_MS:
        return
    theirs = storage.now_ms(folder)
    if now - theirs > _AHEAD_MS:
        owner = "database" if store.dialect.engine == "postgres" else "machine"
        raise ClockError(
            f"The clock of this {owner} says {format_time(now)}, and that of {storage.location} "
            f"says {format_time(theirs)}",
            why="By a clock that is ahead, files would be too old that are still needed; nothing "
            "was deleted",
            fix="Set the clock, then try again",
        )


def time_of_log(store: Store, storage: Storage, version: int) -> int:
    """The time, or that of a commit file plus an hour if that is earlier.

    It decides which tombstones a checkpoint leaves out. For a commit that was just published it is
    the time itself, unless a clock is ahead.
    """
    now = store.clock.now_ms()
    if store.has_own_clock:
        return now
    file = storage.head(commit_key(version))
    return now if file is None else min(now, file.modified_ms + _AHEAD_MS)
