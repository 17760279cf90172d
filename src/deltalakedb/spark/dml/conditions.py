"""Conditions as users of Spark write them: SQL text or a Column; for rows, and to find files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.actions import Metadata

_SPECIAL: Final = re.compile(r"['\"]\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def as_column(condition: Any, what: str = "The condition") -> Column:
    """SQL text or a Column, as a Column."""
    from pyspark.sql import Column
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if isinstance(condition, str):
        if not condition.strip():
            raise InvalidConditionError(f"{what} is empty", fix="Write an expression in SQL")
        return F.expr(condition)
    if not isinstance(condition, Column):
        fix = "Pass SQL text, e.g. \"id = 3\", or a Column, e.g. F.col('id') == 3"
        refuse(what, condition, "SQL text or a Column", fix=fix)
    return condition


def holds(condition: Any) -> Column:
    """Whether a condition is true: one that is unknown is not."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(as_column(condition), F.lit(False))  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the rows of a table, which Spark has resolved."""

    given: Any
    """As it was written; where it asks for the time, as SQL with the instant that was meant."""
    text: str | None
    """As SQL; None where Spark does not tell it."""
    shown: str
    """As it was written, for the history of the table."""
    steady: bool
    """Whether it is known to give the same answer for a row in one query and in the next one."""

    @property
    def column(self) -> Column:
        """As a Column."""
        return as_column(self.given)

    @property
    def asks_metadata(self) -> bool:
        """Whether it may name Spark's hidden column `_metadata`."""
        return "_metadata" in self.shown.lower()


def resolved(condition: Any, frame: DataFrame) -> Condition:
    """Let Spark resolve a condition with the columns of a frame.

    What gives another answer for each row it is asked of is refused. One that asks for the time is
    of one instant from here on, however many queries there will be.
    """
    column = as_column(condition)
    shown = condition if isinstance(condition, str) else None
    with refusing(condition):
        filtered = frame.where(column)
        if is_connect(filtered):
            # Spark Connect: the analysis is made elsewhere.
            _ = filtered.schema
            return Condition(condition, shown, shown or str(condition), steady=False)
        plan = filter_plan(filtered)
    if not plan.deterministic():
        raise InvalidConditionError(
            f"The condition {condition!s} cannot be used",
            why="It may give another answer each time it is evaluated",
            fix="Compute such values before, and compare with them",
        )
    text = shown or str(plan.condition().sql())
    now, steady = _at_one_instant(frame, plan, str(condition))
    if now is not None:
        return Condition(now, now, text, steady=True)
    meant = plan.condition()
    sql = shown or read_back(text, meant, lambda: filter_plan(frame.where(text)).condition())
    return Condition(condition, sql, text, steady)


def read_back(text: str, meant: Any, read: Callable[[], Any]) -> str | None:
    """The text of a Column, if Spark reads it as the same again; None where it does not.

    A time is written in the zone of the session, where an hour in autumn is there twice.
    """
    return text if same_expression(meant, read) else None


def _at_one_instant(frame: DataFrame, plan: Any, written: str) -> tuple[str | None, bool]:
    """A condition that depends on when its query runs, as one that does not; and if all is well.

    Spark calls `now()` deterministic, since it is the same for all rows of a query. Its own rules
    put the time in its place here. The text of what they make is taken only if Spark reads it as
    the same again.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark = frame.sparkSession
    try:
        if has_subquery(spark, plan):
            # Other tables may change.
            return None, False
        fixed, asks = with_current_time(spark, plan)
        # Times such as timestamp'now' are taken whenever the text is read.
        if not asks and not _SPECIAL.search(written):
            return None, True
        wanted = fixed.condition()
        text = str(wanted.sql())
        again = replaced_expressions(spark, filter_plan(frame.where(text)))
        if again.condition().semanticEquals(wanted):
            return text, True
    except (Py4JError, PySparkException, TypeError):
        # Also where this Spark has its rules elsewhere.
        return None, False
    return None, False


def plan_for(
    spark: SparkSession, metadata: Metadata, condition: Condition, alias: str | None = None
) -> Predicate:
    """What is known of a condition, to find the files that may have such rows."""
    if condition.text is None:
        return Opaque("a condition of Spark")
    return planned(spark, metadata, condition.text, alias=alias)


def whole_files(predicate: Predicate, metadata: Metadata) -> PartitionTest | None:
    """Which files have nothing but rows for the condition; None where rows of a file may differ."""
    return partition_test(predicate, metadata) if is_exact(predicate) else None
