"""Files that no version needs any more are deleted, and no others, on every engine."""

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.clock import SystemClock
from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    DataFileMissingError,
    MirrorError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import OpenLake
from support.progress_recorder import ProgressRecorder

HOUR = 3600
IDS = pa.schema([("id", pa.int64())])


@pytest.fixture
def lake(open_lake: OpenLake) -> Lake:
    """By the clock of the disk: files have its times."""
    return open_lake(clock=SystemClock())


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    """Three files, of which the last version has one."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    table = lake.create_table(
        "t", location=str(tmp_path / "t"), schema=schema, partition_by=["part"]
    )
    table.append(pa.table({"id": [1], "part": ["a b/c"]}))
    table.append(pa.table({"id": [2], "part": [None]}))
    table.overwrite(pa.table({"id": [3], "part": ["%"]}))
    return table


def data_files(table: Table) -> set[str]:
    folder = Path(table.location.removeprefix("file://"))
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "_delta_log" not in path.parts
    }


def age(table: Table, hours: float) -> None:
    """Let everything in the folder be older."""
    folder = Path(table.location.removeprefix("file://"))
    for path in folder.rglob("*"):
        if path.is_file():
            moment = path.stat().st_mtime - hours * HOUR
            os.utime(path, (moment, moment))


def test_within_the_retention_nothing_goes(table: Table) -> None:
    age(table, 24 * 8)
    before = data_files(table)
    assert table.vacuum().files == 0
    assert data_files(table) == before


def test_files_of_old_versions_and_of_failed_writes_go(table: Table) -> None:
    folder = Path(table.location.removeprefix("file://"))
    live = {"part=%25/" + path.name for path in folder.glob("part=%25/*")}
    assert len(live) == 1
    (folder / "part=x").mkdir()
    (folder / "part=x" / "left.parquet").write_bytes(b"leftover")
    (folder / "_notes").mkdir()
    (folder / "_notes" / "mine.txt").write_text("not a file of the table")
    age(table, 2)
    (folder / "part=x" / "new.parquet").write_bytes(b"of a write that is under way")
    planned = table.vacuum(retention_hours=1, allow_short_retention=True, dry_run=True)
    assert set(planned.paths) == {"part=x/left.parquet"}
    age(table, 2)
    planned = table.vacuum(retention_hours=0, allow_short_retention=True, dry_run=True)
    assert planned.files == len(planned.paths) == 4
    before = data_files(table)
    done = table.vacuum(retention_hours=0, allow_short_retention=True)
    assert done.files == 4
    assert data_files(table) == live | {"_notes/mine.txt"}
    assert len(before) == 6
    assert table.snapshot().to_arrow().to_pylist() == [{"id": 3, "part": "%"}]
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 0


def test_what_takes_long_is_told(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltalakedb.operations.vacuum._AT_ONCE", 1)
    planned = ProgressRecorder()
    table.vacuum(retention_hours=0, allow_short_retention=True, dry_run=True, progress=planned)
    assert [*planned.calls] == ["Listing needed files", "Listing files"]
    assert planned.calls["Listing needed files"] == [(1, 0)]
    assert [done for done, _ in planned.calls["Listing files"]][:3] == [1, 2, 3]
    recorder = ProgressRecorder()
    plain: list[tuple[int, int]] = []
    age(table, 2)
    table.vacuum(retention_hours=1, allow_short_retention=True, progress=recorder)
    assert [*recorder.calls] == [*planned.calls, "Deleting files"]
    age(table, 2)
    table.vacuum(
        retention_hours=0,
        allow_short_retention=True,
        progress=lambda *step: plain.append(step),
    )
    assert plain == [(1, 2), (2, 2)], "a plain function hears of deletions alone"


def test_files_that_a_version_within_the_retention_needs_stay(table: Table) -> None:
    age(table, 24 * 30)
    assert table.vacuum(retention_hours=1, allow_short_retention=True).files == 0
    assert table.snapshot(2).to_arrow().num_rows == 2


def test_files_that_expired_versions_removed_stay_within_the_retention(
    lake: Lake, table: Table, tmp_path: Path
) -> None:
    """The catalog forgets versions; whoever has begun to read one still needs its files."""
    age(table, 24 * 8)
    before = data_files(table)
    lake.mirror.run_once()
    done = lake.expire("t", older_than="0 days", archive=str(tmp_path / "archive"))
    assert done.versions
    assert table.vacuum().files == 0
    assert data_files(table) == before
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 2


def test_a_short_retention_has_to_be_allowed(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="168 hours"):
        table.vacuum(retention_hours=1)
    with pytest.raises(ConfigurationError, match="no time"):
        table.vacuum(retention_hours=-1, allow_short_retention=True)
    table.set_properties({"delta.deletedFileRetentionDuration": "interval 1 hour"})
    assert table.vacuum(retention_hours=1).files == 0


def test_deletion_vectors_stay_as_long_as_their_files(lake: Lake, tmp_path: Path) -> None:
    from dataclasses import replace

    from deltalakedb.actions import AddFile
    from deltalakedb.operations.append import remove_of, rows_of_files
    from deltalakedb.reading.deletion_vectors import write_vectors
    from deltalakedb.snapshot.listing import COLUMNS
    from deltalakedb.staging.stage import Sinks

    table = lake.create_table(
        "dv",
        location=str(tmp_path / "dv"),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.enableDeletionVectors": "true"},
    )
    table.append(pa.table({"id": [1, 2, 3]}))
    (row,) = rows_of_files(table.snapshot().files(columns=COLUMNS))
    vectors, key = write_vectors(Sinks(table.location), {row["path"]: pa.array([1], pa.int64())})
    add = AddFile(
        path=row["path"],
        partition_values={},
        size=row["size_bytes"],
        modification_time=row["modification_time"],
        data_change=True,
        stats=row["stats"].replace('"tightBounds":true', '"tightBounds":false'),
        deletion_vector=vectors[row["path"]],
    )
    table.commit([remove_of(row, 1), replace(add)], operation="DELETE")
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [1, 3]
    age(table, 1)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 0
    assert key in data_files(table)
    table.overwrite(pa.table({"id": [9]}))
    age(table, 1)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 2
    assert key not in data_files(table)


def test_files_of_a_commit_that_is_to_be_adopted_stay(
    lake: Lake, open_lake: OpenLake, tmp_path: Path
) -> None:
    place = tmp_path / "foreign"
    for _ in range(2):
        deltalake.write_deltalake(str(place), pa.table({"id": [1]}), mode="append")
    table = lake.import_table(str(place), name="foreign")
    deltalake.write_deltalake(str(place), pa.table({"id": [2]}), mode="append")
    age(table, 24 * 8)
    before = data_files(table)
    with pytest.raises(MirrorError, match="has a commit that this catalog has not written"):
        table.vacuum(retention_hours=0, allow_short_retention=True)
    assert data_files(table) == before
    lake.adopt("foreign")
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 0
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [1, 1, 2]
    # Nor while two commits claim one number.
    deltalake.write_deltalake(str(place), pa.table({"id": [3]}), mode="append")
    open_lake(on_drift="allow").table("foreign").append(pa.table({"id": [4]}))
    lake.mirror.run_once()
    age(table, 24 * 8)
    with pytest.raises(MirrorError, match="is not vacuumed"):
        table.vacuum(retention_hours=0, allow_short_retention=True)


def test_what_iceberg_keeps_beside_the_files_stays(lake: Lake, tmp_path: Path) -> None:
    def filled(name: str, properties: dict[str, str]) -> Table:
        ids = pa.schema([("id", pa.int64())])
        made = lake.create_table(
            name, location=str(tmp_path / name), schema=ids, properties=properties
        )
        made.append(pa.table({"id": [1]}))
        folder = tmp_path / name / "metadata"
        folder.mkdir()
        (folder / "00001.metadata.json").write_text("{}")
        age(made, 24 * 8)
        return made

    plain = filled("plain", {})
    assert plain.vacuum(retention_hours=0, allow_short_retention=True).files == 1
    both = filled("both", {"delta.universalFormat.enabledFormats": "iceberg"})
    assert both.vacuum(retention_hours=0, allow_short_retention=True).files == 0
    assert (tmp_path / "both" / "metadata" / "00001.metadata.json").exists()


@pytest.mark.parametrize("hours", [float("nan"), float("inf"), -1.0])
def test_hours_that_are_no_time(table: Table, hours: float) -> None:
    with pytest.raises(ConfigurationError, match=r"is no time|needs to be a number"):
        table.vacuum(retention_hours=hours, allow_short_retention=True)


def write_file(table: Table, key: str) -> Path:
    """A data file that no commit names yet."""
    path = Path(table.location.removeprefix("file://")) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [7], "part": ["a b/c"]}), path)
    return path


def add_line(path: str, file: Path) -> dict[str, Any]:
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": file.stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
        }
    }


@pytest.fixture
def plain(lake: Lake, tmp_path: Path) -> Table:
    """A table without partitions and rows."""
    return lake.create_table("plain", location=str(tmp_path / "p"), schema=IDS)


@pytest.mark.parametrize(
    "path",
    [
        *("sub//a.parquet", "./sub/a.parquet", "sub/./a.parquet", "sub/../sub/a.parquet"),
        *(
            "../p/sub/a.parquet",
            "sub%2Fa.parquet/",
            "%2e/sub/a.parquet",
            "sub/%2e%2e/sub/a.parquet",
        ),
        *("file:{root}/sub/a.parquet", "file://{root}/sub//a.parquet", "{root}/sub/a.parquet"),
        *("file://{link}/sub/a.parquet", "file://localhost{root}/sub/a.parquet", "s3:/b/a.parquet"),
    ],
)
def test_a_commit_is_refused_that_spells_a_file_ambiguously(
    plain: Table, tmp_path: Path, path: str
) -> None:
    """A vacuum would have taken the file for a leftover."""
    (tmp_path / "link").symlink_to(tmp_path / "p")
    file = write_file(plain, "sub/a.parquet")
    spelled = path.format(root=tmp_path / "p", link=tmp_path / "link")
    with pytest.raises(CommitRejectedError) as caught:
        plain.commit([add_line(spelled, file)])
    assert caught.value.rule == "data-path"
    assert all((caught.value.what, caught.value.why, caught.value.fix))


def test_one_file_is_not_added_under_two_spellings(plain: Table) -> None:
    file = write_file(plain, "sub/a b+c.parquet")
    plain.commit([add_line("sub/a%20b+c.parquet", file)])
    for other in ("sub/a b+c.parquet", "sub/a%20b%2Bc.parquet", "sub/a b%2Bc.parquet"):
        with pytest.raises(CommitRejectedError, match=r"live as 'sub/a%20b\+c\.parquet'"):
            plain.commit([add_line(other, file)])
    assert plain.snapshot().to_arrow().num_rows == 1


def test_what_an_imported_log_spells_oddly_stays(lake: Lake, tmp_path: Path) -> None:
    made = lake.create_table("made", location=str(tmp_path / "made"), schema=IDS)
    lake.mirror.run_once()
    lake.drop_table("made")
    folder = tmp_path / "made"
    (tmp_path / "link").symlink_to(folder)
    (folder / "alias").symlink_to("sub")
    odd = [
        *("sub//a.parquet", "./sub/b.parquet", "sub/./c.parquet", "alias/d.parquet"),
        *(f"file:{folder}/sub/e.parquet", f"{folder}/f.parquet"),
        *(f"file://{tmp_path}/link/sub/g.parquet", f"file://{folder}//sub/h%2Eparquet"),
    ]
    files = [write_file(made, f"{'' if n == 'f' else 'sub/'}{n}.parquet") for n in "abcdefgh"]
    lines = [json.dumps(add_line(path, file)) for path, file in zip(odd, files, strict=True)]
    (folder / "_delta_log" / f"{1:020}.json").write_text("\n".join(lines))
    table = lake.import_table(str(folder), "made")
    leftover = write_file(made, "sub/left.parquet")
    age(table, 24 * 8)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 1
    assert all(file.exists() for file in files)
    assert not leftover.exists()
    assert table.snapshot().to_arrow().num_rows == len(odd)
    assert lake.verify("made").ok
    table.overwrite(pa.table({"id": [9]}))
    age(table, 1)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == len(odd)
    assert not any(file.exists() for file in files)
    with pytest.raises(DataFileMissingError):
        table.restore(version=1)


def test_files_that_a_clone_needs_stay(lake: Lake, table: Table, tmp_path: Path) -> None:
    clone = lake.clone_table("t", str(tmp_path / "clone"), version=2)
    age(table, 24 * 8)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 0
    assert sorted(clone.snapshot().to_arrow()["id"].to_pylist()) == [1, 2]
    again = lake.clone_table("clone", str(tmp_path / "again"))
    lake.drop_table("clone", force=True)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 0
    assert sorted(again.snapshot().to_arrow()["id"].to_pylist()) == [1, 2]
    lake.drop_table("again", force=True)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 2


def test_files_of_a_table_inside_another_stay(lake: Lake, table: Table, tmp_path: Path) -> None:
    inner = lake.create_table("inner", location=str(tmp_path / "t" / "inner"), schema=IDS)
    inner.append(pa.table({"id": [1]}))
    age(table, 24 * 8)
    assert table.vacuum(retention_hours=0, allow_short_retention=True).files == 2
    assert inner.snapshot().to_arrow().num_rows == 1
