"""`where` in any of its forms as one tree, bound to the schema of a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Any

from deltalakedb.actions import Metadata
from deltalakedb.actions.datatypes import StructType
from deltalakedb.conditions.binding import Binder
from deltalakedb.conditions.predicate import (
    Constant,
    Opaque,
    Predicate,
    columns_of,
    conjuncts,
)
from deltalakedb.conditions.spark_filters import is_spark_filter, read_spark
from deltalakedb.errors import InvalidArgumentError, UnsupportedConditionError

__all__ = ["columns_of", "conjuncts", "parse_where", "predicate_of"]


def parse_where(
    where: Any,
    schema: StructType,
    partition_columns: Sequence[str],
    *,
    strict: bool = True,
    zone: tzinfo = UTC,
    alias: str | None = None,
) -> Predicate:
    """Bind a condition to a schema; its meaning is that of Spark SQL, whatever its form.

    `where` is SQL text, a `pyarrow.compute.Expression`, one filter of `pyspark.sql.datasource`, or
    a list of such filters that all have to hold; None is true for every row. Times that name no
    zone are in `zone`. The `alias` of the table may stand before the names of its columns.

    Raises `InvalidConditionError` where the condition is wrong for this table, and its subclass
    `UnsupportedConditionError` where it may be right but cannot be expressed as a tree. Without
    `strict` such a part becomes `Opaque` instead.
    """
    if where is None:
        return Constant(value=True)
    binder = Binder(schema, partition_columns, zone=zone, alias=alias)
    try:
        return _read(where, binder, strict=strict)
    except UnsupportedConditionError:
        if strict:
            raise
        return Opaque(where if isinstance(where, str) else str(where))


def _read(where: Any, binder: Binder, *, strict: bool) -> Predicate:
    if isinstance(where, str):
        from deltalakedb.conditions.sql import read_sql

        return read_sql(where, binder, strict=strict)
    if is_spark_filter(where):
        return read_spark([where], binder, strict=strict)
    if isinstance(where, list | tuple):
        return read_spark(where, binder, strict=strict)
    if type(where).__module__.partition(".")[0] == "pyarrow":
        import pyarrow.compute as pc

        if isinstance(where, pc.Expression):
            from deltalakedb.conditions.arrow import read_arrow

            return read_arrow(where, binder, strict=strict)
    raise InvalidArgumentError(
        f"Cannot understand a condition of type {type(where).__name__}",
        fix="Pass SQL text, a pyarrow.compute.Expression, or filters of pyspark.sql.datasource",
    )


def predicate_of(where: Any, metadata: Metadata) -> Predicate | None:
    """The condition as a tree, or None for every file; a predicate is returned as it is."""
    if where is None or isinstance(where, Predicate):
        return where
    return parse_where(where, metadata.schema, metadata.partition_columns)
