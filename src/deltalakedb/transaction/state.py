"""What a transaction knows of a table at the version it starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.errors import CorruptCatalogError
from deltalakedb.store import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.actions import Action
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
        self, version: int, committed_at: int, counts: Counts, actions: Iterable[Action]
    ) -> TableState:
        """The state that a commit of `actions` leaves behind."""
        metadata, protocol = self.metadata, self.protocol
        for action in actions:
            if isinstance(action, Metadata):
                metadata = action
            elif isinstance(action, Protocol):
                protocol = action
        return TableState(self.table_id, version, committed_at, metadata, protocol, counts)


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
