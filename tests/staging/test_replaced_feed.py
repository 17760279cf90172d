"""Rows are replaced in files that keep others, and the change data feed says so."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.actions import CdcFile
from deltalakedb.actions.partition import decode_path
from deltalakedb.errors import ConstraintViolatedError
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table


@pytest.fixture
def engine() -> Engine:
    """What is staged is the same, whichever engine keeps the log."""
    return "sqlite"


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    """One file with 0 to 4 of part a, one with 5 of b, one with 10 of a."""
    table = lake.create_table(
        "t",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64()), ("part", pa.string())]),
        partition_by=["part"],
        properties={"delta.enableChangeDataFeed": "true"},
    )
    table.append(pa.table({"id": [*range(5), 5], "part": ["a"] * 5 + ["b"]}))
    table.append(pa.table({"id": [10], "part": ["a"]}))
    return table


def told(table: Table, version: int) -> list[tuple[str, int, str]]:
    """The change data of a version: what, and which row."""
    found: list[tuple[str, int, str]] = []
    for action in table.actions(version):
        if isinstance(action, CdcFile):
            assert action.path.startswith("_change_data/")
            file = Path(table.location.removeprefix("file://")) / decode_path(action.path)
            rows: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
            part = str(action.partition_values["part"])
            found += [(row["_change_type"], row["id"], part) for row in rows]
    return sorted(found)


def files(table: Table) -> int:
    folder = Path(table.location.removeprefix("file://"))
    return len(list(folder.rglob("*.parquet")))


def test_part_of_a_file_is_replaced(table: Table) -> None:
    table.overwrite(pa.table({"id": [4, 12], "part": ["a", "c"]}), where="id > 3")
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4, 12]
    # Of all files, also of those that go as a whole: readers look at nothing else.
    assert told(table, 3) == [
        ("delete", 4, "a"),
        ("delete", 5, "b"),
        ("delete", 10, "a"),
        ("insert", 4, "a"),
        ("insert", 12, "c"),
    ]
    info = table.history(1)[0].commit_info
    assert info is not None
    assert (info.operation_metrics or {})["numAddedChangeFiles"] == "3"


def test_nothing_takes_the_place_of_rows(table: Table) -> None:
    table.overwrite(table.snapshot().to_arrow().slice(0, 0), where="id = 2")
    assert told(table, 3) == [("delete", 2, "a")]


def test_whole_files_need_no_change_data(table: Table) -> None:
    before = files(table)
    table.overwrite(pa.table({"id": [11], "part": ["a"]}), where="id >= 5")
    assert told(table, 3) == []
    # What was begun for the feed is gone again.
    assert files(table) == before + 1


def test_nothing_is_left_of_a_write_that_is_refused(table: Table) -> None:
    before = files(table)
    with pytest.raises(ConstraintViolatedError, match="overwrite where"):
        table.overwrite(pa.table({"id": [1], "part": ["a"]}), where="id > 3")
    assert files(table) == before
