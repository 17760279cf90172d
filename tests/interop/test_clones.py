"""Shallow clones in the mirror: other engines find the files of the source by absolute paths."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.lake import Lake
from interop.canonical import differences
from interop.readers import DeltaRs, DeltaSpark, Peers, Refused

from support.store import Catalogs


@pytest.fixture
def spark(peers: Peers) -> DeltaSpark:
    found = peers.there.get(DeltaSpark.name)
    if not isinstance(found, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    return found


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def test_clones_are_read_elsewhere(
    spark: DeltaSpark, lake: Lake, peers: Peers, tmp_path: Path
) -> None:
    source = tmp_path / "a source"
    there = f"delta.`{source}`"
    spark.sql(
        f"CREATE TABLE {there} (id BIGINT, region STRING) USING delta PARTITIONED BY (region) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"INSERT INTO {there} SELECT /*+ COALESCE(1) */ id, 'a b' FROM RANGE(20)")
    spark.sql(f"DELETE FROM {there} WHERE id = 3")
    lake.import_table(str(source), "source")
    made = lake.clone_table("source", str(tmp_path / "clone"))
    made.append(pa.table({"id": [100], "region": ["ü/é"]}))
    ours = made.snapshot().to_arrow()
    assert sorted(ours["id"].to_pylist()) == [*range(3), *range(4, 20), 100]
    reads = set()
    for reader in peers:
        try:
            found = reader.read(tmp_path / "clone")
        except Refused:
            continue
        assert not differences(ours, found), reader.name
        reads.add(reader.name)
    # The others do not find files by absolute paths.
    assert reads >= {DeltaSpark.name, DeltaRs.name}
    # And the other way round: a clone that Delta on Spark has made.
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/theirs` SHALLOW CLONE {there}")
    theirs = lake.import_table(str(tmp_path / "theirs"), allowed_roots=[str(source)])
    assert sorted(theirs.snapshot().to_arrow()["id"].to_pylist()) == [*range(3), *range(4, 20)]
    assert lake.verify("clone").ok
