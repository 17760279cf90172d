"""The files of a log for verification: their digests, and the states they add up to.

Guarantees:

- An object that was deleted meanwhile is absent, not an error.
- Each file is fetched once, many at a time from a remote store, and spooled to disk when they are
  many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from deltalakedb.deltalog.fetch import unchanged_log
from deltalakedb.deltalog.history import OpenHistory, fetch_checkpoint
from deltalakedb.deltalog.listing import Checkpoint, HistoryPlan, LogFile
from deltalakedb.deltalog.replay import LogState
from deltalakedb.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from deltalakedb.actions import Action
    from deltalakedb.deltalog.fetch import Spool, Spooled
    from deltalakedb.storage import Storage


class LogReader:
    """Reads files of one log, in this process."""

    def __init__(self, storage: Storage, spool: Spool) -> None:
        self.storage = storage
        self.spool = spool
        self.on_commit: Callable[[], None] = lambda: None
        """Called for each commit that `states` has replayed in this process."""

    def fetch(self, keys: Sequence[str]) -> dict[str, Spooled]:
        """Size and digest of each file that exists."""
        wanted = list(keys)
        while True:
            try:
                self.spool.fetch(wanted)
            except ObjectNotFoundError:
                # Rare: files are being deleted. Ask for each one.
                wanted = [key for key in wanted if self.storage.head(key) is not None]
            else:
                return {key: self.spool.entry(key) for key in wanted}

    def get(self, key: str) -> bytes | None:
        """The bytes of a file; None where it was deleted."""
        try:
            return self.spool.get(key)
        except ObjectNotFoundError:
            return None

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raise InvalidLogError where a checkpoint cannot be read, or lacks a file."""
        fetch_checkpoint(checkpoint, self.spool)

    def states(self, plan: HistoryPlan, buckets: int) -> Iterator[LogState]:
        """Replay a part of the log; returns its state, one bucket of live files at a time.

        InvalidLogError where a file cannot be parsed.
        """
        for bucket in range(buckets):
            state = LogState(bucket=bucket, buckets=buckets)
            for actions in self._actions(plan):
                state.apply(actions)
            yield state

    def _actions(self, plan: HistoryPlan) -> Iterator[Iterable[Action]]:
        history = OpenHistory(plan, self.spool)
        with unchanged_log():
            yield from history.base_batches()
            for file in plan.commits:
                yield history.commit(file)
                self.on_commit()


def checkpoint_plan(checkpoint: Checkpoint, commits: Sequence[LogFile] = ()) -> HistoryPlan:
    """A checkpoint, and the commits that follow it."""
    return HistoryPlan(checkpoint.version, (checkpoint,), None, tuple(commits))
