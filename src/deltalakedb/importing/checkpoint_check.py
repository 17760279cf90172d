"""The checkpoints of a log that is imported, compared with its commits.

A history comes from commits where they exist, and readers of the log begin with a checkpoint: one
that contradicts the commits would give them another table. The newest checkpoint is compared, and
older ones while they are small; `verify` compares all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import Action
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.differences import (
    Sides,
    control_differences,
    file_differences,
    metadata_differences,
    protocol_differences,
    unexpected_files,
)
from deltalakedb.deltalog.history import checkpoint_batches, fetch_checkpoint
from deltalakedb.deltalog.replay import FILE_COLUMNS, ControlState, LogState, described_files
from deltalakedb.errors import InvalidLogError

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.deltalog.fetch import Spool
    from deltalakedb.deltalog.history import OpenHistory
    from deltalakedb.deltalog.listing import Checkpoint, LogListing

_BYTES: Final = 16 * 1024 * 1024
"""Checkpoints older than the newest are compared while all together have no more bytes."""
_REPORTED: Final = 3
_SIDES: Final = Sides("commits", "checkpoint")


@dataclass(slots=True)
class CheckpointCheck:
    """The checkpoints to compare, and the control actions of the commits so far."""

    checkpoints: list[Checkpoint]
    spool: Spool
    control: list[tuple[int, Action]] = field(default_factory=list)

    def add_control(self, versions: Iterable[tuple[int, list[Action]]]) -> None:
        """Add the control actions of commits, in the order of their versions."""
        if self.checkpoints:
            self.control += [(version, a) for version, actions in versions for a in actions]

    def differences(self, groups: Iterable[pa.Table], *, complete: bool) -> Iterator[str]:
        """The first differences of each checkpoint that contradicts the commits.

        `groups` have all files of the history with their intervals. Without `complete` the control
        actions lack app transactions and metadata domains, which are then not compared.
        """
        states = [self._state(checkpoint) for checkpoint in self.checkpoints]
        problems: list[list[str]] = [[] for _ in states]
        for group in groups if states else ():
            for checkpoint, state, texts in zip(self.checkpoints, states, problems, strict=True):
                texts.extend(islice(_compare(group, checkpoint.version, state), _REPORTED))
        for checkpoint, state, texts in zip(self.checkpoints, states, problems, strict=True):
            texts.extend(unexpected_files(islice(state.files, _REPORTED), _SIDES))
            texts.extend(self._compare_control(checkpoint.version, state, complete=complete))
            if texts:
                yield f"{checkpoint.files[0].key}: {'; '.join(texts[:_REPORTED])}"

    def _state(self, checkpoint: Checkpoint) -> LogState:
        state = LogState()
        for batch in checkpoint_batches(checkpoint, self.spool):
            state.apply(batch)
        return state

    def _compare_control(self, version: int, state: LogState, *, complete: bool) -> Iterator[str]:
        commits = ControlState()
        for number, action in self.control:
            if number <= version:
                commits.apply_control(action)
        if commits.protocol is None or commits.metadata is None:
            return
        if complete:
            retention = TableProperties(commits.metadata.configuration).set_transaction_retention
            yield from control_differences(
                commits, state, _SIDES, txns_expire=retention is not None
            )
        else:
            yield from protocol_differences(commits.protocol, state.protocol, _SIDES)
            yield from metadata_differences(commits.metadata, state.metadata, _SIDES)


def checkpoints_to_compare(
    listing: LogListing, history: OpenHistory, spool: Spool
) -> CheckpointCheck:
    """Choose and fetch checkpoints that the history does not begin with.

    A damaged one is skipped: readers notice that by themselves.
    """
    plan = history.plan
    chosen: list[Checkpoint] = []
    size = 0
    for version in sorted(listing.checkpoints, reverse=True):
        for checkpoint in listing.checkpoints[version]:
            if version < plan.first_version or checkpoint in plan.base_pieces:
                continue
            size += sum(file.size for file in checkpoint.files)
            if chosen and size > _BYTES:
                return CheckpointCheck(chosen, spool)
            try:
                fetch_checkpoint(checkpoint, spool)
            except InvalidLogError:
                continue
            chosen.append(checkpoint)
    return CheckpointCheck(chosen, spool)


def _compare(files: pa.Table, version: int, state: LogState) -> Iterator[str]:
    """Compare the files that are live at a version; `state` loses all of them."""
    import pyarrow.compute as pc

    live = pc.and_(
        pc.less_equal(files["added_version"], version),
        pc.greater(files["removed_version"], version),
    )
    for batch in files.select(FILE_COLUMNS).filter(live).to_batches():
        yield from file_differences(described_files(batch), state.files, _SIDES, stats=False)
