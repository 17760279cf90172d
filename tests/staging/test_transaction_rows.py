"""Several changes of one table in a transaction follow one another, and become one commit."""

# ruff: noqa: PT012 - a transaction raises where its block ends

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.actions import AddFile, CdcFile, RemoveFile
from deltalakedb.errors import (
    ConcurrentAppendError,
    ConfigurationError,
    ConstraintViolatedError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])


@pytest.fixture
def engine() -> Engine:
    """What is staged is the same, whichever engine keeps the log."""
    return "sqlite"


def rows(*ids: int, part: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "part": [part] * len(ids)}, schema=SCHEMA)


def make(lake: Lake, folder: Path, **properties: str) -> Table:
    """A table with 1, 2, 3 in one file of part a, and 4 in part b."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    table = lake.create_table(
        "t",
        location=str(folder / "t"),
        schema=SCHEMA,
        partition_by=["part"],
        properties=named,
    )
    table.append(rows(1, 2, 3))
    table.append(rows(4, part="b"))
    return table


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    return make(lake, tmp_path)


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def orphans(table: Table) -> set[str]:
    """Data files on the disk that no version ever had."""
    folder = Path(table.location.removeprefix("file://"))
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}
    known = {
        action.path
        for version in range(table.snapshot().version + 1)
        for action in table.actions(version)
        if isinstance(action, (AddFile, CdcFile))
    }
    return {path for path in there if not path.startswith("_delta_log")} - known


def metrics(table: Table) -> dict[str, str]:
    info = table.history(1)[0].commit_info
    assert info is not None
    return dict(info.operation_metrics or {})


def test_an_overwrite_replaces_what_was_appended_before(lake: Lake, table: Table) -> None:
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(10, 11))
        part.overwrite(rows(20))
        assert part.snapshot().version == 2
        assert part.snapshot().num_files == 2
    assert ids(table) == [20]
    assert orphans(table) == set()
    assert tx.results == {"t": 3}
    assert metrics(table) == {
        "numFiles": "1",
        "numOutputRows": "1",
        "numOutputBytes": metrics(table)["numOutputBytes"],
        "numRemovedFiles": "2",
    }


def test_rows_that_follow_an_overwrite_stay(lake: Lake, table: Table) -> None:
    with lake.transaction() as tx:
        tx.table("t").overwrite(rows(20), where="part = 'a'")
        tx.table("t").append(rows(21))
        tx.table("t").append(rows(22, part="b"))
    assert ids(table) == [4, 20, 21, 22]
    assert metrics(table)["numOutputRows"] == "3"
    info = table.history(1)[0].commit_info
    assert info is not None
    assert (info.operation_parameters or {})["mode"] == "Overwrite"


@pytest.mark.parametrize("where", ["part = 'a'", "id < 100 AND part = 'a'"], ids=["files", "rows"])
def test_a_condition_finds_rows_that_were_appended_before(
    lake: Lake, table: Table, where: str
) -> None:
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(10))
        part.append(rows(11, part="b"))
        part.overwrite(rows(20), where=where)
    assert ids(table) == [4, 11, 20]
    assert orphans(table) == set()


def test_part_of_what_was_appended_is_replaced(lake: Lake, table: Table) -> None:
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(10, 11, 12))
        part.overwrite(rows(11), where="id = 11 OR id = 2")
    assert ids(table) == [1, 3, 4, 10, 11, 12]
    assert orphans(table) == set()
    removed = [one for one in table.actions(3) if isinstance(one, RemoveFile)]
    assert len(removed) == 1


def test_overwrites_of_rows_in_one_file_add_up(lake: Lake, table: Table) -> None:
    with lake.transaction() as tx:
        part = tx.table("t")
        part.overwrite(rows(1), where="id = 1")
        part.overwrite(rows(2, 2), where="id = 2")
        part.overwrite(rows(1, 1, 1), where="id = 1")
    assert ids(table) == [1, 1, 1, 2, 2, 3, 4]
    assert orphans(table) == set()
    with lake.transaction() as tx:
        tx.table("t").overwrite(rows(5), where="part = 'a'")
        tx.table("t").overwrite(rows(6), where="part = 'a'")
        tx.table("t").overwrite(rows(7, part="b"), dynamic=True)
        tx.table("t").overwrite(rows(8, part="b"), dynamic=True)
    assert ids(table) == [6, 8]
    assert orphans(table) == set()


def test_columns_follow_one_another(lake: Lake, table: Table) -> None:
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(5).append_column("x", pa.array([1])), merge_schema=True)
        part.append(rows(6).append_column("y", pa.array([2])), merge_schema=True)
        part.append(rows(7))
    found = {row["id"]: (row["x"], row["y"]) for row in table.snapshot().to_arrow().to_pylist()}
    assert (found[5], found[6], found[7], found[1]) == (
        (1, None),
        (None, 2),
        (None, None),
        (None, None),
    )
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(8))
        part.overwrite(
            pa.table({"name": ["n"], "day": ["d"]}), overwrite_schema=True, partition_by=["day"]
        )
        part.append(pa.table({"name": ["m"], "day": ["d"]}))
        with pytest.raises(ConfigurationError, match="dynamic overwrite of partitions"):
            part.overwrite(rows(1), overwrite_schema=True, dynamic=True)
    assert sorted(table.snapshot().to_arrow()["name"].to_pylist()) == ["m", "n"]
    assert table.snapshot().partition_columns == ("day",)
    assert orphans(table) == set()


def test_actions_of_the_user_are_replaced_too(lake: Lake, table: Table) -> None:
    """Their files are not ours to delete."""
    folder = Path(table.location.removeprefix("file://"))
    (first,) = table.snapshot().files(where="part = 'b'").to_pylist()
    (folder / "mine.parquet").write_bytes((folder / first["path"]).read_bytes())
    added: dict[str, Any] = {
        "path": "mine.parquet",
        "partitionValues": {"part": "b"},
        "size": first["size_bytes"],
        "modificationTime": 1,
        "dataChange": True,
        "stats": first["stats"],
    }
    many = [{"add": {**added, "path": f"mine-{n}.parquet"}} for n in range(30)]
    with lake.transaction() as tx:
        tx.table("t").add_actions([{"add": added}, *many])
        # And one that is live already gets other statistics.
        tx.table("t").add_actions([{"add": {**added, "path": first["path"], "stats": None}}])
        tx.table("t").overwrite(rows(20))
    assert ids(table) == [20]
    assert (folder / "mine.parquet").exists()


def test_a_refused_change_leaves_the_others(lake: Lake, table: Table) -> None:
    table.set_properties({"delta.appendOnly": "false"})
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(10), user_metadata="first")
        with pytest.raises(ConstraintViolatedError):
            part.overwrite(rows(99), where="id < 50")
        part.overwrite(rows(11), where="id BETWEEN 10 AND 20", user_metadata="second")
    assert ids(table) == [1, 2, 3, 4, 11]
    assert orphans(table) == set()
    info = table.history(1)[0].commit_info
    assert info is not None
    assert info.fields["userMetadata"] == "second"


def test_nothing_is_left_of_a_transaction_that_fails(lake: Lake, table: Table) -> None:
    with pytest.raises(ConcurrentAppendError), lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(10, 11))
        part.overwrite(rows(12), where="id > 2")
        table.append(rows(50))
    assert ids(table) == [1, 2, 3, 4, 50]
    assert orphans(table) == set()


# --- a change data feed --------------------------------------------------------------------


def told(table: Table) -> list[CdcFile]:
    return [one for one in table.actions(table.snapshot().version) if isinstance(one, CdcFile)]


def test_a_feed_tells_all_or_it_is_refused(lake: Lake, tmp_path: Path) -> None:
    table = make(lake, tmp_path, delta_enableChangeDataFeed="true")
    with lake.transaction() as tx:
        part = tx.table("t")
        part.append(rows(10))
        with pytest.raises(UnsupportedFeatureError, match="cannot be one commit"):
            part.overwrite(rows(2), where="id = 2")
    assert ids(table) == [1, 2, 3, 4, 10]
    assert orphans(table) == set()
    with lake.transaction() as tx:
        part = tx.table("t")
        part.overwrite(rows(2), where="id = 2")
        with pytest.raises(UnsupportedFeatureError, match="cannot be one commit"):
            part.append(rows(11))
        with pytest.raises(UnsupportedFeatureError, match="cannot be one commit"):
            part.overwrite(rows(3), where="id = 3")
    assert len(told(table)) == 1
    # All rows are replaced: their files tell it, and nothing is left of the change data.
    with lake.transaction() as tx:
        part = tx.table("t")
        part.overwrite(rows(2), where="id = 2")
        part.overwrite(rows(30))
        part.append(rows(31))
    assert ids(table) == [30, 31]
    assert told(table) == []
    assert orphans(table) == set()
