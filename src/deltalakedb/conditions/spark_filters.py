"""Conditions that Spark pushes down to a Python data source (`pyspark.sql.datasource` filters).

They are known by the names of their classes and attributes: pyspark is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from deltalakedb.conditions.binding import Binder
from deltalakedb.conditions.normal_form import Split, normal_form
from deltalakedb.conditions.predicate import Null, Operator, Predicate, conjunction
from deltalakedb.errors import InvalidConditionError, UnsupportedConditionError

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
