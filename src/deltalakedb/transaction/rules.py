"""What one commit must keep before anything is written.

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

from collections.abc import Collection, Iterable

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
from deltalakedb.transaction.table_rules import (
    CONSTRAINT_RULES,
    TableFacts,
    check_table_writable,
    facts_of,
)

__all__ = ["Rule", "check_live_files", "refreshed_paths", "touched_paths", "validate_commit"]

# Delta's own domains that a commit may write, and the feature each belongs to.
_SYSTEM_DOMAINS = {"delta.rowTracking": "rowTracking", "delta.clustering": "clustering"}


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
    facts = facts_of(new_metadata, new_protocol)
    if commit.domains:
        _check_domains(commit.domains.values(), facts)
    check_each_path_once(commit.adds, commit.removes)
    check_adds(commit.adds, facts, commit.removes)
    if commit.removes:
        was_append_only = not first and _append_only(metadata, protocol)
        check_removes(commit.removes, append_only=facts.append_only or was_append_only)
    if commit.cdc_files:
        check_cdc_files(commit.cdc_files, facts)
    if facts.constraints:
        _check_constraints(commit, facts, honours)


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
        why="readers could not tell which one counts",
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
        metadata is not None and protocol is not None and facts_of(metadata, protocol).append_only
    )


def _check_domains(domains: Iterable[DomainMetadata], facts: TableFacts) -> None:
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
        if feature not in facts.features:
            raise reject(
                Rule.DOMAIN,
                f"The metadata domain {domain!r} cannot be written",
                why=f"the table does not have the feature {feature!r}",
                fix=f"Set the table property 'delta.feature.{feature}' to 'supported' first",
            )


def _check_constraints(commit: Summary, facts: TableFacts, enforced: frozenset[str]) -> None:
    binding = [name for name in facts.constraints if name not in enforced]
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
                why=f"it uses {name} ({facts.constraints[name]}), and nobody has enforced it",
                fix="Write through an interface that does, or state that the rows of these files "
                f"comply: enforced={{{name!r}}}",
            )
