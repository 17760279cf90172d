"""SQL text as a condition: what it becomes, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from conditions.parsing import SCHEMA, column, compared, not_null, null, parse
from deltalakedb.conditions.predicate import (
    And,
    Constant,
    OneOf,
    Opaque,
    Or,
    Predicate,
    StartsWith,
    columns_of,
    conjuncts,
)
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import (
    InvalidArgumentError,
    InvalidConditionError,
    UnsupportedConditionError,
)

TRUE, FALSE = Constant(value=True), Constant(value=False)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
WALL_NOON = datetime(2026, 11, 1, 12)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 5", compared("id", "=", 5)),
        ("id == 5", compared("id", "=", 5)),
        ("ID <> 5", compared("id", "<>", 5)),
        ("id != 5", compared("id", "<>", 5)),
        ("5 < id", compared("id", ">", 5)),
        ("5 >= `id`", compared("id", "<=", 5)),
        ("(id) = (5)", compared("id", "=", 5)),
        ("id = -5", compared("id", "=", -5)),
        ("id = - -5", compared("id", "=", 5)),
        ("id = +5", compared("id", "=", 5)),
        ("id = 5L", compared("id", "=", 5)),
        ("id = CAST('5' AS BIGINT)", compared("id", "=", 5)),
        ("id = 1e3", compared("id", "=", 1000)),
        ("NOT id = 5", compared("id", "<>", 5)),
        ("NOT id < 5", compared("id", ">=", 5)),
        ("! ok", compared("ok", "=", False)),
        ("id <=> 5", compared("id", "=", 5)),
        ("id <=> NULL", null("id")),
        ("NOT id <=> NULL", not_null("id")),
        ("NOT id <=> 5", Or((compared("id", "<>", 5), null("id")))),
        ("id IS DISTINCT FROM 5", Or((compared("id", "<>", 5), null("id")))),
        ("id IN (1, 2, 1)", OneOf(column("id"), (1, 2))),
        ("id IN (1)", compared("id", "=", 1)),
        ("id IN (1, NULL)", compared("id", "=", 1)),
        ("id NOT IN (1, 2)", OneOf(column("id"), (1, 2), negated=True)),
        ("id NOT IN (1, NULL)", FALSE),
        ("id BETWEEN 1 AND 2", And((compared("id", ">=", 1), compared("id", "<=", 2)))),
        ("id NOT BETWEEN 1 AND 2", Or((compared("id", "<", 1), compared("id", ">", 2)))),
        ("id NOT BETWEEN NULL AND 2", compared("id", ">", 2)),
        ("id IS NULL", null("id")),
        ("id IS NOT NULL", not_null("id")),
        ("id = NULL", FALSE),
        ("NOT (id = NULL)", FALSE),
        ("TRUE", TRUE),
        ("false", FALSE),
        ("NULL", FALSE),
        ("NOT NULL", FALSE),
        ("1 = 1 AND id = 5", compared("id", "=", 5)),
        ("'a' > 'b'", FALSE),
        ("ok", compared("ok", "=", True)),
        ("ok <> TRUE", compared("ok", "=", False)),
        ("ok >= FALSE", not_null("ok")),
        ("ok < FALSE", FALSE),
        ("ok IN (TRUE, FALSE)", not_null("ok")),
        ("ok IS TRUE", compared("ok", "=", True)),
        ("ok IS NOT TRUE", Or((compared("ok", "=", False), null("ok")))),
        ("name = 'it''s'", compared("name", "=", "it's")),
        (r"name = 'it\'s'", compared("name", "=", "it's")),
        ('name = "a""b"', compared("name", "=", 'a"b')),
        ("name = 'a -- b; c /* d */'", compared("name", "=", "a -- b; c /* d */")),
        (r"name = r'a\n'", compared("name", "=", r"a\n")),
        ("raw = X'0aFF'", compared("raw", "=", b"\x0a\xff")),
        ("raw = X''", compared("raw", "=", b"")),
        ("`a.b` > 1", compared("a.b", ">", 1)),
        ("day = '2026-11-01'", compared("Day", "=", date(2026, 11, 1))),
        ("day > DATE '2026-11-01'", compared("Day", ">", date(2026, 11, 1))),
        ("day > CAST('2026-11-01' AS DATE)", compared("Day", ">", date(2026, 11, 1))),
        ("at > TIMESTAMP '2026-11-01 12:00:00'", compared("at", ">", NOON)),
        ("at > '2026-11-01T14:00:00+02:00'", compared("at", ">", NOON)),
        ("at > DATE '2026-11-01'", compared("at", ">", NOON.replace(hour=0))),
        ("wall = '2026-11-01 12:00:00'", compared("wall", "=", WALL_NOON)),
        ("wall = TIMESTAMP_NTZ '2026-11-01 12:00:00'", compared("wall", "=", WALL_NOON)),
    ],
)
def test_a_condition_becomes_a_tree(text: str, expected: Predicate) -> None:
    assert parse(text) == expected
    assert parse(text, strict=False) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id > 5.5", compared("id", ">", 5)),
        ("id >= 5.5", compared("id", ">", 5)),
        ("id < 5.5", compared("id", "<=", 5)),
        ("id < -5.5", compared("id", "<=", -6)),
        ("id = 5.5", FALSE),
        ("id <> 5.5", not_null("id")),
        ("NOT id = 5.5", not_null("id")),
        ("id = 5.0", compared("id", "=", 5)),
        ("id IN (5, 5.5)", compared("id", "=", 5)),
        ("id NOT IN (5.5)", not_null("id")),
        ("small = 127", compared("small", "=", 127)),
        ("small = 128", FALSE),
        ("small <> 128", not_null("small")),
        ("small < 128", not_null("small")),
        ("small > 128", FALSE),
        ("small > -129", not_null("small")),
        ("small <= -129", FALSE),
        ("NOT small <= -129", not_null("small")),
        ("id < 99999999999999999999", not_null("id")),
        ("price > 1.555", compared("price", ">", Decimal("1.55"))),
        ("price = 1.555", FALSE),
        ("price = 1.5", compared("price", "=", Decimal("1.5"))),
        ("price = 2.5BD", compared("price", "=", Decimal("2.5"))),
        ("price = 1.1D", compared("price", "=", Decimal("1.1"))),
        ("price < 10000", not_null("price")),
        ("wide = 0.1", compared("wide", "=", Decimal("0.1"))),
        ("ratio = 0.1", compared("ratio", "=", 0.1)),
        ("ratio > 5", compared("ratio", ">", 5.0)),
        ("ratio = -0.0", compared("ratio", "=", 0.0)),
        ("single = 0.1", compared("single", "=", 0.1)),
        ("single = 0.1F", compared("single", "=", 0.10000000149011612)),
    ],
)
def test_numbers_are_compared_exactly(text: str, expected: Predicate) -> None:
    assert parse(text) == expected


def test_values_have_the_type_of_their_column() -> None:
    typed: dict[str, type[Any]] = {
        "id = 5.0": int,
        "price = 5": Decimal,
        "ratio = 5": float,
        "ok = true": bool,
    }
    for text, kind in typed.items():
        value = getattr(parse(text), "value", None)
        assert type(value) is kind


def test_times_without_a_zone_are_in_the_zone_that_is_asked_for() -> None:
    zone = timezone(timedelta(hours=2))
    text = "at = '2026-11-01 14:00:00'"
    assert parse_where(text, SCHEMA, [], zone=zone) == compared("at", "=", NOON)
    text = "at = '2026-11-01 12:00:00Z'"
    assert parse_where(text, SCHEMA, [], zone=zone) == compared("at", "=", NOON)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name LIKE 'abc%'", StartsWith(column("name"), "abc")),
        ("name LIKE 'abc%%'", StartsWith(column("name"), "abc")),
        ("name NOT LIKE 'abc%'", StartsWith(column("name"), "abc", negated=True)),
        ("NOT name NOT LIKE 'abc%'", StartsWith(column("name"), "abc")),
        ("name LIKE 'abc'", compared("name", "=", "abc")),
        ("name NOT LIKE 'abc'", compared("name", "<>", "abc")),
        (r"name LIKE 'a\%b%'", StartsWith(column("name"), "a%b")),
        (r"name LIKE '100\%'", compared("name", "=", "100%")),
        ("name LIKE 'a!%b!!%' ESCAPE '!'", StartsWith(column("name"), "a%b!")),
        ("name NOT LIKE 'a!_%' ESCAPE '!'", StartsWith(column("name"), "a_", negated=True)),
        ("name LIKE '%'", not_null("name")),
        ("name NOT LIKE '%'", FALSE),
        ("name LIKE NULL", FALSE),
        ("startswith(name, 'abc')", StartsWith(column("name"), "abc")),
        ("NOT startswith(name, 'abc')", StartsWith(column("name"), "abc", negated=True)),
        ("startswith(name, '')", not_null("name")),
        ("startswith(name, NULL)", FALSE),
    ],
)
def test_patterns_that_are_prefixes(text: str, expected: Predicate) -> None:
    assert parse(text) == expected


def test_columns_are_found_at_any_depth_with_their_physical_names() -> None:
    assert columns_of(parse("PERSON.Address.zip = 5")) == (column("person", "address", "Zip"),)
    assert columns_of(parse("person.address.`x.y` = 'a'")) == (column("person", "address", "x.y"),)
    mapped = column("MAPPED")
    assert (mapped.path, mapped.physical, mapped.is_partition) == (("mapped",), ("col-1",), False)
    assert column("day").is_partition
    assert not column("id").is_partition


def test_columns_with_many_parts_may_be_null() -> None:
    assert parse("person IS NULL") == null("person")
    assert parse("list IS NOT NULL AND map IS NULL") == And((not_null("list"), null("map")))


def test_columns_and_conjuncts_of_a_condition() -> None:
    predicate = parse("id = 1 AND (name = 'a' OR id > 5) AND ok")
    assert [str(c) for c in columns_of(predicate)] == ["id", "name", "ok"]
    assert len(conjuncts(predicate)) == 3
    assert conjuncts(parse("id = 1")) == (parse("id = 1"),)
    assert conjuncts(TRUE) == ()
    assert conjuncts(FALSE) == (FALSE,)


def test_values_of_a_chain_become_one_list() -> None:
    assert parse("id = 1 OR name = 'a' OR id IN (2, 3)") == Or(
        (OneOf(column("id"), (1, 2, 3)), compared("name", "=", "a"))
    )
    assert parse("id <> 1 AND id <> 2") == OneOf(column("id"), (1, 2), negated=True)
    assert parse("id = 1 AND id = 2") == And((compared("id", "=", 1), compared("id", "=", 2)))


# --- refusals -----------------------------------------------------------------------------

ALWAYS_WRONG = [
    ("", "empty"),
    ("  \n ", "empty"),
    ("id = 1; DROP TABLE t", "not one condition"),
    ("id = 1;", "not one condition"),
    ("; id = 1", "not one condition"),
    ("id = 1 -- OR TRUE", "comment"),
    ("id = 1 /* x */ OR TRUE", "comment"),
    ("/*+ BROADCAST(t) */ id = 1", "comment"),
    ("nope = 1", "no column 'nope'. The columns are: id, small"),
    ("person.nope = 1", "The fields of 'person' are: address, age"),
    ("a.b = 1", "`a.b` in backticks"),
    ("id.x = 1", "'id' is of type long, which has no field 'x'"),
    ("list.element = 1", "has no field 'element'"),
    ("id", "column id cannot stand alone"),
    ("person", "column person cannot stand alone"),
    ("person = 1", "cannot compare column person"),
    ("list IN (1)", "cannot compare column list"),
    ("map = NULL", "cannot compare column map"),
    ("id = TRUE", "column id of type long with the boolean True. It is no number"),
    ("id = DATE '2026-11-01'", "with the date 2026-11-01"),
    ("ok = 1", "column ok of type boolean with the number 1"),
    ("day = 5", "Write a value such as DATE '2026-11-01'"),
    ("at = 5", "Write a value such as TIMESTAMP"),
    ("raw = 5", "Write a value such as X'0AFF'"),
    ("raw = X'0_1'", "X'0_1'"),
    (r"name LIKE 'a!b' ESCAPE '!'", "escape character"),
    (r"name LIKE 'a!' ESCAPE '!'", "escape character"),
    ("name LIKE 'a' ESCAPE 'ab'", "one character"),
    ("name = '\ud800'", "surrogate"),
    (f"id = {'9' * 5000}", "Cannot read the number"),
]
DOUBTFUL = [
    ("id = small", "more than can be planned"),
    ("id = (SELECT 1)", "more than can be planned"),
    ("id IN (SELECT 1)", "more than can be planned"),
    ("EXISTS (SELECT 1)", "more than can be planned"),
    ("id IN (small)", "more than can be planned"),
    ("id IN ()", "more than can be planned"),
    ("length(name) > 3", "more than can be planned"),
    ("id + 1 = 5", "more than can be planned"),
    ("id = 1 + 1", "more than can be planned"),
    ("CAST(id AS STRING) = '5'", "more than can be planned"),
    ("list[0] = 1", "more than can be planned"),
    ("CASE WHEN ok THEN TRUE ELSE FALSE END", "more than can be planned"),
    ("row_number() OVER (ORDER BY id) = 1", "more than can be planned"),
    ("id = :p", "more than can be planned"),
    ("id = ?", "more than can be planned"),
    ("id = ${p}", "more than can be planned"),
    ("(id, small) = (1, 2)", "more than can be planned"),
    ("(id = 1) = TRUE", "more than can be planned"),
    ("id BETWEEN SYMMETRIC 2 AND 1", "more than can be planned"),
    ("name ILIKE 'a%'", "more than can be planned"),
    ("name RLIKE 'a'", "more than can be planned"),
    ("name LIKE '%a'", "wildcard"),
    ("name LIKE 'a_%'", "wildcard"),
    ("name LIKE 'a%b'", "wildcard"),
    ("name = 'a' 'b'", "more than can be planned"),
    ("name = 5", "column name of type string with the number 5"),
    ("id = '5'", "column id of type long with the text '5'"),
    ("ok = 'true'", "column ok of type boolean with the text 'true'"),
    ("raw = 'a'", "column raw of type binary with the text 'a'"),
    ("day = 'yesterday'", "not of the form yyyy-MM-dd"),
    ("day = '2026-11-01 12:00:00'", "not of the form yyyy-MM-dd"),
    ("day = TIMESTAMP '2026-11-01 12:00:00'", "time is not compared with dates"),
    ("at = 'noon'", "not of the form"),
    ("wall = '2026-11-01 12:00:00+02:00'", "has a zone"),
    ("id LIKE '5%'", "column id is like a pattern"),
    ("ratio = double('NaN')", "Cannot convert 'NaN'"),
    ("ratio = 1e400", "finite"),
    ("id = 1e300", "stands for several whole numbers"),
    ("wide = 1.5D", "not exact enough"),
    ("price = CAST(1.555 AS DECIMAL(5,2))", "digits after the point"),
    ("small = CAST(300 AS TINYINT)", "outside -128 to 127"),
    ("id = 0x1F", "may stand for a number or for bytes"),
    ("raw = X'0G'", "Cannot understand"),
    ("id =", "Cannot understand"),
    ("id = 1 AND", "Cannot understand"),
    ("id 1", "Cannot understand"),
    ("id = 1 id = 2", "Cannot understand"),
    ("id = 'a", "Cannot understand"),
    ("id = 1)", "Cannot understand"),
    ("id = 1, small = 2", "Cannot understand"),
    ("SELECT 1", "Cannot understand"),
    ("id = 1 LIMIT 5", "Cannot understand"),
    ("id = 1 UNION SELECT 1", "Cannot understand"),
    ("DROP TABLE t", "Cannot understand"),
    ("*", "more than can be planned"),
]


@pytest.mark.parametrize(("text", "message"), ALWAYS_WRONG)
def test_a_wrong_condition_is_refused_in_either_mode(text: str, message: str) -> None:
    for strict in (True, False):
        with pytest.raises(InvalidConditionError) as caught:
            parse(text, strict=strict)
        assert message.lower() in str(caught.value).lower()
        assert caught.value.fix
        assert not isinstance(caught.value, UnsupportedConditionError)


@pytest.mark.parametrize(("text", "message"), DOUBTFUL)
def test_what_cannot_be_expressed_is_refused_or_opaque(text: str, message: str) -> None:
    with pytest.raises(UnsupportedConditionError) as caught:
        parse(text)
    assert message.lower() in str(caught.value).lower()
    assert caught.value.fix
    assert isinstance(parse(text, strict=False), Opaque)


def test_only_the_part_that_cannot_be_expressed_is_opaque() -> None:
    predicate = parse("id = 5 AND NOT (length(name) > 3 OR ok)", strict=False)
    assert predicate == And(
        (compared("id", "=", 5), Opaque("NOT (LENGTH(name) > 3)"), compared("ok", "=", False))
    )


@pytest.mark.parametrize("where", [5, b"id = 5", {"id": 5}, object()])
def test_other_forms_are_refused(where: object) -> None:
    with pytest.raises(InvalidArgumentError):
        parse(where, strict=False)


@pytest.mark.parametrize("where", [[5], ["id = 5"]])
def test_lists_of_anything_but_filters_are_refused(where: object) -> None:
    with pytest.raises(InvalidConditionError):
        parse(where, strict=False)


def test_no_condition_is_true() -> None:
    assert parse(None) == TRUE
    assert parse([]) == TRUE


# --- size ---------------------------------------------------------------------------------


def test_ten_thousand_terms_are_fine() -> None:
    terms = [f"id = {n} AND small < {n % 100}" for n in range(10_000)]
    predicate = parse(" OR ".join(terms))
    assert isinstance(predicate, Or)
    assert len(predicate.parts) == 10_000
    assert parse(" OR ".join(f"id = {n}" for n in range(10_000))) == OneOf(
        column("id"), tuple(range(10_000))
    )
    assert parse(f"id IN ({', '.join(map(str, range(10_000)))})") == OneOf(
        column("id"), tuple(range(10_000))
    )


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "id = 1" + ")" * 10_000,
        "NOT " * 10_000 + "ok",
        "id = " + "- " * 10_000 + "1",
        "id = " + "(" * 10_000 + "1" + ")" * 10_000,
    ],
)
def test_deep_nesting_has_a_clear_error(text: str) -> None:
    with pytest.raises(UnsupportedConditionError, match="nested too deeply"):
        parse(text)
    assert parse(text, strict=False) == Opaque(text)


def test_some_nesting_is_fine() -> None:
    text = "id = 0"
    for n in range(1, 9):
        text = f"({text} {'AND' if n % 2 else 'OR'} id > {n})"
    assert len(columns_of(parse(text))) == 1
