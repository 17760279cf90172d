"""The demo is told as it stands: what it prints, it has checked."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltalakedb.demo import main
from deltalakedb.demo.story import tell
from deltalakedb.demo.telling import Telling
from deltalakedb.errors import ConfigurationError

CLAIMS = (
    "Spark writes two tables",
    "One transaction changes both tables",
    "was put on top of it as 4",
    "ConcurrentAppendError: Conflict with version 5",
    "got SIGKILL",
    "published the rest up to version 125",
    "the same as the catalog has",
    "http://127.0.0.1:",
    "deltalakedb serve   --catalog sqlite:///",
)


def test_every_chapter_holds(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telling = Telling()
    tell(telling, tmp_path, session=spark)
    told = capsys.readouterr().out
    assert telling.failed == 0, told
    assert [claim for claim in CLAIMS if claim not in told] == []


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not an empty folder"):
        main(folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_did_not_hold_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    telling = Telling()
    telling.check("the earth is flat", ok=False)
    assert telling.failed == 1
    assert "NOT TRUE: the earth is flat" in capsys.readouterr().out


@pytest.mark.soak
def test_the_command_tells_it_with_a_spark_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deltalakedb", "demo", "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [claim for claim in CLAIMS if claim not in done.stdout] == []
