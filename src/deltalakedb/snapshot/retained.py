"""Files that versions of a certain age and younger still need: one range of the interval table.

Of versions that have expired the interval table knows nothing any more; the ledger still has what
they removed within the table's retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from deltalakedb.snapshot.listing import read_batches
from deltalakedb.store.arrow import FileQuery
from deltalakedb.store.retention import first_version

if TYPE_CHECKING:
    from deltalakedb.store import Store, TableRecord

_BATCH: Final = 10_000
_DATA: Final = (
    "SELECT path, deletion_vector FROM dl_active_files "
    "WHERE table_id = :table_id AND removed_version > :since"
)
_EXPIRED: Final = (
    "SELECT path, deletion_vector FROM dl_remove_files "
    "WHERE table_id = :table_id AND version <= :first "
    "AND coalesce(deletion_timestamp, 0) > :cutoff"
)
_COLUMNS: Final = ("path", "deletion_vector")


def needed_files(
    store: Store, table: TableRecord, cutoff_ms: int
) -> Iterator[tuple[str, str | None]]:
    """Paths, each with the descriptor of its deletion vector, of every version since a time.

    That is the version which was the newest then, and all later ones; change data included. Where
    it has expired, files that were removed since that time are needed too.
    """
    with store.read() as session:
        row = session.one(
            "version_at_timestamp", table_id=table.table_id, timestamp=max(-1, cutoff_ms)
        )
        since = -1 if row is None else int(row[0])
        first = first_version(session, table.table_id) if row is None else None
        changes = session.run("change_files_since", table_id=table.table_id, version=since)
    for (path,) in changes:
        yield str(path), None
    queries = [FileQuery(_DATA, _COLUMNS, {"table_id": table.table_id, "since": since})]
    if first:
        keys: dict[str, str | int] = {
            "table_id": table.table_id,
            "first": first,
            "cutoff": cutoff_ms,
        }
        queries.append(FileQuery(_EXPIRED, _COLUMNS, keys))
    for query in queries:
        with closing(read_batches(store, table, query, _BATCH)) as batches:
            for batch in batches:
                yield from zip(
                    batch.column("path").to_pylist(),
                    batch.column("deletion_vector").to_pylist(),
                    strict=True,
                )
