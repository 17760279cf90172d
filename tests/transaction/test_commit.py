"""One commit through the public API: what it writes, and that it happens once."""

import hashlib
import json
from typing import Any

import pytest

from deltalakedb.actions import (
    AddFile,
    RemoveFile,
    Txn,
    parse_commit,
    serialise_commit,
)
from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    ConcurrentDeleteDeleteError,
    ConcurrentTransactionError,
    ConfigurationError,
    TableNotFoundError,
    UnexpectedVersionError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table
from deltalakedb.transaction import ReadSet

from support.lake import (
    Json,
    OpenLake,
    add,
    check_ledger,
    commit_info,
    kinds,
    live_paths,
    mirror_row,
    new_lake_table,
    published,
    remove,
    row_counts,
)

BIG = 2**63 - 1


@pytest.fixture
def table(lake: Lake) -> Table:
    """An empty table."""
    return new_lake_table(lake)


# --- versions and times -------------------------------------------------------------------


def test_versions_count_up_from_the_creation(lake: Lake, table: Table) -> None:
    assert table.version == 0
    assert [table.commit([add(f"{n}.parquet")]) for n in range(3)] == [1, 2, 3]
    assert table.version == 3
    assert live_paths(table, 2) == ["0.parquet", "1.parquet"]
    check_ledger(lake, table)


def test_a_result_is_its_version_and_more(lake: Lake, table: Table, clock: ManualClock) -> None:
    clock.advance(1000)
    committed = table.commit([add("a.parquet")])
    assert committed == committed.version == 1
    assert committed.timestamp == clock.now_ms()
    assert not committed.already_committed
    assert committed.attempts == 1
    assert committed.transaction_id is None
    assert committed.commit_uuid == table.history()[0].commit_uuid


def test_times_strictly_increase_whatever_the_clock_says(
    lake: Lake, table: Table, clock: ManualClock
) -> None:
    start = clock.now_ms()
    for n, step in enumerate((0, 10, -5_000, 0, 5_001)):
        clock.advance(step)
        table.commit([add(f"{n}.parquet")])
    times = [record.committed_at - start for record in reversed(table.history())]
    assert times == [0, 1, 10, 11, 12, 13]
    infos = [commit_info(lake, table, version) for version in range(6)]
    assert [info["inCommitTimestamp"] - start for info in infos] == times
    assert [info["timestamp"] - start for info in infos] == times
    snapshots = [table.snapshot(version) for version in range(6)]
    assert [snapshot.committed_at - start for snapshot in snapshots] == times


def test_times_increase_on_top_of_a_winner_whose_clock_is_ahead(
    lake: Lake, open_lake: OpenLake, table: Table, clock: ManualClock
) -> None:
    ahead = open_lake(clock=ManualClock(clock.now_ms() + 60_000)).table(table.name)
    assert table.version == 0
    theirs = ahead.commit([add("theirs.parquet")])
    ours = table.commit([add("ours.parquet")])
    assert ours.timestamp == theirs.timestamp + 1
    check_ledger(lake, table)


# --- what is recorded ---------------------------------------------------------------------


def test_the_ledger_says_who_did_what_and_how_much(lake: Lake, table: Table) -> None:
    table.commit([add("a.parquet", size=70), add("b.parquet", size=30)])
    table.commit([remove("a.parquet"), add("c.parquet", size=5)], operation="DELETE")
    newest, before, first = table.history()
    assert [r.version for r in (newest, before, first)] == [2, 1, 0]
    assert newest.committer == "tester"
    assert newest.commit_info is not None
    assert newest.commit_info.operation == "DELETE"
    # The commitInfo counts as an action: it is a line of the file.
    assert newest.counts.num_actions == 3
    assert (newest.counts.num_adds, newest.counts.num_removes) == (1, 1)
    assert (newest.counts.live_files, newest.counts.live_bytes) == (2, 35)
    assert (before.counts.bytes_added, before.counts.live_bytes) == (100, 100)
    snapshot = table.snapshot()
    assert (snapshot.num_files, snapshot.size_bytes) == (2, 35)


def test_the_commit_info_is_complete(lake: Lake, table: Table) -> None:
    committed = table.commit(
        [add("a.parquet")],
        operation="WRITE",
        operation_parameters={"mode": "Append", "partitionBy": [], "n": 3, "yes": True},
        operation_metrics={"numFiles": 1},
    )
    info = commit_info(lake, table, 1)
    assert info.pop("engineInfo").startswith("deltalakedb/")
    assert info == {
        "timestamp": committed.timestamp,
        "inCommitTimestamp": committed.timestamp,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]", "n": "3", "yes": "true"},
        "operationMetrics": {"numFiles": "1"},
        "readVersion": 0,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "txnId": committed.commit_uuid,
        "userName": "tester",
    }


@pytest.mark.parametrize(
    ("actions", "read", "blind"),
    [
        ([add("b.parquet")], None, True),
        ([add("b.parquet")], ReadSet(whole_table=True), False),
        ([add("b.parquet")], ReadSet(files=frozenset({"a.parquet"})), False),
        ([add("b.parquet"), remove("a.parquet")], None, False),
        ([remove("a.parquet")], None, False),
    ],
)
def test_a_blind_append_is_one_that_read_and_removed_nothing(
    lake: Lake, table: Table, actions: list[Json], read: ReadSet | None, blind: bool
) -> None:
    table.commit([add("a.parquet")])
    table.commit(actions, read=read)
    assert commit_info(lake, table, 2)["isBlindAppend"] is blind


def test_a_rewrite_without_data_change_is_under_snapshot_isolation(
    lake: Lake, table: Table
) -> None:
    table.commit([add("a.parquet")])
    table.commit(
        [remove("a.parquet", data_change=False), add("b.parquet", data_change=False)],
        operation="OPTIMIZE",
    )
    assert commit_info(lake, table, 2)["isolationLevel"] == "SnapshotIsolation"


def test_a_callers_commit_info_adds_fields_but_forges_none(lake: Lake, table: Table) -> None:
    given = {
        "commitInfo": {
            "clusterId": "c-1",
            "tags": {"job": "nightly"},
            "txnId": "forged",
            "inCommitTimestamp": 1,
            "operation": "FORGED",
            "isBlindAppend": False,
            "engineInfo": "Forged/1.0",
        }
    }
    committed = table.commit([given, add("a.parquet")], operation="WRITE")
    info = commit_info(lake, table, 1)
    assert (info["clusterId"], info["tags"]) == ("c-1", {"job": "nightly"})
    assert info["txnId"] == committed.commit_uuid
    assert info["inCommitTimestamp"] == committed.timestamp
    assert info["operation"] == "WRITE"
    assert info["isBlindAppend"] is True
    assert info["engineInfo"].startswith("deltalakedb/")
    assert kinds(published(lake, table, 1)) == ["commitInfo", "add"]


def test_values_and_dicts_say_the_same(lake: Lake) -> None:
    one, two = new_lake_table(lake, "one"), new_lake_table(lake, "two")
    one.commit([add("a.parquet"), add("b.parquet")])
    one.commit([remove("a.parquet"), {"txn": {"appId": "app", "version": 1}}])
    stats = json.dumps({"numRecords": 10})
    when = 1_700_000_000_000
    two.commit([AddFile(p, {}, 100, when, True, stats) for p in ("a.parquet", "b.parquet")])
    two.commit([RemoveFile("a.parquet", True, when), Txn("app", 1)])
    for version in (1, 2):
        lines = [mirror_row(lake, t, version)[1].splitlines()[1:] for t in (one, two)]
        assert lines[0] == lines[1]


def test_actions_may_come_from_any_iterable_and_in_any_order(lake: Lake, table: Table) -> None:
    table.commit(add(f"{n}.parquet") for n in (2, 0, 1))
    paths = [line["add"]["path"] for line in published(lake, table, 1)[1:]]
    assert paths == ["0.parquet", "1.parquet", "2.parquet"]


def test_what_the_protocol_does_not_know_of_an_action_survives(lake: Lake, table: Table) -> None:
    given = add("a.parquet")
    given["add"] |= {"tags": {"k": None}, "fromTheFuture": {"deep": [1, 2.5, None]}}
    table.commit([given])
    assert published(lake, table, 1)[1] == given
    with lake.store.read() as session:
        stored = lake.store.actions_of(session, table.table_id, 1)
    assert serialise_commit(stored) == mirror_row(lake, table, 1)[1]


@pytest.mark.parametrize(
    "path", ["a b%20c.parquet", "ü/日本.parquet", "x='1'.parquet", "a\\b.parquet"]
)
def test_odd_paths_come_back_exactly(lake: Lake, table: Table, path: str) -> None:
    table.commit([add(path)])
    assert live_paths(table) == [path]
    table.commit([remove(path)])
    assert live_paths(table) == []
    check_ledger(lake, table)


# --- the mirror's work item ---------------------------------------------------------------


def test_the_payload_is_canonical_and_its_digest_right(lake: Lake, table: Table) -> None:
    table.commit([add("b.parquet"), add("a.parquet")], app_txn=("app", 1))
    table.commit([remove("b.parquet"), add("c.parquet")])
    table.set_properties({"owner": "me"})
    expected = {
        0: ["commitInfo", "protocol", "metaData"],
        1: ["commitInfo", "txn", "add", "add"],
        2: ["commitInfo", "remove", "add"],
        3: ["commitInfo", "metaData"],
    }
    for version, names in expected.items():
        digest, payload, size = mirror_row(lake, table, version)
        assert digest == hashlib.sha256(payload).hexdigest()
        assert size == len(payload)
        assert kinds(published(lake, table, version)) == names
        actions = parse_commit(payload, file=f"{version}.json")
        assert serialise_commit(actions) == payload
        with lake.store.read() as session:
            stored = lake.store.actions_of(session, table.table_id, version)
        assert serialise_commit(stored) == payload


# --- expected_version ---------------------------------------------------------------------


def test_a_commit_happens_on_exactly_the_version_it_expects(lake: Lake, table: Table) -> None:
    assert table.commit([add("a.parquet")], expected_version=0) == 1
    stale = lake.table(table.name)
    assert stale.version == 1
    table.commit([add("b.parquet")])
    before = row_counts(lake)
    with pytest.raises(UnexpectedVersionError, match=r"is at version 2.*expected version 1"):
        stale.commit([add("c.parquet")], expected_version=1)
    assert row_counts(lake) == before
    # Without it the same commit is independent of the other.
    assert stale.commit([add("c.parquet")]) == 3


@pytest.mark.parametrize("expected", [7, -1, BIG])
def test_a_version_that_does_not_exist_cannot_be_expected(
    lake: Lake, table: Table, expected: int
) -> None:
    before = row_counts(lake)
    with pytest.raises(UnexpectedVersionError, match=f"expected version {expected}"):
        table.commit([add("a.parquet")], expected_version=expected)
    assert row_counts(lake) == before


def test_a_handle_that_lags_behind_may_expect_the_newest_version(lake: Lake, table: Table) -> None:
    stale = lake.table(table.name)
    assert stale.version == 0
    table.commit([add("a.parquet")])
    assert stale.commit([add("b.parquet")], expected_version=1) == 2


# --- app transactions ---------------------------------------------------------------------


def test_an_app_transaction_is_committed_once(lake: Lake, table: Table) -> None:
    first = table.commit([add("a.parquet")], app_txn=("app", 7))
    assert (first, first.already_committed) == (1, False)
    table.commit([add("b.parquet")])
    before = row_counts(lake)
    for again in (table, lake.table(table.name)):
        for version in (7, 6, -1):
            repeated = again.commit([add("z.parquet")], app_txn=("app", version))
            assert repeated.already_committed
            assert (repeated, repeated.timestamp) == (1, first.timestamp)
            assert "already committed" in repr(repeated)
    assert row_counts(lake) == before
    newer = table.commit([add("c.parquet")], app_txn=("app", 8))
    assert (newer, newer.already_committed) == (3, False)
    other = table.commit([add("d.parquet")], app_txn=("other", 7))
    assert (other, other.already_committed) == (4, False)
    assert live_paths(table) == ["a.parquet", "b.parquet", "c.parquet", "d.parquet"]
    check_ledger(lake, table)


def test_app_transactions_of_one_table_are_not_those_of_another(lake: Lake) -> None:
    one, two = new_lake_table(lake, "one"), new_lake_table(lake, "two")
    one.commit([add("a.parquet")], app_txn=("app", 1))
    assert not two.commit([add("a.parquet")], app_txn=("app", 1)).already_committed


def test_the_txn_action_is_published_with_its_time(
    lake: Lake, table: Table, clock: ManualClock
) -> None:
    table.commit([add("a.parquet")], app_txn=("app", 7))
    txn = published(lake, table, 1)[1]
    assert txn == {"txn": {"appId": "app", "version": 7, "lastUpdated": clock.now_ms()}}


@pytest.mark.parametrize("kind", ["append", "remove"])
def test_a_concurrent_duplicate_is_a_no_op_and_no_conflict(
    lake: Lake, table: Table, kind: str
) -> None:
    table.commit([add("a.parquet")])
    second = lake.table(table.name)
    assert second.version == 1
    actions = [add("b.parquet")] if kind == "append" else [remove("a.parquet")]
    table.commit(actions, app_txn=("app", 1))
    before = row_counts(lake)
    repeated = second.commit(actions, app_txn=("app", 1))
    assert repeated.already_committed
    assert repeated == 2
    assert row_counts(lake) == before
    # The handle has moved on, and can be used.
    assert second.version == 2
    assert second.commit([add("c.parquet")], app_txn=("app", 2)) == 3


def test_two_newer_versions_of_one_app_cannot_overtake_each_other(lake: Lake, table: Table) -> None:
    second = lake.table(table.name)
    assert second.version == 0
    table.commit([add("a.parquet")], app_txn=("app", 1))
    with pytest.raises(ConcurrentTransactionError, match="'app'"):
        second.commit([add("b.parquet")], app_txn=("app", 2))
    second.refresh()
    assert second.commit([add("b.parquet")], app_txn=("app", 2)) == 2


def test_an_app_transaction_without_other_actions_records_progress(
    lake: Lake, table: Table
) -> None:
    assert table.commit([], app_txn=("app", 3)) == 1
    assert table.commit([], app_txn=("app", 3)).already_committed


def test_a_repeated_app_transaction_beats_a_wrong_expected_version(
    lake: Lake, table: Table
) -> None:
    """A retry after a lost answer still expects the version it started from."""
    table.commit([add("a.parquet")], app_txn=("app", 1), expected_version=0)
    again = lake.table(table.name)
    repeated = again.commit([add("a.parquet")], app_txn=("app", 1), expected_version=0)
    assert repeated.already_committed


@pytest.mark.parametrize(
    "wrong",
    [
        "app",
        ("app",),
        ("app", "7"),
        ("", 7),
        (7, "app"),
        ("app", True),
        ("app", 2**63),
        ("a", 1, 2),
    ],
)
def test_an_app_transaction_is_a_name_and_a_number(lake: Lake, table: Table, wrong: Any) -> None:
    before = row_counts(lake)
    with pytest.raises(ConfigurationError, match=r"nightly-load"):
        table.commit([add("a.parquet")], app_txn=wrong)
    assert row_counts(lake) == before


def test_the_largest_app_version_is_kept_exactly(lake: Lake, table: Table) -> None:
    table.commit([add("a.parquet")], app_txn=("app", BIG))
    assert published(lake, table, 1)[1]["txn"]["version"] == BIG
    assert table.commit([add("b.parquet")], app_txn=("app", BIG)).already_committed


# --- tables that are gone -----------------------------------------------------------------


def test_a_table_dropped_under_a_handle_is_an_error_for_it(lake: Lake, table: Table) -> None:
    handle = lake.table(table.name)
    assert handle.version == 0
    lake.drop_table(table.name, force=True)
    before = row_counts(lake)
    with pytest.raises(TableNotFoundError, match=r"sales\.orders"):
        handle.commit([add("a.parquet")])
    assert row_counts(lake) == before


def test_a_dropped_table_cannot_be_looked_at(lake: Lake, table: Table) -> None:
    unopened = lake.table(table.name)
    lake.drop_table(table.name, force=True)
    for verb in (unopened.refresh, unopened.snapshot, lambda: unopened.commit([add("a")])):
        with pytest.raises(TableNotFoundError, match=r"sales\.orders"):
            verb()


def test_a_table_created_again_is_another_table(lake: Lake, table: Table) -> None:
    handle = lake.table(table.name)
    assert handle.version == 0
    lake.drop_table(table.name, force=True)
    again = new_lake_table(lake)
    with pytest.raises(TableNotFoundError):
        handle.commit([add("a.parquet")])
    assert live_paths(again) == []


# --- contention ---------------------------------------------------------------------------


def test_blind_appends_never_fail_because_of_other_appends(lake: Lake, table: Table) -> None:
    handles = [lake.table(table.name) for _ in range(8)]
    assert {handle.version for handle in handles} == {0}
    versions = [
        handles[(turn * 3 + who) % 8].commit([add(f"{turn}-{who}.parquet")])
        for turn in range(3)
        for who in range(8)
    ]
    assert versions == list(range(1, 25))
    assert table.snapshot().num_files == 24
    check_ledger(lake, table)


@pytest.mark.parametrize("winners", [64, 65, 150])
def test_a_writer_far_behind_catches_up(lake: Lake, table: Table, winners: int) -> None:
    table.commit([add("a.parquet")])
    stale, doomed = lake.table(table.name), lake.table(table.name)
    assert stale.version == doomed.version == 1
    for n in range(winners - 1):
        table.commit([add(f"{n}.parquet")])
    table.commit([remove("a.parquet")])
    before = row_counts(lake)
    with pytest.raises(ConcurrentDeleteDeleteError) as refusal:
        doomed.commit([remove("a.parquet")])
    assert refusal.value.winner_version == 1 + winners
    assert row_counts(lake) == before
    committed = stale.commit([add("late.parquet")])
    assert committed == winners + 2
    assert committed.attempts == (1 if winners <= 64 else 2)
    assert commit_info(lake, table, committed)["readVersion"] == 1
    check_ledger(lake, table)


def test_a_writer_far_behind_sees_an_app_transaction_among_the_winners(
    lake: Lake, table: Table
) -> None:
    stale = lake.table(table.name)
    assert stale.version == 0
    table.commit([add("a.parquet")], app_txn=("app", 1))
    for n in range(70):
        table.commit([add(f"{n}.parquet")])
    repeated = stale.commit([add("a.parquet")], app_txn=("app", 1))
    assert (repeated, repeated.already_committed) == (1, True)
