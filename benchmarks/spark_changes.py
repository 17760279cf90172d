"""MERGE, DELETE and OPTIMIZE beside Delta on Spark, on tables of the same rows and files.

Everybody works by its own defaults; MERGE and DELETE are measured with deletion vectors too (and
fewer rows), which both leave off unless they are asked for. Each round begins with the same rows:
both sides restore the first version before, which is not measured. Goal: not slower than Delta.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from benchmarks.harness import Report, compare, timed
from benchmarks.spark_data import DELTA, OURS, check_same, fingerprint, generated, judge
from benchmarks.spark_session import has_delta, session
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

GOAL = 1.0
VECTORS = "delta.enableDeletionVectors"
DELETED = "id % 100 = 7"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is."""

    rows: int
    fewer: int
    rounds: int
    files: int
    small_files: int


FULL = Sizes(10_000_000, 2_000_000, 2, 16, 200)
QUICK = Sizes(50_000, 20_000, 1, 4, 20)


class Side(Protocol):
    """A table of one contestant."""

    def merge(self) -> None: ...
    def delete(self) -> None: ...
    def optimize(self) -> None: ...
    def again(self) -> None: ...
    def rows(self) -> DataFrame: ...


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    if not has_delta():
        report.notes.append("the jars of Delta on Spark are not there: nothing to compare with")
        return
    sizes = QUICK if quick else FULL
    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-bench-"))
    try:
        with deltalakedb.connect(f"sqlite:///{folder}/lake.db") as lake:
            source = generated(spark, sizes.rows, folder / "source", files=sizes.files)
            updates = _updates(source, folder / "updates")
            # The smaller tables first: everybody is warm when the large one comes.
            fewer = source.where(f"id < {sizes.fewer}")
            changed = updates.where(f"id < {sizes.fewer}")
            sides = _sides(spark, lake, folder, fewer, changed, vectors=True)
            told = f", deletion vectors, {sizes.fewer} rows"
            _compare(report, f"MERGE of 1 %{told}", "merge", sides, sizes)
            _compare(report, f"DELETE of 1 %{told}", "delete", sides, sizes)
            _forget(folder)
            many = fewer.repartition(sizes.small_files)
            sides = _sides(spark, lake, folder, many, changed, vectors=False)
            told = f"of {sizes.small_files} files, {sizes.fewer} rows"
            _compare(report, f"OPTIMIZE {told}", "optimize", sides, sizes)
            for side in sides.values():
                side.merge()  # warm
                side.delete()
            _forget(folder)
            sides = _sides(spark, lake, folder, source, updates, vectors=False)
            told = f", {sizes.rows} rows"
            _compare(report, f"MERGE of 1 %{told}", "merge", sides, sizes)
            _compare(report, f"DELETE of 1 %{told}", "delete", sides, sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _updates(source: DataFrame, folder: Path) -> DataFrame:
    """One row in a hundred, all over the table, with another price and note."""
    rows = source.where("id % 100 = 3").withColumns(
        {"price": source["price"] + 1, "note": source["customer"]}
    )
    rows = rows.withColumn("price", rows["price"].cast("decimal(12,2)"))
    rows.coalesce(1).write.parquet(str(folder))
    return source.sparkSession.read.parquet(str(folder))


def _forget(folder: Path) -> None:
    """The disk has no room for every table of a run."""
    for path in folder.glob("table-*"):
        shutil.rmtree(path, ignore_errors=True)


def _sides(
    spark: SparkSession,
    lake: Lake,
    folder: Path,
    rows: DataFrame,
    updates: DataFrame,
    *,
    vectors: bool,
) -> dict[str, Side]:
    return {
        OURS: Ours(spark, lake, folder, rows, updates, vectors=vectors),
        DELTA: Delta(spark, folder, rows, updates, vectors=vectors),
    }


def _compare(
    report: Report, scenario: str, verb: str, sides: dict[str, Side], sizes: Sizes
) -> None:
    def once(side: Side) -> float:
        side.again()
        work: Callable[[], Any] = getattr(side, verb)
        return timed(work)

    if not any(told.startswith(scenario[:5]) for told in report.medians):
        for side in sides.values():  # warm
            once(side)
    contestants = {who: partial(once, side) for who, side in sides.items()}
    times = compare(scenario, contestants, rounds=sizes.rounds, report=report)
    # After the last round everybody has to have the same rows, or no time counts.
    check_same(scenario, {who: fingerprint(side.rows()) for who, side in sides.items()})
    judge(report, scenario, times, ours=OURS, peer=DELTA, most=GOAL)


class Ours:
    """A table of ours, with its mirror."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        folder: Path,
        rows: DataFrame,
        updates: DataFrame,
        *,
        vectors: bool,
    ) -> None:
        name = f"table-ours-{vectors}-{len(lake.tables())}"
        table = lake.create_table(
            name,
            location=str(folder / name),
            schema=rows.schema,
            properties={VECTORS: "true"} if vectors else {},
        )
        table.append(rows)
        self._first = table.snapshot().version
        self._table = DeltaTable.forName(spark, name, catalog=lake)
        self._updates = updates

    def merge(self) -> None:
        """Upsert."""
        merge = self._table.alias("t").merge(self._updates.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def delete(self) -> None:
        """Delete."""
        self._table.delete(DELETED)

    def optimize(self) -> None:
        """Compact."""
        self._table.optimize().executeCompaction()

    def again(self) -> None:
        """The rows of the beginning."""
        self._table.restoreToVersion(self._first)

    def rows(self) -> DataFrame:
        """What is there."""
        return self._table.toDF()


class Delta:
    """A table of Delta on Spark, by SQL."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        rows: DataFrame,
        updates: DataFrame,
        *,
        vectors: bool,
    ) -> None:
        self._spark = spark
        path = Path(tempfile.mkdtemp(prefix="table-delta-", dir=folder)) / "t"
        writer = rows.write.format("delta")
        if vectors:
            writer = writer.option(VECTORS, "true")
        writer.save(str(path))
        self._name = f"delta.`{path}`"
        updates.createOrReplaceTempView("updates")

    def merge(self) -> None:
        """Upsert."""
        self._spark.sql(
            f"MERGE INTO {self._name} t USING updates s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    def delete(self) -> None:
        """Delete."""
        self._spark.sql(f"DELETE FROM {self._name} WHERE {DELETED}").collect()

    def optimize(self) -> None:
        """Compact."""
        self._spark.sql(f"OPTIMIZE {self._name}").collect()

    def again(self) -> None:
        """The rows of the beginning."""
        self._spark.sql(f"RESTORE TABLE {self._name} TO VERSION AS OF 0").collect()

    def rows(self) -> DataFrame:
        """What is there."""
        return self._spark.sql(f"SELECT * FROM {self._name}")
