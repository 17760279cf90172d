"""A table is replaced by an empty one with other columns; its history stays. On every engine."""

from pathlib import Path

import pyarrow as pa
import pytest

from deltalakedb.errors import (
    CommitConflictError,
    ConfigurationError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

BEFORE = pa.schema([("id", pa.int64()), ("part", pa.string())])
AFTER = pa.schema([("day", pa.date32()), ("id", pa.string())])


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    table = lake.create_table(
        "t",
        location=str(tmp_path / "t"),
        schema=BEFORE,
        partition_by=["part"],
        properties={"owner": "me"},
    )
    table.append(pa.table({"id": [1, 2], "part": ["a", "b"]}))
    return table


def test_a_table_is_replaced(lake: Lake, table: Table) -> None:
    before = table.snapshot()
    assert table.replace(AFTER, partition_by=["day"], description="new", properties={"x": "y"}) == 2
    now = table.snapshot()
    assert (now.num_files, now.schema.names, now.partition_columns) == (0, ("day", "id"), ("day",))
    assert now.metadata.id == before.metadata.id
    assert now.metadata.description == "new"
    assert now.properties == {"delta.enableInCommitTimestamps": "true", "x": "y"}
    assert table.history(1)[0].operation == "REPLACE TABLE"
    table.append(pa.table({"day": [None], "id": ["x"]}))
    assert table.snapshot().to_arrow().to_pylist() == [{"day": None, "id": "x"}]
    assert sorted(table.snapshot(1).to_arrow()["id"].to_pylist()) == [1, 2]
    lake.mirror.drain()
    assert lake.verify("t").ok


def test_clustering_comes_and_goes(table: Table) -> None:
    table.replace(AFTER, cluster_by=["id"])
    assert table.snapshot().clustering_columns == ("id",)
    table.replace(BEFORE)
    assert table.snapshot().clustering_columns == ()


def test_mapped_columns_get_new_names(lake: Lake, tmp_path: Path) -> None:
    table = lake.create_table(
        "m",
        location=str(tmp_path / "m"),
        schema=BEFORE,
        properties={"delta.columnMapping.mode": "name"},
    )
    table.append(pa.table({"id": [1], "part": ["a"]}))
    before = table.snapshot().schema.field("id").metadata["delta.columnMapping.id"]
    table.replace(BEFORE)
    after = table.snapshot().schema.field("id").metadata["delta.columnMapping.id"]
    assert after > before
    table.append(pa.table({"id": [7], "part": ["b"]}))
    assert table.snapshot().to_arrow()["id"].to_pylist() == [7]
    assert table.snapshot(1).to_arrow()["id"].to_pylist() == [1]


def test_whoever_writes_meanwhile_is_not_overlooked(lake: Lake, table: Table) -> None:
    stale = lake.table("t")
    seen = stale.snapshot()
    table.append(pa.table({"id": [3], "part": ["c"]}))
    from deltalakedb.operations.replace import replacement

    commit = replacement(seen, AFTER, now=table.now_ms())
    with pytest.raises(CommitConflictError):
        stale.submit(commit)
    assert table.snapshot().to_arrow().num_rows == 3


def test_an_overwrite_may_change_the_partitions(table: Table) -> None:
    rows = pa.table({"id": [1, 2], "day": ["x", "y"]})
    with pytest.raises(ConfigurationError, match="partitions of table 't' cannot change"):
        table.overwrite(rows, partition_by=["day"])
    table.overwrite(rows, overwrite_schema=True, partition_by=["DAY"])
    now = table.snapshot()
    assert now.partition_columns == ("day",)
    assert now.files(where="day = 'x'").num_rows == 1
    assert sorted(now.to_arrow()["id"].to_pylist()) == [1, 2]
    # The same columns, and no partitions any more.
    table.overwrite(rows, overwrite_schema=True, partition_by=[])
    assert table.snapshot().partition_columns == ()
    assert table.snapshot().num_files == 1
    assert table.snapshot(1).partition_columns == ("part",)


def test_a_feature_that_nothing_uses_is_dropped(table: Table) -> None:
    table.upgrade_protocol("domainMetadata", "deletionVectors")
    assert table.drop_feature("DomainMetadata") == 3
    assert "domainMetadata" not in (table.snapshot().protocol.writer_features or ())
    with pytest.raises(ConfigurationError, match="does not have the feature domainMetadata"):
        table.drop_feature("domainMetadata")
    with pytest.raises(UnsupportedFeatureError, match="Readers of older versions need it"):
        table.drop_feature("deletionVectors")
    with pytest.raises(UnsupportedFeatureError, match="Unknown table feature"):
        table.drop_feature("nothing")
