"""Spark's own writer writes the data files, if it can write them as the table needs them.

- It writes to a staging folder inside the table's location, which no reader looks into. When the
  job has ended, the files are moved to their places; statistics come from the footers.
- Nothing is visible before the commit. A job that fails leaves nothing; a driver that dies leaves a
  folder, which vacuum deletes.
- The staging function of the other rooms does the rest: object stores, target sizes, column
  mapping, conversions of values, other types of partition columns.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import AddFile
from deltalakedb.actions.datatypes import (
    ArrayType,
    ColumnPath,
    DataType,
    DecimalType,
    MapType,
    StructType,
)
from deltalakedb.actions.partition import NULL_DIRECTORY, decode_partition_value
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import ConstraintViolatedError, StorageError
from deltalakedb.spark.io.scan import quoted, spark_types
from deltalakedb.spark.io.spark_internals import (
    file_name_encoding,
    in_clone,
    is_connect,
    is_observed,
)
from deltalakedb.staging.fit import invariants, limits
from deltalakedb.staging.parquet_footers import FooterStatistics
from deltalakedb.staging.stage import STAGING_FOLDER, TARGET_FILE_BYTES, Layout, StagePlan
from deltalakedb.storage import local_path, normalise_location
from deltalakedb.storage.local_files import sync_path

_CODECS: Final = {"none": "none", "snappy": "snappy", "zstd": "zstd", "gzip": "gzip"}
# The level of the staging function. Measured: 0.61 of the size of snappy, in about the same time;
# Spark's level 3 has 0.53, and takes longer.
_ZSTD_LEVEL: Final = {"parquet.compression.codec.zstd.level": "1"}
_TYPES: Final = frozenset(
    {"string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double"}
    | {"date", "timestamp", "timestamp_ntz"}
)
# Their text in the name of a directory is the text in the log.
_PARTITION_TYPES: Final = frozenset(
    {"string", "boolean", "byte", "short", "integer", "long", "date"}
)
WIDER: Final = {
    "smallint": {"tinyint"},
    "int": {"tinyint", "smallint"},
    "bigint": {"tinyint", "smallint", "int"},
    "double": {"float"},
}
# Timestamps of the protocol: Spark's default is another, and a write has no option for it.
_MICROS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Settings that decide how values are encoded, and the values that they need.
_NEEDED: Final = {
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.fieldId.write.enabled": "true",
}
_THREADS: Final = 8


def stage_natively(
    frame: DataFrame, plan: StagePlan, *, sized: bool = False
) -> list[AddFile] | None:
    """Write the rows of a DataFrame; None if Spark's writer cannot."""
    if plan.target_bytes != TARGET_FILE_BYTES and not sized:
        return None
    folder = _folder(frame, plan)
    if folder is None:
        return None
    layout = Layout(plan)
    chosen = _projected(frame, layout)
    if chosen is None:
        return None
    if _has_timestamps(layout.schema) and not _has_settings(frame, _MICROS):
        if is_observed(frame):
            return None
        chosen = in_clone(chosen, _MICROS)
    staged = folder / f"{STAGING_FOLDER}{uuid.uuid4().hex}"
    moved: list[Path] = []
    try:
        writer = chosen.write.options(compression=_CODECS[layout.codec], **_ZSTD_LEVEL)
        if plan.max_records is not None:
            writer = writer.option("maxRecordsPerFile", plan.max_records)
        if layout.partition_columns:
            writer = writer.partitionBy(*layout.partition_columns)
        # A path and no URI: Hadoop would take percent signs for themselves.
        writer.parquet(f"file:{staged}")
        return _taken_over(staged, folder, layout, plan.table, moved)
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


# --- whether Spark's writer can -----------------------------------------------------------


def _folder(frame: DataFrame, plan: StagePlan) -> Path | None:
    """The table's folder on this machine; None if Spark's writer cannot write there."""
    if is_connect(frame) or plan.folder:
        # A remote Spark has its own disks; change data is not part of the table.
        return None
    if plan.enforce and _has_conditions(plan):
        return None
    properties = TableProperties(plan.metadata.configuration)
    if properties.column_mapping_mode != "none":
        return None
    if plan.metadata.partition_columns and not _names_any_file(frame):
        return None
    if not _has_settings(frame, _NEEDED):
        return None
    return local_path(normalise_location(plan.location))


def _names_any_file(frame: DataFrame) -> bool:
    """Whether Java can write every name: without a locale it writes other characters as ?."""
    encoding = file_name_encoding(frame.sparkSession)
    return encoding.upper().replace("-", "") == "UTF8"


def _has_conditions(plan: StagePlan) -> bool:
    constraints = TableProperties(plan.metadata.configuration).constraints
    schema = plan.metadata.schema
    return bool(constraints or plan.conditions or list(invariants(schema)) or list(limits(schema)))


def _projected(frame: DataFrame, layout: Layout) -> DataFrame | None:
    """The columns of the table; None if values have to be converted."""
    if layout.codec not in _CODECS or not all(_is_plain(f.type) for f in layout.schema.fields):
        return None
    if any(
        str(layout.schema.field(n).type) not in _PARTITION_TYPES for n in layout.partition_columns
    ):
        return None
    fields = frame.schema.fields
    by_lower = {field.name.lower(): field for field in fields}
    if layout.rows_are_new and not _nulls_are_known(frame.schema, by_lower, layout):
        return None
    types = spark_types(layout.schema)
    expected = [(name, kind.simpleString()) for name, kind in types.items()]
    same = [(field.name, field.dataType.simpleString()) for field in fields] == expected
    if same and not any(field.metadata for field in fields):
        return frame
    columns = []
    for wanted in layout.schema.fields:
        kind = types[wanted.name]
        field = by_lower.get(wanted.name.lower())
        if field is None:
            column = F.lit(None).cast(kind)
        else:
            before, after = field.dataType.simpleString(), kind.simpleString()
            column = F.col(quoted(field.name))
            if before in ("void", *WIDER.get(after, ())):
                column = column.cast(kind)
            elif before != after:
                return None
        columns.append(column.alias(wanted.name, metadata={}))
    return frame.select(*columns)


def _nulls_are_known(schema: Any, by_lower: dict[str, Any], layout: Layout) -> bool:
    """Whether columns that are NOT NULL can have no nulls, or the footers count them."""
    covered = layout.covered
    if not all(_never_null(schema, p) or _is_checked(p, layout) for p in covered.required):
        return False
    return all(
        (known := by_lower.get(field.name.lower())) is None or _keeps(known.dataType, field.type)
        for field in covered.promised
    )


def _leaves(kind: DataType) -> Iterator[DataType]:
    """The types without parts inside a type; a struct without fields is one."""
    if isinstance(kind, StructType) and kind.fields:
        parts = [field.type for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [kind.element_type]
    elif isinstance(kind, MapType):
        parts = [kind.key_type, kind.value_type]
    else:
        yield kind
        return
    for part in parts:
        yield from _leaves(part)


def _is_plain(kind: DataType) -> bool:
    return all(isinstance(leaf, DecimalType) or str(leaf) in _TYPES for leaf in _leaves(kind))


def _has_timestamps(kind: DataType) -> bool:
    return any(str(leaf) == "timestamp" for leaf in _leaves(kind))


def _has_settings(frame: DataFrame, wanted: dict[str, str]) -> bool:
    settings = frame.sparkSession.conf
    return all(str(settings.get(name)).lower() == wanted[name].lower() for name in wanted)


def _never_null(struct: Any, path: ColumnPath) -> bool:
    """Whether Spark knows that a field is never null inside a struct that is not null."""
    same = [field for field in struct.fields if field.name.lower() == path[0].lower()]
    if len(path) > 1:
        return bool(same) and _never_null(same[0].dataType, path[1:])
    return bool(same) and not same[0].nullable


def _keeps(kind: Any, promised: DataType) -> bool:
    """Whether Spark knows that there are no nulls inside that the table does not allow."""
    if isinstance(promised, ArrayType):
        known = getattr(kind, "containsNull", True)
        return (promised.contains_null or not known) and (
            not hasattr(kind, "elementType") or _keeps(kind.elementType, promised.element_type)
        )
    if isinstance(promised, MapType):
        known = getattr(kind, "valueContainsNull", True)
        return (promised.value_contains_null or not known) and (
            not hasattr(kind, "valueType")
            or (
                _keeps(kind.keyType, promised.key_type)
                and _keeps(kind.valueType, promised.value_type)
            )
        )
    if isinstance(promised, StructType):
        by_lower = {field.name.lower(): field for field in getattr(kind, "fields", ())}
        return all(
            (known := by_lower.get(field.name.lower())) is not None
            and (field.nullable or not known.nullable)
            and _keeps(known.dataType, field.type)
            for field in promised.fields
        )
    return True


def _is_checked(path: ColumnPath, layout: Layout) -> bool:
    """Whether the footers count the nulls of a column."""
    if len(path) > 1 or path[0] in layout.partition_columns:
        return False
    return not isinstance(layout.schema.field(path[0]).type, (StructType, ArrayType, MapType))


# --- the files of a job -------------------------------------------------------------------


def _taken_over(
    staged: Path, folder: Path, layout: Layout, table: str, moved: list[Path]
) -> list[AddFile]:
    """Move the files of a job to their places; return the actions that add them."""
    data = StructType(
        tuple(f for f in layout.schema.fields if f.name not in layout.partition_columns)
    )
    statistics = FooterStatistics(layout.covered, data)

    def take(path: Path) -> AddFile | None:
        footer = pq.read_metadata(path)
        if not footer.num_rows:
            return None
        if layout.rows_are_new:
            _check_required(path, footer, statistics, layout, table)
        values = _values(path.relative_to(staged).parts[:-1], layout)
        key = layout.new_key(values)
        target = folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        moved.append(target)
        sync_path(target)
        return layout.add(key, values, target.stat().st_size, statistics.stats(footer))

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            adds = [add for add in pool.map(take, _files(staged)) if add is not None]
        for parent in {parent for path in moved for parent in _between(path, folder)}:
            sync_path(parent)
    except OSError as error:
        raise StorageError(
            f"Files of table {table!r} cannot be moved from {staged}",
            why=str(error),
            fix="Check that the disk has room and that you may write there; nothing of this write "
            "is visible",
        ) from error
    return adds


def _files(staged: Path) -> Iterator[Path]:
    # Folders are named after values, which may be any text.
    for path in sorted(path for path in staged.rglob("*.parquet") if path.is_file()):
        below = path.relative_to(staged).parts[:-1]
        left_over = any(name.startswith("_") and "=" not in name for name in below)
        if not left_over and not path.name.startswith((".", "_")):
            yield path


def _between(path: Path, folder: Path) -> Iterator[Path]:
    """The folders from a file up to that of the table."""
    for parent in path.parents:
        yield parent
        if parent == folder:
            return


def _values(directories: tuple[str, ...], layout: Layout) -> tuple[Any, ...]:
    """The values of the partition columns from the names of Spark's directories."""
    values = []
    for name, directory in zip(layout.partition_columns, directories, strict=True):
        text = directory.partition("=")[2]
        value = None if text == NULL_DIRECTORY else unquote(text)
        values.append(decode_partition_value(value, layout.schema.field(name).type))
    return tuple(values)


def _check_required(
    path: Path, footer: Any, statistics: FooterStatistics, layout: Layout, table: str
) -> None:
    """Refuse nulls in columns that are NOT NULL; other columns cannot have any."""
    for column in layout.covered.required:
        if not _is_checked(column, layout):
            continue
        nulls = statistics.nulls(footer, column)
        if nulls is None:
            # Long texts have no statistics.
            nulls = pq.read_table(path, columns=list(column), partitioning=None)[0].null_count
        if nulls:
            raise ConstraintViolatedError(
                f"Column {column[0]!r} of table {table!r} is NOT NULL, and {nulls} of the rows to "
                "be written have no value for it",
                fix="Fill the column, or leave those rows out",
            )
