"""Every action of the Delta log as a frozen value; the names are the protocol's, in snake_case.

Guarantees:

- No content of a log line is lost. Each value ends in `extra`, a mapping in the protocol's
  own spelling of the fields this release does not know, and of known optional fields that were
  present as an explicit `null`. A typed field that is set always wins over its entry in `extra`.
- `Metadata.extra["format"]`, where present, holds the unknown fields of the `format` object.
- Values compare by content and can be pickled. The mappings inside are not copied on
  construction: treat them as read-only.

Values are not validated when built; `codec.as_action` does that for whatever a user passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from deltalakedb.actions import z85
from deltalakedb.actions.datatypes import (
    PHYSICAL_NAME,
    StructType,
    schema_from_json,
    without_physical_names,
)
from deltalakedb.errors import InvalidActionError

_UUID_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class DeletionVectorDescriptor:
    """Where the deletion vector of a file lies, and how many rows it hides."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unique_id(self) -> str:
        """The id that, with the path, names a logical file; an absent offset is not offset 0."""
        base = self.storage_type + self.path_or_inline_dv
        return base if self.offset is None else f"{base}@{self.offset}"

    def file_path(self) -> str | None:
        """Where the vector is stored; None when it is inline.

        For storage type `u` the path is relative to the table root and not percent-encoded; for
        `p` it is the absolute URI exactly as the log has it.
        """
        if self.storage_type == "i":
            return None
        if self.storage_type == "p":
            return self.path_or_inline_dv
        if self.storage_type != "u" or len(self.path_or_inline_dv) < _UUID_CHARACTERS:
            raise InvalidActionError(
                f"Cannot locate the deletion vector {self.unique_id!r}",
                why="its storage type is not u, p or i, or its id is shorter than 20 characters",
                fix="Check the descriptor in the log entry it came from",
            )
        prefix = self.path_or_inline_dv[:-_UUID_CHARACTERS]
        name = UUID(bytes=z85.decode(self.path_or_inline_dv[-_UUID_CHARACTERS:]))
        file = f"deletion_vector_{name}.bin"
        return f"{prefix}/{file}" if prefix else file


@dataclass(frozen=True, slots=True)
class AddFile:
    """A data file becomes part of the table, or its metadata is refreshed."""

    path: str
    partition_values: Mapping[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    tags: Mapping[str, str | None] | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dv_id(self) -> str:
        """The unique id of the deletion vector, or the empty string where there is none."""
        return "" if self.deletion_vector is None else self.deletion_vector.unique_id


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """A data file (with exactly this deletion vector) leaves the table."""

    path: str
    data_change: bool
    deletion_timestamp: int | None = None
    extended_file_metadata: bool | None = None
    partition_values: Mapping[str, str | None] | None = None
    size: int | None = None
    stats: str | None = None
    tags: Mapping[str, str | None] | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dv_id(self) -> str:
        """The unique id of the deletion vector, or the empty string where there is none."""
        return "" if self.deletion_vector is None else self.deletion_vector.unique_id


CHANGE_TYPE: Final = "_change_type"
"""The column of change data with the kind of change; it has no column id."""


@dataclass(frozen=True, slots=True)
class CdcFile:
    """A file of row-level changes; it is not part of the table's state."""

    path: str
    partition_values: Mapping[str, str | None]
    size: int
    data_change: bool = False
    tags: Mapping[str, str | None] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The table's identity, schema, partitioning and properties."""

    id: str
    format_provider: str = "parquet"
    format_options: Mapping[str, str] = field(default_factory=dict)
    schema_string: str | None = None
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> StructType:
        """The parsed schema; a table whose log has none gets the empty struct.

        Physical names that were left behind in a table without column mapping are left out.
        """
        if self.schema_string is None:
            return StructType(())
        schema = schema_from_json(self.schema_string)
        if not self.has_column_mapping and PHYSICAL_NAME in self.schema_string:
            return without_physical_names(schema)
        return schema

    @property
    def has_column_mapping(self) -> bool:
        """Whether files and the log name columns by their physical names."""
        return self.configuration.get("delta.columnMapping.mode", "none") != "none"


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a client must understand to read and to write the table."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Txn:
    """An application's own progress marker, committed with the data it covers."""

    app_id: str
    version: int
    last_updated: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    """A named piece of configuration that a feature or an application keeps in the log."""

    domain: str
    configuration: str
    removed: bool
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Provenance of one commit: free-form, with read-only views of the customary fields.

    A view is None where the field is absent or is not of the customary type; `fields` keeps
    everything.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def timestamp(self) -> int | None:
        """The commit time of the writer, in epoch milliseconds."""
        return self._integer("timestamp")

    @property
    def in_commit_timestamp(self) -> int | None:
        """The commit's authoritative time in epoch milliseconds, with the feature enabled."""
        return self._integer("inCommitTimestamp")

    @property
    def read_version(self) -> int | None:
        """The version the writer started from."""
        return self._integer("readVersion")

    @property
    def operation(self) -> str | None:
        """The name of the operation, such as `WRITE`."""
        return self._string("operation")

    @property
    def isolation_level(self) -> str | None:
        """The isolation level the writer committed under."""
        return self._string("isolationLevel")

    @property
    def engine_info(self) -> str | None:
        """The engine that wrote the commit."""
        return self._string("engineInfo")

    @property
    def txn_id(self) -> str | None:
        """The unique id of the writer's transaction."""
        return self._string("txnId")

    @property
    def is_blind_append(self) -> bool | None:
        """Whether the commit read nothing and only added; absent counts as unknown."""
        value = self.fields.get("isBlindAppend")
        return value if isinstance(value, bool) else None

    @property
    def operation_parameters(self) -> Mapping[str, Any] | None:
        """The parameters of the operation."""
        return self._mapping("operationParameters")

    @property
    def operation_metrics(self) -> Mapping[str, Any] | None:
        """The counts the operation reported."""
        return self._mapping("operationMetrics")

    def _integer(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _string(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def _mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self.fields.get(name)
        return value if isinstance(value, Mapping) else None


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """The header of a V2 checkpoint."""

    version: int
    tags: Mapping[str, str | None] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file of a V2 checkpoint that holds its file actions."""

    path: str
    size_in_bytes: int
    modification_time: int
    tags: Mapping[str, str | None] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnknownAction:
    """An unknown action: preserved, written back, and otherwise ignored."""

    name: str
    value: Any


Action: TypeAlias = (
    AddFile
    | RemoveFile
    | CdcFile
    | Metadata
    | Protocol
    | Txn
    | DomainMetadata
    | CommitInfo
    | CheckpointMetadata
    | Sidecar
    | UnknownAction
)
