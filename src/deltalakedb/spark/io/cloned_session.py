"""Settings of Spark for one scan or one write, which nobody else sees.

The settings of a session are those of all its threads and DataFrames. Where only a setting lets
Spark read or write files as a table needs them, a clone of the session has it: a scan keeps the
clone that it was made with, and a write runs in one. The clone has the settings, views and files of
the session, and shares its cache.

`cloneSession` and `Dataset.ofRows` are open to Java, but not documented: `deltalakedb doctor
--spark` tries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


def cloned_reader(spark: SparkSession, settings: Mapping[str, str]) -> DataFrameReader:
    """A reader whose scans have other settings; `in_session` brings them back."""
    reader = spark.read
    # A SparkSession of Python's for the clone would make itself that of RDD.toDF.
    reader._jreader = _clone(spark, settings).read()  # noqa: SLF001
    return reader


def in_session(spark: SparkSession, scan: DataFrame) -> DataFrame:
    """A scan of a cloned reader as a DataFrame of the session."""
    from pyspark.sql import DataFrame

    plan: Any = scan._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no other way to it
    made = spark._jsparkSession.baseRelationToDataFrame(plan.relation())  # noqa: SLF001
    return DataFrame(made, spark)


def in_clone(frame: DataFrame, settings: Mapping[str, str]) -> DataFrame:
    """The rows of a DataFrame, computed with other settings."""
    from pyspark.sql import DataFrame

    spark = frame.sparkSession
    java: Any = spark.sparkContext._jvm  # noqa: SLF001
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    made = java.org.apache.spark.sql.classic.Dataset.ofRows(_clone(spark, settings), plan)
    return DataFrame(made, spark)


def is_observed(frame: DataFrame) -> bool:
    """Whether an Observation waits for the rows: it never hears of those of a clone."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    return "CollectMetrics" in plan.toString()


def _clone(spark: SparkSession, settings: Mapping[str, str]) -> Any:
    clone = spark._jsparkSession.cloneSession()  # noqa: SLF001
    for name, value in settings.items():
        clone.conf().set(name, value)
    return clone
