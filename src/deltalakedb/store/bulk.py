"""Many versions at once: the rows of a history that is taken over, and what they add up to.

`BulkWriter` fills the ledger in large inserts inside the caller's transaction; dl_active_files is
then derived from it in one statement. `live_totals` and `live_files` tell what came out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltalakedb.actions import Action
from deltalakedb.store.records import VersionRecord
from deltalakedb.store.relations import (
    ADD_FILES,
    HEADS,
    LIVE,
    MIRROR_STATUS,
    REMOVE_FILES,
    VERSIONS,
)
from deltalakedb.store.rows import RowsByRelation, to_rows

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Session
    from deltalakedb.store.store import Store

_ROWS = 20_000
_PAGE = 50_000


class BulkWriter:
    """Ledger rows of one new table, written by the thousands. Call `finish` at the end."""

    def __init__(self, store: Store, session: Session, table_id: str) -> None:
        self._store = store
        self._session = session
        self._table_id = table_id
        self._rows: RowsByRelation = {}
        self._count = 0

    def add_actions(self, version: int, actions: Sequence[Action]) -> None:
        """The actions of a version; a large one may come in several calls, ordinals aside."""
        for relation, rows in to_rows(self._table_id, version, actions).items():
            kept = self._rows.get(relation)
            if kept is None:
                self._rows[relation] = rows
            else:
                kept.extend(rows)
            self._count += len(rows)
        if self._count >= _ROWS:
            self._flush()

    def finish(
        self, records: Sequence[VersionRecord], published: Sequence[tuple[str, int]]
    ) -> None:
        """The versions themselves, the head and dl_active_files.

        `published` has the digest and size of the commit file that each version has already.
        """
        self._flush()
        self._session.insert(VERSIONS, [record.to_row() for record in records])
        self._session.insert(
            MIRROR_STATUS,
            [
                (
                    *(record.table_id, record.version, "SUCCEEDED", 0, None, digest, None, size),
                    *(0, record.recorded_at, record.recorded_at),
                )
                for record, (digest, size) in zip(records, published, strict=True)
            ],
        )
        self._session.insert(HEADS, [(self._table_id, records[-1].version)])
        self._store.rebuild_active_files(self._session, self._table_id)

    def _flush(self) -> None:
        for relation, rows in self._rows.items():
            if relation in (ADD_FILES, REMOVE_FILES):
                # In the order of their key: an index that grows at its end grows fast.
                rows.sort(key=_by_key)
            self._session.insert(relation, rows)
        self._rows = {}
        self._count = 0


def _by_key(row: tuple[object, ...]) -> tuple[int, str, str]:
    return row[1], row[2], row[3]  # type: ignore[return-value]


def live_totals(
    session: Session, table_id: str, first: int, last: int
) -> Iterator[tuple[int, int, int]]:
    """For each version from `first` to `last`: how many files were live, and their bytes.

    It comes from dl_active_files alone.
    """
    files: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for added, removed, count, size in session.run("interval_totals", table_id=table_id):
        files[added] = files.get(added, 0) + int(count)
        sizes[added] = sizes.get(added, 0) + int(size)
        if removed != LIVE:
            files[removed] = files.get(removed, 0) - int(count)
            sizes[removed] = sizes.get(removed, 0) - int(size)
    live_files = live_bytes = 0
    for version in range(first, last + 1):
        live_files += files.get(version, 0)
        live_bytes += sizes.get(version, 0)
        yield version, live_files, live_bytes


def live_files(session: Session, table_id: str) -> Iterator[tuple[str, str, int]]:
    """Path, deletion vector id and size of every live file, a page at a time."""
    path = dv_id = ""
    while True:
        rows = session.run(
            "live_files_after", table_id=table_id, path=path, dv_id=dv_id, limit=_PAGE
        )
        decode = session.decode_text
        for row in rows:
            path, dv_id = decode(row[0]), decode(row[1])
            yield path, dv_id, int(row[2])
        if len(rows) < _PAGE:
            return
