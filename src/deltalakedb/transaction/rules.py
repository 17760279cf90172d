"""The rules of one commit, checked before anything is written.

Guarantees:

- Pure and without I/O; nothing is changed. `validate_commit` needs the table's metadata and
  protocol, `check_live_files` the live files among the paths that the commit touches.
- A refusal is a `CommitRejectedError` whose `rule` is a name of `Rule`. One kind of refusal has
  its own class: `UnsupportedFeatureError`, for a table that this release must not write to.
- Linear, and about a microsecond for each added file: statistics are not parsed where their
  first field is a sound numRecords.

Actions are taken as `codec.as_action` leaves them: every field has its right type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from deltalakedb.actions.datatypes import DataType, physical_name
from deltalakedb.actions.features import check_writable, features_in_use, required_features
from deltalakedb.actions.planning import Plan, plan_of
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.values import (
    Action,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Sidecar,
    Txn,
)
from deltalakedb.errors import InvalidActionError
from deltalakedb.transaction.attempt import Summary
from deltalakedb.transaction.rulebook import Rule, reject, reject_for
from deltalakedb.transaction.rules_files import (
    check_adds,
    check_cdc_files,
    check_each_path_once,
    check_live_files,
    check_removes,
    refreshed_paths,
)
from deltalakedb.transaction.rules_metadata import check_features, check_metadata, check_protocol

__all__ = ["Rule", "check_live_files", "refreshed_paths", "touched_paths", "validate_commit"]

# Delta's own domains that a commit may write, and the feature each belongs to.
_SYSTEM_DOMAINS = {"delta.rowTracking": "rowTracking", "delta.clustering": "clustering"}
ROW_TRACKING: Final = "rowTracking"

CONSTRAINT_RULES: Final[Mapping[str, Rule]] = {
    "checkConstraints": Rule.CHECK_CONSTRAINTS,
    "invariants": Rule.INVARIANTS,
    "generatedColumns": Rule.GENERATED_COLUMNS,
    "identityColumns": Rule.IDENTITY_COLUMNS,
    "allowColumnDefaults": Rule.COLUMN_DEFAULTS,
}
"""The features that constrain writers of rows. A caller that enforced one passes its name."""


def validate_commit(
    actions: Iterable[Action] | Summary,
    *,
    metadata: Metadata | None,
    protocol: Protocol | None,
    replaces_all: bool = False,
    allow_feature_drop: bool = False,
    enforced: Collection[str] = frozenset(),
) -> None:
    """Raise `CommitRejectedError` unless these actions may become a version of the table.

    `metadata` and `protocol` are in force before the commit; None for the one that creates the
    table. `replaces_all` says that no file of the present version stays live (all are removed, or
    there is none), which frees the schema and the partitioning. `allow_feature_drop` lets the
    protocol lose features. `enforced` names what the caller has taken care of, by feature:
    checkConstraints, invariants, generatedColumns, identityColumns, allowColumnDefaults, or any
    other that this release does not honour by itself.
    """
    commit = actions if isinstance(actions, Summary) else Summary(actions)
    if commit.repeated is not None or commit.others:
        _check_kinds(commit)
    first = metadata is None or protocol is None
    if first and (commit.metadata is None or commit.protocol is None):
        missing = "metaData" if commit.metadata is None else "protocol"
        raise reject(
            Rule.FIRST_VERSION,
            f"The commit that creates the table has no {missing}",
            why="version 0 defines the protocol, the schema and the properties",
            fix=f"Add a {missing} action",
        )
    new_protocol, new_metadata = commit.protocol or protocol, commit.metadata or metadata
    assert new_protocol is not None  # noqa: S101 -- ensured above
    assert new_metadata is not None  # noqa: S101 -- ensured above
    honours = frozenset(enforced)
    if commit.protocol is not None:
        check_protocol(commit.protocol, protocol, allow_feature_drop=allow_feature_drop)
    if commit.metadata is not None:
        check_metadata(commit.metadata, metadata, replaces_all=replaces_all, enforced=honours)
    if commit.metadata is not None or commit.protocol is not None:
        check_features(new_metadata, new_protocol)
    try:
        check_table_writable(new_metadata, new_protocol, honours)
    except InvalidActionError as error:
        raise reject_for(Rule.PROTOCOL, error) from error
    rules = table_rules(new_metadata, new_protocol)
    if commit.domains:
        _check_domains(commit.domains.values(), rules)
    check_each_path_once(commit.adds, commit.removes)
    check_adds(commit.adds, rules, commit.removes)
    if commit.removes:
        was_append_only = not first and _append_only(metadata, protocol)
        check_removes(commit.removes, append_only=rules.append_only or was_append_only)
    if commit.cdc_files:
        check_cdc_files(commit.cdc_files, rules)
    if rules.constraints:
        _check_constraints(commit, rules, honours)


def touched_paths(actions: Iterable[Action]) -> list[str]:
    """The paths that the commit adds or removes, once each: what `check_live_files` asks about."""
    return list(dict.fromkeys(a.path for a in actions if isinstance(a, (AddFile, RemoveFile))))


def _check_kinds(commit: Summary) -> None:
    """Each kind may be in a commit, and as often as it may."""
    if commit.others:
        raise _refuse_kind(commit.others[0])
    again = commit.repeated
    if isinstance(again, Metadata):
        raise _twice(Rule.ONE_METADATA, "metaData")
    if isinstance(again, Protocol):
        raise _twice(Rule.ONE_PROTOCOL, "protocol")
    if isinstance(again, CommitInfo):
        raise _twice(Rule.ONE_COMMIT_INFO, "commitInfo")
    if isinstance(again, Txn):
        raise _twice(Rule.ONE_TXN, f"txn for the appId {again.app_id!r}")
    if isinstance(again, DomainMetadata):
        raise _twice(Rule.ONE_DOMAIN, f"domainMetadata for the domain {again.domain!r}")


def _twice(rule: Rule, what: str) -> Exception:
    return reject(
        rule,
        f"The commit contains more than one {what}",
        why="it would be ambiguous for readers",
        fix="Keep one of them",
    )


def _refuse_kind(action: Action) -> Exception:
    if isinstance(action, (CheckpointMetadata, Sidecar)):
        name = "sidecar" if isinstance(action, Sidecar) else "checkpointMetadata"
        return reject(
            Rule.CHECKPOINT_ONLY,
            f"The commit contains a {name} action",
            why="that action belongs into checkpoints, which are written for you",
            fix="Leave it out",
        )
    return reject(
        Rule.UNKNOWN_ACTION,
        f"The commit contains the unknown action {getattr(action, 'name', action)!r}",
        why="this release cannot honour what it does not know",
        fix="Leave it out, or upgrade deltalakedb",
    )


def _append_only(metadata: Metadata | None, protocol: Protocol | None) -> bool:
    return (
        metadata is not None
        and protocol is not None
        and table_rules(metadata, protocol).append_only
    )


def _check_domains(domains: Iterable[DomainMetadata], rules: TableRules) -> None:
    for action in domains:
        domain = action.domain
        if domain.startswith("delta."):
            feature = _SYSTEM_DOMAINS.get(domain)
            if feature is None:
                raise reject(
                    Rule.DOMAIN,
                    f"The metadata domain {domain!r} cannot be written",
                    why="names that begin with 'delta.' are reserved for Delta itself",
                    fix="Choose another name",
                )
        else:
            feature = "domainMetadata"
        if feature not in rules.features:
            raise reject(
                Rule.DOMAIN,
                f"The metadata domain {domain!r} cannot be written",
                why=f"the table does not have the feature {feature!r}",
                fix=f"Set the table property 'delta.feature.{feature}' to 'supported' first",
            )


def _check_constraints(commit: Summary, rules: TableRules, enforced: frozenset[str]) -> None:
    binding = [name for name in rules.constraints if name not in enforced]
    if not binding:
        return
    removed = {remove.path for remove in commit.removes}
    for add in commit.adds:
        # A path that is removed too only gets another deletion vector: no new rows.
        if add.data_change and add.path not in removed:
            name = binding[0]
            raise reject(
                CONSTRAINT_RULES[name],
                f"Rows cannot be added to the table, as {add.path!r} would",
                why=f"it uses {name} ({rules.constraints[name]}), which was not enforced",
                fix="Write through an interface that does, or state that the rows of these files "
                f"comply: enforced={{{name!r}}}",
            )


# --- the rules of a table -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column as the values of a file see it."""

    name: str
    type: DataType
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableRules:
    """A table as the rules see it; `partitions` is keyed by physical name, in order."""

    partitions: Mapping[str, PartitionColumn]
    constraints: Mapping[str, str]
    features: frozenset[str]
    append_only: bool
    change_data_feed: bool
    in_commit_timestamps: bool
    plan: Plan
    needs_records: bool


def table_rules(metadata: Metadata, protocol: Protocol) -> TableRules:
    """The rules of a table with this metadata and protocol; cached."""
    return _table_rules(_key(metadata, protocol))


def check_table_writable(metadata: Metadata, protocol: Protocol, honours: frozenset[str]) -> None:
    """Raise `UnsupportedFeatureError` unless this release may write to the table.

    Constraints are left to the rules: they bind only commits that add rows. The
    committer assigns row ids.
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
def _table_rules(key: _Key) -> TableRules:
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
    return TableRules(
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
