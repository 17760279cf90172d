"""The keys of files are those of the planned columns in force, whatever happened to the table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.actions import AddFile
from deltalakedb.actions.order_keys import SLOTS, BoundsKeys, width_class
from deltalakedb.actions.planning import plan_of, plan_text
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.delta_log import PROTOCOL, metadata, write_checkpoint, write_commit
from support.lake import Json, add, live_paths, remove, schema_json

PLANNING = "deltalakedb.planningColumns"
SCHEMA = schema_json("id", ("amount", "integer"), ("day", "string"))
# Postgres stores these two in another form: its text cannot hold NUL.
ODD = "a\0b\ue000c"


def file(path: str, low: int, *, day: str | None = "mon", dv: int | None = None) -> Json:
    """A file with bounds of its own."""
    action = add(path, values={"day": day}, dv=dv)
    action["add"]["stats"] = json.dumps(
        {
            "numRecords": 10,
            "minValues": {"id": low, "amount": low * 3},
            "maxValues": {"id": low + 5, "amount": low * 3 + 40},
            "nullCount": {"id": 0, "amount": 0},
        }
    )
    return action


def unpartitioned(path: str, low: int) -> Json:
    """A file of a table without partitions."""
    action = file(path, low)
    action["add"]["partitionValues"] = {}
    return action


def without_statistics(path: str, *, day: str | None) -> Json:
    """A file of which nobody knows the bounds."""
    return add(path, values={"day": day}, rows=None)


def busy_history() -> list[list[Json]]:
    """Files that stay, go, come again, are added twice, and change their deletion vector."""
    return [
        [file(f"f{n}", 100 * n, day=f"day {n}") for n in range(5)],
        [remove("f1"), file("f2", 7000, day="tue"), without_statistics("g", day=None)],
        [file("f1", -50), remove("f3"), file("f3", 300, dv=1)],
        [remove("f3", dv=1), file("f3", 310, dv=2), file(f"x{ODD[2:]}", 5, day=ODD)],
        [remove("f1"), file("h", 2**40, day="")],
    ]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files are many pages."""
    monkeypatch.setattr("deltalakedb.store.store._PLAN_PAGE", 2)
    monkeypatch.setattr("deltalakedb.store.bulk._SORTED_ROWS", 2)
    monkeypatch.setattr("deltalakedb.importing.parsing._BATCH_COMMITS", 1)


def new_table(lake: Lake, history: Sequence[list[Json]] = (), **properties: str) -> Table:
    table = lake.create_table(
        "sales.orders",
        location="file:///lake/orders",
        schema=SCHEMA,
        partition_by=["day"],
        properties={"delta.enableDeletionVectors": "true", **properties},
    )
    for actions in history:
        table.commit(actions, operation="WRITE")
    return table


def check_keys(lake: Lake, table: Table, *, columns: Sequence[str]) -> None:
    """The registry names the planned columns, and each file has the keys of its own bounds."""
    store, table_id = lake.store, table.table_id
    with store.read() as session:
        head = store.head(session, table_id)
        assert head is not None
        found = store.metadata_at(session, table_id, head)
        assert found is not None
        plan = plan_of(found)
        record = store.table_by_name(session, table.name)
        assert record is not None
        assert record.plan == plan_text(plan)
        assert [".".join(column.physical) for column in plan] == list(columns)
        files = {
            (version, action.path, action.dv_id): action
            for version in range(head + 1)
            for action in store.actions_of(session, table_id, version)
            if isinstance(action, AddFile)
        }
        keys = ", ".join(f"key{n}_width, key{n}_low, key{n}_high" for n in range(1, SLOTS + 1))
        rows = session.execute(
            store.dialect.sql(
                f"SELECT added_version, path, dv_id, {keys} FROM dl_active_files "
                "WHERE table_id = :table_id"
            ),
            {"table_id": table_id},
        )
        decode = session.decode_text
        kept = {(row[0], decode(row[1]), decode(row[2])): tuple(row[3:]) for row in rows}
        assert store.check_active_files(session, table_id) == []
    expected: dict[Any, tuple[int | None, ...]] = {}
    for key, action in files.items():
        bounds = BoundsKeys(plan).of(action.stats, action.partition_values)
        numbers = [number for low, high in bounds for number in (width_class(low, high), low, high)]
        expected[key] = (*numbers, *[None] * (3 * (SLOTS - len(plan))))
    assert kept == expected
    assert len(rows) == len(kept)


# --- commits ------------------------------------------------------------------------------


def test_commits_give_each_file_its_keys(lake: Lake) -> None:
    table = new_table(lake, busy_history(), **{PLANNING: "id"})
    check_keys(lake, table, columns=["id", "day"])


def test_a_new_list_of_columns_gives_every_file_new_keys(lake: Lake) -> None:
    table = new_table(lake, busy_history(), **{PLANNING: "id"})
    table.set_properties({PLANNING: "amount, id"})
    check_keys(lake, table, columns=["amount", "id", "day"])
    table.commit([file("later", 9)], operation="WRITE")
    check_keys(lake, table, columns=["amount", "id", "day"])


def test_without_the_list_only_partition_columns_are_left(lake: Lake) -> None:
    table = new_table(lake, busy_history(), **{PLANNING: "amount, id"})
    table.unset_properties([PLANNING])
    check_keys(lake, table, columns=["day"])


def test_a_table_that_plans_nothing_has_no_keys(lake: Lake) -> None:
    table = lake.create_table(
        "sales.orders", location="file:///lake/o", schema=SCHEMA, properties={PLANNING: "id"}
    )
    table.commit([unpartitioned("a", 1), unpartitioned("b", 2)], operation="WRITE")
    check_keys(lake, table, columns=["id"])
    table.unset_properties([PLANNING])
    check_keys(lake, table, columns=[])
    table.set_properties({PLANNING: "amount"})
    check_keys(lake, table, columns=["amount"])


def test_a_new_column_can_be_planned_before_any_file_has_it(lake: Lake) -> None:
    table = new_table(lake, busy_history())
    table.add_columns(schema_json("more"))
    check_keys(lake, table, columns=["day"])
    table.set_properties({PLANNING: "more"})
    check_keys(lake, table, columns=["more", "day"])


def test_a_column_of_another_type_gives_every_file_new_keys(lake: Lake) -> None:
    table = new_table(
        lake, busy_history(), **{PLANNING: "amount", "delta.enableTypeWidening": "true"}
    )
    before = table.snapshot().metadata
    wider = json.loads(schema_json("id", ("amount", "double"), ("day", "string")))
    change = {"fromType": "integer", "toType": "double"}
    wider["fields"][1]["metadata"] = {"delta.typeChanges": [change]}
    body = {
        "id": before.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(wider),
        "partitionColumns": ["day"],
        "configuration": dict(before.configuration),
    }
    table.commit([{"metaData": body}], operation="CHANGE COLUMN")
    check_keys(lake, table, columns=["amount", "day"])


def test_only_the_table_that_changes_is_planned_anew(lake: Lake) -> None:
    table = new_table(lake, busy_history(), **{PLANNING: "id"})
    other = lake.create_table(
        "sales.other", location="file:///lake/p", schema=SCHEMA, properties={PLANNING: "id"}
    )
    other.commit([unpartitioned(f"f{n}", n) for n in range(3)], operation="WRITE")
    table.set_properties({PLANNING: "amount"})
    other.unset_properties([PLANNING])
    check_keys(lake, table, columns=["amount", "day"])
    check_keys(lake, other, columns=[])


def test_a_column_with_an_odd_name_is_not_planned_again_by_every_commit(lake: Lake) -> None:
    schema = schema_json("id", ("d\ue000y", "string"))
    table = lake.create_table(
        "sales.orders", location="file:///lake/o", schema=schema, partition_by=["d\ue000y"]
    )
    table.commit([add("a", values={"d\ue000y": ODD})], operation="WRITE")
    _spoil_keys(lake, table)
    table.set_properties({"owner": "me"})
    assert _first_keys(lake, table) == [1]


# --- rebuild ------------------------------------------------------------------------------


def test_a_rebuild_restores_lost_keys(lake: Lake) -> None:
    table = new_table(lake, busy_history(), **{PLANNING: "id"})
    _spoil_keys(lake, table)
    with lake.store.write() as session:
        assert lake.store.rebuild_active_files(session, table.table_id) == 12
    check_keys(lake, table, columns=["id", "day"])


# --- imports ------------------------------------------------------------------------------


def write_history(folder: Path, *first: Json) -> None:
    write_commit(folder, 0, first)
    for version, actions in enumerate(busy_history(), start=1):
        write_commit(folder, version, actions)


def described(columns: str | None, *, schema: str = SCHEMA) -> Json:
    """A metaData that lists planned columns."""
    configuration = {} if columns is None else {PLANNING: columns}
    return metadata(configuration, schemaString=schema, partitionColumns=["day"])


def test_an_import_gives_each_file_its_keys(lake: Lake, tmp_path: Path) -> None:
    write_history(tmp_path, PROTOCOL, described("id"))
    table = lake.import_table(str(tmp_path), name="t")
    check_keys(lake, table, columns=["id", "day"])
    assert live_paths(table) == sorted(["f0", "f2", "f3", "f4", "g", f"x{ODD[2:]}", "h"])
    assert live_paths(table, 2) == ["f0", "f2", "f3", "f4", "g"]


def test_an_import_without_planned_columns_makes_no_keys(lake: Lake, tmp_path: Path) -> None:
    write_commit(tmp_path, 0, [PROTOCOL, metadata(schemaString=SCHEMA), unpartitioned("a", 1)])
    write_commit(tmp_path, 1, [remove("a"), unpartitioned("b", 1)])
    check_keys(lake, lake.import_table(str(tmp_path), name="t"), columns=[])


@pytest.mark.parametrize("version", [1, 3, 5, 6])
@pytest.mark.parametrize("newest", ["amount", None])
def test_the_newest_metadata_of_a_history_decides(
    lake: Lake, tmp_path: Path, version: int, newest: str | None
) -> None:
    write_history(tmp_path, PROTOCOL, described("id"))
    actions = busy_history()[version - 1] if version <= 5 else []
    write_commit(tmp_path, version, [described(newest), *actions])
    table = lake.import_table(str(tmp_path), name="t")
    check_keys(lake, table, columns=["amount", "day"] if newest else ["day"])


def test_a_schema_of_the_past_that_nobody_can_read_is_passed_over(
    lake: Lake, tmp_path: Path
) -> None:
    write_history(tmp_path, PROTOCOL, described("id", schema='{"type":"strange"}'))
    write_commit(tmp_path, 6, [described("amount")])
    check_keys(lake, lake.import_table(str(tmp_path), name="t"), columns=["amount", "day"])


def test_a_history_that_begins_with_a_checkpoint_has_keys(lake: Lake, tmp_path: Path) -> None:
    state = [PROTOCOL, described("id"), *(file(f"f{n}", n) for n in range(5))]
    write_checkpoint(tmp_path, f"{3:020d}.checkpoint.parquet", state)
    write_commit(tmp_path, 3, [file("f4", 4)])
    write_commit(tmp_path, 4, [remove("f1"), file("f2", 99), file("f9", 9)])
    table = lake.import_table(str(tmp_path), name="t")
    check_keys(lake, table, columns=["id", "day"])
    assert live_paths(table) == ["f0", "f2", "f3", "f4", "f9"]


def test_an_imported_table_goes_on_with_its_keys(lake: Lake, tmp_path: Path) -> None:
    write_history(tmp_path, PROTOCOL, described("id"))
    table = lake.import_table(str(tmp_path), name="t")
    table.commit([remove("f0"), file("new", 12)], operation="WRITE")
    check_keys(lake, table, columns=["id", "day"])


def _spoil_keys(lake: Lake, table: Table) -> None:
    with lake.store.write() as session:
        statement = "UPDATE dl_active_files SET key1_width = 1 WHERE table_id = :table_id"
        session.execute_count(lake.store.dialect.sql(statement), {"table_id": table.table_id})


def _first_keys(lake: Lake, table: Table) -> list[int]:
    statement = "SELECT key1_width FROM dl_active_files WHERE table_id = :table_id"
    with lake.store.read() as session:
        rows = session.execute(lake.store.dialect.sql(statement), {"table_id": table.table_id})
    return [int(row[0]) for row in rows]
