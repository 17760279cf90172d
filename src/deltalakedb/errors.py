"""Every error a user can cause or meet, under one root.

- The class is the kind of failure. The message says what failed, why, and what to do.
- A fix that names a call of the public API is a `Fix`, which the command line and Spark render
  in their own terms (`advice`).
- An error never carries a password: every part of a URL passes through `store.url` first.
"""

from __future__ import annotations

from typing import Any


class Fix:
    """A call of the public API that solves a problem: `Fix("lake.verify", name)`.

    Its text is the call in Python, as a code span: "`lake.verify('sales.orders')`". `advice` reads
    it back from the text of an error, so it survives processes, logs and the catalog. An Ellipsis
    stands for arguments that the user has to choose.
    """

    __slots__ = ("arguments", "options", "verb")

    def __init__(self, verb: str, *arguments: object, **options: object) -> None:
        self.verb = verb
        self.arguments = arguments
        self.options = options

    def __str__(self) -> str:
        options = (_assignment(name, value) for name, value in self.options.items())
        return f"`{self.verb}({', '.join([*map(_literal, self.arguments), *options])})`"


class Option:
    """A keyword argument that solves a problem: `Option("force", True)`; see `Fix`."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: object = ...) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"`{_assignment(self.name, self.value)}`"


def _assignment(name: str, value: object) -> str:
    return f"{name}={_literal(value)}"


def _literal(value: object) -> str:
    # A backtick would end the code span.
    return "…" if value is ... else repr(value).replace("`", "\\x60")


class DeltaLakeDbError(Exception):
    """The root: `what` failed, `why`, and the `fix` that a user can apply."""

    def __init__(self, what: str, *, why: str = "", fix: str | Fix = "") -> None:
        self.what = what
        self.why = why
        self.fix = str(fix)
        # Not super(): a class that is also an error of another library calls that one's itself.
        Exception.__init__(self, what, why, self.fix)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers, multiprocessing); constructors with
        # keyword-only arguments would be called with positional ones there.
        return _restore, (type(self), self.args, self.__dict__.copy())

    def __str__(self) -> str:
        parts = (self.what, _capital(self.why), _capital(self.fix))
        return " ".join(_sentence(part) for part in parts if part)


def _restore(
    kind: type[DeltaLakeDbError], args: tuple[Any, ...], state: dict[str, Any]
) -> DeltaLakeDbError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def _capital(text: str) -> str:
    # A plain word at the start gets its capital; a name such as readerFeatures stays as it is.
    word = text.partition(" ")[0]
    return text[0].upper() + text[1:] if word.isalpha() and word.islower() else text


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- reaching the catalog -----------------------------------------------------------------


class ConfigurationError(DeltaLakeDbError):
    """An option or argument has a value that cannot work."""


class InvalidArgumentError(ConfigurationError, TypeError, ValueError):
    """An argument of a call is of the wrong type, or has a value that can never be right.

    It is also a `TypeError` and a `ValueError`: Delta and other libraries raise the one or the
    other, and code that catches either of them catches this.
    """


class InvalidUrlError(InvalidArgumentError):
    """The catalog URL cannot be understood."""


class MissingDriverError(ConfigurationError):
    """An optional dependency that this engine or feature needs is not installed."""


class ClockError(DeltaLakeDbError):
    """Two clocks differ by so much that one is wrong; nothing was done by either."""


class ForkedProcessError(DeltaLakeDbError):
    """An object of the parent process was used in a forked child, where it cannot work."""


# The fix for a database error that deltalakedb does not know.
REPORT = "Check the database and its log, and try again; report the error if it persists"


class CatalogError(DeltaLakeDbError):
    """The database that holds the log failed or refused."""


class CatalogUnreachableError(CatalogError):
    """The database cannot be opened: wrong host, password, file, or permission."""


class CatalogNotFoundError(CatalogError):
    """There is no catalog at this URL, and `create` is off."""


class CatalogBusyError(CatalogError):
    """Another writer or process held the database for longer than the time limit."""


class TransactionAbortedError(CatalogBusyError):
    """The database aborted a transaction in favour of another; it can be retried at once."""


class CatalogPermissionError(CatalogError):
    """The database role may not do this."""


class CatalogConnectionLostError(CatalogError):
    """The connection broke while it was in use; the outcome of the last statement is unknown."""


class CommitOutcomeUnknownError(CatalogConnectionLostError):
    """The connection broke while COMMIT was under way: it may or may not have happened."""


class CatalogConstraintError(CatalogError):
    """A row would break a constraint of the catalog, e.g. a version that exists already."""


class MigrationError(CatalogError):
    """The schema of the catalog is not what this release expects, or a migration failed."""


class SchemaTooNewError(MigrationError):
    """The catalog was migrated by a newer release than this one."""


class SchemaOutdatedError(MigrationError):
    """The catalog has pending migrations, and this connection may not apply them."""


class CorruptCatalogError(CatalogError):
    """The catalog contradicts itself."""


# --- the Delta log ------------------------------------------------------------------------


class InvalidActionError(DeltaLakeDbError):
    """An action breaks the Delta protocol: a field is missing, of the wrong type, or invalid."""


class InvalidSchemaError(DeltaLakeDbError):
    """A table schema, partition value or statistic is not valid for its type."""


class InvalidLogError(DeltaLakeDbError):
    """A file of a `_delta_log` is damaged; the message names the file and the line."""


class PathNotAllowedError(DeltaLakeDbError):
    """A path of a log is outside the locations allowed for the table, or is ambiguous."""


class UnsupportedFeatureError(DeltaLakeDbError):
    """The table needs a protocol feature that this release cannot honour."""


class ArchiveError(DeltaLakeDbError):
    """An archive of expired versions is damaged, incomplete, or does not fit the table."""


# --- object storage -----------------------------------------------------------------------


class StorageError(DeltaLakeDbError):
    """The object store failed or refused; trying again will not help unless `transient`."""

    transient = False


class ObjectNotFoundError(StorageError):
    """There is no object of that name."""


class StoragePermissionError(StorageError):
    """The object store refuses this operation for these credentials."""


class StorageUnavailableError(StorageError):
    """The object store could not be reached or was too busy; the same call may succeed later."""

    transient = True


# --- the mirror ---------------------------------------------------------------------------


class MirrorError(DeltaLakeDbError):
    """The log in the object store cannot follow the catalog, or not yet."""


class ForeignCommitError(MirrorError):
    """The log holds a commit that this catalog has not written; nothing was overwritten."""

    def __init__(
        self, what: str, *, found_digest: str, found_bytes: int, why: str = "", fix: str | Fix = ""
    ) -> None:
        self.found_digest = found_digest
        self.found_bytes = found_bytes
        super().__init__(what, why=why, fix=fix)


class TableDriftedError(MirrorError):
    """The log holds commits that the catalog does not have, so the table accepts no commit."""


class AdoptionRefusedError(MirrorError):
    """Foreign commits do not apply cleanly on the catalog; nothing was adopted."""


class UnexpectedMirrorError(MirrorError):
    """Publishing failed with an unknown error; the worker retries it."""

    transient = True


class NotPublishedError(MirrorError):
    """A version is not in `_delta_log` yet, and the operation needs it there."""


class CommitFileMissingError(MirrorError):
    """The commit file of a version was published, and is not in `_delta_log` any more."""


# --- data files ---------------------------------------------------------------------------


class DataFileError(DeltaLakeDbError):
    """A data file or deletion vector is damaged, unreadable, or does not fit its table."""


class DataFileMissingError(DataFileError):
    """The table refers to a file that is not there."""


# --- writing rows -------------------------------------------------------------------------


class SchemaMismatchError(DeltaLakeDbError):
    """The rows to write do not fit the columns of the table."""


class ConstraintViolatedError(DeltaLakeDbError):
    """The rows to write break NOT NULL or a CHECK constraint of the table."""


# --- tables and versions ------------------------------------------------------------------


class SourceChangedError(DeltaLakeDbError):
    """A stream cannot continue: rows were changed or deleted, or columns have changed."""


class AmbiguousMergeError(DeltaLakeDbError):
    """Several rows of the source of a MERGE would change one row of the table."""


class TableNotFoundError(DeltaLakeDbError):
    """No table of that name or location is registered in this catalog."""


class TableExportedError(TableNotFoundError):
    """The table has left this catalog: it is an ordinary Delta table at its location now."""


class TableExistsError(DeltaLakeDbError):
    """A table of that name or location is registered already."""


class AmbiguousTableError(DeltaLakeDbError):
    """Spark's name of a table, which has no case, is that of several tables of the catalog."""


class VersionNotFoundError(DeltaLakeDbError):
    """The version or timestamp is outside the versions that the table still has."""


class InvalidConditionError(DeltaLakeDbError):
    """A `where` condition cannot be understood, or does not fit the columns of the table."""


class UnsupportedConditionError(InvalidConditionError):
    """A `where` condition uses SQL that this release cannot plan with."""


class ConditionSyntaxError(UnsupportedConditionError):
    """A `where` condition cannot be parsed as SQL."""


# --- commits ------------------------------------------------------------------------------


class CommitRejectedError(DeltaLakeDbError):
    """The commit breaks a rule of Delta; nothing was written. `rule` names it."""

    def __init__(self, what: str, *, rule: str, why: str = "", fix: str | Fix = "") -> None:
        self.rule = rule
        super().__init__(what, why=why, fix=fix)

    def __str__(self) -> str:
        return f"{super().__str__()} (rule: {self.rule})"


class CommitConflictError(DeltaLakeDbError):
    """A concurrent commit won, and this one cannot be rebased on it; nothing was written.

    `winner_version` is the version of the conflicting commit, if there is one;
    `retryable` says whether reading the table again and repeating the work can succeed.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str | Fix = "",
        winner_version: int | None = None,
        retryable: bool = True,
    ) -> None:
        self.winner_version = winner_version
        self.retryable = retryable
        super().__init__(what, why=why, fix=fix)


class UnexpectedVersionError(CommitConflictError):
    """The commit expected a version, and the table is at another one."""


class HistoryExpiredError(CommitConflictError):
    """The concurrent versions have been expired, so they cannot be checked for conflicts."""


class ConcurrentAppendError(CommitConflictError):
    """A winner added files that this transaction's reads would have seen."""


class ConcurrentDeleteReadError(CommitConflictError):
    """A winner removed a file that this transaction read."""


class ConcurrentDeleteDeleteError(CommitConflictError):
    """A winner removed a file that this transaction removes too."""


class MetadataChangedError(CommitConflictError):
    """A winner changed the table's metadata."""


class ProtocolChangedError(CommitConflictError):
    """A winner changed the table's protocol."""


class ConcurrentTransactionError(CommitConflictError):
    """A winner advanced an app transaction or a metadata domain that this commit relies on."""


class RetriesExhaustedError(CommitConflictError):
    """The commit could be rebased each time, but never won within its limits."""
