"""Planned columns that change: keys are only ever used by the plan that they were made by."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conditions.planned_tables import by_id, check_keys, file, found, uses_keys
from deltalakedb.actions.planning import PLANNING_COLUMNS
from deltalakedb.conditions import planned
from deltalakedb.errors import CommitConflictError
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.delta_log import PROTOCOL, metadata, write_checkpoint, write_commit
from support.lake import SCHEMA, Json, OpenLake, add, new_lake_table, remove, schema_json

Change = Callable[[Table], object]
CHANGES: dict[str, Change] = {
    "another column": lambda table: table.set_properties({PLANNING_COLUMNS: "day"}),
    "another slot": lambda table: table.set_properties({PLANNING_COLUMNS: "day, id"}),
    "none": lambda table: table.unset_properties([PLANNING_COLUMNS]),
}
change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
few = pytest.mark.parametrize("few", [0, planned.FEW], ids=["scan", "index"])


def twice(table: Table) -> None:
    """The plan changes, and back: the keys are those of the plan again."""
    table.set_properties({PLANNING_COLUMNS: "day"})
    table.set_properties({PLANNING_COLUMNS: "id"})


# --- while somebody reads -----------------------------------------------------------------


@change
@few
def test_a_plan_that_changes_between_planning_and_listing(
    open_lake: OpenLake,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Table], object],
    few: int,
) -> None:
    """The plan is changed on another connection, after it was read and before it is used."""
    monkeypatch.setattr(planned, "FEW", few)
    reader, writer = open_lake(), open_lake()
    table = by_id(writer)
    snapshot = reader.table(table.name).snapshot()
    keys_of = planned.keys_of
    calls: list[planned.Keys | None] = []

    def hook(*given: Any) -> Any:
        keys = keys_of(*given)
        if not calls:
            change(table)
        calls.append(keys)
        return keys

    monkeypatch.setattr(planned, "keys_of", hook)
    files = snapshot.files("id = 25", columns=["path"])
    assert files["path"].to_pylist() == ["f00002"]
    assert calls[0] is not None, "the old keys were about to be used"
    check_keys(writer, table)


@change
@few
def test_a_plan_that_changes_before_the_first_batch(
    open_lake: OpenLake,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Table], object],
    few: int,
) -> None:
    monkeypatch.setattr(planned, "FEW", few)
    reader, writer = open_lake(), open_lake()
    table = by_id(writer)
    reading = reader.table(table.name).snapshot().iter_files(1, "id BETWEEN 25 AND 35", ["path"])
    change(table)
    assert sorted(b["path"][0].as_py() for b in reading) == ["f00002", "f00003"]


@few
def test_a_plan_that_changes_and_comes_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(planned, "FEW", few)
    table = by_id(lake)
    reading = table.snapshot().iter_files(10, "id = 25", ["path"])
    twice(table)
    assert [b["path"].to_pylist() for b in reading] == [["f00002"]]
    check_keys(lake, table)


def test_nothing_found_is_nothing_where_the_plan_is_the_same(lake: Lake) -> None:
    table = by_id(lake)
    assert found(table, "id = 5000") == []
    assert uses_keys(table, "id = 5000")


def test_a_plan_that_changes_in_the_middle_of_a_listing(open_lake: OpenLake) -> None:
    """What has begun goes on with the keys that it began with."""
    reader, writer = open_lake(), open_lake()
    table = by_id(writer, 3_000)
    reading = reader.table(table.name).snapshot().iter_files(10, "id >= 0", ["path"])
    first = next(reading).num_rows
    table.set_properties({PLANNING_COLUMNS: "day"})
    assert first + sum(batch.num_rows for batch in reading) == 3_000


# --- while somebody writes ----------------------------------------------------------------


def test_a_writer_who_has_not_seen_the_change_writes_no_old_keys(open_lake: OpenLake) -> None:
    one, other = open_lake(), open_lake()
    table = by_id(one)
    stale = other.table(table.name)
    assert stale.version == table.version
    table.set_properties({PLANNING_COLUMNS: "day"})
    with pytest.raises(CommitConflictError):
        stale.commit([file("late", 5)])
    stale.refresh()
    stale.commit([file("late", 5)])
    check_keys(one, table)
    assert found(table, "id = 5") == ["f00000", "late"]


def test_files_that_come_with_the_change_have_the_new_keys(lake: Lake) -> None:
    table = by_id(lake)
    snapshot = table.snapshot()
    body: Json = {
        "id": snapshot.metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": snapshot.metadata.schema_string,
        "partitionColumns": [],
        "configuration": {**snapshot.properties, PLANNING_COLUMNS: "day"},
    }
    table.commit([{"metaData": body}, remove("f00001"), file("new", "x", column="day")])
    check_keys(lake, table)
    assert found(table, "day = 'x' AND id = 15") == ["new"]
    assert found(table, "id = 15", version=1) == ["f00001"]


def test_every_version_is_planned_after_a_change(lake: Lake) -> None:
    table = by_id(lake, planned="")
    table.commit([remove("f00001"), remove("f00002")])
    assert not uses_keys(table, "id = 15")
    table.set_properties({PLANNING_COLUMNS: "id"})
    check_keys(lake, table)
    assert uses_keys(table, "id = 15")
    for version, paths in ((0, []), (1, ["f00001"]), (2, []), (3, [])):
        assert found(table, "id = 15", version) == paths


# --- types --------------------------------------------------------------------------------

WIDER: list[tuple[str, str, list[Any], dict[str, str]]] = [
    # Old and new type, the values of three files, and which of the files a condition finds.
    ("integer", "long", [1, 7, 300], {"= 7": "1", "> 7": "2", "<= 7": "01", "IN (1, 300)": "02"}),
    ("integer", "double", [-5, 7, 300], {"= 7": "1", "< 7": "0", "<= 7.5D": "01", "= 6": ""}),
    ("float", "double", [-0.5, 0.25, 1.5], {"= 0.25D": "1", "< 0.5D": "01"}),
    # As a float 0.7 is 0.699999988079071, and that is what it is as a double.
    ("float", "double", [-0.5, 0.7, 1.5], {"<= 0.69999999D": "01", "< 0.7D": "01"}),
    (
        *("decimal(4,2)", "decimal(10,6)", [1.25, 7.5, 12.75]),
        {"= 7.5": "1", "> 7.499999": "12", "< 7.500001": "01", "< 7.5": "0"},
    ),
    (
        *("date", "timestamp_ntz", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        {"= TIMESTAMP_NTZ '2024-01-02'": "1", "> TIMESTAMP_NTZ '2024-01-02 01:00:00'": "2"},
    ),
]


@pytest.mark.parametrize(("old", "new", "values", "conditions"), WIDER, ids=[w[1] for w in WIDER])
def test_a_planned_column_may_get_a_wider_type(
    lake: Lake, old: str, new: str, values: list[Any], conditions: dict[str, str]
) -> None:
    properties = {PLANNING_COLUMNS: "x", "delta.enableTypeWidening": "true"}
    if new == "timestamp_ntz":
        properties["delta.feature.timestampNtz"] = "supported"
    table = new_lake_table(lake, schema=schema_json(("x", old)), properties=properties)
    table.commit([file(f"f{n}", value, column="x") for n, value in enumerate(values)])
    changes = [{"fromType": old, "toType": new}]
    fields = [
        {"name": "x", "type": new, "nullable": True, "metadata": {"delta.typeChanges": changes}}
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    meta = table.snapshot().metadata
    body = {
        "id": meta.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": dict(meta.configuration),
    }
    table.commit([{"metaData": body}])
    check_keys(lake, table)
    for condition, numbers in conditions.items():
        assert found(table, f"x {condition}") == [f"f{n}" for n in numbers], condition
        assert uses_keys(table, f"x {condition}") is (old != "float")
    # The older version has the older type, and the keys are not in its order.
    literal = f"DATE '{values[1]}'" if old == "date" else values[1]
    assert found(table, f"x = {literal}", version=1) == ["f1"]


# --- catalogs from elsewhere --------------------------------------------------------------


def test_a_catalog_of_an_older_release_is_not_planned_until_all_files_have_keys(
    lake: Lake, engine: Engine
) -> None:
    """The migration gives no keys to the files that are there, though later commits write some."""
    table = by_id(lake)
    lake.store.migrator.down(1)
    lake.store.migrator.up()
    table = lake.table(table.name)
    assert found(table, "id = 25") == ["f00002"]
    assert not uses_keys(table, "id = 25")
    table.commit([file("new", 25)])
    assert found(table, "id = 25") == ["f00002", "new"]
    assert not uses_keys(table, "id = 25")
    table.set_properties({"owner": "me"})
    assert uses_keys(table, "id = 25")
    check_keys(lake, table)
    assert found(table, "id = 25") == ["f00002", "new"]


def test_rebuilding_the_files_makes_their_keys_again(lake: Lake) -> None:
    table = by_id(lake)
    table.commit([remove("f00001")])
    with lake.store.write() as session:
        lake.store.rebuild_active_files(session, table.table_id)
    check_keys(lake, table)
    assert uses_keys(table, "id = 25")
    assert found(table, "id = 15") == []
    assert found(table, "id = 15", version=1) == ["f00001"]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["commits", "checkpoint"])
def test_an_imported_table_has_the_keys_of_its_newest_plan(
    lake: Lake, tmp_path: Path, checkpoint: bool
) -> None:
    first, second = (metadata({PLANNING_COLUMNS: name}) for name in ("day", "id"))
    adds = [file(f"f{n}", n) for n in range(5)]
    # In a checkpoint the metadata may stand anywhere.
    if checkpoint:
        write_checkpoint(tmp_path, f"{0:020d}.checkpoint.parquet", [PROTOCOL, *adds, first])
    else:
        write_commit(tmp_path, 0, [PROTOCOL, first, *adds])
    write_commit(tmp_path, 1, [remove("f2"), file("new", 2)])
    write_commit(tmp_path, 2, [second, file("newer", 2)])
    write_commit(tmp_path, 3, [add("unknown", rows=None)])
    table = lake.import_table(str(tmp_path), name="imported")
    check_keys(lake, table)
    assert uses_keys(table, "id = 2")
    assert found(table, "id = 2") == ["new", "newer", "unknown"]
    assert found(table, "id = 2", version=0) == ["f2"]
    table.commit([file("ours", 2)])
    check_keys(lake, table)
    assert found(table, "id = 2") == ["new", "newer", "ours", "unknown"]


def test_an_imported_partitioned_table_is_planned(lake: Lake, tmp_path: Path) -> None:
    write_commit(tmp_path, 0, [PROTOCOL, metadata(partitionColumns=["day"], schemaString=SCHEMA)])
    days = ["2026-11-01", "2026-11-02", None, ""]
    write_commit(tmp_path, 1, [add(f"f{n}", values={"day": day}) for n, day in enumerate(days)])
    table = lake.import_table(str(tmp_path), name="imported")
    check_keys(lake, table)
    assert found(table, "day = '2026-11-02'") == ["f1"]
    assert found(table, "day > '2026-11-01'") == ["f1"]
    assert found(table, "day IS NULL") == ["f2", "f3"]
    assert found(table, "day = ''") == ["f3"]
