"""Spark Connect: what works through a server, and what says clearly that it does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.store import Catalogs

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.timeout(600)
def test_tables_through_a_connect_server(catalogs: Catalogs, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pyspark[connect]")
    with catalogs.fresh("sqlite") as url:
        given = {"url": url, "folder": str(tmp_path)}
        answer = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "spark.connect_app", json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr[-5000:]
    told = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    became = {one["tried"]: one["became"] for one in told}
    assert len(became) == 16
    for name in ("toDF", "toDF where", "delete", "update", "merge"):
        refusal = became.pop(name)
        assert refusal.startswith("UnsupportedFeatureError: ")
        assert "Spark Connect" in refusal
    assert set(became.values()) == {"ok"}, became
