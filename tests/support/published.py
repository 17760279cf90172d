"""Tables whose log is really there: data files, commits in `_delta_log`, and readers of it."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

from deltalakedb.actions import z85
from deltalakedb.actions.arrow import schema_to_arrow
from deltalakedb.actions.datatypes import ColumnPath, DataType, StructType, physical_name
from deltalakedb.actions.partition import (
    encode_partition_value,
    encode_path,
    partition_directory,
)
from deltalakedb.actions.statistics import Statistics, encode_stats
from deltalakedb.deltalog.checkpoint_schema import has_bounds
from deltalakedb.lake import Lake
from deltalakedb.reading.deletion_vectors import MAGIC
from deltalakedb.storage import Storage, local_path, open_storage
from deltalakedb.store import TableRecord
from deltalakedb.table import Table

from support.lake import Json


def record_of(lake: Lake, table: Table) -> TableRecord:
    """The row of the registry, as a worker has it."""
    with lake.store.read() as session:
        found = lake.store.table_by_name(session, table.name)
    assert found is not None
    return found


def storage_of(table: Table) -> Storage:
    return open_storage(table.location)


def folder_of(table: Table) -> Path:
    found = local_path(table.location)
    assert found is not None
    return found


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
    table: Table, rows: Sequence[Json], values: Mapping[str, Any] | None = None, **fields: Any
) -> Json:
    """Write rows (without partition columns) to a data file; the action that adds it.

    `fields` are further fields of the action.
    """
    snapshot = table.snapshot()
    given = dict(values or {})
    columns = [snapshot.schema.field(name) for name in snapshot.partition_columns]
    types: dict[str, DataType] = {physical_name(column): column.type for column in columns}
    typed = {physical_name(column): given[column.name] for column in columns}
    directory = encode_path(partition_directory(typed, types))
    name = f"part-{uuid4()}.parquet"
    path = f"{directory}/{name}" if directory else name
    target = folder_of(table) / unquote(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = StructType(tuple(f for f in snapshot.schema.fields if f not in columns))
    arrow = schema_to_arrow(data, physical=True)
    pq.write_table(pa.Table.from_pylist([_stored(row, data) for row in rows], arrow), target)
    body: Json = {
        "path": path,
        "partitionValues": {n: encode_partition_value(typed[n], types[n]) for n in types},
        "size": target.stat().st_size,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": statistics_of(rows, data),
    }
    return {"add": {**body, **fields}}


def _stored(value: Any, kind: DataType) -> Any:
    """A value with the names that its columns have in files."""
    if not isinstance(kind, StructType) or value is None:
        return value
    return {physical_name(f): _stored(value.get(f.name), f.type) for f in kind.fields}


def statistics_of(rows: Sequence[Json], schema: StructType) -> str:
    """Exact statistics of rows, as JSON text."""
    low: dict[ColumnPath, Any] = {}
    high: dict[ColumnPath, Any] = {}
    nulls: dict[ColumnPath, int] = {}
    for path, kind in schema.leaf_columns():
        found = [value for value in (_inside(row, path) for row in rows) if value is not None]
        nulls[path] = len(rows) - len(found)
        if found and has_bounds(kind):
            low[path], high[path] = min(found), max(found)
    return encode_stats(Statistics(len(rows), low, high, nulls), schema)


def _inside(value: Any, path: ColumnPath) -> Any:
    for step in path:
        value = None if value is None else value.get(step)
    return value


def inline_vector(rows: Collection[int]) -> Json:
    """The descriptor of a deletion vector that stands in the log itself."""
    data = bitmap(rows)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85.encode(data + bytes(-len(data) % 4)),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def stored_vector(table: Table, rows: Collection[int]) -> Json:
    """A deletion vector in a file of the table; its descriptor."""
    data, name = bitmap(rows), uuid4()
    content = b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (folder_of(table) / f"deletion_vector_{name}.bin").write_bytes(content)
    return {
        "storageType": "u",
        "pathOrInlineDv": z85.encode(name.bytes),
        "offset": 1,
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def bitmap(rows: Iterable[int]) -> bytes:
    """The portable form without runs."""
    groups: dict[int, dict[int, list[int]]] = {}
    for row in sorted(rows):
        groups.setdefault(row >> 32, {}).setdefault(row >> 16 & 0xFFFF, []).append(row & 0xFFFF)
    out = struct.pack("<IQ", MAGIC, len(groups))
    for high, containers in groups.items():
        bodies = [_body(values) for values in containers.values()]
        out += struct.pack("<III", high, 12346, len(containers))
        for key, values in containers.items():
            out += struct.pack("<HH", key, len(values) - 1)
        position = 8 + 8 * len(containers)
        for body in bodies:
            out += struct.pack("<I", position)
            position += len(body)
        out += b"".join(bodies)
    return out


def _body(values: list[int]) -> bytes:
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    return sum(1 << value for value in values).to_bytes(8192, "little")


# --- readers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readers:
    """Other engines that read a table from its folder alone."""

    connection: duckdb.DuckDBPyConnection

    def delta_rs(self, folder: Path) -> pa.Table:
        from deltalake import DeltaTable, QueryBuilder

        query = QueryBuilder().register("t", DeltaTable(str(folder)))
        return pa.table(query.execute("SELECT * FROM t").read_all())

    def duckdb(self, folder: Path, where: str = "true") -> pa.Table:
        self.connection.execute(f"SELECT * FROM delta_scan('{folder}') WHERE {where}")
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
