"""AND, OR and NOT of any form of condition as a tree without NOT.

Long chains and deep nesting are walked without recursion. The tree that comes out is never deeper
than `MAX_DEPTH`, so whoever reads it may recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from deltalakedb.conditions.predicate import Opaque, Predicate, conjunction, disjunction
from deltalakedb.errors import UnsupportedConditionError

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
        shown = text(task.node)
        return Opaque(f"NOT ({shown})" if task.negated else shown)
