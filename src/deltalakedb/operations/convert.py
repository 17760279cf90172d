"""Convert: Parquet files become a table in place; only their footers are read, no data is written.

Every file below the location that is not hidden is one of the table. Partition values come from the
names of directories (`day=2026-11-01`), columns and statistics from the footers. Files that do not
fit together are an error, with the file and the column, before anything is committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from deltalakedb.actions import AddFile, Metadata
from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.actions.datatypes import (
    BYTE,
    INTEGER,
    SHORT,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    schema_to_json,
    with_nulls,
)
from deltalakedb.actions.features import protocol_for
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.partition import (
    NULL_DIRECTORY,
    decode_partition_value,
    encode_partition_value,
    encode_path,
)
from deltalakedb.actions.statistics import Statistics
from deltalakedb.errors import (
    ConfigurationError,
    DataFileMissingError,
    Fix,
    InvalidSchemaError,
    Option,
    SchemaMismatchError,
    TableExistsError,
)
from deltalakedb.operations.alter import check_constraints, new_configuration, record_of
from deltalakedb.progress import Phases, Progress
from deltalakedb.reading.filesystem import TableFiles
from deltalakedb.staging.counting import Covered
from deltalakedb.staging.parquet_footers import Footer, read_footer
from deltalakedb.threads import Threads
from deltalakedb.transaction.commit import Commit, Operation

if TYPE_CHECKING:
    from deltalakedb.storage import ObjectInfo, Storage

_READERS: Final = 16
# Parquet has them all as 32 bits.
_SMALL: Final = (BYTE, SHORT, INTEGER)


@dataclass(frozen=True, slots=True)
class _DataFile:
    """A file, and the partition that its directories name."""

    info: ObjectInfo
    directories: Mapping[str, str]

    @property
    def path(self) -> str:
        return encode_path(self.info.key)


def convert(
    storage: Storage,
    location: str,
    *,
    name: str,
    storage_options: Mapping[str, str],
    partition_schema: Any = None,
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    zone: tzinfo = UTC,
    progress: Progress | None = None,
    now: int,
) -> Commit:
    """The commit that makes a table of the Parquet files at a location.

    `partition_schema` has the partition columns with their types. Times in directory names without
    a zone are in `zone`.
    """
    partitions = () if partition_schema is None else schema_from_any(partition_schema).fields
    configuration = new_configuration(properties)
    phases = Phases(progress)
    phases.begin("Listing files")
    files = _discover(storage, location, [field.name for field in partitions])
    phases.begin("Reading footers", main=True)
    footers = _footers(TableFiles(location, storage_options), files, phases)
    schema = _with_partitions(_merged(files, footers), partitions)
    if "delta.columnMapping.mode" in configuration:
        raise ConfigurationError(
            f"The files at {location} cannot be converted to a table with column mapping",
            why="They do not have its column ids",
            fix="Leave delta.columnMapping.mode out; table.set_properties can set it afterwards",
        )
    check_constraints(configuration, schema, [field.name for field in partitions])
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=schema_to_json(schema),
        partition_columns=tuple(field.name for field in partitions),
        configuration=configuration,
        name=name,
        description=description,
        created_time=now,
    )
    covered = Covered(schema, metadata.partition_columns, configuration)
    adds = [
        AddFile(
            path=file.path,
            partition_values=_values(file, partitions, location, zone),
            size=file.info.size,
            modification_time=file.info.modified_ms,
            data_change=True,
            stats=_stats(footer, covered),
        )
        for file, footer in zip(files, footers, strict=True)
    ]
    protocol = protocol_for(metadata)
    return Commit(
        table=record_of(metadata, protocol, location, now),
        base=None,
        actions=(protocol, metadata, *adds),
        operation=Operation(
            "CONVERT",
            parameters={
                "numFiles": len(adds),
                "partitionedBy": dumps(list(metadata.partition_columns)),
                "collectStats": True,
                "sourceFormat": "parquet",
            },
            metrics={"numConvertedFiles": str(len(adds))},
        ),
    )


# --- files --------------------------------------------------------------------------------


def _discover(storage: Storage, location: str, partitions: list[str]) -> list[_DataFile]:
    files = []
    for info in storage.list():
        if info.key.startswith("_delta_log/"):
            raise TableExistsError(
                f"There is a Delta table at {location} already",
                why="It has a _delta_log",
                fix=f"Import it with its history: {Fix('lake.import_table', ...)}",
            )
        if not _is_hidden(info.key):
            files.append(_DataFile(info, _directories(info.key)))
    if not files:
        raise DataFileMissingError(
            f"There are no files at {location} to convert to a table",
            why="Names that begin with a dot or an underscore do not count",
            fix=f"Check the location, or use {Fix('lake.create_table', ...)}",
        )
    for file in files:
        _check_directories(file, location, partitions)
    # The order of columns follows from it, and must not depend on the store.
    return sorted(files, key=lambda file: file.info.key)


def _is_hidden(key: str) -> bool:
    """Whether Spark ignores a file; partition columns may begin with an underscore."""
    return any(
        name.startswith(".") or (name.startswith("_") and "=" not in name)
        for name in key.split("/")
    )


def _directories(key: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in key.split("/")[:-1] if "=" in part]
    return {unquote(name): unquote(value) for name, _, value in pairs}


def _check_directories(file: _DataFile, location: str, partitions: list[str]) -> None:
    named = sorted(name.lower() for name in file.directories)
    if named == sorted(name.lower() for name in partitions):
        return
    raise SchemaMismatchError(
        f"The directories of {file.info.key} at {location} do not name the partition columns",
        why=f"They name {', '.join(file.directories) or 'none'}; expected: "
        f"{', '.join(partitions) or 'none'}",
        fix="List the partition columns and their types in "
        f"{Option('partition_schema')}, for example day as a date; the directories of every file "
        "have to name all of them",
    )


def _values(
    file: _DataFile, partitions: Iterable[StructField], location: str, zone: tzinfo
) -> dict[str, str | None]:
    texts = {name.lower(): value for name, value in file.directories.items()}
    values: dict[str, str | None] = {}
    for field in partitions:
        text = texts[field.name.lower()]
        try:
            value = (
                None
                if text == NULL_DIRECTORY
                else decode_partition_value(text, field.type, zone=zone)
            )
            values[field.name] = encode_partition_value(value, field.type)
        except InvalidSchemaError as error:
            raise SchemaMismatchError(
                f"The directory of {file.info.key} at {location} has no value for the partition "
                f"column {field.name!r}",
                why=f"{error.what}: {error.why}",
                fix=f"Give the column another type in {Option('partition_schema')}, e.g. string",
            ) from None
    return values


# --- columns ------------------------------------------------------------------------------


def _footers(table: TableFiles, files: list[_DataFile], phases: Phases) -> list[Footer]:
    footers = []
    with Threads(_READERS) as pool:
        for footer in pool.map(lambda file: read_footer(table, file.path), files):
            footers.append(footer)
            phases(len(footers), len(files))
    return footers


def _merged(files: list[_DataFile], footers: list[Footer]) -> StructType:
    """The columns of all files, those of the first one first.

    Nulls are allowed everywhere: any file may have them.
    """
    merged: StructType | None = None
    seen: set[str] = set()
    for file, footer in zip(files, footers, strict=True):
        text = str(footer.schema)
        if text in seen:
            continue
        seen.add(text)
        try:
            merged = footer.schema if merged is None else _struct(merged, footer.schema, "")
        except InvalidSchemaError as error:
            raise SchemaMismatchError(
                f"{file.info.key} does not fit the files before it: {error.what}",
                why=error.why,
                fix="Rewrite that file with the types of the others, or move it elsewhere",
            ) from None
    assert merged is not None  # noqa: S101 - there is a file
    return with_nulls(merged)


def _struct(one: StructType, other: StructType, above: str) -> StructType:
    fields = {field.name: field for field in one.fields}
    lowered = {name.lower(): name for name in fields}
    for field in other.fields:
        known = lowered.setdefault(field.name.lower(), field.name)
        if known != field.name:
            raise InvalidSchemaError(
                f"column {above}{field.name} is {above}{known} there",
                why="Names of columns that differ in case only are one column to most engines",
            )
        before = fields.get(field.name)
        fields[field.name] = (
            field
            if before is None
            else replace(before, type=_type(before.type, field.type, above + field.name))
        )
    return StructType(tuple(fields.values()))


def _type(one: DataType, other: DataType, column: str) -> DataType:
    if one == other:
        return one
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _struct(one, other, f"{column}.")
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        element = _type(one.element_type, other.element_type, f"{column}.element")
        return replace(one, element_type=element)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return replace(
            one,
            key_type=_type(one.key_type, other.key_type, f"{column}.key"),
            value_type=_type(one.value_type, other.value_type, f"{column}.value"),
        )
    if one in _SMALL and other in _SMALL:
        return max(one, other, key=_SMALL.index)
    raise InvalidSchemaError(
        f"column {column} is {_text(other)} in it", why=f"The others have it as {_text(one)}"
    )


def _text(kind: DataType) -> str:
    return str(kind)[:200]


def _with_partitions(schema: StructType, partitions: Iterable[StructField]) -> StructType:
    """Partition columns that files have too stay at their place, others come last."""
    columns = {field.name.lower(): field for field in partitions}
    fields = [columns.pop(field.name.lower(), field) for field in schema.fields]
    return StructType((*fields, *columns.values()))


def _stats(footer: Footer, covered: Covered) -> str:
    stats = Statistics(
        num_records=footer.rows,
        min_values=footer.low,
        max_values=footer.high,
        null_count=footer.nulls,
        tight_bounds=True,
    )
    return covered.encode(stats)
