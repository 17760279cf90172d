"""Parquet files that became a table: as Delta on Spark converts them, and read by all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.actions.partition import decode_path
from deltalakedb.lake import Lake
from interop.limits import Case, judge, judge_all
from interop.readers import DeltaSpark, Peers

from support.store import Catalogs

MOMENT = datetime(2026, 11, 1, 1, 2, 3, 456789, tzinfo=UTC)


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def by_path(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Files by what their paths name, however they are spelled."""
    return {decode_path(row["path"]): {**row, "path": ""} for row in rows}


def test_a_converted_table_is_as_delta_converts_it(
    lake: Lake, peers: Peers, tmp_path: Path
) -> None:
    spark = peers.there.get(DeltaSpark.name)
    if not isinstance(spark, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    folder, copy = tmp_path / "ours", tmp_path / "theirs"
    for i, part in enumerate(["a b", "__HIVE_DEFAULT_PARTITION__", "ü%2Fx%3D"]):
        place = folder / f"part={part}" / f"n={i}"
        place.mkdir(parents=True)
        columns = {
            "id": pa.array([i, None], pa.int64()),
            "small": pa.array([i, 7], pa.int16()),
            "price": pa.array([Decimal("1.5"), None], pa.decimal128(10, 2)),
            "at": pa.array([MOMENT, None], pa.timestamp("us", tz="UTC")),
            "inner": pa.array([{"x": 1.5, "words": ["a", None]}, None]),
        }
        if i == 1:
            columns["late"] = pa.array(["x", "y"])
        pq.write_table(pa.table(columns), place / "file.parquet")
    shutil.copytree(folder, copy)
    types = pa.schema({"part": pa.string(), "n": pa.int32()})
    ours = lake.convert_table(str(folder), partition_schema=types)
    spark.sql(f"CONVERT TO DELTA parquet.`{copy}` PARTITIONED BY (part STRING, n INT)")
    theirs = lake.import_table(str(copy)).snapshot()
    snapshot = ours.snapshot()
    assert snapshot.schema == theirs.schema
    assert snapshot.partition_columns == theirs.partition_columns
    columns_of_files = ["path", "partition_values", "size_bytes"]
    mine, other = (s.files(columns=columns_of_files).to_pylist() for s in (snapshot, theirs))
    assert by_path(mine) == by_path(other)
    for condition, files in (("id = 1", 1), ("price > 2", 0), ("`inner`.x < 1", 3)):
        assert snapshot.files(where=condition).num_rows == files
    case = Case(folder, snapshot, head=0)
    judge_all(judge(reader, case, snapshot.to_arrow()) for reader in peers)
