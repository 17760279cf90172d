"""The builder of an OPTIMIZE, as in `delta.tables.DeltaOptimizeBuilder`."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from deltalakedb.arguments import require_text
from deltalakedb.errors import ConfigurationError
from deltalakedb.operations.compact import TARGET_BYTES, Compaction
from deltalakedb.spark.api.arguments import column_names
from deltalakedb.spark.dml.optimize import cluster, optimize, z_order
from deltalakedb.spark.io.spark_internals import is_connect
from deltalakedb.staging.counting import Covered
from deltalakedb.table import Table

_TARGET = "spark.databricks.delta.optimize.maxFileSize"
_SIZES = "struct<min: bigint, max: bigint, avg: double, totalFiles: bigint, totalSize: bigint>"
_CUBE = "struct<num: bigint, size: bigint>"
_CLUSTER = "struct<numFiles: bigint, size: bigint>"
# The columns of Delta, in its order.
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
    """The builder of an OPTIMIZE; the `execute…` methods run it as one commit."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = table
        self._where: str | None = None

    def where(self, partitionFilter: str) -> DeltaOptimizeBuilder:
        """Optimise only partitions for which a condition is true."""
        self._where = require_text("partitionFilter", partitionFilter)
        return self

    def executeCompaction(self) -> DataFrame:
        """Rewrite small files as large ones; return the metrics in one row.

        Rows of a table with clustering columns are ordered by them.
        """
        snapshot = self._table.snapshot()
        started = self._table.now_ms()
        target = self._target_bytes()
        if snapshot.clustering_columns:
            if self._where is not None:
                raise ConfigurationError(
                    f"Table {self._table.name!r} is clustered, and has no partitions to name",
                    fix="Leave where() out",
                )
            done = cluster(self._spark, self._table, snapshot, target_bytes=target)
            return self._metrics(done, started, clustered=True)
        done = optimize(self._spark, self._table, where=self._where, target_bytes=target)
        return self._metrics(done, started)

    def executeZOrderBy(self, *cols: str | list[str] | tuple[str, ...]) -> DataFrame:
        """Rewrite all rows along a Z-curve of columns; return the metrics in one row.

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
        target = self._target_bytes()
        done = z_order(self._spark, self._table, names, where=self._where, target_bytes=target)
        return self._metrics(done, started, ordered=True)

    def _target_bytes(self) -> int:
        return int(str(self._spark.conf.get(_TARGET, str(TARGET_BYTES))))

    def _metrics(
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
            1,  # batches: Delta counts one even where there is nothing to do
            done.files_considered,
            done.files_considered - done.files_removed,
            False,
            0,
            0,
            started,
            self._table.now_ms(),
            int(self._spark.sparkContext.defaultParallelism) if not is_connect(self._spark) else 0,
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
