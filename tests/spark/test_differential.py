"""Random operations on Spark and on plain rows in memory: the same rows after each, and before.

In the long form Delta on Spark does the same to a table of its own, where it is there, and has the
same rows. At the end of each story other engines read the mirrored table.
"""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.lake import Lake
from interop.limits import Case, judge, judge_all
from interop.readers import DeltaRs, DeltaSpark, DuckDb, Polars, Reader, Unavailable
from spark.delta_oracle import DeltaOracle
from spark.story import FEED, SCHEMA, TYPES, VECTORS, Story

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

STEPS = 10
STORIES = int(os.environ.get("DELTALAKEDB_STORIES", "36"))
"""Of the long form, with STEPS_OF_EACH operations each."""
FIRST = int(os.environ.get("DELTALAKEDB_FIRST_STORY", "100"))
STEPS_OF_EACH = 60
KINDS = {
    "copy-partitioned": ({}, ["part"]),
    "vectors-feed": ({VECTORS: "true", FEED: "true"}, []),
    "feed-partitioned": ({FEED: "true"}, ["part"]),
    "names": ({"delta.columnMapping.mode": "name"}, ["part"]),
}
# Thousands of small queries: compiling each of them takes longer than running it.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
ZONE = "spark.sql.session.timeZone"


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture(autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    """Stories have zones of their own."""
    yield
    spark.conf.set(ZONE, "UTC")


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    made: list[Reader] = [DeltaRs(), DuckDb(), Polars()]
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize(("seed", "kind"), [(1, "copy-partitioned"), (2, "vectors-feed")])
def test_random_operations(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    lake: Lake,
    url: str,
    tmp_path: Path,
    readers: list[Reader],
    seed: int,
    kind: str,
) -> None:
    story = begin(spark, lake, url, tmp_path / "t", seed, kind)
    for _ in range(STEPS):
        story.step()
    finish(story, tmp_path / "t", readers)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_operations(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, readers: list[Reader]
) -> None:
    engine = delta_on_spark(tmp_path)
    before = {name: str(spark.conf.get(name)) for name in INTERPRETED}
    for name, wanted in INTERPRETED.items():
        spark.conf.set(name, wanted)
    done: Counter[str] = Counter()
    feeds = versions = 0
    try:
        for seed in range(FIRST, FIRST + STORIES):
            kind = list(KINDS)[seed % len(KINDS)]
            folder = tmp_path / f"ours{seed}"
            properties, partition_by = KINDS[kind]
            oracle = None
            if engine is not None:
                oracle = DeltaOracle(
                    engine,
                    readers[1],
                    tmp_path / f"theirs{seed}",
                    types=TYPES,
                    partition_by=partition_by,
                    properties=properties,
                )
            story = begin(spark, lake, url, folder, seed, kind, oracle)
            try:
                for _ in range(STEPS_OF_EACH):
                    story.step()
                finish(story, folder, readers)
            except BaseException:
                sys.stdout.write(f"\nstory {seed} ({kind}) after {dict(story.done)}\n")
                raise
            done += story.done
            feeds += story.feeds
            versions += story.table.version
            sys.stdout.write(f"\n{seed} {kind}: {done.total()} operations so far")
            sys.stdout.flush()
    finally:
        if engine is not None:
            engine.close()
        for name, value in before.items():
            spark.conf.set(name, value)
    sys.stdout.write(
        f"\n{STORIES} stories {'beside' if engine else 'without'} Delta on Spark, "
        f"{done.total()} operations, {versions} versions, {feeds} feeds: "
        f"{dict(done)}\n"
    )


def delta_on_spark(folder: Path) -> DeltaSpark | None:
    """Delta on Spark, where it is there and wanted: alone the rows in memory are much faster."""
    if os.environ.get("DELTALAKEDB_STORY_ORACLE") == "memory":
        return None
    try:
        return DeltaSpark(folder)
    except Unavailable as missing:
        sys.stdout.write(f"\nwithout Delta on Spark: {missing}\n")
        return None


def begin(  # noqa: PLR0917 - what a story is made of
    spark: SparkSession,
    lake: Lake,
    url: str,
    folder: Path,
    seed: int,
    kind: str,
    oracle: DeltaOracle | None = None,
) -> Story:
    properties, partition_by = KINDS[kind]
    table = lake.create_table(
        f"story{seed}",
        location=str(folder),
        schema=SCHEMA,
        partition_by=partition_by,
        properties=properties,
    )
    return Story(spark, lake, table, random.Random(seed), url=url, oracle=oracle)


def finish(story: Story, folder: Path, readers: list[Reader]) -> None:
    """All versions as they were; and what others read of the newest."""
    story.check_past()
    snapshot = story.table.snapshot()
    case, ours = Case(folder, snapshot, head=snapshot.version), snapshot.to_arrow()
    judge_all(judge(reader, case, ours) for reader in readers)
    assert story.lake.verify(story.table.name).ok
