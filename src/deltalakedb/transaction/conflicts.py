"""Delta's conflict rules: whether a transaction may be rebased on a commit that won the race.

Guarantees:

- Pure: the result depends on the arguments alone, and never on the order of actions.
- Monotone: a transaction that read more never has fewer conflicts.
- The rules are tried in Delta's order, so the error of the first one that fails is the one Delta
  would raise; its message names the version that won, what collided, and the way out.

Beyond Delta's default, a winner that adds a feature which constrains writers is a conflict (our
files were written without it), and so is a winner that removes a file which we add again, or
that adds one of our paths with another deletion vector.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from deltalakedb.actions.features import WRITES_UNLESS_USED, check_writable, required_features
from deltalakedb.actions.values import AddFile, Metadata, Protocol
from deltalakedb.conditions.partition_tests import PartitionTest
from deltalakedb.errors import (
    CommitConflictError,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentTransactionError,
    MetadataChangedError,
    ProtocolChangedError,
)
from deltalakedb.transaction.attempt import (
    Attempt,
    IsolationLevel,
    ReadSet,
    Winner,
    isolation_of,
    merge_read_sets,
)
from deltalakedb.transaction.metadata_diff import (
    ROW_TRACKING_DOMAIN,
    changed_parts,
    is_harmless_change,
)

__all__ = [
    "HARMLESS_FEATURES",
    "Attempt",
    "IsolationLevel",
    "PartitionTest",
    "ReadSet",
    "Winner",
    "check_conflict",
    "isolation_of",
    "merge_read_sets",
]

HARMLESS_FEATURES: Final = frozenset(
    {
        *("changeDataFeed", "columnMapping", "deletionVectors", "domainMetadata"),
        *("inCommitTimestamp", "rowTracking", "v2Checkpoint"),
        *("checkpointProtection", "timestampNtz", "typeWidening", "vacuumProtocolCheck"),
    }
)
"""Features that a winner may add without making our files wrong.

They concern reading, clean-up, or what the committer itself fills in. A feature that is not here
constrains writers, and one that this release does not know might.
"""


def check_conflict(
    attempt: Attempt, winner: Winner, *, base_protocol: Protocol, base_metadata: Metadata
) -> None:
    """Raise the matching `CommitConflictError` unless `attempt` may follow `winner`.

    `base_protocol` and `base_metadata` were in force just before the winner: what our transaction
    read, or what the winner before this one left. A protocol that this release cannot write
    raises `UnsupportedFeatureError`: no retry can help.
    """
    _check_protocol(attempt, winner, base_protocol)
    _check_metadata(attempt, winner, base_metadata)
    _check_domains(attempt, winner)
    _check_app_transactions(attempt, winner)
    _check_added_files(attempt, winner)
    _check_removed_reads(attempt, winner)
    _check_removed_twice(attempt, winner)


def _check_protocol(attempt: Attempt, winner: Winner, base: Protocol) -> None:
    protocol = winner.protocol
    if protocol is None or protocol == base:
        return
    before, after = required_features(base), required_features(protocol)
    # What a table merely might use is a conflict below; only what no retry could honour ends here.
    check_writable(protocol, honours=before | HARMLESS_FEATURES | WRITES_UNLESS_USED)
    dropped, constraining = before - after, after - before - HARMLESS_FEATURES
    if attempt.changes_protocol:
        why = "both commits change the protocol of the table"
    elif dropped:
        why = f"it dropped {_named('feature', dropped)}, which this transaction may rely on"
    elif constraining:
        why = f"it added {_named('feature', constraining)}, which this transaction did not honour"
    else:
        return
    raise _conflict(ProtocolChangedError, winner, "the protocol of the table changed", why)


def _check_metadata(attempt: Attempt, winner: Winner, base: Metadata) -> None:
    metadata = winner.metadata
    if metadata is None or metadata == base:
        return
    if not attempt.changes_metadata and is_harmless_change(base, metadata):
        return
    why = f"it changed {', '.join(changed_parts(base, metadata))}"
    if attempt.changes_metadata:
        why += ", and this transaction changes the metadata too"
    raise _conflict(MetadataChangedError, winner, "the metadata of the table changed", why)


def _check_domains(attempt: Attempt, winner: Winner) -> None:
    # Row ids are assigned at the commit, so that domain is rebased, and never in conflict.
    shared = (attempt.domains & winner.domains) - {ROW_TRACKING_DOMAIN}
    if shared:
        what = f"{_named('metadata domain', shared)} changed"
        why = "both commits write the same domain"
        raise _conflict(ConcurrentTransactionError, winner, what, why)


def _check_app_transactions(attempt: Attempt, winner: Winner) -> None:
    shared = attempt.app_ids & winner.app_ids
    if shared:
        what = f"{_named('app transaction', shared)} advanced"
        why = "this transaction relies on how far that application had come"
        raise _conflict(ConcurrentTransactionError, winner, what, why)


def _check_added_files(attempt: Attempt, winner: Winner) -> None:
    if not winner.adds:
        return
    level = attempt.effective_isolation
    skipped = level is IsolationLevel.SNAPSHOT or (
        level is IsolationLevel.WRITE_SERIALIZABLE
        and winner.is_blind_append
        and not attempt.changes_metadata
    )
    if not skipped:
        missed = _files_missed(attempt.read_set, winner.adds)
        if missed:
            first = min(missed, key=lambda add: add.path)
            what = f"files were added that this transaction should have read: {_listed(missed)}"
            why = f"it read {_reads(attempt.read_set, first)}"
            raise _conflict(ConcurrentAppendError, winner, what, why)
    vectors = {add.path: add.dv_id for add in attempt.adds}
    removed = attempt.removed_paths
    doubled = [
        add
        for add in winner.adds
        if vectors.get(add.path, add.dv_id) != add.dv_id and add.path not in removed
    ]
    if doubled:
        what = f"a file was added that this transaction adds too: {_listed(doubled)}"
        why = "a file can be in the table only once, and the two have different deletion vectors"
        raise _conflict(ConcurrentAppendError, winner, what, why)


def _files_missed(read_set: ReadSet, adds: Sequence[AddFile]) -> Sequence[AddFile]:
    if read_set.whole_table:
        return adds
    test = read_set.partitions
    if test is None:
        return ()
    answers: dict[tuple[tuple[str, str | None], ...], bool] = {}
    missed = []
    for add in adds:
        key = tuple(add.partition_values.items())
        answer = answers.get(key)
        if answer is None:
            answer = answers[key] = test(add.partition_values)
        if answer:
            missed.append(add)
    return missed


def _reads(read_set: ReadSet, missed: AddFile) -> str:
    if read_set.whole_table:
        return "the whole table"
    if not missed.partition_values:
        return "the table, which has no partitions, with a condition"
    values = ", ".join(
        f"{name}={value!r}" for name, value in sorted(missed.partition_values.items())
    )
    return f"the partition {values}"


def _check_removed_reads(attempt: Attempt, winner: Winner) -> None:
    removed = winner.removed_paths
    if not removed:
        return
    read_set = attempt.read_set
    gone = removed & read_set.files
    if gone:
        what = f"files were removed that this transaction read: {_listed(gone)}"
        raise _conflict(ConcurrentDeleteReadError, winner, what, "what was read is out of date")
    if read_set.whole_table:
        what = f"files were removed while this transaction read the whole table: {_listed(removed)}"
        raise _conflict(ConcurrentDeleteReadError, winner, what, "what was read is out of date")
    again = removed.intersection(add.path for add in attempt.adds) - attempt.removed_paths
    if again:
        what = f"files were removed that this transaction adds again: {_listed(again)}"
        why = "adding them now would bring back what was removed"
        raise _conflict(ConcurrentDeleteReadError, winner, what, why)


def _check_removed_twice(attempt: Attempt, winner: Winner) -> None:
    both = attempt.removed_paths & winner.removed_paths
    if both:
        what = f"files were removed that this transaction removes too: {_listed(both)}"
        why = "rows would be deleted or rewritten twice"
        raise _conflict(ConcurrentDeleteDeleteError, winner, what, why)


def _conflict(
    kind: type[CommitConflictError], winner: Winner, what: str, why: str
) -> CommitConflictError:
    table = f" of table {winner.table!r}" if winner.table else ""
    return kind(
        f"Conflict with version {winner.version}{table} ({winner.operation}): {what}",
        why=why,
        fix=f"Read the table again at version {winner.version} or later and retry",
        winner_version=winner.version,
    )


def _listed(files: Collection[str] | Collection[AddFile]) -> str:
    """Name one, the same whatever the order, and count the rest."""
    names = {item.path if isinstance(item, AddFile) else item for item in files}
    rest = len(names) - 1
    return f"{min(names)!r}" + (f" and {rest} more" if rest else "")


def _named(noun: str, names: Collection[str]) -> str:
    plural = "s" if len(names) > 1 else ""
    return f"the {noun}{plural} {', '.join(repr(name) for name in sorted(names))}"
