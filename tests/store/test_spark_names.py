"""The table that Spark calls by a name: without case, and with its schema `default`."""

from __future__ import annotations

import pytest

from deltalakedb.errors import AmbiguousTableError, InvalidArgumentError
from deltalakedb.store import Store
from deltalakedb.store.table_lookup import find_table_by_spark_name

from support.store import new_table


def find(store: Store, name: str) -> str | None:
    with store.read() as session:
        record = find_table_by_spark_name(store, session, name)
    return None if record is None else record.name


def test_a_name_is_that_of_one_table(store: Store) -> None:
    for name in ("t", "sales.orders", "Sales.Items", "default.u", "a.b.c", "Größe.Äpfel"):
        new_table(store, name)
    asked = {
        "sales.orders": "sales.orders",
        "SALES.orders": "sales.orders",
        "sales.items": "Sales.Items",
        "default.t": "t",
        "Default.T": "t",
        "t": "t",
        "T": "t",
        "default.u": "default.u",
        "u": "default.u",
        "größe.äpfel": "Größe.Äpfel",
        "GRÖSSE.ÄPFEL": None,
        "orders": None,
        "sales.t": None,
        "a.b.c": None,
        "b.c": None,
        "sales": None,
        ".t": None,
        "t.": None,
        "default.": None,
        "sales.%": None,
        "sales.order_": None,
    }
    assert {name: find(store, name) for name in asked} == asked


def test_the_exact_name_goes_first(store: Store) -> None:
    for name in ("sales.Orders", "sales.orders", "T"):
        new_table(store, name)
    assert find(store, "sales.orders") == "sales.orders"
    assert find(store, "sales.Orders") == "sales.Orders"
    new_table(store, "t")
    assert find(store, "t") == "t"
    assert find(store, "default.T") == "T"


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        (("sales.Orders", "SALES.orders"), "sales.orders"),
        (("t", "default.t"), "default.t"),
        (("t", "default.t"), "t"),
        (("T", "Default.T"), "default.t"),
    ],
)
def test_a_name_of_two_tables_is_refused(store: Store, names: tuple[str, str], asked: str) -> None:
    for name in (*names, "another"):
        new_table(store, name)
    with pytest.raises(AmbiguousTableError) as raised:
        find(store, asked)
    assert all(repr(name) in raised.value.what for name in names)
    assert "another" not in str(raised.value)


@pytest.mark.parametrize("name", ["", " ", None, 1])
def test_what_is_no_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        find(store, name)
