"""Appending a DataFrame, against `df.write.parquet` of the same rows, and beside Delta on Spark.

Ours is in the catalog and in `_delta_log`, and its files are on the disk, when it returns; the
others wait for no disk. Goal: at most 1.15 times what `df.write.parquet` takes.
`df.write.format("deltalakedb")` is a data source in Python: its rows go through Arrow.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

import deltalakedb
from benchmarks.harness import Contestant, Report, compare, timed
from benchmarks.spark_data import DELTA, OURS, PARQUET, check_same, fingerprint, generated, judge
from benchmarks.spark_session import has_delta, session
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

GOAL = 1.15
SOURCE = "ours, data source"


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    rows, rounds = (50_000, 1) if quick else (3_000_000, 5)
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with deltalakedb.connect(f"sqlite:///{folder}/lake.db") as lake:
            source = generated(spark, rows, folder / "source", files=4)
            for by in ([], ["day"]):
                _append(report, lake, folder, source, by, rows=rows, rounds=rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _append(
    report: Report,
    lake: Lake,
    folder: Path,
    source: DataFrame,
    by: list[str],
    *,
    rows: int,
    rounds: int,
) -> None:
    scenario = "append, 12 partitions" if by else "append"
    number = iter(range(1_000_000))
    spark = source.sparkSession

    def fresh() -> str:
        return f"{scenario} {next(number)}".replace(" ", "_").replace(",", "")

    def ours(name: str) -> Callable[[], object]:
        table = lake.create_table(
            name, location=str(folder / name), schema=source.schema, partition_by=by
        )
        return lambda: table.append(source)

    def by_source(name: str) -> Callable[[], object]:
        ours(name)
        url = f"sqlite:///{folder}/lake.db"
        writer = source.write.format("deltalakedb").option("catalog", url).mode("append")
        return lambda: writer.save(name)

    def parquet(name: str) -> Callable[[], object]:
        return lambda: source.write.partitionBy(*by).parquet(str(folder / name))

    def delta(name: str) -> Callable[[], object]:
        writer = source.write.format("delta").partitionBy(*by)
        return lambda: writer.save(str(folder / name))

    makers = {OURS: ours, SOURCE: by_source, PARQUET: parquet}
    if has_delta():
        makers[DELTA] = delta
    readers: dict[str, Callable[[str], DataFrame]] = {
        OURS: lambda name: DeltaTable.forName(spark, name, catalog=lake).toDF(),
        SOURCE: lambda name: DeltaTable.forName(spark, name, catalog=lake).toDF(),
        PARQUET: lambda name: spark.read.parquet(str(folder / name)),
        DELTA: lambda name: spark.read.format("delta").load(str(folder / name)),
    }

    def once(who: str, found: dict[str, object] | None = None) -> float:
        name = fresh()
        seconds = timed(makers[who](name))
        if found is not None:
            found[who] = fingerprint(readers[who](name))
        shutil.rmtree(folder / name, ignore_errors=True)
        return seconds

    answers: dict[str, object] = {"source": fingerprint(source)}
    for who in makers:
        once(who), once(who, answers)  # warm
    check_same(scenario, answers)
    contestants: dict[str, Contestant] = {who: partial(once, who) for who in makers}
    times = compare(f"{scenario}, {rows} rows", contestants, rounds=rounds, report=report)
    judge(report, scenario, times, ours=OURS, peer=PARQUET, most=GOAL)
    judge(report, f"{scenario}, data source", times, ours=SOURCE, peer=PARQUET, most=GOAL)
    if DELTA in makers:
        judge(report, scenario, times, ours=OURS, peer=DELTA, most=None)
        judge(report, f"{scenario}, data source", times, ours=SOURCE, peer=DELTA, most=None)
