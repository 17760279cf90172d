"""Conditions of users of Spark, as SQL text or a Column: resolved, and translated to predicates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import Metadata
from deltalakedb.arguments import refuse
from deltalakedb.conditions.partition_tests import PartitionTest, partition_test
from deltalakedb.conditions.predicate import (
    Opaque,
    Predicate,
    is_exact,
)
from deltalakedb.errors import InvalidConditionError
from deltalakedb.spark.io.scan import planned, refusing
from deltalakedb.spark.io.spark_internals import (
    filter_plan,
    has_subquery,
    is_connect,
    replaced_expressions,
    same_expression,
    with_current_time,
)

_SPECIAL: Final = re.compile(r"['\"]\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def as_column(condition: Any, what: str = "The condition") -> Column:
    """A Column of SQL text, or the Column itself."""
    if isinstance(condition, str):
        if not condition.strip():
            raise InvalidConditionError(f"{what} is empty", fix="Write an expression in SQL")
        return F.expr(condition)
    if not isinstance(condition, Column):
        fix = "Pass SQL text, e.g. \"id = 3\", or a Column, e.g. F.col('id') == 3"
        refuse(what, condition, "SQL text or a Column", fix=fix)
    return condition


def holds(condition: Any) -> Column:
    """Whether a condition is true, and neither false nor null."""
    return F.coalesce(as_column(condition), F.lit(False))  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the rows of a table, resolved by Spark."""

    value: Any
    """The argument of the user; SQL with a fixed instant, if it depends on the current time."""
    text: str | None
    """The condition as SQL; None if Spark has no SQL for it."""
    original: str
    """The text for the history of the table, as the user wrote it."""
    steady: bool
    """Whether it is known to have the same result for a row in every query."""

    @property
    def column(self) -> Column:
        """The condition as a Column."""
        return as_column(self.value)

    @property
    def asks_metadata(self) -> bool:
        """Whether it may name Spark's hidden column `_metadata`."""
        return "_metadata" in self.original.lower()


def resolved(condition: Any, frame: DataFrame) -> Condition:
    """Let Spark resolve a condition with the columns of a frame.

    A condition that is not deterministic is refused. One that depends on the current time gets one
    instant for all later queries.
    """
    column = as_column(condition)
    written = condition if isinstance(condition, str) else None
    with refusing(condition):
        filtered = frame.where(column)
        if is_connect(filtered):
            # Spark Connect: the server analyses it.
            _ = filtered.schema
            return Condition(condition, written, written or str(condition), steady=False)
        plan = filter_plan(filtered)
    if not plan.deterministic():
        raise InvalidConditionError(
            f"The condition {condition!s} cannot be used",
            why="It may have another result each time it is evaluated",
            fix="Compute such values before, and compare with them",
        )
    text = written or str(plan.condition().sql())
    now, steady = _at_one_instant(frame, plan, str(condition))
    if now is not None:
        return Condition(now, now, text, steady=True)
    expected = plan.condition()
    sql = written or round_trip(text, expected, lambda: filter_plan(frame.where(text)).condition())
    return Condition(condition, sql, text, steady)


def round_trip(text: str, expected: Any, parsed: Callable[[], Any]) -> str | None:
    """The SQL of a Column, if Spark parses it to the same expression; otherwise None.

    A timestamp is written in the zone of the session, in which an hour in autumn occurs twice.
    """
    return text if same_expression(expected, parsed) else None


def _at_one_instant(frame: DataFrame, plan: Any, written: str) -> tuple[str | None, bool]:
    """The SQL of a condition with a fixed current time, if it has one; and whether it is steady.

    For Spark, `now()` is deterministic, as it is the same for all rows of a query. Spark's rules
    replace it by a literal here. The SQL of the result is used only if Spark parses it to the same
    expression.
    """
    spark = frame.sparkSession
    try:
        if has_subquery(spark, plan):
            # Another table may change.
            return None, False
        fixed, asks = with_current_time(spark, plan)
        # Spark evaluates timestamp'now' each time it parses the text.
        if not asks and not _SPECIAL.search(written):
            return None, True
        wanted = fixed.condition()
        text = str(wanted.sql())
        again = replaced_expressions(spark, filter_plan(frame.where(text)))
        if again.condition().semanticEquals(wanted):
            return text, True
    except (Py4JError, PySparkException, TypeError):
        # Also if this Spark has moved its rules.
        return None, False
    return None, False


def plan_for(
    spark: SparkSession, metadata: Metadata, condition: Condition, alias: str | None = None
) -> Predicate:
    """The predicate of a condition, to prune files."""
    if condition.text is None:
        return Opaque("a condition of Spark")
    return planned(spark, metadata, condition.text, alias=alias)


def whole_files(predicate: Predicate, metadata: Metadata) -> PartitionTest | None:
    """A test of files of which all rows fulfil the condition; None if rows of a file may differ."""
    return partition_test(predicate, metadata) if is_exact(predicate) else None
