"""A lake with a warehouse: its setting in the catalog, and tables that lie there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidArgumentError,
    SchemaOutdatedError,
    TableExistsError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.storage import open_storage
from deltalakedb.store import Store
from deltalakedb.store.settings import require_warehouse
from deltalakedb.table import Table

from support.lake import SCHEMA, OpenLake, schema_json
from support.s3 import S3Server

ROWS = pa.table({"id": [1, 2], "day": ["a", "b"]})


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"file://{tmp_path}/lake"


@pytest.fixture
def housed(open_lake: OpenLake, here: str) -> Lake:
    """A lake with a warehouse."""
    return open_lake(warehouse=here, mirror="inline")


# --- the setting --------------------------------------------------------------------------


def test_the_catalog_keeps_the_warehouse(open_lake: OpenLake, tmp_path: Path, here: str) -> None:
    plain = open_lake()
    before = plain.warehouse
    assert before is None
    assert open_lake(warehouse=f"{tmp_path}/lake/").warehouse == here
    # Programs that have been connected for longer see it, too.
    assert plain.warehouse == here
    assert open_lake().warehouse == here
    assert open_lake(warehouse=here).warehouse == here


def test_another_warehouse_is_refused_and_can_be_set(open_lake: OpenLake, here: str) -> None:
    lake = open_lake(warehouse=here)
    with pytest.raises(ConfigurationError, match=f"is {here}, and not s3://bucket/lake") as raised:
        open_lake(warehouse="s3a://bucket/lake")
    assert "`lake.set_warehouse('s3://bucket/lake')`" in raised.value.fix
    assert lake.warehouse == here
    table = lake.create_table("a.b", schema=SCHEMA)
    lake.set_warehouse("s3a://bucket/lake")
    assert open_lake(warehouse="s3://bucket/lake/").warehouse == "s3://bucket/lake"
    assert lake.table("a.b").location == table.location == f"{here}/a.db/b"
    lake.set_warehouse(None)
    lake.set_warehouse(None)
    assert lake.warehouse is None


@pytest.mark.parametrize("wrong", ["ftp://host/lake", "s3://b/50%", "s3://b/../c", ""])
def test_a_warehouse_that_cannot_be_is_refused(open_lake: OpenLake, here: str, wrong: str) -> None:
    lake = open_lake(warehouse=here)
    with pytest.raises(ConfigurationError):
        lake.set_warehouse(wrong)
    with pytest.raises(ConfigurationError):
        open_lake(warehouse=wrong)
    assert lake.warehouse == here


def test_a_wrong_warehouse_leaves_no_catalog(tmp_path: Path) -> None:
    for kind in ("sqlite", "duckdb"):
        with pytest.raises(ConfigurationError):
            deltalakedb.connect(f"{kind}:///{tmp_path}/lake.{kind}", warehouse="ftp://host/lake")
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_set_the_first_warehouse_one_wins(store: Store, open_lake: OpenLake) -> None:
    lakes = (
        [open_lake() for _ in range(4)] if store.dialect.engine != "duckdb" else [open_lake()] * 4
    )
    start, refused = threading.Barrier(4), []

    def claim(number: int) -> None:
        start.wait()
        try:
            require_warehouse(lakes[number].store, f"s3://bucket/{number}")
        except ConfigurationError:
            refused.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = set(range(4)) - set(refused)
    assert len(refused) == 3
    assert lakes[0].warehouse == f"s3://bucket/{winner}"


def test_a_catalog_of_an_older_release_asks_for_a_migration(catalog_url: str, here: str) -> None:
    store = Store.open(catalog_url)
    (first,) = (one.version for one in store.migrator.applied() if one.name == "settings")
    assert store.migrator.down(first - 1)[-1].name == "settings"
    store.close()
    for warehouse in (None, here):
        with pytest.raises(SchemaOutdatedError, match=f"schema version {first - 1}"):
            deltalakedb.connect(catalog_url, warehouse=warehouse)
    assert deltalakedb.migrate(catalog_url)[0].partition("_")[2] == "settings"
    with deltalakedb.connect(catalog_url, warehouse=here) as lake:
        assert lake.warehouse == here


# --- tables without a location ------------------------------------------------------------


def test_tables_lie_in_the_warehouse(housed: Lake, here: str, tmp_path: Path) -> None:
    one = housed.create_table("sales.items", schema=SCHEMA)
    two = housed.create_table_as("Items", ROWS)
    three = housed.clone_table("Items", name="sales.copy.1")
    four = housed.create_table("sales.elsewhere", location=str(tmp_path / "x"), schema=SCHEMA)
    one.append(ROWS)
    assert [table.location for table in (one, two, three, four)] == [
        f"{here}/sales.db/items",
        f"{here}/Items",
        f"{here}/sales.db/copy.1",
        f"file://{tmp_path}/x",
    ]
    for table in (one, two, three):
        assert table.snapshot().to_arrow().sort_by("id").to_pylist() == ROWS.to_pylist()
        assert housed.verify(table.name).ok
    assert (tmp_path / "lake" / "sales.db" / "items" / "_delta_log").is_dir()


def test_without_a_warehouse_a_table_needs_a_location(lake: Lake) -> None:
    lake.create_table("a", location="file:///lake/a", schema=SCHEMA)
    calls: list[Callable[[], Table]] = [
        lambda: lake.create_table("t", schema=SCHEMA),
        lambda: lake.create_table("t", schema=SCHEMA, if_not_exists=True),
        lambda: lake.create_table_as("t", ROWS),
        lambda: lake.clone_table("a", name="t"),
    ]
    for create in calls:
        with pytest.raises(ConfigurationError, match="Table 't' has no location") as raised:
            create()
        assert "`lake.set_warehouse('s3://bucket/lake')`" in raised.value.fix
    assert [table.name for table in lake.tables()] == ["a"]


def test_a_name_without_a_place_needs_a_location(housed: Lake, tmp_path: Path) -> None:
    for number, name in enumerate(("a/b", "../a", "a..b", "a:b", "x" * 300)):
        with pytest.raises(ConfigurationError, match="has no place in the warehouse"):
            housed.create_table(name, schema=SCHEMA)
        assert name not in housed
        housed.create_table(name, location=str(tmp_path / f"odd{number}"), schema=SCHEMA)
        assert name in housed
    for wrong in ("", " a"):
        with pytest.raises(InvalidArgumentError):
            housed.create_table(wrong, schema=SCHEMA)
    with pytest.raises(InvalidArgumentError):
        housed.clone_table("t")


def test_a_dropped_table_still_lies_in_its_place(housed: Lake) -> None:
    table = housed.create_table("sales.items", schema=SCHEMA)
    housed.drop_table("sales.items")
    with pytest.raises(TableExistsError, match="There is a Delta table at"):
        housed.create_table("sales.items", schema=SCHEMA)
    # Imported without a name, it gets the one of its place.
    assert housed.import_table(table.location).name == "sales.items"


def test_files_in_the_warehouse_are_converted_by_the_name_of_their_place(
    housed: Lake, tmp_path: Path
) -> None:
    for folder, name in (("lake/raw.db/events", "raw.events"), ("beside/events", "events")):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(ROWS, tmp_path / folder / "a.parquet")
        assert housed.convert_table(str(tmp_path / folder)).name == name


def test_a_warehouse_in_an_object_store(open_lake: OpenLake, s3_server: S3Server) -> None:
    warehouse = f"s3://{s3_server.new_bucket()}/lake"
    options = s3_server.storage_options
    lake = open_lake(
        warehouse=warehouse.replace("s3://", "s3a://"),
        mirror="inline",
        storage_options=options,
    )
    table = lake.create_table_as("sales.größe 1", ROWS)
    assert table.location == f"{warehouse}/sales.db/größe 1"
    assert table.snapshot().to_arrow().num_rows == 2
    log = open_storage(table.location, options)
    assert log.get("_delta_log/00000000000000000000.json")
    assert lake.verify("sales.größe 1").ok


# --- if not exists ------------------------------------------------------------------------


def test_an_existing_table_is_returned(housed: Lake) -> None:
    asked: dict[str, Any] = {
        "schema": schema_json("id", ("day", "string")),
        "partition_by": ["day"],
        "properties": {"owner": "me", "delta.columnMapping.mode": "name"},
        "description": "Orders",
    }
    first = housed.create_table("sales.items", **asked, if_not_exists=True)
    first.append(ROWS)
    first.set_properties({"another": "x"})
    again = housed.create_table("sales.items", **asked, if_not_exists=True)
    assert again.table_id == first.table_id
    assert again.snapshot().to_arrow().num_rows == 2
    fewer = {name: asked[name] for name in ("schema", "partition_by")}
    same = housed.create_table("sales.items", **fewer, location=first.location, if_not_exists=True)
    assert same.version == first.version
    with pytest.raises(TableExistsError):
        housed.create_table("sales.items", **asked)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"schema": schema_json("id")},
            "Its columns: struct<id:long,day:string>; asked for: struct<id:long>",
        ),
        ({"schema": schema_json("id", ("day", "date"))}, "Its columns"),
        ({"schema": schema_json(("day", "string"), "id")}, "Its columns"),
        (
            {
                "schema": pa.schema(
                    [pa.field("id", pa.int64(), nullable=False), ("day", pa.string())]
                )
            },
            "Its columns with all their properties",
        ),
        ({"partition_by": []}, "Its partition columns: ['day']; asked for: []"),
        ({"partition_by": ["id"]}, "Its partition columns"),
        ({"partition_by": [], "cluster_by": ["id"]}, "Its partition columns"),
        ({"properties": {"owner": "you"}}, "Its property 'owner': me; asked for: you"),
        ({"properties": {"delta.appendOnly": "true"}}, "Its property 'delta.appendOnly': None"),
        ({"description": "Others"}, "Its description: None; asked for: Others"),
        ({"location": "file:///elsewhere"}, "Its location"),
    ],
)
def test_another_table_of_that_name_is_refused(
    housed: Lake, change: dict[str, Any], why: str
) -> None:
    asked: dict[str, Any] = {
        "schema": SCHEMA,
        "partition_by": ["day"],
        "properties": {"owner": "me"},
    }
    table = housed.create_table("t", **asked)
    with pytest.raises(TableExistsError, match="is not the one to create") as raised:
        housed.create_table("t", **{**asked, **change}, if_not_exists=True)
    assert raised.value.why.startswith(why)
    assert housed.table("t").refresh() == table.version


def test_clustering_is_compared_too(housed: Lake) -> None:
    housed.create_table("t", schema=SCHEMA, cluster_by=["ID"])
    housed.create_table("t", schema=SCHEMA, cluster_by=["id"], if_not_exists=True)
    for other in ([], ["day"], ["id", "day"]):
        with pytest.raises(TableExistsError, match="clustering columns"):
            housed.create_table("t", schema=SCHEMA, cluster_by=other, if_not_exists=True)


def test_what_is_wrong_by_itself_is_refused_though_the_table_exists(housed: Lake) -> None:
    housed.create_table("t", schema=SCHEMA)
    wrongs: list[dict[str, Any]] = [
        {"schema": "x"},
        {"properties": {"delta.checkpointInterval": "often"}},
    ]
    for wrong in wrongs:
        with pytest.raises(DeltaLakeDbError) as raised:
            housed.create_table("t", **{"schema": SCHEMA, **wrong}, if_not_exists=True)
        assert not isinstance(raised.value, TableExistsError)
    with pytest.raises(CommitRejectedError):
        housed.create_table("u", schema=SCHEMA, partition_by=["no"], if_not_exists=True)
    assert "u" not in housed


def test_a_table_of_another_name_at_the_place_is_no_answer(housed: Lake, here: str) -> None:
    housed.create_table("other", location=f"{here}/t", schema=SCHEMA)
    with pytest.raises(TableExistsError):
        housed.create_table("t", schema=SCHEMA, if_not_exists=True)


def test_of_many_that_create_a_table_all_get_it(housed: Lake) -> None:
    start, ids, errors = threading.Barrier(4), [], []

    def create() -> None:
        start.wait()
        try:
            ids.append(housed.create_table("t", schema=SCHEMA, if_not_exists=True).table_id)
        except Exception as error:  # noqa: BLE001 - listed below
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(ids) == 4
    assert set(ids) == {housed["t"].table_id}
    assert [record.version for record in housed["t"].history()] == [0]


# --- by name ------------------------------------------------------------------------------


def test_a_lake_is_asked_for_its_tables_by_name(housed: Lake) -> None:
    table = housed.create_table("sales.items", schema=SCHEMA)
    assert housed["sales.items"].table_id == table.table_id
    assert housed[table.location].table_id == table.table_id
    assert "sales.items" in housed
    assert table.location in housed
    assert "sales.Items" not in housed
    with pytest.raises(TableNotFoundError, match=r"Did you mean 'sales\.items'"):
        _ = housed["sales.item"]
    for wrong in (1, None, b"x"):
        with pytest.raises(InvalidArgumentError):
            _ = wrong in housed
        with pytest.raises(InvalidArgumentError):
            _ = housed[wrong]  # type: ignore[index]
    housed.drop_table("sales.items")
    assert "sales.items" not in housed
