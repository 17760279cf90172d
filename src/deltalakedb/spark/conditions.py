"""Conditions as users of Spark write them: SQL text or a Column; for rows, and to find files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deltalakedb.errors import ConfigurationError, InvalidConditionError
from deltalakedb.snapshot.predicate import (
    Constant,
    Opaque,
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    is_exact,
)
from deltalakedb.spark.scan import planned
from deltalakedb.transaction.attempt import PartitionTest
from deltalakedb.writing import partition_test

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.actions import Metadata


def as_column(condition: Any, what: str = "The condition") -> Column:
    """SQL text or a Column, as a Column."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if isinstance(condition, str):
        return F.expr(condition)
    if not hasattr(condition, "cast") or not hasattr(condition, "isNull"):
        raise ConfigurationError(
            f"{what} is a {type(condition).__name__}",
            fix="Pass SQL text, e.g. \"id = 3\", or a Column, e.g. F.col('id') == 3",
        )
    column: Column = condition
    return column


def holds(condition: Any) -> Column:
    """Whether a condition is true: one that is unknown is not."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(as_column(condition), F.lit(False))  # noqa: FBT003


def text_of(condition: Any, frame: DataFrame) -> str | None:
    """The condition as SQL text; None where Spark does not tell it.

    What gives another answer each time it is asked is refused: rows are looked at twice.
    """
    from pyspark.errors import AnalysisException

    try:
        filtered = frame.where(as_column(condition))
        plan = getattr(filtered, "_jdf", None)
        if plan is None:
            # Spark Connect: the analysis is made elsewhere.
            _ = filtered.schema
            return condition if isinstance(condition, str) else None
        analyzed = plan.queryExecution().analyzed()
    except AnalysisException as error:
        raise InvalidConditionError(
            f"The condition {condition!s} cannot be used",
            why=str(error).split("\n\nJVM stacktrace")[0].split(";\n")[0],
            fix="Correct it: columns are named as in the table",
        ) from error
    if not analyzed.deterministic():
        raise InvalidConditionError(
            f"The condition {condition!s} cannot be used",
            why="It may give another answer each time it is evaluated",
            fix="Compute such values before, and compare with them",
        )
    return condition if isinstance(condition, str) else str(analyzed.expressions().apply(0).sql())


def plan_for(
    spark: SparkSession, metadata: Metadata, condition: Any, frame: DataFrame
) -> Predicate:
    """What is known of a condition, to find the files that may have such rows."""
    text = text_of(condition, frame)
    return Opaque("a condition of Spark") if text is None else planned(spark, metadata, text)


def whole_files(predicate: Predicate, metadata: Metadata) -> PartitionTest | None:
    """Which files have nothing but rows for the condition; None where rows of a file may differ."""
    return partition_test(predicate, metadata) if is_exact(predicate) else None


def partitions_read(predicate: Predicate, metadata: Metadata) -> PartitionTest:
    """Whether a file with these partition values could have rows for the condition."""
    names = {name.lower() for name in metadata.partition_columns}
    known = [
        part
        for part in conjuncts(predicate)
        if is_exact(part)
        and columns_of(part)
        and all(len(c.path) == 1 and c.path[0].lower() in names for c in columns_of(part))
    ]
    test = partition_test(conjunction(known), metadata) if known else None
    if test is not None:
        return test
    nothing = predicate == Constant(value=False)

    def any_partition(_: Mapping[str, str | None]) -> bool:
        return not nothing

    return any_partition
