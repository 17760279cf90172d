"""The commit files of a log, compared with the digests that the catalog has of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from deltalakedb.actions import serialise_commit
from deltalakedb.actions.properties import TableProperties
from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import CorruptCatalogError, ObjectNotFoundError
from deltalakedb.mirror.checkpoint_source import milliseconds
from deltalakedb.mirror.verification import Findings, Kind
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


class RecordedCommit(NamedTuple):
    """The commit file of a version as the catalog records it."""

    version: int
    status: str
    digest: str
    payload_bytes: int
    committed_at: int
    live_files: int
    live_bytes: int

    @property
    def published(self) -> bool:
        """Whether the commit file was published."""
        return self.status == _SUCCEEDED


@dataclass(frozen=True, slots=True)
class Scope:
    """The versions to compare: read before the log is listed, so that it has their files."""

    first: int
    head: int
    published: int
    """The version up to which all are published; `first` - 1 before the first."""
    metadata: Metadata

    def expired(self, committed_at: int, now_ms: int) -> bool:
        """Whether clean-up may have deleted the commit file of a version."""
        properties = TableProperties(self.metadata.configuration)
        cutoff = now_ms - milliseconds(properties.log_retention)
        return properties.enable_expired_log_cleanup and committed_at <= cutoff - cutoff % _DAY_MS


def read_scope(store: Store, table: TableRecord) -> Scope:
    """The scope of a verification that starts now."""
    with store.read() as session:
        head = store.head(session, table.table_id)
        first = first_version(session, table.table_id)
        unpublished = session.one("first_unpublished", table_id=table.table_id)
        if head is None:
            raise not_registered(session, table)
        metadata = store.metadata_at(session, table.table_id, head)
    if first is None or metadata is None:
        raise CorruptCatalogError(
            f"Table {table.name!r} has no complete version",
            fix="Restore a backup of the catalog",
        )
    oldest = None if unpublished is None else unpublished[0]
    return Scope(first, head, head if oldest is None else int(oldest) - 1, metadata)


def recorded_versions(
    store: Store, table: TableRecord, first: int, last: int
) -> Iterator[list[RecordedCommit]]:
    """The recorded commits from `first` to `last`, a page at a time."""
    while first <= last:
        rows = store.dialect.ask(
            lambda session, first=first: session.run(  # type: ignore[misc]
                "recorded_commits", table_id=table.table_id, first=first, last=last, limit=_PAGE
            )
        )
        if not rows:
            return
        yield [RecordedCommit(*row) for row in rows]
        first = int(rows[-1][0]) + 1


@dataclass(slots=True)
class CommitCheck:
    """Compares the commit files of a table, and counts them."""

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
    """Published versions whose commit file is missing or differs."""

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Check every version of the catalog, and the commits beyond its head."""
        total = self.scope.head - self.scope.first + 1
        done = 0
        for page in recorded_versions(self.store, self.table, self.scope.first, self.scope.head):
            keys = [commit_key(row.version) for row in page if row.version in self.listing.commits]
            entries = self.reader.fetch(keys)
            for row in page:
                entry = entries.get(commit_key(row.version))
                if entry is None:
                    self._check_absent(row)
                elif entry.digest == row.digest:
                    self.compared += 1
                else:
                    self._add_different(row, self.reader.get(commit_key(row.version)) or b"")
            done += len(page)
            progress(done, total)
        for version in sorted(self.listing.commits):
            if version > self.scope.head:
                self._check_beyond_head(version)

    def _check_absent(self, row: RecordedCommit) -> None:
        # It may have been deleted after it was listed.
        self.listing.commits.pop(row.version, None)
        if not row.published:
            self.pending += 1
            self._check_payload(row)
        elif not row.digest:
            # The table was imported from a checkpoint of this version.
            self.unrecorded += 1
        elif self._was_cleaned(row):
            self.cleaned += 1
        elif not self._appeared(row):
            self.wrong.add(row.version)
            self.findings.add(
                Kind.MISSING_COMMIT,
                row.version,
                commit_key(row.version),
                f"it was published with {row.payload_bytes} bytes, and log retention keeps it",
            )

    def _check_payload(self, row: RecordedCommit) -> None:
        """Check that the bytes to publish have the recorded digest."""
        data = self.store.dialect.ask(
            lambda session: queue.payload_of(session, self.table.table_id, row.version)
        )
        if data is not None and hashlib.sha256(data).hexdigest() == row.digest:
            return
        for page in recorded_versions(self.store, self.table, row.version, row.version):
            if page[0].published:
                return  # published just now, which deletes the bytes
        self.findings.add(
            Kind.DAMAGED_PAYLOAD,
            row.version,
            commit_key(row.version),
            f"the bytes to publish are {'missing' if data is None else 'damaged'}",
        )

    def _was_cleaned(self, row: RecordedCommit) -> bool:
        """Whether clean-up may have deleted it: it has expired, and a checkpoint replaces it."""
        replaced = any(row.version <= version for version in self.listing.checkpoints)
        return replaced and self.scope.expired(row.committed_at, self.store.clock.now_ms())

    def _appeared(self, row: RecordedCommit) -> bool:
        """Whether the file was published after the log was listed."""
        try:
            data = self.reader.storage.get(commit_key(row.version))
        except ObjectNotFoundError:
            return False
        if hashlib.sha256(data).hexdigest() == row.digest:
            self.compared += 1
        else:
            self._add_different(row, data)
        return True

    def _add_different(self, row: RecordedCommit, data: bytes) -> None:
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
        content = f"SHA-256 {hashlib.sha256(data).hexdigest()} and {len(data)} bytes"
        if row.published and row.digest:
            self.findings.add(
                Kind.DIFFERENT_COMMIT,
                row.version,
                key,
                f"it has {content}, and was published with {row.digest} and {row.payload_bytes}",
            )
        else:
            why = (
                "this catalog has another commit of the version, which is not published yet"
                if row.digest
                else "it was not there when the table was imported"
            )
            self.findings.add(Kind.FOREIGN_COMMIT, row.version, key, f"it has {content}; {why}")

    def _check_beyond_head(self, version: int) -> None:
        """Report a commit beyond the head, unless it was committed to the catalog meanwhile."""
        key = commit_key(version)
        data = self.reader.get(key)
        if data is None:
            return
        digest = hashlib.sha256(data).hexdigest()
        for page in recorded_versions(self.store, self.table, version, version):
            if page[0].digest == digest:
                return
            self._add_different(page[0], data)
            return
        self.findings.add(
            Kind.FOREIGN_COMMIT,
            version,
            key,
            f"the newest version of the catalog is {self.scope.head}; it has SHA-256 {digest} and "
            f"{len(data)} bytes",
        )


def expected_bytes(store: Store, table: TableRecord, version: int, digest: str) -> bytes | None:
    """The bytes with this digest, from the queue or the ledger; None where they are in neither.

    A commit of this catalog has one canonical form, which its actions in the ledger give again. The
    actions of an imported version rarely give the bytes of its writer.
    """
    with store.read() as session:
        payload = queue.payload_of(session, table.table_id, version)
        if payload is not None and hashlib.sha256(payload).hexdigest() == digest:
            return payload
        actions = store.actions_of(session, table.table_id, version)
    if not actions:
        return None
    data = serialise_commit(actions)
    return data if hashlib.sha256(data).hexdigest() == digest else None
