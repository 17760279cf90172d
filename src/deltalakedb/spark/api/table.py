"""`DeltaTable`: tables of a lake as users of Delta on Spark know them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.types import StructType as SparkStruct

from deltalakedb.actions.features import MAX_READER, MAX_WRITER, legacy_features, upgrade
from deltalakedb.advice import as_spark
from deltalakedb.arguments import (
    optional_text,
    refuse,
    require_flag,
    require_number,
    require_text,
    require_whole,
)
from deltalakedb.errors import (
    ConfigurationError,
    Fix,
    InvalidArgumentError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations.restore import Restore
from deltalakedb.operations.symlink_manifest import FOLDER
from deltalakedb.snapshot.resolve import to_datetime
from deltalakedb.spark.api.arguments import check_assignments, check_condition, parse_ddl
from deltalakedb.spark.api.errors import analysis_errors
from deltalakedb.spark.api.merge_builder import DeltaMergeBuilder
from deltalakedb.spark.api.optimize_builder import DeltaOptimizeBuilder
from deltalakedb.spark.api.session import default_properties, lake_of
from deltalakedb.spark.api.table_builder import DeltaTableBuilder, How
from deltalakedb.spark.dml.delete_update import delete, update
from deltalakedb.spark.io.hadoop import storage_options_of
from deltalakedb.spark.io.scan import scan
from deltalakedb.spark.io.timestamps import moment, session_zone
from deltalakedb.table import Table
from deltalakedb.transaction.commit import Committed

_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_HISTORY = (
    "version bigint, timestamp timestamp, userId string, userName string, operation string, "
    "operationParameters map<string,string>, job struct<jobId:string,jobName:string,"
    "jobRunId:string,runId:string,jobOwnerId:string,triggerType:string>, "
    "notebook struct<notebookId:string>, clusterId string, readVersion bigint, "
    "isolationLevel string, isBlindAppend boolean, operationMetrics map<string,string>, "
    "userMetadata string, engineInfo string"
)
_DETAIL = (
    "format string, id string, name string, description string, location string, "
    "createdAt timestamp, lastModified timestamp, partitionColumns array<string>, "
    "clusteringColumns array<string>, numFiles bigint, "
    "sizeInBytes bigint, properties map<string,string>, minReaderVersion int, "
    "minWriterVersion int, tableFeatures array<string>"
)


class DeltaTable:
    """A table of a lake, on Spark, with the methods of `delta.tables.DeltaTable`.

    Every change is one commit in the catalog, published to `_delta_log` like any other.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, table: Table, alias: str | None = None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._table = table
        self._alias = alias

    def __repr__(self) -> str:
        return f"DeltaTable({self._table.name!r}, location={self._table.location!r})"

    @classmethod
    def forName(
        cls,
        sparkSession: SparkSession,
        tableOrViewName: str,
        catalog: str | Lake | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """The table of that name in the catalog (or in that of `spark.deltalakedb.catalog`).

        "delta.`path`" names the table at a location.
        """
        name = require_text("tableOrViewName", tableOrViewName)
        lake = lake_of(sparkSession, catalog, storage_options)
        with analysis_errors():
            return cls(sparkSession, lake, lake.table(_identifier(name)))

    @classmethod
    def forPath(
        cls,
        sparkSession: SparkSession,
        path: str,
        hadoopConf: Mapping[str, str] | None = None,
        *,
        catalog: str | Lake | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """The table at that location in the catalog.

        `hadoopConf` has settings of Hadoop's connector for S3, such as `fs.s3a.access.key`. They
        are translated to options of the object store, unless `storage_options` are set.
        """
        require_text("path", path)
        if hadoopConf is not None and not isinstance(hadoopConf, Mapping):
            # Not its values: they may be secrets.
            raise InvalidArgumentError(
                f"hadoopConf is a {type(hadoopConf).__name__}",
                fix="Pass settings of Hadoop as a dict; a catalog is passed as catalog=…",
            )
        if hadoopConf and storage_options is None:
            storage_options = storage_options_of(hadoopConf)
        return cls.forName(sparkSession, path, catalog, storage_options)

    @classmethod
    def isDeltaTable(
        cls, sparkSession: SparkSession, identifier: str, catalog: str | Lake | None = None
    ) -> bool:
        """Whether the catalog has a table of that name or location."""
        name = _identifier(require_text("identifier", identifier))
        try:
            lake_of(sparkSession, catalog).table(name)
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def create(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """A builder of a new table; without a session, the active one is used."""
        return cls._builder(sparkSession, catalog, "create")

    @classmethod
    def createIfNotExists(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """The same; an existing table of that name stays as it is."""
        return cls._builder(sparkSession, catalog, "create if missing")

    @classmethod
    def replace(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """A builder of a table that replaces an existing one, whose history stays."""
        return cls._builder(sparkSession, catalog, "replace")

    @classmethod
    def createOrReplace(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """The same; a table that does not exist is created."""
        return cls._builder(sparkSession, catalog, "create or replace")

    @classmethod
    def _builder(
        cls, session: SparkSession | None, catalog: str | Lake | None, how: How
    ) -> DeltaTableBuilder:
        spark = _active() if session is None else session
        lake = lake_of(spark, catalog)
        return DeltaTableBuilder(spark, lake, lambda table: cls(spark, lake, table), how=how)

    @classmethod
    def convertToDelta(
        cls,
        sparkSession: SparkSession,
        identifier: str,
        partitionSchema: str | StructType | None = None,
        *,
        catalog: str | Lake | None = None,
        name: str | None = None,
    ) -> DeltaTable:
        """Convert a folder of Parquet files, "parquet.`path`", to a table.

        Partition columns have types, as "day date, n int" or as a StructType. The name of the table
        is by default the last part of the path.
        """
        require_text("identifier", identifier)
        lake = lake_of(sparkSession, catalog)
        partitions: Any = partitionSchema
        if isinstance(partitions, str):
            text = require_text("partitionSchema", partitions)
            what = f"{text!r} is no list of partition columns"
            fix = "Write each with its type, e.g. 'day date, n int'"
            partitions = parse_ddl(StructType, text, what, fix)
        path = _quoted_path("parquet", identifier)
        if path is None:
            raise InvalidArgumentError(
                f"{identifier!r} names no Parquet files",
                fix="Write parquet.`path`, with the path of their folder",
            )
        properties = default_properties(sparkSession)
        # Existing files have no column ids.
        properties.pop("delta.columnMapping.mode", None)
        zone = session_zone(sparkSession) or UTC
        with analysis_errors():
            table = lake.convert_table(
                path, name, partition_schema=partitions, properties=properties, zone=zone
            )
        return cls(sparkSession, lake, table)

    # --- reading ---------------------------------------------------------------------------

    def toDF(
        self,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        where: str | None = None,
        *,
        metadata: bool = False,
    ) -> DataFrame:
        """The rows now, at a version or at a timestamp; with `where`, those for a condition.

        - A timestamp as text without a time zone is in that of the session, in all methods.
        - With `metadata`, Spark's column `_metadata` can always be selected; without it, not if
          only a part of the files has deletion vectors.
        """
        require_flag("metadata", metadata)
        optional_text("where", where)
        then = None if timestamp is None else self._moment(timestamp)
        with analysis_errors():
            snapshot = self._table.snapshot(version, timestamp=then)
        return scan(self._spark, snapshot, where=where, metadata=metadata, alias=self._alias)

    def alias(self, aliasName: str) -> DeltaTable:
        """The same table, whose columns are `aliasName.column` in conditions."""
        alias = require_text("aliasName", aliasName)
        return DeltaTable(self._spark, self._lake, self._table, alias)

    def history(self, limit: int | None = None) -> DataFrame:
        """The commits, newest first."""
        rows = []
        for record in self._table.history(limit):
            info = record.commit_info
            fields: Mapping[str, Any] = {} if info is None else info.fields
            committed = to_datetime(record.committed_at)
            rows.append(
                (
                    record.version,
                    committed,
                    fields.get("userId"),
                    fields.get("userName") or record.committer,
                    fields.get("operation"),
                    _texts(fields.get("operationParameters")),
                    None,  # job, notebook and cluster: Delta's columns, which Databricks fills
                    None,
                    None,
                    fields.get("readVersion"),
                    fields.get("isolationLevel"),
                    fields.get("isBlindAppend"),
                    _texts(fields.get("operationMetrics")),
                    fields.get("userMetadata"),
                    fields.get("engineInfo"),
                )
            )
        return self._spark.createDataFrame(rows, _HISTORY)

    def detail(self) -> DataFrame:
        """The metadata of the table in one row."""
        snapshot = self._table.snapshot()
        metadata, protocol = snapshot.metadata, snapshot.protocol
        created = metadata.created_time
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        row = (
            "delta",
            metadata.id,
            self._table.name,
            metadata.description,
            self._table.location,
            None if created is None else datetime.fromtimestamp(created / 1000, UTC),
            snapshot.timestamp,
            list(snapshot.partition_columns),
            list(snapshot.clustering_columns),
            snapshot.num_files,
            snapshot.size_bytes,
            dict(snapshot.properties),
            protocol.min_reader_version,
            protocol.min_writer_version,
            sorted(features),
        )
        return self._spark.createDataFrame([row], _DETAIL)

    # --- changing rows -----------------------------------------------------------------------

    def delete(self, condition: str | Column | None = None) -> DataFrame:
        """Delete the rows for which a condition is true, or all; return their number."""
        if condition is not None:
            check_condition(condition)
        done = delete(self._spark, self._table, condition, alias=self._alias)
        return self._affected(done, "numDeletedRows")

    def update(
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002 - Delta's name
    ) -> DataFrame:
        """Set columns of the rows for which a condition is true, or of all; return their number."""
        if condition is not None and set is not None:
            # Without `set`, the error is that: its columns were passed as the condition.
            check_condition(condition)
        values = check_assignments("set", set)
        done = update(self._spark, self._table, condition, values, alias=self._alias)
        return self._affected(done, "numUpdatedRows")

    def merge(self, source: DataFrame, condition: str | Column) -> DeltaMergeBuilder:
        """Merge rows of a source; add clauses, then `execute()`."""
        return DeltaMergeBuilder(self._spark, self._table, source, condition, self._alias)

    # --- maintenance -------------------------------------------------------------------------

    def optimize(self) -> DeltaOptimizeBuilder:
        """A builder of an OPTIMIZE: `executeCompaction()`, or `executeZOrderBy("id")`."""
        return DeltaOptimizeBuilder(self._spark, self._table)

    def vacuum(self, retentionHours: float | None = None) -> DataFrame:
        """Delete files that no version within the retention needs; return an empty frame.

        A retention below that of the table is refused unless the session sets
        `spark.databricks.delta.retentionDurationCheck.enabled` to false.
        """
        if retentionHours is not None:
            require_number("retentionHours", retentionHours)
        check = self._spark.conf.get(_RETENTION_CHECK, "true")
        try:
            self._table.vacuum(
                retention_hours=retentionHours,
                allow_short_retention=str(check).lower() == "false",
            )
        except ConfigurationError as error:
            raise type(error)(error.what, why=error.why, fix=as_spark(error.fix)) from None

        return self._spark.createDataFrame([], SparkStruct([]))

    def generate(self, mode: str) -> None:
        """Write manifests of the table's files, for readers without support of Delta.

        The mode is `symlink_format_manifest`: a file for each partition below the folder
        `_symlink_format_manifest` of the table, for Presto, Athena and Hive. It is valid until the
        next commit; tables with deletion vectors or column mapping are refused.
        """
        known = FOLDER.removeprefix("_")
        if require_text("mode", mode).lower() != known:
            raise InvalidArgumentError(
                f"{mode!r} cannot be generated", fix=f"The mode is {known!r}"
            )
        self._table.symlink_manifests()

    def restoreToVersion(self, version: int) -> DataFrame:
        """Restore the table to an earlier version, as a new commit."""
        require_whole("version", version)
        with analysis_errors():
            return self._restored(self._table.restore(version=version))

    def restoreToTimestamp(self, timestamp: datetime | str) -> DataFrame:
        """Restore the table to its state at a timestamp, as a new commit."""
        with analysis_errors():
            return self._restored(self._table.restore(timestamp=self._moment(timestamp)))

    # --- other tables ------------------------------------------------------------------------

    def clone(
        self,
        target: str,
        isShallow: bool = False,  # noqa: FBT001, FBT002 - Delta's
        replace: bool = False,  # noqa: FBT001, FBT002
        properties: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
    ) -> DeltaTable:
        """Create a shallow clone of the table at the location `target`.

        Its name is by default the last part of the location.
        """
        return self._clone(target, isShallow, replace=replace, properties=properties, name=name)

    def cloneAtVersion(
        self,
        version: int,
        target: str,
        isShallow: bool = False,  # noqa: FBT001, FBT002
        replace: bool = False,  # noqa: FBT001, FBT002
        properties: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
    ) -> DeltaTable:
        """Create a shallow clone of a version."""
        require_whole("version", version)
        return self._clone(
            target, isShallow, version=version, replace=replace, properties=properties, name=name
        )

    def cloneAtTimestamp(
        self,
        timestamp: datetime | str,
        target: str,
        isShallow: bool = False,  # noqa: FBT001, FBT002
        replace: bool = False,  # noqa: FBT001, FBT002
        properties: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
    ) -> DeltaTable:
        """Create a shallow clone of the table at a timestamp."""
        return self._clone(
            target,
            isShallow,
            timestamp=self._moment(timestamp),
            replace=replace,
            properties=properties,
            name=name,
        )

    def _clone(self, target: str, is_shallow: bool, **options: Any) -> DeltaTable:  # noqa: FBT001
        if not require_flag("isShallow", is_shallow):
            raise UnsupportedFeatureError(
                f"Table {self._table.name!r} cannot be cloned with its data",
                why="Clones are shallow: they name the files of their source",
                fix="Pass isShallow=True; for a copy of the rows create a table, and append toDF()",
            )
        with analysis_errors():
            table = self._lake.clone_table(self._table.name, target, **options)
        return DeltaTable(self._spark, self._lake, table)

    def _moment(self, timestamp: datetime | str) -> datetime:
        return moment(timestamp, session_zone(self._spark))

    def _restored(self, done: Restore) -> DataFrame:
        row = (
            done.bytes,
            done.files,
            done.files_removed,
            done.files_restored,
            done.bytes_removed,
            done.bytes_restored,
        )
        return self._spark.createDataFrame(
            [row],
            "table_size_after_restore bigint, num_of_files_after_restore bigint, "
            "num_removed_files bigint, num_restored_files bigint, removed_files_size bigint, "
            "restored_files_size bigint",
        )

    def addFeatureSupport(self, featureName: str) -> None:
        """Add a table feature to the protocol."""
        self._table.upgrade_protocol(require_text("featureName", featureName))

    def dropFeatureSupport(self, featureName: str, truncateHistory: bool | None = None) -> None:  # noqa: FBT001
        """Remove a table feature that the table does not use from the protocol."""
        require_text("featureName", featureName)
        if truncateHistory is not None and require_flag("truncateHistory", truncateHistory):
            raise UnsupportedFeatureError(
                "History is not truncated to drop a feature",
                why="Older versions would be lost",
                fix=f"Leave truncateHistory out; see {Fix('lake.expire', ...)} for old versions",
            )
        self._table.drop_feature(featureName)

    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Raise the protocol to these versions; a version that is as high stays.

        Versions up to 2 and 6 stand for features, which are added. Reader version 3 and writer
        version 7 stand for none, as in Delta: `addFeatureSupport` adds features.
        """
        protocol = self._table.snapshot().protocol
        wanted = legacy_features(
            _protocol_version("readerVersion", readerVersion, MAX_READER),
            _protocol_version("writerVersion", writerVersion, MAX_WRITER),
        )
        if upgrade(protocol, wanted) != protocol:
            self._table.upgrade_protocol(*wanted)

    def _affected(self, committed: Committed | None, metric: str) -> DataFrame:
        rows = 0
        if committed is not None:
            # Not the newest commit: another writer may have committed since.
            at = to_datetime(committed.timestamp)
            info = self._table.history(1, since=at, until=at)[0].commit_info
            metrics = (info and info.operation_metrics) or {}
            rows = int(metrics.get(metric, -1))
        return self._spark.createDataFrame([(rows,)], "num_affected_rows bigint")


def _protocol_version(name: str, value: int, most: int) -> int:
    if require_whole(name, value, least=1) > most:
        refuse(name, value, f"one of the versions 1 to {most}")
    return value


def _active() -> SparkSession:
    session = SparkSession.getActiveSession()
    if session is None:
        raise ConfigurationError(
            "There is no active session of Spark", fix="Pass one, or create one before"
        )
    return session


def _identifier(name: str) -> str:
    """A name or location; Spark writes a table by its location as "delta.`path`"."""
    return _quoted_path("delta", name) or name


def _quoted_path(kind: str, identifier: str) -> str | None:
    match = re.fullmatch(rf"\s*{kind}\s*\.\s*`((?:[^`]|``)+)`\s*", identifier, re.IGNORECASE)
    return None if match is None else match[1].replace("``", "`")


def _texts(values: Mapping[str, Any] | None) -> dict[str, str] | None:
    if values is None:
        return None
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value is not None
    }
