"""Parses `where` in any of its forms to a predicate bound to the schema of a table.

Filters that Spark pushes down to a Python data source (`pyspark.sql.datasource`) are recognised by
the names of their classes and attributes: pyspark is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import Any, Final

from deltalakedb.actions import Metadata
from deltalakedb.actions.datatypes import StructType
from deltalakedb.conditions.binding import Binder
from deltalakedb.conditions.predicate import (
    Constant,
    Null,
    Opaque,
    Operator,
    Predicate,
    Split,
    columns_of,
    conjunction,
    conjuncts,
    normal_form,
)
from deltalakedb.errors import (
    InvalidArgumentError,
    InvalidConditionError,
    UnsupportedConditionError,
)

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


_COMPARISONS: Final[dict[str, Operator]] = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_NAMES: Final = frozenset(
    [
        *_COMPARISONS,
        *("EqualNullSafe", "In", "IsNull", "IsNotNull", "Not"),
        *("StringStartsWith", "StringEndsWith", "StringContains"),
    ]
)


def is_spark_filter(value: Any) -> bool:
    """Whether the value is one of Spark's filters, or has the shape of one."""
    name = type(value).__name__
    return name in _NAMES and hasattr(value, "child" if name == "Not" else "attribute")


def read_spark(filters: Sequence[Any], binder: Binder, *, strict: bool) -> Predicate:
    """Bind filters that all have to hold; without `strict`, unknown ones become `Opaque`."""
    for one in filters:
        if not is_spark_filter(one):
            raise InvalidConditionError(
                f"Cannot understand {one!r:.200} among the filters",
                why="it is no filter of pyspark.sql.datasource",
                fix="Pass filters as Spark pushes them, or one condition as SQL text",
            )
    leaf = _Leaf(binder)
    return conjunction(
        normal_form(one, _split, leaf, text=None if strict else repr) for one in filters
    )


def _split(node: Any) -> Split[Any] | None:
    return ("not", (node.child,)) if type(node).__name__ == "Not" else None


class _Leaf:
    """Binds every filter but Not."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._readers: dict[str, Callable[..., Predicate]] = {
            "EqualNullSafe": binder.null_safe_equal,
            "In": binder.in_list,
            "StringStartsWith": binder.starts_with,
        }

    def __call__(self, node: Any, *, negated: bool) -> Predicate:
        name = type(node).__name__
        reader = self._readers.get(name)
        if not is_spark_filter(node):
            raise _unsupported(node)
        names = (node.attribute,) if isinstance(node.attribute, str) else tuple(node.attribute)
        column = self._binder.column(names)
        if name in ("IsNull", "IsNotNull"):
            return Null(column, negated is (name == "IsNull"))
        if name in _COMPARISONS:
            sign = _COMPARISONS[name]
            return self._binder.comparison(column, sign, node.value, negated=negated)
        if reader is None:
            raise _unsupported(node)
        return reader(column, node.value, negated=negated)


def _unsupported(node: Any) -> UnsupportedConditionError:
    return UnsupportedConditionError(
        f"The filter {node!r:.200} is more than can be planned with",
        why="only comparisons, In, IsNull, IsNotNull, StringStartsWith and Not are understood",
        fix="Leave the filter to Spark",
    )
