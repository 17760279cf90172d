"""A `_delta_log` that is ahead of its catalog: noticed before the first commit makes a fork of it.

That is what a catalog that was restored from a backup finds, or one whose newest commits were lost
with a database server; and what a foreign writer leaves behind.

Guarantees:

- A table is looked at once by each process, before it commits to it for the first time. Later
  commits cost nothing: put-if-absent finds what others write while this process is at work.
- Commits of this catalog are not taken for foreign ones: they are in the catalog before their files
  are in the log, so whoever has seen a file looks at the catalog again.
- An object store that does not answer holds up one commit a minute, for seconds, and refuses none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import CatalogPermissionError, StorageError, TableDriftedError
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import warning

if TYPE_CHECKING:
    from deltalakedb.mirror.publish import Storages
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord

_RETRY_SECONDS: Final = 60.0


class LogAhead:
    """Looks at the logs of tables that are about to be written for the first time."""

    def __init__(self, store: Store, storages: Storages) -> None:
        self._store = store
        self._storages = storages
        self._sound: set[str] = set()
        self._not_before: dict[str, float] = {}

    def trust(self, table: TableRecord) -> None:
        """A table that this process has made has no other commits."""
        self._sound.add(table.table_id)

    def distrust(self, table: TableRecord) -> None:
        """Look at a table again before the next commit."""
        self._sound.discard(table.table_id)

    def check_once(self, table: TableRecord, version: int) -> None:
        """Raise TableDriftedError where the log has commits that the catalog does not have.

        `version` is one that the catalog has; the newest, unless others commit.
        """
        if table.table_id in self._sound:
            return
        if time.monotonic() < self._not_before.get(table.table_id, 0.0):
            return
        try:
            self.check(table, version)
        except StorageError as error:
            # Commits do not wait for the store to be healthy; publishing will find out.
            self._not_before[table.table_id] = time.monotonic() + _RETRY_SECONDS
            failure = str(error)
            warning(
                "log_not_checked",
                lambda: {"table": table.name, "table_id": table.table_id, "error": failure},
            )

    def check(self, table: TableRecord, version: int) -> None:
        """As `check_once`, also a table that was looked at; StorageError where that fails."""
        storage = self._storages.at(table.location)
        while True:
            newer = _newer(storage, version)
            if newer is None:
                self._sound.add(table.table_id)
                return
            head = self._store.dialect.ask(
                lambda session: self._store.head(session, table.table_id)
            )
            if head is None:
                return  # It has left the catalog, which the commit will find.
            if head <= version:
                break
            version = head
        self._sound.discard(table.table_id)
        self._record(table, version, newer)
        raise drifted(table, f"{storage.location}/{newer}", version)

    def _record(self, table: TableRecord, head: int, key: str) -> None:
        """Note the drift, so that every process refuses commits."""
        now = self._store.clock.now_ms()
        drift = {
            "kind": "log ahead of catalog",
            "version": head + 1,
            "object_key": key,
            "detected_at": now,
        }
        try:
            with self._store.write() as session:
                if queue.mirror_table(session, table.table_id).drift is None:
                    queue.set_drift(session, table.table_id, drift, now=now)
        except CatalogPermissionError:
            # A role that may only commit: its own commits are refused all the same.
            return


def drifted(table: TableRecord, place: str, head: int) -> TableDriftedError:
    """What to say of a commit to a table whose log is ahead."""
    return TableDriftedError(
        f"Table {table.name!r} cannot be committed to: {place} is not from this catalog, whose "
        f"newest version is {head}",
        why="Somebody else has written to the log, or the catalog was restored from an older "
        "state. A commit would fork the history; nothing was committed",
        fix=queue.drift_way_out(table.name),
    )


def _newer(storage: Storage, version: int) -> str | None:
    """A key of the log that belongs to a later version; None where there is none."""
    following = commit_key(version + 1)
    if storage.head(following) is not None:
        return following
    # Of a catalog that is very old, the commits that follow may be gone from the log by now.
    from deltalakedb.deltalog.listing import list_log
    from deltalakedb.mirror.hints import hinted_version

    hinted = hinted_version(storage)
    if hinted is None or hinted <= version:
        return None
    listing = list_log(storage)
    # A hint alone may be damaged.
    later = [
        *(file.key for number, file in listing.commits.items() if number > version),
        *(
            checkpoint.files[0].key
            for number, found in listing.checkpoints.items()
            for checkpoint in found
            if number > version
        ),
    ]
    return min(later, default=None)
