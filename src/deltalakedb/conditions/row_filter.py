"""Converts a predicate to a pyarrow expression that selects exactly the matching rows.

Columns have their logical names. NaN is greater than every number, as in Spark; a comparison with
null is never true; text is ordered by code point.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions.datatypes import DOUBLE, FLOAT
from deltalakedb.conditions.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    Null,
    OneOf,
    Opaque,
    Operator,
    Or,
    Predicate,
    StartsWith,
)
from deltalakedb.errors import UnsupportedConditionError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_CHAIN: Final = 16
_PYTHON: Final[dict[Operator, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def row_filter(predicate: Predicate) -> pc.Expression:
    """The expression for a dataset or table; `UnsupportedConditionError` for an `Opaque` part.

    It is true for the rows of the condition; for the others it is false or null.
    """
    import pyarrow.compute as pc

    if isinstance(predicate, And):
        return _join([row_filter(part) for part in predicate.parts], operator.and_)
    if isinstance(predicate, Or):
        return _join([row_filter(part) for part in predicate.parts], operator.or_)
    if isinstance(predicate, Constant):
        return pc.scalar(predicate.value)
    if isinstance(predicate, Opaque):
        raise UnsupportedConditionError(
            f"Rows cannot be filtered by {predicate.text[:200]!r}",
            why="nothing is known of this part of the condition",
            fix="Leave the part out and filter the rows after reading them",
        )
    field = pc.field(*predicate.column.path)
    if isinstance(predicate, Null):
        return field.is_valid() if predicate.negated else field.is_null()
    if isinstance(predicate, StartsWith):
        starts = pc.starts_with(field, predicate.prefix)
        return ~starts if predicate.negated else starts
    if isinstance(predicate, OneOf):
        return _one_of(predicate, field)
    return _compare(predicate, field)


def _compare(comparison: Comparison, field: pc.Expression) -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    value = pa.scalar(comparison.value, _arrow_type(comparison.column))
    tested = _PYTHON[comparison.operator](field, value)
    if comparison.operator in (">", ">=") and comparison.column.type in (FLOAT, DOUBLE):
        return tested | pc.is_nan(field)
    return tested


def _one_of(predicate: OneOf, field: pc.Expression) -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow_type = _arrow_type(predicate.column)
    values: list[Any] = list(predicate.values)
    if predicate.column.type in (FLOAT, DOUBLE):
        field = field.cast(arrow_type)
        if 0.0 in values:
            # The lookup goes by bits, where zero has a sign.
            values.append(-0.0)
    matches = pc.is_in(field, value_set=pa.array(values, arrow_type))
    # The lookup is false for null, so its opposite would be true.
    return field.is_valid() & ~matches if predicate.negated else matches


def _arrow_type(column: Column) -> pa.DataType:
    import pyarrow as pa

    from deltalakedb.actions.arrow import schema_to_arrow
    from deltalakedb.actions.datatypes import StructField, StructType

    if column.type in (FLOAT, DOUBLE):
        # A single-precision column is compared as double too.
        return pa.float64()
    return schema_to_arrow(StructType((StructField("column", column.type),))).field(0).type


def _join(
    parts: Sequence[pc.Expression], join: Callable[[pc.Expression, pc.Expression], pc.Expression]
) -> pc.Expression:
    # pyarrow makes one chain out of nested ANDs (or ORs), however they were joined, and walks it
    # recursively: ten thousand parts crash the process. A double NOT, which changes nothing,
    # keeps the chains apart.
    if len(parts) <= _CHAIN:
        return reduce(join, parts)
    chains = [parts[i : i + _CHAIN] for i in range(0, len(parts), _CHAIN)]
    return _join([~~reduce(join, chain) for chain in chains], join)
