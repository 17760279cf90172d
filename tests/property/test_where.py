"""A condition as SQL text keeps the rows that a row-by-row evaluation in Python keeps."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructField,
    StructType,
)
from deltalakedb.conditions.row_filter import row_filter
from deltalakedb.conditions.where import parse_where

from support.profiles import examples

Truth = bool | None
Test = Callable[[dict[str, Any]], Truth]

TEXTS = st.text(st.sampled_from("ab%_'\"\\é\U0001f600\uffff\n"), max_size=4)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001
FEW_MOMENTS = st.sampled_from(
    [datetime(2026, 11, 1), datetime(2026, 11, 1, 0, 0, 0, 1), datetime(1969, 12, 31, 23, 59)]  # noqa: DTZ001
)
DECIMAL = DecimalType(6, 2)
WIDE = DecimalType(38, 18)


@dataclass(frozen=True)
class Kind:
    """A type, the values that its column gets, and literals to compare it with."""

    type: DataType
    values: st.SearchStrategy[Any]
    literals: st.SearchStrategy[Any]


def whole(bits: int) -> st.SearchStrategy[int]:
    edge = 2 ** (bits - 1)
    return st.integers(-3, 3) | st.sampled_from([-edge, edge - 1]) | st.integers(-edge, edge - 1)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    units = 10**digits - 1
    few = st.sampled_from([-150, -100, 0, 1, 100, 150])
    return (few | st.integers(-units, units)).map(lambda n: Decimal((n < 0, digits_of(n), -scale)))


def digits_of(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


EXACT_NUMBERS: st.SearchStrategy[Any] = (
    st.integers(-3, 3)
    | st.integers(-(10**40), 10**40)
    | st.sampled_from([127, 128, -128, -129, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1])
    | decimals(4, 1)
    | decimals(8, 4)
)
SMALL_DOUBLES = st.integers(-300, 300).map(lambda n: n / 100)
SPECIAL = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])
NUMBERS = EXACT_NUMBERS | SMALL_DOUBLES
# A few values that columns and literals share, so that comparisons meet.
REALS: st.SearchStrategy[Any] = (
    st.sampled_from([0, 1.5, Decimal("1.5"), Decimal("0.1")])
    | NUMBERS
    | st.floats(allow_nan=False, allow_infinity=False)
)

KINDS = [
    Kind(BYTE, whole(8), NUMBERS),
    Kind(SHORT, whole(16), NUMBERS),
    Kind(INTEGER, whole(32), NUMBERS),
    Kind(LONG, whole(64), NUMBERS),
    Kind(FLOAT, SPECIAL | st.floats(width=32), REALS),
    Kind(DOUBLE, SPECIAL | st.floats(), REALS),
    Kind(DECIMAL, decimals(6, 2), NUMBERS),
    Kind(WIDE, decimals(38, 18), EXACT_NUMBERS),
    Kind(STRING, TEXTS, TEXTS),
    Kind(BOOLEAN, st.booleans(), st.booleans()),
    Kind(BINARY, st.binary(max_size=2), st.binary(max_size=2)),
    Kind(DATE, st.dates() | st.just(date(2026, 11, 1)), st.dates() | st.just(date(2026, 11, 1))),
    Kind(
        TIMESTAMP,
        (MOMENTS | FEW_MOMENTS).map(lambda m: m.replace(tzinfo=UTC)),
        (MOMENTS | FEW_MOMENTS).map(lambda m: m.replace(tzinfo=UTC)),
    ),
    Kind(TIMESTAMP_NTZ, MOMENTS | FEW_MOMENTS, MOMENTS | FEW_MOMENTS),
]
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


# --- the independent evaluation -----------------------------------------------------------


def compare(value: Any, sign: str, literal: Any) -> Truth:
    """SQL's comparison as Spark makes it."""
    if value is None or literal is None:
        return None
    if isinstance(value, float) or isinstance(literal, float):
        value, literal = float(value), float(literal)
        # NaN equals itself and is above everything: put it there.
        value, literal = ((math.isnan(x), 0.0 if math.isnan(x) else x) for x in (value, literal))
    return SIGNS[sign](value, literal)


def negation(truth: Truth) -> Truth:
    return None if truth is None else not truth


def all_of(truths: Sequence[Truth]) -> Truth:
    if any(truth is False for truth in truths):
        return False
    return None if None in truths else True


def any_of(truths: Sequence[Truth]) -> Truth:
    return negation(all_of([negation(truth) for truth in truths]))


# --- SQL text -----------------------------------------------------------------------------


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def sql(literal: Any) -> str:
    if literal is None:
        return "NULL"
    if isinstance(literal, bool):
        return str(literal).upper()
    if isinstance(literal, float):
        return f"{literal!r}D"
    if isinstance(literal, Decimal):
        return format(literal, "f")
    if isinstance(literal, int):
        return str(literal)
    if isinstance(literal, str):
        return quoted(literal)
    if isinstance(literal, bytes):
        return f"X'{literal.hex()}'"
    if isinstance(literal, datetime):
        kind = "TIMESTAMP_NTZ" if literal.tzinfo is None else "TIMESTAMP"
        return f"{kind} '{literal.isoformat(sep=' ')}'"
    return f"DATE '{literal.isoformat()}'"


@dataclass(frozen=True)
class Condition:
    """SQL text and the test that it stands for."""

    sql: str
    test: Test


@dataclass(frozen=True)
class Case:
    schema: StructType
    rows: list[dict[str, Any]]
    condition: Condition


@dataclass(frozen=True)
class Target:
    """A column as it is written, and one way to negate the test of it."""

    name: str
    shown: str
    negated: bool

    @property
    def no(self) -> str:
        return "NOT " if self.negated else ""

    def value(self, row: dict[str, Any]) -> Any:
        return row[self.name]

    def signed(self, truth: Truth) -> Truth:
        return negation(truth) if self.negated else truth


def comparison(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    sign, x = draw(st.sampled_from(sorted(SIGNS))), draw(literal)
    if on.negated:
        mirrored = MIRRORED.get(sign, sign)
        return Condition(f"{sql(x)} {sign} {on.shown}", lambda r: compare(on.value(r), mirrored, x))
    return Condition(f"{on.shown} {sign} {sql(x)}", lambda r: compare(on.value(r), sign, x))


def in_list(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    xs = draw(st.lists(literal, min_size=1, max_size=4))
    return Condition(
        f"{on.shown} {on.no}IN ({', '.join(map(sql, xs))})",
        lambda r: on.signed(any_of([compare(on.value(r), "=", x) for x in xs])),
    )


def between(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    low, high = draw(literal), draw(literal)
    return Condition(
        f"{on.shown} {on.no}BETWEEN {sql(low)} AND {sql(high)}",
        lambda r: on.signed(
            all_of([compare(on.value(r), ">=", low), compare(on.value(r), "<=", high)])
        ),
    )


def is_null(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    return Condition(f"{on.shown} IS {on.no}NULL", lambda r: on.signed(on.value(r) is None))


def null_safe(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    x = draw(literal)

    def test(row: dict[str, Any]) -> Truth:
        value = on.value(row)
        equal = value is x if value is None or x is None else compare(value, "=", x)
        return on.signed(equal)

    return Condition(f"{on.no}{on.shown} <=> {sql(x)}", test)


def prefix(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    x = draw(TEXTS)
    text = f"startswith({on.shown}, {quoted(x)})"
    if draw(st.booleans()):
        pattern = "".join(f"\\{c}" if c in "%_\\" else c for c in x)
        text = f"{on.shown} LIKE {quoted(pattern + '%')}"
    return Condition(
        f"{on.no}({text})",
        lambda r: None if on.value(r) is None else on.signed(on.value(r).startswith(x)),
    )


def truth_of(draw: st.DrawFn, on: Target, literal: st.SearchStrategy[Any]) -> Condition:
    if draw(st.booleans()):
        return Condition(f"{on.no}{on.shown}", lambda r: on.signed(on.value(r)))
    x = draw(st.booleans())
    return Condition(f"{on.shown} IS {on.no}{sql(x)}", lambda r: on.signed(on.value(r) is x))


Form = Callable[[st.DrawFn, Target, st.SearchStrategy[Any]], Condition]


def leaf(draw: st.DrawFn, kinds: Sequence[Kind]) -> Condition:
    position = draw(st.integers(0, len(kinds) - 1))
    kind = kinds[position]
    name = f"c{position}"
    shown = draw(st.sampled_from([name, name.upper(), f"`{name}`", f"({name})"]))
    if position == len(kinds) - 1:
        shown = f"st.{name}"
    forms: list[Form] = [comparison, comparison, in_list, between, is_null, null_safe]
    if kind.type == STRING:
        forms += [prefix, prefix]
    if kind.type == BOOLEAN:
        forms += [truth_of, truth_of]
    form = draw(st.sampled_from(forms))
    literal = st.none() | kind.literals if draw(st.integers(0, 9)) == 0 else kind.literals
    return form(draw, Target(name, shown, draw(st.booleans())), literal)


def tree(draw: st.DrawFn, kinds: Sequence[Kind], depth: int) -> Condition:
    form = draw(st.sampled_from(["leaf", "leaf", "and", "or", "not", "constant"])) if depth else ""
    if form in ("and", "or"):
        parts = [tree(draw, kinds, depth - 1) for _ in range(draw(st.integers(2, 3)))]
        join = all_of if form == "and" else any_of
        text = f" {form.upper()} ".join(f"({part.sql})" for part in parts)
        return Condition(text, lambda row: join([part.test(row) for part in parts]))
    if form == "not":
        inner = tree(draw, kinds, depth - 1)
        return Condition(f"NOT ({inner.sql})", lambda row: negation(inner.test(row)))
    if form == "constant":
        truth = draw(st.sampled_from([True, False, None]))
        return Condition(sql(truth), lambda _: truth)
    return leaf(draw, kinds)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    fields = [StructField(f"c{i}", kind.type) for i, kind in enumerate(kinds)]
    # The last column lies inside a struct, which may be null itself.
    schema = StructType((*fields[:-1], StructField("st", StructType((fields[-1],)))))
    row = st.fixed_dictionaries({f"c{i}": st.none() | kind.values for i, kind in enumerate(kinds)})
    rows = draw(st.lists(row, min_size=4, max_size=16))
    return Case(schema, rows, tree(draw, kinds, 3))


def table(case: Case) -> pa.Table:
    nested = case.schema.fields[-1].type
    assert isinstance(nested, StructType)
    inside = nested.names[0]
    rows = []
    for number, row in enumerate(case.rows):
        struct = {inside: row[inside]}
        is_null = row[inside] is None and number % 2 == 0
        rows.append({**row, "st": None if is_null else struct, "number": number})
    schema = schema_to_arrow(case.schema).append(pa.field("number", pa.int64()))
    return pa.Table.from_pylist(rows, schema=schema)


def kept(case: Case, text: str) -> list[int]:
    predicate = parse_where(text, case.schema, [])
    numbers: list[int] = table(case).filter(row_filter(predicate))["number"].to_pylist()
    return numbers


@settings(max_examples=examples(150))
@given(cases())
def test_rows_kept_are_those_for_which_the_condition_is_true(case: Case) -> None:
    expected = [n for n, row in enumerate(case.rows) if case.condition.test(row) is True]
    assert kept(case, case.condition.sql) == expected


@settings(max_examples=examples(100))
@given(cases())
def test_pushing_not_down_preserves_meaning(case: Case) -> None:
    expected = [n for n, row in enumerate(case.rows) if case.condition.test(row) is False]
    assert kept(case, f"NOT ({case.condition.sql})") == expected


@given(cases())
def test_not_not_is_nothing(case: Case) -> None:
    text = case.condition.sql
    once = parse_where(text, case.schema, [])
    assert parse_where(f"NOT (NOT ({text}))", case.schema, []) == once
    assert parse_where(text, case.schema, [], strict=False) == once
