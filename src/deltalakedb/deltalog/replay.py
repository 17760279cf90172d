"""What the actions of a log add up to, version by version, in memory.

Guarantees:

- Pure: no I/O. Only what identifies a file is kept of it (path, deletion vector, size), so the
  memory is bounded by the live files, not by the history.
- Files are the same when the keys of their paths (`actions.file_paths`) and their deletion vectors
  are. The catalog compares paths as text, so `apply` gives back the actions with the spelling of
  the live file they are about.
- Where a commit says two things of one file, application or domain, the last one counts, as it
  does for Delta's own replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from deltalakedb.actions import (
    Action,
    AddFile,
    CdcFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from deltalakedb.actions.file_paths import file_key as path_key
from deltalakedb.errors import InvalidLogError

_MAX_LONG = 2**63 - 1

FileKey = tuple[str, str]
"""The key of the path and the id of the deletion vector."""


class LiveFile(NamedTuple):
    """A live file: its path as the log spells it, and its size."""

    path: str
    size: int


class Change(NamedTuple):
    """What one version changed, and what was live after it."""

    num_actions: int
    num_adds: int
    num_removes: int
    bytes_added: int
    bytes_removed: int
    live_files: int
    live_bytes: int


@dataclass(slots=True)
class Replay:
    """The state of a table as its versions are applied to it."""

    files: dict[FileKey, LiveFile] = field(default_factory=dict)
    live_bytes: int = 0
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def apply(self, actions: Sequence[Action], *, file: str) -> tuple[list[Action], Change]:
        """Apply the actions of one version (or of one batch of a state).

        Gives back what counts of them, spelled as the live files are.
        """
        adds = removes = bytes_added = bytes_removed = 0
        kept = reconcile(actions)
        for position, action in enumerate(kept):
            if isinstance(action, (AddFile, RemoveFile)):
                spelled = self._apply_file(action)
                if spelled is not action:
                    kept[position] = spelled
                if isinstance(action, AddFile):
                    adds += 1
                    bytes_added += action.size
                else:
                    removes += 1
                    bytes_removed += action.size or 0
            elif isinstance(action, Protocol):
                self.protocol = action
            elif isinstance(action, Metadata):
                self.metadata = action
            elif isinstance(action, Txn):
                self.txns[action.app_id] = action
            elif isinstance(action, DomainMetadata):
                self.domains[action.domain] = action
        if max(bytes_added, bytes_removed, self.live_bytes) > _MAX_LONG:
            raise InvalidLogError(
                f"The sizes of the files in {file} add up to more than a long can hold",
                fix="Correct the sizes, or restore the file from a copy",
            )
        live = len(self.files)
        num_actions = len(kept) + any(isinstance(action, CommitInfo) for action in actions)
        return kept, Change(
            num_actions, adds, removes, bytes_added, bytes_removed, live, self.live_bytes
        )

    def _apply_file(self, action: AddFile | RemoveFile) -> Action:
        key = file_key(action)
        known = self.files.get(key)
        if known is not None:
            self.live_bytes -= known.size
            if known.path != action.path:
                action = replace(action, path=known.path)
        if isinstance(action, AddFile):
            self.files[key] = LiveFile(action.path, action.size)
            self.live_bytes += action.size
        elif known is not None:
            del self.files[key]
        return action


def file_key(action: AddFile | RemoveFile) -> FileKey:
    """What tells one logical file from another."""
    return file_key_of(action.path, action.dv_id)


def file_key_of(path: str, dv_id: str) -> FileKey:
    """The same, of a path as the log spells it."""
    return path_key(path), dv_id


def reconcile(actions: Iterable[Action]) -> list[Action]:
    """The last action on each file, application, domain, protocol and metadata, in order.

    commitInfo is a thing of its own and left out; whatever else has no key stays.
    """
    given: list[Action] = [action for action in actions if not isinstance(action, CommitInfo)]
    if len(given) < 2:
        return given
    last: dict[object, int] = {}
    for position, action in enumerate(given):
        last[_key(action, position)] = position
    if len(last) == len(given):
        return given
    return [given[position] for position in sorted(last.values())]


def state_of(actions: Iterable[Action]) -> list[Action]:
    """What commits and compactions in a row add up to: no provenance, no change data."""
    kinds = (AddFile, RemoveFile, Protocol, Metadata, Txn, DomainMetadata)
    last: dict[object, Action] = {}
    for action in actions:
        if isinstance(action, kinds):
            last[_key(action, 0)] = action
    return [a for a in last.values() if not (isinstance(a, DomainMetadata) and a.removed)]


def _key(action: Action, position: int) -> object:
    kind = type(action)
    if kind is AddFile or kind is RemoveFile:
        return file_key(action)  # type: ignore[arg-type]
    if isinstance(action, Txn):
        return kind, action.app_id
    if isinstance(action, DomainMetadata):
        return kind, action.domain
    if isinstance(action, CdcFile):
        return kind, action.path
    if isinstance(action, (Protocol, Metadata)):
        return kind
    return position
