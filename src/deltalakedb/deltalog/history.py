"""The history of an existing table, read version by version.

`open_history` fetches files and skips damaged checkpoints; the rest is parsing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deltalakedb.actions import (
    Action,
    AddFile,
    CheckpointMetadata,
    DomainMetadata,
    Metadata,
    RemoveFile,
    Sidecar,
    parse_commit,
)
from deltalakedb.deltalog.checkpoints import (
    check_header,
    read_control_actions,
    read_file_actions,
    sidecars_of,
)
from deltalakedb.deltalog.fetch import Spool, unchanged_log
from deltalakedb.deltalog.listing import (
    Checkpoint,
    HistoryPlan,
    LogFile,
    LogListing,
    plan_history,
)
from deltalakedb.deltalog.names import sidecar_key
from deltalakedb.deltalog.replay import reconcile_state
from deltalakedb.errors import InvalidLogError, ObjectNotFoundError

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class OpenHistory:
    """A history; the files of the state that it begins with are in the spool."""

    plan: HistoryPlan
    spool: Spool

    def base_batches(self) -> Iterator[list[Action]]:
        """The state that the history begins with, in batches; control actions come first."""
        pieces = self.plan.base_pieces
        if len(pieces) == 1 and isinstance(pieces[0], Checkpoint):
            yield from checkpoint_batches(pieces[0], self.spool)
        elif pieces:
            yield reconcile_state(self._pieced_actions())

    def _pieced_actions(self) -> Iterator[Action]:
        for piece in self.plan.base_pieces:
            if isinstance(piece, Checkpoint):
                for batch in checkpoint_batches(piece, self.spool):
                    yield from batch
            else:
                yield from self.commit(piece)

    def commit(self, file: LogFile) -> list[Action]:
        """The actions of a commit (or compaction) file."""
        return parse_commit(self.spool.get(file.key), file=file.key)


def open_history(listing: LogListing, spool: Spool, *, location: str) -> OpenHistory:
    """Choose the files of the longest history, and fetch those of its first state.

    The caller fetches the commits after it. A damaged checkpoint is skipped where another one can
    replace it, and removed from `listing`.
    """
    damage: InvalidLogError | None = None
    while True:
        try:
            plan = plan_history(listing, location=location)
        except InvalidLogError as error:
            raise damage or error from None
        # Only the first piece of a base can be a checkpoint.
        first = plan.base_pieces[0] if plan.base_pieces else None
        if isinstance(first, Checkpoint):
            try:
                fetch_checkpoint(first, spool)
            except InvalidLogError as error:
                damage = damage or error
                _drop(listing, first)
                continue
        _fetch_base(plan, spool)
        return OpenHistory(plan, spool)


def _fetch_base(plan: HistoryPlan, spool: Spool) -> None:
    files = [piece for piece in plan.base_pieces if isinstance(piece, LogFile)]
    if plan.base_commit is not None:
        files.append(plan.base_commit)
    with unchanged_log():
        spool.fetch([file.key for file in files])


def _drop(listing: LogListing, checkpoint: Checkpoint) -> None:
    left = [c for c in listing.checkpoints[checkpoint.version] if c is not checkpoint]
    if left:
        listing.checkpoints[checkpoint.version] = left
    else:
        del listing.checkpoints[checkpoint.version]


def fetch_checkpoint(checkpoint: Checkpoint, spool: Spool) -> None:
    """Fetch a checkpoint and parse its control actions; InvalidLogError where a file is damaged."""
    try:
        for file in checkpoint.files:
            data = spool.get(file.key)
            control = read_control_actions(data, file=file.key, is_json=file.name.is_json)
            check_header(control, version=checkpoint.version, file=file.key)
            for sidecar in sidecars_of(control):
                read_control_actions(spool.get(sidecar_key(sidecar.path)), file=sidecar.path)
    except ObjectNotFoundError as error:
        raise InvalidLogError(
            f"The checkpoint of version {checkpoint.version} is incomplete",
            why=error.what,
            fix="Restore the file from a copy",
        ) from error


def checkpoint_batches(checkpoint: Checkpoint, spool: Spool) -> Iterator[list[Action]]:
    """The actions of a checkpoint, in batches; control actions come first."""
    control: list[Action] = []
    sidecars: list[Sidecar] = []
    for file in checkpoint.files:
        actions = read_control_actions(
            spool.get(file.key), file=file.key, is_json=file.name.is_json
        )
        sidecars += sidecars_of(actions)
        control += [a for a in actions if not isinstance(a, (CheckpointMetadata, Sidecar))]
    # Checkpoints have no removed domains, but there are writers that leave them there.
    yield [a for a in control if not (isinstance(a, DomainMetadata) and a.removed)]
    metadata = next((a for a in control if isinstance(a, Metadata)), None)
    sources = [(file.key, file.name.is_json) for file in checkpoint.files]
    sources += [(sidecar_key(sidecar.path), False) for sidecar in sidecars]
    batch: list[Action] = []
    for key, is_json in sources:
        files: Iterator[AddFile | RemoveFile] = read_file_actions(
            spool.get(key), file=key, metadata=metadata, is_json=is_json
        )
        for action in files:
            batch.append(action)
            if len(batch) >= _BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


# --- times --------------------------------------------------------------------------------


class VersionTime(NamedTuple):
    """The time of a version's file, and its in-commit timestamp if the table has them enabled."""

    version: int
    file_ms: int
    in_commit_ms: int | None = None


def commit_times(versions: Sequence[VersionTime]) -> list[int]:
    """The time of each version, strictly increasing.

    Delta's rule: the in-commit timestamp where there is one, else the time of the file, moved on
    where files were copied out of order. Where an in-commit timestamp is not later than the time of
    a file before it, the time of the file gives way.
    """
    times: list[int] = []
    for entry in versions:
        following = times[-1] + 1 if times else 0
        own = entry.in_commit_ms
        times.append(max(entry.file_ms, following) if own is None else own)
    for position in range(len(times) - 2, -1, -1):
        if versions[position].in_commit_ms is None:
            times[position] = min(times[position], times[position + 1] - 1)
    # In-commit timestamps may still contradict each other: then the order of versions wins.
    for position, time in enumerate(times):
        times[position] = max(time, times[position - 1] + 1 if position else 0)
    return times
