"""Shallow clones: another table of the same files, on every engine."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import ConfigurationError, TableExistsError, VersionNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.operations.alter import ROW_COLUMNS
from deltalakedb.table import Table


def let_pass(clock: ManualClock) -> None:
    """Long after everything that the disk has."""
    clock.advance(time.time_ns() // 1_000_000 + 3_600_000 - clock.now_ms())


@pytest.fixture
def source(lake: Lake, tmp_path: Path) -> Table:
    """Two files in partitions with awkward names, in a folder with one too."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    table = lake.create_table(
        "source",
        location=str(tmp_path / "a source%"),
        schema=schema,
        partition_by=["part"],
        properties={"owner": "me"},
    )
    table.append(pa.table({"id": [1, 2], "part": ["a/b", "ü %"]}))
    table.append(pa.table({"id": [3], "part": ["a/b"]}))
    return table


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow()["id"].to_pylist())


def test_a_clone_goes_its_own_way(lake: Lake, source: Table, tmp_path: Path) -> None:
    made = lake.clone_table("source", str(tmp_path / "clone"), properties={"more": "yes"})
    assert (made.name, made.version, ids(made)) == ("clone", 0, [1, 2, 3])
    snapshot = made.snapshot()
    assert snapshot.properties["owner"] == "me"
    assert snapshot.properties["more"] == "yes"
    assert snapshot.metadata.id != source.snapshot().metadata.id
    assert snapshot.protocol == source.snapshot().protocol
    info = made.history(1)[0].commit_info
    assert info is not None
    assert info.operation == "CLONE"
    assert info.operation_parameters == {"source": "source", "sourceVersion": "2"}
    told = info.operation_metrics or {}
    assert (told["sourceNumOfFiles"], told["numCopiedFiles"]) == ("3", "0")
    assert told["sourceTableSize"] == str(source.snapshot().size_bytes)
    assert not list((tmp_path / "clone").rglob("*.parquet"))
    made.append(pa.table({"id": [4], "part": ["b"]}))
    made.overwrite(pa.table({"id": [5], "part": ["a/b"]}), where="part = 'a/b'")
    source.append(pa.table({"id": [6], "part": ["b"]}))
    assert (ids(made), ids(source)) == ([2, 4, 5], [1, 2, 3, 6])
    made.optimize()
    made.restore(version=0)
    assert ids(made) == [1, 2, 3]


def test_a_version_is_cloned_and_a_clone_is_too(lake: Lake, source: Table, tmp_path: Path) -> None:
    then = source.snapshot(1).timestamp
    first = lake.clone_table("source", str(tmp_path / "one"), "first", version=1)
    assert (first.name, ids(first)) == ("first", [1, 2])
    assert ids(lake.clone_table("source", str(tmp_path / "two"), timestamp=then)) == [1, 2]
    first.append(pa.table({"id": [9], "part": ["z"]}))
    again = lake.clone_table("first", str(tmp_path / "three"))
    assert ids(again) == [1, 2, 9]
    for wrong in ({"version": 17}, {"timestamp": "1999-01-01"}):
        with pytest.raises(VersionNotFoundError):
            lake.clone_table("source", str(tmp_path / "four"), **wrong)
    assert not (tmp_path / "four").exists()


def test_vacuum_of_a_clone_leaves_the_source_alone(
    lake: Lake, source: Table, tmp_path: Path, clock: ManualClock
) -> None:
    made = lake.clone_table("source", str(tmp_path / "clone"))
    made.append(pa.table({"id": [4], "part": ["a/b"]}))
    made.overwrite(pa.table({"id": [5], "part": ["b"]}))
    before = sorted((tmp_path / "a source%").rglob("*"))
    let_pass(clock)
    done = made.vacuum(retention_hours=0, allow_short_retention=True)
    assert sorted((tmp_path / "a source%").rglob("*")) == before
    assert ids(source) == [1, 2, 3]
    assert done.files == 1
    assert ids(made) == [5]


def test_files_that_come_home_through_a_clone_stay(
    lake: Lake, source: Table, tmp_path: Path, clock: ManualClock
) -> None:
    lake.clone_table("source", str(tmp_path / "clone"))
    with pytest.raises(TableExistsError, match="not empty"):
        lake.clone_table("clone", source.location, replace=True)
    source.overwrite(source.snapshot().to_arrow().slice(0, 0))
    lake.clone_table("clone", source.location, replace=True, properties={"owner": "you"})
    source.refresh()
    assert ids(source) == [1, 2, 3]
    assert source.snapshot().properties["owner"] == "you"
    let_pass(clock)
    assert source.vacuum(retention_hours=0, allow_short_retention=True).files == 0
    assert ids(source) == [1, 2, 3]


def test_what_cannot_be_cloned_is_told(lake: Lake, source: Table, tmp_path: Path) -> None:
    for inside in (f"{source.location}/clone", str(tmp_path)):
        with pytest.raises(ConfigurationError, match="vacuum"):
            lake.clone_table("source", inside, "clone")
    with pytest.raises(ConfigurationError, match=r"columnMapping\.mode"):
        lake.clone_table(
            "source", str(tmp_path / "c"), properties={"delta.columnMapping.mode": "name"}
        )
    lake.clone_table("source", str(tmp_path / "c"))
    for name, location in (("c", "d"), ("other", "c")):
        with pytest.raises(TableExistsError):
            lake.clone_table("source", str(tmp_path / location), name)


def test_rows_of_a_clone_have_ids_of_their_own(lake: Lake, tmp_path: Path) -> None:
    tracked = lake.create_table(
        "tracked",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.enableRowTracking": "true"},
    )
    tracked.append(pa.table({"id": [1, 2]}))
    tracked.append(pa.table({"id": [3]}))
    made = lake.clone_table("tracked", str(tmp_path / "c"))
    files = made.snapshot().files(columns=["base_row_id", "default_row_commit_version"])
    assert sorted(files["base_row_id"].to_pylist()) in ([0, 1], [0, 2])
    assert set(files["default_row_commit_version"].to_pylist()) == {0}
    assert made.snapshot().domain_metadata["delta.rowTracking"] == '{"rowIdHighWaterMark":2}'
    # Ids that others have written into files of the source are no ids of the clone.
    columns = [
        {table.snapshot().properties[name] for name in ROW_COLUMNS} for table in (tracked, made)
    ]
    assert not columns[0] & columns[1]
