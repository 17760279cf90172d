"""Vacuum: data files that no version needs any more are deleted.

The catalog lists the needed files: those of the newest version, and of every version that was the
newest one within the retention. The table's folder is listed once; it also has leftovers of failed
writes. A file is deleted only if it is older than the retention too, so that the files of a write
in progress stay.

Guarantees:

- A needed file stays however its path is spelled: a path and an object are compared as the file
  that both lead to (`storage.locations`), on a disk behind all symbolic links.
- Files that other tables of the catalog need stay too: those of a shallow clone, by the retention
  of the clone, and everything in a table that lies inside this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.features import check_writable, required_features
from deltalakedb.actions.file_paths import vector_path
from deltalakedb.actions.properties import TableProperties
from deltalakedb.arguments import require_flags, require_function, require_number
from deltalakedb.deltalog.names import LOG, LogKind, parse_name
from deltalakedb.errors import ConfigurationError, Fix, InvalidArgumentError, MirrorError, Option
from deltalakedb.mirror.clock_check import check_ahead
from deltalakedb.progress import Phases, Progress
from deltalakedb.reading.data_files import descriptor_of
from deltalakedb.snapshot.listing import needed_files
from deltalakedb.staging.stage import STAGING_FOLDER
from deltalakedb.storage import open_storage
from deltalakedb.storage.locations import FilePlaces
from deltalakedb.store.mirror import mirror_table
from deltalakedb.store.table_lookup import not_registered

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.storage import ObjectInfo
    from deltalakedb.store import Store, TableRecord

_CHANGE_DATA: Final = "_change_data"
_ICEBERG: Final = "metadata/"
_AT_ONCE: Final = 1000
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Vacuum:
    """The files that a vacuum deleted, or would delete."""

    table: str
    dry_run: bool
    retention_hours: float
    files: int
    bytes: int
    kept: int
    paths: tuple[str, ...]
    """The files, below the table's location; of a dry run all of them, else the first thousand."""

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return {**asdict(self), "paths": list(self.paths)}


def vacuum(
    store: Store,
    snapshot: Snapshot,
    *,
    retention_hours: float | None = None,
    dry_run: bool = False,
    allow_short_retention: bool = False,
    progress: Progress | None = None,
) -> Vacuum:
    """Delete files that no version of the last `retention_hours` needs; see `Table.vacuum`."""
    require_flags(dry_run=dry_run, allow_short_retention=allow_short_retention)
    require_function("progress", progress)
    if retention_hours is not None:
        fix = "Pass 0 or more hours; the default is a week"
        retention_hours = require_number("retention_hours", retention_hours, fix=fix)
    phases = Phases(progress)
    table = snapshot.table
    if "vacuumProtocolCheck" in required_features(snapshot.protocol):
        check_writable(snapshot.protocol, metadata=snapshot.metadata, table=table.name)
    least = TableProperties(snapshot.properties).deleted_file_retention
    hours = _hours(table, least, retention_hours, allowed=allow_short_retention)
    now = store.clock.now_ms()
    cutoff = now - int(hours * _HOUR_MS)
    phases.begin("Listing needed files")
    places = FilePlaces(table.location, table.allowed_roots)
    with store.read() as session:
        others = [one for one in store.tables(session) if one.table_id != table.table_id]
    needed = _needed(store, table, places, cutoff, phases)
    for other in others:
        if any(places.overlaps(root) for root in other.allowed_roots):
            needed |= _needed(store, other, places, _cutoff_of(store, other, cutoff), phases)
    inside = [key for other in others if (key := _folder_inside(places, other)) is not None]
    storage = open_storage(table.location, snapshot.storage_options)
    iceberg = _has_iceberg(snapshot.properties)
    unneeded: dict[str, ObjectInfo] = {}
    retained, logged, newest = 0, -1, 0
    phases.begin("Listing files")
    for number, info in enumerate(storage.list(), start=1):
        if number % _AT_ONCE == 0:
            phases(number)
        logged = max(logged, _logged(info.key))
        newest = max(newest, info.modified_ms)
        if _is_hidden(info.key) or (iceberg and info.key.startswith(_ICEBERG)):
            continue
        identity = places.identity_of_key(info.key)
        if info.modified_ms >= cutoff or _is_needed(identity, needed, inside):
            retained += 1
        else:
            # Once, if links lead to it by several keys.
            unneeded.setdefault(identity, info)
    _refuse_foreign(store, table, logged)
    keys = [info.key for info in unneeded.values()]
    if not dry_run:
        if unneeded:
            check_ahead(store, storage, now, newest=newest)
        phases.begin("Deleting files", main=True)
        for start in range(0, len(keys), _AT_ONCE):
            storage.delete_many(keys[start : start + _AT_ONCE])
            phases(min(start + _AT_ONCE, len(keys)), len(keys))
    return Vacuum(
        table=table.name,
        dry_run=dry_run,
        retention_hours=hours,
        files=len(unneeded),
        bytes=sum(info.size for info in unneeded.values()),
        kept=retained,
        paths=tuple(keys if dry_run else keys[:_AT_ONCE]),
    )


def _hours(table: TableRecord, least: timedelta, hours: float | None, *, allowed: bool) -> float:
    default = least.total_seconds() / 3600
    if hours is None:
        return default
    if not 0 <= hours < math.inf:
        raise InvalidArgumentError(
            f"A retention of {hours} hours is no time", fix="Pass 0 or more; the default is a week"
        )
    if hours < default and not allowed:
        raise ConfigurationError(
            f"Table {table.name!r} keeps removed files for {default:g} hours; {hours:g} is less",
            why="Readers of older versions, and writers that have not committed their files yet, "
            "would lose them",
            fix="Leave the retention out, change the table's delta.deletedFileRetentionDuration, "
            f"or pass {Option('allow_short_retention', value=True)} while no other process uses "
            "the table",
        )
    return hours


def _needed(
    store: Store, table: TableRecord, places: FilePlaces, cutoff: int, phases: Phases
) -> set[str]:
    """The identities of all files that a version of `table` from `cutoff` on needs."""
    own = places if table.location == places.location else FilePlaces(table.location)
    needed: set[str] = set()
    for number, (path, vector) in enumerate(needed_files(store, table, cutoff), start=1):
        if number % _AT_ONCE == 0:
            phases(number)
        needed.update(places.identities(path, of=own))
        if vector is not None:
            file = vector_path(descriptor_of(vector, path))
            if file is not None:
                needed.update(places.identities(file, of=own))
    return needed


def _cutoff_of(store: Store, table: TableRecord, cutoff: int) -> int:
    """The cutoff of a clone, by its own retention."""
    retention = TableProperties(table.properties).deleted_file_retention
    return min(cutoff, store.clock.now_ms() - int(retention.total_seconds() * 1000))


def _folder_inside(places: FilePlaces, other: TableRecord) -> str | None:
    """The folder of another table inside this one; None where it lies elsewhere."""
    key = places.key_of_location(other.location)
    return f"{key}/" if key else key


def _is_needed(identity: str, needed: set[str], inside: Sequence[str]) -> bool:
    return identity in needed or any(identity.startswith(folder) for folder in inside)


def _logged(key: str) -> int:
    """The version of a commit file; -1 for another file."""
    folder, _, name = key.partition("/")
    parsed = parse_name(name) if folder == LOG else None
    return parsed.version if parsed is not None and parsed.kind is LogKind.COMMIT else -1


def _refuse_foreign(store: Store, table: TableRecord, logged: int) -> None:
    """Refuse a log with foreign commits, whose files would look like leftovers."""
    with store.read() as session:
        head = store.head(session, table.table_id)
        if head is None:
            raise not_registered(session, table)
        drifted = mirror_table(session, table.table_id).drift is not None
    if logged > head or drifted:
        raise MirrorError(
            f"Table {table.name!r} is not vacuumed: its log has a commit that this catalog has not "
            "written",
            why="The files of that commit would be taken for leftovers, and deleted",
            fix=f"Settle it first: {Fix('lake.verify', table.name)} lists the differences, and "
            f"{Fix('lake.adopt', table.name)} adopts the commit",
        )


def _has_iceberg(properties: Mapping[str, str]) -> bool:
    """Whether the table is an Iceberg table too, with metadata beside its files."""
    formats = properties.get("delta.universalFormat.enabledFormats", "")
    compatible = any(
        properties.get(f"delta.enableIcebergCompatV{n}", "").lower() == "true" for n in (1, 2, 3)
    )
    return compatible or "iceberg" in formats.lower()


def _is_hidden(key: str) -> bool:
    """Whether a file is no data: the log, and names that begin with a dot or an underscore.

    Partition folders may begin with an underscore too; they have a value.
    """
    return any(_hidden_names(key))


def _hidden_names(key: str) -> Iterator[bool]:
    for i, name in enumerate(key.split("/")):
        if i == 0 and name == _CHANGE_DATA:
            continue
        if i == 0 and name.startswith(STAGING_FOLDER):
            # Leftovers of an interrupted write.
            return
        yield name.startswith((".", "_")) and "=" not in name
