"""Checkpoints of published versions: what is in them, in which files, and when they are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.last_checkpoint import parse_hint
from deltalakedb.errors import (
    ConfigurationError,
    CorruptCatalogError,
    NotPublishedError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import checkpoint_interval, write_checkpoint, write_checksum
from deltalakedb.table import Table

from support.checkpoint_oracle import checkpointed, replayed
from support.delta_log import PROTOCOL, metadata, write_commit
from support.lake import add, deletion_vector, remove, schema_json
from support.published import log_of, publish, record_of, storage_of

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
VECTORS = {"delta.enableDeletionVectors": "true"}
V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}


@pytest.fixture
def make_table(lake: Lake, tmp_path: Path) -> Any:
    def make(name: str = "t", **options: Any) -> Table:
        options.setdefault("schema", schema_json("id", ("day", "string")))
        return lake.create_table(name, location=str(tmp_path / name), **options)

    return make


def checkpoint(lake: Lake, table: Table, version: int | None = None, **options: Any) -> Any:
    at = table.version if version is None else version
    return write_checkpoint(lake.store, storage_of(table), record_of(lake, table), at, **options)


def parquet_files(table: Table) -> list[str]:
    return sorted(path.name for path in log_of(table).rglob("*.parquet"))


def hint(table: Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((log_of(table) / "_last_checkpoint").read_bytes())
    return found


def grown(lake: Lake, table: Table, files: int = 5) -> int:
    """A table with files that came, went, and came back; published."""
    for number in range(files):
        table.commit([add(f"f{number}", values={})])
    table.commit([remove("f0"), remove("f1")])
    table.commit([add("f1")])
    return publish(lake, table)


# --- what is in it ------------------------------------------------------------------------


def test_a_checkpoint_is_what_the_commits_add_up_to(
    lake: Lake, make_table: Any, clock: ManualClock
) -> None:
    table: Table = make_table(
        properties={**VECTORS, "delta.feature.domainMetadata": "supported"},
        description="ü",
        partition_by=["day"],
    )
    table.commit([add("a b%20c", values={"day": None}), add("x", values={"day": 'é "q"\n'})])
    table.commit(
        [
            remove("x"),
            {
                "add": {
                    **add("x", values={"day": 'é "q"\n'})["add"],
                    "deletionVector": deletion_vector(1),
                }
            },
        ]
    )
    table.commit([{"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}])
    table.commit([{"domainMetadata": {"domain": "e", "configuration": "1", "removed": False}}])
    table.commit([{"domainMetadata": {"domain": "d", "configuration": "", "removed": True}}])
    table.commit([{"txn": {"appId": "app", "version": 1}}])
    table.commit([{"txn": {"appId": "app", "version": 2, "lastUpdated": clock.now_ms()}}])
    version = publish(lake, table)
    written = checkpoint(lake, table)
    log = log_of(table)
    expected = replayed(log, version)
    assert checkpointed(log / f"{version:020d}.checkpoint.parquet") == expected
    assert len(expected.adds) == 2
    assert len(expected.removes) == 1
    assert set(expected.domains) == {"e"}
    assert written.size == 2 + 2 + 1 + 1 + 1


def test_an_older_version_is_checkpointed_as_it_was(lake: Lake, make_table: Any) -> None:
    table = make_table()
    version = grown(lake, table)
    log = log_of(table)
    for at in range(version + 1):
        checkpoint(lake, table, at)
        assert checkpointed(log / f"{at:020d}.checkpoint.parquet") == replayed(log, at)


def test_tombstones_stay_until_they_expire(lake: Lake, make_table: Any, clock: ManualClock) -> None:
    table = make_table(properties={"delta.deletedFileRetentionDuration": "interval 2 days"})
    start = clock.now_ms()
    table.commit([add(name) for name in "abcd"])
    for name, deleted in (("a", start - 3 * DAY_MS), ("b", start), ("c", None)):
        body = {"path": name, "dataChange": True}
        table.commit(
            [{"remove": body if deleted is None else {**body, "deletionTimestamp": deleted}}]
        )
    version = publish(lake, table)

    def removed(now_ms: int) -> set[str]:
        for path in log_of(table).glob("*.checkpoint.parquet"):
            path.unlink()
        checkpoint(lake, table, now_ms=now_ms)
        found = checkpointed(log_of(table) / f"{version:020d}.checkpoint.parquet")
        assert {path for path, _ in found.adds} == {"d"}
        return {path for path, _ in found.removes}

    # Our own commits give every remove the time of its commit where it has none.
    stamped = {
        path
        for path, _ in replayed(log_of(table), version).kept(tombstones_after=start - 1).removes
    }
    assert removed(start + 2 * DAY_MS - 1) == stamped
    assert "b" in stamped
    assert "a" not in stamped
    assert "a" in removed(start - 2 * DAY_MS)
    assert removed(start + 3 * DAY_MS) == set()


def test_of_a_file_that_was_removed_twice_there_is_one_tombstone(
    lake: Lake, tmp_path: Path, clock: ManualClock
) -> None:
    now = clock.now_ms()
    later = {"path": "f", "deletionTimestamp": now + 2, "dataChange": True}
    for version, actions in enumerate(
        (
            [PROTOCOL, metadata(), add("f")],
            [{"remove": {**later, "deletionTimestamp": now + 1}}],
            [{"remove": later}],
            [add("g")],
        )
    ):
        write_commit(tmp_path / "odd", version, actions, at_ms=now + version)
    table = lake.import_table(str(tmp_path / "odd"), name="odd")
    checkpoint(lake, table)
    (file,) = log_of(table).glob("*.checkpoint.parquet")
    found = checkpointed(file)
    assert found == replayed(log_of(table), 3)
    assert found.removes["f", ""]["deletionTimestamp"] == now + 2


def test_a_deletion_that_is_far_ahead_of_its_commit_is_not_believed(
    lake: Lake, make_table: Any, clock: ManualClock
) -> None:
    table = make_table()
    table.commit([add("f")])
    gone = {"path": "f", "dataChange": True, "deletionTimestamp": clock.now_ms() + 30 * DAY_MS}
    table.commit([{"remove": gone}])
    version = publish(lake, table)
    file = log_of(table) / f"{version:020d}.checkpoint.parquet"
    for days, kept in ((7, True), (9, False)):
        file.unlink(missing_ok=True)
        checkpoint(lake, table, now_ms=clock.now_ms() + days * DAY_MS)
        assert bool(checkpointed(file).removes) == kept


def test_app_transactions_expire_only_where_the_table_says_so(
    lake: Lake, make_table: Any, clock: ManualClock
) -> None:
    now = clock.now_ms()
    actions = [
        {"txn": {"appId": "old", "version": 1, "lastUpdated": now - 2 * DAY_MS}},
        {"txn": {"appId": "new", "version": 2, "lastUpdated": now}},
        {"txn": {"appId": "silent", "version": 3}},
    ]
    keeping = make_table("keeping")
    losing = make_table(
        "losing", properties={"delta.setTransactionRetentionDuration": "interval 1 day"}
    )
    for table, left in ((keeping, {"old", "new", "silent"}), (losing, {"new"})):
        table.commit(actions)
        publish(lake, table)
        checkpoint(lake, table)
        (file,) = log_of(table).glob("*.checkpoint.parquet")
        assert set(checkpointed(file).txns) == left


def test_unknown_fields_do_not_stand_in_the_way(lake: Lake, make_table: Any) -> None:
    table = make_table(properties=VECTORS)
    vector = {**deletion_vector(1), "maxRowIndex": 7}
    table.commit(
        [
            {"add": {**add("f")["add"], "later": {"x": [1, None]}}},
            {"add": {**add("g")["add"], "deletionVector": vector}},
        ]
    )
    version = publish(lake, table)
    checkpoint(lake, table)
    found = checkpointed(log_of(table) / f"{version:020d}.checkpoint.parquet")
    assert found == replayed(log_of(table), version)


def test_statistics_as_properties_ask(lake: Lake, make_table: Any) -> None:
    table = make_table(
        schema=schema_json("id", ("day", "date")),
        partition_by=["day"],
        properties={
            "delta.checkpoint.writeStatsAsStruct": "true",
            "delta.checkpoint.writeStatsAsJson": "false",
        },
    )
    body = add("f", values={"day": "2024-01-02"})["add"]
    stats = {
        "numRecords": 5,
        "minValues": {"id": 1},
        "maxValues": {"id": 9},
        "nullCount": {"id": 0},
    }
    table.commit([{"add": {**body, "stats": json.dumps(stats)}}])
    publish(lake, table)
    checkpoint(lake, table)
    (file,) = log_of(table).glob("*.checkpoint.parquet")
    (found,) = pq.read_table(file)["add"].drop_null().to_pylist()
    assert "stats" not in found
    assert found["stats_parsed"] == {**stats, "tightBounds": None}
    assert str(found["partitionValues_parsed"]["day"]) == "2024-01-02"


def test_an_empty_table_has_a_checkpoint_too(lake: Lake, make_table: Any) -> None:
    table = make_table()
    table.commit([{"txn": {"appId": "a", "version": 1}}])
    version = publish(lake, table)
    assert checkpoint(lake, table).size == 3
    found = checkpointed(log_of(table) / f"{version:020d}.checkpoint.parquet")
    assert found == replayed(log_of(table), version)


# --- when ---------------------------------------------------------------------------------


def test_only_published_versions_have_a_checkpoint_or_checksum(lake: Lake, make_table: Any) -> None:
    table = make_table()
    publish(lake, table)
    table.commit([add("f")])
    before = sorted(path.name for path in log_of(table).iterdir())
    for write in (checkpoint, checksum):
        with pytest.raises(NotPublishedError, match="Version 1"):
            write(lake, table)
        with pytest.raises((NotPublishedError, VersionNotFoundError)):
            write(lake, table, 7)
    assert sorted(path.name for path in log_of(table).iterdir()) == before


@pytest.mark.parametrize(
    ("properties", "due"),
    [
        ({}, [10, 20]),
        ({"delta.checkpointInterval": "7"}, [7, 14, 21]),
        ({"delta.checkpointInterval": "1"}, list(range(1, 25))),
        ({"delta.checkpointInterval": "soon"}, [10, 20]),
    ],
)
def test_checkpoints_are_due_by_the_interval(properties: dict[str, str], due: list[int]) -> None:
    assert [v for v in range(1, 25) if v % checkpoint_interval(properties) == 0] == due


# --- which files --------------------------------------------------------------------------


def test_one_file_by_default_and_the_hint_names_it(lake: Lake, make_table: Any) -> None:
    table = make_table()
    version = grown(lake, table)
    written = checkpoint(lake, table)
    name = f"{version:020d}.checkpoint.parquet"
    assert parquet_files(table) == [name]
    size = (log_of(table) / name).stat().st_size
    found = hint(table)
    assert list(found)[:2] == ["version", "size"]
    assert found["version"] == version
    assert found["size"] == written.size == pq.read_metadata(log_of(table) / name).num_rows
    assert (found["sizeInBytes"], found["numOfAddFiles"]) == (size, 4)
    assert parse_hint((log_of(table) / "_last_checkpoint").read_bytes()) is not None


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_many_actions_are_written_in_parts(lake: Lake, make_table: Any, limit: int) -> None:
    table = make_table()
    version = grown(lake, table)
    written = checkpoint(lake, table, max_actions=limit)
    # Four files are live, one is a tombstone; protocol and metaData have a part of their own.
    parts = {1: 6, 2: 4, 3: 3, 100: None}[limit]
    assert written.parts == parts
    files = sorted(log_of(table).glob("*.parquet"))
    if parts is not None:
        assert [file.name for file in files] == [
            f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"
            for part in range(1, parts + 1)
        ]
        assert list(hint(table))[:3] == ["version", "size", "parts"]
        assert hint(table)["parts"] == parts
        assert max(pq.read_metadata(file).num_rows for file in files[1:]) <= limit
    assert checkpointed(*files) == replayed(log_of(table), version)
    assert hint(table)["size"] == sum(pq.read_metadata(file).num_rows for file in files)
    assert hint(table)["sizeInBytes"] == sum(file.stat().st_size for file in files)


def test_the_size_of_parts_can_be_a_property(lake: Lake, make_table: Any) -> None:
    table = make_table(properties={"delta.checkpoint.partSize": "3"})
    grown(lake, table)
    assert checkpoint(lake, table).parts == 3


def test_parts_of_a_broken_attempt_are_never_mixed_with_others(lake: Lake, make_table: Any) -> None:
    table = make_table()
    version = grown(lake, table)
    checkpoint(lake, table, max_actions=2)
    left = log_of(table) / f"{version:020d}.checkpoint.{4:010d}.{4:010d}.parquet"
    left.unlink()
    before = {path: path.read_bytes() for path in log_of(table).glob("*.parquet")}
    written = checkpoint(lake, table, max_actions=2)
    assert written.parts == 5
    assert {path: path.read_bytes() for path in before} == before
    files = sorted(log_of(table).glob(f"*.{5:010d}.parquet"))
    assert checkpointed(*files) == replayed(log_of(table), version)


def test_a_v2_checkpoint_names_its_sidecars(lake: Lake, make_table: Any) -> None:
    table = make_table(properties=V2)
    version = grown(lake, table)
    written = checkpoint(lake, table, max_actions=2)
    log = log_of(table)
    (top,) = log.glob("*.checkpoint.*.parquet")
    sidecars = sorted((log / "_sidecars").iterdir())
    assert len(sidecars) == 3
    assert checkpointed(top) == replayed(log, version)
    rows = pq.read_table(top)
    assert rows["checkpointMetadata"].drop_null().to_pylist() == [
        {"version": version, "tags": None}
    ]
    assert rows["add"].null_count == rows["remove"].null_count == rows.num_rows
    named = {row["path"]: row for row in rows["sidecar"].drop_null().to_pylist()}
    assert set(named) == {path.name for path in sidecars}
    for path in sidecars:
        assert named[path.name]["sizeInBytes"] == path.stat().st_size
        assert named[path.name]["modificationTime"] == path.stat().st_mtime_ns // 1_000_000
    assert written.size == rows.num_rows + 5
    found = hint(table)["v2Checkpoint"]
    assert found["path"] == top.name
    assert found["sizeInBytes"] == top.stat().st_size
    assert {sidecar["path"] for sidecar in found["sidecarFiles"]} == set(named)
    assert [next(iter(a)) for a in found["nonFileActions"]] == [
        "protocol",
        "metaData",
        "checkpointMetadata",
    ]


def test_a_v2_checkpoint_of_an_empty_table_has_no_sidecar(lake: Lake, make_table: Any) -> None:
    table = make_table(properties=V2)
    publish(lake, table)
    checkpoint(lake, table, 0)
    (top,) = log_of(table).glob("*.checkpoint.*.parquet")
    assert checkpointed(top) == replayed(log_of(table), 0)
    assert not (log_of(table) / "_sidecars").exists()


def test_with_the_feature_and_the_classic_policy_there_is_one_file_whatever_its_size(
    lake: Lake, make_table: Any
) -> None:
    table = make_table(properties={"delta.feature.v2Checkpoint": "supported"})
    version = grown(lake, table)
    assert checkpoint(lake, table, max_actions=1).parts is None
    assert parquet_files(table) == [f"{version:020d}.checkpoint.parquet"]


# --- again, and late ----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 2])
def test_a_checkpoint_that_is_there_is_named_and_not_written_again(
    lake: Lake, make_table: Any, limit: int | None
) -> None:
    table = make_table()
    grown(lake, table)
    first = checkpoint(lake, table, max_actions=limit)
    # Somebody died between the checkpoint and its hint.
    (log_of(table) / "_last_checkpoint").unlink()
    times = {path: path.stat().st_mtime_ns for path in log_of(table).glob("*.parquet")}
    assert checkpoint(lake, table, max_actions=limit) == first
    assert {path: path.stat().st_mtime_ns for path in log_of(table).glob("*.parquet")} == times
    assert hint(table)["version"] == first.version
    assert hint(table).get("parts") == first.parts


def test_a_damaged_checkpoint_is_replaced(lake: Lake, make_table: Any) -> None:
    table = make_table()
    version = grown(lake, table)
    file = log_of(table) / f"{version:020d}.checkpoint.parquet"
    checkpoint(lake, table)
    good = file.read_bytes()
    for damaged in (b"", b"PAR1", good[:-1], good[:-100] + b"\xff" * 92 + good[-8:]):
        file.write_bytes(damaged)
        checkpoint(lake, table)
        assert checkpointed(file) == replayed(log_of(table), version)


def test_a_late_checkpoint_does_not_turn_the_hint_back(lake: Lake, make_table: Any) -> None:
    table = make_table()
    version = grown(lake, table)
    checkpoint(lake, table, version)
    checkpoint(lake, table, version - 2)
    assert (log_of(table) / f"{version - 2:020d}.checkpoint.parquet").exists()
    assert hint(table)["version"] == version


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"version":999,"size":3}'])
def test_a_hint_that_is_damaged_or_names_nothing_is_replaced(
    lake: Lake, make_table: Any, content: bytes
) -> None:
    table = make_table()
    version = grown(lake, table)
    (log_of(table) / "_last_checkpoint").write_bytes(content)
    checkpoint(lake, table)
    assert hint(table)["version"] == version


def test_checksums_of_local_hadoop_files_go_with_what_they_were_of(
    lake: Lake, make_table: Any
) -> None:
    table = make_table()
    grown(lake, table)
    stale = log_of(table) / "._last_checkpoint.crc"
    stale.write_bytes(b"crc\0")
    checkpoint(lake, table)
    assert not stale.exists()


# --- trouble ------------------------------------------------------------------------------


def test_a_listing_that_is_not_complete_never_becomes_a_checkpoint(
    lake: Lake, make_table: Any
) -> None:
    table = make_table()
    grown(lake, table)
    with lake.store.write() as session:
        session.execute_count(
            lake.store.dialect.sql(
                "DELETE FROM dl_active_files WHERE table_id = :table_id AND path = 'f3'"
            ),
            {"table_id": table.table_id},
        )
    before = sorted(path.name for path in log_of(table).iterdir())
    with pytest.raises(CorruptCatalogError, match="lists 3 files, and its ledger counts 4"):
        checkpoint(lake, table)
    assert sorted(path.name for path in log_of(table).iterdir()) == before


def test_a_property_that_cannot_be_read_is_told(lake: Lake, make_table: Any) -> None:
    table = make_table()
    log = log_of(table)
    grown(lake, table)
    imported = log.parent.parent / "imported"
    log.parent.rename(imported)
    first = imported / "_delta_log" / f"{0:020d}.json"
    first.write_text(
        first.read_text("utf-8").replace(
            '"configuration":{', '"configuration":{"delta.deletedFileRetentionDuration":"soon",', 1
        ),
        "utf-8",
    )
    other = lake.import_table(str(imported), name="imported")
    with pytest.raises(ConfigurationError, match="deletedFileRetentionDuration"):
        checkpoint(lake, other)


# --- checksums ----------------------------------------------------------------------------


def checksum(lake: Lake, table: Table, version: int | None = None) -> bool:
    at = table.version if version is None else version
    return write_checksum(lake.store, storage_of(table), record_of(lake, table), at)


def crc(table: Table, version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((log_of(table) / f"{version:020d}.crc").read_bytes())
    return found


def test_a_checksum_says_what_the_table_adds_up_to(lake: Lake, make_table: Any) -> None:
    table = make_table(properties={"delta.feature.domainMetadata": "supported"})
    table.commit([add("f", size=7), {"txn": {"appId": "a", "version": 3}}])
    table.commit([{"domainMetadata": {"domain": "d", "configuration": "x", "removed": False}}])
    version = publish(lake, table)
    assert checksum(lake, table)
    found = crc(table, version)
    state = replayed(log_of(table), version)
    assert (found["tableSizeBytes"], found["numFiles"]) == (7, 1)
    assert (found["numMetadata"], found["numProtocol"]) == (1, 1)
    assert found["metadata"] == state.metadata
    protocol = {k: sorted(v) if isinstance(v, list) else v for k, v in found["protocol"].items()}
    assert protocol == state.protocol
    assert found["setTransactions"] == [{"appId": "a", "version": 3}]
    assert found["domainMetadata"] == [{"domain": "d", "configuration": "x", "removed": False}]
    lines = (log_of(table) / f"{version:020d}.json").read_text("utf-8").splitlines()
    info = json.loads(lines[0])["commitInfo"]
    assert found["inCommitTimestampOpt"] == info["inCommitTimestamp"]
    assert found.get("txnId") == info.get("txnId")


def test_a_checksum_is_written_once(lake: Lake, make_table: Any) -> None:
    table = make_table()
    version = publish(lake, table)
    path = log_of(table) / f"{version:020d}.crc"
    path.write_bytes(b"of somebody else")
    assert not checksum(lake, table)
    assert path.read_bytes() == b"of somebody else"


def test_without_in_commit_timestamps_a_checksum_has_none(lake: Lake, make_table: Any) -> None:
    table = make_table(properties={"delta.enableInCommitTimestamps": "false"})
    version = publish(lake, table)
    checksum(lake, table)
    assert "inCommitTimestampOpt" not in crc(table, version)


# --- many files ---------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 2**30])
@pytest.mark.parametrize("paged", [True, False])
def test_a_large_table_is_streamed_from_pages_or_rows(
    lake: Lake, make_table: Any, monkeypatch: pytest.MonkeyPatch, paged: bool, ahead: int
) -> None:
    monkeypatch.setattr("deltalakedb.mirror.checkpoint_source.LEAST_STREAMED", 0)
    monkeypatch.setattr("deltalakedb.snapshot.pages.LEAST_STREAMED", 0 if paged else 2**62)
    monkeypatch.setattr("deltalakedb.snapshot.page_builder.PAGE_FILES", 300)
    monkeypatch.setattr("deltalakedb.mirror.checkpoint_source.ROW_GROUP", 300)
    monkeypatch.setattr("deltalakedb.mirror.checkpoint_source._MOST_AHEAD", ahead)
    table = make_table()
    table.commit([add(f"f{number:04}") for number in range(1500)])
    table.commit([remove(f"f{number:04}") for number in range(0, 1500, 3)])
    table.commit([add("late")])
    version = publish(lake, table)
    checkpoint(lake, table)
    file = log_of(table) / f"{version:020d}.checkpoint.parquet"
    assert checkpointed(file) == replayed(log_of(table), version)
    assert pq.ParquetFile(file).num_row_groups > 4


def test_the_file_holds_types_that_every_reader_takes(lake: Lake, make_table: Any) -> None:
    table = make_table()
    grown(lake, table)
    checkpoint(lake, table)
    (file,) = log_of(table).glob("*.checkpoint.parquet")
    parquet = pq.ParquetFile(file)
    assert parquet.schema_arrow.field("protocol").type.field(0).type == pa.int32()
    assert b"ARROW:schema" not in (parquet.metadata.metadata or {})
    assert parquet.metadata.row_group(0).column(0).compression == "SNAPPY"
