"""`configure` and `attach` in a program of a user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.delta.jar import jar
from deltalakedb.spark.java import java_home
from interop.readers import Unavailable, peer

APP = Path(__file__).with_name("session_app.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_program_uses_two_lakes_by_names(tmp_path: Path) -> None:
    try:
        jars = ",".join(map(str, sorted(peer("Delta on Spark", "delta-spark").glob("*.jar"))))
        java = str(java_home())
        jar()
    except (Unavailable, DeltaLakeDbError) as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [sys.executable, APP, tmp_path, jars],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        "one 10 10",
        "token False",
        "two ['fresh', 'sales.orders'] 1",
        "gone False",
        "forName 0",
        "other session 3 True",
        "refused True",
    ]
