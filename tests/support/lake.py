"""Fixtures and builders for tests through the public API: a lake on each engine, and actions."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.store.relations import RELATIONS
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.store import Catalogs

Json = dict[str, Any]
OpenLake = Callable[..., Lake]


def schema_json(*columns: str | tuple[str, str]) -> str:
    """A Delta schema of nullable columns: a name (of type long), or a name and its type."""
    pairs = [column if isinstance(column, tuple) else (column, "long") for column in columns]
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in pairs
    ]
    return json.dumps({"type": "struct", "fields": fields})


SCHEMA = schema_json("id", ("day", "string"))


@pytest.fixture
def open_lake(catalog_url: str, clock: ManualClock) -> Iterator[OpenLake]:
    """Open the catalog of this test once more; options are those of `connect`."""
    with ExitStack() as opened:

        def connect(**options: Any) -> Lake:
            # Tables of most tests lie nowhere: those of the mirror ask for it.
            given = {"clock": clock, "mirror": "worker", **options}
            return opened.enter_context(deltalakedb.connect(catalog_url, **given))

        yield connect


@pytest.fixture
def lake(open_lake: OpenLake) -> Lake:
    """A lake on a fresh catalog of `engine`; its clock moves only when told."""
    return open_lake(committer="tester")


@pytest.fixture(scope="module")
def shared_lake(engine: Engine, catalogs: Catalogs) -> Iterator[Lake]:
    """One lake of `engine` for all tests of a module that make their own tables in it."""
    with (
        catalogs.fresh(engine) as url,
        deltalakedb.connect(url, clock=ManualClock(), mirror="worker") as lake,
    ):
        yield lake


def new_lake_table(lake: Lake, name: str = "sales.orders", **options: Any) -> Table:
    """Create a table of `id` and `day`, with whatever `create_table` takes beside."""
    options.setdefault("schema", SCHEMA)
    return lake.create_table(name, location=f"file:///lake/{name}", **options)


# --- actions ------------------------------------------------------------------------------


def deletion_vector(number: int, *, cardinality: int = 1) -> Json:
    """The descriptor of a deletion vector in a file of its own."""
    uuid = f"{number:0>20}"
    return {
        "storageType": "u",
        "pathOrInlineDv": uuid,
        "offset": 1,
        "sizeInBytes": 36,
        "cardinality": cardinality,
    }


def add(
    path: str,
    *,
    values: Mapping[str, str | None] | None = None,
    size: int = 100,
    rows: int | None = 10,
    data_change: bool = True,
    dv: int | None = None,
) -> Json:
    """The action that adds a file."""
    body: Json = {
        "path": path,
        "partitionValues": dict(values or {}),
        "size": size,
        "modificationTime": 1_700_000_000_000,
        "dataChange": data_change,
    }
    if rows is not None:
        body["stats"] = json.dumps({"numRecords": rows})
    if dv is not None:
        body["deletionVector"] = deletion_vector(dv)
    return {"add": body}


def remove(path: str, *, data_change: bool = True, dv: int | None = None) -> Json:
    """The action that removes a file."""
    body: Json = {
        "path": path,
        "deletionTimestamp": 1_700_000_000_000,
        "dataChange": data_change,
    }
    if dv is not None:
        body["deletionVector"] = deletion_vector(dv)
    return {"remove": body}


# --- what the catalog holds ---------------------------------------------------------------


def row_counts(lake: Lake) -> dict[str, int]:
    """How many rows each relation of the catalog has."""
    with lake.store.read() as session:
        return {
            relation.name: int(session.execute(f"SELECT count(*) FROM {relation.name}", {})[0][0])
            for relation in RELATIONS
        }


def live_paths(table: Table, version: int | None = None) -> list[str]:
    """The paths of the live files at a version, in order."""
    paths: list[str] = table.snapshot(version).files(columns=["path"])["path"].to_pylist()
    return sorted(paths)


def mirror_row(lake: Lake, table: Table, version: int) -> tuple[str, bytes, int]:
    """Digest, payload and size that wait for the mirror."""
    query = lake.store.dialect.sql(
        "SELECT digest, payload, payload_bytes FROM dl_mirror_status "
        "WHERE table_id = :table_id AND version = :version"
    )
    with lake.store.read() as session:
        ((digest, payload, size),) = session.execute(
            query, {"table_id": table.table_id, "version": version}
        )
    return digest, bytes(payload), int(size)


def published(lake: Lake, table: Table, version: int) -> list[Json]:
    """The lines that the mirror will publish for a version."""
    return [json.loads(line) for line in mirror_row(lake, table, version)[1].splitlines()]


def kinds(lines: Iterable[Json]) -> list[str]:
    """The name of the action on each line."""
    return [next(iter(line)) for line in lines]


def commit_info(lake: Lake, table: Table, version: int) -> Json:
    """The commitInfo of a version, as the mirror will publish it."""
    info: Json = published(lake, table, version)[0]["commitInfo"]
    return info


def check_ledger(lake: Lake, table: Table) -> None:
    """Versions are dense, times strictly increase, nothing contradicts the ledger."""
    with lake.store.read() as session:
        head = lake.store.head(session, table.table_id)
        history = list(reversed(lake.store.history(session, table.table_id, 1_000_000)))
        problems = lake.store.check_active_files(session, table.table_id)
        mirrored = session.execute(
            lake.store.dialect.sql(
                "SELECT version FROM dl_mirror_status WHERE table_id = :table_id ORDER BY version"
            ),
            {"table_id": table.table_id},
        )
    assert [record.version for record in history] == list(range(len(history)))
    assert head == len(history) - 1
    times = [record.committed_at for record in history]
    assert times == sorted(set(times))
    assert problems == []
    assert [row[0] for row in mirrored] == list(range(len(history)))
