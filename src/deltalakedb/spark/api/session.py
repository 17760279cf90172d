"""What a Spark session says of reads and writes that do not say it themselves, as Delta has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.actions.properties import KNOWN, spelled
from deltalakedb.spark.io.spark_internals import session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What users of Delta set in a session, and the option of a write that it is the default of.
_OPTIONS: Final = {
    "spark.sql.sources.partitionOverwriteMode": "partitionoverwritemode",
    "spark.databricks.delta.schema.autoMerge.enabled": "mergeschema",
    "spark.databricks.delta.optimizeWrite.enabled": "optimizewrite",
    "spark.sql.files.maxRecordsPerFile": "maxrecordsperfile",
}
_PROPERTIES: Final = "spark.databricks.delta.properties.defaults."
# These say what a table is, and not what it is meant to be.
_OF_ONE_TABLE: Final = frozenset(
    {
        "delta.columnMapping.maxColumnId",
        "delta.ignoreProtocolDefaults",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
        "delta.liquid.clusteringColumns",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.requireCheckpointProtectionBeforeVersion",
        "delta.rowTrackingSuspended",
    }
)


def default_options(spark: SparkSession) -> dict[str, str]:
    """Options of a write that a session sets, by their names in small letters."""
    settings = session_settings(spark)
    return {option: settings[name] for name, option in _OPTIONS.items() if name in settings}


def default_properties(spark: SparkSession) -> dict[str, str]:
    """The properties that a session gives to new tables; those that Delta knows."""
    found = {
        spelled(f"delta.{name.removeprefix(_PROPERTIES)}"): value
        for name, value in session_settings(spark).items()
        if name.startswith(_PROPERTIES)
    }
    return {n: value for n, value in found.items() if n in KNOWN and n not in _OF_ONE_TABLE}
