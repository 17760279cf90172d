"""Commit files against the digests that the catalog has of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import CorruptCatalogError, ObjectNotFoundError
from deltalakedb.mirror.findings import Findings, Kind
from deltalakedb.mirror.payloads import expected_bytes
from deltalakedb.mirror.state import milliseconds
from deltalakedb.store import mirror as queue
from deltalakedb.store.retention import first_version
from deltalakedb.store.table_lookup import not_registered

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalakedb.actions import Metadata
    from deltalakedb.deltalog.listing import LogListing
    from deltalakedb.mirror.log_reader import LogReader
    from deltalakedb.store import Store, TableRecord

_PAGE: Final = 1_000
_DAY_MS: Final = 86_400_000
_SUCCEEDED: Final = "SUCCEEDED"


class Recorded(NamedTuple):
    """What the catalog has of the commit file of a version."""

    version: int
    status: str
    digest: str
    payload_bytes: int
    committed_at: int
    live_files: int
    live_bytes: int

    @property
    def published(self) -> bool:
        """Whether the file was written."""
        return self.status == _SUCCEEDED


@dataclass(frozen=True, slots=True)
class Scope:
    """What there is to compare: taken before the log is listed, so that all of it is there."""

    first: int
    head: int
    published: int
    """The newest version up to which everything is published; `first` - 1 before the first."""
    metadata: Metadata

    def expired(self, committed_at: int, now_ms: int) -> bool:
        """Whether clean-up may have deleted the commit file of a version."""
        properties = TableProperties(self.metadata.configuration)
        cutoff = now_ms - milliseconds(properties.log_retention)
        return properties.enable_expired_log_cleanup and committed_at <= cutoff - cutoff % _DAY_MS


def take_scope(store: Store, table: TableRecord) -> Scope:
    """The versions of a table as they are now."""
    with store.read() as session:
        head = store.head(session, table.table_id)
        first = first_version(session, table.table_id)
        waiting = session.one("first_unpublished", table_id=table.table_id)
        if head is None:
            raise not_registered(session, table)
        metadata = store.metadata_at(session, table.table_id, head)
    if first is None or metadata is None:
        raise CorruptCatalogError(
            f"Table {table.name!r} has no version that is complete",
            fix="Restore a backup of the catalog",
        )
    oldest = None if waiting is None else waiting[0]
    return Scope(first, head, head if oldest is None else int(oldest) - 1, metadata)


def recorded_versions(
    store: Store, table: TableRecord, first: int, last: int
) -> Iterator[list[Recorded]]:
    """What the catalog has of the versions from `first` to `last`, a page at a time."""
    while first <= last:
        rows = store.dialect.ask(
            lambda session, first=first: session.run(  # type: ignore[misc]
                "recorded_commits", table_id=table.table_id, first=first, last=last, limit=_PAGE
            )
        )
        if not rows:
            return
        yield [Recorded(*row) for row in rows]
        first = int(rows[-1][0]) + 1


@dataclass(slots=True)
class CommitCheck:
    """Compares the commit files of a table; what it counts on the way."""

    store: Store
    table: TableRecord
    reader: LogReader
    scope: Scope
    listing: LogListing
    findings: Findings
    compared: int = 0
    pending: int = 0
    cleaned: int = 0
    unrecorded: int = 0
    wrong: set[int] = field(default_factory=set)
    """Published versions whose commit file is not what it should be."""

    def run(self, tell: Callable[[int, int], None]) -> None:
        """Look at every version of the catalog, and at what the log has beyond it."""
        total = self.scope.head - self.scope.first + 1
        done = 0
        for page in recorded_versions(self.store, self.table, self.scope.first, self.scope.head):
            keys = [commit_key(row.version) for row in page if row.version in self.listing.commits]
            entries = self.reader.fetch(keys)
            for row in page:
                entry = entries.get(commit_key(row.version))
                if entry is None:
                    self._absent(row)
                elif entry.digest == row.digest:
                    self.compared += 1
                else:
                    self._different(row, self.reader.get(commit_key(row.version)) or b"")
            done += len(page)
            tell(done, total)
        for version in sorted(self.listing.commits):
            if version > self.scope.head:
                self._beyond(version)

    def _absent(self, row: Recorded) -> None:
        # It may have been listed, and deleted since.
        self.listing.commits.pop(row.version, None)
        if not row.published:
            self.pending += 1
            self._check_payload(row)
        elif not row.digest:
            # An import found only a checkpoint of this version.
            self.unrecorded += 1
        elif self._was_cleaned(row):
            self.cleaned += 1
        elif not self._came_meanwhile(row):
            self.wrong.add(row.version)
            self.findings.add(
                Kind.MISSING_COMMIT,
                row.version,
                commit_key(row.version),
                f"it was published with {row.payload_bytes} bytes, and log retention keeps it",
            )

    def _check_payload(self, row: Recorded) -> None:
        """Whether the bytes to publish are those that were promised."""
        data = self.store.dialect.ask(
            lambda session: queue.payload_of(session, self.table.table_id, row.version)
        )
        if data is not None and hashlib.sha256(data).hexdigest() == row.digest:
            return
        for page in recorded_versions(self.store, self.table, row.version, row.version):
            if page[0].published:
                return  # just now, and then they are dropped
        self.findings.add(
            Kind.DAMAGED_PAYLOAD,
            row.version,
            commit_key(row.version),
            f"the bytes to publish are {'gone' if data is None else 'damaged'}",
        )

    def _was_cleaned(self, row: Recorded) -> bool:
        """Whether clean-up may have taken it: it has expired, and a checkpoint stands for it."""
        stands = any(row.version <= version for version in self.listing.checkpoints)
        return stands and self.scope.expired(row.committed_at, self.store.clock.now_ms())

    def _came_meanwhile(self, row: Recorded) -> bool:
        """Whether it is there after all: it may have been published after the log was listed."""
        try:
            data = self.reader.storage.get(commit_key(row.version))
        except ObjectNotFoundError:
            return False
        if hashlib.sha256(data).hexdigest() == row.digest:
            self.compared += 1
        else:
            self._different(row, data)
        return True

    def _different(self, row: Recorded, data: bytes) -> None:
        key = commit_key(row.version)
        if row.published:
            self.wrong.add(row.version)
        expected = expected_bytes(self.store, self.table, row.version, row.digest)
        if not data or (expected is not None and expected.startswith(data)):
            self.findings.add(
                Kind.TRUNCATED_COMMIT,
                row.version,
                key,
                f"it has {len(data)} bytes of {row.payload_bytes}",
            )
            return
        found = f"SHA-256 {hashlib.sha256(data).hexdigest()} and {len(data)} bytes"
        if row.published and row.digest:
            self.findings.add(
                Kind.DIFFERENT_COMMIT,
                row.version,
                key,
                f"it has {found}, and was published with {row.digest} and {row.payload_bytes}",
            )
        else:
            why = (
                "this catalog has another commit for the version, which waits to be published"
                if row.digest
                else "it was not there when the table was imported"
            )
            self.findings.add(Kind.FOREIGN_COMMIT, row.version, key, f"it has {found}; {why}")

    def _beyond(self, version: int) -> None:
        """A commit beyond the head, unless it is one that was committed here just now."""
        key = commit_key(version)
        data = self.reader.get(key)
        if data is None:
            return
        digest = hashlib.sha256(data).hexdigest()
        for page in recorded_versions(self.store, self.table, version, version):
            if page[0].digest == digest:
                return
            self._different(page[0], data)
            return
        self.findings.add(
            Kind.FOREIGN_COMMIT,
            version,
            key,
            f"the newest version of the catalog is {self.scope.head}; it has SHA-256 {digest} and "
            f"{len(data)} bytes",
        )
