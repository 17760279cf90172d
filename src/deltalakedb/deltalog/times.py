"""When each version of a log was committed.

Delta's rule: the in-commit timestamp where the table has them enabled, else the time of the file,
moved on where files were copied out of order. Times strictly increase; where an in-commit timestamp
is not later than the time of a file before it, the time of the file gives way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class VersionTime(NamedTuple):
    """What is known of a version's time: of its file, and the in-commit timestamp if it counts."""

    version: int
    file_ms: int
    in_commit_ms: int | None = None


def commit_times(known: Sequence[VersionTime]) -> list[int]:
    """The time of each version, strictly increasing."""
    times: list[int] = []
    for entry in known:
        following = times[-1] + 1 if times else 0
        own = entry.in_commit_ms
        times.append(max(entry.file_ms, following) if own is None else own)
    for position in range(len(times) - 2, -1, -1):
        if known[position].in_commit_ms is None:
            times[position] = min(times[position], times[position + 1] - 1)
    # What is left are in-commit timestamps that contradict each other: the order of versions wins.
    for position, time in enumerate(times):
        times[position] = max(time, times[position - 1] + 1 if position else 0)
    return times
