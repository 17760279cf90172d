"""Two applications of Spark and a plain writer hammer the same tables: no change is lost.

The catalog is held against the journals of all commits, and the rows against what the writers were
told: each acknowledged increment counts once, each event is there or deleted.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import SparkSession

from concurrency.checker import check
from concurrency.journal import Journal, Outcome, read_journals
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from spark.hammer import KEYS, REFUSALS, SparkWriter, Told, create_tables

from support.store import Catalogs

SECONDS = 180
TESTS = Path(__file__).resolve().parent.parent


@contextmanager
def running(folder: Path, url: str, name: str, *, spark: bool, rounds: int) -> Iterator[IO[str]]:
    """A writer in a process of its own; at the end of the block it has come to its end."""
    scratch = folder / f"scratch-{name}"
    scratch.mkdir()
    given = {
        "url": url,
        "name": name,
        "journal": str(folder / "journals" / f"{name}.jsonl"),
        "told": str(folder / "told" / f"{name}.json"),
        "stop": str(folder / "stop"),
        "scratch": str(scratch),
        "spark": spark,
        "rounds": rounds,
    }
    log = folder / f"{name}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "spark.hammer", json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable},
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            try:
                assert process.stdout is not None
                yield process.stdout
                status = process.wait()
            finally:
                process.kill()
    assert status == 0, log.read_text()[-5000:]


def test_spark_and_python_hammer_the_same_tables(
    spark: SparkSession, catalogs: Catalogs, tmp_path: Path
) -> None:
    """The session of the tests is one of the applications."""
    with catalogs.fresh("postgres") as url, Lake.connect(url, mirror="worker") as lake:
        settle(lake, tmp_path)
        with ExitStack() as stack:
            other = stack.enter_context(running(tmp_path, url, "spark2", spark=True, rounds=1))
            plain = stack.enter_context(running(tmp_path, url, "plain", spark=False, rounds=0))
            stack.callback((tmp_path / "stop").touch)
            assert plain.readline() == "begun\n"
            assert other.readline() == "begun\n"
            writer = SparkWriter(lake, Journal(tmp_path / "journals/spark1.jsonl"), "spark1", spark)
            writer.run(lambda: False, rounds=1)
            (tmp_path / "told/spark1.json").write_text(writer.told.to_json())
            other.read()
        prove(url, lake, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
def test_hammering_for_minutes(catalogs: Catalogs, engine: Engine, tmp_path: Path) -> None:
    with catalogs.fresh(engine) as url, Lake.connect(url, mirror="worker") as lake:
        settle(lake, tmp_path)
        with ExitStack() as stack:
            for name in ("spark1", "spark2", "plain"):
                is_spark = name != "plain"
                process = running(tmp_path, url, name, spark=is_spark, rounds=0)
                stack.enter_context(process)
            stack.callback((tmp_path / "stop").touch)
            time.sleep(SECONDS)
        prove(url, lake, tmp_path)


def settle(lake: Lake, folder: Path) -> None:
    for name in ("journals", "told"):
        (folder / name).mkdir()
    create_tables(lake, folder, Journal(folder / "journals" / "founder.jsonl"))


def prove(url: str, lake: Lake, folder: Path) -> None:
    journals = list((folder / "journals").iterdir())
    told = {path.stem: Told.read(path) for path in (folder / "told").iterdir()}
    lake.close()
    report = check(url, journals)
    assert report.problems == [], f"{len(report.problems)} problems; {report}"
    for story in read_journals(journals):
        for one in story.tries:
            assert one.outcome in (Outcome.ACKNOWLEDGED, Outcome.REFUSED), one
            if one.outcome is Outcome.REFUSED:
                assert one.error in REFUSALS[one.operation], one
    with Lake.connect(url, mirror="worker") as again:
        rows = {
            name: again.table(name).snapshot().to_arrow().to_pylist()
            for name in ("counters", "events", "audit")
        }
        done = sum((Counter(one.done) for one in told.values()), Counter())
        counts = sum((one.increments for one in told.values()), Counter())
        assert sorted(row["k"] for row in rows["counters"]) == list(range(KEYS))
        assert {row["k"]: row["n"] for row in rows["counters"]} == {
            k: counts[k] for k in range(KEYS)
        }
        deleted = {id_ for one in told.values() for id_ in one.deleted}
        added = Counter(id_ for one in told.values() for id_ in one.added if id_ not in deleted)
        assert Counter(row["id"] for row in rows["events"]) == added
        together = Counter(id_ for one in told.values() for id_ in one.together)
        assert Counter(row["id"] for row in rows["audit"]) == together
        again.mirror.run_once()
        for name in rows:
            assert again.verify(name).ok
    # Everybody came through with everything.
    assert set(done) == set(REFUSALS)
    refused = sum((Counter(one.refused) for one in told.values()), Counter())
    sys.stdout.write(
        f"\n{report}\n  done: {dict(done)}; refused: {dict(refused)}; "
        f"{sum(counts.values())} increments, {sum(added.values())} events\n"
    )
