"""Snapshots as DataFrames, read by Spark's own vectorised scan.

The catalog has pruned the files; Spark lists nothing.

- Partition values come from the names of the directories, if these agree with the log; otherwise
  from a join with the values by file, which works for any layout.
- Rows that deletion vectors hide are left out by an anti-join on file and row number, only for
  files that have deletion vectors.
- Columns of tables with column mapping are read by their physical names or ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import StringType
from pyspark.sql.types import StructType as SparkStruct

from deltalakedb.actions import Metadata
from deltalakedb.actions.arrow import type_to_arrow
from deltalakedb.actions.datatypes import (
    VOID,
    ArrayType,
    MapType,
    StructField,
    StructType,
    physical_name,
    schema_to_json,
    with_nulls,
)
from deltalakedb.actions.features import writer_features
from deltalakedb.actions.partition import decode_partition_value, decode_path, partition_directory
from deltalakedb.conditions.predicate import Opaque, Predicate
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import InvalidConditionError, UnsupportedFeatureError
from deltalakedb.reading.data_files import DataFile, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.snapshot import Snapshot
from deltalakedb.spark.io.file_columns import (
    field_in_files,
    mapping_mode,
    name_in_files,
    to_spark,
)
from deltalakedb.spark.io.file_index import LakeScans, lake_scans
from deltalakedb.spark.io.file_list import distinct, spark_file_list
from deltalakedb.spark.io.hadoop import hadoop_options, require_connector
from deltalakedb.spark.io.paths import hadoop_uri, metadata_path
from deltalakedb.spark.io.positions import without
from deltalakedb.spark.io.spark_internals import cloned_reader, in_session, is_connect
from deltalakedb.spark.io.timestamps import session_zone
from deltalakedb.storage.locations import FilePlaces

FILE_COLUMNS: Final = (
    *("path", "dv_id", "size_bytes", "modification_time", "partition_values"),
    "deletion_vector",
)
FILE: Final = "__deltalakedb_file"
"""The column with the file of a row, as Spark names files."""
ROW: Final = "__deltalakedb_row"
"""The column with the number of a row in its file."""
# Settings that change how Spark reads quotes and backslashes.
_OTHER_TEXTS: Final = (
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.legacy.consecutiveStringLiterals.enabled",
)
# Columns are read by their ids. Spark's reader of single rows looks this setting up in the session
# that runs the query, and not in that of the scan, and would read nulls: so vectors are required.
_BY_ID: Final = {
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.sql.sources.useV1SourceList": "parquet",
}
# Types whose text in a directory Spark reads as the log has it, in any time zone of the session.
_BY_DIRECTORY: Final = frozenset(
    {"string", "long", "integer", "short", "byte", "boolean", "date", "double", "float"}
)


def scan(
    spark: SparkSession,
    snapshot: Snapshot,
    *,
    where: str | None = None,
    metadata: bool = False,
    alias: str | None = None,
) -> DataFrame:
    """The rows of a snapshot, or those that fulfil a condition in Spark's SQL.

    - The condition prunes files by partition values and statistics, and filters the rows.
    - With `metadata`, Spark's hidden column `_metadata` can always be selected; otherwise only if
      no files, or all of them, have deletion vectors.
    - Columns can be named with the `alias` of the table, also in the condition.
    """
    predicate = None
    if where is not None:
        predicate = planned(spark, snapshot.metadata, where, alias=alias)
    # A snapshot that reports its reads, or has files that are not committed, lists them here.
    scans = lake_scans(spark) if type(snapshot) is Snapshot else None
    frame = None
    if scans is not None:
        planned_where = None if isinstance(predicate, Opaque) else where
        frame = _Reader(spark, snapshot, not_null=True).lazy(scans, planned_where, alias)
    if frame is None:
        files = snapshot.files(where=predicate, columns=FILE_COLUMNS)
        frame = scan_files(spark, snapshot, files, metadata=metadata, not_null=True)
    if where is None:
        return frame if alias is None else frame.alias(alias)
    with refusing(where):
        return (frame if alias is None else frame.alias(alias)).where(where)


@contextmanager
def refusing(condition: Any) -> Iterator[None]:
    """Raise InvalidConditionError where Spark cannot resolve a condition."""
    try:
        yield
    except AnalysisException as error:
        raise InvalidConditionError(
            f"The condition {condition!s} cannot be used",
            why=spark_says(error),
            fix="Correct it: columns are named as in the table",
        ) from error


def spark_says(error: Exception) -> str:
    """The message of an error of Spark's analysis, without plans and stack traces."""
    return str(error).split("\n\nJVM stacktrace")[0].split(";\n")[0]


def planned(
    spark: SparkSession, metadata: Metadata, where: str, *, alias: str | None = None
) -> Predicate:
    """A condition in Spark's SQL as a predicate, as far as the catalog can prune files by it.

    Parts that cannot be translated prune nothing; Spark reports errors. Timestamps without a zone
    are in that of the session, as in Spark.
    """
    zone = session_zone(spark)
    others = (str(spark.conf.get(key, "false")).lower() == "true" for key in _OTHER_TEXTS)
    if zone is None or any(others):
        return Opaque(where)
    try:
        return parse_where(
            where,
            metadata.schema,
            metadata.partition_columns,
            strict=False,
            zone=zone,
            alias=alias,
        )
    except InvalidConditionError:
        return Opaque(where)


def scan_files(
    spark: SparkSession,
    snapshot: Snapshot,
    files: pa.Table,
    *,
    with_position: bool = False,
    metadata: bool = False,
    not_null: bool = False,
) -> DataFrame:
    """The rows of files of a snapshot (see FILE_COLUMNS).

    - `with_position` adds the columns FILE and ROW, for changes of rows.
    - `metadata` avoids a union of files with and without deletion vectors, which has no column
      `_metadata`: the anti-join then covers all files.
    - `not_null` declares columns NOT NULL as in the table; without it, rows that break this rule
      are read as they are, and can be rewritten.
    """
    if is_connect(spark):
        raise UnsupportedFeatureError(
            f"Table {snapshot.table.name!r} cannot be read or changed this way by Spark Connect",
            why="Spark reads the list of files from a folder that the server does not have",
            fix='Read and write by format("deltalakedb"), or use a classic session of Spark for '
            "toDF, delete, update and merge",
        )
    reader = _Reader(spark, snapshot, not_null=not_null)
    has_vector = pc.is_valid(files["deletion_vector"])
    plain, marked = files.filter(pc.invert(has_vector)), files.filter(has_vector)
    if not marked.num_rows:
        return reader.read(plain, with_position=with_position)
    if metadata or not plain.num_rows:
        return reader.without_deleted(files, with_position=with_position)
    rest = reader.without_deleted(marked, with_position=with_position)
    return reader.read(plain, with_position=with_position).unionByName(rest)


class _Reader:
    """Reads files of one snapshot."""

    def __init__(self, spark: SparkSession, snapshot: Snapshot, *, not_null: bool) -> None:
        require_connector(spark, snapshot.table.location)
        self._spark = spark
        self._not_null = not_null
        self._snapshot = snapshot
        self._location = snapshot.table.location
        self._schema = snapshot.schema
        self._mode = mapping_mode(snapshot)
        self._partitions = [self._schema.field(name) for name in snapshot.partition_columns]
        names = {field.name for field in self._partitions}
        self._data = [f for f in self._schema.fields if f.name not in names and f.type != VOID]

    def lazy(self, scans: LakeScans, where: str | None, alias: str | None) -> DataFrame | None:
        """The live rows of the snapshot; its files are listed when Spark has its filters.

        None where Spark would copy the deleted rows of a file for each of its rows.
        """
        partitions = [
            StructField(name_in_files(self._snapshot, field), field.type)
            for field in self._partitions
        ]
        data = to_spark(self._data_fields())
        settings = _BY_ID if self._mode == "id" else {}
        deletes = "deletionVectors" in writer_features(self._snapshot.protocol)
        if deletes and not scans.is_vectorised(data, settings):
            return None
        frame = scans.open(
            self._snapshot,
            where=where,
            alias=alias,
            data=data,
            partitions=to_spark(self._as_declared(partitions, self._partitions)),
            options=self._options(),
            settings=settings,
            has_deleted_rows=deletes,
        )
        named = zip(self._partitions, partitions, strict=True)
        return frame.select(
            *self._columns({field.name: F.col(quoted(one.name)) for field, one in named})
        )

    def read(self, files: pa.Table, *, with_position: bool) -> DataFrame:
        """The rows of files, deleted ones included."""
        extra: list[Column] = []
        if with_position:
            extra = [
                F.col("_metadata.file_path").alias(FILE),
                F.col("_metadata.row_index").alias(ROW),
            ]
        if self._partitions and not self._directories_agree(files):
            return self._joined(files, extra)
        partitions = self._partitions if files.num_rows or self._mode == "none" else []
        frame = self._open(files, partitions)
        if not extra and self._needs_no_names(partitions):
            # Spark can insert into a view of a plain scan, and the rows would go to the folder of
            # the list. It cannot insert into a projection, which costs nothing.
            return frame.select("*")
        return frame.select(
            *self._columns({f.name: F.col(quoted(f.name)) for f in partitions}), *extra
        )

    def _needs_no_names(self, partitions: Sequence[StructField]) -> bool:
        """Whether the columns of the files are those of the table, in their order."""
        return (
            self._mode == "none"
            and [*self._data, *partitions] == list(self._schema.fields)
            and all(f.name == physical_name(f) and not _own_metadata(f) for f in self._data)
            and not any(_own_metadata(field) for field in partitions)
        )

    def without_deleted(self, files: pa.Table, *, with_position: bool) -> DataFrame:
        """The rows of files without deleted ones; `_metadata` can still be selected."""
        rows = self.read(files, with_position=with_position)
        hidden = self._hidden(files)
        if not hidden:
            return rows
        file, row = (FILE, ROW) if with_position else ("_metadata.file_path", "_metadata.row_index")
        return without(rows, hidden, file=file, row=row)

    def _hidden(self, files: pa.Table) -> dict[str, pa.Array]:
        """The numbers of the rows that are deleted, by Spark's name of their file."""
        layout = layout_of(self._snapshot)
        hidden: dict[str, pa.Array] = {}
        for row in files.to_pylist():
            if row["deletion_vector"] is None:
                continue
            file = DataFile(row["path"], row["partition_values"], row["deletion_vector"])
            deleted = deleted_rows(layout, file)
            if deleted is not None and deleted.cardinality:
                name = metadata_path(hadoop_uri(self._location, row["path"]))
                hidden[name] = deleted.numbers()
        return hidden

    # --- reading --------------------------------------------------------------------------

    def _open(self, files: pa.Table, partitions: Sequence[StructField]) -> DataFrame:
        """Spark's own scan of the files, with physical names."""
        by_id = self._mode == "id"
        reader = cloned_reader(self._spark, _BY_ID) if by_id else self._spark.read
        named = self._as_declared([StructField(f.name, f.type) for f in partitions], partitions)
        schema = to_spark([*self._data_fields(), *named])
        reader = reader.schema(schema).options(**self._options())
        if not partitions:
            # Otherwise a folder above the table named a=b would add a column.
            reader = reader.option("recursiveFileLookup", "true")
        places = FilePlaces(self._location, self._snapshot.table.allowed_roots)
        with spark_file_list(places, files) as folder:
            frame = reader.parquet(folder)
        return in_session(self._spark, frame) if by_id else frame

    def _options(self) -> dict[str, str]:
        return {
            # Rows of an ignored file would be lost by the next DML.
            "ignoreCorruptFiles": "false",
            "ignoreMissingFiles": "false",
            **hadoop_options(self._location, self._snapshot.storage_options),
        }

    def _data_fields(self) -> list[StructField]:
        """The columns of the files."""
        fields = [field_in_files(field, ids=self._mode == "id") for field in self._data]
        return self._as_declared(fields, self._data)

    def _as_declared(
        self, fields: Sequence[StructField], known: Sequence[StructField]
    ) -> list[StructField]:
        """Fields that are NOT NULL as those of the table."""
        if not self._not_null:
            return list(fields)
        pairs = zip(fields, known, strict=True)
        return [replace(one, nullable=field.nullable) for one, field in pairs]

    def _columns(self, partition_values: dict[str, Column]) -> list[Column]:
        """Every column of the table by its logical name, in order."""
        types = spark_types(self._schema)
        columns = []
        for field in self._schema.fields:
            if field.name in partition_values:
                column = partition_values[field.name]
            elif field.type == VOID or field.name in {f.name for f in self._partitions}:
                column = F.lit(None).cast(types[field.name])
            else:
                column = F.col(quoted(physical_name(field) if self._mode != "none" else field.name))
                if self._mode != "none" and isinstance(
                    field.type, (StructType, ArrayType, MapType)
                ):
                    # By position: nested fields get their logical names.
                    column = column.cast(types[field.name])
            columns.append(column.alias(field.name, metadata=_own_metadata(field)))
        return columns

    # --- partition values -----------------------------------------------------------------

    def _directories_agree(self, files: pa.Table) -> bool:
        """Whether the names of the directories have the partition values of the log alone."""
        if self._mode != "none" or "=" in unquote(urlsplit(self._location).path):
            return False
        if any(str(field.type) not in _BY_DIRECTORY for field in self._partitions):
            return False
        types = {field.name: field.type for field in self._partitions}
        known: dict[str, str] = {}
        for path, text in zip(
            files["path"].to_pylist(), files["partition_values"].to_pylist(), strict=True
        ):
            if text not in known:
                values = json.loads(text)
                if any(value == "" for value in values.values()):
                    return False
                decoded = {
                    name: decode_partition_value(values.get(name), kind)
                    for name, kind in types.items()
                }
                known[text] = partition_directory(decoded, types)
            folder, _, _ = decode_path(path).rpartition("/")
            if folder != known[text]:
                return False
        return True

    def _value_schema(self) -> SparkStruct:
        """The schema of the values by file; by default Spark reads timestamp_ntz as timestamp."""
        types = spark_types(self._schema)
        schema = SparkStruct().add("__file", StringType())
        for i, field in enumerate(self._partitions):
            schema = schema.add(f"__value_{i}", types[field.name])
        return schema

    def _joined(self, files: pa.Table, extra: list[Column]) -> DataFrame:
        """The rows of files, with partition values from a join by file."""
        layout = layout_of(self._snapshot)
        paths = files["path"].to_pylist()
        values = [
            layout.partition(text, path=path)
            for path, text in zip(paths, files["partition_values"].to_pylist(), strict=True)
        ]
        table = pa.table(
            {
                "__file": pa.array(
                    [metadata_path(hadoop_uri(self._location, path)) for path in paths],
                    pa.string(),
                ),
                **{
                    f"__value_{i}": pa.array(
                        [one[field.name].as_py() for one in values], type_to_arrow(field.type)
                    )
                    for i, field in enumerate(self._partitions)
                },
            }
        )
        by_file = F.broadcast(
            self._spark.createDataFrame(distinct(table, "__file"), self._value_schema())
        )
        frame = self._open(files, [])
        joined = frame.join(by_file, frame["_metadata.file_path"] == by_file["__file"])
        named = {field.name: F.col(f"__value_{i}") for i, field in enumerate(self._partitions)}
        return joined.select(*self._columns(named), *extra)


def quoted(name: str) -> str:
    """A name as an identifier of SQL, in backticks."""
    return "`" + name.replace("`", "``") + "`"


def spark_types(schema: StructType) -> dict[str, Any]:
    """Spark's types of the columns, by name, with nulls allowed everywhere.

    NOT NULL is checked when rows are written. Spark would rely on it: nulls would become zeros, and
    a nullable value would not be cast at all.
    """
    parsed = SparkStruct.fromJson(json.loads(schema_to_json(with_nulls(schema))))
    return {field.name: field.dataType for field in parsed.fields}


def _own_metadata(field: StructField) -> dict[str, Any]:
    """The metadata that a user attached to a column, without that of Delta."""
    return {key: value for key, value in field.metadata.items() if not key.startswith("delta.")}
