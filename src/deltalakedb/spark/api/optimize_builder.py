"""OPTIMIZE as it is put together, as in `delta.tables.DeltaOptimizeBuilder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltalakedb.arguments import require_text
from deltalakedb.errors import ConfigurationError
from deltalakedb.operations.compact import TARGET_BYTES, Compaction
from deltalakedb.spark.api.arguments import column_names
from deltalakedb.spark.dml.optimize import cluster, optimize, z_order
from deltalakedb.staging.counting import Covered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.table import Table

_TARGET = "spark.databricks.delta.optimize.maxFileSize"
_SIZES = "struct<min: bigint, max: bigint, avg: double, totalFiles: bigint, totalSize: bigint>"
_CUBE = "struct<num: bigint, size: bigint>"
_CLUSTER = "struct<numFiles: bigint, size: bigint>"
# As Delta has it, in its order.
_METRICS = (
    f"numFilesAdded: bigint, numFilesRemoved: bigint, filesAdded: {_SIZES}, "
    f"filesRemoved: {_SIZES}, partitionsOptimized: bigint, zOrderStats: struct<strategyName: "
    f"string, inputCubeFiles: {_CUBE}, inputOtherFiles: {_CUBE}, inputNumCubes: bigint, "
    f"mergedFiles: {_CUBE}, numOutputCubes: bigint, mergedNumCubes: bigint>, clusteringStats: "
    f"struct<inputZCubeFiles: {_CLUSTER}, inputOtherFiles: {_CLUSTER}, inputNumZCubes: bigint, "
    f"mergedFiles: {_CLUSTER}, numOutputZCubes: bigint>, numBins: bigint, numBatches: bigint, "
    "totalConsideredFiles: bigint, totalFilesSkipped: bigint, preserveInsertionOrder: boolean, "
    "numFilesSkippedToReduceWriteAmplification: bigint, "
    "numBytesSkippedToReduceWriteAmplification: bigint, startTimeMs: bigint, endTimeMs: bigint, "
    "totalClusterParallelism: bigint, totalScheduledTasks: bigint, autoCompactParallelismStats: "
    "struct<maxClusterActiveParallelism: bigint, minClusterActiveParallelism: bigint, "
    "maxSessionActiveParallelism: bigint, minSessionActiveParallelism: bigint>, "
    "deletionVectorStats: struct<numDeletionVectorsRemoved: bigint, "
    "numDeletionVectorRowsRemoved: bigint>, numTableColumns: bigint, "
    "numTableColumnsWithStats: bigint"
)


class DeltaOptimizeBuilder:
    """An OPTIMIZE of a table; the `execute…` methods do it, in one version."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = table
        self._where: str | None = None

    def where(self, partitionFilter: str) -> DeltaOptimizeBuilder:
        """Only partitions for which this is true."""
        self._where = require_text("partitionFilter", partitionFilter)
        return self

    def executeCompaction(self) -> DataFrame:
        """Make large files of small ones; what was done, in one row.

        Rows of a table with clustering columns are ordered by them.
        """
        snapshot = self._table.snapshot()
        started = self._table.now_ms()
        if snapshot.clustering_columns:
            if self._where is not None:
                raise ConfigurationError(
                    f"Table {self._table.name!r} is clustered, and has no partitions to name",
                    fix="Leave where() out",
                )
            target = self._target_bytes()
            done = cluster(self._spark, self._table, snapshot, target_bytes=target)
            return self._told(done, started, clustered=True)
        done = optimize(
            self._spark, self._table, where=self._where, target_bytes=self._target_bytes()
        )
        return self._told(done, started)

    def executeZOrderBy(self, *cols: str | list[str] | tuple[str, ...]) -> DataFrame:
        """Write rows anew along a Z-curve of columns; what was done, in one row.

        A field of a struct is named by its path, as in "address.city".
        """
        names = column_names("cols", cols)
        by = self._table.snapshot().clustering_columns
        if by:
            raise ConfigurationError(
                f"Table {self._table.name!r} is clustered by {', '.join(by)}",
                why="Another order would undo that",
                fix="Use executeCompaction(), or cluster the table by other columns: cluster_by",
            )
        started = self._table.now_ms()
        done = z_order(
            self._spark,
            self._table,
            names,
            where=self._where,
            target_bytes=self._target_bytes(),
        )
        return self._told(done, started, ordered=True)

    def _target_bytes(self) -> int:
        return int(str(self._spark.conf.get(_TARGET, str(TARGET_BYTES))))

    def _told(
        self, done: Compaction, started: int, *, ordered: bool = False, clustered: bool = False
    ) -> DataFrame:
        snapshot = self._table.snapshot()
        details = done.details
        read = (done.files_removed, done.bytes_removed)
        features = snapshot.protocol.writer_features or ()
        vectors = (details.vectors, details.hidden_rows)
        covered = Covered(snapshot.schema, snapshot.partition_columns, snapshot.properties)
        metrics = (
            done.files_added,
            done.files_removed,
            _sizes(details.added),
            _sizes(details.removed),
            done.partitions,
            ("all", (0, 0), read, 0, read, details.bins, None) if ordered else None,
            ((0, 0), read, 0, read, details.bins) if clustered else None,
            details.bins,
            1,  # batches: one commit, as Delta counts them where nothing was to be done, too
            done.files_considered,
            done.files_considered - done.files_removed,
            False,
            0,
            0,
            started,
            self._table.now_ms(),
            int(self._spark.sparkContext.defaultParallelism) if _is_classic(self._spark) else 0,
            details.bins,
            None,
            vectors if "deletionVectors" in features else None,
            len(snapshot.schema.fields),
            len(covered.columns),
        )
        return self._spark.createDataFrame(
            [(self._table.location, metrics)], f"path string, metrics struct<{_METRICS}>"
        )


def _sizes(sizes: Sequence[int]) -> tuple[int | None, int | None, float, int, int]:
    if not sizes:
        return None, None, 0.0, 0, 0
    total = sum(sizes)
    return min(sizes), max(sizes), total / len(sizes), len(sizes), total


def _is_classic(spark: SparkSession) -> bool:
    return not type(spark).__module__.startswith("pyspark.sql.connect")
