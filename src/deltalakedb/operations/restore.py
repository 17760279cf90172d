"""Restore: a new version with the rows, columns and properties of an earlier one.

History stays: the versions in between can still be read, and a restore can be taken back by
another one. The protocol stays too, as a feature that is in use cannot simply be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import Action, DomainMetadata, Metadata
from deltalakedb.actions.clustering import DOMAIN as CLUSTERING
from deltalakedb.actions.datatypes import StructField, StructType, physical_name, schema_to_json
from deltalakedb.actions.file_paths import vector_path
from deltalakedb.errors import DataFileMissingError
from deltalakedb.operations.append import add_of, remove_of, rows_of_files
from deltalakedb.reading.data_files import descriptor_of
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.storage import open_storage
from deltalakedb.storage.locations import FilePlaces
from deltalakedb.threads import Threads
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Guarantees, Operation, state_of
from deltalakedb.transaction.rules import CONSTRAINT_RULES

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot

_THREADS: Final = 16
_MARK: Final = "delta.identity.highWaterMark"
# Properties of the history itself, which stay.
_OF_HISTORY: Final = (
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.columnMapping.maxColumnId",
)


@dataclass(frozen=True, slots=True)
class Restore:
    """The result of a restore; `version` is the new one, None where nothing had to change."""

    table: str
    restored: int
    version: int | None
    files_restored: int
    files_removed: int
    bytes_restored: int
    bytes_removed: int
    files: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return asdict(self)


def restore(
    now: Snapshot, then: Snapshot, *, timestamp: object = None, moment: int
) -> tuple[Commit | None, Restore]:
    """The commit of a version that equals an earlier one; None where nothing has to change.

    - It depends on the whole table: it fails if another writer commits meanwhile.
    - Files of the earlier version that vacuum has deleted are an error.
    """
    here, there = _by_identity(now), _by_identity(then)
    back = [row for key, row in there.items() if key not in here]
    gone = [row for key, row in here.items() if key not in there]
    _check_there(then, back)
    actions: list[Action] = []
    metadata = _restored(then.metadata, now.metadata)
    if metadata != now.metadata:
        actions.append(metadata)
    actions += _domains(now, then)
    actions += [remove_of(row, moment) for row in gone]
    actions += [add_of(row) for row in back]
    result = Restore(
        table=now.table.name,
        restored=then.version,
        version=None,
        files_restored=len(back),
        files_removed=len(gone),
        bytes_restored=sum(row["size_bytes"] for row in back),
        bytes_removed=sum(row["size_bytes"] for row in gone),
        files=then.num_files,
        bytes=then.size_bytes,
    )
    if not actions:
        return None, result
    operation = Operation(
        "RESTORE",
        {
            "version": then.version if timestamp is None else None,
            "timestamp": None if timestamp is None else str(timestamp),
        },
        {
            "tableSizeAfterRestore": str(result.bytes),
            "numOfFilesAfterRestore": str(result.files),
            "numRemovedFiles": str(result.files_removed),
            "numRestoredFiles": str(result.files_restored),
            "removedFilesSize": str(result.bytes_removed),
            "restoredFilesSize": str(result.bytes_restored),
        },
    )
    guarantees = Guarantees(
        # The rows were checked when they were written, by the rules of that version.
        enforced=frozenset(CONSTRAINT_RULES),
        # Files that stay were in that version, too.
        replaces_all=True,
    )
    read = ReadSet(whole_table=True)
    commit = Commit(now.table, state_of(now), tuple(actions), operation, read, guarantees)
    return commit, result


def _by_identity(snapshot: Snapshot) -> dict[tuple[str, str], dict[str, Any]]:
    rows = rows_of_files(snapshot.files(columns=COLUMNS))
    return {(row["path"], row["dv_id"]): row for row in rows}


def _restored(then: Metadata, now: Metadata) -> Metadata:
    """The earlier metadata, with the properties of the history as they are now."""
    own = {name: now.configuration[name] for name in _OF_HISTORY if name in now.configuration}
    schema = _with_marks(then.schema, now.schema)
    return replace(
        then,
        schema_string=then.schema_string if schema == then.schema else schema_to_json(schema),
        configuration={**then.configuration, **own},
        name=now.name,
    )


def _with_marks(then: StructType, now: StructType) -> StructType:
    """The earlier schema with the newest high-water marks: identity values are not used again."""
    marks = {physical_name(field): field.metadata.get(_MARK) for field in now.fields}

    def merged(field: StructField) -> StructField:
        before, after = field.metadata.get(_MARK), marks.get(physical_name(field))
        step = field.metadata.get("delta.identity.step")
        if not isinstance(step, int) or not isinstance(after, int):
            return field
        further = max if step > 0 else min
        mark = further(before, after) if isinstance(before, int) else after
        return replace(field, metadata={**field.metadata, _MARK: mark})

    return StructType(tuple(merged(field) for field in then.fields))


def _domains(now: Snapshot, then: Snapshot) -> list[Action]:
    """The earlier clustering; other domains are of the whole history, and stay."""
    if not now.clustering_columns and not then.clustering_columns:
        return []
    before, after = now.domain_metadata.get(CLUSTERING), then.domain_metadata.get(CLUSTERING)
    if before == after:
        return []
    return [DomainMetadata(CLUSTERING, after or before or "{}", removed=after is None)]


def _check_there(snapshot: Snapshot, rows: Iterable[Mapping[str, Any]]) -> None:
    """Refuse files that vacuum has deleted, or their deletion vectors."""
    places = FilePlaces(snapshot.table.location, snapshot.table.allowed_roots)
    wanted = list(dict.fromkeys(place for row in rows for place in _places(places, row)))
    stores = {
        root: open_storage(root, snapshot.storage_options) for root in {root for root, _ in wanted}
    }
    with Threads(_THREADS) as pool:
        infos = list(pool.map(lambda place: stores[place[0]].head(place[1]), wanted))
    missing = [key for (_, key), info in zip(wanted, infos, strict=True) if info is None]
    if missing:
        raise DataFileMissingError(
            f"Table {snapshot.table.name!r} cannot be restored to version {snapshot.version}: "
            f"{len(missing)} of its files are gone, the first one is {missing[0]}",
            why="Vacuum deletes files that no version within the retention needs",
            fix="Restore to a later version, or bring the files back from a backup",
        )


def _places(places: FilePlaces, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Store and key of a listed file and of its deletion vector."""
    yield _place(places, row["path"])
    if row["deletion_vector"] is None:
        return
    file = vector_path(descriptor_of(row["deletion_vector"], row["path"]))
    if file is not None:
        yield _place(places, file)


def _place(places: FilePlaces, path: str) -> tuple[str, str]:
    place = places.resolve(path)
    return place.store, "/".join(part for part in place.path.split("/") if part not in ("", "."))
