"""One Spark for all benchmarks of a run, with Delta on Spark in it when its jars are there.

Everybody runs in the same session: two cores, Delta's extensions, which Delta needs and which are
in nobody's way, and Spark's own defaults but for two, which are made for clusters: four partitions
of a shuffle instead of 200, and two instead of 50 for the state of a Delta table (Delta is the
faster for it). The jars come from build/peers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from deltalakedb.lake import Lake
from deltalakedb.spark import configure
from deltalakedb.spark.java import java_home

_PEERS = Path(__file__).resolve().parent.parent / "build" / "peers" / "delta-spark"


def has_delta() -> bool:
    """Whether Delta on Spark is there."""
    return any(_PEERS.glob("delta-spark_*.jar"))


@cache
def session() -> SparkSession:
    """The session; it ends with the process."""
    return _builder().getOrCreate()


@contextmanager
def lake_session(lake: Lake) -> Iterator[SparkSession]:
    """A session of Delta on Spark as a client of a lake, in place of the other one."""
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
    session.cache_clear()
    spark = configure(_builder(), lake).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _builder() -> SparkSession.Builder:
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tempfile.mkdtemp(prefix="deltalakedb-bench-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("deltalakedb-benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "5g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    if has_delta():
        jars = ",".join(str(jar) for jar in sorted(_PEERS.glob("*.jar")))
        builder = (
            builder.config("spark.jars", jars)
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config(
                "spark.sql.catalog.spark_catalog",
                "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            )
        )
    return builder
