"""Planned tables for tests: files with bounds, what a condition finds, whether keys are right."""

import json
from typing import Any

from deltalakedb.actions.order_keys import FileKeys
from deltalakedb.actions.planning import PLANNING_COLUMNS, plan_of
from deltalakedb.conditions.planned import keys_of
from deltalakedb.conditions.where import predicate_of
from deltalakedb.lake import Lake
from deltalakedb.store.rows import decode_map
from deltalakedb.table import Table

from support.lake import Json, add, new_lake_table

KEYS = ", ".join(f"key{n}_{part}" for n in (1, 2, 3) for part in ("width", "low", "high"))


def file(
    path: str, low: Any = None, high: Any = None, *, column: str = "id", **options: Any
) -> Json:
    """A file whose statistics say where one column lies."""
    made = add(path, rows=None, **options)
    if low is not None:
        bounds = {"minValues": {column: low}, "maxValues": {column: low if high is None else high}}
        made["add"]["stats"] = json.dumps({"numRecords": 2, **bounds, "nullCount": {column: 0}})
    return made


def by_id(lake: Lake, count: int = 20, *, planned: str = "id", **options: Any) -> Table:
    """A table planned by id; file `f<n>` has the ids from 10n to 10n + 9."""
    properties = {PLANNING_COLUMNS: planned} if planned else {}
    table = new_lake_table(lake, properties=properties, **options)
    table.commit([file(f"f{n:05}", 10 * n, 10 * n + 9) for n in range(count)])
    return table


def found(table: Table, where: Any, version: int | None = None, **options: Any) -> list[str]:
    """The paths that a condition finds, by `files` and by `iter_files` alike."""
    snapshot = table.snapshot(version)
    paths: list[str] = snapshot.files(where, columns=["path"], **options)["path"].to_pylist()
    if not options:
        batches = snapshot.iter_files(7, where, ["path"])
        assert sorted(p for batch in batches for p in batch["path"].to_pylist()) == sorted(paths)
        return sorted(paths)
    return paths


def uses_keys(table: Table, where: Any) -> bool:
    """Whether the plan that the catalog names has keys for the condition."""
    predicate = predicate_of(where, table.snapshot().metadata)
    assert predicate is not None
    row = table._store.dialect.ask(lambda session: session.one("plan", table_id=table.table_id))
    return row is not None and keys_of(predicate, row[0]) is not None


def check_keys(lake: Lake, table: Table) -> None:
    """Every file has the keys of the plan that the catalog names, which is that of the table."""
    metadata = table.snapshot().metadata
    keys = FileKeys(plan_of(metadata))
    sql = lake.store.dialect.sql(
        f"SELECT stats, partition_values, {KEYS} FROM dl_active_files WHERE table_id = :table_id"
    )
    with lake.store.read() as session:
        ((text,),) = session.run("plan", table_id=table.table_id)
        assert planned_paths(text) == [c.physical for c in plan_of(metadata)]
        decode = session.decode_text
        for stats, values, *kept in session.execute(sql, {"table_id": table.table_id}):
            wanted = keys.of(None if stats is None else decode(stats), decode_map(values, decode))
            assert tuple(kept) == wanted


def planned_paths(text: str | None) -> list[tuple[str, ...]]:
    return [] if text is None else [tuple(c["path"]) for c in json.loads(text)]
