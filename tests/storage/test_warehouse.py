"""Places of tables in a warehouse, and the names of these places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.storage import (
    local_path,
    name_of,
    normalise_location,
    place_of,
    table_location,
    warehouse_location,
)

DISK, STORE = "file:///data/the%20lake", "s3://bucket/lake"
WAREHOUSES = (
    DISK,
    STORE,
    "s3://bucket",
    "file:///",
    "abfss://c@account.dfs.core.windows.net/l",
    "gs://b/x",
)
NAMES = st.text(max_size=40) | st.from_regex(
    r"[\w .'äß漢-]{1,12}(\.[\w .'äß漢-]{1,12}){0,3}", fullmatch=True
)


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("orders", "orders"),
        ("sales.orders", "sales.db/orders"),
        ("Sales.Orders", "Sales.db/Orders"),
        ("sales.orders.2026", "sales.db/orders.2026"),
        ("default.orders", "default.db/orders"),
        ("sales.db", "sales.db/db"),
        ("_tmp", "_tmp"),
        ("bücher.größe", "bücher.db/größe"),
        ("my sales.new orders", "my sales.db/new orders"),
        ("it's.(a) table & more!", "it's.db/(a) table & more!"),
    ],
)
def test_the_place_of_a_name(name: str, below: str) -> None:
    assert place_of(STORE, name) == f"{STORE}/{below}"
    on_disk = local_path(place_of(DISK, name))
    assert on_disk == Path("/data/the lake") / below
    for warehouse in (DISK, STORE):
        assert name_of(warehouse, place_of(warehouse, name)) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a.", ".a", "a..b", "a.b.", "a/b", "../a", "a/../b", "a\\b", "/a"),
        *("a\tb", "a\nb", "a\0b", "a. b", "a .b", " a", "\ud800", "\u202e"),
        *(
            "50%",
            "a%20b",
            "a#b",
            "a?b",
            "a:b",
            "a*",
            "[a]",
            "{a,b}",
            "a=b",
            "~",
            "a|b",
            '"a"',
            "`a`",
        ),
        *("_delta_log", "a._delta_log", "_DELTA_LOG.a"),
        *("x" * 256, f"{'x' * 253}.a", f"a.{'ü' * 128}"),
    ],
)
@pytest.mark.parametrize("warehouse", [DISK, STORE])
def test_a_name_that_is_no_folder_has_no_place(warehouse: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="has no place in the warehouse") as raised:
        place_of(warehouse, name)
    assert "Pass a location" in str(raised.value)


@pytest.mark.parametrize("name", ["x" * 255, f"{'x' * 252}.{'y' * 255}", f"a.{'ü' * 127}"])
def test_the_longest_names_have_a_place(name: str, tmp_path: Path) -> None:
    warehouse = warehouse_location(str(tmp_path))
    folder = local_path(place_of(warehouse, name))
    assert folder is not None
    folder.mkdir(parents=True)
    assert name_of(warehouse, str(folder)) == name


@given(st.sampled_from(WAREHOUSES), NAMES)
@example("file:///", "a")
@example("s3://bucket", "a.b")
def test_every_place_has_the_name_that_it_is_the_place_of(warehouse: str, name: str) -> None:
    try:
        place = place_of(warehouse, name)
    except ConfigurationError:
        return
    assert name_of(warehouse, place) == name
    # It is a location as it stands, below the warehouse.
    assert table_location(place) == place
    assert place.startswith(warehouse)
    assert ".." not in place.split("/")


@given(st.sampled_from(WAREHOUSES), NAMES, NAMES)
def test_two_names_have_two_places(warehouse: str, one: str, other: str) -> None:
    assume(one != other)
    try:
        assert place_of(warehouse, one) != place_of(warehouse, other)
    except ConfigurationError:
        return


@given(
    st.sampled_from(WAREHOUSES),
    st.lists(st.from_regex(r"[\w ä-]{1,8}", fullmatch=True), max_size=4),
)
def test_each_folder_below_the_warehouse_is_a_part_of_the_name(
    warehouse: str, folders: list[str]
) -> None:
    assume(all(folder == folder.strip() for folder in folders))
    location = normalise_location("/".join([warehouse.rstrip("/"), *folders]))
    expected = ".".join(folders) or None
    assert name_of(warehouse, location) == expected


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("s3://bucket/lake/orders", "orders"),
        ("s3a://bucket/lake/sales.db/orders", "sales.orders"),
        ("s3n://BUCKET/lake/sales.db/orders/", "sales.orders"),
        ("s3://bucket/lake/sales/orders", "sales.orders"),
        ("s3://bucket/lake/a/b/c", "a.b.c"),
        ("s3://bucket/lake/a.db/b/c", "a.b.c"),
        ("s3://bucket/lake/a.db", "a.db"),
        ("s3://bucket/lake/.db/a", ".db.a"),
        ("s3://bucket/lake/a.db/b.c", "a.b.c"),
        ("s3://bucket/lake/day=1", "day=1"),
        ("s3://bucket/lake/Sales.db/Orders", "Sales.Orders"),
    ],
)
def test_the_name_of_a_place(location: str, name: str) -> None:
    assert name_of(STORE, location) == name


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("file:/data/the%20lake/sales.db/orders", "sales.orders"),
        ("file:///data/the%20lake/a%20b", "a b"),
        ("file://localhost/data/the%20lake/50%25", "50%"),
        ("/data/the lake/x/../b%c", "b%c"),
        ("/data/the lake//x", "x"),
    ],
)
def test_the_name_of_a_place_on_a_disk(location: str, name: str) -> None:
    assert name_of(DISK, location) == name


@pytest.mark.parametrize(
    ("warehouse", "location"),
    [
        (STORE, "s3://bucket/lake"),
        (STORE, "s3a://bucket/lake/"),
        (STORE, "s3://bucket/lakes/orders"),
        (STORE, "s3://bucket/Lake/orders"),
        (STORE, "s3://other/lake/orders"),
        (STORE, "gs://bucket/lake/orders"),
        (STORE, "file:///lake/orders"),
        (STORE, "hdfs://name/lake/orders"),
        (STORE, "s3://bucket/other%20lake/orders"),
        ("s3://bucket", "s3://bucket"),
        (DISK, "file:/data/the%20lake"),
        (DISK, "/data/the lake/.."),
        (DISK, "/data/the lake/../x"),
        (DISK, "/data/the lake 2/x"),
        (DISK, "/data/the%20lake/x"),
        (DISK, "s3://data/the lake/x"),
        ("file:///", "/"),
    ],
)
def test_a_location_elsewhere_has_no_name(warehouse: str, location: str) -> None:
    assert name_of(warehouse, location) is None


@pytest.mark.parametrize(
    "below", ["a//b", "/a", "../a", "a/../../b", "./a", "a/.", "a%20b", "a%2Fb", "a#b", "a?b=c"]
)
def test_a_key_that_engines_read_differently_is_refused(below: str) -> None:
    with pytest.raises(ConfigurationError):
        name_of(STORE, f"{STORE}/{below}")


def test_what_is_no_location_is_refused() -> None:
    for location in ("", " ", None, 1):
        with pytest.raises(InvalidArgumentError):
            name_of(STORE, location)  # type: ignore[arg-type]


def test_the_location_of_a_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert warehouse_location("s3a://bucket/lake/") == STORE
    assert warehouse_location("lake") == f"file://{tmp_path}/lake"
    for wrong in ("ftp://host/lake", "s3://", "s3://b/50%", "s3://b/../c", "file://host/x"):
        with pytest.raises(ConfigurationError):
            warehouse_location(wrong)
