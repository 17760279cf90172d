"""Which files make a history: as much of it as there is, and never across a gap."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.deltalog.listing import Checkpoint, HistoryPlan, LogFile, plan_history, sort_log
from deltalakedb.errors import InvalidLogError
from deltalakedb.storage import ObjectInfo


def plan(
    commits: Iterable[int],
    checkpoints: Iterable[int] = (),
    compactions: Iterable[tuple[int, int]] = (),
    others: Iterable[str] = (),
) -> HistoryPlan:
    names = [
        *(f"{v:020d}.json" for v in commits),
        *(f"{v:020d}.checkpoint.parquet" for v in checkpoints),
        *(f"{x:020d}.{y:020d}.compacted.json" for x, y in compactions),
        *others,
    ]
    infos = [ObjectInfo(f"_delta_log/{name}", 10, 1000) for name in names]
    return plan_history(sort_log(infos), location="file:///t")


def pieces(found: HistoryPlan) -> list[object]:
    return [
        ("checkpoint", piece.version) if isinstance(piece, Checkpoint) else span(piece)
        for piece in found.base_pieces
    ]


def span(file: LogFile) -> object:
    return (file.version, file.name.end) if file.name.end else file.version


def test_all_commits_need_no_checkpoint() -> None:
    found = plan(range(13), [10])
    assert (found.base_version, found.count, found.last_version) == (None, 13, 12)


def test_the_oldest_checkpoint_that_later_commits_continue_is_the_base() -> None:
    found = plan([0, 1, 3, 4, 5, 6, 7], [1, 4, 6])
    assert (found.base_version, pieces(found)) == (4, [("checkpoint", 4)])
    assert [file.version for file in found.commits] == [5, 6, 7]
    assert found.base_commit is not None


def test_a_checkpoint_may_be_newer_than_every_commit() -> None:
    found = plan(range(3), [2, 7])
    assert (found.base_version, found.commits, found.base_commit) == (7, (), None)
    assert (found.first_version, found.last_version) == (7, 7)


def test_a_compaction_bridges_a_gap() -> None:
    found = plan([0, 1, 5, 6], [], [(2, 4)])
    assert found.base_version == 4
    assert pieces(found) == [0, 1, (2, 4)]
    assert [file.version for file in found.commits] == [5, 6]


def test_the_widest_compaction_is_not_always_the_one() -> None:
    # 1..5 would begin where nothing leads; 3..5 goes on from the checkpoint.
    found = plan([6], [2], [(1, 5), (3, 5), (4, 5)])
    assert pieces(found) == [("checkpoint", 2), (3, 5)]


@pytest.mark.parametrize(
    ("commits", "checkpoints"), [([0, 2], []), ([1, 2], []), ([0, 1, 4, 5], [1, 2]), ([9], [3])]
)
def test_a_gap_after_the_last_state_is_refused(commits: list[int], checkpoints: list[int]) -> None:
    with pytest.raises(InvalidLogError, match="is missing") as caught:
        plan(commits, checkpoints)
    first_missing = max(set(range(max(commits))) - set(commits))
    assert f"ommit {first_missing} is missing" in str(caught.value)


def test_an_empty_log_is_no_table() -> None:
    others = ["_last_checkpoint", f"{5:020d}.crc", f"{5:020d}.checkpoint.{1:010d}.{2:010d}.parquet"]
    with pytest.raises(InvalidLogError, match="no Delta table"):
        plan([], others=others)


def test_a_long_log_without_checkpoint_is_planned_at_once() -> None:
    with pytest.raises(InvalidLogError, match="ommit 4 is missing"):
        plan([*range(4), *range(5, 20_000)])


@given(
    st.sets(st.integers(0, 12)),
    st.sets(st.integers(0, 12)),
    st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda x: x[0] < x[1])),
)
def test_a_plan_is_without_gap_and_reaches_the_newest_version(
    commits: set[int], checkpoints: set[int], compactions: set[tuple[int, int]]
) -> None:
    newest = max(commits | checkpoints, default=None)
    try:
        found = plan(commits, checkpoints, compactions)
    except InvalidLogError:
        # A run of commits to the newest version, from 0 or from a checkpoint, must be found.
        assert newest is None or not any(
            commits >= set(range(start + 1, newest + 1))
            for start in {-1, *checkpoints}
            if start <= newest
        )
        return
    assert found.last_version == newest
    reached = -1
    for piece in found.base_pieces:
        if isinstance(piece, Checkpoint):
            reached = piece.version
        else:
            assert piece.version == reached + 1
            reached = piece.name.end or piece.version
    assert reached == (-1 if found.base_version is None else found.base_version)
    for file in found.commits:
        assert file.version == reached + 1
        reached += 1
