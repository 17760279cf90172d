"""Laws of conflict checking, whatever the commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
)
from deltalakedb.errors import CommitConflictError
from deltalakedb.transaction import (
    Attempt,
    IsolationLevel,
    ReadSet,
    Winner,
    check_conflict,
    merge_read_sets,
)

METADATA = Metadata("t", schema_string='{"type":"struct","fields":[]}', partition_columns=("p",))
PROTOCOL = Protocol(1, 2)

_names = st.sampled_from("abcdef")
_values = st.sampled_from(["1", "2", "3", None])
_adds = st.builds(
    lambda path, value, change: AddFile(path, {"p": value}, 1, 1, change),
    _names,
    _values,
    st.booleans(),
)
_removes = st.builds(RemoveFile, _names, st.booleans())
_control: st.SearchStrategy[Action] = st.one_of(
    st.builds(Txn, _names, st.just(1)),
    st.builds(DomainMetadata, _names, st.just("{}"), st.booleans()),
    st.just(replace(METADATA, description="new")),
    st.just(replace(METADATA, configuration={"delta.enableDeletionVectors": "true"})),
    st.just(Protocol(3, 7, ("deletionVectors",), ("appendOnly", "deletionVectors", "invariants"))),
    st.just(Protocol(1, 3)),
    st.builds(lambda blind: CommitInfo({"isBlindAppend": blind}), st.booleans()),
)
_files: st.SearchStrategy[Action] = st.one_of(_adds, _removes)
# Mostly files: a metaData in nearly every commit would hide the rules behind it.
_commits = st.builds(
    lambda files, control: [*files, *control],
    st.lists(_files, max_size=5, unique_by=lambda a: (type(a), getattr(a, "path", ""))),
    st.lists(_control, max_size=1),
)
_levels = st.sampled_from(IsolationLevel)


def _partition_test(values: frozenset[str | None]) -> ReadSet:
    def matches(file: Mapping[str, str | None]) -> bool:
        return file["p"] in values

    return ReadSet(partitions=matches)


_reads = st.one_of(
    st.just(ReadSet()),
    st.just(ReadSet(whole_table=True)),
    st.builds(_partition_test, st.frozensets(_values)),
    st.builds(lambda files: ReadSet(files=files), st.frozensets(_names)),
    st.builds(lambda apps: ReadSet(app_ids=apps), st.frozensets(_names)),
)


def _outcome(attempt: Attempt, winner: Winner) -> tuple[type[Exception] | None, str]:
    try:
        check_conflict(attempt, winner, base_protocol=PROTOCOL, base_metadata=METADATA)
    except CommitConflictError as error:
        return type(error), str(error)
    return None, ""


@given(st.lists(_adds), st.lists(st.lists(_adds), max_size=8), _levels, st.booleans())
def test_a_blind_append_never_conflicts_with_appends(
    ours: list[AddFile], others: list[list[AddFile]], level: IsolationLevel, blind: bool
) -> None:
    attempt = Attempt(ReadSet(), ours, level)
    for version, adds in enumerate(others):
        winner = Winner(version, [CommitInfo({"isBlindAppend": blind}), *adds])
        assert _outcome(attempt, winner) == (None, "")


@given(_commits, _commits, _reads, _reads, _levels)
def test_who_reads_more_never_has_fewer_conflicts(
    ours: list[Action],
    theirs: list[Action],
    read: ReadSet,
    more: ReadSet,
    level: IsolationLevel,
) -> None:
    winner = Winner(3, theirs)
    kind, _ = _outcome(Attempt(read, ours, level), winner)
    wider, _ = _outcome(Attempt(merge_read_sets(read, more), ours, level), winner)
    if kind is not None:
        assert wider is not None


@given(_commits, _commits, _reads)
def test_a_stricter_level_never_has_fewer_conflicts(
    ours: list[Action], theirs: list[Action], read: ReadSet
) -> None:
    winner = Winner(3, theirs)
    strict, middle, loose = (
        _outcome(Attempt(read, ours, level), winner)[0] is not None for level in IsolationLevel
    )
    assert strict >= middle >= loose


@given(st.data(), _commits, _commits, _reads, _levels)
def test_the_order_of_actions_never_matters(
    data: st.DataObject,
    ours: list[Action],
    theirs: list[Action],
    read: ReadSet,
    level: IsolationLevel,
) -> None:
    shuffled_ours = data.draw(st.permutations(ours))
    shuffled_theirs = data.draw(st.permutations(theirs))
    assert _outcome(Attempt(read, ours, level), Winner(3, theirs)) == _outcome(
        Attempt(read, shuffled_ours, level), Winner(3, shuffled_theirs)
    )


@given(_commits, _commits)
def test_removing_one_file_twice_always_conflicts(ours: list[Action], theirs: list[Action]) -> None:
    kind, _ = _outcome(
        Attempt(ReadSet(), [*ours, RemoveFile("same", data_change=True)]),
        Winner(3, [*theirs, RemoveFile("same", data_change=False)]),
    )
    assert kind is not None
