"""Small files become large ones and no row changes, on every engine."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.actions import AddFile
from deltalakedb.errors import (
    CommitConflictError,
    ConfigurationError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations.compact import Bin, run_here
from deltalakedb.table import Table


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    """Six files in two partitions."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    table = lake.create_table(
        "t", location=str(tmp_path / "t"), schema=schema, partition_by=["part"]
    )
    for i in range(3):
        table.append(pa.table({"id": [i, i + 100], "part": ["a", None]}))
    return table


def rows(table: Table) -> list[tuple[int, str | None]]:
    return sorted((row["id"], row["part"]) for row in table.snapshot().to_arrow().to_pylist())


def test_each_partition_becomes_one_file(table: Table) -> None:
    before = rows(table)
    told: list[tuple[int, int]] = []
    done = table.optimize(progress=lambda done, all_: told.append((done, all_)))
    assert (done.version, done.files_removed, done.files_added, done.partitions) == (4, 6, 2, 2)
    assert told == [(1, 2), (2, 2)]
    assert rows(table) == before
    assert table.snapshot().num_files == 2
    files = table.snapshot().files(columns=["path", "data_change", "stats"]).to_pylist()
    assert not any(row["data_change"] for row in files)
    assert all('"numRecords":3' in row["stats"] for row in files)
    (newest, *_) = table.history(1)
    assert newest.commit_info is not None
    assert newest.commit_info.operation == "OPTIMIZE"
    # There is nothing left to do, and that is no version.
    assert table.optimize().version is None
    assert rows(table) == before


def test_only_some_partitions_and_only_so_large(table: Table) -> None:
    done = table.optimize(where="part IS NULL")
    assert (done.files_removed, done.files_added) == (3, 1)
    assert table.optimize(target_bytes=10).version is None
    with pytest.raises(ConfigurationError, match="partitions alone"):
        table.optimize(where="id = 1")
    with pytest.raises(ConfigurationError, match="no whole number"):
        table.optimize(target_bytes=0)


def test_appends_meanwhile_are_not_in_the_way_and_removals_are(lake: Lake, table: Table) -> None:
    other = lake.table("t")

    def run_and_append(bins: Sequence[Bin]) -> list[list[AddFile]]:
        made = list(run_here(bins))
        other.append(pa.table({"id": [7], "part": ["a"]}))
        return made

    assert table.optimize(run=run_and_append).version == 5
    assert len(rows(table)) == 7

    def run_and_remove(bins: Sequence[Bin]) -> list[list[AddFile]]:
        made = list(run_here(bins))
        other.refresh()
        other.overwrite(pa.table({"id": [9], "part": ["a"]}), where="part = 'a'")
        return made

    folder = Path(table.location.removeprefix("file://"))
    with pytest.raises(CommitConflictError):
        table.optimize(run=run_and_remove)
    assert (9, "a") in rows(table)
    assert (7, "a") not in rows(table)
    # What was written in vain is gone again: three of the first, six of before, two and one.
    live = set(table.snapshot().files()["path"].to_pylist())
    assert len(live) == 2
    assert len(list(folder.rglob("*.parquet"))) == 10


def test_a_run_that_fails_leaves_nothing(table: Table) -> None:
    def run_and_fail(bins: Sequence[Bin]) -> Iterator[list[AddFile]]:
        yield from list(run_here(bins))[:1]
        raise RuntimeError("lost an executor")

    folder = Path(table.location.removeprefix("file://"))
    with pytest.raises(RuntimeError):
        table.optimize(run=run_and_fail)
    assert table.snapshot().version == 3
    assert len(list(folder.rglob("*.parquet"))) == 7


def test_tables_that_track_rows_are_left_alone(lake: Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "tracked",
        location=str(tmp_path / "tracked"),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.enableRowTracking": "true"},
    )
    with pytest.raises(UnsupportedFeatureError, match="tracks rows"):
        table.optimize()
