"""A `_delta_log` that is ahead of its catalog, detected before the first commit forks it.

It happens after a catalog was restored from a backup, after a database server lost its newest
commits, and after a foreign writer.

Guarantees:

- Each process checks a table once, before its first commit. Later commits cost nothing:
  put-if-absent detects commits that others write meanwhile.
- Commits of this catalog are not taken for foreign ones: they are in the catalog before their files
  are in the log, so the catalog is read again after a file was seen.
- An object store that does not respond delays one commit a minute, by seconds, and refuses none.
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


class DriftCheck:
    """Checks the logs of tables before their first commit."""

    def __init__(self, store: Store, storages: Storages) -> None:
        self._store = store
        self._storages = storages
        self.sound: set[str] = set()
        """Ids of the tables that need no check before their next commit."""
        self._not_before: dict[str, float] = {}

    def check_before_commit(self, table: TableRecord, version: int) -> None:
        """Raise TableDriftedError where the log has commits that the catalog does not have.

        `version` is one that the catalog has; the newest, unless others commit.
        """
        if time.monotonic() < self._not_before.get(table.table_id, 0.0):
            return
        try:
            self.check(table, version)
        except StorageError as error:
            # Commits do not wait for the store to be healthy; publishing will detect a drift.
            self._not_before[table.table_id] = time.monotonic() + _RETRY_SECONDS
            failure = str(error)
            warning(
                "log_not_checked",
                lambda: {"table": table.name, "table_id": table.table_id, "error": failure},
            )

    def check(self, table: TableRecord, version: int) -> None:
        """Check a table even if it was checked before; StorageError where the store fails."""
        storage = self._storages.at(table.location)
        while True:
            newer = _newer(storage, version)
            if newer is None:
                self.sound.add(table.table_id)
                return
            head = self._store.dialect.ask(
                lambda session: self._store.head(session, table.table_id)
            )
            if head is None:
                return  # It was dropped; the commit will fail.
            if head <= version:
                break
            version = head
        self.sound.discard(table.table_id)
        self._record(table, version, newer)
        raise drifted(table, f"{storage.location}/{newer}", version)

    def _record(self, table: TableRecord, head: int, key: str) -> None:
        """Record the drift, so that every process refuses commits."""
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
            # The role may only commit: this process still refuses commits.
            return


def drifted(table: TableRecord, place: str, head: int) -> TableDriftedError:
    """The error of a commit to a table whose log is ahead of the catalog."""
    return TableDriftedError(
        f"Table {table.name!r} cannot be committed to: {place} is not from this catalog, whose "
        f"newest version is {head}",
        why="Another writer has written to the log, or the catalog was restored from an older "
        "state. A commit would fork the history; nothing was committed",
        fix=queue.drift_way_out(table.name),
    )


def _newer(storage: Storage, version: int) -> str | None:
    """A key of the log that belongs to a later version; None where there is none."""
    following = commit_key(version + 1)
    if storage.head(following) is not None:
        return following
    # The commits after a very old catalog may have been cleaned up.
    from deltalakedb.deltalog.listing import list_log
    from deltalakedb.mirror.last_checkpoint import hinted_version

    hinted = hinted_version(storage)
    if hinted is None or hinted <= version:
        return None
    listing = list_log(storage)
    # A hint alone may be damaged.
    later = [
        *(file.key for number, file in listing.commits.items() if number > version),
        *(
            checkpoint.files[0].key
            for number, checkpoints in listing.checkpoints.items()
            for checkpoint in checkpoints
            if number > version
        ),
    ]
    return min(later, default=None)
