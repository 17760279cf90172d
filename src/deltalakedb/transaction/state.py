"""What a transaction knows of a table at the version it starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.errors import CorruptCatalogError
from deltalakedb.store import Counts

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.snapshot.resolve import OpenedTable
    from deltalakedb.store import Store
    from deltalakedb.store.dialect import Session


class TableState(NamedTuple):
    """The table at one version: what the next commit is checked against and counted on."""

    table_id: str
    version: int
    committed_at: int
    metadata: Metadata
    protocol: Protocol
    counts: Counts

    def after(
        self,
        version: int,
        committed_at: int,
        counts: Counts,
        *,
        metadata: Metadata | None,
        protocol: Protocol | None,
    ) -> TableState:
        """The state that a commit leaves behind, with the metadata and protocol it has, if any."""
        return TableState(
            self.table_id,
            version,
            committed_at,
            metadata or self.metadata,
            protocol or self.protocol,
            counts,
        )


def state_of(snapshot: Snapshot) -> TableState:
    """What a commit of work that was planned from a snapshot starts from."""
    return TableState(
        snapshot.table.table_id,
        snapshot.version,
        snapshot.committed_at,
        snapshot.metadata,
        snapshot.protocol,
        snapshot.counts,
    )


def state_at(table_id: str, opened: OpenedTable) -> TableState:
    """The same of a table that was opened at a version."""
    return TableState(
        table_id,
        opened.version,
        opened.committed_at,
        opened.metadata,
        opened.protocol,
        opened.counts,
    )


def load_state(store: Store, session: Session, table_id: str, version: int) -> TableState:
    """Read the state of a table at `version`, which exists."""
    record = store.version(session, table_id, version)
    metadata = store.metadata_at(session, table_id, version)
    protocol = store.protocol_at(session, table_id, version)
    if record is None or metadata is None or protocol is None:
        raise CorruptCatalogError(
            f"Version {version} of table {table_id} is incomplete",
            why="Its ledger row, metadata or protocol is missing",
            fix="Restore a backup of the catalog, or import the table again from its _delta_log",
        )
    return TableState(table_id, version, record.committed_at, metadata, protocol, record.counts)
