"""The expiry of old versions: they are archived, then deleted from the catalog.

Guarantees:

- Nothing is deleted before its archive is complete and was read back. A process that dies at any
  point leaves the catalog as it was, or with the versions archived and deleted.
- All rows are deleted in one transaction, which locks the head of the table.
- Unpublished versions stay, and so does the version that was newest at the cutoff: readers may
  still ask for any time since then.
- `restore.py` restores exactly the rows that were deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.properties import TableProperties, parse_interval
from deltalakedb.errors import (
    CatalogBusyError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    CorruptCatalogError,
    InvalidArgumentError,
    Option,
)
from deltalakedb.formatting import format_time
from deltalakedb.mirror.checkpoint_source import milliseconds
from deltalakedb.mirror.clock_check import check_ahead
from deltalakedb.retention.archive import (
    ArchivedFile,
    Manifest,
    Part,
    PartWriter,
    complete,
    parts_of,
    write_part,
)
from deltalakedb.snapshot.listing import first_tombstone_version
from deltalakedb.snapshot.page_builder import rebuild_pages
from deltalakedb.snapshot.resolve import to_milliseconds
from deltalakedb.store.retention import (
    EXPIRING,
    Horizon,
    count_expiring,
    delete_expired,
    expiring_rows,
    first_version,
    oldest_to_keep,
)
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.telemetry import event, span

if TYPE_CHECKING:
    from deltalakedb.actions import Metadata
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session

Step = Callable[[str], None]
"""Called between any two steps: where tests kill the process."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of an expiry; `versions` is 0 where none was old enough.

    `first_version` and `last_version` are the oldest and the newest version that was deleted,
    `oldest_version` is the oldest that is left. `rows` has the number of deleted rows by relation.
    """

    table: str
    table_id: str
    versions: int
    first_version: int | None
    last_version: int | None
    oldest_version: int
    cutoff: int
    rows: dict[str, int]
    archive: str | None
    archived_bytes: int
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return asdict(self)


OlderThan = timedelta | datetime | str | None


def expire_table(
    store: Store,
    table: TableRecord,
    *,
    older_than: OlderThan = None,
    archive: Storage | None,
    dry_run: bool = False,
    step: Step | None = None,
    write_parts: PartWriter | None = None,
) -> Expired:
    """Archive and remove the versions before the one that was newest `older_than` ago.

    The files of the archive are written here, or by `write_parts`.
    """
    on_step = step or ignore
    with store.read() as session:
        cutoff, horizon = _horizon(store, session, table, older_than)
        if horizon is None:
            first = first_version(session, table.table_id) or 0
            return _outcome(table, cutoff, None, {}, dry_run=dry_run, oldest=first)
        _check_intact(store, session, table)
        if dry_run:
            rows = {r.name: count_expiring(session, r, horizon) for r in EXPIRING}
            return _outcome(table, cutoff, horizon, rows, dry_run=True)
    if archive is None:
        raise ConfigurationError(
            "There is no archive to move expired versions to",
            fix=f"Name a folder or an object store prefix for them: {Option('archive')}",
        )
    check_ahead(store, archive, store.clock.now_ms(), folder="")
    with span("deltalakedb.expire", table=table.name):
        folder = _new_folder(table, horizon)
        manifest = _write_archive(
            store,
            table,
            horizon,
            archive=archive,
            folder=folder,
            on_step=on_step,
            write_parts=write_parts,
        )
        pages_deleted = _delete(store, table, horizon, manifest, on_step)
        on_step("deleted")
    if pages_deleted:
        rebuild_pages(store, table)
    event("expire", lambda: {"table": table.name, "versions": horizon.keep - horizon.first})
    rows = removed_rows(manifest.files)
    place = f"{archive.location}/{folder}"
    size = sum(file.size_bytes for file in manifest.files)
    return _outcome(table, cutoff, horizon, rows, dry_run=False, archive=place, size=size)


def ignore(_: str) -> None:
    """The default step: do nothing."""


def _outcome(
    table: TableRecord,
    cutoff: int,
    horizon: Horizon | None,
    rows: dict[str, int],
    *,
    dry_run: bool,
    oldest: int = 0,
    archive: str | None = None,
    size: int = 0,
) -> Expired:
    return Expired(
        table=table.name,
        table_id=table.table_id,
        versions=0 if horizon is None else horizon.keep - horizon.first,
        first_version=None if horizon is None else horizon.first,
        last_version=None if horizon is None else horizon.keep - 1,
        oldest_version=oldest if horizon is None else horizon.keep,
        cutoff=cutoff,
        rows={name: count for name, count in rows.items() if count},
        archive=archive,
        archived_bytes=size,
        dry_run=dry_run,
    )


def removed_rows(files: Iterable[ArchivedFile]) -> dict[str, int]:
    """The number of rows of an archive that were deleted from the catalog, by relation."""
    counts: dict[str, int] = {}
    for file in files:
        counts[file.relation] = counts.get(file.relation, 0) + file.rows - file.kept
    return counts


# --- the horizon -------------------------------------------------------------------------


def _horizon(
    store: Store, session: Session, table: TableRecord, older_than: OlderThan
) -> tuple[int, Horizon | None]:
    """The cutoff, and the versions to expire; None where none is old enough."""
    now = store.clock.now_ms()
    metadata = newest_metadata(store, session, table)
    properties = TableProperties(metadata.configuration)
    cutoff = _cutoff(now, older_than, properties.log_retention)
    keep = oldest_to_keep(session, table.table_id, cutoff)
    first = first_version(session, table.table_id)
    if keep is None or first is None or keep <= first:
        return cutoff, None
    spared = now - milliseconds(properties.deleted_file_retention)
    since = first_tombstone_version(session, table, spared)
    return cutoff, Horizon(table.table_id, first, keep, since, spared)


def newest_metadata(store: Store, session: Session, table: TableRecord) -> Metadata:
    """The metaData of the head."""
    head = store.head(session, table.table_id)
    if head is None:
        raise not_registered(session, table)
    metadata = store.metadata_at(session, table.table_id, head)
    if metadata is None:
        raise CorruptCatalogError(
            f"Table {table.name!r} has no metaData", fix="Restore a backup of the catalog"
        )
    return metadata


def _cutoff(now: int, older_than: OlderThan, retention: timedelta) -> int:
    if isinstance(older_than, datetime):
        cutoff = to_milliseconds(older_than, name="older_than")
    else:
        if older_than is None:
            age = retention
        elif isinstance(older_than, str):
            try:
                age = parse_interval(older_than)
            except ConfigurationError as error:
                raise InvalidArgumentError(error.what, why=error.why, fix=error.fix) from None
        elif isinstance(older_than, timedelta):
            age = older_than
        else:
            raise InvalidArgumentError(
                f"{Option('older_than', older_than)} is not a length of time",
                fix="Pass a timedelta, text such as '30 days', or a datetime",
            )
        cutoff = now - milliseconds(age)
    if cutoff > now:
        raise ConfigurationError(
            f"{Option('older_than', older_than)} lies in the future ({format_time(cutoff)})",
            fix="Pass a length of time that is not negative, or a time in the past",
        )
    return cutoff


def _check_intact(store: Store, session: Session, table: TableRecord) -> None:
    """Check dl_active_files, from which the rows that stay are read."""
    problems = store.check_active_files(session, table.table_id, limit=1)
    if problems:
        raise CorruptCatalogError(
            f"dl_active_files of table {table.name!r} does not follow from its ledger",
            why=f"the row of {problems[0].path!r} is {problems[0].problem}; nothing was expired",
            fix="Run: deltalakedb rebuild",
        )


# --- archiving and deleting ---------------------------------------------------------------


def _new_folder(table: TableRecord, horizon: Horizon) -> str:
    run = uuid.uuid4().hex[:8]
    return f"{table.table_id}/{horizon.first:020d}-{horizon.keep - 1:020d}-{run}"


def _write_archive(
    store: Store,
    table: TableRecord,
    horizon: Horizon,
    *,
    archive: Storage,
    folder: str,
    on_step: Step,
    write_parts: PartWriter | None,
) -> Manifest:
    def parts(session: Session) -> Iterator[Part]:
        for relation in EXPIRING:
            on_step(f"archive {relation.name}")
            rows = expiring_rows(session, relation, horizon)
            yield from parts_of(relation, rows, folder=folder)

    with store.read() as session:
        session.read_all()
        if write_parts is None:
            files = tuple(write_part(archive, part) for part in parts(session))
        else:
            files = tuple(write_parts(parts(session)))
    on_step("manifest")
    manifest = Manifest(
        table_id=table.table_id,
        name=table.name,
        location=table.location,
        first_version=horizon.first,
        last_version=horizon.keep - 1,
        created_at=store.clock.now_ms(),
        files=files,
    )
    return complete(archive, folder, manifest)


def _delete(
    store: Store, table: TableRecord, horizon: Horizon, manifest: Manifest, on_step: Step
) -> bool:
    """Delete the archived rows; returns whether the listing pages were deleted too."""
    expected = removed_rows(manifest.files)
    pages_deleted = False
    try:
        with store.write() as session:
            session.read_all()
            if store.lock_head(session, table.table_id) is None:
                raise not_registered(session, table)
            _check_unchanged(session, table, horizon)
            for relation in EXPIRING:
                on_step(f"delete {relation.name}")
                count = delete_expired(session, relation, horizon)
                if count != expected.get(relation.name, 0):
                    raise CatalogBusyError(
                        f"Table {table.name!r} changed while its old versions were archived",
                        why=f"{relation.name} has {count} rows to expire, and "
                        f"{expected.get(relation.name, 0)} were archived; nothing was deleted",
                        fix="Try again",
                    )
            pages_deleted = _expire_pages(store, session, horizon)
            on_step("commit")
    except CommitOutcomeUnknownError:
        with store.read() as session:
            if first_version(session, table.table_id) != horizon.keep:
                raise
    return pages_deleted


def _check_unchanged(session: Session, table: TableRecord, horizon: Horizon) -> None:
    first = first_version(session, table.table_id)
    if first != horizon.first:
        raise CatalogBusyError(
            f"Another process has expired or restored versions of table {table.name!r}",
            why=f"its oldest version is {first} now, and was {horizon.first}; nothing was deleted",
            fix="Try again if more is to go",
        )


def _expire_pages(store: Store, session: Session, horizon: Horizon) -> bool:
    """Delete the listing pages of expired versions; returns whether all were deleted."""
    row = session.one("paged_table", table_id=horizon.table_id)
    if row is not None and int(row[0]) < horizon.keep:
        # The removals since they were built are deleted, so they could not be brought up to date.
        store.forget_pages(session, horizon.table_id)
        return True
    session.changed("expire_page_columns", table_id=horizon.table_id, keep=horizon.keep)
    session.changed("expire_pages", table_id=horizon.table_id, keep=horizon.keep)
    return False
