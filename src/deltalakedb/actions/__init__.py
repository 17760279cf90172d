"""The Delta log as pure values and rules, without I/O.

Every Delta action, the JSON codec, schemas, table features and properties, partition values and
file statistics.
"""

from __future__ import annotations

from deltalakedb.actions.codec import (
    as_action,
    from_dict,
    parse_commit,
    parse_line,
    serialise,
    serialise_commit,
    to_dict,
)
from deltalakedb.actions.values import (
    Action,
    AddFile,
    CdcFile,
    CheckpointMetadata,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Sidecar,
    Txn,
    UnknownAction,
)

__all__ = [
    "Action",
    "AddFile",
    "CdcFile",
    "CheckpointMetadata",
    "CommitInfo",
    "DeletionVectorDescriptor",
    "DomainMetadata",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "Sidecar",
    "Txn",
    "UnknownAction",
    "as_action",
    "from_dict",
    "parse_commit",
    "parse_line",
    "serialise",
    "serialise_commit",
    "to_dict",
]
