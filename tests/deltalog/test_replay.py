"""The replays of a log: each against the plainest one, and the rules for unusual commits."""

import json
from collections.abc import Sequence
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions import (
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    to_dict,
)
from deltalakedb.deltalog.history import VersionTime, commit_times
from deltalakedb.deltalog.replay import (
    FileColumns,
    LiveFiles,
    LogState,
    VersionSpan,
    VersionTotals,
    describe_add,
    file_id,
    reconcile,
    reconcile_state,
)
from deltalakedb.importing.log_rows import CommitFile, LogBatch, LogBatchBuilder

SCHEMA = '{"type":"struct","fields":[]}'
paths = st.sampled_from(["a", "b", "c%20d", "c d", "%63 d", "./e", "e"])
adds = st.builds(lambda p, s: AddFile(p, {}, s, 0, data_change=True), paths, st.integers(0, 9))
removes = st.builds(lambda p: RemoveFile(p, deletion_timestamp=1, data_change=True), paths)
others = st.one_of(
    st.builds(Txn, st.sampled_from(["app", "other"]), st.integers(0, 9)),
    st.builds(
        lambda name, text, removed: DomainMetadata(name, text, removed=removed),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["{}", "[]"]),
        st.booleans(),
    ),
    st.builds(lambda reader: Protocol(reader, 2), st.integers(1, 2)),
    st.builds(lambda name: Metadata(id="i", schema_string=SCHEMA, name=name), st.text(max_size=1)),
)
commits = st.lists(st.lists(st.one_of(adds, removes, others), max_size=6), max_size=8)


def key(path: str) -> str:
    return unquote(path).removeprefix("./")


def columns(batch: LogBatch) -> tuple[FileColumns, FileColumns]:
    names = ("path", "dv_id", "size_bytes")
    return (
        FileColumns(*(batch.adds[name].to_pylist() for name in names)),
        FileColumns(*(batch.removes[name].to_pylist() for name in names)),
    )


@given(commits)
def test_every_replay_is_the_last_action_wins_by_decoded_path(
    versions: Sequence[Sequence[Action]],
) -> None:
    live, state = LiveFiles(), LogState()
    plain: dict[str, AddFile] = {}
    by_text: dict[str, int] = {}
    for version, actions in enumerate(versions):
        for action in actions:
            if isinstance(action, (AddFile, RemoveFile)):
                plain.pop(key(action.path), None)
            if isinstance(action, AddFile):
                plain[key(action.path)] = action
        builder = LogBatchBuilder()
        lines = [to_dict(action) for action in (CommitInfo({}), *actions)]
        data = "\n".join(json.dumps(line) for line in lines).encode()
        builder.add_commit(CommitFile("x", version, 0), data)
        batch = builder.build()
        added, removed = columns(batch)
        (totals,), add_spellings, remove_spellings = live.apply(batch.spans, added, removed)
        # Applied as text, the rows with the returned spellings have the same effect.
        for position, path in enumerate(removed.paths):
            by_text.pop(remove_spellings.get(position, path), None)
        for position, path in enumerate(added.paths):
            by_text[add_spellings.get(position, path)] = added.sizes[position] or 0
        state.apply(actions)

        sizes = {f"{name}\0": add.size for name, add in plain.items()}
        assert {file: size for file, (_, size) in live.files.items()} == sizes
        assert dict(live.files.values()) == by_text
        assert state.files == {f"{name}\0": describe_add(add) for name, add in plain.items()}
        assert (totals.live_files, totals.live_bytes) == (len(plain), sum(sizes.values()))
        assert (totals.num_adds, totals.num_removes) == (len(added.paths), len(removed.paths))
        kept = reconcile(actions)
        assert batch.commits[0].num_actions == len(kept) + 1
        assert sorted(added.paths) == sorted(a.path for a in kept if isinstance(a, AddFile))
        assert sorted(removed.paths) == sorted(a.path for a in kept if isinstance(a, RemoveFile))


@given(commits, st.integers(1, 3))
def test_a_state_is_the_same_by_reconciled_actions_and_in_buckets(
    versions: Sequence[Sequence[Action]], buckets: int
) -> None:
    actions = [action for commit in versions for action in commit]
    whole = LogState()
    whole.apply(actions)
    compacted = LogState()
    compacted.apply(reconcile_state(actions))
    assert compacted == whole
    files: dict[str, bytes] = {}
    for bucket in range(buckets):
        part = LogState(bucket=bucket, buckets=buckets)
        for commit in versions:
            part.apply(reconcile(commit))
        assert (part.protocol, part.metadata) == (whole.protocol, whole.metadata)
        assert (part.txns, part.domains) == (whole.txns, whole.domains)
        assert not files.keys() & part.files.keys()
        files |= part.files
    assert files == whole.files


def test_the_totals_of_a_version() -> None:
    live = LiveFiles()
    (totals,), _, _ = live.apply(
        [VersionSpan(0, 1, 1, "x")], FileColumns(["a"], [""], [3]), FileColumns(["z"], [""], [9])
    )
    assert totals == VersionTotals(1, 1, 3, 9, 1, 3)
    assert totals.plus(totals) == VersionTotals(2, 2, 6, 18, 1, 3)


def test_a_deletion_vector_makes_another_file() -> None:
    assert file_id("a%20b", "") == file_id("a b", "") != file_id("a b", "u1")


def test_reconciling_keeps_order_and_actions_without_identity() -> None:
    first, second = Txn("a", 1), Txn("a", 2)
    other = Txn("b", 1)
    assert reconcile([CommitInfo({}), first, other, second]) == [other, second]
    assert reconcile_state([Protocol(1, 1), CommitInfo({}), first, Protocol(1, 2)]) == [
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
