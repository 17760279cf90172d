"""Tables of many files and many small appends, beside Delta on Spark.

Opening: 100,000 files in 100 partitions, ours by the catalog, Delta by the `_delta_log` that our
mirror has written, with a checkpoint. The files are there (links to a few), so queries run: the
rows of one partition are counted. Delta's cached snapshot is dropped before each time; how it does
with that is shown beside. Appends: DataFrames of a hundred rows, one after the other; ours are in
the catalog and in the log when they return. Goal: not slower than Delta.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import deltalakedb
from benchmarks.harness import Contestant, Report, compare, timed
from benchmarks.spark_data import DELTA, OURS, check_same, judge
from benchmarks.spark_session import has_delta, session
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.postgres_server import PostgresServer

GOAL = 1.0
PARTITIONS = 100
ROWS = 10
# A file can have so many names, and no more.
LINKS = 30_000
WHERE = "part = 42"


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    if not has_delta():
        report.notes.append("the jars of Delta on Spark are not there: nothing to compare with")
        return
    files, rounds, appends = (1_000, 1, 5) if quick else (100_000, 3, 50)
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with (
            PostgresServer(fsync=True) as server,
            deltalakedb.connect(f"sqlite:///{folder}/lake.db") as sqlite,
            deltalakedb.connect(server.url(server.create_database())) as postgres,
        ):
            _many_files(sqlite, folder / "many", files)
            _open(report, spark, sqlite, folder / "many", files=files, rounds=rounds)
            lakes = {"sqlite": sqlite, "postgres": postgres}
            _appends(report, spark, lakes, folder, appends=appends, rounds=max(1, rounds + 1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- many files ---------------------------------------------------------------------------


def _many_files(lake: Lake, folder: Path, files: int) -> None:
    """A table of links; their rows are the same, and their statistics are right."""
    schema = pa.schema({"id": pa.int64(), "word": pa.string(), "part": pa.int32()})
    table = lake.create_table("many", location=str(folder), schema=schema, partition_by=["part"])
    rows = pa.table({"id": range(ROWS), "word": [f"word {i}" for i in range(ROWS)]})
    stats = {
        "numRecords": ROWS,
        "minValues": {"id": 0, "word": "word 0"},
        "maxValues": {"id": ROWS - 1, "word": f"word {ROWS - 1}"},
        "nullCount": {"id": 0, "word": 0},
    }
    for part in range(PARTITIONS):
        (folder / f"part={part}").mkdir(parents=True, exist_ok=True)
    size, original = 0, folder
    adds: list[dict[str, Any]] = []
    for number in range(files):
        if number % LINKS == 0:
            original = folder.parent / f"rows-{number}.parquet"
            pq.write_table(rows, original)
            size = original.stat().st_size
        part = number % PARTITIONS
        path = f"part={part}/part-{number:06}-{uuid.uuid4()}.parquet"
        os.link(original, folder / path)
        adds.append(
            {
                "add": {
                    "path": path,
                    "partitionValues": {"part": str(part)},
                    "size": size,
                    "modificationTime": 1_700_000_000_000,
                    "dataChange": True,
                    "stats": json.dumps(stats),
                }
            }
        )
    step = max(1, files // 20)
    for start in range(0, files, step):
        table.commit(adds[start : start + step], operation="WRITE")


def _open(
    report: Report,
    spark: SparkSession,
    lake: Lake,
    folder: Path,
    *,
    files: int,
    rounds: int,
) -> None:
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]  # noqa: SLF001

    def theirs(where: str) -> int:
        return int(spark.read.format("delta").load(str(folder)).where(where).count())

    def ours(where: str) -> int:
        return int(DeltaTable.forName(spark, "many", catalog=lake).toDF(where=where).count())

    def unplanned(where: str) -> int:
        return int(DeltaTable.forName(spark, "many", catalog=lake).toDF().where(where).count())

    def cold() -> float:
        log.clearCache()
        return timed(lambda: theirs(WHERE))

    contestants: dict[str, Contestant] = {
        OURS: lambda: timed(lambda: ours(WHERE)),
        "ours, toDF().where()": lambda: timed(lambda: unplanned(WHERE)),
        DELTA: cold,
        f"{DELTA}, cached": lambda: timed(lambda: theirs(WHERE)),
    }
    expected = files // PARTITIONS * ROWS
    answers = {"us": ours(WHERE), "them": theirs(WHERE), "filtered": unplanned(WHERE)}
    check_same("open", {**answers, "rows": expected})
    scenario = f"open {files} files, count one partition"
    times = compare(scenario, contestants, rounds=rounds, report=report)
    short = f"open {files} files"
    judge(report, short, times, ours=OURS, peer=DELTA, most=GOAL)
    plain = "ours, toDF().where()"
    judge(report, f"{short}, toDF().where()", times, ours=plain, peer=DELTA, most=GOAL)
    judge(report, f"{short}, cached", times, ours=OURS, peer=f"{DELTA}, cached", most=None)


# --- small appends ------------------------------------------------------------------------


def _appends(
    report: Report,
    spark: SparkSession,
    lakes: dict[str, Lake],
    folder: Path,
    *,
    appends: int,
    rounds: int,
) -> None:
    frame = spark.range(0, 100, 1, 1).selectExpr("id", "cast(id as string) as word")
    path = str(folder / "delta")
    frame.limit(0).write.format("delta").save(path)
    writers: dict[str, Callable[[], object]] = {
        DELTA: lambda: frame.write.format("delta").mode("append").save(path)
    }
    for engine, lake in lakes.items():
        table = lake.create_table("small", location=str(folder / engine), schema=frame.schema)
        writers[f"ours on {engine}"] = _appender(table, frame)
    for write in writers.values():
        write(), write()  # warm

    def many(write: Callable[[], object]) -> Contestant:
        return lambda: timed(lambda: [write() for _ in range(appends)])

    contestants = {who: many(write) for who, write in writers.items()}
    scenario = f"{appends * rounds} small appends"
    times = compare(f"{scenario}, {appends} at a time", contestants, rounds=rounds, report=report)
    counts = {DELTA: spark.read.format("delta").load(path).count()}
    for engine, lake in lakes.items():
        counts[engine] = DeltaTable.forName(spark, "small", catalog=lake).toDF().count()
        judge(
            report, f"{scenario}, {engine}", times, ours=f"ours on {engine}", peer=DELTA, most=GOAL
        )
    check_same("appends", counts)


def _appender(table: Table, frame: Any) -> Callable[[], object]:
    return lambda: table.append(frame)
