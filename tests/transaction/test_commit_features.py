"""Commits of many files, with row tracking or in-commit timestamps."""

import json

import pytest

from deltalakedb.actions import (
    Metadata,
)
from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    CommitConflictError,
    CommitRejectedError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import (
    add,
    check_ledger,
    commit_info,
    live_paths,
    new_lake_table,
    published,
    remove,
    row_counts,
    schema_json,
)


@pytest.fixture
def table(lake: Lake) -> Table:
    return new_lake_table(lake)


# --- many files ---------------------------------------------------------------------------


def test_many_files_in_one_commit_come_back(lake: Lake) -> None:
    table = new_lake_table(lake, partition_by=["day"])
    days = [None, "1", "ü'\"\\", "a,b\tc\nd"]
    files = [
        add(f"{n:05d}.parquet", values={"day": days[n % len(days)]}, size=n, rows=n)
        for n in range(5_000)
    ]
    assert table.commit(files) == 1
    snapshot = table.snapshot()
    assert (snapshot.num_files, snapshot.size_bytes) == (5_000, sum(range(5_000)))
    listed = snapshot.files()
    assert listed["path"].to_pylist() == [file["add"]["path"] for file in files]
    assert listed["size_bytes"].to_pylist() == list(range(5_000))
    values = [json.loads(text) for text in listed["partition_values"].to_pylist()]
    assert values == [file["add"]["partitionValues"] for file in files]
    assert published(lake, table, 1)[1:] == files
    assert table.commit([remove(file["add"]["path"]) for file in files[1:]]) == 2
    assert live_paths(table) == ["00000.parquet"]
    check_ledger(lake, table)


# --- row tracking -------------------------------------------------------------------------


def _row_ranges(lake: Lake, table: Table) -> list[tuple[int, int, int]]:
    """First row id, number of rows and commit version of every file, in the order of ids."""
    found = []
    for record in table.history(1000):
        for line in published(lake, table, record.version):
            if "add" in line:
                file = line["add"]
                rows = json.loads(file["stats"])["numRecords"]
                found.append((file["baseRowId"], rows, file["defaultRowCommitVersion"]))
    return sorted(found)


def test_row_ids_have_no_gaps_and_no_overlaps_also_under_rebase(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.enableRowTracking": "true"})
    handles = [lake.table(table.name) for _ in range(3)]
    assert {handle.version for handle in handles} == {0}
    for turn in range(3):
        for who, handle in enumerate(handles):
            handle.commit([add(f"{turn}-{who}-{n}.parquet", rows=n + who) for n in range(3)])
    ranges = _row_ranges(lake, table)
    following = 0
    for first, rows, _ in ranges:
        assert first == following
        following += rows
    assert {version for _, _, version in ranges} == set(range(1, 10))
    domain = published(lake, table, 9)[1]["domainMetadata"]
    assert domain["domain"] == "delta.rowTracking"
    assert json.loads(domain["configuration"]) == {"rowIdHighWaterMark": following - 1}
    check_ledger(lake, table)


def test_files_without_a_row_count_cannot_be_tracked(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.enableRowTracking": "true"})
    before = row_counts(lake)
    with pytest.raises(CommitRejectedError, match="numRecords") as refusal:
        table.commit([add("a.parquet", rows=None)])
    assert refusal.value.rule in ("statistics", "row-tracking")
    assert row_counts(lake) == before


# --- in-commit timestamps -----------------------------------------------------------------


def test_enabling_in_commit_timestamps_later_is_recorded(
    lake: Lake, table: Table, clock: ManualClock
) -> None:
    old = new_lake_table(lake, "old", properties={"delta.enableInCommitTimestamps": "false"})
    old.commit([add("a.parquet")])
    assert "inCommitTimestamp" not in commit_info(lake, old, 1)
    stale = lake.table("old")
    assert stale.version == 1
    old.commit([add("b.parquet")])
    clock.advance(1000)
    # Rebased upon version 2: what counts is the version it becomes.
    enabled = stale.set_properties({"delta.enableInCommitTimestamps": "true"})
    assert enabled == 3
    properties = stale.snapshot().properties
    assert properties["delta.inCommitTimestampEnablementVersion"] == "3"
    assert properties["delta.inCommitTimestampEnablementTimestamp"] == str(enabled.timestamp)
    assert commit_info(lake, old, 3)["inCommitTimestamp"] == enabled.timestamp
    stale.set_properties({"owner": "me"})
    assert stale.snapshot().properties["delta.inCommitTimestampEnablementVersion"] == "3"
    # A table that had them from the start records nothing.
    assert "delta.inCommitTimestampEnablementVersion" not in table.snapshot().properties


def test_a_metadata_value_can_be_committed(lake: Lake, table: Table) -> None:
    metadata = table.snapshot().metadata
    changed = Metadata(
        metadata.id,
        schema_string=schema_json("id", ("day", "string"), "more"),
        configuration=metadata.configuration,
    )
    assert table.commit([changed], operation="CHANGE") == 1
    assert [field.name for field in table.snapshot().schema.fields] == ["id", "day", "more"]


def test_row_tracking_is_not_switched_on_over_files_of_others(lake: Lake) -> None:
    table = new_lake_table(lake)
    other = lake.table(table.name)
    assert other.version == 0
    table.commit([add("a.parquet", rows=1)])
    with pytest.raises((CommitConflictError, CommitRejectedError)):
        other.set_properties({"delta.enableRowTracking": "true"})
    assert "delta.enableRowTracking" not in table.snapshot().properties
    # The columns that engines keep ids in have names from the beginning.
    tracked = new_lake_table(lake, "tracked", properties={"delta.enableRowTracking": "true"})
    found = tracked.snapshot().properties
    assert found["delta.rowTracking.materializedRowIdColumnName"].startswith("_row-id-col-")
