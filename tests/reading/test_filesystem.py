"""Files of a table are found and read wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from obstore.store import LocalStore

from deltalakedb.actions.datatypes import LONG, STRING
from deltalakedb.errors import ConfigurationError, DataFileError, DataFileMissingError
from deltalakedb.reading.dataset import SnapshotRows
from deltalakedb.reading.filesystem import RangeReader, TableFiles
from reading.table_files import Making, column

ODD = "x=A%2FA b/ü#?.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ODD).parent.mkdir()
    (tmp_path / ODD).write_bytes(b"0123456789")
    return tmp_path


def as_bucket(files: TableFiles, folder: Path) -> TableFiles:
    """Put a folder where the bucket would be; the code path is that of an object store."""
    files._stores["s3://bucket"] = LocalStore(folder)
    return files


def every_way(folder: Path) -> dict[str, tuple[TableFiles, str]]:
    uri = folder.as_uri()
    path = quote(ODD)
    elsewhere = TableFiles("/elsewhere", None, [uri])
    return {
        "relative": (TableFiles(uri), path),
        "plain location": (TableFiles(str(folder)), path),
        "slash at the end": (TableFiles(f"{uri}/"), path),
        "absolute": (elsewhere, f"{uri}/{path}"),
        "absolute, one slash": (elsewhere, f"file:{folder}/{path}"),
        "absolute, no scheme": (elsewhere, f"{folder}/{path}"),
        "object store": (as_bucket(TableFiles("s3://bucket"), folder), path),
        "object store, s3a": (as_bucket(TableFiles("s3a://bucket"), folder), path),
        "object store, absolute": (
            as_bucket(TableFiles("s3://other/table", None, ["s3://bucket"]), folder),
            f"s3://bucket/{path}",
        ),
    }


WAYS = list(every_way(Path("/")))


@pytest.mark.parametrize("way", WAYS)
def test_a_path_of_the_log_is_decoded_once(way: str, folder: Path) -> None:
    files, path = every_way(folder)[way]
    assert files.read_range(path, 2, 3) == b"234"
    assert files.read_range(path, 8, 5) == b"89"
    assert files.read_range(path, 20, 5) == b""


@pytest.mark.parametrize("way", ["relative", "object store"])
def test_a_missing_file_is_named(way: str, folder: Path) -> None:
    files, _ = every_way(folder)[way]
    with pytest.raises(DataFileMissingError, match=r"is missing: no/such\.parquet") as caught:
        files.open("no/such.parquet")
    assert files.location in str(caught.value)


def test_a_prefix_of_a_bucket_is_part_of_the_key(folder: Path) -> None:
    files = as_bucket(TableFiles("s3://bucket/x=A%2FA b"), folder)
    assert files.read_range(quote("ü#?.bin"), 0, 2) == b"01"


def test_a_table_in_an_object_store_reads_as_on_a_disk(tmp_path: Path) -> None:
    made = Making(tmp_path)
    made.write(pa.table({"a": range(1000), "b": ["x"] * 1000}), row_group_size=100)
    local = made.open(column("a", LONG), column("b", STRING))
    files = as_bucket(TableFiles("s3://bucket"), tmp_path)
    remote = SnapshotRows(replace(local._layout, files=files), local._files)
    assert remote.to_table() == local.to_table()
    assert remote.count_rows() == 1000


def test_what_was_prefetched_is_not_asked_for_again(folder: Path) -> None:
    reader = RangeReader(LocalStore(folder), ODD)
    reader.prefetch([(2, 3), (6, 2)])
    (folder / ODD).write_bytes(b"changed...")
    for start, length, wanted in [(2, 3, b"234"), (3, 1, b"3"), (6, 2, b"67"), (0, 3, b"cha")]:
        reader.seek(start)
        assert reader.read(length) == wanted


SECRETS = {
    "aws_access_key_id": "AKIAVERYSECRET",
    "aws_secret_access_key": "verysecret/and+more",
    "aws_region": "nowhere",
    "aws_endpoint_url": "http://127.0.0.1:1",
    "allow_http": "true",
    "timeout": "1s",
}


def test_no_secret_is_in_an_error(folder: Path) -> None:
    files = TableFiles("s3://bucket/t", SECRETS)
    text = "GET ?sig=abc denied for verysecret/and+more, verysecret%2Fand%2Bmore in nowhere"
    failed = files.failed("a.parquet", OSError(text))
    shown = f"{failed} {failed!r} {files!r}"
    assert "verysecret" not in shown
    assert "sig=abc" not in shown
    assert "nowhere" in shown


def test_a_failure_of_the_disk_is_an_error_of_the_file(folder: Path) -> None:
    (folder / "x=A").mkdir()
    with pytest.raises(DataFileError, match="Cannot read x%3DA of the table"):
        TableFiles(str(folder)).open("x%3DA")


def test_an_unknown_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="zz://bucket"):
        TableFiles("zz://bucket/t").open("a.parquet")
