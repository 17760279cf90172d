"""Replace: a table gets other columns, partitions and properties, and loses its rows.

Its id, name, location, history and protocol stay. Older versions can still be read and restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import Action, DomainMetadata
from deltalakedb.actions.clustering import DOMAIN, FEATURE, clustering_domain
from deltalakedb.actions.datatypes import schema_from_json
from deltalakedb.actions.features import protocol_for, required_features, upgrade
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.properties import check_properties
from deltalakedb.arguments import optional_text, require_names, require_texts
from deltalakedb.operations.alter import as_text, check_constraints, mapped_columns
from deltalakedb.operations.append import remove_of, rows_of_files
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Guarantees, Operation, state_of
from deltalakedb.transaction.rules import CONSTRAINT_RULES

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot

# Readers of older versions need them: times of commits, and names of columns.
_OF_HISTORY: Final = (
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.requireCheckpointProtectionBeforeVersion",
    "delta.columnMapping.mode",
    "delta.columnMapping.maxColumnId",
)


def replacement(
    snapshot: Snapshot,
    schema: Any,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    operation: str = "REPLACE TABLE",
    now: int,
) -> Commit:
    """The commit that replaces the table of a snapshot.

    It fails after any concurrent change of the table.
    """
    base = state_of(snapshot)
    partition_by = require_texts("partition_by", partition_by)
    cluster_by = require_names("cluster_by", cluster_by)
    optional_text("description", description)
    changed = as_text({} if properties is None else properties)
    check_properties(changed)
    here = base.metadata
    own = {key: here.configuration[key] for key in _OF_HISTORY if key in here.configuration}
    columns, configuration = mapped_columns(schema, {**own, **changed})
    check_constraints(changed, schema_from_json(columns), partition_by)
    metadata = replace(
        here,
        schema_string=columns,
        partition_columns=tuple(partition_by),
        configuration=configuration,
        description=description,
    )
    features = required_features(protocol_for(metadata, [FEATURE] if cluster_by else []))
    protocol = upgrade(base.protocol, features)
    control: list[Action] = [metadata] if protocol == base.protocol else [protocol, metadata]
    if cluster_by:
        control.append(clustering_domain(metadata, list(cluster_by)))
    elif DOMAIN in snapshot.domain_metadata:
        control.append(DomainMetadata(DOMAIN, snapshot.domain_metadata[DOMAIN], removed=True))
    removes = [remove_of(row, now) for row in rows_of_files(snapshot.files(columns=COLUMNS))]
    return Commit(
        table=snapshot.table,
        base=base,
        actions=(*control, *removes),
        operation=Operation(
            operation,
            parameters={
                "isManaged": "false",
                "description": description,
                "partitionBy": dumps(list(partition_by)),
                "clusterBy": dumps(list(cluster_by)) if cluster_by else None,
                "properties": dumps(dict(configuration)),
            },
            metrics={"numRemovedFiles": str(len(removes))},
        ),
        read=ReadSet(whole_table=True),
        # There are no rows that could break a constraint.
        guarantees=Guarantees(frozenset(CONSTRAINT_RULES), replaces_all=True),
    )
