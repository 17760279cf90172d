"""Appending a DataFrame, against `df.write.parquet` of the same rows, and beside Delta on Spark.

Ours is in the catalog and in `_delta_log`, and its files are on the disk, when it returns; the
others wait for no disk. Goal: at most 1.15 times what `df.write.parquet` takes.
`df.write.format("deltalakedb")` is measured both ways: served by the driver, which is what a
program gets that has loaded `deltalakedb.spark`, and by the data source in Python, whose rows go
through Arrow.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

import deltalakedb
from benchmarks.harness import Contestant, Report, compare, timed
from benchmarks.spark_data import DELTA, OURS, PARQUET, check_same, fingerprint, generated, judge
from benchmarks.spark_session import has_delta, session
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable, enable
from deltalakedb.spark.source.native_format import SWITCH

GOAL = 1.15
FORMATTED = "ours, df.write"
SOURCE = "ours, data source"
SAME = "Parquet with our codec"
CODEC = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
"""That of Delta tables; Spark's own default is snappy, which makes larger files in less time."""


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    rows, rounds = (50_000, 1) if quick else (2_000_000, 6)
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with deltalakedb.connect(f"sqlite:///{folder}/lake.db") as lake:
            source = generated(spark, rows, folder / "source", files=4)
            for by in ([], ["day"]):
                _append(report, _Writers(lake, folder, source, by), count=rows, rounds=rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Writers:
    """Everybody, each with a new table every time."""

    def __init__(self, lake: Lake, folder: Path, source: DataFrame, by: list[str]) -> None:
        self.scenario = "append, 12 partitions" if by else "append"
        self.source = source
        self._lake, self._folder, self._by = lake, folder, by
        self._makers: dict[str, Callable[[str], Callable[[], object]]] = {
            OURS: self._ours,
            FORMATTED: partial(self._by_format, "true"),
            SOURCE: partial(self._by_format, "false"),
            PARQUET: self._parquet,
            SAME: partial(self._parquet, **CODEC),
        }
        if has_delta():
            self._makers[DELTA] = self._delta

    @property
    def names(self) -> list[str]:
        """Who there is."""
        return list(self._makers)

    def once(self, who: str, found: dict[str, object] | None = None) -> float:
        """Write all rows; what is there then goes to `found`."""
        name = uuid.uuid4().hex
        work = self._makers[who](name)
        # Ours waits for the disk: not for what others have left to be written, though.
        os.sync()
        seconds = timed(work)
        if found is not None:
            found[who] = fingerprint(self._rows(who, name))
        shutil.rmtree(self._folder / name, ignore_errors=True)
        return seconds

    def _ours(self, name: str) -> Callable[[], object]:
        table = self._lake.create_table(
            name,
            location=str(self._folder / name),
            schema=self.source.schema,
            partition_by=self._by,
        )
        return lambda: table.append(self.source)

    def _by_format(self, native: str, name: str) -> Callable[[], object]:
        self._ours(name)
        url = f"sqlite:///{self._folder}/lake.db"
        writer = self.source.write.format("deltalakedb").option("catalog", url).mode("append")
        enable(self.source.sparkSession)
        self.source.sparkSession.conf.set(SWITCH, native)
        return lambda: writer.save(name)

    def _parquet(self, name: str, **options: str) -> Callable[[], object]:
        writer = self.source.write.partitionBy(*self._by).options(**options)
        return lambda: writer.parquet(str(self._folder / name))

    def _delta(self, name: str) -> Callable[[], object]:
        writer = self.source.write.format("delta").partitionBy(*self._by)
        return lambda: writer.save(str(self._folder / name))

    def _rows(self, who: str, name: str) -> DataFrame:
        spark = self.source.sparkSession
        if who in (OURS, FORMATTED, SOURCE):
            return DeltaTable.forName(spark, name, catalog=self._lake).toDF()
        kind = "delta" if who == DELTA else "parquet"
        return spark.read.format(kind).load(str(self._folder / name))


def _append(report: Report, writers: _Writers, *, count: int, rounds: int) -> None:
    scenario = writers.scenario
    answers: dict[str, object] = {"source": fingerprint(writers.source)}
    for who in writers.names:
        writers.once(who), writers.once(who, answers)  # warm
    check_same(scenario, answers)
    contestants: dict[str, Contestant] = {w: partial(writers.once, w) for w in writers.names}
    times = compare(f"{scenario}, {count} rows", contestants, rounds=rounds, report=report)
    ways = {scenario: OURS, f"{scenario}, df.write": FORMATTED, f"{scenario}, data source": SOURCE}
    for peer, most in ((PARQUET, GOAL), (SAME, GOAL), (DELTA, None)):
        for title, ours in ways.items():
            if peer in times:
                # The data source is what there is where nothing else can be: no goal is its own.
                goal = None if ours == SOURCE else most
                judge(report, title, times, ours=ours, peer=peer, most=goal)
