"""Tables of other engines, checkpointed here: nothing of their state is lost, nor any row.

Each table is copied, imported, and checkpointed; then everything older in its log goes. What can be
imported from the checkpoint alone has to be the same table, and every reader that could read the
table before reads the same rows now.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import read_table, tombstones_at
from deltalakedb.table import Table

from support.golden import GoldenTable, golden_names
from support.published import Readers, keep_only_checkpoint, log_of, record_of, storage_of
from support.store import Catalogs

SAMPLE = [
    "delta-rs-checkpoint_with_partitions",
    "delta-rs-table_with_liquid_clustering",
    "delta-dv-partitioned-with-checkpoint",
    "delta-kernel__kernel-pagination-v2-checkpoint-parquet",
    "delta-log-replay-special-characters",
    "delta-data-skipping-basic-stats-all-types-checkpoint",
    "delta-table-with-columnmapping-mode-id",
    "delta-type-widening",
]
FILES = [
    *("path", "dv_id", "size_bytes", "modification_time", "partition_values", "stats", "tags"),
    *("deletion_vector", "base_row_id", "default_row_commit_version", "clustering_provider"),
]
REMOVES = (
    *("path", "dv_id", "deletion_timestamp", "partition_values", "size_bytes"),
    *("deletion_vector", "base_row_id", "default_row_commit_version"),
)
JSON = ("partition_values", "tags", "deletion_vector")


@pytest.fixture(scope="module")
def sqlite_lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


@pytest.mark.parametrize("name", golden_names())
def test_a_golden_table_survives_in_its_checkpoint(
    name: str,
    golden_tables: dict[str, GoldenTable],
    sqlite_lake: Lake,
    readers: Readers,
    tmp_path: Path,
) -> None:
    check_checkpoint(sqlite_lake, golden_tables[name], readers, tmp_path)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_golden_table_survives_on_every_engine(
    name: str,
    golden_tables: dict[str, GoldenTable],
    shared_lake: Lake,
    readers: Readers,
    tmp_path: Path,
) -> None:
    check_checkpoint(shared_lake, golden_tables[name], readers, tmp_path)


def check_checkpoint(lake: Lake, golden: GoldenTable, readers: Readers, folder: Path) -> None:
    copy = folder / golden.name
    shutil.copytree(golden.path, copy)
    try:
        table = lake.import_table(str(copy), name=f"{golden.name} before")
    except DeltaLakeDbError:
        if golden.must_import:
            raise
        return
    before = {name: read(copy) for name, read in usable(readers, golden).items()}
    version = table.version
    shutil.rmtree(log_of(table) / "_sidecars", ignore_errors=True)
    for path in log_of(table).glob("*checkpoint*"):
        path.unlink()
    record, storage = record_of(lake, table), storage_of(table)
    # At the beginning of time no tombstone has expired.
    written = write_checkpoint(lake.store, storage, record, version, now_ms=0)
    mine = state(lake, table)
    assert written.size >= len(mine["files"]) + len(mine["removes"]) + 2
    keep_only_checkpoint(table, version)
    write_checksum(lake.store, storage, record, version)
    # The folder is registered already; another name leads to it as well.
    other_name = folder / "by another name"
    other_name.symlink_to(copy)
    other = lake.import_table(str(other_name), name=f"{golden.name} after")
    assert state(lake, other) == mine
    for name, read in usable(readers, golden).items():
        if before[name] is not None:
            after = read(copy)
            assert after is not None, name
            assert same_rows(after, before[name]), name
    if golden.facts["data_complete"] and golden.facts["expected_rows"] is not None:
        counts = {rows.num_rows for rows in before.values() if rows is not None}
        assert counts <= {golden.facts["expected_rows"]}


Read = Callable[[Path], pa.Table | None]


def usable(readers: Readers, golden: GoldenTable) -> dict[str, Read]:
    if not golden.facts["data_complete"]:
        return {}
    engines = {"delta-rs": readers.delta_rs, "duckdb": readers.duckdb}

    def asking(read: Callable[[Path], pa.Table]) -> Read:
        def ask(folder: Path) -> pa.Table | None:
            try:
                return read(folder)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # noqa: BLE001 - a panic of Rust is no Exception
                return None

        return ask

    return {name: asking(read) for name, read in engines.items()}


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    assert left.schema == right.schema
    if left.num_rows > 10_000:
        order = [(name, "ascending") for name in left.column_names]
        return bool(left.sort_by(order).equals(right.sort_by(order)))
    return sorted(map(repr, rows_of(left))) == sorted(map(repr, rows_of(right)))


def rows_of(table: pa.Table) -> list[Any]:
    # Python has no years beyond 9999.
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


# --- state --------------------------------------------------------------------------------


def state(lake: Lake, table: Table) -> dict[str, Any]:
    """All that the catalog knows of the newest version, in a form that can be compared."""
    snapshot: Snapshot = table.snapshot()
    record = record_of(lake, table)
    query = tombstones_at(record, snapshot.version, REMOVES, since=-1, cutoff_ms=-1)
    return {
        "version": snapshot.version,
        # Fields that the protocol does not know, and nulls that stand for nothing, may go.
        "protocol": replace(snapshot.protocol, extra={}),
        "metadata": replace(snapshot.metadata, extra={}),
        "txns": snapshot.app_transactions,
        "domains": snapshot.domain_metadata,
        "files": listed(snapshot.files(columns=FILES)),
        "removes": listed(read_table(lake.store, record, query)),
        "counts": (snapshot.num_files, snapshot.size_bytes),
    }


def listed(files: pa.Table) -> list[str]:
    rows = files.to_pylist()
    for row in rows:
        for name in JSON:
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
        vector = row.get("deletion_vector")
        if vector is not None:
            # Fields that the protocol does not know do not survive.
            vector.pop("maxRowIndex", None)
    return sorted(repr(sorted(row.items())) for row in rows)
