"""Pending snapshots: a table with the uncommitted actions of a transaction."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.actions import Action, AddFile, Metadata, Protocol, RemoveFile
from deltalakedb.arguments import require_whole
from deltalakedb.snapshot import listing
from deltalakedb.snapshot.listing import files_of_adds
from deltalakedb.snapshot.pages import without
from deltalakedb.snapshot.snapshot import Snapshot
from deltalakedb.store.arrow import schema_of

if TYPE_CHECKING:
    import pyarrow as pa

File: TypeAlias = tuple[str, str]
"""A file by its path and its dv_id."""
_FEW: Final = 20


@dataclass(frozen=True, slots=True)
class PendingSnapshot(Snapshot):
    """A snapshot with files added and removed that are not committed yet.

    A condition lists every added file: its caller filters the rows anyway.
    """

    _added: tuple[AddFile, ...] = field(default=(), repr=False, compare=False)
    _gone: pa.Table | None = field(default=None, repr=False, compare=False)

    def files(
        self,
        where: Any = None,
        *,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """As `Snapshot.files`."""
        import pyarrow as pa

        names = listing.check_columns(columns)
        wide = tuple(dict.fromkeys((*names, "path", "dv_id")))
        files = Snapshot.files(self, where, columns=wide)
        if self._gone is not None:
            files = without(files, self._gone)
        added = files_of_adds(self._added, self.version + 1, wide)
        files = pa.concat_tables([files, added])
        start = require_whole("offset", offset)
        if limit is not None or start:
            length = None if limit is None else require_whole("limit", limit)
            files = files.sort_by([("path", "ascending"), ("dv_id", "ascending")])
            files = files.slice(start, length)
        return files.select(names)

    def iter_files(
        self,
        batch_size: int = 10_000,
        where: Any = None,
        columns: Iterable[str] | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As `Snapshot.iter_files`, from memory."""
        size = require_whole("batch_size", batch_size, least=1)
        yield from listing.rebatch(self.files(where, columns=columns).to_batches(), size)


def live_among(snapshot: Snapshot, files: set[File]) -> set[File]:
    """Return those of `files` that are live in a snapshot."""
    if len(files) <= _FEW:
        return {file for file in files if snapshot.has_file(*file)}
    listed = snapshot.files(columns=["path", "dv_id"])
    return files & set(zip(listed["path"].to_pylist(), listed["dv_id"].to_pylist(), strict=True))


def pending(snapshot: Snapshot, actions: Sequence[Action], new: Collection[File]) -> Snapshot:
    """Return a snapshot with actions applied on top of it.

    Files of `new` are not live yet.
    """
    import pyarrow as pa

    if not actions:
        return snapshot
    metadata, protocol = snapshot.metadata, snapshot.protocol
    added: list[AddFile] = []
    gone: set[File] = set()
    for action in actions:
        match action:
            case Metadata():
                metadata = action
            case Protocol():
                protocol = action
            case AddFile():
                added.append(action)
            case RemoveFile():
                gone.add((action.path, action.dv_id))
    # A file that is live already is listed once, as the new action describes it.
    gone |= live_among(snapshot, {(add.path, add.dv_id) for add in added} - gone - set(new))
    live = snapshot.num_files - len(gone) + len(added)
    removed = pa.table(
        {"path": [path for path, _ in gone], "dv_id": [dv_id for _, dv_id in gone]},
        schema=schema_of(("path", "dv_id")),
    )
    return PendingSnapshot(
        snapshot.table,
        snapshot.version,
        snapshot.committed_at,
        metadata,
        protocol,
        snapshot.counts._replace(live_files=live),
        snapshot._store,  # noqa: SLF001 - the same class
        tuple(added),
        removed,
    )
