"""What a table is at a published version, beside its files: all that a checkpoint or checksum says.

Only published versions: a reader that finds a checkpoint or checksum of a version also looks for
its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.actions import Action, DomainMetadata, Txn
from deltalakedb.actions.properties import TableProperties
from deltalakedb.errors import Fix, NotPublishedError
from deltalakedb.snapshot.snapshot import Snapshot, open_snapshot
from deltalakedb.store.versions import domain_metadata, is_published, txns

if TYPE_CHECKING:
    from datetime import timedelta

    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session


@dataclass(frozen=True, slots=True)
class PublishedState:
    """A snapshot with the live app transactions and metadata domains."""

    snapshot: Snapshot
    txns: Sequence[Txn]
    domains: Sequence[DomainMetadata]

    def actions(self) -> list[Action]:
        """Every action of the state that is not about a file."""
        return [self.snapshot.protocol, self.snapshot.metadata, *self.domains, *self.txns]


def read_state(
    store: Store,
    session: Session,
    table: TableRecord,
    version: int,
    *,
    now_ms: Callable[[], int],
) -> PublishedState:
    """The state at a version; NotPublishedError where its commit is not in `_delta_log`.

    Only where app transactions expire, `now_ms` is asked for the time.
    """
    if not is_published(session, table.table_id, version):
        raise NotPublishedError(
            f"Version {version} of table {table.name!r} is not published",
            why="readers would look for a commit file that is not there",
            fix=f"Publish it first: {Fix('lake.mirror.run_once')}",
        )
    snapshot = open_snapshot(store, session, table, version)
    retention = TableProperties(snapshot.properties).set_transaction_retention
    domains = domain_metadata(session, table.table_id, version)
    return PublishedState(
        snapshot,
        _live(txns(session, table.table_id, version), retention, now_ms),
        [DomainMetadata(name, domains[name], removed=False) for name in sorted(domains)],
    )


def _live(
    found: Sequence[Txn], retention: timedelta | None, now_ms: Callable[[], int]
) -> Sequence[Txn]:
    if retention is None:
        return found
    # Where they expire, one that does not say when it was set has expired.
    oldest = now_ms() - milliseconds(retention)
    return [txn for txn in found if txn.last_updated is not None and txn.last_updated > oldest]


def milliseconds(duration: timedelta) -> int:
    """A duration in whole milliseconds."""
    return round(duration.total_seconds() * 1000)
