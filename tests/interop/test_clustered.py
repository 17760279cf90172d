"""Clustered tables go to and fro between us and Delta on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.lake import Lake
from interop.readers import DeltaSpark, Peers, Refused

from support.store import Catalogs


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def test_clustering_is_known_on_both_sides(lake: Lake, peers: Peers, tmp_path: Path) -> None:
    spark = peers.there.get(DeltaSpark.name)
    if not isinstance(spark, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("word", pa.string())]))])
    ours = lake.create_table(
        "ours", location=str(tmp_path / "ours"), schema=schema, cluster_by=["id", "s.word"]
    )
    for start in (0, 2):
        ours.append([{"id": n, "s": {"word": f"w{n}"}} for n in range(start, start + 2)])
    there = f"delta.`{tmp_path}/ours`"
    (detail,) = spark.sql(f"DESCRIBE DETAIL {there}").to_pylist()
    assert detail["clusteringColumns"] == ["id", "s.word"]
    with suppress(Refused):
        # Done by then: it is the metrics that PySpark cannot bring to Arrow.
        spark.sql(f"OPTIMIZE {there}")
    adopted = lake.adopt("ours")
    assert [version.operation for version in adopted.versions] == ["OPTIMIZE"]
    ours.refresh()
    snapshot = ours.snapshot()
    assert snapshot.num_files == 1
    assert snapshot.clustering_columns == ("id", "s.word")
    assert snapshot.to_arrow().num_rows == 4
    theirs = f"delta.`{tmp_path}/theirs`"
    spark.sql(f"CREATE TABLE {theirs} (id BIGINT, day DATE) USING delta CLUSTER BY (day, id)")
    domains = lake.import_table(str(tmp_path / "theirs"), "theirs").snapshot()
    assert domains.clustering_columns == ("day", "id")
    # The very bytes that Delta writes.
    made = lake.create_table(
        "made",
        location=str(tmp_path / "made"),
        schema=pa.schema({"id": pa.int64(), "day": pa.date32()}),
        cluster_by=["day", "id"],
    )
    texts = [s.domain_metadata["delta.clustering"] for s in (domains, made.snapshot())]
    assert texts[0] == texts[1]
