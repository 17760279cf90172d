"""Checkpoints of a log that is imported, against its commits.

A history comes from commits where they are there. Readers of the log begin with a checkpoint: one
that says something else would show them another table. The newest checkpoint is compared, and older
ones while they are small; `verify` compares all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import Action, DomainMetadata, Txn
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.history import checkpoint_batches, fetch_checkpoint
from deltalakedb.deltalog.live_state import (
    FILE_COLUMNS,
    LiveState,
    described_files,
    differences,
    metadata_differences,
    protocol_differences,
    shown,
)
from deltalakedb.errors import InvalidLogError

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.deltalog.fetch import Spool
    from deltalakedb.deltalog.history import OpenHistory
    from deltalakedb.deltalog.listing import Checkpoint, LogListing

_BYTES: Final = 16 * 1024 * 1024
"""Older checkpoints than the newest are compared while they have no more bytes together."""
_SHOWN: Final = 3


@dataclass(slots=True)
class CheckpointCheck:
    """The checkpoints to compare, and the control actions that the commits have had."""

    checkpoints: list[Checkpoint]
    spool: Spool
    control: list[tuple[int, Action]] = field(default_factory=list)

    def note(self, others: Iterable[tuple[int, list[Action]]]) -> None:
        """Keep the control actions of commits, in the order of their versions."""
        if self.checkpoints:
            self.control += [(version, action) for version, some in others for action in some]

    def problems(self, groups: Iterable[pa.Table], *, complete: bool) -> Iterator[str]:
        """Where a checkpoint contradicts the commits; the first differences of each.

        `groups` have every file that ever was, with its interval. What is not `complete` lacks app
        transactions and metadata domains.
        """
        states = [self._state(checkpoint) for checkpoint in self.checkpoints]
        files: list[list[str]] = [[] for _ in states]
        for group in groups if states else ():
            for checkpoint, state, told in zip(self.checkpoints, states, files, strict=True):
                told.extend(_compare(_live_at(group, checkpoint.version), state)[:_SHOWN])
        for checkpoint, state, told in zip(self.checkpoints, states, files, strict=True):
            told.extend(
                f"the file {shown(file)} is in the checkpoint, and is not live by the commits"
                for file in islice(state.files, _SHOWN)
            )
            told.extend(self._control_problems(checkpoint.version, state, complete=complete))
            if told:
                yield f"{checkpoint.files[0].key}: {'; '.join(told[:_SHOWN])}"

    def _state(self, checkpoint: Checkpoint) -> LiveState:
        state = LiveState()
        for batch in checkpoint_batches(checkpoint, self.spool):
            state.apply(batch)
        return state

    def _control_problems(self, version: int, state: LiveState, *, complete: bool) -> Iterator[str]:
        mine = LiveState()
        mine.apply(action for number, action in self.control if number <= version)
        if mine.protocol is None or mine.metadata is None:
            return
        yield from protocol_differences(mine.protocol, state.protocol)
        yield from metadata_differences(mine.metadata, state.metadata)
        if not complete:
            return
        expires = TableProperties(mine.metadata.configuration).set_transaction_retention
        for app in sorted({*mine.txns, *state.txns}):
            if _version(mine.txns.get(app)) != _version(state.txns.get(app)) and not (
                expires and app not in state.txns
            ):
                yield f"the app transaction {app!r} differs"
        for name in sorted({*mine.domains, *state.domains}):
            if _configuration(mine.domains.get(name)) != _configuration(state.domains.get(name)):
                yield f"the metadata domain {name!r} differs"


def checkpoints_to_compare(
    listing: LogListing, history: OpenHistory, spool: Spool
) -> CheckpointCheck:
    """Choose checkpoints that the history is not made of, and bring them here.

    One that is damaged is passed over: readers find that out by themselves.
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


def _live_at(files: pa.Table, version: int) -> pa.Table:
    import pyarrow.compute as pc

    live = pc.and_(
        pc.less_equal(files["added_version"], version),
        pc.greater(files["removed_version"], version),
    )
    return files.select(FILE_COLUMNS).filter(live)


def _compare(files: pa.Table, state: LiveState) -> list[str]:
    """Where live files differ from a state, which loses all of them."""
    problems: list[str] = []
    for batch in files.to_batches():
        for file, mine in described_files(batch):
            theirs = state.files.pop(file, None)
            if theirs is None:
                problems.append(f"the live file {shown(file)} is not in the checkpoint")
            elif names := differences(mine, theirs, stats=False):
                problems.append(f"fields of the live file {shown(file)} differ: {', '.join(names)}")
    return problems


def _version(txn: Txn | None) -> int | None:
    return None if txn is None else txn.version


def _configuration(domain: DomainMetadata | None) -> str | None:
    return None if domain is None or domain.removed else domain.configuration
