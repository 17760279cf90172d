"""Snapshots that report their reads, for a transaction that depends on them.

Files and rows are reported with their condition, and the number of files as a read of the whole
table. Version, time, metadata, app transactions and metadata domains are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from deltalakedb.conditions.predicate import Constant, Predicate
from deltalakedb.conditions.where import predicate_of
from deltalakedb.snapshot import listing
from deltalakedb.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

Report: TypeAlias = Callable[[Predicate, Iterable[str]], None]
"""Called with the condition of a read, and the paths of the files that were listed for it."""
EVERYTHING = Constant(value=True)
NOTHING_ELSE = Constant(value=False)


@dataclass(frozen=True, slots=True)
class WatchedSnapshot(Snapshot):
    """Like `Snapshot`; each read is passed to `_report` before its result is returned."""

    _report: Report = field(repr=False, compare=False)

    @property
    def num_files(self) -> int:
        """The number of live files."""
        self._report(EVERYTHING, ())
        return self.counts.live_files

    @property
    def size_bytes(self) -> int:
        """The size of the live files in bytes."""
        self._report(EVERYTHING, ())
        return self.counts.live_bytes

    def has_file(self, path: str, dv_id: str | None = None) -> bool:
        """As `Snapshot.has_file`; a missing file is a read of the whole table."""
        is_live = Snapshot.has_file(self, path, dv_id)
        if is_live:
            self._report(NOTHING_ELSE, [path])
        else:
            self._report(EVERYTHING, ())
        return is_live

    def files(
        self,
        where: Any = None,
        *,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """As `Snapshot.files`; with a limit or an offset it is a read of the whole table."""
        names = listing.check_columns(columns)
        predicate = self._predicate(where)
        if predicate == EVERYTHING or limit is not None or offset:
            self._report(EVERYTHING, ())
            return Snapshot.files(self, where, columns=names, limit=limit, offset=offset)
        files = Snapshot.files(self, predicate, columns=list(dict.fromkeys((*names, "path"))))
        self._report(predicate, files["path"].to_pylist())
        return files.select(names)

    def iter_files(
        self,
        batch_size: int = 10_000,
        where: Any = None,
        columns: Iterable[str] | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As `Snapshot.iter_files`; with a condition the paths stay in memory until the commit."""
        names = listing.check_columns(columns)
        predicate = self._predicate(where)
        self._report(predicate, ())
        if predicate == EVERYTHING:
            return Snapshot.iter_files(self, batch_size, where, names)
        wide = list(dict.fromkeys((*names, "path")))
        batches = Snapshot.iter_files(self, batch_size, predicate, wide)
        return self._reported(batches, names)

    def _reported(
        self, batches: Generator[pa.RecordBatch, None, None], names: Iterable[str]
    ) -> Generator[pa.RecordBatch, None, None]:
        for batch in batches:
            self._report(NOTHING_ELSE, batch["path"].to_pylist())
            yield batch.select(list(names))

    def _predicate(self, where: Any) -> Predicate:
        predicate = predicate_of(where, self.metadata)
        return EVERYTHING if predicate is None else predicate


def watched(snapshot: Snapshot, report: Report) -> WatchedSnapshot:
    """Return the same snapshot, which passes its reads to `report`."""
    return WatchedSnapshot(
        snapshot.table,
        snapshot.version,
        snapshot.committed_at,
        snapshot.metadata,
        snapshot.protocol,
        snapshot.counts,
        snapshot._store,  # noqa: SLF001 - the same class
        report,
    )
