"""Clustering columns in the catalog: the domain that Delta keeps them in, on every engine."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.table import Table

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("odd.name", pa.string()),
        ("inner", pa.struct([("x", pa.int32()), ("raw", pa.binary())])),
        ("flag", pa.bool_()),
    ]
)


@pytest.fixture
def clustered(lake: Lake, tmp_path: Path) -> Table:
    return lake.create_table(
        "t", location=str(tmp_path / "t"), schema=SCHEMA, cluster_by=["id", "inner.x"]
    )


def domain(table: Table) -> object:
    return json.loads(table.snapshot().domain_metadata["delta.clustering"])


def test_columns_are_in_delta_s_domain(clustered: Table) -> None:
    snapshot = clustered.snapshot()
    assert snapshot.domain_metadata["delta.clustering"] == (
        '{"clusteringColumns":[["id"],["inner","x"]],"domainName":"delta.clustering"}'
    )
    assert snapshot.clustering_columns == ("id", "inner.x")
    features = snapshot.protocol.writer_features or ()
    assert {"clustering", "domainMetadata"} <= set(features)
    info = clustered.history(1)[0].commit_info
    assert info is not None
    assert (info.operation_parameters or {})["clusterBy"] == '["id","inner.x"]'


def test_columns_change_and_come_back(clustered: Table) -> None:
    clustered.cluster_by(["`odd.name`"])
    assert clustered.snapshot().clustering_columns == ("`odd.name`",)
    assert domain(clustered) == {
        "clusteringColumns": [["odd.name"]],
        "domainName": "delta.clustering",
    }
    info = clustered.history(1)[0].commit_info
    assert info is not None
    assert info.operation_parameters == {
        "oldClusteringColumns": "id,inner.x",
        "newClusteringColumns": "`odd.name`",
    }
    clustered.cluster_by([])
    assert clustered.snapshot().clustering_columns == ()
    clustered.restore(version=0)
    assert clustered.snapshot().clustering_columns == ("id", "inner.x")


def test_names_are_those_of_files(lake: Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "mapped",
        location=str(tmp_path / "m"),
        schema=SCHEMA,
        properties={"delta.columnMapping.mode": "name"},
    )
    table.cluster_by("id")
    snapshot = table.snapshot()
    name = snapshot.schema.field("id").metadata["delta.columnMapping.physicalName"]
    assert name.startswith("col-")
    assert domain(table) == {"clusteringColumns": [[name]], "domainName": "delta.clustering"}
    assert snapshot.clustering_columns == ("id",)
    made = lake.clone_table("mapped", str(tmp_path / "c"))
    assert made.snapshot().clustering_columns == ("id",)
    # Other columns of the same name have other names in files.
    table.overwrite(pa.table({"id": ["text"], "new": [1]}), overwrite_schema=True)
    assert table.snapshot().clustering_columns == ("id",)
    assert domain(table) != {"clusteringColumns": [[name]], "domainName": "delta.clustering"}
    with pytest.raises(ConfigurationError, match="clustered by id"):
        table.overwrite(pa.table({"other": [1]}), overwrite_schema=True)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["nope"], "no such column"),
        (["flag"], "no bounds"),
        (["inner"], "no bounds"),
        (["inner.raw"], "no bounds"),
        (["id", "ID"], "twice"),
        (["id", "odd.name", "inner.x", "flag", "id"], "4 are the most"),
    ],
)
def test_columns_have_to_be_of_use(clustered: Table, columns: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        clustered.cluster_by(columns)
    assert clustered.snapshot().version == 0


def test_their_statistics_are_kept(clustered: Table, lake: Lake, tmp_path: Path) -> None:
    few = {"delta.dataSkippingNumIndexedCols": "1"}
    with pytest.raises(ConfigurationError, match=r"inner\.x.*no statistics"):
        clustered.set_properties(few)
    with pytest.raises(ConfigurationError, match="no statistics"):
        lake.create_table(
            "few",
            location=str(tmp_path / "f"),
            schema=SCHEMA,
            cluster_by=["inner.x"],
            properties=few,
        )
    clustered.set_properties({"delta.dataSkippingStatsColumns": "inner.x, id"})


def test_partitions_and_clusters_do_not_go_together(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="partitioned"):
        lake.create_table(
            "both",
            location=str(tmp_path / "b"),
            schema=SCHEMA,
            partition_by=["flag"],
            cluster_by=["id"],
        )
