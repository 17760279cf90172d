"""A table that has left the catalog is like any other: delta-rs and Delta on Spark write to it."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import deltalakedb
from interop.readers import DeltaSpark, Peers, Refused

SCHEMA = pa.schema({"id": pa.int64(), "day": pa.string()})


def rows(*ids: int, day: str = "mon") -> pa.Table:
    return pa.table({"id": list(ids), "day": [day] * len(ids)}, SCHEMA)


def ids(found: pa.Table) -> list[int]:
    return sorted(found["id"].to_pylist())


@pytest.mark.timeout(300)
def test_others_write_to_a_table_that_left_and_it_comes_back(peers: Peers, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    expected = {0: [], 1: [1, 2, 3], 2: [1, 2, 3, 4, 5], 3: [1, 2, 3, 4, 5]}
    with deltalakedb.connect(f"sqlite:///{tmp_path}/lake.db") as lake:
        table = lake.create_table(
            "sales.orders",
            location=str(folder),
            schema=SCHEMA,
            partition_by=["day"],
            properties={"deltalakedb.planningColumns": "id"},
        )
        table.append(rows(1, 2, 3))
        table.append(rows(4, 5, day="tue"))
        assert lake.export("sales.orders").version == 3

        write_deltalake(str(folder), rows(6, 7), mode="append")
        expected[4] = [1, 2, 3, 4, 5, 6, 7]
        DeltaTable(str(folder)).delete("id = 2")
        expected[5] = [1, 3, 4, 5, 6, 7]

        spark = peers.there.get(DeltaSpark.name)
        if isinstance(spark, DeltaSpark):
            spark.sql(f"INSERT INTO delta.`{folder}` VALUES (8, 'wed')")
            expected[6] = [1, 3, 4, 5, 6, 7, 8]
            spark.sql(f"UPDATE delta.`{folder}` SET id = 40 WHERE id = 4")
            expected[7] = [1, 3, 5, 6, 7, 8, 40]
            # It happens; only its answer has nulls that Arrow does not take.
            with suppress(Refused):
                spark.sql(f"OPTIMIZE delta.`{folder}`")
            expected[8] = expected[7]
            (newest_commit, *_) = DeltaTable(str(folder)).history(1)
            assert newest_commit["operation"] == "OPTIMIZE"
        newest = max(expected)
        assert DeltaTable(str(folder)).version() == newest
        for reader in peers:
            assert ids(reader.read(folder)) == expected[newest], reader.name

        back = lake.import_table(str(folder), "sales.orders")
        assert back.version == newest
        for version, wanted in expected.items():
            assert ids(back.snapshot(version).to_arrow()) == wanted, version
        back.append(rows(9))
        assert ids(DeltaTable(str(folder)).to_pyarrow_table()) == sorted([*expected[newest], 9])
        assert lake.verify("sales.orders").findings == ()
    if not isinstance(spark, DeltaSpark):
        pytest.skip(f"Delta on Spark did not write: {peers.missing[DeltaSpark.name]}")
