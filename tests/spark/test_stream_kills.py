"""A query that is killed, wherever it is: once all is through, the sink has each row exactly once.

The short form kills the processes that write and commit, and Spark sees the query fail; the long
one kills whole applications, at points and at any time, with all processes or without those that
are just committing. Each life goes on from the checkpoint of the one before.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.actions import Txn
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from spark import dying_source
from spark.dying_source import COMMIT, TASK, DyingSource, kill_session

from support import kill_points
from support.store import Catalogs

IDS = pa.schema([("id", pa.int64())])
ROWS = 3
Fatal = tuple[str, str]
MOMENTS = {"commit begins", "statement execute", "before put_if_absent", "committed"}


class Feed:
    """Files of a folder and rows of a table, the same ones: what two queries are to copy."""

    def __init__(self, folder: Path, source: Table) -> None:
        self._folder = folder / "in"
        self._folder.mkdir()
        self._source = source
        self.expected: list[int] = []

    def more(self) -> None:
        """One more file, and one more version."""
        first = len(self.expected)
        ids = list(range(first, first + ROWS))
        made = self._folder / f".{first}"
        made.write_text("\n".join(json.dumps({"id": one}) for one in ids))
        made.rename(self._folder / f"{first:06}.json")
        self._source.append(pa.table({"id": ids}))
        self.expected += ids


def check(table: Table, expected: list[int]) -> None:
    found = Counter(table.snapshot().to_arrow()["id"].to_pylist())
    assert found == Counter(expected)
    # Each batch is in one version.
    recorded = [
        (action.app_id, action.version)
        for version in range(1, table.snapshot().version + 1)
        for action in table.actions(version)
        if isinstance(action, Txn)
    ]
    assert len(recorded) == len(set(recorded)) == table.snapshot().version


@pytest.fixture(scope="module")
def dying(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, with the source that dies: its workers do not know the tests."""
    modules = (dying_source, kill_points)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spark.dataSource.register(DyingSource)
    yield spark
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("engine", "fatal"),
    [
        ("sqlite", [(TASK, "staged"), (COMMIT, "committed")]),
        ("postgres", [(COMMIT, "before put_if_absent")]),
    ],
)
def test_death_between_staging_and_commit(
    dying: SparkSession, catalogs: Catalogs, engine: Engine, fatal: list[Fatal], tmp_path: Path
) -> None:
    reached = die_at_points(dying, catalogs, engine, tmp_path, fatal)
    assert reached == [label for _, label in fatal]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_death_at_every_point_of_a_batch(
    dying: SparkSession, catalogs: Catalogs, engine: Engine, tmp_path: Path
) -> None:
    points = [(TASK, "1"), *((COMMIT, str(n)) for n in range(1, 1000))]
    reached = die_at_points(dying, catalogs, engine, tmp_path, points)
    sys.stdout.write(f"\n{engine}: died at {len(reached)} points: {Counter(reached)}\n")
    assert set(reached) >= MOMENTS, reached


def die_at_points(
    spark: SparkSession,
    catalogs: Catalogs,
    engine: Engine,
    folder: Path,
    fatal: Iterable[Fatal],
) -> list[str]:
    """Die at points, until one is not reached any more; where it died."""
    labels = folder / "labels"
    with catalogs.fresh(engine) as url, deltalakedb.connect(url) as lake:
        source = lake.create_table("source", location=str(folder / "source"), schema=IDS)
        sink = lake.create_table("sink", location=str(folder / "sink"), schema=IDS)
        feed = Feed(folder, source)
        options = {"catalog": url, "labels": str(labels)}
        for where, at in fatal:
            feed.more()
            try:
                copy_table(spark, folder, {**options, "dieIn": where, "at": at})
            except PySparkException:
                continue
            break
        else:
            copy_table(spark, folder, options)
        check(sink, feed.expected)
        assert lake.verify("sink").ok
        return labels.read_text().splitlines()


def copy_table(spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
    stream = spark.readStream.format("deltalakedb").option("catalog", options["catalog"])
    query = (
        stream.option("maxFilesPerTrigger", 1)
        .load("source")
        .writeStream.format("dying")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start("sink")
    )
    query.awaitTermination()


# --- whole applications -------------------------------------------------------------------

TESTS = Path(__file__).resolve().parent.parent
KILLS = 50


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_fifty_deaths_of_the_application(
    catalogs: Catalogs, engine: Engine, tmp_path: Path
) -> None:
    chance = random.Random(engine)
    told: Counter[str] = Counter()
    with catalogs.fresh(engine) as url, deltalakedb.connect(url) as lake:
        for name in ("source", "from_files", "from_table"):
            lake.create_table(name, location=str(tmp_path / name), schema=IDS)
        feed = Feed(tmp_path, lake.table("source"))
        deaths = 0
        while deaths < KILLS:
            for _ in range(3):
                feed.more()
            how = chance.choice(["at a point", "any time", "all but the workers"])
            if one_life(tmp_path, url, how, chance):
                deaths += 1
                told[how] += 1
                for name in ("from_files", "from_table"):
                    found = Counter(lake.table(name).snapshot().to_arrow()["id"].to_pylist())
                    assert set(found.values()) <= {1}, (deaths, how)
        assert not one_life(tmp_path, url, "no", chance)
        for name in ("from_files", "from_table"):
            check(lake.table(name), feed.expected)
            assert lake.verify(name).ok
        labels = Counter((tmp_path / "labels").read_text().splitlines())
        sys.stdout.write(
            f"\n{engine}: {deaths} deaths ({dict(told)}; points: {dict(labels)}), "
            f"{len(feed.expected)} rows exactly once in {lake.table('from_files').version} and "
            f"{lake.table('from_table').version} batches\n"
        )


def one_life(folder: Path, url: str, how: str, chance: random.Random) -> bool:
    """Start the application; whether it was killed before it came to its end."""
    options = {"labels": str(folder / "labels"), "session": "true"}
    if how == "at a point":
        options["dieIn"] = chance.choice([TASK, COMMIT, COMMIT])
        options["at"] = str(1 if options["dieIn"] == TASK else chance.randrange(1, 32))
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    given = {"url": url, "folder": str(folder), "scratch": str(scratch), "options": options}
    with (folder / "log").open("w") as log:
        app = subprocess.Popen(
            [sys.executable, "-m", "spark.streaming_app", json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        assert app.stdout is not None
        with app:
            try:
                said = app.stdout.readline()
                if how in ("any time", "all but the workers") and said:
                    time.sleep(chance.random() * 8)
                    if how == "any time":
                        kill_session(app.pid)
                    else:
                        kill_java(app.pid)
                said += app.stdout.read()
                status = app.wait()
            finally:
                # Nobody is left behind, whatever went wrong.
                kill_session(app.pid)
    assert status == -signal.SIGKILL or "done" in said, (folder / "log").read_text()[-5000:]
    return "done" not in said


def kill_java(session: int) -> None:
    """Kill the application and its Java; a worker that is just committing goes on for a moment."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            pid = int(entry.name)
            if os.getsid(pid) == session and (entry / "comm").read_text().strip() == "java":
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
    os.kill(session, signal.SIGKILL)
