"""Binds the names and literals of a condition to the schema of the table.

Every form of `where` uses these methods, so that all forms have the same semantics. Each method
returns a predicate for the rows for which a test is true, or with `negated` those for which its
opposite is true; a test that is null is neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, tzinfo
from typing import Any, Final, Literal, NoReturn

from deltalakedb.actions.datatypes import (
    BOOLEAN,
    STRING,
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    physical_name,
    was_float,
)
from deltalakedb.actions.partition import INTEGER_RANGES
from deltalakedb.conditions.literals import (
    Between,
    DoubtfulLiteralError,
    Exact,
    Place,
    WrongLiteralError,
    describe,
    place,
)
from deltalakedb.conditions.predicate import (
    Column,
    Comparison,
    Constant,
    Null,
    Operator,
    Predicate,
    StartsWith,
    conjunction,
    disjunction,
    one_of,
)
from deltalakedb.errors import InvalidConditionError, UnsupportedConditionError

OPPOSITE: Final[dict[Operator, Operator]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}
MIRRORED: Final[dict[Operator, Operator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}
"""The operator when the sides change places."""

_EXAMPLES: Final = {
    "float": "2.5",
    "double": "2.5",
    "string": "'abc'",
    "boolean": "TRUE",
    "binary": "X'0AFF'",
    "date": "DATE '2026-11-01'",
    "timestamp": "TIMESTAMP '2026-11-01 12:00:00Z'",
    "timestamp_ntz": "TIMESTAMP_NTZ '2026-11-01 12:00:00'",
}
_NOTHING: Final = Constant(value=False)

NullMatching = Literal["sql", "match", "skip", "emit_null"]
"""What null means in a list: as in SQL, or as one of pyarrow's `null_matching_behavior`."""


class Binder:
    """Binds conditions to one table; `zone` is the zone of times that name none.

    `alias` is another name of the table, which may stand before those of its columns.
    """

    __slots__ = ("_alias", "_partition_columns", "_schema", "_zone")

    def __init__(
        self,
        schema: StructType,
        partition_columns: Sequence[str],
        *,
        zone: tzinfo = UTC,
        alias: str | None = None,
    ) -> None:
        self._schema = schema
        self._alias = None if alias is None else alias.lower()
        self._partition_columns = frozenset(name.lower() for name in partition_columns)
        self._zone = zone

    def column(self, names: Sequence[str]) -> Column:
        """The column that the names lead to, from the outermost; names ignore case."""
        first = names[0].lower()
        if len(names) > 1 and first == self._alias and self._schema.get(names[1]) is not None:
            # As in Spark, the alias goes before a column of the same name.
            names = names[1:]
        fields: list[StructField] = []
        struct: DataType = self._schema
        for name in names:
            if not isinstance(struct, StructType):
                inside = ".".join(f.name for f in fields)
                raise InvalidConditionError(
                    f"There is no column {'.'.join(names)!r}",
                    why=f"{inside!r} is of type {struct}, which has no field {name!r}",
                    fix="Only fields of structs can be named",
                )
            field = struct.get(name)
            if field is None:
                _unknown(names, struct, fields, self._schema)
            fields.append(field)
            struct = field.type
        return Column(
            path=tuple(f.name for f in fields),
            physical=tuple(physical_name(f) for f in fields),
            type=fields[-1].type,
            is_partition=len(fields) == 1 and fields[0].name.lower() in self._partition_columns,
            was_float=was_float(fields[-1]),
        )

    def comparison(
        self, column: Column, operator: Operator, literal: Any, *, negated: bool = False
    ) -> Predicate:
        """`column operator literal`; with null it is true for no row, and so is its opposite."""
        placed = self._place(column, literal)
        if placed is None:
            return _NOTHING
        return _compare(column, OPPOSITE[operator] if negated else operator, placed)

    def null_safe_equal(self, column: Column, literal: Any, *, negated: bool = False) -> Predicate:
        """`column <=> literal`: null equals null, and the answer is never null."""
        if literal is None:
            return Null(column, negated)
        equal = self.comparison(column, "=", literal, negated=negated)
        return disjunction((equal, Null(column))) if negated else equal

    def between(self, column: Column, low: Any, high: Any, *, negated: bool = False) -> Predicate:
        """`column BETWEEN low AND high`, both included."""
        bounds = (
            self.comparison(column, ">=", low, negated=negated),
            self.comparison(column, "<=", high, negated=negated),
        )
        return disjunction(bounds) if negated else conjunction(bounds)

    def in_list(
        self,
        column: Column,
        literals: Iterable[Any],
        *,
        negated: bool = False,
        nulls: NullMatching = "sql",
    ) -> Predicate:
        """`column IN (literals)`; `nulls` is the semantics of null in the list."""
        listed = list(literals)
        places = [self._place(column, literal) for literal in listed]
        has_null = None in places
        values = [p.value for p in places if isinstance(p, Exact)]
        if negated and has_null and nulls == "sql":
            return _NOTHING
        predicate = _values(column, values, negated=negated)
        null_is_listed = has_null and nulls == "match"
        if nulls in ("match", "skip") and null_is_listed is not negated:
            # Null is in the list as asked: it counts as any other value.
            return disjunction((predicate, Null(column)))
        return predicate

    def starts_with(self, column: Column, prefix: Any, *, negated: bool = False) -> Predicate:
        """The text begins with the prefix."""
        _only_text(column, "begins with a prefix")
        placed = self._place(column, prefix)
        if not isinstance(placed, Exact):
            return _NOTHING
        if placed.value == "":
            return _NOTHING if negated else Null(column, negated=True)
        return StartsWith(column, placed.value, negated)

    def like(
        self, column: Column, pattern: Any, *, escape: str = "\\", negated: bool = False
    ) -> Predicate:
        """`column LIKE pattern` for a pattern without wildcards, or with `%` at its end only."""
        _only_text(column, "is like a pattern")
        if not isinstance(pattern, str):
            # Null, or what the comparison refuses with its own words.
            return self.comparison(column, "=", pattern, negated=negated)
        prefix, is_prefix = _split_pattern(pattern, escape)
        if is_prefix:
            return self.starts_with(column, prefix, negated=negated)
        return self.comparison(column, "=", prefix, negated=negated)

    def truth(self, column: Column, *, negated: bool = False) -> Predicate:
        """A boolean column that stands alone."""
        if column.type != BOOLEAN:
            raise InvalidConditionError(
                f"Column {column} cannot stand alone as a condition",
                why=f"its type is {column.type}, not boolean",
                fix=f"Compare it with a value, as in {column} = {_example(column.type)}"
                if _example(column.type)
                else f"Write {column} IS NOT NULL",
            )
        return Comparison(column, "=", not negated)

    def _place(self, column: Column, literal: Any) -> Place | None:
        if not _example(column.type):
            raise InvalidConditionError(
                f"Cannot compare column {column} with a value",
                why=f"its type is {column.type}",
                fix=f"Write {column} IS NULL or {column} IS NOT NULL, or name a field inside it",
            )
        if literal is None:
            return None
        try:
            return place(literal, column.type, self._zone)
        except (WrongLiteralError, DoubtfulLiteralError) as error:
            wrong = isinstance(error, WrongLiteralError)
            kind = InvalidConditionError if wrong else UnsupportedConditionError
            raise kind(
                f"Cannot compare column {column} of type {column.type} with {describe(literal)}",
                why=str(error),
                fix=f"Write a value such as {_example(column.type)}",
            ) from None


def constant(*, true: bool | None, negated: bool) -> Predicate:
    """A condition without columns; None is null, whose opposite is null too."""
    return Constant(value=true is not None and true is not negated)


def _compare(column: Column, operator: Operator, placed: Place) -> Predicate:
    if isinstance(placed, Exact):
        if column.type == BOOLEAN:
            return _compare_boolean(column, operator, value=placed.value)
        return Comparison(column, operator, placed.value)
    if operator == "=":
        return _NOTHING
    if operator == "<>":
        return Null(column, negated=True)
    upwards = operator in (">", ">=")
    if isinstance(placed, Between):
        return Comparison(column, ">" if upwards else "<=", placed.floor)
    return _NOTHING if upwards is placed.above else Null(column, negated=True)


def _compare_boolean(column: Column, operator: Operator, *, value: bool) -> Predicate:
    tests: dict[Operator, list[bool]] = {
        "=": [value],
        "<>": [not value],
        "<": [b for b in (False, True) if b < value],
        "<=": [b for b in (False, True) if b <= value],
        ">": [b for b in (False, True) if b > value],
        ">=": [b for b in (False, True) if b >= value],
    }
    return _values(column, tests[operator], negated=False)


def _values(column: Column, values: list[Any], *, negated: bool) -> Predicate:
    if column.type != BOOLEAN:
        return one_of(column, values, negated=negated)
    wanted = {False, True} - set(values) if negated else set(values)
    if len(wanted) == 2:
        return Null(column, negated=True)
    return Comparison(column, "=", wanted.pop()) if wanted else _NOTHING


def _split_pattern(pattern: str, escape: str) -> tuple[str, bool]:
    # The text before the first wildcard, and whether a wildcard `%` follows and ends the pattern.
    text: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise InvalidConditionError(
                    f"The pattern {pattern!r} is not valid",
                    why=f"the escape character {escape!r} stands before neither % nor _ nor itself",
                    fix=f"Write {escape}{escape} for the character itself",
                )
            text.append(escaped)
        elif character == "%" and not "".join(characters).strip("%"):
            return "".join(text), True
        elif character in "%_":
            raise UnsupportedConditionError(
                f"The pattern {pattern!r} is more than can be planned with",
                why="a wildcard stands elsewhere than at the end, or is not %",
                fix="Use a pattern like 'abc%', or filter the rows after reading them",
            )
        else:
            text.append(character)
    return "".join(text), False


def _only_text(column: Column, test: str) -> None:
    if column.type == STRING:
        return
    kind = UnsupportedConditionError if _example(column.type) else InvalidConditionError
    raise kind(
        f"Cannot ask whether column {column} {test}",
        why=f"its type is {column.type}, not string",
        fix="Compare it with = or a range",
    )


def _example(data_type: DataType) -> str:
    if isinstance(data_type, DecimalType):
        return "2.5" if data_type.scale else "5"
    if isinstance(data_type, PrimitiveType):
        return "5" if data_type.name in INTEGER_RANGES else _EXAMPLES.get(data_type.name, "")
    return ""


def _unknown(
    names: Sequence[str], struct: StructType, above: Sequence[StructField], schema: StructType
) -> NoReturn:
    dotted = ".".join(names)
    where = f"the fields of {'.'.join(f.name for f in above)!r}" if above else "the columns"
    listed = ", ".join(struct.names[:50]) or "(none)"
    more = "" if len(struct.names) <= 50 else f" and {len(struct.names) - 50} more"
    fix = "Use one of these names"
    if len(names) > 1 and schema.get(dotted) is not None:
        fix = f"Write `{dotted}` in backticks for the column whose name has a dot"
    raise InvalidConditionError(
        f"There is no column {dotted!r}", why=f"{where} are: {listed}{more}", fix=fix
    )
