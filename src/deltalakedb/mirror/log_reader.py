"""Reading the files of a log to be compared: their digests, and the states they add up to.

Guarantees: an object that is gone by the time it is read is told as absent, not as an error. Files
come here once, many at a time where the store is far away, and lie on disk when they are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from deltalakedb.deltalog.history import OpenHistory, fetch_checkpoint
from deltalakedb.deltalog.listing import Checkpoint, HistoryPlan, LogFile
from deltalakedb.deltalog.live_state import LiveState
from deltalakedb.errors import InvalidLogError, ObjectNotFoundError

if TYPE_CHECKING:
    from deltalakedb.actions import Action
    from deltalakedb.deltalog.fetch import Spool, Spooled
    from deltalakedb.storage import Storage


def _ignore() -> None:
    """Nobody wants to know."""


class LogReader:
    """Reads files of one log, in this process."""

    def __init__(self, storage: Storage, spool: Spool) -> None:
        self.storage = storage
        self.spool = spool
        self.tell_commit: Callable[[], None] = _ignore
        """Called for each commit that `states` has replayed here."""

    def fetch(self, keys: Sequence[str]) -> dict[str, Spooled]:
        """Size and digest of each file that is there."""
        wanted = list(keys)
        while True:
            try:
                for _ in self.spool.fetch(wanted):
                    pass
            except ObjectNotFoundError:
                # Rarely: somebody deletes files just now. Which ones has to be asked one by one.
                wanted = [key for key in wanted if self.storage.head(key) is not None]
            else:
                return {key: self.spool.entry(key) for key in wanted}

    def get(self, key: str) -> bytes | None:
        """The bytes of a file; None where it is gone."""
        try:
            return self.spool.get(key)
        except ObjectNotFoundError:
            return None

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """InvalidLogError where a checkpoint cannot be read, or lacks a file."""
        fetch_checkpoint(checkpoint, self.spool)

    def states(self, plan: HistoryPlan, buckets: int) -> Iterator[LiveState]:
        """The state that a part of the log comes to, a bucket of its files at a time.

        InvalidLogError where a file of it cannot be understood.
        """
        for bucket in range(buckets):
            state = LiveState(bucket, buckets)
            for actions in self._actions(plan):
                state.apply(actions)
            yield state

    def _actions(self, plan: HistoryPlan) -> Iterator[Iterable[Action]]:
        history = OpenHistory(plan, self.spool)
        try:
            yield from history.base_batches()
            for file in plan.commits:
                yield history.commit(file)
                self.tell_commit()
        except ObjectNotFoundError as error:
            raise InvalidLogError(
                "The log changed while it was read", why=error.what, fix="Try again"
            ) from error


def checkpoint_plan(checkpoint: Checkpoint, commits: Sequence[LogFile] = ()) -> HistoryPlan:
    """A checkpoint, and the commits that follow it."""
    return HistoryPlan(checkpoint.version, (checkpoint,), None, tuple(commits))
