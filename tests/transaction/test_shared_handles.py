"""Threads that share a handle or a transaction: none of them hides the commits of another.

Each test stops one piece of work between its plan and its commit, and lets another thread look at
the table and commit through the same handle meanwhile. The work then has to be checked from the
version that it was planned from.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.errors import (
    ConcurrentAppendError,
    ConcurrentDeleteReadError,
    ConfigurationError,
    MetadataChangedError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations.compact import run_here
from deltalakedb.snapshot.resolve import resolve as open_table
from deltalakedb.table import Table
from deltalakedb.transaction import ReadSet

from support.lake import add, live_paths, new_lake_table, remove

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])


def rows(*ids: int, part: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "part": [part] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    """Two files of part a, one of part b."""
    table = lake.create_table(
        "t", location=str(tmp_path / "t"), schema=SCHEMA, partition_by=["part"]
    )
    table.append(rows(1, 2))
    table.append(rows(3))
    table.append(rows(4, part="b"))
    return table


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def elsewhere(act: Callable[[], object]) -> None:
    """Let another thread do it, and wait until it is done."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


def interrupted(data: pa.Table, act: Callable[[], object]) -> pa.RecordBatchReader:
    """Rows; another thread acts after their write was planned, before the first of them comes."""

    def batches() -> Iterator[pa.RecordBatch]:
        elsewhere(act)
        yield from data.to_batches()

    return pa.RecordBatchReader.from_batches(data.schema, batches())


@pytest.mark.parametrize(
    "how",
    [{}, {"where": "part = 'a'"}, {"where": "id < 3"}, {"dynamic": True}],
    ids=["all", "partition", "rows", "dynamic"],
)
def test_an_overwrite_sees_what_was_added_through_its_handle(
    table: Table, tmp_path: Path, how: dict[str, Any]
) -> None:
    before = set(tmp_path.rglob("*.parquet"))
    with pytest.raises(ConcurrentAppendError):
        table.overwrite(interrupted(rows(1), lambda: table.append(rows(9))), **how)
    assert ids(table) == [1, 2, 3, 4, 9]
    # Of what was refused nothing is left.
    assert len(set(tmp_path.rglob("*.parquet")) - before) == 1
    table.overwrite(rows(1), **how)
    assert 9 not in ids(table) or how == {"where": "id < 3"}


def test_a_snapshot_by_another_thread_hides_nothing(lake: Lake, table: Table) -> None:
    def look() -> None:
        lake.table("t").append(rows(9))
        assert table.snapshot().version == 4

    with pytest.raises(ConcurrentAppendError):
        table.overwrite(interrupted(rows(1), look))
    assert ids(table) == [1, 2, 3, 4, 9]


def test_an_append_fits_the_columns_that_came_meanwhile(table: Table) -> None:
    more = pa.schema([("more", pa.int64())])
    with pytest.raises(MetadataChangedError):
        table.append(interrupted(rows(7), lambda: table.add_columns(more)))
    assert ids(table) == [1, 2, 3, 4]


def test_a_compaction_starts_from_what_it_read(table: Table) -> None:
    def run(bins: Any) -> Any:
        elsewhere(lambda: table.add_columns(pa.schema([("more", pa.int64())])))
        return run_here(bins)

    with pytest.raises(MetadataChangedError):
        table.optimize(run=run)
    assert table.snapshot().num_files == 3


def test_a_restore_sees_what_was_added_through_its_handle(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looking(*_: Any) -> None:
        elsewhere(lambda: table.append(rows(9)))

    monkeypatch.setattr(import_module("deltalakedb.operations.restore"), "_check_there", looking)
    with pytest.raises(ConcurrentAppendError):
        table.restore(version=1)
    assert ids(table) == [1, 2, 3, 4, 9]
    monkeypatch.undo()
    table.restore(version=1)
    assert ids(table) == [1, 2]


@pytest.fixture
def overtaken(table: Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Whoever looks at the head of the table for the first time is overtaken at once."""
    original = Table.snapshot
    acting = iter([lambda: table.append(rows(9))])

    def snapshot(self: Table, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        for act in acting:
            elsewhere(act)
        return found

    monkeypatch.setattr(Table, "snapshot", snapshot)
    return table


def test_what_is_planned_from_a_snapshot_starts_from_it(overtaken: Table) -> None:
    with pytest.raises(ConcurrentAppendError):
        overtaken.replace(SCHEMA)
    assert ids(overtaken) == [1, 2, 3, 4, 9]


def test_an_overwrite_starts_from_its_snapshot(overtaken: Table) -> None:
    with pytest.raises(ConcurrentAppendError):
        overtaken.overwrite(rows(1))
    assert ids(overtaken) == [1, 2, 3, 4, 9]


def test_independent_work_of_threads_that_share_a_handle_goes_through(table: Table) -> None:
    table.append(interrupted(rows(5), lambda: table.append(rows(6))))
    table.overwrite(
        interrupted(rows(7, part="b"), lambda: table.append(rows(8))), where="part = 'b'"
    )
    assert ids(table) == [1, 2, 3, 5, 6, 7, 8]
    # And the handle goes on from what it has done itself.
    table.overwrite(rows(1))
    assert ids(table) == [1]


def test_actions_are_committed_from_the_snapshot_they_were_made_from(lake: Lake) -> None:
    table = new_lake_table(lake)
    table.commit([add("first.parquet")])
    seen = table.snapshot()
    elsewhere(lambda: table.commit([add("other.parquet")]))
    read = ReadSet(whole_table=True)
    with pytest.raises(ConcurrentAppendError):
        table.commit([add("mine.parquet")], read=read, base=seen)
    # Actions alone say what they depend on, too.
    elsewhere(lambda: table.commit([remove("first.parquet")]))
    then, files = table.snapshot(2), ReadSet(files=frozenset({"first.parquet"}))
    with pytest.raises(ConcurrentDeleteReadError):
        table.commit([add("mine.parquet")], read=files, base=then)
    assert table.commit([add("mine.parquet")], base=seen) == 4
    assert live_paths(table) == ["mine.parquet", "other.parquet"]
    with pytest.raises(ConfigurationError, match="based on version 1, and expects version 4"):
        table.commit([add("x.parquet")], base=seen, expected_version=4)
    other = new_lake_table(lake, "other")
    for wrong in (other.snapshot(), "3", 3):
        with pytest.raises(ConfigurationError, match="no snapshot of table"):
            table.commit([add("x.parquet")], base=wrong)  # type: ignore[arg-type]


def test_a_transaction_has_one_part_for_each_table(
    lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads ask for a table at once: what both add is committed."""
    with lake.transaction() as tx:
        acting = iter([8])

        def resolve(*args: Any, **options: Any) -> Any:
            found = open_table(*args, **options)
            for number in acting:
                tx.table("t").append(rows(number))
            return found

        monkeypatch.setattr("deltalakedb.transaction.transaction.resolve", resolve)
        tx.table("t").append(rows(9))
    assert ids(table) == [1, 2, 3, 4, 8, 9]


def test_threads_that_overwrite_in_one_transaction_follow_one_another(
    lake: Lake, table: Table
) -> None:
    with lake.transaction() as tx, ThreadPoolExecutor(4) as pool:
        part = tx.table("t")
        done = [pool.submit(part.overwrite, rows(n)) for n in range(10, 18)]
        for one in done:
            one.result()
    assert len(ids(table)) == 1
