"""Errors that are also errors of PySpark, so that code for Delta catches them.

`except AnalysisException` and `except deltalakedb.errors.TableNotFoundError` both catch a missing
table. The classes are here because `deltalakedb.errors` needs no PySpark.
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
    """An error with our text, and the methods of PySpark's errors."""

    condition: ClassVar[str | None] = None
    """Spark's name of the error condition."""

    def __init__(self, what: str, *, why: str = "", fix: str | Fix = "") -> None:
        DeltaLakeDbError.__init__(self, what, why=why, fix=fix)
        AnalysisException.__init__(self, message=str(self), errorClass=self.condition)


class SparkTableNotFoundError(TableNotFoundError, _SparkError):
    """No table of that name or location is registered in this catalog."""

    condition = "TABLE_OR_VIEW_NOT_FOUND"


class SparkTableExportedError(TableExportedError, SparkTableNotFoundError):
    """The table was exported: it is an ordinary Delta table at its location now."""


class SparkTableExistsError(TableExistsError, _SparkError):
    """A table of that name or location is registered already."""

    condition = "TABLE_OR_VIEW_ALREADY_EXISTS"


class SparkVersionNotFoundError(VersionNotFoundError, _SparkError):
    """The table does not have, or no longer has, this version or timestamp."""


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
    """Raise errors of missing or existing tables and versions as errors of Spark's analysis."""
    try:
        yield
    except DeltaLakeDbError as error:
        for kind, spark_kind in _KINDS:
            if isinstance(error, kind) and not isinstance(error, AnalysisException):
                raise spark_kind(error.what, why=error.why, fix=as_spark(error.fix)) from error
        raise
