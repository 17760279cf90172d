"""Children of a process that has used its lake, as gunicorn and multiprocessing fork them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.store.url import Engine

from support.profiles import SOAK
from support.s3 import S3Server

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = Path(__file__).with_name("forking.py")
_SHORT = (("thread", "postgres"), ("thread", "sqlite"), ("checkpoints", "sqlite"))
CHILDREN = 100 if SOAK else 3


def fork(kind: str, url: str, location: str, options: dict[str, str] | None = None) -> Any:
    """What became of the children of a parent of this kind."""
    arguments = [kind, url, str(CHILDREN), location, json.dumps(options or {})]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["errors"], answer["verified"]) == ("", True)
    return answer["found"]


# Longer than a child is waited for: one that hangs is reported, and not the whole test.
@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("kind", ["fresh", "reading", "checkpoints", "thread"])
def test_forked_children_work_or_are_refused_at_once(
    engine: Engine, kind: str, catalog_url: str, tmp_path: Path
) -> None:
    if not SOAK and (kind, engine) not in _SHORT:
        pytest.skip("the long form has it")
    found = fork(kind, catalog_url, f"file://{tmp_path}/t")
    # A DuckDB file belongs to the process that opened it.
    assert found == {"refused" if engine == "duckdb" else "worked": CHILDREN}


def test_forked_children_of_a_process_that_used_s3_are_refused_at_once(
    tmp_path: Path, s3_server: S3Server
) -> None:
    location = f"s3://{s3_server.new_bucket()}/t"
    url = f"sqlite:///{tmp_path}/lake.db"
    assert fork("s3", url, location, s3_server.storage_options) == {"refused": CHILDREN}
