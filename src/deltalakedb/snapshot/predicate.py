"""A condition on the rows of a table, bound to its schema: pure values.

`where` in any of its forms (SQL text, a pyarrow expression, Spark filters) becomes a tree of these.
A tree has no NOT: it was pushed down to the leaves, whose opposite is a leaf too. That is exact in
SQL's three-valued logic, because a row counts only where the condition is true: a comparison with
null is neither true nor false, and so is its opposite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from deltalakedb.actions.datatypes import ColumnPath, DataType

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Column:
    """A leaf column: `path` as the schema spells it, `physical` as data files and the log do."""

    path: ColumnPath
    physical: ColumnPath
    type: DataType
    is_partition: bool = False

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`; the value is not null, and one of the column's type.

    The Python types are those of statistics: int for whole numbers, float for float and double (a
    finite number; compared as double), Decimal of any scale, str, bool, date, datetime in UTC for
    timestamp, datetime without zone for timestamp_ntz, bytes.
    """

    column: Column
    operator: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """The column is one of the values (at least one), or none of them where `negated`."""

    column: Column
    values: tuple[Any, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The string begins with the prefix, or does not where `negated`; null does neither."""

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
    """Every part is true."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Some part is true."""

    parts: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | OneOf | StartsWith | Null | Constant | Opaque | And | Or
