"""Many versions at once: the rows of a history that is taken over, and what they add up to.

Guarantees:

- `BulkWriter` fills the ledger and dl_active_files in large inserts, inside the caller's
  transaction. Each add opens an interval that the next action on the same logical file ends.
- It keeps the rows of live files in memory, and of others no more than a page.
- The keys of all files are made by the planned columns of the newest metaData.
- `live_totals` and `live_files` tell what came out, from dl_active_files alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from deltalakedb.actions import Action, Metadata
from deltalakedb.actions.planning import Plan, plan_of
from deltalakedb.errors import InvalidSchemaError
from deltalakedb.store.records import VersionRecord
from deltalakedb.store.relations import (
    ACTIVE_FILES,
    ADD_FILES,
    HEADS,
    LIVE,
    MIRROR_STATUS,
    REMOVE_FILES,
    UNPLANNED_FILES,
    VERSIONS,
)
from deltalakedb.store.rows import RowsByRelation, planned_rows, to_rows

if TYPE_CHECKING:
    from deltalakedb.store.dialect import Row, Session
    from deltalakedb.store.store import Store

_ROWS = 20_000
_PAGE = 50_000


class BulkWriter:
    """Rows of one new table, written by the thousands. Call `finish` at the end."""

    def __init__(self, store: Store, session: Session, table_id: str) -> None:
        self._store = store
        self._session = session
        self._table_id = table_id
        self._rows: RowsByRelation = {}
        self._count = 0
        self._plan: Plan = ()
        self._used_plans: set[Plan] = set()
        self._live: dict[tuple[str, str], Row] = {}
        self._ended: list[Row] = []

    def add_actions(self, version: int, actions: Sequence[Action]) -> None:
        """The actions of a version; a large one may come in several calls, ordinals aside.

        A call says one thing of a file at most.
        """
        for action in actions:
            if type(action) is Metadata:
                self._plan = _plan_of(action)
        found = to_rows(self._table_id, version, actions)
        for row in found.get(REMOVE_FILES, ()):
            self._end((row[2], row[3]), version)
        for row in found.get(ADD_FILES, ()):
            key = (row[2], row[3])
            self._end(key, version)
            self._live[key] = row
        for relation, rows in found.items():
            kept = self._rows.get(relation)
            if kept is None:
                self._rows[relation] = rows
            else:
                kept.extend(rows)
            self._count += len(rows)
        if self._count >= _ROWS:
            self._flush()
        if len(self._ended) >= _ROWS:
            self._flush_ended()

    def finish(
        self, records: Sequence[VersionRecord], published: Sequence[tuple[str, int]]
    ) -> None:
        """The versions themselves, the head and the live files.

        `published` has the digest and size of the commit file that each version has already.
        """
        self._flush()
        self._session.insert(VERSIONS, [record.to_row() for record in records])
        self._session.insert(
            MIRROR_STATUS,
            [
                (
                    *(record.table_id, record.version, "SUCCEEDED", 0, None, digest, None, size),
                    *(0, record.recorded_at, record.recorded_at, None),
                )
                for record, (digest, size) in zip(records, published, strict=True)
            ],
        )
        self._session.insert(HEADS, [(self._table_id, records[-1].version)])
        self._flush_ended()
        live = iter(sorted(self._live))
        while page := list(islice(live, _ROWS)):
            self._insert_files([_interval(self._live.pop(key), LIVE) for key in page])
        if self._used_plans - {self._plan}:
            # The planned columns changed after files of the history had been written.
            self._store.replan(self._session, self._table_id, self._plan)

    def _end(self, key: tuple[str, str], version: int) -> None:
        row = self._live.pop(key, None)
        if row is not None:
            self._ended.append(_interval(row, version))

    def _flush(self) -> None:
        for relation, rows in self._rows.items():
            if relation in (ADD_FILES, REMOVE_FILES):
                # In the order of their key: an index that grows at its end grows fast.
                rows.sort(key=_by_key)
            self._session.insert(relation, rows)
        self._rows = {}
        self._count = 0

    def _flush_ended(self) -> None:
        self._ended.sort(key=_by_key)
        self._insert_files(self._ended)
        self._ended = []

    def _insert_files(self, files: list[Row]) -> None:
        if not files:
            return
        if self._plan:
            self._session.insert(ACTIVE_FILES, planned_rows(files, self._plan))
        else:
            self._session.insert(UNPLANNED_FILES, files)
        self._used_plans.add(self._plan)


def _plan_of(metadata: Metadata) -> Plan:
    try:
        return plan_of(metadata)
    except InvalidSchemaError:
        # A schema of the past that nobody can read; the newest one is checked by the caller.
        return ()


def _interval(add: Row, removed_version: int) -> Row:
    """The row of dl_active_files that a row of dl_add_files opens and `removed_version` ends."""
    table_id, version, path, dv_id, *rest = add
    return (table_id, path, dv_id, version, removed_version, *rest)


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
