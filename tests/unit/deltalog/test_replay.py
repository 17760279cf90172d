"""What actions add up to: against the plainest possible replay, and the rules for odd commits."""

from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions import Action, AddFile, CommitInfo, Protocol, RemoveFile, Txn
from deltalakedb.deltalog.replay import Replay, reconcile, state_of
from deltalakedb.deltalog.times import VersionTime, commit_times

paths = st.sampled_from(["a", "b", "c%20d", "c d", "%63 d", "e"])
files = st.one_of(
    st.builds(lambda p, s: AddFile(p, {}, s, 0, data_change=True), paths, st.integers(0, 9)),
    st.builds(lambda p: RemoveFile(p, data_change=True), paths),
)


@given(st.lists(st.lists(files, max_size=5), max_size=8))
def test_replay_is_last_one_wins_by_decoded_path(commits: list[list[Action]]) -> None:
    replay = Replay()
    plain: dict[str, int] = {}
    by_text: dict[str, int] = {}
    for commit in commits:
        kept, change = replay.apply(commit, file="x")
        for action in commit:
            assert isinstance(action, (AddFile, RemoveFile))
            plain.pop(unquote(action.path), None)
            if isinstance(action, AddFile):
                plain[unquote(action.path)] = action.size
        # What was given back must mean the same to someone who compares paths as text.
        for action in kept:
            assert isinstance(action, (AddFile, RemoveFile))
            by_text.pop(action.path, None)
            if isinstance(action, AddFile):
                by_text[action.path] = action.size
        assert {key[0]: file.size for key, file in replay.files.items()} == plain
        assert {file.path: file.size for file in replay.files.values()} == by_text
        assert (change.live_files, change.live_bytes) == (len(plain), sum(plain.values()))
        assert change.num_adds + change.num_removes == len(kept)


def test_the_counts_of_a_version() -> None:
    replay = Replay()
    actions: list[Action] = [
        CommitInfo({}),
        AddFile("a", {}, 3, 0, data_change=True),
        RemoveFile("z", data_change=True, size=9),
        Txn("app", 1),
    ]
    _, change = replay.apply(actions, file="x")
    assert change == (4, 1, 1, 3, 9, 1, 3)


def test_reconciling_keeps_order_and_what_has_no_key() -> None:
    first, second = Txn("a", 1), Txn("a", 2)
    other = Txn("b", 1)
    assert reconcile([CommitInfo({}), first, other, second]) == [other, second]
    assert state_of([Protocol(1, 1), CommitInfo({}), first, Protocol(1, 2)]) == [
        Protocol(1, 2),
        first,
    ]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 50))), max_size=12)
)
def test_times_strictly_increase(given_times: list[tuple[int, int | None]]) -> None:
    known = [VersionTime(v, file, own) for v, (file, own) in enumerate(given_times)]
    times = commit_times(known)
    assert times == sorted(set(times))
    assert all(time >= 0 for time in times)
    in_commit = [entry.in_commit_ms for entry in known]
    room = all(
        own is None or own >= position + 1 for position, own in enumerate(in_commit)
    ) and all(
        later - earlier >= there - here
        for here, earlier in enumerate(in_commit)
        for there, later in enumerate(in_commit)
        if here < there and earlier is not None and later is not None
    )
    if room:
        # In-commit timestamps that leave room for what lies between stay as they are.
        assert all(own is None or own == time for own, time in zip(in_commit, times, strict=True))
