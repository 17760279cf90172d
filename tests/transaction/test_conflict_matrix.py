"""Every pair of operations at every isolation level, with its outcome written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from deltalakedb.actions import Action, DomainMetadata, Txn
from deltalakedb.errors import (
    CommitConflictError,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentTransactionError,
    MetadataChangedError,
    ProtocolChangedError,
)
from deltalakedb.transaction import Attempt, IsolationLevel, ReadSet, Winner, check_conflict
from transaction.examples import LEGACY, add, column, features, info, remove, schema, table

METADATA = table(by=("day",))
WIDER = replace(
    METADATA, schema_string=schema(column("id"), column("day", "date"), column("new", "string"))
)
VECTORS = features("appendOnly", "invariants", reader=("deletionVectors",))
CONSTRAINTS = features("appendOnly", "invariants", "checkConstraints")

ERRORS: dict[str, type[CommitConflictError]] = {
    "A": ConcurrentAppendError,
    "R": ConcurrentDeleteReadError,
    "D": ConcurrentDeleteDeleteError,
    "M": MetadataChangedError,
    "P": ProtocolChangedError,
    "T": ConcurrentTransactionError,
}


def _file(name: str, day: int, *, data_change: bool = True) -> Action:
    return add(name, partition_values={"day": f"2024-01-0{day}"}, data_change=data_change)


def _first_day(values: Mapping[str, str | None]) -> bool:
    return values["day"] == "2024-01-01"


READS_DAY_1 = ReadSet(partitions=_first_day, files=frozenset({"f1"}))
READS_ALL = ReadSet(whole_table=True)
BLIND = ReadSet()

OURS: dict[str, tuple[ReadSet, list[Action]]] = {
    "append": (BLIND, [_file("new", 1)]),
    "append after reading day 1": (READS_DAY_1, [_file("new", 1)]),
    "overwrite": (READS_ALL, [remove("f1"), remove("f2"), _file("new", 1)]),
    "delete f1 of day 1": (READS_DAY_1, [remove("f1")]),
    "remove f1 unread": (BLIND, [remove("f1")]),
    "set metadata": (BLIND, [WIDER]),
    "replace table": (READS_ALL, [WIDER, remove("f1"), _file("new", 1)]),
    "set protocol": (BLIND, [VECTORS]),
    "optimize f1 of day 1": (
        READS_DAY_1,
        [remove("f1", data_change=False), _file("big", 1, data_change=False)],
    ),
    "append with txn a": (BLIND, [_file("new", 1), Txn("a", 7)]),
    "append after reading txn a": (ReadSet(app_ids=frozenset({"a"})), [_file("new", 1)]),
    "append with domain d": (BLIND, [_file("new", 1), DomainMetadata("d", "{}", removed=False)]),
}

WINNERS: dict[str, list[Action]] = {
    "bld1": [info(blind=True), _file("w", 1)],
    "bld2": [info(blind=True), _file("w", 2)],
    "app1": [info(), _file("w", 1)],
    "over": [info(), remove("f1"), remove("f2"), _file("w", 1)],
    "del1": [info("DELETE"), remove("f1")],
    "del9": [info("DELETE"), remove("f9")],
    "meta": [info("ADD COLUMNS"), WIDER],
    "dv": [info("UPGRADE PROTOCOL"), VECTORS],
    "chk": [info("UPGRADE PROTOCOL"), CONSTRAINTS],
    "opti": [info("OPTIMIZE"), remove("f1", data_change=False), _file("b", 1, data_change=False)],
    "txnA": [info("STREAMING UPDATE", blind=True), _file("w", 3), Txn("a", 6)],
    "txnB": [info("STREAMING UPDATE", blind=True), _file("w", 3), Txn("b", 6)],
    "domD": [info(blind=True), _file("w", 3), DomainMetadata("d", "{}", removed=False)],
    "domE": [info(blind=True), _file("w", 3), DomainMetadata("e", "{}", removed=False)],
}

# Rows: what we do. Columns: what won. A dot: both commits stand; a letter: an error of ERRORS.
SERIALIZABLE = """
                           bld1 bld2 app1 over del1 del9 meta dv   chk  opti txnA txnB domD domE
append                     .    .    .    .    .    .    M    .    P    .    .    .    .    .
append after reading day 1 A    .    A    A    R    .    M    .    P    A    .    .    .    .
overwrite                  A    A    A    A    R    R    M    .    P    A    A    A    A    A
delete f1 of day 1         A    .    A    A    R    .    M    .    P    A    .    .    .    .
remove f1 unread           .    .    .    D    D    .    M    .    P    D    .    .    .    .
set metadata               .    .    .    .    .    .    M    .    P    .    .    .    .    .
replace table              A    A    A    A    R    R    M    .    P    A    A    A    A    A
set protocol               .    .    .    .    .    .    M    P    P    .    .    .    .    .
optimize f1 of day 1       .    .    .    R    R    .    M    .    P    R    .    .    .    .
append with txn a          .    .    .    .    .    .    M    .    P    .    T    .    .    .
append after reading txn a .    .    .    .    .    .    M    .    P    .    T    .    .    .
append with domain d       .    .    .    .    .    .    M    .    P    .    .    .    T    .
"""

# Blind appends of others no longer count as missed, unless we change the metadata.
WRITE_SERIALIZABLE = """
                           bld1 bld2 app1 over del1 del9 meta dv   chk  opti txnA txnB domD domE
append                     .    .    .    .    .    .    M    .    P    .    .    .    .    .
append after reading day 1 .    .    A    A    R    .    M    .    P    A    .    .    .    .
overwrite                  .    .    A    A    R    R    M    .    P    A    .    .    .    .
delete f1 of day 1         .    .    A    A    R    .    M    .    P    A    .    .    .    .
remove f1 unread           .    .    .    D    D    .    M    .    P    D    .    .    .    .
set metadata               .    .    .    .    .    .    M    .    P    .    .    .    .    .
replace table              A    A    A    A    R    R    M    .    P    A    A    A    A    A
set protocol               .    .    .    .    .    .    M    P    P    .    .    .    .    .
optimize f1 of day 1       .    .    .    R    R    .    M    .    P    R    .    .    .    .
append with txn a          .    .    .    .    .    .    M    .    P    .    T    .    .    .
append after reading txn a .    .    .    .    .    .    M    .    P    .    T    .    .    .
append with domain d       .    .    .    .    .    .    M    .    P    .    .    .    T    .
"""

# Added files never count as missed; removed ones still do.
SNAPSHOT = """
                           bld1 bld2 app1 over del1 del9 meta dv   chk  opti txnA txnB domD domE
append                     .    .    .    .    .    .    M    .    P    .    .    .    .    .
append after reading day 1 .    .    .    R    R    .    M    .    P    R    .    .    .    .
overwrite                  .    .    .    R    R    R    M    .    P    R    .    .    .    .
delete f1 of day 1         .    .    .    R    R    .    M    .    P    R    .    .    .    .
remove f1 unread           .    .    .    D    D    .    M    .    P    D    .    .    .    .
set metadata               .    .    .    .    .    .    M    .    P    .    .    .    .    .
replace table              .    .    .    R    R    R    M    .    P    R    .    .    .    .
set protocol               .    .    .    .    .    .    M    P    P    .    .    .    .    .
optimize f1 of day 1       .    .    .    R    R    .    M    .    P    R    .    .    .    .
append with txn a          .    .    .    .    .    .    M    .    P    .    T    .    .    .
append after reading txn a .    .    .    .    .    .    M    .    P    .    T    .    .    .
append with domain d       .    .    .    .    .    .    M    .    P    .    .    .    T    .
"""


def _outcomes(text: str) -> list[tuple[str, str, str]]:
    header, *rows = text.strip("\n").split("\n")
    starts = [header.index(name) for name in WINNERS]
    return [
        (row[:26].strip(), theirs, row[start])
        for row in rows
        for theirs, start in zip(WINNERS, starts, strict=True)
    ]


CASES = [
    pytest.param(level, ours, theirs, outcome, id=f"{level.value}-{ours}-{theirs}")
    for level, text in (
        (IsolationLevel.SERIALIZABLE, SERIALIZABLE),
        (IsolationLevel.WRITE_SERIALIZABLE, WRITE_SERIALIZABLE),
        (IsolationLevel.SNAPSHOT, SNAPSHOT),
    )
    for ours, theirs, outcome in _outcomes(text)
]


def test_every_pair_has_its_outcome_at_every_level() -> None:
    assert len(CASES) == len(IsolationLevel) * len(OURS) * len(WINNERS)


@pytest.mark.parametrize(("level", "ours", "theirs", "outcome"), CASES)
def test_outcome_of_two_commits(
    level: IsolationLevel, ours: str, theirs: str, outcome: str
) -> None:
    reads, actions = OURS[ours]
    attempt, winner = Attempt(reads, actions, level), Winner(8, WINNERS[theirs])

    if outcome == ".":
        check_conflict(attempt, winner, base_protocol=LEGACY, base_metadata=METADATA)
        return
    with pytest.raises(CommitConflictError) as caught:
        check_conflict(attempt, winner, base_protocol=LEGACY, base_metadata=METADATA)
    assert type(caught.value) is ERRORS[outcome]
    assert caught.value.winner_version == 8
    assert caught.value.retryable
    assert winner.operation in str(caught.value)
    assert "at version 8 or later and retry" in str(caught.value)
