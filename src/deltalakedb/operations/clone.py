"""Shallow clones: a new table that shares the files of another one.

No data is read or written. Columns, properties and protocol are those of the source at its version;
the history is new. Files of later commits lie in the clone's own folder. The shared files belong to
the source: its vacuum deletes those that neither the source nor a clone in the same catalog needs;
a vacuum of the clone never touches them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import AddFile, DeletionVectorDescriptor, DomainMetadata, Metadata
from deltalakedb.actions.features import protocol_for, required_features, upgrade
from deltalakedb.actions.file_paths import absolute_path, plain_uri
from deltalakedb.actions.partition import encode_path
from deltalakedb.actions.properties import check_properties
from deltalakedb.errors import ConfigurationError, TableExistsError
from deltalakedb.operations.alter import (
    ROW_COLUMNS,
    as_text,
    check_constraints,
    record_of,
    with_row_columns,
)
from deltalakedb.operations.append import add_of, rows_of_files
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Guarantees, Operation
from deltalakedb.transaction.rules import CONSTRAINT_RULES

if TYPE_CHECKING:
    from deltalakedb.actions import Action
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.store import TableRecord
    from deltalakedb.transaction.commit import TableState

# Properties of the source's history, which a clone does not have.
_OF_HISTORY: Final = (
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.requireCheckpointProtectionBeforeVersion",
)
_DOMAINS: Final = ("delta.clustering",)
_MAPPING: Final = "delta.columnMapping.mode"


def clone(
    source: Snapshot,
    *,
    name: str,
    location: str,
    properties: Mapping[str, str] | None = None,
    now: int,
) -> Commit:
    """The commit that creates a shallow clone of a snapshot."""
    _check_apart(source, location)
    metadata = replace(
        _cloned(source, {} if properties is None else properties),
        id=str(uuid.uuid4()),
        name=name,
        description=None,
        created_time=now,
    )
    actions = _actions(source, metadata)
    protocol = upgrade(source.protocol, required_features(protocol_for(metadata)))
    return Commit(
        table=replace(record_of(metadata, protocol, location, now), allowed_roots=roots_of(source)),
        base=None,
        actions=(protocol, metadata, *actions),
        operation=_operation(source),
        guarantees=Guarantees(frozenset(CONSTRAINT_RULES)),
    )


def clone_into(
    source: Snapshot,
    table: TableRecord,
    base: TableState,
    *,
    properties: Mapping[str, str] | None = None,
) -> Commit:
    """The commit that turns an existing, empty table into a shallow clone."""
    if base.counts.live_files:
        raise TableExistsError(
            f"Table {table.name!r} cannot be replaced by a clone",
            why=f"It is not empty: it has {base.counts.live_files} files",
            fix="Delete its rows first, or clone to another location",
        )
    _check_apart(source, table.location)
    here = base.metadata
    metadata = replace(
        _cloned(source, {} if properties is None else properties),
        id=here.id,
        name=here.name,
        description=here.description,
        created_time=here.created_time,
    )
    own = {key: here.configuration[key] for key in _OF_HISTORY if key in here.configuration}
    metadata = replace(metadata, configuration={**metadata.configuration, **own})
    needed = required_features(source.protocol) | required_features(protocol_for(metadata))
    protocol = upgrade(base.protocol, needed)
    control: list[Action] = [metadata] if protocol == base.protocol else [protocol, metadata]
    return Commit(
        table=table,
        base=base,
        actions=(*control, *_actions(source, metadata)),
        operation=_operation(source),
        read=ReadSet(whole_table=True),
        guarantees=Guarantees(frozenset(CONSTRAINT_RULES), replaces_all=True),
    )


def roots_of(source: Snapshot) -> tuple[str, ...]:
    """The locations of the files of a clone: its source, and where the source has files."""
    return tuple(dict.fromkeys((source.table.location, *source.table.allowed_roots)))


def _cloned(source: Snapshot, properties: Mapping[str, str]) -> Metadata:
    changed = as_text(properties)
    check_properties(changed)
    check_constraints(changed, source.schema, source.partition_columns)
    before = source.metadata.configuration
    if changed.get(_MAPPING, before.get(_MAPPING, "none")) != before.get(_MAPPING, "none"):
        raise ConfigurationError(
            f"A clone of table {source.table.name!r} cannot have another {_MAPPING}",
            why="Its files are those of the source, with the names that columns have in them",
            fix="Leave the property out",
        )
    # The row ids in files are those of the source.
    left = {*_OF_HISTORY, *ROW_COLUMNS}
    rest = {key: value for key, value in before.items() if key not in left}
    return replace(source.metadata, configuration=with_row_columns({**rest, **changed}))


def _actions(source: Snapshot, metadata: Metadata) -> list[Action]:
    location = source.table.location
    rows = rows_of_files(source.files(columns=COLUMNS))
    domains = source.domain_metadata
    return [
        *(_added(add_of(row), location) for row in rows),
        *(
            DomainMetadata(name, domains[name], removed=False)
            for name in _DOMAINS
            if name in domains and not metadata.partition_columns
        ),
    ]


def _added(add: AddFile, location: str) -> AddFile:
    vector = add.deletion_vector
    return replace(
        add,
        path=plain_uri(absolute_path(location, add.path)),
        deletion_vector=None if vector is None else _absolute_vector(vector, location),
        # The rows of a clone get their own ids.
        base_row_id=None,
        default_row_commit_version=None,
    )


def _absolute_vector(vector: DeletionVectorDescriptor, location: str) -> DeletionVectorDescriptor:
    if vector.storage_type != "u":
        return vector
    file = vector.file_path()
    assert file is not None  # noqa: S101 - only inline ones have none
    path = absolute_path(location, encode_path(file))
    return replace(vector, storage_type="p", path_or_inline_dv=path)


def _check_apart(source: Snapshot, location: str) -> None:
    """Refuse a table inside another one, whose vacuum would delete its files."""
    here, there = f"{location}/", f"{source.table.location}/"
    if here.startswith(there) or there.startswith(here):
        raise ConfigurationError(
            f"A clone of the table at {source.table.location} cannot lie at {location}",
            why="One folder lies in the other, and a vacuum of the outer table would delete files "
            "of the inner one",
            fix="Choose a location beside it",
        )


def _operation(source: Snapshot) -> Operation:
    none = ("numRemovedFiles", "numCopiedFiles", "removedFilesSize", "copiedFilesSize")
    return Operation(
        "CLONE",
        {"source": source.table.name, "sourceVersion": source.version},
        {
            "sourceTableSize": str(source.size_bytes),
            "sourceNumOfFiles": str(source.num_files),
            **dict.fromkeys(none, "0"),
        },
    )
