"""Programs that are interrupted, or end without closing anything (test_endings.py)."""

# ruff: noqa: T201 - what it prints is the result

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.spark import attach, configure
from deltalakedb.spark.delta.embedded import embedded_service

scenario, folder, jars, *service = sys.argv[1:]


def session(target: Any = None, **settings: str) -> SparkSession:
    """A session with Delta, a client of a catalog or of the service of the arguments."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.databricks.delta.snapshotPartitions", "1")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    if target is None:
        token = os.environ["TOKEN"]
        builder = configure(builder, service=service[0], token=token, timeout=15)
    else:
        builder = configure(builder, target)
    return builder.getOrCreate()


def insert(spark: SparkSession) -> str:
    """Add a row, and say how that ended."""
    try:
        spark.sql("INSERT INTO t VALUES (1)").collect()
    except KeyboardInterrupt:
        return "interrupted"
    return "done"


def interrupted() -> None:
    """Two statements; the test interrupts the first one."""
    spark = session()
    spark.sql("CREATE TABLE t (id BIGINT) USING delta").collect()
    print("ready", flush=True)
    sys.stdin.readline()
    print(insert(spark), flush=True)
    print(insert(spark), spark.table("t").count(), flush=True)


def left() -> None:
    """A statement, and the end: nothing is stopped or closed."""
    spark = session(f"sqlite:///{folder}/lake.db")
    print(insert(spark), flush=True)


def killed() -> None:
    """A statement, and a sudden end."""
    left()
    os.kill(os.getpid(), signal.SIGKILL)


def shown() -> None:
    """A session that shows everything that it has, and then waits for the test."""
    events = Path(folder) / "events"
    events.mkdir()
    lake = deltalakedb.connect(f"sqlite:///{folder}/lake.db")
    own = embedded_service(lake)
    spark = session(
        lake,
        spark_ui_enabled="true",
        spark_ui_port="0",
        spark_eventLog_enabled="true",
        spark_eventLog_compress="false",
        spark_eventLog_dir=events.as_uri(),
    )
    print(own.token, spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId, flush=True)
    print(insert(spark))
    # As the settings of a cluster have it, and those of a session that is attached.
    attach(spark, service=own.uri, token=own.token)
    print(insert(spark), spark.conf, lake, own, flush=True)
    for setting in ("SET", "SET -v", "SET deltalakedb.token", "SET spark.hadoop.deltalakedb.token"):
        print(spark.sql(setting).collect())
    spark.conf.set("deltalakedb.timeout", "1")
    try:
        attach(spark, service="http://127.0.0.1:9", token=own.token)
    except deltalakedb.errors.DeltaLakeDbError as error:
        print("refused", "cannot list the tables of the lake" in str(error))
        print(repr(error), error.__cause__)
    print(insert(spark))  # it has the service that it had before
    print("shown", flush=True)
    sys.stdin.read()


{"interrupted": interrupted, "left": left, "killed": killed, "shown": shown}[scenario]()
