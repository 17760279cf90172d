"""Functions over the SQL text of queries and conditions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from sqlglot import TokenType
from sqlglot import expressions as ast
from sqlglot.errors import SqlglotError

from deltalakedb.conditions.sql import SparkSql

_NO_NAMES: Final = (TokenType.STRING, TokenType.NUMBER, TokenType.DOT)


def conjuncts(tree: ast.Expr) -> Iterator[ast.Expr]:
    """The parts of a condition that AND combines."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.And):
            waiting += [part.right, part.left]
        elif isinstance(part, ast.Paren):
            waiting.append(part.this)
        else:
            yield part


def without_alias(text: str, alias: str) -> str:
    """A condition without the alias of the table before its columns.

    Only the alias and its dot are cut out; Spark reads the rest as it was written. Text that cannot
    be read stays, and Spark raises the error.
    """
    try:
        tokens = SparkSql().tokenize(text)
    except SqlglotError:
        return text
    parts, start = [], 0
    before = None
    for name, dot in pairwise(tokens):
        is_alias = name.token_type not in _NO_NAMES and name.text.lower() == alias.lower()
        if is_alias and before is not TokenType.DOT and dot.token_type is TokenType.DOT:
            parts.append(text[start : name.start])
            start = dot.end + 1
        before = name.token_type
    return "".join((*parts, text[start:]))
