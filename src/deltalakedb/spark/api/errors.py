"""Errors of Spark's calls that are also those of PySpark, so that code for Delta catches them.

`except AnalysisException` and `except deltalakedb.errors.TableNotFoundError` both catch a table
that is missing. They are made here, and not in `deltalakedb.errors`, which needs no PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from pyspark.errors import AnalysisException, ParseException

from deltalakedb.advice import as_spark
from deltalakedb.errors import (
    ConfigurationError,
    DeltaLakeDbError,
    Fix,
    TableExistsError,
    TableExportedError,
    TableNotFoundError,
    VersionNotFoundError,
)


class _SparkError(DeltaLakeDbError, AnalysisException):
    """Both: it is shown as ours are, and has the methods of PySpark's."""

    condition: ClassVar[str | None] = None
    """The condition by which Spark knows such an error."""

    def __init__(self, what: str, *, why: str = "", fix: str | Fix = "") -> None:
        DeltaLakeDbError.__init__(self, what, why=why, fix=fix)
        AnalysisException.__init__(self, message=str(self), errorClass=self.condition)


class SparkTableNotFoundError(TableNotFoundError, _SparkError):
    """No table of that name or location is registered in this catalog."""

    condition = "TABLE_OR_VIEW_NOT_FOUND"


class SparkTableExportedError(TableExportedError, SparkTableNotFoundError):
    """The table has left this catalog: it is an ordinary Delta table at its location now."""


class SparkTableExistsError(TableExistsError, _SparkError):
    """A table of that name or location is registered already."""

    condition = "TABLE_OR_VIEW_ALREADY_EXISTS"


class SparkVersionNotFoundError(VersionNotFoundError, _SparkError):
    """The version or timestamp lies outside what the table still has."""


class SparkParseError(ConfigurationError, _SparkError, ParseException):
    """Text of a type or of columns is not SQL."""

    condition = "PARSE_SYNTAX_ERROR"


_KINDS: Final = (
    (TableExportedError, SparkTableExportedError),
    (TableNotFoundError, SparkTableNotFoundError),
    (TableExistsError, SparkTableExistsError),
    (VersionNotFoundError, SparkVersionNotFoundError),
)


@contextmanager
def analysis_errors() -> Iterator[None]:
    """Let missing and existing tables and versions be errors of Spark's analysis, too."""
    try:
        yield
    except DeltaLakeDbError as error:
        for kind, spark_kind in _KINDS:
            if isinstance(error, kind) and not isinstance(error, AnalysisException):
                raise spark_kind(error.what, why=error.why, fix=as_spark(error.fix)) from error
        raise
