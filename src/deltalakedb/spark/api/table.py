"""`DeltaTable`: tables of a lake as users of Delta on Spark know them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
from deltalakedb.operations.restore import Restore
from deltalakedb.operations.symlink_manifest import FOLDER
from deltalakedb.snapshot.resolve import to_datetime
from deltalakedb.spark.api.arguments import check_assignments, check_condition
from deltalakedb.spark.api.errors import SparkParseError, analysis_errors
from deltalakedb.spark.api.lakes import lake_of
from deltalakedb.spark.api.merge_builder import DeltaMergeBuilder
from deltalakedb.spark.api.optimize_builder import DeltaOptimizeBuilder
from deltalakedb.spark.api.session import default_properties
from deltalakedb.spark.api.table_builder import DeltaTableBuilder, How
from deltalakedb.spark.dml.delete_update import delete, update
from deltalakedb.spark.io.hadoop import storage_options_of
from deltalakedb.spark.io.scan import scan, session_zone
from deltalakedb.spark.io.timestamps import moment

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from deltalakedb.lake import Lake
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
    """A table of a lake, on Spark. Names and meanings are those of `delta.tables.DeltaTable`.

    Every change is one commit in the catalog, published to `_delta_log` as all others are.
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
            return cls(sparkSession, lake, lake.table(_identified(name)))

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

        `hadoopConf` are settings of Hadoop's connector for S3, such as `fs.s3a.access.key`: they
        are taken for the options of the object store of that name, unless these are given.
        """
        require_text("path", path)
        if hadoopConf is not None and not isinstance(hadoopConf, Mapping):
            # Not its values: some are secrets.
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
        name = _identified(require_text("identifier", identifier))
        try:
            lake_of(sparkSession, catalog).table(name)
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def create(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """Put a new table together; `execute()` creates it. Without a session: the active one."""
        return cls._builder(sparkSession, catalog, "create")

    @classmethod
    def createIfNotExists(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """The same; a table of that name that is there already is left as it is."""
        return cls._builder(sparkSession, catalog, "create if missing")

    @classmethod
    def replace(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """Put a table together that takes the place of one that is there; its history stays."""
        return cls._builder(sparkSession, catalog, "replace")

    @classmethod
    def createOrReplace(
        cls, sparkSession: SparkSession | None = None, *, catalog: str | Lake | None = None
    ) -> DeltaTableBuilder:
        """The same; where there is no such table, it is created."""
        return cls._builder(sparkSession, catalog, "create or replace")

    @classmethod
    def _builder(
        cls, given: SparkSession | None, catalog: str | Lake | None, how: How
    ) -> DeltaTableBuilder:
        spark = _active() if given is None else given
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
        """Make a table of Parquet files where they lie: "parquet.`path`".

        Partition columns come with their types, as "day date, n int" or as a StructType. The table
        is called like the last part of the path, unless a name is given.
        """
        require_text("identifier", identifier)
        lake = lake_of(sparkSession, catalog)
        given: Any = partitionSchema
        if isinstance(given, str):
            given = _parsed_ddl(require_text("partitionSchema", given))
        zone = session_zone(sparkSession)
        path = _parquet_path(identifier)
        properties = default_properties(sparkSession)
        # Files that are there already know nothing of it.
        properties.pop("delta.columnMapping.mode", None)
        with analysis_errors():
            table = lake.convert_table(
                path, name, partition_schema=given, properties=properties, zone=zone or UTC
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
        """The rows now, at a version, or as they were at a time; those for a condition only.

        Text without a time zone is in that of the session, here and wherever a time is given.
        With `metadata` Spark's `_metadata` columns can be selected in any case; without it they are
        not there where some files have deletion vectors, and others have none.
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
        """What is known of the table now, in one row."""
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
        """Delete the rows for which a condition is true, or all; how many."""
        if condition is not None:
            check_condition(condition)
        done = delete(self._spark, self._table, condition, alias=self._alias)
        return self._affected(done, "numDeletedRows")

    def update(
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002 - Delta's name
    ) -> DataFrame:
        """Set columns of the rows for which a condition is true, or of all; how many."""
        if condition is not None and set is not None:
            # Where `set` is missing, that is what is wrong: columns stand in its place.
            check_condition(condition)
        values = check_assignments("set", set)
        done = update(self._spark, self._table, condition, values, alias=self._alias)
        return self._affected(done, "numUpdatedRows")

    def merge(self, source: DataFrame, condition: str | Column) -> DeltaMergeBuilder:
        """Merge rows of a source; add clauses, then `execute()`."""
        return DeltaMergeBuilder(self._spark, self._table, source, condition, self._alias)

    # --- keeping it in order -----------------------------------------------------------------

    def optimize(self) -> DeltaOptimizeBuilder:
        """Large files of small ones: `executeCompaction()`, or `executeZOrderBy("id")`."""
        return DeltaOptimizeBuilder(self._spark, self._table)

    def vacuum(self, retentionHours: float | None = None) -> DataFrame:
        """Delete files that no version within the retention needs; an empty frame, as in Delta.

        Less than the table's retention is refused unless the session sets
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
        from pyspark.sql.types import StructType as SparkStruct

        return self._spark.createDataFrame([], SparkStruct([]))

    def generate(self, mode: str) -> None:
        """Write manifests of the table's files, for readers that know no Delta log.

        The mode is `symlink_format_manifest`: a file for each partition below the folder
        `_symlink_format_manifest` of the table, for Presto, Athena and Hive. It is right until the
        next commit; tables with deletion vectors or column mapping are refused.
        """
        known = FOLDER.removeprefix("_")
        if require_text("mode", mode).lower() != known:
            raise InvalidArgumentError(
                f"{mode!r} cannot be generated", fix=f"The mode is {known!r}"
            )
        self._table.symlink_manifests()

    def restoreToVersion(self, version: int) -> DataFrame:
        """Commit a version that is what the table was at an earlier one."""
        require_whole("version", version)
        with analysis_errors():
            return self._restored(self._table.restore(version=version))

    def restoreToTimestamp(self, timestamp: datetime | str) -> DataFrame:
        """Commit a version that is what the table was at a time."""
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
        """Make a shallow clone of the table at the location `target`.

        Its name is the last part of the location, unless it is given.
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
        """Make a shallow clone of a version."""
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
        """Make a shallow clone of the table as it was at a time."""
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
            made = self._lake.clone_table(self._table.name, target, **options)
        return DeltaTable(self._spark, self._lake, made)

    def _moment(self, given: datetime | str) -> datetime:
        return moment(given, session_zone(self._spark))

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
        """Take a table feature out of the protocol that nothing of the table uses."""
        require_text("featureName", featureName)
        if truncateHistory is not None and require_flag("truncateHistory", truncateHistory):
            raise UnsupportedFeatureError(
                "History is not truncated to drop a feature",
                why="Older versions would be lost",
                fix=f"Leave truncateHistory out; see {Fix('lake.expire', ...)} for old versions",
            )
        self._table.drop_feature(featureName)

    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Raise the protocol to versions; one that is as high already stays.

        Versions up to 2 and 6 stand for features, which the table gets. Reader version 3 and writer
        version 7 stand for none, as in Delta: features are added by `addFeatureSupport`.
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
            # Not the newest one: others commit too.
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
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is None:
        raise ConfigurationError(
            "There is no active session of Spark", fix="Pass one, or create one before"
        )
    return found


def _identified(name: str) -> str:
    """A name or location; "delta.`path`" is what Spark calls a table by its location."""
    return _quoted_path("delta", name) or name


def _quoted_path(kind: str, identifier: str) -> str | None:
    found = re.fullmatch(rf"\s*{kind}\s*\.\s*`((?:[^`]|``)+)`\s*", identifier, re.IGNORECASE)
    return None if found is None else found[1].replace("``", "`")


def _parquet_path(identifier: str) -> str:
    found = _quoted_path("parquet", identifier)
    if found is None:
        raise InvalidArgumentError(
            f"{identifier!r} names no Parquet files",
            fix="Write parquet.`path`, with the path of their folder",
        )
    return found


def _parsed_ddl(text: str) -> Any:
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromDDL(text)
    except ParseException as error:
        raise SparkParseError(
            f"{text!r} is no list of partition columns",
            why=str(error).strip().partition("\n")[0],
            fix="Write each with its type, e.g. 'day date, n int'",
        ) from None


def _texts(values: Mapping[str, Any] | None) -> dict[str, str] | None:
    if values is None:
        return None
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value is not None
    }
