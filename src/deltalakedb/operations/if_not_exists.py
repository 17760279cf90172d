"""Creation of a table that may exist: it has to be the table that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import DomainMetadata, Metadata
from deltalakedb.actions.clustering import clustering_paths, dotted
from deltalakedb.actions.datatypes import schema_to_json
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.errors import Fix, TableExistsError

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot
    from deltalakedb.transaction.commit import Commit

# What a table has in the metadata of its columns, and nobody asks for.
_OF_TABLE = ("delta.columnMapping.", "delta.typeChanges")


def refuse_other_table(
    snapshot: Snapshot,
    asked: Commit,
    *,
    location: str | None,
    properties: Mapping[str, Any] | None,
    description: str | None,
) -> None:
    """Refuse an existing table that differs from the one that `asked` would create.

    Its columns, partitioning and clustering have to be the same, and the location, the description
    and each property that the call has.
    """
    metadata = next(one for one in asked.actions if isinstance(one, Metadata))
    here = snapshot.metadata
    domains = {
        one.domain: one.configuration for one in asked.actions if isinstance(one, DomainMetadata)
    }
    pairs: list[tuple[str, object, object]] = [
        ("location", snapshot.table.location, location),
        ("columns", str(here.schema), str(metadata.schema)),
        ("columns with all their properties", _columns(here), _columns(metadata)),
        ("partition columns", list(here.partition_columns), list(metadata.partition_columns)),
        (
            "clustering columns",
            _names(here, snapshot.domain_metadata),
            _names(metadata, domains),
        ),
        ("description", here.description, description),
    ]
    for name in properties or ():
        there, wanted = here.configuration.get(name), metadata.configuration.get(name)
        pairs.append((f"property {name!r}", there, wanted))
    optional = {"location", "description"}
    for what, is_now, is_asked in pairs:
        if is_now == is_asked or (is_asked is None and what in optional):
            continue
        raise TableExistsError(
            f"A table named {snapshot.table.name!r} exists already, and is not the one to create",
            why=f"Its {what}: {is_now}; asked for: {is_asked}",
            fix=f"Open it with {Fix('lake.table', snapshot.table.name)}, or choose another name",
        )


def _columns(metadata: Metadata) -> str:
    return dumps(_without(loads(schema_to_json(metadata.schema))))


def _without(value: Any) -> Any:
    """A part of a schema as JSON, without what the table has added to it."""
    if isinstance(value, list):
        return [_without(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without(inner) for key, inner in value.items() if not str(key).startswith(_OF_TABLE)
    }


def _names(metadata: Metadata, domains: Mapping[str, str]) -> list[str]:
    return [dotted(path) for path in clustering_paths(metadata, domains) or ()]
