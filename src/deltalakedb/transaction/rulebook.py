"""The rules that one commit must keep, each with a stable name."""

from __future__ import annotations

from enum import Enum

from deltalakedb.errors import CommitRejectedError, DeltaLakeDbError


class Rule(Enum):
    """Names of the rules; `CommitRejectedError.rule` holds the value, which never changes."""

    FIRST_VERSION = "first-version"
    """The commit that creates a table contains its protocol and metaData."""
    NOT_EMPTY = "not-empty"
    """The bytes of a commit hold an action."""
    ONE_METADATA = "one-metadata"
    """A commit contains at most one metaData."""
    ONE_PROTOCOL = "one-protocol"
    """A commit contains at most one protocol."""
    ONE_COMMIT_INFO = "one-commit-info"
    """A commit contains at most one commitInfo."""
    ONE_TXN = "one-txn-per-app"
    """A commit contains at most one txn for each appId."""
    ONE_DOMAIN = "one-metadata-per-domain"
    """A commit contains at most one domainMetadata for each domain."""
    CHECKPOINT_ONLY = "checkpoint-only-action"
    """checkpointMetadata and sidecar belong into checkpoints."""
    UNKNOWN_ACTION = "unknown-action"
    """An action that this release does not know cannot be honoured, so it is not written."""

    ONE_ADD = "one-add-per-path"
    """A commit adds a path at most once, whatever the deletion vector."""
    ONE_REMOVE = "one-remove-per-path"
    """A commit removes a path at most once, whatever the deletion vector."""
    ADD_AND_REMOVE = "add-and-remove"
    """A commit adds and removes one path only to exchange its deletion vector."""
    REMOVE_LIVE = "remove-live-file"
    """Only a file that is live, with exactly that deletion vector, can be removed."""
    ONE_LIVE = "one-live-file-per-path"
    """A live path gets another deletion vector only if the old file is removed with it."""
    PATH = "data-path"
    """The path of a new file is relative to the table, or an absolute URI, and says so plainly.

    A segment `.` or `..`, also percent-encoded, is refused: it would name one file in two ways,
    or one outside the table. So is a leading slash: engines disagree on what it is relative to;
    write the URI with its scheme. `_delta_log/` and `_change_data/` hold no data files.
    """
    NON_NEGATIVE = "non-negative"
    """Sizes and times are not negative."""
    REMOVE_METADATA = "extended-file-metadata"
    """A remove with extendedFileMetadata has partitionValues and size."""
    STATISTICS = "statistics"
    """Statistics are a JSON object; numRecords is a count, and there where a feature needs it."""
    DELETION_VECTOR = "deletion-vector"
    """A deletion vector is described soundly, and the table has the feature deletionVectors."""
    PARTITION_VALUES = "partition-values"
    """A file has a value of the right type for each partition column, and for nothing else."""
    CHANGE_DATA = "change-data"
    """cdc files lie under `_change_data/`, change no data, and need delta.enableChangeDataFeed."""
    IN_COMMIT_TIMESTAMP = "in-commit-timestamp"
    """Where a table has in-commit timestamps, they strictly increase and agree with the clock."""
    ONE_TRANSACTION = "one-version-per-transaction"
    """The txnId of a commit is that of one version of a table."""
    ROW_TRACKING = "row-tracking"
    """A row id is assigned once, above the high-water mark."""

    APPEND_ONLY = "append-only"
    """An append-only table (delta.appendOnly) loses no data."""
    CHECK_CONSTRAINTS = "check-constraints"
    """A writer that adds rows has evaluated the CHECK constraints of the table on them."""
    INVARIANTS = "column-invariants"
    """A writer that adds rows has evaluated the invariants of the columns."""
    GENERATED_COLUMNS = "generated-columns"
    """A writer that adds rows has computed or verified the generated columns."""
    IDENTITY_COLUMNS = "identity-columns"
    """A writer that adds rows has generated the identity columns."""
    COLUMN_DEFAULTS = "column-defaults"
    """A writer that adds rows has applied the defaults of the columns."""

    DOMAIN = "metadata-domain"
    """Metadata domains need their feature; those named `delta.*` belong to Delta itself."""
    SCHEMA = "schema"
    """The schema is valid."""
    PARTITION_COLUMNS = "partition-columns"
    """Partition columns never change while files of the old partitioning are live."""
    SCHEMA_CHANGE = "schema-change"
    """Live files stay readable under the new schema."""
    COLUMN_MAPPING = "column-mapping"
    """Every field has its own id and physical name; ids and mode change only as Delta allows."""
    PROPERTIES = "table-properties"
    """Table properties have valid names and values."""
    TABLE_ID = "table-id"
    """A table keeps its id and its file format."""
    PROTOCOL = "protocol"
    """The protocol is well-formed."""
    PROTOCOL_DOWNGRADE = "protocol-downgrade"
    """A protocol never loses a feature or a version, unless a feature is dropped on purpose."""
    REQUIRED_FEATURES = "required-features"
    """The protocol has every feature that the metadata uses."""


def reject(rule: Rule, what: str, *, why: str = "", fix: str = "") -> CommitRejectedError:
    """Build the error for a broken rule."""
    return CommitRejectedError(what, rule=rule.value, why=why, fix=fix)


def reject_for(rule: Rule, error: DeltaLakeDbError) -> CommitRejectedError:
    """Build the error for a rule from the error of another check."""
    return reject(rule, error.what, why=error.why, fix=error.fix)
