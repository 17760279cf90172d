"""States that files of the log come to, against the catalog at the same version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.live_state import (
    FILE_COLUMNS,
    LiveState,
    described_files,
    differences,
    metadata_differences,
    protocol_differences,
    shown,
)
from deltalakedb.snapshot.snapshot import open_snapshot
from deltalakedb.store.versions import app_transactions, domain_metadata

if TYPE_CHECKING:
    from deltalakedb.snapshot.snapshot import Snapshot
    from deltalakedb.store import Store, TableRecord

BUCKET: Final = 500_000
"""How many live files are compared at once."""
_BATCH: Final = 10_000


def buckets_of(live_files: int) -> int:
    """In how many parts the files of a version are compared."""
    return max(1, -(-live_files // BUCKET))


class CatalogState:
    """A version of a table as the catalog has it."""

    def __init__(self, store: Store, table: TableRecord, version: int) -> None:
        self.snapshot: Snapshot = open_snapshot(store, None, table, version)
        with store.read() as session:
            self.txns = app_transactions(session, table.table_id, version)
            self.domains = domain_metadata(session, table.table_id, version)

    @property
    def buckets(self) -> int:
        """In how many parts its files are compared."""
        return buckets_of(self.snapshot.num_files)

    def compare(
        self,
        states: Iterator[LiveState],
        tell: Callable[[str], None],
        *,
        from_checkpoint: bool,
    ) -> int:
        """Tell every difference to the states of all buckets; how many files were compared.

        What a checkpoint may leave out is not missed: statistics, and app transactions that expire.
        """
        compared = 0
        for state in states:
            if state.bucket == 0:
                self._compare_control(state, tell, from_checkpoint=from_checkpoint)
            compared += self._compare_files(state, tell, stats=not from_checkpoint)
        return compared

    def _compare_files(self, state: LiveState, tell: Callable[[str], None], *, stats: bool) -> int:
        compared = 0
        for file, described in self._files(state.bucket, state.buckets):
            compared += 1
            theirs = state.files.pop(file, None)
            if theirs is None:
                tell(f"the live file {shown(file)} is in the catalog and not in the log")
            elif theirs != described and (names := differences(described, theirs, stats=stats)):
                tell(f"of the live file {shown(file)} differ: {', '.join(names)}")
        for file in state.files:
            tell(f"the live file {shown(file)} is in the log and not in the catalog")
        return compared + len(state.files)

    def _files(self, bucket: int, buckets: int) -> Iterator[tuple[str, bytes]]:
        for batch in self.snapshot.iter_files(_BATCH, columns=FILE_COLUMNS):
            yield from described_files(batch, bucket, buckets)

    def _compare_control(
        self, state: LiveState, tell: Callable[[str], None], *, from_checkpoint: bool
    ) -> None:
        for what in protocol_differences(self.snapshot.protocol, state.protocol):
            tell(what)
        for what in metadata_differences(self.snapshot.metadata, state.metadata):
            tell(what)
        theirs = {app: txn.version for app, txn in state.txns.items()}
        mine = dict(self.txns)
        if from_checkpoint and TableProperties(self.snapshot.properties).set_transaction_retention:
            mine = {app: version for app, version in mine.items() if app in theirs}
        _tell_maps("the app transaction", mine, theirs, tell)
        domains = {
            name: domain.configuration
            for name, domain in state.domains.items()
            if not domain.removed
        }
        _tell_maps("the metadata domain", self.domains, domains, tell)


def _tell_maps(
    what: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], tell: Callable[[str], None]
) -> None:
    for key in sorted({*mine, *theirs}):
        a, b = mine.get(key), theirs.get(key)
        if a != b:
            tell(
                f"{what} {key!r} is {'absent' if a is None else repr(a)} in the catalog and "
                f"{'absent' if b is None else repr(b)} in the log"
            )
