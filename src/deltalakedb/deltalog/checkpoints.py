"""Checkpoints: bytes in, actions out.

Guarantees:

- Pure functions of bytes. A Parquet checkpoint is read by row groups: memory holds one batch of
  actions, never the whole state.
- Statistics that a checkpoint has only as a struct (`stats_parsed`) become JSON text again.
- A file that cannot be read is an InvalidLogError with its name; so is a file of more rows than it
  can have actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import (
    Action,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    Metadata,
    RemoveFile,
    Sidecar,
    from_dict,
    parse_commit,
)
from deltalakedb.actions.datatypes import ColumnPath, StructType
from deltalakedb.actions.statistics import Statistics, encode_stats
from deltalakedb.errors import DeltaLakeDbError, InvalidActionError, InvalidLogError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_CONTROL: Final = ("protocol", "metaData", "txn", "domainMetadata", "checkpointMetadata", "sidecar")
_FILES: Final = ("add", "remove")
# Fields that writers may leave null in a checkpoint, and their defaults.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "add": {"partitionValues": {}, "dataChange": False},
    "remove": {"dataChange": False},
    "metaData": {"partitionColumns": [], "configuration": {}},
}
_BATCH: Final = 4096
_FEW_ROWS: Final = 100_000
"""Larger files are refused where they have more rows than bytes."""
# Bounds in a checkpoint were cut when they were written.
_NEVER_CUT: Final = 1_000_000


def read_control_actions(data: bytes, *, file: str, is_json: bool = False) -> list[Action]:
    """Every action of a checkpoint file that is neither `add` nor `remove`, sidecars included."""
    if is_json:
        actions = parse_commit(data, file=file)
        return [a for a in actions if not isinstance(a, (AddFile, RemoveFile, CommitInfo))]
    control: list[Action] = []
    for name, rows in _columns(data, _CONTROL, file):
        control.extend(_build(name, row, file) for row in rows)
    return control


def read_file_actions(
    data: bytes, *, file: str, metadata: Metadata | None = None, is_json: bool = False
) -> Iterator[AddFile | RemoveFile]:
    """The `add` and `remove` actions of a checkpoint file or sidecar, a batch at a time.

    `metadata` has the schema that `stats_parsed` is written by; without it such statistics are
    left out.
    """
    if is_json:
        for action in parse_commit(data, file=file):
            if isinstance(action, (AddFile, RemoveFile)):
                yield action
        return
    schema = None if metadata is None else _schema_of(metadata)
    for name, rows in _columns(data, _FILES, file):
        for row in rows:
            parsed = row.pop("stats_parsed", None)
            row.pop("partitionValues_parsed", None)
            if parsed is not None and row.get("stats") is None and schema is not None:
                row["stats"] = stats_from_struct(parsed, schema)
            action = _build(name, row, file)
            if isinstance(action, (AddFile, RemoveFile)):
                yield action


def _schema_of(metadata: Metadata) -> StructType | None:
    try:
        return metadata.schema
    except DeltaLakeDbError:
        # Statistics are optional; the error is raised where the schema itself is used.
        return None


def check_header(actions: Sequence[Action], *, version: int, file: str) -> None:
    """Raise where the checkpointMetadata of a V2 checkpoint names another version."""
    versions = [a.version for a in actions if isinstance(a, CheckpointMetadata)]
    if versions and versions != [version]:
        raise _damaged(file, f"its checkpointMetadata says version {versions}, not {version}")


def sidecars_of(actions: Sequence[Action]) -> list[Sidecar]:
    """The sidecars that a V2 checkpoint names."""
    return [action for action in actions if isinstance(action, Sidecar)]


# --- Parquet ------------------------------------------------------------------------------


def _columns(
    data: bytes, names: Sequence[str], file: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The non-null rows of the wanted columns, batch by batch."""
    import pyarrow as pa

    try:
        parquet = _open(data)
        _check_rows(parquet.metadata.num_rows, len(data), file)
        wanted = [name for name in names if name in parquet.schema_arrow.names]
        if not wanted:
            return
        for batch in parquet.iter_batches(batch_size=_BATCH, columns=wanted):
            for name in wanted:
                column = batch.column(name)
                if column.null_count < len(column):
                    yield name, _rows(column.drop_null())
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        raise _damaged(file, str(error).splitlines()[0] if str(error) else "") from error


def _check_rows(rows: int, size: int, file: str) -> None:
    """Refuse a file with far more rows than actions, whose empty rows would take minutes."""
    if rows > max(_FEW_ROWS, size):
        raise _damaged(
            file,
            f"it has {rows} rows in {size} bytes, and every row of a checkpoint is an action",
        )


def _open(data: bytes) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us")


def _rows(column: pa.StructArray) -> list[dict[str, Any]]:
    """Structs as mappings without their null fields; maps as mappings."""
    fields = column.type.fields
    # Child by child: three times as fast as asking each struct for its fields.
    children = [
        (f.name, _plain(f.type, values.to_pylist()))
        for f, values in zip(fields, column.flatten(), strict=True)
    ]
    rows: list[dict[str, Any]] = [{} for _ in range(len(column))]
    for name, values in children:
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
    return rows


def _plain(kind: pa.DataType, values: list[Any]) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return [None if value is None else dict(value) for value in values]
    if pa.types.is_struct(kind):
        maps = [f.name for f in kind.fields if pa.types.is_map(f.type)]
        for value in values:
            if value is not None:
                for name in maps:
                    value[name] = None if value[name] is None else dict(value[name])
    return values


def _build(name: str, row: dict[str, Any], file: str) -> Action:
    for key, default in _DEFAULTS.get(name, {}).items():
        row.setdefault(key, default)
    vector = row.get("deletionVector")
    if vector is not None:
        row["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
    if name == "protocol":
        # A list that legacy versions must not have is empty where the writer's format has no null.
        for key, version in (("readerFeatures", 3), ("writerFeatures", 7)):
            limit = row.get("minReaderVersion" if version == 3 else "minWriterVersion")
            if row.get(key) == [] and limit is not None and limit < version:
                del row[key]
    try:
        return from_dict({name: row})
    except InvalidActionError as error:
        raise _damaged(file, f"{error.what}: {error.why}") from error


def _damaged(file: str, why: str) -> InvalidLogError:
    return InvalidLogError(
        f"The checkpoint {file} cannot be read",
        why=why or "it is damaged",
        fix="Restore the file from a copy; where all commits are there, it may be deleted instead",
    )


# --- statistics ---------------------------------------------------------------------------


def stats_from_struct(parsed: Mapping[str, Any], schema: StructType) -> str | None:
    """`stats_parsed` as the JSON text of `stats`; None where it is empty.

    A bound that is no value of its column is left out: it is then unknown, which is always safe.
    """
    count = parsed.get("numRecords")
    tight = parsed.get("tightBounds")
    low: dict[ColumnPath, Any] = {}
    high: dict[ColumnPath, Any] = {}
    nulls: dict[ColumnPath, Any] = {}
    logical = [path for path, _ in schema.leaf_columns()]
    for path, (physical, kind) in zip(logical, schema.leaf_columns(physical=True), strict=True):
        for key, out in (("minValues", low), ("maxValues", high), ("nullCount", nulls)):
            value = _inside(parsed.get(key), physical)
            if value is not None:
                out[path] = _aware(value) if str(kind) == "timestamp" else value
    stats = Statistics(
        num_records=count,
        min_values=low,
        max_values=high,
        null_count={path: value for path, value in nulls.items() if isinstance(value, int)},
        tight_bounds=tight if isinstance(tight, bool) else None,
    )
    try:
        return encode_stats(stats, schema, string_prefix_length=_NEVER_CUT)
    except DeltaLakeDbError:
        if count is None:
            return None
        return encode_stats(Statistics(num_records=count), schema)


def _inside(value: Any, path: ColumnPath) -> Any:
    for step in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _aware(value: Any) -> Any:
    # INT96 and old writers lose the zone, which for this type is always UTC.
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
