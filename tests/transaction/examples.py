"""Small tables and actions for the tests of the rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deltalakedb.actions import (
    AddFile,
    CommitInfo,
    DeletionVectorDescriptor,
    Metadata,
    Protocol,
    RemoveFile,
)

LEGACY = Protocol(1, 2)


def column(
    name: str,
    of_type: Any = "long",
    *,
    nullable: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "type": of_type,
        "nullable": nullable,
        "metadata": dict(metadata or {}),
    }


def mapped(
    name: str,
    number: int,
    physical: str | None = None,
    of_type: Any = "long",
    *,
    nullable: bool = True,
) -> dict[str, Any]:
    """A column as column mapping wants it."""
    annotations = {
        "delta.columnMapping.id": number,
        "delta.columnMapping.physicalName": physical or name,
    }
    return column(name, of_type, nullable=nullable, metadata=annotations)


def schema(*columns: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(columns)})


def table(
    *columns: dict[str, Any],
    by: tuple[str, ...] = (),
    properties: Mapping[str, str] | None = None,
    table_id: str = "11111111-2222-3333-4444-555555555555",
) -> Metadata:
    return Metadata(
        table_id,
        schema_string=schema(*(columns or (column("id"), column("day", "date")))),
        partition_columns=by,
        configuration=dict(properties or {}),
    )


def features(*names: str, reader: tuple[str, ...] = ()) -> Protocol:
    """A protocol of feature lists; `reader` features stand in both."""
    if reader:
        return Protocol(3, 7, reader, (*reader, *names))
    return Protocol(1, 7, None, names)


def add(path: str = "a.parquet", /, **values: Any) -> AddFile:
    given: dict[str, Any] = {
        "partition_values": {},
        "size": 10,
        "modification_time": 1,
        "data_change": True,
        **values,
    }
    return AddFile(path, **given)


def remove(path: str = "a.parquet", /, **values: Any) -> RemoveFile:
    given: dict[str, Any] = {"data_change": True, "deletion_timestamp": 5, **values}
    return RemoveFile(path, **given)


def vector(
    name: str = "ab^-aqEH.-t@S}K{vb[*k^", *, offset: int | None = 1, cardinality: int = 2
) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("u", name, 36, cardinality, offset)


def info(operation: str = "WRITE", *, blind: bool | None = None) -> CommitInfo:
    flag = {} if blind is None else {"isBlindAppend": blind}
    return CommitInfo({"operation": operation, **flag})
