"""What the rules need to know of a table, worked out once for each metadata and protocol.

Small commits would otherwise spend most of their time parsing the same schema again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from deltalakedb.actions.datatypes import DataType, physical_name
from deltalakedb.actions.features import check_writable, features_in_use, required_features
from deltalakedb.actions.planning import Plan, plan_of
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.values import Metadata, Protocol
from deltalakedb.transaction.rulebook import Rule

ROW_TRACKING: Final = "rowTracking"

CONSTRAINT_RULES: Final[Mapping[str, Rule]] = {
    "checkConstraints": Rule.CHECK_CONSTRAINTS,
    "invariants": Rule.INVARIANTS,
    "generatedColumns": Rule.GENERATED_COLUMNS,
    "identityColumns": Rule.IDENTITY_COLUMNS,
    "allowColumnDefaults": Rule.COLUMN_DEFAULTS,
}
"""The features that bind whoever adds rows. A caller that took care of one says so by its name."""


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column as the values of a file see it."""

    name: str
    type: DataType
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as the rules see it; `partitions` is keyed by physical name, in order."""

    partitions: Mapping[str, PartitionColumn]
    constraints: Mapping[str, str]
    features: frozenset[str]
    append_only: bool
    change_data_feed: bool
    in_commit_timestamps: bool
    plan: Plan
    needs_records: bool


def facts_of(metadata: Metadata, protocol: Protocol) -> TableFacts:
    """The facts of a table with this metadata and protocol."""
    return _facts(_key(metadata, protocol))


def check_table_writable(metadata: Metadata, protocol: Protocol, honours: frozenset[str]) -> None:
    """Raise `UnsupportedFeatureError` unless this release may write to the table.

    Constraints are left to the rules: they bind only commits that add rows. Row ids are given out
    by the committer.
    """
    _check_writable(_key(metadata, protocol), honours)


class _Key(NamedTuple):
    """Everything of a table that decides, in a form that can be looked up."""

    schema_string: str | None
    partition_columns: tuple[str, ...]
    configuration: tuple[tuple[str, str], ...]
    versions: tuple[int, int]
    reader_features: tuple[str, ...] | None
    writer_features: tuple[str, ...] | None

    @property
    def metadata(self) -> Metadata:
        return Metadata(
            "",
            schema_string=self.schema_string,
            partition_columns=self.partition_columns,
            configuration=dict(self.configuration),
        )

    @property
    def protocol(self) -> Protocol:
        return Protocol(*self.versions, self.reader_features, self.writer_features)


_newest: tuple[Metadata, Protocol, _Key] | None = None


def _key(metadata: Metadata, protocol: Protocol) -> _Key:
    # A commit asks several times about the same two values, and so does the next one. Replacing
    # the whole tuple at once keeps this right with any number of threads.
    global _newest  # noqa: PLW0603
    known = _newest
    if known is None or known[0] is not metadata or known[1] is not protocol:
        known = (metadata, protocol, _new_key(metadata, protocol))
        _newest = known
    return known[2]


def _new_key(metadata: Metadata, protocol: Protocol) -> _Key:
    return _Key(
        metadata.schema_string,
        tuple(metadata.partition_columns),
        tuple(metadata.configuration.items()),
        (protocol.min_reader_version, protocol.min_writer_version),
        None if protocol.reader_features is None else tuple(protocol.reader_features),
        None if protocol.writer_features is None else tuple(protocol.writer_features),
    )


@lru_cache(maxsize=256)
def _facts(key: _Key) -> TableFacts:
    metadata = key.metadata
    properties = TableProperties(metadata.configuration)
    schema = metadata.schema
    mapped = properties.column_mapping_mode != "none"
    partitions = {}
    for name in key.partition_columns:
        field = schema.field(name)
        physical = physical_name(field) if mapped else field.name
        partitions[physical] = PartitionColumn(field.name, field.type, field.nullable)
    features = required_features(key.protocol)
    uses = features_in_use(metadata)
    return TableFacts(
        partitions=partitions,
        constraints={name: uses[name] for name in CONSTRAINT_RULES if name in uses},
        features=features,
        append_only=properties.append_only,
        change_data_feed=properties.enable_change_data_feed,
        in_commit_timestamps=properties.enable_in_commit_timestamps,
        plan=plan_of(metadata),
        needs_records=ROW_TRACKING in features
        or any(name.startswith("icebergCompat") for name in uses),
    )


@lru_cache(maxsize=256)
def _check_writable(key: _Key, honours: frozenset[str]) -> None:
    check_writable(
        key.protocol,
        metadata=key.metadata,
        honours={*CONSTRAINT_RULES, ROW_TRACKING, *honours},
    )
