"""The names of files in a `_delta_log`, both ways."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

LOG: Final = "_delta_log"
SIDECARS: Final = "_sidecars"
LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"
_MAX_VERSION: Final = 2**63 - 2

_NAME: Final = re.compile(
    r"(?P<version>\d{20})\."
    r"(?:(?P<commit>json)"
    r"|(?P<crc>crc)"
    r"|(?P<end>\d{20})\.compacted\.json"
    r"|checkpoint\.parquet"
    r"|checkpoint\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet"
    r"|checkpoint\.(?P<uuid>[0-9A-Za-z-]+)\.(?P<form>json|parquet))"
)


class LogKind(Enum):
    """The kinds of files in a log."""

    COMMIT = "commit"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_PART = "part of a checkpoint"
    V2_CHECKPOINT = "V2 checkpoint"
    COMPACTION = "log compaction"
    CHECKSUM = "checksum"


@dataclass(frozen=True, slots=True)
class LogName:
    """A parsed name; `end` is the last version of a compaction, parts count from 1."""

    kind: LogKind
    version: int
    end: int = 0
    part: int = 1
    parts: int = 1
    is_json: bool = False


def parse_name(name: str) -> LogName | None:
    """Parse a file name; None for files that are no part of the log (temporary ones, …)."""
    match = _NAME.fullmatch(name)
    if match is None or int(match["version"]) > _MAX_VERSION:
        return None
    version = int(match["version"])
    if match["commit"]:
        return LogName(LogKind.COMMIT, version, is_json=True)
    if match["crc"]:
        return LogName(LogKind.CHECKSUM, version, is_json=True)
    if match["end"]:
        end = int(match["end"])
        is_range = version < end <= _MAX_VERSION
        return LogName(LogKind.COMPACTION, version, end=end, is_json=True) if is_range else None
    if match["part"]:
        part, parts = int(match["part"]), int(match["parts"])
        kind = LogKind.CHECKPOINT_PART
        return LogName(kind, version, part=part, parts=parts) if 1 <= part <= parts else None
    if match["uuid"]:
        return LogName(LogKind.V2_CHECKPOINT, version, is_json=match["form"] == "json")
    return LogName(LogKind.CHECKPOINT, version)


def commit_key(version: int) -> str:
    """The key of a commit file."""
    return f"{LOG}/{version:020d}.json"


def checksum_key(version: int) -> str:
    """The key of a checksum file."""
    return f"{LOG}/{version:020d}.crc"


def checkpoint_key(version: int) -> str:
    """The key of a classic checkpoint."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def sidecar_key(path: str) -> str:
    """The key of a sidecar: its path is a file name, or a path below the log."""
    name = path.rpartition("/")[2]
    return f"{LOG}/{SIDECARS}/{name}"


def part_key(version: int, part: int, parts: int) -> str:
    """The key of one part of a multi-part checkpoint; they count from 1."""
    return f"{LOG}/{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"


def v2_checkpoint_key(version: int, unique: str) -> str:
    """The key of a V2 checkpoint; `unique` is a UUID."""
    return f"{LOG}/{version:020d}.checkpoint.{unique}.parquet"


def sidecar_name(version: int, number: int, unique: str) -> str:
    """The file name of a sidecar, which is also its path in the checkpoint that names it."""
    return f"{version:020d}.checkpoint.{number:010d}.{unique}.parquet"
