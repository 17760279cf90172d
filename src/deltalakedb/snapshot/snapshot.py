"""A table at one version. The ledger of a version never changes, so neither does a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import Metadata, Protocol
from deltalakedb.actions.features import check_readable
from deltalakedb.errors import CorruptCatalogError, TableNotFoundError, VersionNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.actions.schema import StructType
    from deltalakedb.store import Counts, Store, TableRecord
    from deltalakedb.store.dialect import Session


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the table was at `version`, committed at `committed_at` (milliseconds)."""

    table: TableRecord
    version: int
    committed_at: int
    metadata: Metadata
    protocol: Protocol
    counts: Counts
    _store: Store = field(repr=False, compare=False)

    @property
    def timestamp(self) -> datetime:
        """When the version was committed, in UTC."""
        return datetime.fromtimestamp(self.committed_at / 1000, tz=UTC)

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.metadata.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The names of the partition columns."""
        return self.metadata.partition_columns

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties."""
        return self.metadata.configuration

    @property
    def num_files(self) -> int:
        """How many files are live."""
        return self.counts.live_files

    @property
    def size_bytes(self) -> int:
        """How many bytes the live files have."""
        return self.counts.live_bytes

    def files(self) -> pa.Table:
        """The live files, ordered by path."""
        import pyarrow as pa

        types = {
            "path": pa.string(),
            "dv_id": pa.string(),
            "added_version": pa.int64(),
            "size_bytes": pa.int64(),
            "modification_time": pa.int64(),
            "partition_values": pa.string(),
            "stats": pa.string(),
            "deletion_vector": pa.string(),
        }
        with self._store.read() as session:
            rows = session.run("files_at", table_id=self.table.table_id, version=self.version)
            decode = session.decode_text
        columns: list[list[Any]] = [
            [decode(row[i]) if isinstance(row[i], str) else row[i] for row in rows]
            for i in range(len(types))
        ]
        return pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)],
            names=list(types),
        )


def resolve_version(
    store: Store,
    session: Session,
    table: TableRecord,
    *,
    version: int | None = None,
    timestamp: datetime | str | None = None,
) -> int:
    """The version that is meant; VersionNotFoundError names what there is."""
    head = store.head(session, table.table_id)
    if head is None:
        raise TableNotFoundError(
            f"Table {table.name!r} is not registered any more", fix="See lake.tables()"
        )
    if timestamp is not None:
        moment = _milliseconds(timestamp)
        row = session.one("version_at_timestamp", table_id=table.table_id, timestamp=moment)
        if row is None:
            raise VersionNotFoundError(
                f"Table {table.name!r} has no version at {timestamp}",
                why="Its first version was committed later",
                fix="Choose a later time; see the history of the table",
            )
        return int(row[0])
    if version is None:
        return head
    if not 0 <= version <= head or store.version(session, table.table_id, version) is None:
        raise VersionNotFoundError(
            f"Table {table.name!r} has no version {version}", fix=f"Its newest version is {head}"
        )
    return version


def _milliseconds(timestamp: datetime | str) -> int:
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            raise VersionNotFoundError(
                f"{timestamp!r} is no time",
                fix="Write it like 2026-11-01T00:00:00Z, or pass a datetime",
            ) from None
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    return int(timestamp.timestamp() * 1000)


def open_snapshot(store: Store, session: Session, table: TableRecord, version: int) -> Snapshot:
    """The table at a version that exists; refused when its protocol needs more than we know."""
    record = store.version(session, table.table_id, version)
    metadata = store.metadata_at(session, table.table_id, version)
    protocol = store.protocol_at(session, table.table_id, version)
    if record is None or metadata is None or protocol is None:
        raise CorruptCatalogError(
            f"Version {version} of table {table.name!r} is incomplete",
            fix="Restore a backup of the catalog, or import the table again",
        )
    check_readable(protocol, table=table.name)
    return Snapshot(table, version, record.committed_at, metadata, protocol, record.counts, store)
