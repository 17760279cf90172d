"""Five queries on our scan, against `spark.read.parquet` of the same files, and Delta on Spark.

All three read the very same files in one session: ours by the catalog, Parquet by listing the
folder, Delta by the `_delta_log` that our mirror has written. Opening is part of every query.
Goal: at most 1.10 times what `spark.read.parquet` takes, for `DeltaTable.toDF()` and for
`spark.read.format("deltalakedb")` alike. The latter is also read by the data source in Python,
which is what a program gets that has not loaded `deltalakedb.spark`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from benchmarks.harness import Contestant, Report, compare, timed
from benchmarks.spark_data import DELTA, OURS, PARQUET, check_same, generated, judge
from benchmarks.spark_session import has_delta, session
from deltalakedb.spark import DeltaTable, enable
from deltalakedb.spark.source.native_format import SWITCH

GOAL = 1.10
FORMATTED = "ours, spark.read"
SOURCE = "ours, data source"

Query = Callable[[DataFrame], Any]
QUERIES: dict[str, Query] = {
    "count": lambda frame: frame.count(),
    "one-column sum": lambda frame: frame.agg(F.sum("price")).collect(),
    "selective filter": lambda frame: sorted(
        frame.where("id between 1000100 and 1000200").collect()
    ),
    "group by": lambda frame: sorted(
        frame.groupBy("day").agg(F.sum("price"), F.max("customer"), F.count("note")).collect()
    ),
    "all columns": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    rows, rounds = (200_000, 1) if quick else (6_000_000, 7)
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        url = f"sqlite:///{folder}/lake.db"
        with deltalakedb.connect(url) as lake:
            source = generated(spark, rows, folder / "source", files=8)
            table = lake.create_table("t", location=str(folder / "t"), schema=source.schema)
            table.append(source)
            path = str(folder / "t")
            readers: dict[str, Callable[[], DataFrame]] = {
                OURS: lambda: DeltaTable.forName(spark, "t", catalog=lake).toDF(),
                FORMATTED: lambda: _formatted(spark, url, "true"),
                SOURCE: lambda: _formatted(spark, url, "false"),
                PARQUET: lambda: spark.read.parquet(path),
            }
            if has_delta():
                readers[DELTA] = lambda: spark.read.format("delta").load(path)
            for name, query in QUERIES.items():
                # Warm, and the same answer from everybody.
                for _ in range(1 if quick else 3):
                    check_same(name, {who: query(read()) for who, read in readers.items()})
                contestants: dict[str, Contestant] = {
                    who: _timed(query, read) for who, read in readers.items()
                }
                scenario = f"{name}, {rows} rows"
                times = compare(scenario, contestants, rounds=rounds, report=report)
                for ours in (OURS, FORMATTED, SOURCE):
                    title = name if ours == OURS else f"{name}, {ours.partition(', ')[2]}"
                    goal = None if ours == SOURCE else GOAL
                    judge(report, title, times, ours=ours, peer=PARQUET, most=goal)
                    if DELTA in readers:
                        judge(report, title, times, ours=ours, peer=DELTA, most=None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _formatted(spark: SparkSession, url: str, native: str) -> DataFrame:
    enable(spark)
    spark.conf.set(SWITCH, native)
    return spark.read.format("deltalakedb").option("catalog", url).load("t")


def _timed(query: Query, read: Callable[[], DataFrame]) -> Contestant:
    return lambda: timed(lambda: query(read()))
