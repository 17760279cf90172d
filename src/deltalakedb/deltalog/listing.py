"""The files of a `_delta_log`, and the versions that they give.

Guarantees:

- `plan_history` keeps as many versions as the files allow: all of them if commit 0 and every later
  one are there; else everything from the oldest state that later commits continue without a gap.
- A gap between the newest state that can be built and a later commit is refused, with its versions.
- `_last_checkpoint`, checksums and unknown files decide nothing: they may be missing, stale or
  damaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deltalakedb.deltalog.names import LOG, LogKind, LogName, parse_name
from deltalakedb.errors import Fix, InvalidLogError
from deltalakedb.storage import ObjectInfo, Storage


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log as it was listed."""

    key: str
    size: int
    modified_ms: int
    name: LogName

    @property
    def version(self) -> int:
        """The version a commit or checkpoint is of; the first one of a compaction."""
        return self.name.version


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint with all its parts."""

    version: int
    files: tuple[LogFile, ...]
    is_v2: bool = False

    @property
    def has_parts(self) -> bool:
        """Whether it is a multi-part checkpoint, if only of one part."""
        return self.files[0].name.kind is LogKind.CHECKPOINT_PART


Piece = Checkpoint | LogFile
"""A part of a state: a checkpoint, then commits and compactions."""


@dataclass(slots=True)
class LogListing:
    """The files of a log by kind."""

    commits: dict[int, LogFile] = field(default_factory=dict)
    checkpoints: dict[int, list[Checkpoint]] = field(default_factory=dict)
    compactions: list[LogFile] = field(default_factory=list)

    @property
    def latest(self) -> int | None:
        """The newest version of a commit or checkpoint; None for an empty log."""
        return max((*self.commits, *self.checkpoints), default=None)


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """How to rebuild a history: the state `base` if there is one, then a commit per version.

    `base_pieces` is empty when the history begins with commit 0. `base_commit` is the commit file
    of the base version, for its provenance.
    """

    base_version: int | None
    base_pieces: tuple[Piece, ...]
    base_commit: LogFile | None
    commits: tuple[LogFile, ...]

    @property
    def first_version(self) -> int:
        """The oldest version of the history."""
        return self.commits[0].version if self.base_version is None else self.base_version

    @property
    def last_version(self) -> int:
        """The newest version of the history."""
        return self.first_version + self.count - 1

    @property
    def count(self) -> int:
        """The number of versions."""
        return len(self.commits) + (self.base_version is not None)


def list_log(storage: Storage) -> LogListing:
    """List the log of the table at `storage`."""
    return sort_log(storage.list(LOG))


def sort_log(objects: Iterable[ObjectInfo]) -> LogListing:
    """Sort the objects of a log by kind; checkpoints that lack a part are left out."""
    listing = LogListing()
    parts: dict[tuple[int, int], dict[int, LogFile]] = {}
    for info in objects:
        name = parse_name(info.key.removeprefix(f"{LOG}/"))
        if name is None:
            continue
        file = LogFile(info.key, info.size, info.modified_ms, name)
        if name.kind is LogKind.COMMIT:
            listing.commits[name.version] = file
        elif name.kind is LogKind.COMPACTION:
            listing.compactions.append(file)
        elif name.kind is LogKind.CHECKPOINT_PART:
            parts.setdefault((name.version, name.parts), {})[name.part] = file
        elif name.kind is not LogKind.CHECKSUM and file.size:
            is_v2 = name.kind is LogKind.V2_CHECKPOINT
            checkpoint = Checkpoint(name.version, (file,), is_v2=is_v2)
            listing.checkpoints.setdefault(name.version, []).append(checkpoint)
    for (version, count), present in parts.items():
        if len(present) == count:
            files = tuple(present[part] for part in sorted(present))
            listing.checkpoints.setdefault(version, []).append(Checkpoint(version, files))
    for candidates in listing.checkpoints.values():
        # The same state several times: one file before many, and always the same choice.
        candidates.sort(key=lambda c: (len(c.files), c.is_v2, c.files[0].key))
    return listing


def plan_history(listing: LogListing, *, location: str) -> HistoryPlan:
    """Choose the files that keep the longest history up to the newest version."""
    latest = listing.latest
    if latest is None:
        raise InvalidLogError(
            f"There is no Delta table at {location}",
            why=f"it has no {LOG} folder, or there is neither a commit nor a checkpoint in it",
            fix=f"Check the location, or create a table with {Fix('lake.create_table', ...)}",
        )
    first = latest + 1
    while first - 1 in listing.commits:
        first -= 1
    if first == 0:
        return HistoryPlan(None, (), None, tuple(listing.commits[v] for v in range(latest + 1)))
    ends = {file.name.end for file in listing.compactions}
    for base in sorted({first - 1, *listing.checkpoints, *ends}):
        pieces = _pieces_to(listing, base) if first - 1 <= base <= latest else None
        if pieces:
            commits = tuple(listing.commits[v] for v in range(base + 1, latest + 1))
            return HistoryPlan(base, pieces, listing.commits.get(base), commits)
    raise _gap(listing, first, location)


def _pieces_to(listing: LogListing, version: int) -> tuple[Piece, ...]:
    """The files of the state at `version`, in order; none where one of them is missing.

    Walks backwards: a checkpoint ends the walk, a compaction leads over its range, a commit over
    one version. The widest compaction is not always the right one, so all of them are tried.
    """
    compacted: dict[int, list[LogFile]] = {}
    for file in listing.compactions:
        compacted.setdefault(file.name.end, []).append(file)
    # For each version reached: the piece that leads on from it, and where to.
    onward: dict[int, tuple[Piece, int] | None] = {version: None}
    stack = [version]
    while stack:
        at = stack.pop()
        if at < 0 or at in listing.checkpoints:
            pieces: list[Piece] = [] if at < 0 else [listing.checkpoints[at][0]]
            step = onward[at]
            while step is not None:
                pieces.append(step[0])
                step = onward[step[1]]
            return tuple(pieces)
        before = compacted.get(at, [])
        if at in listing.commits:
            before = [listing.commits[at], *before]
        for file in before:
            if file.version - 1 not in onward:
                onward[file.version - 1] = (file, at)
                stack.append(file.version - 1)
    return ()


def _gap(listing: LogListing, first: int, location: str) -> InvalidLogError:
    return InvalidLogError(
        f"The log of {location} cannot be read up to its newest version {listing.latest}",
        why=f"commit {first - 1} is missing, and no complete checkpoint at version {first - 1} or "
        "later stands for it",
        fix="Restore the missing commit or checkpoint from a copy of _delta_log",
    )
