"""What stands in the text of a query, beyond what a condition of one table needs."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import expressions as ast


def conjuncts(tree: ast.Expr) -> Iterator[ast.Expr]:
    """The parts of a condition that all have to hold."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.And):
            waiting += [part.right, part.left]
        elif isinstance(part, ast.Paren):
            waiting.append(part.this)
        else:
            yield part
