"""The write path: Delta's conflict rules, the rules for one commit, the commit loop."""

from __future__ import annotations

from deltalakedb.transaction.conflicts import (
    Attempt,
    IsolationLevel,
    ReadSet,
    Winner,
    check_conflict,
    isolation_of,
    merge_read_sets,
)

__all__ = [
    "Attempt",
    "IsolationLevel",
    "ReadSet",
    "Winner",
    "check_conflict",
    "isolation_of",
    "merge_read_sets",
]
