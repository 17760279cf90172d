"""The rows of the Spark benchmarks, and how two tables are compared before a time counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import Ratio, Report, median_ratio

OURS = "ours"
PARQUET = "Parquet"
DELTA = "Delta on Spark"


def generated(spark: SparkSession, rows: int, folder: Path, *, files: int) -> DataFrame:
    """Rows of eight columns, written once as Parquet: no contestant waits for their making."""
    made = spark.range(0, rows, 1, files).selectExpr(
        "id",
        "cast(id % 1000 as int) as shop",
        "cast(pmod(hash(id), 100000) / 100 as decimal(12, 2)) as price",
        "pmod(hash(id, 1), 1000000) / 7 as weight",
        "date_add(date'2026-01-01', cast(pmod(hash(id, 3), 12) as int)) as day",
        "timestamp_seconds(1700000000 + id) as at",
        "concat('customer ', cast(pmod(hash(id, 2), 100000) as string)) as customer",
        "if(id % 20 = 0, null, substr(sha1(cast(id as string)), 1, 12)) as note",
    )
    made.write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def fingerprint(frame: DataFrame) -> tuple[Any, ...]:
    """Count and a sum of hashes of whole rows: equal for equal rows, in whatever order."""
    names = ", ".join(f"`{name}`" for name in sorted(frame.columns))
    hashed = frame.selectExpr(f"cast(xxhash64({names}) as decimal(38, 0)) as h")
    return tuple(hashed.selectExpr("count(*)", "sum(h)").collect()[0])


def check_same(what: str, found: Mapping[str, Any]) -> None:
    """Times of different answers cannot be compared."""
    if len({str(value) for value in found.values()}) > 1:
        raise AssertionError(f"{what}: {found}")


def judge(
    report: Report,
    scenario: str,
    times: Mapping[str, Sequence[float]],
    *,
    ours: str,
    peer: str,
    most: float | None,
) -> None:
    """Add the ratio of one contestant to another, with the bar that was set."""
    value = median_ratio(times[ours], times[peer])
    goal = "" if most is None else f"≤ {most:.2f}"
    met = None if most is None else value <= most
    meaning = f"times what {peer} takes"
    report.ratios.append(Ratio(scenario, ours, peer, value, meaning, goal, met))
