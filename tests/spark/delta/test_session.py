"""`configure` and `attach` in a program of a user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.delta.jar import DELTA, jar
from deltalakedb.spark.java import java_home
from interop.readers import Unavailable, peer

from support.doc_blocks import blocks_of

APP = Path(__file__).with_name("session_app.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def jars() -> str:
    """Delta's jars."""
    try:
        jar()
        return ",".join(map(str, sorted(peer("Delta on Spark", "delta-spark").glob("*.jar"))))
    except (Unavailable, DeltaLakeDbError) as missing:
        pytest.skip(str(missing))


def run(folder: Path, *arguments: str | Path) -> list[str]:
    """Run a program where the first Python of the PATH is another; the lines that it prints."""
    other = folder / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    variables = {**os.environ, "PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}"}
    variables.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**variables, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def test_the_program_of_the_page_works(tmp_path: Path, jars: str) -> None:
    block = blocks_of("docs/how-to/spark-sql.md")[0]
    packages = f'"spark.jars.packages", "{DELTA}"'
    assert packages in block.text
    program = block.text.replace(packages, f'"spark.jars", "{jars}"').replace(
        "/data", str(tmp_path)
    )
    (tmp_path / "page.py").write_text(program)
    assert run(tmp_path, tmp_path / "page.py") == ["1"]


def test_a_program_uses_two_lakes_by_names(tmp_path: Path, jars: str) -> None:
    assert run(tmp_path, APP, tmp_path, jars) == [
        "one 10 10",
        "token False",
        "python True",
        "two ['fresh', 'sales.orders'] 1",
        "gone False",
        "forName 0",
        "other session 3 True",
        "refused True",
    ]
