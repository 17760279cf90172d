"""The bytes of a commit file, from the queue or made anew from the ledger."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from deltalakedb.actions import serialise_commit
from deltalakedb.store import mirror as queue

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord


def expected_bytes(store: Store, table: TableRecord, version: int, digest: str) -> bytes | None:
    """Bytes with this digest, as they were or will be published; None where nobody knows them.

    A commit of this catalog has one canonical form, which the actions in the ledger give again. Of
    an imported version the ledger has the actions, and only by luck the writer's way to spell them.
    """
    with store.read() as session:
        waiting = queue.payload_of(session, table.table_id, version)
        if waiting is not None and hashlib.sha256(waiting).hexdigest() == digest:
            return waiting
        actions = store.actions_of(session, table.table_id, version)
    if not actions:
        return None
    made = serialise_commit(actions)
    return made if hashlib.sha256(made).hexdigest() == digest else None
