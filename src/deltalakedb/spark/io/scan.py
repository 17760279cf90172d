"""Snapshots as DataFrames, read by Spark's own vectorised scan.

The files come from the catalog, which has pruned them; Spark lists nothing. How partition values
get into the rows depends on the layout:

- by the names of the directories, where those say what the log says;
- otherwise by a join with the values by file, which is general.

Rows that deletion vectors hide are left out by an anti-join on file and row number, of those files
alone that have any. Columns of tables with column mapping are read by their physical names or ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from deltalakedb.actions.datatypes import (
    VOID,
    ArrayType,
    MapType,
    StructField,
    StructType,
    column_id,
    physical_name,
    schema_to_json,
    with_nulls,
)
from deltalakedb.actions.partition import decode_partition_value, decode_path, partition_directory
from deltalakedb.actions.properties import TableProperties
from deltalakedb.conditions.predicate import Opaque, Predicate
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import InvalidConditionError, UnsupportedFeatureError
from deltalakedb.reading.data_files import DataFile, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.spark.dml.positions import without
from deltalakedb.spark.io.file_list import spark_file_list
from deltalakedb.spark.io.hadoop import hadoop_options, require_connector
from deltalakedb.spark.io.paths import hadoop_uri, metadata_path
from deltalakedb.spark.io.spark_internals import cloned_reader, in_session, is_connect
from deltalakedb.storage.locations import FilePlaces

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType as SparkStruct

    from deltalakedb.actions import Metadata
    from deltalakedb.snapshot import Snapshot

FILE_COLUMNS: Final = (
    *("path", "dv_id", "size_bytes", "modification_time", "partition_values"),
    "deletion_vector",
)
FILE: Final = "__deltalakedb_file"
"""The column with the file of a row, as Spark names files."""
ROW: Final = "__deltalakedb_row"
"""The column with the number of a row in its file."""
# Settings by which Spark takes quotes and backslashes for something else.
_OTHER_TEXTS: Final = (
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.legacy.consecutiveStringLiterals.enabled",
)
# Columns are found by their ids. Row by row, Spark would ask the session that runs the query for
# this, and not the one that made the scan, and read nulls: so it reads by vectors in any case.
_BY_ID: Final = {
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.sql.sources.useV1SourceList": "parquet",
}
# Types whose text in a directory Spark reads as the log means it, whatever the session's time zone.
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

    What the condition says of partitions and statistics is used to find the files; whatever it says
    is applied to the rows. With `metadata` Spark's hidden column `_metadata` can be asked for in
    any case, otherwise only where no files, or all of them, have deletion vectors. Columns are also
    known by the `alias` of the table, in the condition too.
    """
    if where is None:
        files = snapshot.files(columns=FILE_COLUMNS)
        frame = scan_files(spark, snapshot, files, metadata=metadata, not_null=True)
        return frame if alias is None else frame.alias(alias)
    predicate = planned(spark, snapshot.metadata, where, alias=alias)
    files = snapshot.files(where=predicate, columns=FILE_COLUMNS)
    frame = scan_files(spark, snapshot, files, metadata=metadata, not_null=True)
    with refusing(where):
        return (frame if alias is None else frame.alias(alias)).where(where)


@contextmanager
def refusing(condition: Any) -> Iterator[None]:
    """Let Spark judge a condition; what it has against it comes out as InvalidConditionError."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        raise InvalidConditionError(
            f"The condition {condition!s} cannot be used",
            why=spark_says(error),
            fix="Correct it: columns are named as in the table",
        ) from error


def spark_says(error: Exception) -> str:
    """What an error of Spark's analysis says, without its plans and stack traces."""
    return str(error).split("\n\nJVM stacktrace")[0].split(";\n")[0]


def planned(
    spark: SparkSession, metadata: Metadata, where: str, *, alias: str | None = None
) -> Predicate:
    """A condition in Spark's SQL, as far as the catalog can use it to find files.

    Whether it is right is for Spark to say: nothing is known here of what cannot be understood.
    Times that name no zone are in that of the session, as they are for Spark.
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
    """The rows of some files of a snapshot (see FILE_COLUMNS).

    `with_position` adds the file and row number of each row, for whoever changes rows. A union has
    no column `_metadata`, so with `metadata` there is none: rows of all files are then looked for
    among those that are hidden. With `not_null` columns that are NOT NULL in the table are so in
    the frame; who writes the rows again does without, to keep whatever a file has.
    """
    import pyarrow.compute as pc

    if is_connect(spark):
        raise UnsupportedFeatureError(
            f"Table {snapshot.table.name!r} cannot be read or changed this way by Spark Connect",
            why="The files to scan are handed over in a folder that the server does not have",
            fix='Read and write by format("deltalakedb"), or use a classic session of Spark for '
            "toDF, delete, update and merge",
        )
    reader = _Reader(spark, snapshot, not_null=not_null)
    with_vector = pc.is_valid(files["deletion_vector"])
    plain = files.filter(pc.invert(with_vector))
    partly = files.filter(with_vector)
    if metadata and partly.num_rows:
        return reader.without_deleted(files, with_position=with_position)
    frame = reader.read(plain, with_position=with_position) if plain.num_rows else None
    if partly.num_rows:
        rest = reader.without_deleted(partly, with_position=with_position)
        frame = rest if frame is None else frame.unionByName(rest)
    return reader.read(plain, with_position=with_position) if frame is None else frame


def session_zone(spark: SparkSession) -> tzinfo | None:
    """The time zone of a session; None for one that is unknown here."""
    return _zone(str(spark.conf.get("spark.sql.session.timeZone")))


def _zone(name: str) -> tzinfo | None:
    """A zone as Spark names them, which may be an offset too; None for one that is unknown."""
    offset = re.fullmatch(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        size = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(size if sign == "+" else -size)
    try:
        return ZoneInfo("UTC" if name == "Z" else name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


class _Reader:
    """Reads files of one snapshot."""

    def __init__(self, spark: SparkSession, snapshot: Snapshot, *, not_null: bool) -> None:
        require_connector(spark, snapshot.table.location)
        self._spark = spark
        self._not_null = not_null
        self._snapshot = snapshot
        self._location = snapshot.table.location
        self._schema = snapshot.schema
        self._mode = TableProperties(snapshot.properties).column_mapping_mode
        self._partitions = [self._schema.field(name) for name in snapshot.partition_columns]
        names = {field.name for field in self._partitions}
        self._data = [f for f in self._schema.fields if f.name not in names and f.type != VOID]

    def read(self, files: pa.Table, *, with_position: bool) -> DataFrame:
        """The rows of files, deletion vectors aside."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        extra: list[Column] = []
        if with_position:
            extra = [
                F.col("_metadata.file_path").alias(FILE),
                F.col("_metadata.row_index").alias(ROW),
            ]
        if self._partitions and not self._directories_tell(files):
            return self._joined(files, extra)
        partitions = self._partitions if files.num_rows or self._mode == "none" else []
        frame = self._open(files, partitions)
        if not extra and self._needs_no_names(partitions):
            # Spark inserts into a view of a bare scan, and its rows would go to the folder of the
            # list. A projection has no place to insert into, and costs nothing.
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
        """The rows of files that their deletion vectors leave; `_metadata` is still there."""
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
        reader = reader.schema(self._physical_schema(partitions)).options(
            # A file that is left out, or half of it, would be rows that are lost by the next DML.
            ignoreCorruptFiles="false",
            ignoreMissingFiles="false",
            **hadoop_options(self._location, self._snapshot.storage_options),
        )
        if not partitions:
            # Otherwise any folder above the table that is called a=b would give a column.
            reader = reader.option("recursiveFileLookup", "true")
        places = FilePlaces(self._location, self._snapshot.table.allowed_roots)
        with spark_file_list(places, files) as folder:
            frame = reader.parquet(folder)
        return in_session(self._spark, frame) if by_id else frame

    def _physical_schema(self, partitions: Sequence[StructField]) -> SparkStruct:
        from pyspark.sql.types import StructType as SparkStruct

        fields = [_physical(field, ids=self._mode == "id") for field in self._data]
        fields += [_bare(field) for field in partitions]
        if self._not_null:
            known = [*self._data, *partitions]
            fields = [
                replace(made, nullable=field.nullable)
                for made, field in zip(fields, known, strict=True)
            ]
        text = schema_to_json(StructType(tuple(fields)))
        return SparkStruct.fromJson(json.loads(text))

    def _columns(self, partition_values: dict[str, Column]) -> list[Column]:
        """Every column of the table by its logical name, in order."""
        from pyspark.sql import functions as F  # noqa: N812

        types = spark_types(self._schema)
        found = []
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
            found.append(column.alias(field.name, metadata=_own_metadata(field)))
        return found

    # --- partition values -----------------------------------------------------------------

    def _directories_tell(self, files: pa.Table) -> bool:
        """Whether the names of the directories say what the log says, and nothing else."""
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
        """Of the values by file: left to itself, Spark takes times without a zone for moments."""
        from pyspark.sql.types import StringType
        from pyspark.sql.types import StructType as SparkStruct

        types = spark_types(self._schema)
        schema = SparkStruct().add("__file", StringType())
        for i, field in enumerate(self._partitions):
            schema = schema.add(f"__value_{i}", types[field.name])
        return schema

    def _joined(self, files: pa.Table, extra: list[Column]) -> DataFrame:
        """Partition values by file, which is right for any layout."""
        import pyarrow as pa
        from pyspark.sql import functions as F  # noqa: N812

        layout = layout_of(self._snapshot)
        paths = files["path"].to_pylist()
        values = [
            layout.partition(text, path=path)
            for path, text in zip(paths, files["partition_values"].to_pylist(), strict=True)
        ]
        from deltalakedb.actions.arrow import type_to_arrow

        table = pa.table(
            {
                "__file": [metadata_path(hadoop_uri(self._location, path)) for path in paths],
                **{
                    f"__value_{i}": pa.array(
                        [one[field.name].as_py() for one in values], type_to_arrow(field.type)
                    )
                    for i, field in enumerate(self._partitions)
                },
            }
        )
        by_file = F.broadcast(self._spark.createDataFrame(_distinct(table), self._value_schema()))
        frame = self._open(files, [])
        joined = frame.join(by_file, frame["_metadata.file_path"] == by_file["__file"])
        named = {field.name: F.col(f"__value_{i}") for i, field in enumerate(self._partitions)}
        return joined.select(*self._columns(named), *extra)


def _distinct(table: pa.Table) -> pa.Table:
    """One row a file: a path may be there with several deletion vectors."""
    import pyarrow.compute as pc

    seen: set[str] = set()
    keep = []
    for path in table["__file"].to_pylist():
        keep.append(path not in seen)
        seen.add(path)
    return table if all(keep) else table.filter(pc.equal(keep, True))  # noqa: FBT003


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it is made of."""
    return "`" + name.replace("`", "``") + "`"


def spark_types(schema: StructType) -> dict[str, Any]:
    """Spark's types of the columns, by name, with nulls allowed everywhere.

    A promise that there are none is kept when rows are written. Spark would take it for granted:
    nulls come out as zeros, and a value that may be null is not cast at all.
    """
    from pyspark.sql.types import StructType as SparkStruct

    parsed = SparkStruct.fromJson(json.loads(schema_to_json(with_nulls(schema))))
    return {field.name: field.dataType for field in parsed.fields}


def _own_metadata(field: StructField) -> dict[str, Any]:
    """What a user attached to a column; what Delta keeps there for itself stays in the log."""
    return {key: value for key, value in field.metadata.items() if not key.startswith("delta.")}


def _bare(field: StructField) -> StructField:
    return StructField(field.name, field.type)


def _physical(field: StructField, *, ids: bool) -> StructField:
    """A field as data files have it. All may be null: files may lack a column."""
    metadata = {}
    identity = column_id(field)
    if ids and identity is not None:
        metadata = {"parquet.field.id": identity}
    return StructField(physical_name(field), _physical_type(field.type, ids=ids), metadata=metadata)


def _physical_type(kind: Any, *, ids: bool) -> Any:
    if isinstance(kind, StructType):
        return StructType(tuple(_physical(inner, ids=ids) for inner in kind.fields))
    if isinstance(kind, ArrayType):
        return ArrayType(_physical_type(kind.element_type, ids=ids))
    if isinstance(kind, MapType):
        return MapType(
            _physical_type(kind.key_type, ids=ids), _physical_type(kind.value_type, ids=ids)
        )
    return kind
