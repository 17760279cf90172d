"""The demo runs as a whole, and every statement that it prints was checked."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltalakedb.demo import main, story
from deltalakedb.demo.report import Report
from deltalakedb.demo.story import run_demo
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake

CLAIMS = (
    "Spark writes two tables",
    "One transaction changes both tables",
    "was put on top of it as 4",
    "ConcurrentAppendError: Conflict with version 5",
    "got SIGKILL",
    "published the rest up to version 125",
    "the same as the catalog has",
    "http://127.0.0.1:",
    "-m deltalakedb serve --catalog",
    "make demo ARGS=--keep",
)


# A machine on which the worker takes longer to begin than the writer to write.
SLOW_WORKER = """
import sys, time
if "deltalakedb.demo.worker" in sys.orig_argv:
    time.sleep(1.5)
"""


def test_every_chapter_holds(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = Report()
    (tmp_path / "sitecustomize.py").write_text(SLOW_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    place = tmp_path / "a folder"
    place.mkdir()
    run_demo(report, place, session=spark)
    told = capsys.readouterr().out
    assert report.failed == 0, told
    assert [claim for claim in CLAIMS if claim not in told] == []
    # What it says in the end can be pasted, wherever one is and whatever is on the PATH.
    commands = [line for line in told.splitlines() if line.strip().startswith(sys.executable)]
    answers = {
        name: _pasted(line)
        for line in commands
        for name in ("tables", "history", "import deltalake")
        if name in line
    }
    assert "sales.daily" in answers["tables"]
    assert "WRITE" in answers["history"]
    assert "price" in answers["import deltalake"]
    assert len(commands) == 4


def _pasted(line: str) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd="/",
        env={"HOME": "/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_is_kept_until_somebody_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def look_and_interrupt() -> None:
        told = capsys.readouterr().out
        (address,) = re.findall(r"page is at (http://\S+) until you press Ctrl-C", told)
        with urllib.request.urlopen(f"{address}/tables") as answer:  # noqa: S310 - our own
            seen.append((told, answer.status))

    monkeypatch.setattr(story, "_until_interrupted", look_and_interrupt)
    url = f"sqlite:///{tmp_path}/lake.db"
    with Lake.connect(url) as lake:
        report = Report()
        end = partial(story._end, report, tmp_path, url, keep=True)
        story._operations_page(report, lake, end, keep=True)
    ((told, status),) = seen
    assert status == 200
    assert f"--catalog {url}" in told, "what to look at is told before"
    assert "Nothing is left running" not in told


def test_an_interrupt_ends_the_waiting() -> None:
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    story._until_interrupted()
    timer.join()


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not an empty folder"):
        main(folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_did_not_hold_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.check("the earth is flat", ok=False)
    assert report.failed == 1
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


def test_what_is_to_be_pasted_is_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    report = Report()
    long = "python -m deltalakedb tables --catalog sqlite:////a/long/path/to/a/catalog/lake.db"
    report.say(long)
    report.command(long)
    assert capsys.readouterr().out.splitlines().count(f"     {long}") == 1
