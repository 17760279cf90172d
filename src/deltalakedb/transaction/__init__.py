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
from deltalakedb.transaction.row_tracking import assign_row_ids, high_water_mark
from deltalakedb.transaction.rules import (
    Rule,
    check_live_files,
    refreshed_paths,
    touched_paths,
    validate_commit,
)

__all__ = [
    "Attempt",
    "IsolationLevel",
    "ReadSet",
    "Rule",
    "Winner",
    "assign_row_ids",
    "check_conflict",
    "check_live_files",
    "high_water_mark",
    "isolation_of",
    "merge_read_sets",
    "refreshed_paths",
    "touched_paths",
    "validate_commit",
]
