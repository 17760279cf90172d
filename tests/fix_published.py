"""Tables whose log is really there: data files, commits in `_delta_log`, and readers of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.actions.partition import encode_partition_value, partition_path
from deltalakedb.actions.schema import DataType, physical_name
from deltalakedb.lake import Lake
from deltalakedb.storage import Storage, open_storage
from deltalakedb.store import TableRecord
from deltalakedb.table import Table

from fix_lake import Json


def record_of(lake: Lake, table: Table) -> TableRecord:
    """The row of the registry, as a worker has it."""
    with lake.store.read() as session:
        found = lake.store.table_by_name(session, table.name)
    assert found is not None
    return found


def storage_of(table: Table) -> Storage:
    return open_storage(table.location)


def folder_of(table: Table) -> Path:
    return Path(table.location.removeprefix("file://"))


def log_of(table: Table) -> Path:
    return folder_of(table) / "_delta_log"


def publish(lake: Lake, table: Table, *, at_ms: int | None = None) -> int:
    """Write every commit that waits to `_delta_log`, as a worker would; the newest version."""
    sql = lake.store.dialect.sql
    key = {"table_id": table.table_id}
    log_of(table).mkdir(parents=True, exist_ok=True)
    with lake.store.write() as session:
        rows = session.execute(
            sql(
                "SELECT version, payload, digest FROM dl_mirror_status "
                "WHERE table_id = :table_id AND status <> 'SUCCEEDED' ORDER BY version"
            ),
            key,
        )
        for version, payload, digest in rows:
            assert hashlib.sha256(bytes(payload)).hexdigest() == digest
            path = log_of(table) / f"{version:020d}.json"
            path.write_bytes(bytes(payload))
            if at_ms is not None:
                os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
        session.execute_count(
            sql("UPDATE dl_mirror_status SET status = 'SUCCEEDED' WHERE table_id = :table_id"), key
        )
    return table.version


# --- data files ---------------------------------------------------------------------------


def write_file(
    table: Table,
    rows: pa.Table,
    values: Mapping[str, Any] | None = None,
    *,
    stats: Json | None = None,
    base_row_id: int | None = None,
) -> Json:
    """Write a data file with rows (without partition columns); the action that adds it."""
    snapshot = table.snapshot()
    given = dict(values or {})
    columns = [snapshot.schema.field(name) for name in snapshot.partition_columns]
    types: dict[str, DataType] = {physical_name(column): column.type for column in columns}
    typed = {physical_name(column): given[column.name] for column in columns}
    directory = partition_path(typed, types)
    name = f"part-{uuid4()}.parquet"
    path = f"{directory}/{name}" if directory else name
    target = folder_of(table) / unquote(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, target)
    body: Json = {
        "path": path,
        "partitionValues": {n: encode_partition_value(typed[n], types[n]) for n in types},
        "size": target.stat().st_size,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows.num_rows, **(stats or {})}),
    }
    if base_row_id is not None:
        body |= {"baseRowId": base_row_id, "defaultRowCommitVersion": table.version + 1}
    return {"add": body}


# --- readers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readers:
    """Other engines that read a table from its folder alone."""

    connection: duckdb.DuckDBPyConnection

    def delta_rs(self, folder: Path) -> pa.Table:
        from deltalake import DeltaTable, QueryBuilder

        query = QueryBuilder().register("t", DeltaTable(str(folder)))
        return pa.table(query.execute("SELECT * FROM t").read_all())

    def duckdb(self, folder: Path) -> pa.Table:
        self.connection.execute(f"SELECT * FROM delta_scan('{folder}')")
        return self.connection.to_arrow_table()

    def polars(self, folder: Path) -> pa.Table:
        import polars as pl

        return pl.scan_delta(str(folder)).collect().to_arrow()


@pytest.fixture(scope="session")
def readers() -> Iterator[Readers]:
    """delta-rs, DuckDB's delta extension and polars."""
    package = Path(
        str(distribution("duckdb_extension_delta").locate_file("duckdb_extension_delta"))
    )
    extension = next(package.rglob("delta.duckdb_extension"))
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as made:
        made.execute(f"LOAD '{extension}'")
        made.execute("SET TimeZone = 'UTC'")
        yield Readers(made)


def keep_only_checkpoint(table: Table, version: int) -> None:
    """Delete what came before a version: whoever reads the table reads its checkpoint."""
    for path in log_of(table).iterdir():
        number, _, rest = path.name.partition(".")
        if number.isdigit() and (int(number) < version or rest == "crc"):
            path.unlink()
