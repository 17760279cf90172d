"""Filters that Spark pushes down, as plain classes of the same shape and as Spark's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conditions.parsing import column, compared, not_null, null, parse
from deltalakedb.conditions.predicate import (
    And,
    Comparison,
    Constant,
    OneOf,
    Opaque,
    Or,
    StartsWith,
)
from deltalakedb.errors import InvalidConditionError, UnsupportedConditionError

WITH_VALUE = (
    *("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan"),
    *("LessThanOrEqual", "In", "StringStartsWith", "StringEndsWith", "StringContains"),
)


@dataclass(frozen=True)
class WithValue:
    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class WithoutValue:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: Any


def plain() -> SimpleNamespace:
    kinds: dict[str, type] = {name: type(name, (WithValue,), {}) for name in WITH_VALUE}
    kinds |= {name: type(name, (WithoutValue,), {}) for name in ("IsNull", "IsNotNull")}
    return SimpleNamespace(**kinds, Not=Not)


@pytest.fixture(params=["plain classes", "pyspark"])
def spark(request: pytest.FixtureRequest) -> SimpleNamespace | ModuleType:
    if request.param == "plain classes":
        return plain()
    module: ModuleType = pytest.importorskip("pyspark.sql.datasource")
    if not hasattr(module, "EqualTo"):
        pytest.skip("this pyspark pushes no filters down")
    return module


def test_each_filter_becomes_a_leaf(spark: Any) -> None:
    assert parse(spark.EqualTo(("id",), 5)) == compared("id", "=", 5)
    assert parse(spark.EqualTo(("id",), None)) == Constant(value=False)
    assert parse(spark.EqualNullSafe(("id",), 5)) == compared("id", "=", 5)
    assert parse(spark.EqualNullSafe(("id",), None)) == null("id")
    assert parse(spark.GreaterThan(("id",), 5)) == compared("id", ">", 5)
    assert parse(spark.GreaterThanOrEqual(("id",), 5)) == compared("id", ">=", 5)
    assert parse(spark.LessThan(("id",), 5)) == compared("id", "<", 5)
    assert parse(spark.LessThanOrEqual(("id",), 5)) == compared("id", "<=", 5)
    assert parse(spark.In(("id",), (1, 2, None))) == OneOf(column("id"), (1, 2))
    assert parse(spark.IsNull(("id",))) == null("id")
    assert parse(spark.IsNotNull(("id",))) == not_null("id")
    assert parse(spark.StringStartsWith(("name",), "ab")) == StartsWith(column("name"), "ab")


def test_not_is_pushed_down(spark: Any) -> None:
    assert parse(spark.Not(spark.EqualTo(("id",), 5))) == compared("id", "<>", 5)
    assert parse(spark.Not(spark.Not(spark.IsNull(("id",))))) == null("id")
    assert parse(spark.Not(spark.IsNull(("id",)))) == not_null("id")
    assert parse(spark.Not(spark.In(("id",), (1, None)))) == Constant(value=False)
    assert parse(spark.Not(spark.EqualNullSafe(("id",), 5))) == Or(
        (compared("id", "<>", 5), null("id"))
    )


def test_a_list_is_a_conjunction(spark: Any) -> None:
    filters = [spark.IsNotNull(("id",)), spark.GreaterThan(("id",), 5)]
    assert parse(filters) == And((not_null("id"), compared("id", ">", 5)))
    assert parse(tuple(filters[1:])) == compared("id", ">", 5)


def test_values_of_each_type(spark: Any) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert parse(spark.EqualTo(("at",), noon)) == compared("at", "=", noon)
    wall = noon.replace(tzinfo=None)
    assert parse(spark.EqualTo(("wall",), wall)) == compared("wall", "=", wall)
    day = date(2026, 11, 1)
    assert parse(spark.EqualTo(("day",), day)) == compared("Day", "=", day)
    assert parse(spark.EqualTo(("price",), Decimal("1.50"))) == compared(
        "price", "=", Decimal("1.5")
    )
    assert parse(spark.EqualTo(("raw",), b"a")) == compared("raw", "=", b"a")
    assert parse(spark.EqualTo(("ok",), True)) == compared("ok", "=", True)
    assert parse(spark.EqualTo(("a.b",), 1)) == compared("a.b", "=", 1)
    assert parse(spark.EqualTo(("person", "age"), 1)) == Comparison(column("person", "age"), "=", 1)


def test_filters_that_cannot_be_expressed(spark: Any) -> None:
    for kind in (spark.StringEndsWith, spark.StringContains):
        condition = kind(("name",), "ab")
        with pytest.raises(UnsupportedConditionError, match="more than can be planned"):
            parse(condition)
        assert parse(condition, strict=False) == Opaque(repr(condition))
        assert parse([spark.EqualTo(("id",), 5), spark.Not(condition)], strict=False) == And(
            (compared("id", "=", 5), Opaque(f"NOT ({condition!r})"))
        )


def test_wrong_filters_are_refused_in_either_mode(spark: Any) -> None:
    for strict in (True, False):
        with pytest.raises(InvalidConditionError, match="no column 'nope'"):
            parse(spark.EqualTo(("nope",), 5), strict=strict)
        with pytest.raises(InvalidConditionError, match="among the filters"):
            parse([spark.EqualTo(("id",), 5), "id = 5"], strict=strict)


def test_ten_thousand_nots_are_fine(spark: Any) -> None:
    condition = spark.IsNull(("id",))
    for _ in range(10_000):
        condition = spark.Not(condition)
    assert parse(condition) == null("id")
