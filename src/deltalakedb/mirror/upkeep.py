"""The upkeep of a published log: checkpoints, version checksums, clean-up.

It only helps readers: a failure is recorded, counted and logged, and harms neither commits nor
publishing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from deltalakedb.deltalog.names import LOG
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.store import mirror as queue
from deltalakedb.telemetry import event, span, warning

if TYPE_CHECKING:
    from deltalakedb.mirror.publish import Storages
    from deltalakedb.store import Store, TableRecord

T = TypeVar("T")

_DAY_MS: Final = 86_400_000
# Younger files may still be in use.
_LEFTOVER_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """The result of an upkeep."""

    checkpoint: int | None = None
    checksum: int | None = None
    cleaned: bool = False
    error: str | None = None


class Upkeep:
    """Runs the upkeep of tables whose newest versions were published."""

    def __init__(self, store: Store, storages: Storages) -> None:
        self._store = store
        self._storages = storages

    def run(self, table: TableRecord, published: int) -> UpkeepResult:
        """Bring checksum, checkpoint and clean-up of a table up to a published version."""
        known = self._store.dialect.ask(lambda session: queue.mirror_table(session, table.table_id))
        problems: list[str] = []
        checksum = self._attempt(problems, table, "checksum", lambda: self._sum(table, published))
        checkpoint = self._attempt(
            problems,
            table,
            "checkpoint",
            lambda: self._checkpoint(table, published, known.checkpoint_version),
        )
        cleaned = False
        # The cutoff changes at midnight, and nothing is deleted without a checkpoint. A clean-up in
        # the future comes from a wrong clock.
        if self._store.clock.now_ms() // _DAY_MS != known.cleaned_at // _DAY_MS and (
            checkpoint is not None or known.checkpoint_version is not None
        ):
            done = self._attempt(problems, table, "clean-up", lambda: self._clean(table))
            cleaned = done is not None
        error = "; ".join(problems) or None
        if error != known.checkpoint_error:
            with self._store.write() as session:
                queue.note_upkeep(session, table.table_id, error, now=self._store.clock.now_ms())
        return UpkeepResult(checkpoint, checksum, cleaned, error)

    def _sum(self, table: TableRecord, version: int) -> int:
        from deltalakedb.mirror.checkpoint import write_checksum

        write_checksum(self._store, self._storages.at(table.location), table, version)
        return version

    def _checkpoint(self, table: TableRecord, published: int, newest: int | None) -> int | None:
        from deltalakedb.mirror.checkpoint import write_checkpoint

        version = self._due(table, published, -1 if newest is None else newest)
        if version is None:
            return None
        with span("deltalakedb.checkpoint", table=table.name, version=version):
            write_checkpoint(self._store, self._storages.at(table.location), table, version)
        with self._store.write() as session:
            queue.note_checkpoint(session, table.table_id, version, now=self._store.clock.now_ms())
        self._store.metrics.count("checkpoints_total")
        event("checkpoint", lambda: {"table": table.name, "version": version})
        return version

    def _due(self, table: TableRecord, published: int, newest: int) -> int | None:
        """The newest version whose checkpoint is due and not written yet."""
        from deltalakedb.mirror.checkpoint import checkpoint_interval

        with self._store.read() as session:
            metadata = self._store.metadata_at(session, table.table_id, published)
        if metadata is None:
            return None
        interval = checkpoint_interval(metadata.configuration)
        version = published - published % interval
        return version if version > max(newest, 0) else None

    def _clean(self, table: TableRecord) -> bool:
        from deltalakedb.mirror.cleanup import clean_log

        now = self._store.clock.now_ms()
        storage = self._storages.at(table.location)
        clean_log(self._store, storage, table, now_ms=now)
        storage.clear_leftovers(LOG, older_than_seconds=_LEFTOVER_SECONDS)
        with self._store.write() as session:
            queue.note_cleaned(session, table.table_id, now=now)
        return True

    def _attempt(
        self, problems: list[str], table: TableRecord, what: str, work: Callable[[], T]
    ) -> T | None:
        try:
            return work()
        except DeltaLakeDbError as error:
            failure = f"{what}: {error}"
            problems.append(failure)
            self._store.metrics.count("mirror_upkeep_failures_total")
            warning(
                "mirror_upkeep_failed",
                lambda: {"table": table.name, "table_id": table.table_id, "error": failure},
            )
            return None
