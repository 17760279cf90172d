"""Transactions over many tables: all or nothing, and one instant for whoever reads."""

# ruff: noqa: PT012 - a transaction raises where its block ends

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deltalakedb.errors import (
    CommitRejectedError,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentTransactionError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidActionError,
    MetadataChangedError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from deltalakedb.transaction import ReadSet
from deltalakedb.transaction.transaction import Transaction
from deltalakedb.transaction_table import TransactionTable

from support.lake import (
    OpenLake,
    add,
    check_ledger,
    commit_info,
    live_paths,
    new_lake_table,
    remove,
    row_counts,
)

NAMES = ("a", "b", "c")


@pytest.fixture
def tables(lake: Lake) -> dict[str, Table]:
    """Three tables with one file each."""
    found = {name: new_lake_table(lake, name) for name in NAMES}
    for table in found.values():
        table.commit([add("first.parquet")])
    return found


def _live(lake: Lake) -> dict[str, list[str]]:
    return {name: live_paths(lake.table(name)) for name in NAMES}


# --- all ----------------------------------------------------------------------------------


def test_every_table_changes_at_once(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a").add_actions([add("new.parquet")], operation="WRITE")
        tx.table("b").add_actions([remove("first.parquet")], operation="DELETE")
        assert _live(lake) == {name: ["first.parquet"] for name in NAMES}
        assert tx.results == {}
    assert _live(lake) == {
        "a": ["first.parquet", "new.parquet"],
        "b": [],
        "c": ["first.parquet"],
    }
    assert tx.results == {"a": 2, "b": 2}
    for name in NAMES:
        check_ledger(lake, tables[name])


def test_every_participant_records_the_transaction(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([add("new.parquet")], operation=f"LOAD {name}")
    ids = {result.transaction_id for result in tx.results.values()}
    assert len(ids) == 1
    (transaction_id,) = ids
    assert transaction_id is not None
    for name in NAMES:
        record = tables[name].history()[0]
        assert record.transaction_id == transaction_id
        info = commit_info(lake, tables[name], 2)
        assert info["tags"] == {"deltalakedb.transactionId": transaction_id}
        assert info["operation"] == f"LOAD {name}"
        # Each commit has its own UUID beside it.
        assert info["txnId"] == tx.results[name].commit_uuid
    assert len({result.commit_uuid for result in tx.results.values()}) == 3
    with lake.store.read() as session:
        rows = session.run("participants", transaction_id=transaction_id)
    assert sorted(rows) == sorted((tables[name].table_id, 2) for name in NAMES)


def test_tags_of_the_caller_stay_beside_the_transaction(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with lake.transaction() as tx:
        tx.table("a").add_actions([{"commitInfo": {"tags": {"job": "x"}}}, add("new.parquet")])
        tx.table("b").add_actions([add("new.parquet")])
    tags = commit_info(lake, tables["a"], 2)["tags"]
    assert tags == {"job": "x", "deltalakedb.transactionId": tx.results["a"].transaction_id}


def test_one_table_alone_is_a_plain_commit(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a").add_actions([add("new.parquet")])
    assert tx.results == {"a": 2}
    assert tx.results["a"].transaction_id is None
    assert "tags" not in commit_info(lake, tables["a"], 2)


def test_a_transaction_of_nothing_writes_nothing(lake: Lake, tables: dict[str, Table]) -> None:
    before = row_counts(lake)
    with lake.transaction() as tx:
        pass
    assert tx.results == {}
    with lake.transaction() as tx:
        tx.table("a")
        tx.table("b").add_actions([])
    assert tx.results == {}
    assert row_counts(lake) == before


def test_one_table_named_twice_is_one_version(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a").add_actions([add("x.parquet")], operation_parameters={"n": 1})
        tx.table(tables["a"].location).add_actions(
            [remove("first.parquet")], operation="DELETE", operation_parameters={"m": 2}
        )
        tx.table("b").add_actions([add("x.parquet")])
    assert tx.results == {"a": 2, "b": 2}
    assert live_paths(tables["a"]) == ["x.parquet"]
    info = commit_info(lake, tables["a"], 2)
    assert (info["operation"], info["operationParameters"]) == ("WRITE", {"n": "1", "m": "2"})


def test_a_table_is_seen_at_the_version_the_transaction_started_from(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with lake.transaction() as tx:
        part = tx.table("a")
        tables["a"].commit([add("late.parquet")])
        assert part.snapshot().version == 1
        assert tx.table("a").snapshot().version == 1
        part.add_actions([add("new.parquet")])
    assert tx.results == {"a": 3}


# --- or nothing ---------------------------------------------------------------------------


def test_an_error_in_the_block_leaves_nothing(lake: Lake, tables: dict[str, Table]) -> None:
    before = row_counts(lake)
    with pytest.raises(ZeroDivisionError), lake.transaction() as tx:
        tx.table("a").add_actions([add("new.parquet")])
        raise ZeroDivisionError
    assert tx.results == {}
    assert row_counts(lake) == before


@pytest.mark.parametrize("victim", NAMES)
def test_a_conflict_in_one_table_leaves_nothing_in_any(
    lake: Lake, tables: dict[str, Table], victim: str
) -> None:
    with pytest.raises(ConcurrentDeleteDeleteError), lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([remove("first.parquet"), add("new.parquet")])
        tables[victim].commit([remove("first.parquet")])
        before = row_counts(lake)
    assert row_counts(lake) == before
    for name in NAMES:
        assert live_paths(tables[name]) == ([] if name == victim else ["first.parquet"])
        check_ledger(lake, tables[name])


@pytest.mark.parametrize("victim", NAMES)
@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ([add("new.parquet"), add("new.parquet")], "one-add-per-path"),
        ([remove("missing.parquet")], "remove-live-file"),
    ],
)
def test_a_refusal_in_one_table_leaves_nothing_in_any(
    lake: Lake, tables: dict[str, Table], victim: str, wrong: list[Any], rule: str
) -> None:
    before = row_counts(lake)
    with pytest.raises(CommitRejectedError) as refusal, lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions(wrong if name == victim else [add("new.parquet")])
    assert refusal.value.rule == rule
    assert row_counts(lake) == before


def test_a_table_dropped_meanwhile_leaves_nothing(lake: Lake, tables: dict[str, Table]) -> None:
    with pytest.raises(TableNotFoundError, match="'b'"), lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([add("new.parquet")])
        lake.drop_table("b", force=True)
        before = row_counts(lake)
    assert row_counts(lake) == before


def test_an_unknown_table_is_an_error_at_once(lake: Lake, tables: dict[str, Table]) -> None:
    before = row_counts(lake)
    with pytest.raises(TableNotFoundError, match="no table 'd'"), lake.transaction() as tx:
        tx.table("a").add_actions([add("new.parquet")])
        tx.table("d")
    assert row_counts(lake) == before


def test_a_part_that_was_refused_may_be_put_right(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        part = tx.table("a")
        with pytest.raises(InvalidActionError):
            part.add_actions([add("half.parquet"), {"add": {}}])
        with pytest.raises(ConfigurationError):
            part.add_actions([add("half.parquet")], app_txn=("", 1))
        part.add_actions([add("whole.parquet")])
    assert live_paths(tables["a"]) == ["first.parquet", "whole.parquet"]


# --- conflicts ----------------------------------------------------------------------------


def test_independent_commits_are_rebased_upon_in_every_table(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([add("new.parquet")])
        tables["a"].commit([add("other.parquet")])
        tables["c"].commit([remove("first.parquet")])
        tables["c"].commit([add("more.parquet")])
    assert tx.results == {"a": 3, "b": 2, "c": 4}
    assert _live(lake) == {
        "a": ["first.parquet", "new.parquet", "other.parquet"],
        "b": ["first.parquet", "new.parquet"],
        "c": ["more.parquet", "new.parquet"],
    }
    for name in NAMES:
        check_ledger(lake, tables[name])


def test_each_table_has_its_own_reads_and_level(lake: Lake, tables: dict[str, Table]) -> None:
    whole = ReadSet(whole_table=True)
    tables["a"].set_properties({"delta.isolationLevel": "WriteSerializable"})
    with lake.transaction() as tx:
        for name in NAMES:
            read = None if name == "c" else whole
            tx.table(name).add_actions([add("new.parquet")], read=read)
        tables["a"].commit([add("other.parquet")])
        tables["c"].commit([add("other.parquet")])
    assert tx.results == {"a": 4, "b": 2, "c": 3}
    with pytest.raises(ConcurrentAppendError), lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([add("newer.parquet")], read=whole)
        tables["b"].commit([add("another.parquet")])


def test_a_changed_schema_is_a_conflict_for_the_transaction(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with pytest.raises(MetadataChangedError), lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([add("new.parquet")])
        tables["b"].set_properties({"owner": "me"})
    assert _live(lake) == {name: ["first.parquet"] for name in NAMES}


def test_a_transaction_far_behind_catches_up(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions([add("new.parquet")])
        for n in range(70):
            tables["b"].commit([add(f"{n}.parquet")])
    assert tx.results == {"a": 2, "b": 72, "c": 2}
    check_ledger(lake, tables["b"])


# --- app transactions ---------------------------------------------------------------------


def _load(lake: Lake, version: int, *, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    with lake.transaction() as tx:
        for name in names:
            tx.table(name).add_actions([add(f"load-{version}.parquet")], app_txn=("load", version))
    return dict(tx.results)


def test_a_repeated_transaction_is_skipped_and_says_so(
    lake: Lake, tables: dict[str, Table]
) -> None:
    first = _load(lake, 1)
    assert not any(result.already_committed for result in first.values())
    before = row_counts(lake)
    again = _load(lake, 1)
    assert again == first == dict.fromkeys(NAMES, 2)
    assert all(result.already_committed for result in again.values())
    assert row_counts(lake) == before
    assert _load(lake, 2) == dict.fromkeys(NAMES, 3)


def test_a_concurrent_duplicate_of_a_transaction_is_skipped(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).add_actions(
                [remove("first.parquet"), add("load-1.parquet")], app_txn=("load", 1)
            )
        with lake.transaction() as faster:
            for name in NAMES:
                faster.table(name).add_actions(
                    [remove("first.parquet"), add("load-1.parquet")], app_txn=("load", 1)
                )
        before = row_counts(lake)
    assert all(result.already_committed for result in tx.results.values())
    assert row_counts(lake) == before


def test_a_concurrent_duplicate_is_skipped_whichever_table_has_the_app_transaction(
    lake: Lake, tables: dict[str, Table]
) -> None:
    """Also where the other table, which cannot tell, meets the conflict first."""

    def load(identified: str, version: int) -> Transaction[TransactionTable]:
        transaction = lake._begin()
        for name in ("a", "b"):
            transaction.table(name).add_actions(
                [remove(live_paths(tables[name])[0]), add(f"{version}.parquet")],
                app_txn=("load", version) if name == identified else None,
            )
        return transaction

    for version, identified in enumerate(("a", "b"), start=1):
        first, second = load(identified, version), load(identified, version)
        first.commit()
        before = row_counts(lake)
        second.commit()
        assert all(result.already_committed for result in second.results.values())
        assert row_counts(lake) == before


def test_what_has_no_app_transaction_shares_the_fate_of_what_has(
    lake: Lake, tables: dict[str, Table]
) -> None:
    def run() -> dict[str, Any]:
        with lake.transaction() as tx:
            tx.table("a").add_actions([add("new.parquet")])
            tx.table("b").add_actions([add("new.parquet")], app_txn=("load", 1))
        return dict(tx.results)

    assert run() == {"a": 2, "b": 2}
    before = row_counts(lake)
    again = run()
    assert again["b"] == 2
    assert all(result.already_committed for result in again.values())
    assert row_counts(lake) == before


def test_a_transaction_of_which_only_a_part_was_committed_is_refused(
    lake: Lake, tables: dict[str, Table]
) -> None:
    _load(lake, 1, names=("b",))
    before = row_counts(lake)
    with pytest.raises(ConcurrentTransactionError, match=r"part of this transaction.*in b"):
        _load(lake, 1)
    assert row_counts(lake) == before


def test_a_table_has_one_app_transaction(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a").add_actions([add("x.parquet")], app_txn=("load", 1))
        with pytest.raises(ConfigurationError, match="once for each table"):
            tx.table("a").add_actions([add("y.parquet")], app_txn=("load", 2))
    assert live_paths(tables["a"]) == ["first.parquet", "x.parquet"]


# --- at one instant -----------------------------------------------------------------------


def test_a_snapshot_of_many_tables_stays_as_it_was(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.snapshot(["a", "b"]) as at:
        with lake.transaction() as tx:
            tx.table("a").add_actions([remove("first.parquet")])
            tx.table("b").add_actions([remove("first.parquet")])
        assert {name: at[name].files()["path"].to_pylist() for name in at} == {
            "a": ["first.parquet"],
            "b": ["first.parquet"],
        }
        assert (at["a"].version, at["b"].version) == (1, 1)
    with lake.snapshot(["a", "b"]) as at:
        assert (at["a"].num_files, at["b"].num_files) == (0, 0)


def test_a_snapshot_of_an_unknown_table_is_an_error(lake: Lake, tables: dict[str, Table]) -> None:
    with pytest.raises(TableNotFoundError, match="no table 'd'"), lake.snapshot(["a", "d"]):
        pass


def test_readers_never_see_half_a_transaction(
    open_lake: OpenLake, lake: Lake, tables: dict[str, Table]
) -> None:
    """The writer adds one file to each of two tables at a time: their counts are always equal."""
    stop = threading.Event()
    begun = threading.Barrier(3, timeout=60)
    seen: list[tuple[int, int]] = []

    def read(reader: Lake) -> None:
        with reader.snapshot(["a", "b"]) as at:
            at["a"].files()
        begun.wait()
        while not stop.is_set():
            with reader.snapshot(["a", "b"]) as at:
                counts = (at["a"].num_files, at["b"].num_files)
                files = (at["a"].files().num_rows, at["b"].files().num_rows)
            assert files == counts
            seen.append(counts)

    def write(writer: Lake) -> None:
        begun.wait()
        try:
            for n in range(25):
                with writer.transaction() as tx:
                    tx.table("b").add_actions([add(f"{n}.parquet")])
                    tx.table("a").add_actions([add(f"{n}.parquet")])
        finally:
            stop.set()

    with ThreadPoolExecutor(3) as pool:
        work = [
            pool.submit(write, open_lake()),
            pool.submit(read, open_lake()),
            pool.submit(read, lake),
        ]
        for future in work:
            future.result(timeout=60)
    assert len(seen) > 2
    assert [counts for counts in seen if counts[0] != counts[1]] == []
    assert (tables["a"].refresh(), tables["b"].refresh()) == (26, 26)


# --- contention ---------------------------------------------------------------------------


def test_tables_named_in_opposite_orders_do_not_block_each_other(
    lake: Lake, tables: dict[str, Table]
) -> None:
    start = threading.Barrier(4)

    def work(who: int) -> int:
        order = NAMES if who % 2 else tuple(reversed(NAMES))
        start.wait(30)
        for n in range(8):
            with lake.transaction() as tx:
                for name in order:
                    tx.table(name).add_actions([add(f"{who}-{n}.parquet")])
        return 8

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(work, range(4), timeout=100))
    assert done == 32
    for name in NAMES:
        assert tables[name].refresh() == 33
        assert tables[name].snapshot().num_files == 33
        check_ledger(lake, tables[name])
    by_transaction = [
        {record.transaction_id for record in tables[name].history()[:-2]} for name in NAMES
    ]
    assert by_transaction[0] == by_transaction[1] == by_transaction[2]
    assert len(by_transaction[0]) == 32


def test_threads_that_append_through_their_own_handles_all_win(
    lake: Lake, engine: Engine, tables: dict[str, Table]
) -> None:
    handles = [lake.table("a") for _ in range(4)]
    assert {handle.version for handle in handles} == {1}
    start = threading.Barrier(4)

    def work(who: int) -> list[int]:
        start.wait(30)
        return [handles[who].commit([add(f"{who}-{n}.parquet")]) for n in range(8)]

    with ThreadPoolExecutor(4) as pool:
        versions = [version for found in pool.map(work, range(4), timeout=100) for version in found]
    assert sorted(versions) == list(range(2, 34))
    assert tables["a"].snapshot().num_files == 33
    check_ledger(lake, tables["a"])


def test_the_same_table_created_by_two_threads_is_created_once(lake: Lake) -> None:
    start = threading.Barrier(4)

    def work(_: int) -> Table | DeltaLakeDbError:
        start.wait(30)
        try:
            return new_lake_table(lake)
        except DeltaLakeDbError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4), timeout=100))
    errors = [error for error in found if isinstance(error, DeltaLakeDbError)]
    assert [type(error).__name__ for error in errors] == ["TableExistsError"] * 3
    assert [table.name for table in lake.tables()] == ["sales.orders"]
    check_ledger(lake, lake.tables()[0])


def test_one_app_transaction_from_many_threads_happens_once(
    lake: Lake, tables: dict[str, Table]
) -> None:
    start = threading.Barrier(4)

    def work(_: int) -> bool:
        handle = lake.table("a")
        assert handle.version == 1
        start.wait(30)
        committed = handle.commit([remove("first.parquet")], app_txn=("load", 1))
        assert committed == 2
        return committed.already_committed

    with ThreadPoolExecutor(4) as pool:
        repeated = list(pool.map(work, range(4), timeout=100))
    assert sorted(repeated) == [False, True, True, True]
    assert tables["a"].refresh() == 2
