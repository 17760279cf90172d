"""The folders in which Spark gets lists of files: none outlives its process for long."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.spark.io.file_list import spark_file_list
from deltalakedb.storage.locations import FilePlaces

PLACES = FilePlaces("file:///t")
FILES = pa.table(
    {"path": ["a.parquet"], "size_bytes": [1], "modification_time": pa.array([1], pa.int64())}
)
# Makes a list, prints its folder, and goes on when it is told to.
HOLDING = """
import sys
import pyarrow as pa
from deltalakedb.spark.io.file_list import spark_file_list
from deltalakedb.storage.locations import FilePlaces
files = pa.table({"path": ["a"], "size_bytes": [1], "modification_time": pa.array([1], pa.int64())})
with spark_file_list(FilePlaces("file:///t"), files) as folder:
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, in this process and in those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def start() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip().removeprefix("file://"))


def test_the_folder_of_a_killed_process_goes_with_the_next_list(parent: Path) -> None:
    (killed, left), (alive, used) = start(), start()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.exists()
    with spark_file_list(PLACES, FILES) as folder:
        mine = Path(folder.removeprefix("file://"))
        assert sorted(parent.iterdir()) == sorted([used, mine])
        assert (used / "_spark_metadata" / "0").exists()
    alive.communicate("\n")
    assert alive.returncode == 0
    assert list(parent.iterdir()) == []


def test_rows_that_an_earlier_release_left_in_a_folder_are_not_deleted(parent: Path) -> None:
    (parent / "deltalakedb-scan-abc").mkdir()
    rows = parent / "deltalakedb-scan-abc" / "part-0.parquet"
    rows.touch()
    with spark_file_list(PLACES, FILES):
        assert rows.exists()
    assert rows.exists()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_anew(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    real = tempfile.mkdtemp

    def mkdtemp(prefix: str) -> str:
        made.append(Path(real(prefix=prefix)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with spark_file_list(PLACES, FILES) as folder:
        assert folder == made[1].as_uri()
    assert list(parent.iterdir()) == []


def test_an_error_of_the_caller_is_raised_and_leaves_nothing(parent: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="no such"),
        spark_file_list(PLACES, FILES),
    ):
        raise FileNotFoundError("no such")
    assert list(parent.iterdir()) == []
