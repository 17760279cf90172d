"""Tombstones: files that were removed, for as long as somebody may still read them.

A remove counts while no later commit has added its file again, and its deletion timestamp is not
older than the table's retention. Only the commits of that time are looked at: a timestamp that
runs more than a day ahead of its own commit is not believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.store.arrow import FileQuery
from deltalakedb.store.queries import rewrite

if TYPE_CHECKING:
    from deltalakedb.store import TableRecord
    from deltalakedb.store.dialect import Session

_DAY_MS: Final = 86_400_000
_KEPT: Final = (
    "FROM dl_remove_files AS r "
    "WHERE r.table_id = :table_id AND r.version > :since AND r.version <= :version "
    "AND coalesce(r.deletion_timestamp, 0) > :cutoff "
    "AND NOT EXISTS (SELECT 1 FROM dl_add_files AS a WHERE a.table_id = :table_id "
    "AND a.path = r.path AND a.dv_id = r.dv_id "
    "AND a.version > r.version AND a.version <= :version) "
    "AND NOT EXISTS (SELECT 1 FROM dl_remove_files AS n WHERE n.table_id = :table_id "
    "AND n.path = r.path AND n.dv_id = r.dv_id "
    "AND n.version > r.version AND n.version <= :version)"
)
# Postgres keeps this map as JSONB, which has no Arrow type.
_AS_TEXT: Final = {"partition_values": "CAST(r.partition_values AS TEXT) AS partition_values"}


def oldest_look(session: Session, table: TableRecord, cutoff_ms: int) -> int:
    """The version after which removes may be newer than `cutoff_ms`; -1 for all."""
    row = session.one(
        "version_at_timestamp", table_id=table.table_id, timestamp=max(-1, cutoff_ms - _DAY_MS)
    )
    return -1 if row is None else int(row[0])


def tombstones_at(
    table: TableRecord, version: int, columns: tuple[str, ...], *, since: int, cutoff_ms: int
) -> FileQuery:
    """The tombstones at a version whose deletion is newer than `cutoff_ms`.

    `since` comes from `oldest_look`. `columns` are some of dl_remove_files.
    """
    chosen = ", ".join(_AS_TEXT.get(name, f"r.{name}") for name in columns)
    keys: dict[str, str | int] = {
        "table_id": table.table_id,
        "since": since,
        "version": version,
        "cutoff": cutoff_ms,
    }
    return FileQuery(f"SELECT {chosen} {_KEPT}", columns, keys, by_index=True)


def count_tombstones(
    session: Session, table: TableRecord, version: int, *, since: int, cutoff_ms: int
) -> int:
    """How many there are: exactly as many as `tombstones_at` gives."""
    keys = {
        "table_id": table.table_id,
        "since": since,
        "version": version,
        "cutoff": cutoff_ms,
    }
    ((count,),) = session.execute(rewrite(f"SELECT count(*) {_KEPT}", session.engine), keys)
    return int(count)
