"""The Spark of the demo: two cores, quiet, and nothing of it outside its folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(folder: Path, log: Path) -> Iterator[SparkSession]:
    """A session for the block; its Java is the one that JAVA_HOME, PATH or `make setup` has.

    What Spark writes to standard error goes to `log`.
    """
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home())
    # Executors run this Python, and not whatever is first on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("deltalakedb-demo")
        .config("spark.log.level", "WARN")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
    )
    with _stderr_to(log):  # its process, and those that it starts, inherit it
        session: SparkSession = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    sys.stderr.flush()
    before = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
