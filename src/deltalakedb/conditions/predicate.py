"""Predicates: conditions on the rows of a table, bound to its schema, as pure values.

`where` in any of its forms (SQL text, a pyarrow expression, Spark filters) becomes a tree of these.
A tree has no NOT: it is pushed down to the leaves, whose opposite is a leaf too. That is exact in
SQL's three-valued logic, because a row counts only where the condition is true: a comparison with
null is neither true nor false, and so is its opposite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from deltalakedb.actions.datatypes import ColumnPath, DataType
from deltalakedb.errors import UnsupportedConditionError

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `path` as the schema spells it, `physical` as data files and the log do.

    A struct, array, map, variant or void column stands only in `Null`.
    """

    path: ColumnPath
    physical: ColumnPath
    type: DataType
    is_partition: bool = False
    was_float: bool = False

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`; the value is not null, and one of the column's type.

    The Python types are those of statistics: int for whole numbers, float for float and double (a
    finite number; compared as double), Decimal, str, bool, date, datetime in UTC for timestamp,
    datetime without zone for timestamp_ntz, bytes. Whole numbers and decimals fit the range and
    the scale of their column: binding has rounded the bound, or decided the comparison. Booleans
    are compared with "=" only.
    """

    column: Column
    operator: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """The column is one of the values (at least two), or none of them where `negated`.

    No value is null, and none comes twice. A null column is neither.
    """

    column: Column
    values: tuple[Any, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The string begins with the prefix, or does not where `negated`; null does neither.

    The prefix is not empty.
    """

    column: Column
    prefix: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Null:
    """The column is null, or is not where `negated`."""

    column: Column
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """True for every row, or for none."""

    value: bool


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that nothing is known of but its text: any row may fulfil it."""

    text: str


@dataclass(frozen=True, slots=True)
class And:
    """Every part is true; at least two parts, none of them an And or a Constant."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part is true; there are two or more parts, none of them an Or or a Constant."""

    parts: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | OneOf | StartsWith | Null | Constant | Opaque | And | Or


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """All of the parts, in the simplest form; true where there are none."""
    flat: list[Predicate] = []
    for part in parts:
        if part == Constant(value=False):
            return part
        if isinstance(part, And):
            flat.extend(part.parts)
        elif not isinstance(part, Constant):
            flat.append(part)
    merged = _merge_values(flat, negated=True)
    if not merged:
        return Constant(value=True)
    return merged[0] if len(merged) == 1 else And(tuple(merged))


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """Any of the parts, in the simplest form; false where there are none."""
    flat: list[Predicate] = []
    for part in parts:
        if part == Constant(value=True):
            return part
        if isinstance(part, Or):
            flat.extend(part.parts)
        elif not isinstance(part, Constant):
            flat.append(part)
    merged = _merge_values(flat, negated=False)
    if not merged:
        return Constant(value=False)
    return merged[0] if len(merged) == 1 else Or(tuple(merged))


def one_of(column: Column, values: Iterable[Any], *, negated: bool = False) -> Predicate:
    """The column is one of the values, or none of them; no value is null."""
    distinct = tuple(dict.fromkeys(values))
    if not distinct:
        return Null(column, negated=True) if negated else Constant(value=False)
    if len(distinct) == 1:
        return Comparison(column, "<>" if negated else "=", distinct[0])
    return OneOf(column, distinct, negated)


def conjuncts(predicate: Predicate) -> tuple[Predicate, ...]:
    """The parts that all have to be true; none where the predicate is always true."""
    if isinstance(predicate, And):
        return predicate.parts
    return () if predicate == Constant(value=True) else (predicate,)


def is_exact(predicate: Predicate) -> bool:
    """Whether all of it is known: no part is `Opaque`."""
    if isinstance(predicate, And | Or):
        return all(is_exact(part) for part in predicate.parts)
    return not isinstance(predicate, Opaque)


def columns_of(predicate: Predicate) -> tuple[Column, ...]:
    """The columns that the predicate names, each once; an `Opaque` part hides its own."""
    columns: dict[ColumnPath, Column] = {}
    waiting: list[Predicate] = [predicate]
    while waiting:
        part = waiting.pop()
        if isinstance(part, And | Or):
            waiting.extend(reversed(part.parts))
        elif not isinstance(part, Constant | Opaque):
            columns.setdefault(part.column.path, part.column)
    return tuple(columns.values())


def _merge_values(parts: list[Predicate], *, negated: bool) -> list[Predicate]:
    # `a = 1 OR a = 2 OR …` becomes one list, so that ten thousand terms stay one test; so does
    # `a <> 1 AND a <> 2 AND …`. The list stands where its first term stood.
    values: dict[ColumnPath, list[Any]] = {}
    columns: dict[ColumnPath, Column] = {}
    merged: list[Predicate | ColumnPath] = []
    for part in parts:
        terms = _values(part, negated=negated)
        if terms is None or not isinstance(part, Comparison | OneOf):
            merged.append(part)
            continue
        path = part.column.path
        if path not in values:
            values[path], columns[path] = [], part.column
            merged.append(path)
        values[path].extend(terms)
    return [
        one_of(columns[part], values[part], negated=negated) if isinstance(part, tuple) else part
        for part in merged
    ]


def _values(part: Predicate, *, negated: bool) -> tuple[Any, ...] | None:
    if isinstance(part, OneOf) and part.negated is negated:
        return part.values
    if isinstance(part, Comparison) and part.operator == ("<>" if negated else "="):
        return (part.value,)
    return None


# --- normal form ----------------------------------------------------------------------

MAX_DEPTH: Final = 100

Node = TypeVar("Node")
Split: TypeAlias = tuple[Literal["and", "or", "not"], Sequence[Node]]


class Leaf(Protocol[Node]):  # type: ignore[misc]  # a parameter only, but aliases cannot say so
    """Binds a node that is no AND, OR or NOT."""

    def __call__(self, node: Node, *, negated: bool) -> Predicate: ...


@dataclass(frozen=True, slots=True)
class _Join:
    conjunction: bool
    size: int


@dataclass(frozen=True, slots=True)
class _Visit(Generic[Node]):
    node: Node
    negated: bool


def normal_form(
    root: Node,
    split: Callable[[Node], Split[Node] | None],
    leaf: Leaf[Node],
    *,
    text: Callable[[Node], str] | None = None,
) -> Predicate:
    """Push NOT down to the leaves and bind them.

    `split` gives the operands of an AND, OR or NOT, and None for a leaf. With `text`, a leaf that
    cannot be expressed becomes `Opaque`; without, its error is raised.
    """
    work: list[_Visit[Node] | _Join] = [_Visit(root, negated=False)]
    done: list[tuple[Predicate, int]] = []
    while work:
        task = work.pop()
        if isinstance(task, _Join):
            operands = done[-task.size :]
            del done[-task.size :]
            done.append(_join(operands, task))
            continue
        parts = split(task.node)
        if parts is None:
            done.append((_bind(task, leaf, text), 1))
        elif parts[0] == "not":
            work.append(_Visit(parts[1][0], not task.negated))
        else:
            chain = _chain(task.node, parts[0], split)
            work.append(_Join((parts[0] == "and") is not task.negated, len(chain)))
            work.extend(_Visit(node, task.negated) for node in reversed(chain))
    return done[0][0]


def _chain(
    node: Node, operation: str, split: Callable[[Node], Split[Node] | None]
) -> Sequence[Node]:
    # `a OR b OR c …` is a tree as deep as it is long; its operands are wanted in one list.
    operands: list[Node] = []
    waiting = [node]
    while waiting:
        current = waiting.pop()
        parts = split(current)
        if parts is not None and parts[0] == operation:
            waiting.extend(reversed(parts[1]))
        else:
            operands.append(current)
    return operands


def _join(operands: Sequence[tuple[Predicate, int]], task: _Join) -> tuple[Predicate, int]:
    depth = 1 + max(depth for _, depth in operands)
    if depth > MAX_DEPTH:
        raise UnsupportedConditionError(
            "The condition is nested too deeply",
            why=f"AND and OR alternate more than {MAX_DEPTH} times",
            fix="Write it flatter, for example with IN lists",
        )
    join = conjunction if task.conjunction else disjunction
    return join(predicate for predicate, _ in operands), depth


def _bind(task: _Visit[Node], leaf: Leaf[Node], text: Callable[[Node], str] | None) -> Predicate:
    try:
        return leaf(task.node, negated=task.negated)
    except UnsupportedConditionError:
        if text is None:
            raise
        description = text(task.node)
        return Opaque(f"NOT ({description})" if task.negated else description)
