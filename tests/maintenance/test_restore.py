"""An earlier version comes back as a new one, on every engine."""

from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.errors import ConfigurationError, DataFileMissingError, VersionNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.maintenance import restore
from deltalakedb.table import Table


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    """Version 1 has 1 and 2, version 2 also 3, version 3 only 4 and a new column."""
    schema = pa.schema([("id", pa.int64())])
    table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3]}))
    table.overwrite(pa.table({"id": [4], "word": ["x"]}), merge_schema=True)
    return table


def ids(table: Table, version: int | None = None) -> list[int]:
    return sorted(table.snapshot(version).to_arrow()["id"].to_pylist())


def test_rows_and_columns_come_back_and_history_stays(table: Table) -> None:
    done = restore(table, version=2)
    assert (done.version, done.restored, done.files_restored, done.files_removed) == (4, 2, 2, 1)
    assert ids(table) == [1, 2, 3]
    assert table.snapshot().schema.names == ("id",)
    assert [ids(table, version) for version in range(1, 4)] == [[1, 2], [1, 2, 3], [4]]
    assert restore(table, version=3).version == 5
    assert table.snapshot().to_arrow().to_pylist() == [{"id": 4, "word": "x"}]
    assert table.history(1)[0].commit_info.operation == "RESTORE"  # type: ignore[union-attr]
    # To where it is already: nothing to do, and no version.
    assert restore(table, version=5).version is None
    assert restore(table, timestamp=table.snapshot(1).timestamp).restored == 1
    assert ids(table) == [1, 2]


def test_files_that_are_gone_are_told_before_anything_happens(table: Table) -> None:
    for file in Path(table.location.removeprefix("file://")).glob("*.parquet"):
        if not table.snapshot().has_file(file.name):
            file.unlink()
            break
    with pytest.raises(DataFileMissingError, match="cannot be restored to version 2"):
        restore(table, version=2)
    assert table.snapshot().version == 3


def test_which_version_is_to_be_said(table: Table) -> None:
    for wrong in ({}, {"version": 1, "timestamp": "2026-01-01"}):
        with pytest.raises(ConfigurationError):
            restore(table, **wrong)  # type: ignore[arg-type]
    with pytest.raises(VersionNotFoundError):
        restore(table, version=17)
