"""pyarrow expressions as conditions."""

from __future__ import annotations

import functools
import math
import operator
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conditions.parsing import column, compared, not_null, null, parse
from deltalakedb.conditions.predicate import (
    And,
    Comparison,
    Constant,
    OneOf,
    Opaque,
    Or,
    Predicate,
    StartsWith,
)
from deltalakedb.errors import InvalidConditionError, UnsupportedConditionError

FALSE = Constant(value=False)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
WALL_NOON = datetime(2026, 11, 1, 12)  # noqa: DTZ001
NOON_NS = int(NOON.timestamp()) * 10**9
field = pc.field


def instant(nanoseconds: int, zone: str | None = "UTC") -> pa.Scalar:
    return pa.scalar(nanoseconds, pa.timestamp("ns", zone))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (field("id") == 5, compared("id", "=", 5)),
        (field("ID") != 5, compared("id", "<>", 5)),
        (field("id") < 5, compared("id", "<", 5)),
        (field("id") <= 5, compared("id", "<=", 5)),
        (field("id") > 5, compared("id", ">", 5)),
        (field("id") >= 5, compared("id", ">=", 5)),
        (pc.scalar(5) > field("id"), compared("id", "<", 5)),
        (field("id") == 5.5, FALSE),
        (field("id") > 5.5, compared("id", ">", 5)),
        (field("small") == 300, FALSE),
        (field("small") == pa.scalar(3, pa.uint64()), compared("small", "=", 3)),
        (field("id") == pa.scalar(None, pa.int64()), FALSE),
        (~(field("id") == pa.scalar(None, pa.int64())), FALSE),
        (field("price") == 1, compared("price", "=", Decimal(1))),
        (field("price") == 1.1, compared("price", "=", Decimal("1.1"))),
        (field("price") == Decimal("1.10"), compared("price", "=", Decimal("1.1"))),
        (field("wide") < pa.scalar(Decimal("0.5"), pa.decimal256(50, 20)),
         compared("wide", "<", Decimal("0.5"))),
        (field("ratio") > 1, compared("ratio", ">", 1.0)),
        (field("single") > pa.scalar(1.5, pa.float32()), compared("single", ">", 1.5)),
        (field("name") == 'a"b\n\0', compared("name", "=", 'a"b\n\0')),
        (field("name") == pa.scalar("a", pa.large_string()), compared("name", "=", "a")),
        (field("name") == pa.scalar("a", pa.dictionary(pa.int8(), pa.string())),
         compared("name", "=", "a")),
        (field("raw") == b"\0\xff", compared("raw", "=", b"\0\xff")),
        (field("a.b") == 1, compared("a.b", "=", 1)),
        (field("day") == date(2026, 11, 1), compared("Day", "=", date(2026, 11, 1))),
        (field("day") == pa.scalar(date(2026, 11, 1), pa.date64()),
         compared("Day", "=", date(2026, 11, 1))),
        (field("at") == NOON, compared("at", "=", NOON)),
        (field("at") == WALL_NOON, compared("at", "=", NOON)),
        (field("at") == instant(NOON_NS, "Europe/Berlin"), compared("at", "=", NOON)),
        (field("at") == pa.scalar(NOON_NS // 10**9, pa.timestamp("s", "UTC")),
         compared("at", "=", NOON)),
        (field("at") == instant(NOON_NS + 1), FALSE),
        (field("at") >= instant(NOON_NS + 1), compared("at", ">", NOON)),
        (field("wall") < instant(NOON_NS + 1, None), compared("wall", "<=", WALL_NOON)),
        (field("wall") == WALL_NOON, compared("wall", "=", WALL_NOON)),
        (field("ok"), compared("ok", "=", True)),
        (~field("ok"), compared("ok", "=", False)),
        (pc.scalar(True), Constant(value=True)),
        (field("person", "address", "zip") > 3,
         Comparison(column("person", "address", "Zip"), ">", 3)),
        (field("id").is_null(), null("id")),
        (field("id").is_null(nan_is_null=True), null("id")),
        (~field("id").is_null(), not_null("id")),
        (field("id").is_valid(), not_null("id")),
        (field("list").is_null(), null("list")),
        (pc.starts_with(field("name"), "ab"), StartsWith(column("name"), "ab")),
        (~pc.starts_with(field("name"), "ab"), StartsWith(column("name"), "ab", negated=True)),
        (pc.match_like(field("name"), "ab%"), StartsWith(column("name"), "ab")),
        ((field("id") > 1) & (field("id") < 9) | ~(field("name") == "x"),
         Or((And((compared("id", ">", 1), compared("id", "<", 9))), compared("name", "<>", "x")))),
    ],
    ids=str,
)  # fmt: skip
def test_an_expression_becomes_a_tree(expression: pc.Expression, expected: Predicate) -> None:
    assert parse(expression) == expected
    assert parse(expression, strict=False) == expected


def test_null_in_a_list_means_what_pyarrow_says() -> None:
    both, neither = OneOf(column("id"), (1, 2)), OneOf(column("id"), (1, 2), negated=True)
    listed = pa.array([1, 2, None])
    matched = pc.is_in(field("id"), value_set=listed)
    assert parse(matched) == Or((both, null("id")))
    assert parse(~matched) == neither
    skipped = pc.is_in(field("id"), value_set=listed, skip_nulls=True)
    assert parse(skipped) == both
    assert parse(~skipped) == Or((neither, null("id")))


def test_lists() -> None:
    assert parse(field("id").isin([1, 2])) == OneOf(column("id"), (1, 2))
    without = Or((OneOf(column("id"), (1, 2), negated=True), null("id")))
    assert parse(~field("id").isin([1, 2])) == without
    assert parse(field("id").isin([])) == FALSE
    assert parse(~field("id").isin([])) == Or((not_null("id"), null("id")))
    moments = pa.array([NOON_NS, NOON_NS + 1], pa.timestamp("ns", "UTC"))
    assert parse(pc.is_in(field("at"), value_set=moments)) == compared("at", "=", NOON)
    assert parse(field("id").isin(list(range(10_000)))) == OneOf(column("id"), tuple(range(10_000)))


@pytest.mark.parametrize(
    "expression",
    [
        field("id") == field("small"),
        field("id") + 1 == 5,
        field("name").cast(pa.int64()) == 5,
        pc.if_else(field("ok"), True, False),
        pc.is_nan(field("ratio")),
        field("ratio").is_null(nan_is_null=True),
        field("ratio") == pa.scalar(math.nan),
        pc.starts_with(field("name"), "a", ignore_case=True),
        pc.match_like(field("name"), "%a"),
        pc.utf8_length(field("name")) > 3,
        pc.xor(field("ok"), field("ok")),
        pc.field(0) == 5,
        field("id") == "5",
        field("name") == 5,
        pc.scalar(1) == pc.scalar(1),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_refused_or_opaque(expression: pc.Expression) -> None:
    with pytest.raises(UnsupportedConditionError) as caught:
        parse(expression)
    assert caught.value.fix
    assert isinstance(parse(expression, strict=False), Opaque)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (field("nope") == 5, "no column 'nope'"),
        (field("id", "x") == 5, "has no field 'x'"),
        (field("id"), "cannot stand alone"),
        (pc.scalar(5), "is no condition"),
        (field("list") == 5, "Cannot compare column list"),
        (field("id") == True, "with the boolean True"),  # noqa: E712
        (field("day") == 5, "DATE '2026-11-01'"),
        (field("id") == pa.scalar([1]), "list"),
        (field("at") == pa.scalar(2**62, pa.timestamp("s", "UTC")), "years 1 to 9999"),
        (field("day") == pa.scalar(2**30, pa.date32()), "years 1 to 9999"),
    ],
    ids=str,
)
def test_a_wrong_expression_is_refused_in_either_mode(
    expression: pc.Expression, message: str
) -> None:
    for strict in (True, False):
        with pytest.raises(InvalidConditionError, match=message) as caught:
            parse(expression, strict=strict)
        assert not isinstance(caught.value, UnsupportedConditionError)


def test_only_the_part_that_cannot_be_expressed_is_opaque() -> None:
    expression = (field("id") == 5) & ~(pc.is_nan(field("ratio")) | field("ok"))
    assert parse(expression, strict=False) == And(
        (compared("id", "=", 5), Opaque("NOT (is_nan(ratio))"), compared("ok", "=", False))
    )


def test_ten_thousand_terms_are_fine() -> None:
    terms = [field("id") == n for n in range(10_000)]
    assert parse(functools.reduce(operator.or_, terms)) == OneOf(column("id"), tuple(range(10_000)))


def test_deep_nesting_has_a_clear_error() -> None:
    expression = field("ok")
    for _ in range(5_000):
        expression = ~expression
    assert parse(expression) == compared("ok", "=", True)
    for n in range(500):
        expression = (expression & (field("id") > n)) | (field("small") < 0)
    with pytest.raises(UnsupportedConditionError, match="nested too deeply"):
        parse(expression)
    assert isinstance(parse(expression, strict=False), Opaque)
