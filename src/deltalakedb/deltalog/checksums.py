"""Version checksums (`.crc`): what a table adds up to, for readers to check and to reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltalakedb.actions import DomainMetadata, Metadata, Protocol, Txn, to_dict
from deltalakedb.actions.jsonvalue import dumps_ordered


def version_checksum(
    *,
    metadata: Metadata,
    protocol: Protocol,
    table_size_bytes: int,
    num_files: int,
    txns: Sequence[Txn],
    domains: Sequence[DomainMetadata],
    txn_id: str | None = None,
    in_commit_timestamp: int | None = None,
) -> bytes:
    """The content of a checksum file; `domains` are those that are not removed.

    `in_commit_timestamp` belongs there exactly when the table has in-commit timestamps enabled.
    """
    document: dict[str, Any] = {}
    if txn_id is not None:
        document["txnId"] = txn_id
    document |= {
        "tableSizeBytes": table_size_bytes,
        "numFiles": num_files,
        "numMetadata": 1,
        "numProtocol": 1,
    }
    if in_commit_timestamp is not None:
        document["inCommitTimestampOpt"] = in_commit_timestamp
    document |= {
        "setTransactions": [to_dict(txn)["txn"] for txn in txns],
        "domainMetadata": [to_dict(domain)["domainMetadata"] for domain in domains],
        "metadata": to_dict(metadata)["metaData"],
        "protocol": to_dict(protocol)["protocol"],
    }
    return dumps_ordered(document).encode()
