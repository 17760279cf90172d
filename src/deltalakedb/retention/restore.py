"""The restore of expired versions from their archive.

Guarantees:

- Exactly the rows that were deleted are restored; the keys of planned columns follow the current
  plan.
- An archive is restored in one transaction, which locks the head of the table. All files are
  fetched and checked before it begins.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.planning import Plan, plan_of, plan_text
from deltalakedb.deltalog.fetch import Spool
from deltalakedb.errors import (
    ArchiveError,
    CatalogBusyError,
    CommitOutcomeUnknownError,
    ObjectNotFoundError,
)
from deltalakedb.retention.archive import (
    MANIFEST,
    ArchivedFile,
    Manifest,
    check_file,
    read_rows,
    relation_of,
)
from deltalakedb.retention.expire import Step, ignore, newest_metadata, removed_rows
from deltalakedb.store.retention import first_version, restore_rows
from deltalakedb.store.table_lookup import not_registered
from deltalakedb.telemetry import event

if TYPE_CHECKING:
    from deltalakedb.storage import Storage
    from deltalakedb.store import Store, TableRecord
    from deltalakedb.store.dialect import Session


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: versions from `first_version` to `last_version`, and their rows."""

    table: str
    table_id: str
    versions: int
    first_version: int | None
    last_version: int | None
    rows: dict[str, int]
    archives: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return asdict(self)


def restore_expired(
    store: Store, table: TableRecord, archive: Storage, *, step: Step | None = None
) -> Restored:
    """Restore archives, newest first, as long as each precedes the oldest version of the table.

    Each is restored in its own transaction. `archive` is the location that was passed to `expire`,
    or the folder of one run.
    """
    on_step = step or ignore
    runs = _find_runs(archive, table)
    rows: dict[str, int] = {}
    done: list[tuple[str, Manifest]] = []
    with store.read() as session:
        first = first_version(session, table.table_id)
    while True:
        run = next((run for run in runs if run[1].last_version + 1 == first), None)
        if run is None:
            break
        folder, manifest = run
        _restore(store, table, archive=archive, folder=folder, manifest=manifest, on_step=on_step)
        for name, count in removed_rows(manifest.files).items():
            rows[name] = rows.get(name, 0) + count
        done.append(run)
        first = manifest.first_version
    if not done:
        known = ", ".join(f"{m.first_version} to {m.last_version}" for _, m in runs)
        raise ArchiveError(
            f"Nothing in {archive.location} goes before version {first}, the oldest of table "
            f"{table.name!r}",
            why=f"it has versions {known}"
            if known
            else f"it has no complete archive of the table {table.table_id}",
            fix="Check the location; archives are restored in the reverse order of their creation",
        )
    event("restore_expired", lambda: {"table": table.name, "archives": len(done)})
    return Restored(
        table=table.name,
        table_id=table.table_id,
        versions=done[0][1].last_version - done[-1][1].first_version + 1,
        first_version=done[-1][1].first_version,
        last_version=done[0][1].last_version,
        rows={name: count for name, count in rows.items() if count},
        archives=tuple(f"{archive.location}/{folder}".rstrip("/") for folder, _ in done),
    )


def _find_runs(archive: Storage, table: TableRecord) -> list[tuple[str, Manifest]]:
    """Every complete archive of the table: its folder and its manifest, the newest first."""
    keys = [MANIFEST] if archive.head(MANIFEST) is not None else []
    keys += sorted(
        info.key for info in archive.list(table.table_id) if info.key.endswith(f"/{MANIFEST}")
    )
    runs: list[tuple[str, Manifest]] = []
    for key in keys:
        manifest = Manifest.from_json(archive.get(key), where=f"{archive.location}/{key}")
        if manifest.table_id == table.table_id:
            runs.append((key.removesuffix(MANIFEST).rstrip("/"), manifest))
        elif key == MANIFEST:
            raise ArchiveError(
                f"{archive.location} is the archive of another table, {manifest.name!r}",
                why=f"its table_id is {manifest.table_id}, and that of {table.name!r} is "
                f"{table.table_id}",
                fix="Check the location",
            )
    return sorted(runs, key=lambda run: (run[1].last_version, run[1].created_at), reverse=True)


def _restore(
    store: Store,
    table: TableRecord,
    *,
    archive: Storage,
    folder: str,
    manifest: Manifest,
    on_step: Step,
) -> None:
    keys = {file: f"{folder}/{file.key}" if folder else file.key for file in manifest.files}
    with Spool(archive) as spool:
        # All files are fetched and checked before the head is locked.
        _fetch(spool, keys, folder)
        try:
            with store.write() as session, session.bulk():
                if store.lock_head(session, table.table_id) is None:
                    raise not_registered(session, table)
                _check_place(session, table, manifest)
                plan = _plan(store, session, table)
                for file, key in keys.items():
                    on_step(f"restore {file.key}")
                    for rows in read_rows(file, spool.get(key)):
                        restore_rows(session, relation_of(file), rows, plan=plan)
                on_step("commit")
        except CommitOutcomeUnknownError:
            with store.read() as session:
                if first_version(session, table.table_id) != manifest.first_version:
                    raise


def _fetch(spool: Spool, keys: dict[ArchivedFile, str], folder: str) -> None:
    try:
        spool.fetch(list(keys.values()))
    except ObjectNotFoundError as error:
        raise ArchiveError(
            "A file of the archive is missing",
            why=error.what,
            fix="Restore the file from a copy",
        ) from error
    for file, key in keys.items():
        entry = spool.entry(key)
        check_file(file, entry.size, entry.digest, folder=folder)


def _check_place(session: Session, table: TableRecord, manifest: Manifest) -> None:
    first = first_version(session, table.table_id)
    if first != manifest.last_version + 1:
        raise CatalogBusyError(
            f"Another process has expired or restored versions of table {table.name!r}",
            why=f"its oldest version is {first} now; nothing was written",
            fix="Try again",
        )


def _plan(store: Store, session: Session, table: TableRecord) -> Plan:
    """The planned columns of the keys of the table's files."""
    row = session.one("plan", table_id=table.table_id)
    plan = plan_of(newest_metadata(store, session, table))
    return plan if row is not None and row[0] == plan_text(plan) else ()
