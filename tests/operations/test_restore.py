"""An earlier version comes back as a new one, on every engine."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.errors import ConfigurationError, DataFileMissingError, VersionNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.operations.append import add_of, remove_of, rows_of_files
from deltalakedb.reading.deletion_vectors import write_vectors
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.staging.stage import Sinks
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
    done = table.restore(version=2)
    assert (done.version, done.restored, done.files_restored, done.files_removed) == (4, 2, 2, 1)
    assert ids(table) == [1, 2, 3]
    assert table.snapshot().schema.names == ("id",)
    assert [ids(table, version) for version in range(1, 4)] == [[1, 2], [1, 2, 3], [4]]
    assert table.restore(version=3).version == 5
    assert table.snapshot().to_arrow().to_pylist() == [{"id": 4, "word": "x"}]
    assert table.history(1)[0].commit_info.operation == "RESTORE"  # type: ignore[union-attr]
    # To where it is already: nothing to do, and no version.
    assert table.restore(version=5).version is None
    assert table.restore(timestamp=table.snapshot(1).timestamp).restored == 1
    assert ids(table) == [1, 2]


def test_files_that_are_gone_are_told_before_anything_happens(table: Table) -> None:
    for file in Path(table.location.removeprefix("file://")).glob("*.parquet"):
        if not table.snapshot().has_file(file.name):
            file.unlink()
            break
    with pytest.raises(DataFileMissingError, match="cannot be restored to version 2"):
        table.restore(version=2)
    assert table.snapshot().version == 3


def test_which_version_is_to_be_said(table: Table) -> None:
    for wrong in ({}, {"version": 1, "timestamp": "2026-01-01"}):
        with pytest.raises(ConfigurationError):
            table.restore(**wrong)  # type: ignore[arg-type]
    with pytest.raises(VersionNotFoundError):
        table.restore(version=17)


def test_deletion_vectors_that_are_gone_are_told_before_anything_happens(
    lake: Lake, tmp_path: Path
) -> None:
    """The file itself is still there, because later versions have it too."""
    table = lake.create_table(
        "dv",
        location=str(tmp_path / "dv"),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.enableDeletionVectors": "true"},
    )
    table.append(pa.table({"id": [1, 2, 3, 4]}))
    first = hide_rows(table, [0])
    hide_rows(table, [0, 1])
    assert ids(table) == [3, 4]
    assert ids(table, 2) == [2, 3, 4]
    (tmp_path / "dv" / first).unlink()
    with pytest.raises(DataFileMissingError, match=r"version 2: 1 of its files.*deletion_vector"):
        table.restore(version=2)
    assert ids(table) == [3, 4]
    assert table.restore(version=1).version == 4
    assert ids(table) == [1, 2, 3, 4]


def test_files_of_a_clone_that_are_gone_are_told_too(lake: Lake, tmp_path: Path) -> None:
    source = lake.create_table(
        "source", location=str(tmp_path / "a b%"), schema=pa.schema([("id", pa.int64())])
    )
    source.append(pa.table({"id": [1]}))
    lake.clone_table("source", str(tmp_path / "clone"), name="clone")
    clone = lake.table("clone")
    clone.overwrite(pa.table({"id": [2]}))
    assert clone.restore(version=0).version == 2
    assert ids(clone) == [1]
    clone.overwrite(pa.table({"id": [3]}))
    for file in (tmp_path / "a b%").glob("*.parquet"):
        file.unlink()
    with pytest.raises(DataFileMissingError, match="cannot be restored to version 0"):
        clone.restore(version=0)
    assert ids(clone) == [3]


def hide_rows(table: Table, numbers: list[int]) -> str:
    """Mark rows of the only file as deleted; the name of the file that says so."""
    (row,) = rows_of_files(table.snapshot().files(columns=COLUMNS))
    vectors, key = write_vectors(
        Sinks(table.location), {row["path"]: pa.array(numbers, pa.int64())}
    )
    wide = row["stats"].replace('"tightBounds":true', '"tightBounds":false')
    add = replace(add_of(row), stats=wide, deletion_vector=vectors[row["path"]])
    table.commit([remove_of(row, table.now_ms()), add], operation="DELETE")
    return key


@pytest.mark.parametrize(("step", "expected"), [(1, 200), (-1, 100)])
def test_values_of_identity_columns_are_not_given_out_again(
    lake: Lake, tmp_path: Path, step: int, expected: int
) -> None:
    def schema(mark: int) -> str:
        told = {
            "delta.identity.start": 1,
            "delta.identity.step": step,
            "delta.identity.highWaterMark": mark,
            "delta.identity.allowExplicitInsert": True,
        }
        field = {"name": "id", "type": "long", "nullable": True, "metadata": told}
        return json.dumps({"type": "struct", "fields": [field]})

    table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema(100))
    after = replace(table.snapshot().metadata, schema_string=schema(200))
    table.commit([after], enforced={"identityColumns"})
    table.restore(version=0)
    (field,) = table.snapshot().schema.fields
    assert field.metadata["delta.identity.highWaterMark"] == expected
