"""The result of a verification: where the catalog and the log of a table differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

_MAX_FINDINGS: Final = 1_000


class Kind(StrEnum):
    """The kinds of differences."""

    MISSING_COMMIT = "missing commit"
    """A published commit file is missing, though log retention keeps it."""
    TRUNCATED_COMMIT = "truncated commit"
    """A commit file is only the beginning of what was published."""
    DIFFERENT_COMMIT = "different commit"
    """A published commit file has other bytes than were published."""
    FOREIGN_COMMIT = "foreign commit"
    """Another writer wrote a commit file: beyond the head, or where this catalog will publish."""
    DAMAGED_PAYLOAD = "damaged payload"
    """The bytes to publish for a version are missing from the catalog's queue, or damaged."""
    UNREADABLE_LOG = "unreadable log"
    """The log cannot be replayed up to the newest published version."""
    STATE_DIFFERS = "state differs"
    """A replay of the log has another state than the catalog."""
    DAMAGED_CHECKPOINT = "damaged checkpoint"
    """A checkpoint cannot be read, or a file of it is missing."""
    CHECKPOINT_DIFFERS = "checkpoint differs"
    """A checkpoint has another state than the catalog at its version."""
    UNFINISHED_CHECKPOINT = "unfinished checkpoint"
    """Parts of a checkpoint are missing; readers ignore the others."""
    LOST_HINT = "lost hint"
    """`_last_checkpoint` names a missing checkpoint; most readers fail."""
    DAMAGED_HINT = "damaged hint"
    """`_last_checkpoint` cannot be parsed; readers ignore it."""
    CHECKSUM_DIFFERS = "checksum differs"
    """A version checksum (`.crc`) is damaged, or differs from the catalog."""
    ORPHAN_CHECKSUM = "orphan checksum"
    """A version checksum beyond the newest commit; not every reader can open the table."""
    COMPACTION_DIFFERS = "compaction differs"
    """A log compaction file differs from its commits."""
    CATALOG_CONTRADICTION = "catalog contradicts itself"
    """`dl_active_files` does not follow from the ledger."""
    STALE_DRIFT = "stale drift"
    """Publishing was stopped because of a foreign commit that was deleted since."""


HARMLESS: Final = frozenset({Kind.UNFINISHED_CHECKPOINT, Kind.DAMAGED_HINT, Kind.STALE_DRIFT})
"""The kinds that harm no reader."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference: its kind, its version, and the object below the table's location."""

    kind: Kind
    version: int | None
    key: str | None
    what: str

    @property
    def harmless(self) -> bool:
        """Whether readers see the right table in spite of it."""
        return self.kind in HARMLESS

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {**asdict(self), "kind": str(self.kind), "harmless": self.harmless}


@dataclass(frozen=True, slots=True)
class Verification:
    """The catalog compared with `_delta_log`.

    Versions from `first_version` to `head` are in the catalog, those up to `published_version`
    (None before the first) in the log. Their commit files were `compared`, or are rightly absent:
    `pending` ones are not published yet, `cleaned` ones have expired, `unrecorded` ones were
    imported from a checkpoint. The `files` live files of the newest published version were compared
    with `replays` of the log (0 where a commit file differs), and all files of each of
    `checkpoints`. `findings` has the first thousand differences, `counts` the number of each kind.
    """

    table: str
    table_id: str
    location: str
    first_version: int
    head: int
    published_version: int | None
    compared: int
    pending: int
    cleaned: int
    unrecorded: int
    replays: int
    files: int
    checkpoints: tuple[int, ...]
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every reader of the log sees the state of the catalog."""
        return all(Kind(kind) in HARMLESS for kind in self.counts)

    def of(self, *kinds: Kind) -> list[Finding]:
        """The findings of these kinds."""
        return [finding for finding in self.findings if finding.kind in kinds]

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {
            **asdict(self),
            "checkpoints": list(self.checkpoints),
            "counts": dict(self.counts),
            "findings": [finding.to_dict() for finding in self.findings],
            "ok": self.ok,
        }


@dataclass(slots=True)
class Findings:
    """A collector: counts all findings, and keeps the first thousand."""

    listed: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: Kind, version: int | None, key: str | None, what: str) -> None:
        """Add a difference."""
        self.counts[str(kind)] = self.counts.get(str(kind), 0) + 1
        if len(self.listed) < _MAX_FINDINGS:
            self.listed.append(Finding(kind, version, key, what))

    def has(self, kinds: Iterable[Kind]) -> bool:
        """Whether there is one of these kinds."""
        return any(str(kind) in self.counts for kind in kinds)
