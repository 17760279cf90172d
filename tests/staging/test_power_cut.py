"""Data files are on the disk, names included, before the commit that adds them."""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.lake import Lake
from deltalakedb.reading.deletion_vectors import write_vectors
from deltalakedb.staging.stage import Sinks
from deltalakedb.transaction.committer import Committer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc names what is synced")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The files and folders that were synced."""
    paths: set[Path] = set()
    fsync = os.fsync

    def recorded(handle: int) -> None:
        paths.add(Path(f"/proc/self/fd/{handle}").readlink())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    return paths


def test_files_and_folders_are_synced_before_the_commit(
    lake: Lake, tmp_path: Path, synced: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t"
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = lake.create_table("t", location=str(folder), schema=schema, partition_by=["day"])
    synced.clear()
    at_commit: set[Path] = set()
    commit = Committer.commit

    def watched(self: Committer, *arguments: object, **options: object) -> object:
        at_commit.update(synced)
        return commit(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "commit", watched)
    table.append(pa.table({"id": [1, 2, 3], "day": ["a", "b", "b"]}))
    files = sorted(folder.rglob("*.parquet"))
    assert len(files) == 2
    assert {*files, *(file.parent for file in files), folder} <= at_commit


def test_deletion_vectors_are_synced(tmp_path: Path, synced: set[Path]) -> None:
    _, key = write_vectors(Sinks(str(tmp_path / "t")), {"a.parquet": pa.array([1], pa.uint64())})
    assert {tmp_path / "t" / key, tmp_path / "t", tmp_path} <= synced
