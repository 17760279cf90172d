"""What a verification says: where the catalog and the files of a table differ, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

_MOST: Final = 1_000


class Kind(StrEnum):
    """What kind of difference it is."""

    MISSING_COMMIT = "missing commit"
    """A commit file that was published is not there, though log retention keeps it."""
    TRUNCATED_COMMIT = "truncated commit"
    """A commit file ends too early; what is there is right."""
    DIFFERENT_COMMIT = "different commit"
    """A published commit file has other bytes than were published."""
    FOREIGN_COMMIT = "foreign commit"
    """Somebody else wrote a commit file: beyond the head, or where this catalog will publish."""
    DAMAGED_PAYLOAD = "damaged payload"
    """The bytes to publish for a version are gone from the catalog's queue, or damaged."""
    UNREADABLE_LOG = "unreadable log"
    """The log cannot be replayed up to the newest published version."""
    STATE_DIFFERS = "state differs"
    """A replay of the log comes to another state than the catalog."""
    DAMAGED_CHECKPOINT = "damaged checkpoint"
    """A checkpoint cannot be read, or a file of it is missing."""
    CHECKPOINT_DIFFERS = "checkpoint differs"
    """A checkpoint has another state than the catalog at its version."""
    UNFINISHED_CHECKPOINT = "unfinished checkpoint"
    """Parts of a checkpoint that others do not make whole; readers ignore them."""
    LOST_HINT = "lost hint"
    """`_last_checkpoint` names a checkpoint that is not there; few readers get over that."""
    DAMAGED_HINT = "damaged hint"
    """`_last_checkpoint` cannot be understood; readers ignore it."""
    CHECKSUM_DIFFERS = "checksum differs"
    """A version checksum (`.crc`) is damaged, or says something else than the catalog."""
    ORPHAN_CHECKSUM = "orphan checksum"
    """A version checksum beyond the newest commit; some readers cannot open the table."""
    COMPACTION_DIFFERS = "compaction differs"
    """A log compaction file does not say what its commits say."""
    CATALOG_CONTRADICTION = "catalog contradicts itself"
    """`dl_active_files` does not follow from the ledger."""
    STALE_DRIFT = "stale drift"
    """Publishing was stopped because of a foreign commit that is not there any more."""


HARMLESS: Final = frozenset({Kind.UNFINISHED_CHECKPOINT, Kind.DAMAGED_HINT, Kind.STALE_DRIFT})
"""What no reader is harmed by."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference: what kind, at which version, in which object of the table's location."""

    kind: Kind
    version: int | None
    key: str | None
    what: str

    @property
    def harmless(self) -> bool:
        """Whether every reader sees the right table all the same."""
        return self.kind in HARMLESS

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be printed."""
        return {**asdict(self), "kind": str(self.kind), "harmless": self.harmless}


@dataclass(frozen=True, slots=True)
class Verification:
    """The catalog against `_delta_log`: what was compared, and what differs.

    Versions from `first_version` to `head` are in the catalog, those up to `published_version`
    (None before the first) in the log. Their commit files were `compared`, or are rightly absent:
    `pending` ones are still to be published, `cleaned` ones have expired, of `unrecorded` ones an
    import found only a checkpoint. `files` live files of the newest published version were compared
    with `replays` of the log (none where a commit file is wrong), and all those of each of
    `checkpoints`. `findings` has the first thousand, `counts` how many there are of each kind.
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
        """Whether every reader of the log sees what the catalog says; harmless findings aside."""
        return all(Kind(kind) in HARMLESS for kind in self.counts)

    def of(self, *kinds: Kind) -> list[Finding]:
        """The findings of some kinds."""
        return [finding for finding in self.findings if finding.kind in kinds]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be printed."""
        return {
            **asdict(self),
            "checkpoints": list(self.checkpoints),
            "counts": dict(self.counts),
            "findings": [finding.to_dict() for finding in self.findings],
            "ok": self.ok,
        }


@dataclass(slots=True)
class Findings:
    """Findings as they come: all are counted, the first thousand kept."""

    kept: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: Kind, version: int | None, key: str | None, what: str) -> None:
        """Note a difference."""
        self.counts[str(kind)] = self.counts.get(str(kind), 0) + 1
        if len(self.kept) < _MOST:
            self.kept.append(Finding(kind, version, key, what))

    def has(self, kinds: Iterable[Kind]) -> bool:
        """Whether there is one of these kinds."""
        return any(str(kind) in self.counts for kind in kinds)
