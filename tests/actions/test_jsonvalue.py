from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from deltalakedb.actions.jsonvalue import MAX_DEPTH, dumps, dumps_ordered, freeze, loads
from deltalakedb.errors import InvalidActionError


def test_numbers_are_read_exactly() -> None:
    value = loads('{"a": 0.1, "b": 12345678901234567890123, "c": 1e400}')
    assert value == {"a": Decimal("0.1"), "b": 12345678901234567890123, "c": Decimal("1e400")}
    assert isinstance(value["a"], Decimal)
    assert isinstance(value["b"], int)


def test_bytes_are_read_as_utf8() -> None:
    assert loads('{"ü": "日本"}'.encode()) == {"ü": "日本"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("NaN", "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1', "line 1"),
        ("{} {}", "Extra data"),
        ("", "Expecting value"),
        ('"\\ud800"', "surrogate"),
        ('{"\\uDC00": 1}', "surrogate"),
        ('"\ud800"', "surrogate"),
        (b'"\xff"', "UTF-8"),
        ("[" * 100_000, "nested"),
        ("[" * 400 + "]" * 400, "nested"),
        ("1" * 5000, "digits"),
        ("1e99999999999999999999999", "exponent"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_the_reason(text: str | bytes, word: str) -> None:
    with pytest.raises(InvalidActionError, match=word):
        loads(text)


def test_a_surrogate_pair_is_one_character() -> None:
    assert loads('"\\ud83d\\ude00"') == "😀"


def test_nesting_up_to_the_limit_is_accepted() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert dumps(loads(text)) == text


def test_many_brackets_that_are_not_nested_are_no_depth() -> None:
    assert len(loads("[" + ",".join(["[]"] * 1000) + "]")) == 1000


def test_of_duplicate_keys_the_last_wins() -> None:
    assert loads('{"a": 1, "a": 2}') == {"a": 2}


def test_objects_are_written_sorted_and_compact() -> None:
    assert dumps({"b": 1, "a": [{"z": None, "y": True}]}) == '{"a":[{"y":true,"z":null}],"b":1}'


def test_text_is_written_unescaped_except_where_json_demands_it() -> None:
    assert dumps('é\u2028"\\\n\x01/') == '"é\u2028\\"\\\\\\n\\u0001/"'


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1.10", "1.1"),
        ("1.1", "1.1"),
        ("100.0", "100.0"),
        ("1e2", "100.0"),
        ("0.0", "0.0"),
        ("-0.0", "0.0"),
        ("0e500", "0.0"),
        ("-12.50", "-12.5"),
        ("0.0000001", "0.0000001"),
        ("0.00000001", "1e-8"),
        ("-0.0000000123", "-1.23e-8"),
        ("999999999999999999999.0", "999999999999999999999.0"),
        ("1e21", "1e21"),
        ("1.5e300", "1.5e300"),
        ("12345678901234567890.12345678901234567890", "12345678901234567890.1234567890123456789"),
    ],
)
def test_a_number_has_one_form(number: str, text: str) -> None:
    assert dumps(Decimal(number)) == text
    assert dumps([Decimal(number)]) == f"[{text}]"


def test_a_float_counts_as_its_shortest_decimal() -> None:
    assert dumps([0.1, 1e16, 1e-7, 1.0]) == "[0.1,10000000000000000.0,0.0000001,1.0]"


def test_an_object_with_a_fraction_is_sorted_and_escaped_like_any_other() -> None:
    assert dumps({"b": [0.5, True, None, 7], 'a"': "é\n"}) == (
        '{"a\\"":"é\\n","b":[0.5,true,null,7]}'
    )


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        {1: 2},
        {"a": {2, 3}},
        [b"x"],
        "\ud800",
        {"\ud800": 1},
        {"a": 0.5, "\ud800": 1},
        [10**5000],
        object(),
    ],
)
def test_what_json_cannot_hold_is_not_written(value: Any) -> None:
    with pytest.raises(InvalidActionError):
        dumps(value)


def test_a_cycle_gives_an_error_and_not_a_crash() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    for function in (dumps, freeze):
        with pytest.raises(InvalidActionError, match="nested"):
            function(cycle)


def test_ordered_output_keeps_the_order_given() -> None:
    assert dumps_ordered({"b": 1, "a": 0.5}) == '{"b":1,"a":0.5}'
    assert dumps_ordered({"b": 1, "a": 2}, plain=True) == '{"b":1,"a":2}'


def test_ordered_output_refuses_foreign_objects() -> None:
    with pytest.raises(InvalidActionError):
        dumps_ordered({"a": object()}, plain=True)


def test_freeze_gives_what_loads_would_give() -> None:
    given = {"a": (1, 2.5, {"b": True}), "n": None, "d": Decimal("1.10")}
    frozen = freeze(given)
    assert frozen == {"a": [1, Decimal("2.5"), {"b": True}], "n": None, "d": Decimal("1.10")}
    assert loads(dumps(frozen)) == frozen


def test_freeze_copies() -> None:
    inner = [1]
    frozen = freeze({"a": inner})
    inner.append(2)
    assert frozen == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {2}]}, r"commitInfo\.a\[1\]"),
        ({"a": {"b": float("nan")}}, r"commitInfo\.a\.b"),
        ({"a": {3: 1}}, r"commitInfo\.a"),
        ({"a": b"x"}, r"commitInfo\.a"),
        ({"a": Decimal("Infinity")}, r"commitInfo\.a"),
    ],
)
def test_freeze_names_the_path_to_what_it_refuses(value: Any, path: str) -> None:
    with pytest.raises(InvalidActionError, match=path):
        freeze(value, path="commitInfo")


def test_freeze_keeps_a_decimal_larger_than_any_float() -> None:
    assert freeze(Decimal("1e400")) == Decimal("1e400")
