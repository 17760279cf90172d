"""OPTIMIZE as it is put together, as in `delta.tables.DeltaOptimizeBuilder`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.errors import ConfigurationError
from deltalakedb.maintenance.compaction import TARGET_BYTES, Compaction
from deltalakedb.spark.optimize import cluster, optimize, z_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.table import Table

_TARGET = "spark.databricks.delta.optimize.maxFileSize"


class DeltaOptimizeBuilder:
    """An OPTIMIZE of a table; the `execute…` methods do it, in one version."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = table
        self._where: str | None = None

    def where(self, partitionFilter: str) -> DeltaOptimizeBuilder:
        """Only partitions for which this is true."""
        self._where = partitionFilter
        return self

    def executeCompaction(self) -> DataFrame:
        """Make large files of small ones; what was done, in one row.

        Rows of a table with clustering columns are ordered by them.
        """
        snapshot = self._table.snapshot()
        if snapshot.clustering_columns:
            if self._where is not None:
                raise ConfigurationError(
                    f"Table {self._table.name!r} is clustered, and has no partitions to name",
                    fix="Leave where() out",
                )
            target = self._target_bytes()
            return self._told(cluster(self._spark, self._table, snapshot, target_bytes=target))
        done = optimize(
            self._spark, self._table, where=self._where, target_bytes=self._target_bytes()
        )
        return self._told(done)

    def executeZOrderBy(self, *cols: str | list[str] | tuple[str, ...]) -> DataFrame:
        """Write rows anew along a Z-curve of columns; what was done, in one row."""
        by = self._table.snapshot().clustering_columns
        if by:
            raise ConfigurationError(
                f"Table {self._table.name!r} is clustered by {', '.join(by)}",
                why="Another order would undo that",
                fix="Use executeCompaction(), or cluster the table by other columns: cluster_by",
            )
        names = [name for one in cols for name in ([one] if isinstance(one, str) else one)]
        done = z_order(
            self._spark,
            self._table,
            names,
            where=self._where,
            target_bytes=self._target_bytes(),
        )
        return self._told(done)

    def _target_bytes(self) -> int:
        return int(str(self._spark.conf.get(_TARGET, str(TARGET_BYTES))))

    def _told(self, done: Compaction) -> DataFrame:
        metrics = (
            done.files_added,
            done.files_removed,
            done.partitions,
            done.files_considered,
            done.bytes_added,
            done.bytes_removed,
        )
        return self._spark.createDataFrame(
            [(self._table.location, metrics)],
            "path string, metrics struct<numFilesAdded: bigint, numFilesRemoved: bigint, "
            "partitionsOptimized: bigint, totalConsideredFiles: bigint, bytesAdded: bigint, "
            "bytesRemoved: bigint>",
        )
