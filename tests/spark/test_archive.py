"""Spark's executors write an archive: the same files as this process, and the same way back."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.lake import Lake
from retention.test_expire import aged

from support.catalog_rows import all_rows

pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


def archived(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.parquet")}


def test_both_ways_make_the_same_archive(
    lake: Lake, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.retention.archive._MAX_ROWS", 5)
    monkeypatch.setattr("deltalakedb.store.retention._PAGE", 2)
    table = aged(lake)
    before = all_rows(lake, table)
    here, there = tmp_path / "here", tmp_path / "there"
    expected = lake.expire(table.name, older_than="2 days", archive=str(here))
    left = all_rows(lake, table)
    lake.restore_expired(table.name, str(here))
    assert all_rows(lake, table) == before
    # An archive that cannot be written leaves the catalog as it was.
    there.write_text("no folder")
    with pytest.raises(DeltaLakeDbError):
        lake.expire(table.name, older_than="2 days", archive=str(there), spark=spark)
    assert all_rows(lake, table) == before
    there.unlink()
    found = lake.expire(table.name, older_than="2 days", archive=str(there), spark=spark)
    assert (found.versions, found.rows) == (expected.versions, expected.rows)
    assert len(archived(there)) > len({name.partition("-")[0] for name in archived(there)})
    assert archived(there) == archived(here)
    assert all_rows(lake, table) == left
    shutil.rmtree(here)
    lake.restore_expired(table.name, str(there))
    assert all_rows(lake, table) == before


def test_what_cannot_be_reached_is_refused(lake: Lake, spark: SparkSession) -> None:
    table = aged(lake)
    with pytest.raises(ConfigurationError, match="to be a Spark session"):
        lake.expire(table.name, older_than="2 days", archive="memory:///a", spark="local")
    with pytest.raises(ConfigurationError, match="is not supported"):
        lake.expire(table.name, older_than="2 days", archive="memory:///a", spark=spark)
