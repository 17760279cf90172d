"""What a transaction over many tables sees, and which of its reads others must not change."""

# ruff: noqa: PT012 - a transaction raises where its block ends

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    ConcurrentAppendError,
    ConcurrentDeleteReadError,
    HistoryExpiredError,
    MetadataChangedError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.store import TableRecord
from deltalakedb.store.dialect import Session
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from deltalakedb.transaction import ReadSet
from deltalakedb.transaction.transaction import Transaction
from deltalakedb.transaction_table import TransactionTable

from support.catalog_rows import mark_published
from support.lake import (
    OpenLake,
    add,
    check_ledger,
    commit_info,
    live_paths,
    new_lake_table,
    remove,
)

NAMES = ("a", "b", "c")
LEVELS = ("Serializable", "WriteSerializable")
WHOLE = ReadSet(whole_table=True)
FAR_BEHIND = 5
Begun = Transaction[TransactionTable]
Read = Callable[[Begun, str], object]


@pytest.fixture
def tables(lake: Lake) -> dict[str, Table]:
    """Three tables with one file each, partitioned by day."""
    found = {name: new_lake_table(lake, name, partition_by=["day"]) for name in NAMES}
    for table in found.values():
        table.commit([new_file("first.parquet")])
    return found


@pytest.fixture
def soon_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer commits than `FAR_BEHIND` are looked at while a head is held."""
    monkeypatch.setattr("deltalakedb.transaction.committer._CHECKED_UNDER_LOCK", FAR_BEHIND - 1)


def new_file(path: str, day: str = "1") -> Any:
    return add(path, values={"day": day})


def everywhere(tables: dict[str, Table], level: str) -> None:
    for table in tables.values():
        table.set_properties({"delta.isolationLevel": level})


def begin(lake: Lake) -> Begun:
    """A transaction without its block, for two of them at once."""
    return lake._begin()


def snapshot(tx: Begun, name: str) -> Snapshot:
    return tx.table(name).snapshot()


READS: dict[str, Read] = {
    "declared": lambda tx, name: tx.table(name).add_actions([], read=WHOLE),
    "files": lambda tx, name: snapshot(tx, name).files(),
    "first files": lambda tx, name: snapshot(tx, name).files("day = '7'", limit=1),
    "later files": lambda tx, name: snapshot(tx, name).files("day = '7'", offset=1),
    "iter_files": lambda tx, name: list(snapshot(tx, name).iter_files(columns=["size_bytes"])),
    "condition": lambda tx, name: snapshot(tx, name).files("day = '1'", columns=["size_bytes"]),
    "condition on rows": lambda tx, name: snapshot(tx, name).files("id > 5"),
    "iter_files with condition": lambda tx, name: list(
        snapshot(tx, name).iter_files(where="day = '1'", columns=["size_bytes"])
    ),
    "num_files": lambda tx, name: snapshot(tx, name).num_files,
    "size_bytes": lambda tx, name: snapshot(tx, name).size_bytes,
    "missing file": lambda tx, name: snapshot(tx, name).has_file("other.parquet"),
}


# --- one instant --------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", NAMES)
def test_a_transaction_sees_all_tables_at_the_instant_of_its_first_use(
    lake: Lake, tables: dict[str, Table], first: str, level: str
) -> None:
    everywhere(tables, level)
    with lake.transaction() as tx:
        tx.table(first)
        with lake.transaction() as other:
            for name in NAMES:
                other.table(name).add_actions([remove("first.parquet"), new_file("new.parquet")])
        seen = {name: tx.table(name).snapshot().files()["path"].to_pylist() for name in NAMES}
    assert seen == {name: ["first.parquet"] for name in NAMES}
    with lake.transaction() as tx:
        seen = {name: tx.table(name).snapshot().files()["path"].to_pylist() for name in NAMES}
    assert seen == {name: ["new.parquet"] for name in NAMES}


def test_threads_of_a_transaction_see_the_same_instant(
    lake: Lake, tables: dict[str, Table]
) -> None:
    begun = threading.Barrier(len(NAMES) + 1, timeout=60)

    def look(tx: Begun, name: str) -> int:
        begun.wait()
        return tx.table(name).snapshot().version

    with ThreadPoolExecutor(len(NAMES)) as pool:
        for _ in range(5):
            with lake.transaction() as tx:
                looks = [pool.submit(look, tx, name) for name in NAMES]
                begun.wait()
                with lake.transaction() as other:
                    for name in NAMES:
                        other.table(name).add_actions([new_file(f"{tables[name].refresh()}")])
                assert len({one.result() for one in looks}) == 1


def test_a_session_that_is_older_than_the_instant_finds_its_version(
    lake: Lake, tables: dict[str, Table]
) -> None:
    """Another thread is faster to fix the instant, after a commit that this session cannot see."""
    faster = iter([True])

    def find(session: Session, name: object) -> TableRecord:
        record = lake._find(session, name)
        if next(faster, False):
            tables["b"].commit([new_file("new.parquet")])
            tx.table("a")
        return record

    tx = Transaction(lake.store, lake._committer, find, TransactionTable)
    assert tx.table("b").snapshot().version == 2


def test_a_table_that_moved_on_is_changed_from_the_version_of_the_instant(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with lake.transaction() as tx:
        tx.table("a").add_actions([new_file("mine.parquet")])
        tables["b"].commit([new_file("other.parquet")])
        tx.table("b").add_actions([new_file("mine.parquet")])
    assert tx.results == {"a": 2, "b": 3}
    assert commit_info(lake, tables["b"], 3)["readVersion"] == 1
    refused = pytest.raises(ConcurrentDeleteReadError, match="version 4 of table 'b'")
    with refused, lake.transaction() as tx:
        tx.table("a").add_actions([new_file("more.parquet")])
        tables["b"].commit([remove("mine.parquet")])
        tx.table("b").add_actions([new_file("more.parquet")], read=WHOLE)


def test_a_table_created_after_the_instant_is_refused(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a")
        new_lake_table(lake, "d")
        with pytest.raises(TableNotFoundError, match="'d' was created after this transaction"):
            tx.table("d")
        lake.drop_table("b", force=True)
        with pytest.raises(TableNotFoundError, match="no table 'b'"):
            tx.table("b")
    with lake.transaction() as tx:
        tx.table("d").add_actions([add("first.parquet")])
    assert tx.results == {"d": 1}


def test_a_version_of_the_instant_that_has_expired_is_refused(
    lake: Lake, tables: dict[str, Table], tmp_path: Path
) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    with lake.transaction() as tx:
        tx.table("a")
        for number in range(3):
            tables["b"].commit([new_file(f"{number}.parquet")])
        clock.advance(86_400_000)
        mark_published(lake, tables["b"])
        lake.expire("b", older_than="0 days", archive=str(tmp_path))
        with pytest.raises(HistoryExpiredError, match="version 1 of table 'b'") as refused:
            tx.table("b")
    assert refused.value.retryable


def test_a_transaction_that_is_used_again_begins_anew(lake: Lake, tables: dict[str, Table]) -> None:
    tx = begin(lake)
    tx.table("a").add_actions([new_file("mine.parquet")])
    tables["b"].commit([new_file("other.parquet")])
    tx.commit()
    assert tx.table("b").snapshot().version == 2


# --- reads that count ---------------------------------------------------------------------


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_two_transactions_that_each_read_the_others_table_do_not_both_commit(
    lake: Lake, tables: dict[str, Table], read: Read
) -> None:
    first, second = begin(lake), begin(lake)
    for tx, there, here in ((first, "a", "b"), (second, "b", "a")):
        read(tx, there)
        tx.table(here).add_actions([new_file("mine.parquet")])
    first.commit()
    with pytest.raises(ConcurrentAppendError, match="version 2 of table 'b'") as refused:
        second.commit()
    assert refused.value.winner_version == 2
    assert refused.value.retryable
    assert live_paths(tables["a"]) == ["first.parquet"]
    assert live_paths(tables["b"]) == ["first.parquet", "mine.parquet"]
    for table in tables.values():
        check_ledger(lake, table)


@pytest.mark.parametrize("where", [None, "id > 1", "day = '1'", pc.field("day") == "1"])
def test_rows_that_were_read_count(lake: Lake, tmp_path: Path, where: Any) -> None:
    rows = pa.table({"id": [1, 2], "day": ["1", "2"]})
    for name in ("a", "b"):
        lake.create_table(
            name, location=str(tmp_path / name), schema=rows.schema, partition_by=["day"]
        ).append(rows)
    filters: list[Callable[[Snapshot], object]] = [
        lambda seen: seen.to_arrow(where),
        lambda seen: seen.to_arrow_dataset(where).count_rows(),
        lambda seen: seen.to_polars(where),
    ]
    if not isinstance(where, str):
        filters.append(lambda seen: seen.to_arrow_dataset().to_table(filter=where))
    for read in filters:
        with pytest.raises(ConcurrentAppendError, match="of table 'a'"), lake.transaction() as tx:
            assert read(tx.table("a").snapshot()) is not None
            tx.table("b").append(rows)
            lake.table("a").append(rows)
    assert lake.table("b").snapshot().num_files == 2


def test_reads_of_a_table_that_changes_too_count(lake: Lake, tables: dict[str, Table]) -> None:
    with pytest.raises(ConcurrentAppendError, match="of table 'a'"), lake.transaction() as tx:
        part = tx.table("a")
        part.snapshot().files()
        part.add_actions([new_file("mine.parquet")])
        tables["a"].commit([new_file("other.parquet")])
    # Compaction alone need not look at new files; whoever has counted the files depends on them.
    with pytest.raises(ConcurrentAppendError, match="of table 'a'"), lake.transaction() as tx:
        part = tx.table("a")
        part.snapshot().files()
        part.add_actions(
            [remove("first.parquet", data_change=False), new_file_of("compact.parquet")]
        )
        tx.table("b").add_actions([new_file("count.parquet")])
        tables["a"].commit([new_file("another.parquet")])


def new_file_of(path: str) -> Any:
    return add(path, values={"day": "1"}, data_change=False)


def test_a_condition_on_partitions_narrows_what_was_read(
    lake: Lake, tables: dict[str, Table]
) -> None:
    tables["a"].commit([new_file("second.parquet", "2")])
    with lake.transaction() as tx:
        seen = tx.table("a").snapshot()
        assert seen.files("day = '1' AND id > 0").num_rows == 1
        assert seen.has_file("first.parquet")
        tx.table("b").add_actions([new_file("mine.parquet")])
        tables["a"].commit([remove("second.parquet"), new_file("third.parquet", "2")])
    assert tx.results == {"b": 2}
    refused = pytest.raises(ConcurrentDeleteReadError, match="version 4 of table 'a'")
    with refused, lake.transaction() as tx:
        seen = tx.table("a").snapshot()
        assert [batch.num_rows for batch in seen.iter_files(where="day = '2'")] == [1]
        tx.table("b").add_actions([new_file("more.parquet")])
        tables["a"].commit([remove("third.parquet")])


def test_a_file_that_was_looked_for_must_stay(lake: Lake, tables: dict[str, Table]) -> None:
    with pytest.raises(ConcurrentDeleteReadError, match="of table 'a'"), lake.transaction() as tx:
        assert tx.table("a").snapshot().has_file("first.parquet")
        tx.table("b").add_actions([new_file("mine.parquet")])
        tables["a"].commit([remove("first.parquet")])


def test_a_table_whose_schema_was_read_must_keep_it(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        assert len(tx.table("a").snapshot().schema.fields) == 2
        tx.table("b").add_actions([new_file("mine.parquet")])
        tables["a"].commit([new_file("other.parquet")])
    assert tx.results == {"b": 2}
    with pytest.raises(MetadataChangedError, match="of table 'a'"), lake.transaction() as tx:
        assert len(tx.table("a").snapshot().schema.fields) == 2
        tx.table("b").add_actions([new_file("more.parquet")])
        tables["a"].set_properties({"owner": "me"})


def test_a_table_that_was_only_asked_for_is_not_read(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a")
        tx.table("b").add_actions([new_file("mine.parquet")])
        tables["a"].commit([remove("first.parquet")])
    assert tx.results == {"b": 2}


def test_what_an_overwrite_looks_at_is_no_more_than_it_replaces(lake: Lake, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "day": ["1", "2"]})
    table = lake.create_table("a", location=str(tmp_path), schema=rows.schema, partition_by=["day"])
    table.append(rows)
    with lake.transaction() as tx:
        tx.table("a").overwrite(rows.slice(0, 1), where="day = '1'")
        table.append(rows.slice(1))
    assert tx.results == {"a": 3}


def test_a_transaction_that_only_reads_checks_nothing(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        for name in NAMES:
            tx.table(name).snapshot().files()
        for table in tables.values():
            table.commit([remove("first.parquet")])
    assert tx.results == {}


def test_a_table_that_was_read_and_is_dropped_is_refused(
    lake: Lake, tables: dict[str, Table]
) -> None:
    with pytest.raises(TableNotFoundError, match="'a'"), lake.transaction() as tx:
        tx.table("a").snapshot().files()
        tx.table("b").add_actions([new_file("mine.parquet")])
        lake.drop_table("a", force=True)
    assert live_paths(tables["b"]) == ["first.parquet"]


@pytest.mark.usefixtures("soon_far_behind")
def test_a_read_far_behind_catches_up_first(lake: Lake, tables: dict[str, Table]) -> None:
    with lake.transaction() as tx:
        tx.table("a").snapshot().files("day = '1'")
        tx.table("b").add_actions([new_file("mine.parquet")])
        for number in range(FAR_BEHIND):
            tables["a"].commit([new_file(f"{number}.parquet", "2")])
    assert tx.results == {"b": 2}
    assert tx.results["b"].attempts == 2
    version = FAR_BEHIND + 2
    refused = pytest.raises(ConcurrentAppendError, match=f"version {version} of table 'a'")
    with refused, lake.transaction() as tx:
        tx.table("a").snapshot().files("day = '2'")
        tx.table("b").add_actions([new_file("more.parquet")])
        for number in range(FAR_BEHIND, 2 * FAR_BEHIND):
            tables["a"].commit([new_file(f"{number}.parquet", "2")])


# --- levels -------------------------------------------------------------------------------


def test_blind_appends_to_a_write_serializable_table_do_not_count(
    lake: Lake, tables: dict[str, Table]
) -> None:
    everywhere(tables, "WriteSerializable")
    with lake.transaction() as tx:
        tx.table("a").snapshot().files()
        tx.table("b").add_actions([new_file("mine.parquet")])
        tables["a"].commit([new_file("other.parquet")])
    assert tx.results == {"b": 3}
    with pytest.raises(ConcurrentDeleteReadError, match="of table 'a'"), lake.transaction() as tx:
        tx.table("a").snapshot().files()
        tx.table("b").add_actions([new_file("more.parquet")])
        tables["a"].commit([remove("other.parquet")])


@pytest.mark.parametrize("read", ["declared", "condition"])
def test_an_append_of_a_transaction_that_has_read_is_not_blind(
    lake: Lake, tables: dict[str, Table], read: str
) -> None:
    """Else two of them, each of which has read where the other appends, would both commit."""
    everywhere(tables, "WriteSerializable")
    first, second = begin(lake), begin(lake)
    for tx, there, here in ((first, "a", "b"), (second, "b", "a")):
        READS[read](tx, there)
        tx.table(here).add_actions([new_file("mine.parquet")])
    first.commit()
    assert commit_info(lake, tables["b"], 3)["isBlindAppend"] is False
    with pytest.raises(ConcurrentAppendError, match="version 3 of table 'b'"):
        second.commit()


def test_the_level_of_the_table_that_was_read_decides(lake: Lake, tables: dict[str, Table]) -> None:
    tables["a"].set_properties({"delta.isolationLevel": "WriteSerializable"})

    def attempt(read: str, write: str) -> None:
        with lake.transaction() as tx:
            tx.table(read).snapshot().files()
            tx.table(write).add_actions([new_file(f"{tables[write].refresh()}.parquet")])
            tables[read].refresh()
            tables[read].commit([new_file(f"blind{tables[read].version}.parquet")])

    attempt("a", "b")
    with pytest.raises(ConcurrentAppendError, match="of table 'b'"):
        attempt("b", "a")


# --- the commit itself --------------------------------------------------------------------


@pytest.mark.usefixtures("soon_far_behind")
@pytest.mark.parametrize("order", [1, -1])
def test_a_commit_whose_answer_was_lost_is_found_though_its_reads_have_changed_since(
    lake: Lake, tables: dict[str, Table], order: int
) -> None:
    """Whichever of the two heads is taken first."""
    there, here = sorted(("a", "b"), key=lambda name: tables[name].table_id)[::order]
    lost = iter([True])

    def lose(step: str) -> None:
        if step == "committed" and next(lost, False):
            lake._committer._step = None
            for number in range(FAR_BEHIND):
                tables[there].commit([new_file(f"{number}.parquet")])
            raise CommitOutcomeUnknownError("The answer is lost")

    with lake.transaction() as tx:
        tx.table(there).snapshot().files()
        tx.table(here).add_actions([new_file("mine.parquet")])
        lake._committer._step = lose
    assert tx.results == {here: 2}
    assert tx.results[here].attempts == 2
    assert live_paths(tables[here]) == ["first.parquet", "mine.parquet"]


@pytest.mark.usefixtures("soon_far_behind")
def test_a_try_that_failed_without_an_answer_checks_its_reads_again(
    lake: Lake, tables: dict[str, Table]
) -> None:
    lost = iter([True])

    def fail(step: str) -> None:
        if step == "take" and next(lost, False):
            lake._committer._step = None
            raise CommitOutcomeUnknownError("The answer is lost")

    with pytest.raises(ConcurrentAppendError, match="of table 'a'"), lake.transaction() as tx:
        tx.table("a").snapshot().files()
        tx.table("b").add_actions([new_file("mine.parquet")])
        for number in range(FAR_BEHIND):
            tables["a"].commit([new_file(f"{number}.parquet")])
        lake._committer._step = fail
    assert live_paths(tables["b"]) == ["first.parquet"]


def test_transactions_that_read_the_same_table_do_not_wait_for_each_other(
    open_lake: OpenLake, engine: Engine, lake: Lake, tables: dict[str, Table]
) -> None:
    if engine != "postgres":
        pytest.skip("This engine has one writer at a time, whatever it reads")
    holding, done = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "write":
            holding.set()
            assert done.wait(60)

    slow = open_lake()
    slow._committer._step = hold

    def write(where: Lake, name: str) -> Any:
        with where.transaction() as tx:
            tx.table("a").snapshot().files()
            tx.table(name).add_actions([new_file("mine.parquet")])
        return tx.results

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(write, slow, "b")
        try:
            assert holding.wait(60)
            assert write(lake, "c") == {"c": 2}
        finally:
            done.set()
        assert waiting.result() == {"b": 2}


def test_many_transactions_that_read_and_write_crosswise_never_deadlock(
    open_lake: OpenLake, lake: Lake, tables: dict[str, Table]
) -> None:
    """Each reads two tables and writes the third: all end, committed or refused."""

    def work(where: Lake, number: int) -> int:
        committed = 0
        for turn in range(10):
            target = NAMES[(number + turn) % 3]
            try:
                with where.transaction() as tx:
                    for name in NAMES:
                        if name != target:
                            tx.table(name).snapshot().files()
                    tx.table(target).add_actions([new_file(f"{number}-{turn}.parquet")])
            except CommitConflictError:
                continue
            committed += 1
        return committed

    lakes = [open_lake() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work, one, number) for number, one in enumerate(lakes)]
        committed = sum(one.result() for one in done)
    assert committed == sum(len(live_paths(table)) - 1 for table in tables.values())
    assert committed > 0
