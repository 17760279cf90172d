"""Every pair of operations that meet: who may follow whom, stated in one table.

Two handles look at the same version. The winner commits first, from one handle; then the loser
commits from the other, which has not seen that. What happens to the loser is in `OUTCOMES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from deltalakedb.errors import (
    CommitConflictError,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentTransactionError,
    MetadataChangedError,
    ProtocolChangedError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table
from deltalakedb.transaction import ReadSet

from support.lake import (
    Json,
    add,
    check_ledger,
    live_paths,
    new_lake_table,
    published,
    remove,
    row_counts,
)

# The table has two files: `one` in the partition day=1 and `two` in day=2. Its deletion vectors are
# enabled. Whatever is added lies in day=1.
#
# append      adds a file, having read nothing      append_part  adds one, having read day=1
# append_all  adds one, having read the table       overwrite    replaces everything
# delete_one  removes `one`                         delete_two   removes `two`
# delete_day  removes `one`, having read day=1      hide_rows    gives `one` a deletion vector
# compact     rewrites `one`, dataChange=false      refresh      adds `one` again, dataChange=false
# properties  sets a table property                 feature      adds typeWidening to the protocol
# constraint  adds checkConstraints to it           app_x, app_y append with an app transaction
#
# An outcome is `ok` (rebased: it becomes the version after the winner's) or a key of ERRORS.
# Two outcomes in a cell are those for the levels Serializable and WriteSerializable.
OUTCOMES = """
loser       | append    append_all overwrite delete_one delete_two properties feature constraint compact app_x     app_y     hide_rows refresh
append      | ok        ok         ok        ok         ok         Meta       ok      Proto      ok      ok        ok        ok        ok
append_part | Append/ok Append     Append    Read       ok         Meta       ok      Proto      Append  Append/ok Append/ok Append    Append/ok
append_all  | Append/ok Append     Append    Read       Read       Meta       ok      Proto      Append  Append/ok Append/ok Append    Append/ok
overwrite   | Append/ok Append     Append    Read       Read       Meta       ok      Proto      Append  Append/ok Append/ok Append    Append/ok
delete_one  | ok        ok         Delete    Delete     ok         Meta       ok      Proto      Delete  ok        ok        Delete    ok
delete_day  | Append/ok Append     Append    Read       ok         Meta       ok      Proto      Append  Append/ok Append/ok Append    Append/ok
properties  | ok        ok         ok        ok         ok         Meta       ok      Proto      ok      ok        ok        ok        ok
feature     | ok        ok         ok        ok         ok         Meta       Proto   Proto      ok      ok        ok        ok        ok
compact     | ok        ok         Read      Read       ok         Meta       ok      Proto      Read    ok        ok        Read      ok
app_x       | ok        ok         ok        ok         ok         Meta       ok      Proto      ok      Txn       ok        ok        ok
hide_rows   | ok        ok         Read      Read       ok         Meta       ok      Proto      Read    ok        ok        Read      ok
refresh     | ok        ok         Read      Read       ok         Meta       ok      Proto      Read    ok        ok        Read      ok
"""  # noqa: E501 - one line for each loser

ERRORS: Mapping[str, type[CommitConflictError]] = {
    "Append": ConcurrentAppendError,
    "Read": ConcurrentDeleteReadError,
    "Delete": ConcurrentDeleteDeleteError,
    "Txn": ConcurrentTransactionError,
    "Meta": MetadataChangedError,
    "Proto": ProtocolChangedError,
}
LEVELS = ("Serializable", "WriteSerializable")
ONE, TWO = "one.parquet", "two.parquet"
DAY = {"day": "1"}

_numbers = count(1)


def _in_day_one(values: Mapping[str, str | None]) -> bool:
    return values["day"] == "1"


_ALL = ReadSet(whole_table=True)
_PART = ReadSet(partitions=_in_day_one, files=frozenset({ONE}))
_FILE = ReadSet(files=frozenset({ONE}))


@dataclass(frozen=True)
class Operation:
    """What one writer does: its actions, given a name for the file it adds, and its reads."""

    actions: Callable[[str], list[Json]] = lambda new: [add(new, values=DAY)]
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[[Table, str], int] | None = None

    def commit(self, table: Table, who: str) -> int:
        if self.run is not None:
            return self.run(table, who)
        options = dict(self.options)
        if "app_txn" in options:
            options["app_txn"] = (options["app_txn"], 1 if who == "winner" else 2)
        return table.commit(self.actions(f"{who}.parquet"), operation=who, **options)

    def after(self, live: set[str], who: str) -> set[str]:
        """The live files after this operation."""
        if self.run is not None:
            return live
        actions = self.actions(f"{who}.parquet")
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        added = {action["add"]["path"] for action in actions if "add" in action}
        return (live - removed) | added


def _rewritten(new: str) -> list[Json]:
    return [remove(ONE, data_change=False), add(new, values=DAY, data_change=False)]


def _replaced(new: str) -> list[Json]:
    return [remove(ONE), remove(TWO), add(new, values=DAY)]


OPERATIONS: Mapping[str, Operation] = {
    "append": Operation(),
    "append_part": Operation(options={"read": _PART}),
    "append_all": Operation(options={"read": _ALL}),
    "overwrite": Operation(_replaced, {"read": _ALL}),
    "delete_one": Operation(lambda _: [remove(ONE)]),
    "delete_two": Operation(lambda _: [remove(TWO)]),
    "delete_day": Operation(lambda _: [remove(ONE)], {"read": _PART}),
    "compact": Operation(_rewritten, {"read": _FILE}),
    "hide_rows": Operation(
        lambda new: [remove(ONE), add(ONE, values=DAY, dv=len(new))], {"read": _FILE}
    ),
    "refresh": Operation(lambda _: [add(ONE, values=DAY, rows=11, data_change=False)]),
    "app_x": Operation(options={"app_txn": "x"}),
    "app_y": Operation(options={"app_txn": "y"}),
    "properties": Operation(run=lambda table, who: table.set_properties({"owner": who})),
    "feature": Operation(run=lambda table, _: table.upgrade_protocol("typeWidening")),
    "constraint": Operation(run=lambda table, _: table.upgrade_protocol("checkConstraints")),
}


@dataclass(frozen=True)
class Pair:
    winner: str
    loser: str
    level: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.level}-{self.loser}-after-{self.winner}-{self.outcome}"


def _pairs() -> list[Pair]:
    header, *lines = (line.split("|") for line in OUTCOMES.strip().splitlines())
    winners = header[1].split()
    pairs = []
    for name, cells in lines:
        for winner, cell in zip(winners, cells.split(), strict=True):
            first, _, second = cell.partition("/")
            pairs += [
                Pair(winner, name.strip(), level, outcome)
                for level, outcome in zip(LEVELS, (first, second or first), strict=True)
            ]
    return pairs


def _table(lake: Lake, level: str) -> Table:
    table = new_lake_table(
        lake,
        f"t{next(_numbers)}",
        partition_by=["day"],
        properties={"delta.isolationLevel": level, "delta.enableDeletionVectors": "true"},
    )
    table.commit([add(ONE, values=DAY), add(TWO, values={"day": "2"})])
    return table


@pytest.mark.parametrize("pair", _pairs(), ids=str)
def test_the_loser_is_rebased_or_refused_as_the_table_says(shared_lake: Lake, pair: Pair) -> None:
    lake = shared_lake
    first = _table(lake, pair.level)
    second = lake.table(first.name)
    assert first.version == second.version == 1
    winner, loser = OPERATIONS[pair.winner], OPERATIONS[pair.loser]
    assert winner.commit(first, "winner") == 2
    after_winner = winner.after({ONE, TWO}, "winner")
    before = row_counts(lake)

    if pair.outcome == "ok":
        assert loser.commit(second, "loser") == 3
        assert live_paths(second) == sorted(loser.after(after_winner, "loser"))
        # It says what it was made from, not what it was rebased upon.
        assert published(lake, second, 3)[0]["commitInfo"]["readVersion"] == 1
    else:
        with pytest.raises(CommitConflictError) as refusal:
            loser.commit(second, "loser")
        assert type(refusal.value) is ERRORS[pair.outcome]
        assert refusal.value.winner_version == 2
        assert refusal.value.retryable
        assert "version 2" in str(refusal.value)
        assert row_counts(lake) == before
        assert live_paths(second) == sorted(after_winner)
    check_ledger(lake, second)


def test_the_table_states_every_pair_once() -> None:
    pairs = [(pair.winner, pair.loser, pair.level) for pair in _pairs()]
    assert len(pairs) == len(set(pairs)) == 12 * 13 * len(LEVELS)
    assert {name for winner, loser, _ in pairs for name in (winner, loser)} == set(OPERATIONS)


def test_a_refused_loser_succeeds_after_looking_again(shared_lake: Lake) -> None:
    first = _table(shared_lake, "Serializable")
    second = shared_lake.table(first.name)
    assert second.version == 1
    first.commit([add("new.parquet", values=DAY)])
    with pytest.raises(ConcurrentAppendError):
        second.commit([remove(ONE)], read=_PART)
    assert second.version == 1
    assert second.refresh() == 2
    assert second.commit([remove(ONE)], read=_PART) == 3


def test_the_first_winner_in_the_way_is_named(shared_lake: Lake) -> None:
    first = _table(shared_lake, "Serializable")
    second = shared_lake.table(first.name)
    assert second.version == 1
    first.commit([add("a.parquet", values={"day": "2"})])
    first.commit([remove(TWO)])
    first.commit([remove(ONE)], operation="DELETE")
    message = rf"version 4 of table '{first.name}' \(DELETE\)"
    with pytest.raises(ConcurrentDeleteDeleteError, match=message) as refusal:
        second.commit([remove(ONE)])
    assert refusal.value.winner_version == 4


@pytest.mark.parametrize("level", LEVELS)
def test_an_append_to_a_partition_nobody_read_is_no_conflict(shared_lake: Lake, level: str) -> None:
    first = _table(shared_lake, level)
    second = shared_lake.table(first.name)
    assert second.version == 1
    first.commit([remove(TWO), add("new.parquet", values={"day": "2"})])
    assert second.commit([remove(ONE)], read=_PART) == 3
    check_ledger(shared_lake, second)


def test_a_file_that_a_winner_removed_does_not_come_back(shared_lake: Lake) -> None:
    """Also when the winner's removes are many, and the file is added among new ones."""
    first = _table(shared_lake, "Serializable")
    second = shared_lake.table(first.name)
    assert second.version == 1
    first.commit([remove(TWO)])
    first.commit([remove(ONE)])
    with pytest.raises(ConcurrentDeleteReadError, match=r"one\.parquet"):
        second.commit([add("new.parquet", values=DAY), add(ONE, values=DAY, data_change=False)])
    assert live_paths(first) == []


def test_the_level_is_that_of_the_version_the_loser_started_from(shared_lake: Lake) -> None:
    first = _table(shared_lake, "WriteSerializable")
    second = shared_lake.table(first.name)
    assert second.version == 1
    first.commit([add("new.parquet", values=DAY)])
    assert second.commit([remove(ONE)], read=_PART) == 3
    second.set_properties({"delta.isolationLevel": "Serializable"})
    third = shared_lake.table(first.name)
    assert third.version == 4
    second.commit([add("newer.parquet", values=DAY)])
    with pytest.raises(ConcurrentAppendError):
        third.commit([remove("new.parquet")], read=_PART)
