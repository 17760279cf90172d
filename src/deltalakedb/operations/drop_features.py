"""The commit that drops table features which a table does not use.

In-commit timestamps are dropped: this catalog switches them on, and writers such as delta-rs refuse
tables with them. Other features are dropped where nothing of the table uses them: no property, no
column, no metadata domain, no remaining feature. Reader features always stay: older versions may
use them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from deltalakedb.actions import Action, Metadata
from deltalakedb.actions.features import (
    FEATURES,
    feature_name,
    features_in_use,
    required_features,
    without,
)
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.properties import FEATURE_PREFIX
from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.store import TableRecord
from deltalakedb.transaction.commit import Commit, Guarantees, Operation, TableState
from deltalakedb.transaction.metadata_diff import ROW_TRACKING_DOMAIN

_TIMESTAMPS: Final = frozenset({"inCommitTimestamp", "inCommitTimestamp-preview"})
_TIMESTAMP_PROPERTIES: Final = frozenset(
    {
        "delta.enableInCommitTimestamps",
        "delta.enableInCommitTimestamps-preview",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
        *(FEATURE_PREFIX + name for name in _TIMESTAMPS),
    }
)
# Features whose use this release can see, and that the writers of other engines may not know.
_IF_UNUSED: Final = frozenset(
    {
        *("identityColumns", "allowColumnDefaults", "checkpointProtection", "clustering"),
        *("domainMetadata", "rowTracking"),
        *("icebergCompatV1", "icebergCompatV2", "icebergCompatV3"),
    }
)
_DOMAINS: Final[Mapping[str, str]] = {
    "clustering": "delta.clustering",
    "rowTracking": ROW_TRACKING_DOMAIN,
}


def droppable(state: TableState, domains: Collection[str]) -> frozenset[str]:
    """The unused features of a table with these metadata domains."""
    present = required_features(state.protocol)
    used = set(features_in_use(_without_timestamps(state.metadata)))
    used |= {feature for feature, domain in _DOMAINS.items() if domain in domains}
    if domains:
        used.add("domainMetadata")
    going = present & (_TIMESTAMPS | (_IF_UNUSED - used))
    while True:
        needed = {
            name
            for feature in present - going
            if feature in FEATURES
            for name in FEATURES[feature].requires
        }
        if not going & needed:
            return frozenset(going)
        going -= needed


def drop_features(table: TableRecord, state: TableState, domains: Collection[str]) -> Commit | None:
    """The commit that drops all unused features; None where there are none.

    It applies to this version only: a later one may use a feature.
    """
    going = droppable(state, domains)
    return _dropping(table, state, going) if going else None


def drop_feature(
    table: TableRecord, state: TableState, domains: Collection[str], name: str
) -> Commit:
    """The commit that drops one feature, which the table must not use."""
    feature = feature_name(name)
    if feature not in required_features(state.protocol):
        raise ConfigurationError(
            f"Table {table.name!r} does not have the feature {feature}",
            fix=f"It has: {', '.join(sorted(required_features(state.protocol)))}",
        )
    if feature not in droppable(state, domains):
        raise UnsupportedFeatureError(
            f"The feature {feature} of table {table.name!r} cannot be dropped",
            why="Readers of older versions need it"
            if FEATURES[feature].reader
            else "The table uses it, or another feature builds on it",
            fix="Keep it"
            if FEATURES[feature].reader
            else "Unset the properties that switch it on, and drop what builds on it, first",
        )
    return _dropping(table, state, frozenset({feature}))


def _dropping(table: TableRecord, state: TableState, going: frozenset[str]) -> Commit:
    actions: list[Action] = [without(state.protocol, going)]
    metadata = state.metadata
    if going & _TIMESTAMPS:
        metadata = _without_timestamps(metadata)
    if metadata != state.metadata:
        actions.append(metadata)
    return Commit(
        table=table,
        base=state,
        actions=tuple(actions),
        operation=Operation("DROP FEATURE", {"featureName": dumps(sorted(going))}),
        guarantees=Guarantees(expected_version=state.version, allow_feature_drop=True),
    )


def _without_timestamps(metadata: Metadata) -> Metadata:
    rest = {
        name: value
        for name, value in metadata.configuration.items()
        if name not in _TIMESTAMP_PROPERTIES
    }
    return replace(metadata, configuration=rest)
