"""Tables come, change and go: each change is a commit with the right actions and name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidArgumentError,
    InvalidSchemaError,
    MetadataChangedError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import (
    SCHEMA,
    Json,
    OpenLake,
    add,
    check_ledger,
    commit_info,
    kinds,
    live_paths,
    new_lake_table,
    published,
    row_counts,
    schema_json,
)


@pytest.fixture
def table(lake: Lake) -> Table:
    """An empty table."""
    return new_lake_table(lake)


def _line(lake: Lake, table: Table, version: int, name: str) -> Json:
    """The body of an action of a version, as the mirror will publish it."""
    (found,) = (line[name] for line in published(lake, table, version) if name in line)
    assert isinstance(found, dict)
    return found


def _columns(table: Table) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in table.snapshot().schema.fields]


# --- creating -----------------------------------------------------------------------------


class SparkStructType:
    """What is known of a Spark schema without PySpark: `fields`, and `json()`."""

    fields = ("id", "day")

    def json(self) -> str:
        return SCHEMA


@pytest.mark.parametrize(
    "schema",
    [pa.schema([("id", pa.int64()), ("day", pa.string())]), SCHEMA, SparkStructType()],
    ids=["arrow", "json", "spark"],
)
def test_a_schema_comes_as_arrow_json_or_spark(lake: Lake, schema: Any) -> None:
    table = new_lake_table(lake, schema=schema, partition_by=["day"])
    assert _columns(table) == [("id", "long"), ("day", "string")]
    assert table.snapshot().partition_columns == ("day",)
    assert json.loads(_line(lake, table, 0, "metaData")["schemaString"]) == json.loads(SCHEMA)


def test_a_new_table_is_version_zero_with_protocol_and_metadata(
    lake: Lake, clock: ManualClock
) -> None:
    table = lake.create_table(
        "sales.orders",
        location="s3://bucket/orders/",
        schema=SCHEMA,
        partition_by=["day"],
        properties={"owner": "me"},
        description="What was ordered",
    )
    assert (table.version, table.location) == (0, "s3://bucket/orders")
    assert kinds(published(lake, table, 0)) == ["commitInfo", "protocol", "metaData"]
    metadata = _line(lake, table, 0, "metaData")
    assert metadata == {
        "id": table.table_id,
        "name": "sales.orders",
        "description": "What was ordered",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": metadata["schemaString"],
        "partitionColumns": ["day"],
        "configuration": {"delta.enableInCommitTimestamps": "true", "owner": "me"},
        "createdTime": clock.now_ms(),
    }
    info = commit_info(lake, table, 0)
    assert info["operation"] == "CREATE TABLE"
    assert info["operationParameters"] == {
        "isManaged": "false",
        "description": "What was ordered",
        "partitionBy": '["day"]',
        "properties": json.dumps(metadata["configuration"], separators=(",", ":")),
    }
    assert "readVersion" not in info
    assert info["isBlindAppend"] is False
    assert info["inCommitTimestamp"] == clock.now_ms()
    check_ledger(lake, table)


def test_in_commit_timestamps_are_on_and_keep_foreign_writers_out(lake: Lake, table: Table) -> None:
    protocol = _line(lake, table, 0, "protocol")
    assert protocol == {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["appendOnly", "inCommitTimestamp", "invariants"],
    }


def test_without_in_commit_timestamps_the_protocol_is_the_oldest(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.enableInCommitTimestamps": "false"})
    assert _line(lake, table, 0, "protocol") == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert "inCommitTimestamp" not in commit_info(lake, table, 0)
    table.commit([add("a.parquet")])
    check_ledger(lake, table)


def test_properties_of_a_new_table_bring_their_features(lake: Lake) -> None:
    table = new_lake_table(
        lake,
        schema=schema_json("id", ("at", "timestamp_ntz")),
        properties={"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"},
    )
    protocol = _line(lake, table, 0, "protocol")
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (3, 7)
    assert protocol["readerFeatures"] == ["deletionVectors", "timestampNtz"]
    assert {"rowTracking", "domainMetadata", "inCommitTimestamp"} < set(protocol["writerFeatures"])


def test_a_name_can_be_taken_once(lake: Lake, table: Table) -> None:
    before = row_counts(lake)
    with pytest.raises(TableExistsError, match=r"named 'sales\.orders' exists already"):
        lake.create_table("sales.orders", location="file:///elsewhere", schema=SCHEMA)
    assert row_counts(lake) == before
    # Names are what they are: letters of another case are another name.
    assert lake.create_table("Sales.Orders", location="file:///other", schema=SCHEMA).version == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:///data/orders", "file:///data/orders"),
        ("file:///data/orders", "/data/orders/"),
        ("file:///data/orders", "file:/data/orders"),
        ("file:///data/orders", "file://localhost/data//orders"),
        ("file:///data/orders", "/data/./x/../orders"),
        ("file:///data/my%20orders", "/data/my orders"),
        ("s3://bucket/orders", "s3://bucket/orders/"),
        ("s3://bucket/orders", "S3://bucket/orders"),
        ("s3://bucket/orders", "s3a://bucket/orders"),
        ("gs://bucket/orders", "gcs://bucket/orders"),
    ],
)
def test_a_location_can_be_taken_once_however_it_is_spelled(
    lake: Lake, one: str, other: str
) -> None:
    lake.create_table("one", location=one, schema=SCHEMA)
    before = row_counts(lake)
    with pytest.raises(TableExistsError, match=r"belongs to table 'one'"):
        lake.create_table("two", location=other, schema=SCHEMA)
    assert row_counts(lake) == before
    assert lake.table(other).name == "one"


def test_a_relative_location_is_where_the_process_is(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = lake.create_table("here", location="orders", schema=SCHEMA)
    assert table.location == (tmp_path / "orders").as_uri()


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a\nb", "a\x00b", "\t", 7, None], ids=repr)
def test_a_name_is_text_that_can_be_seen(lake: Lake, name: Any) -> None:
    before = row_counts(lake)
    with pytest.raises(ConfigurationError, match="is no name"):
        lake.create_table(name, location="file:///data/t", schema=SCHEMA)
    assert row_counts(lake) == before


@pytest.mark.parametrize(
    "location",
    ["", "  ", "ftp://host/t", "http://host/t", "s3://", "s3:///t", "file://host/t", 7, None],
    ids=repr,
)
def test_a_location_is_a_place_that_can_be_reached(lake: Lake, location: Any) -> None:
    before = row_counts(lake)
    with pytest.raises(ConfigurationError, match="location"):
        lake.create_table("t", location=location, schema=SCHEMA)
    assert row_counts(lake) == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"schema": "nonsense"}, InvalidSchemaError),
        ({"schema": None}, InvalidArgumentError),
        ({"schema": schema_json("a", "A")}, CommitRejectedError),
        ({"partition_by": ["missing"]}, DeltaLakeDbError),
        ({"partition_by": ["day", "day"]}, DeltaLakeDbError),
        ({"partition_by": ["id", "day"]}, DeltaLakeDbError),
        ({"partition_by": "day"}, DeltaLakeDbError),
        ({"properties": {"delta.appendOnly": "perhaps"}}, ConfigurationError),
        ({"properties": {"delta.apendOnly": "true"}}, ConfigurationError),
        ({"properties": {"delta.isolationLevel": "SnapshotIsolation"}}, DeltaLakeDbError),
        ({"properties": {"delta.feature.fromTheFuture": "supported"}}, UnsupportedFeatureError),
    ],
    ids=repr,
)
def test_a_table_that_cannot_be_is_not_created(
    lake: Lake, options: dict[str, Any], error: type[DeltaLakeDbError]
) -> None:
    before = row_counts(lake)
    with pytest.raises(error):
        new_lake_table(lake, **options)
    assert row_counts(lake) == before
    assert lake.tables() == []


def test_properties_may_be_given_as_values(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.appendOnly": True, "n": 3})
    properties = table.snapshot().properties
    assert (properties["delta.appendOnly"], properties["n"]) == ("true", "3")


# --- finding ------------------------------------------------------------------------------


def test_a_table_is_found_by_name_and_by_location(lake: Lake, table: Table) -> None:
    for found in (lake.table("sales.orders"), lake.table("file:///lake/sales.orders")):
        assert found.table_id == table.table_id
        assert repr(found) == "Table('sales.orders', location='file:///lake/sales.orders')"


def test_an_unknown_table_is_an_error_that_helps(lake: Lake, table: Table) -> None:
    with pytest.raises(TableNotFoundError, match=r"Did you mean 'sales\.orders'\?"):
        lake.table("sales.order")
    with pytest.raises(TableNotFoundError, match=r"Did you mean 'sales\.orders'\?"):
        lake.table("orders")
    with pytest.raises(TableNotFoundError, match=r"lake\.tables\(\)"):
        lake.table("xyz")
    for odd in ("", "file:///nowhere", "s3://bucket/nowhere", "http://host/x", "a/b"):
        with pytest.raises(TableNotFoundError):
            lake.table(odd)


def test_tables_are_listed_by_name(lake: Lake) -> None:
    assert lake.tables() == []
    for name in ("b", "c", "a", "ä"):
        new_lake_table(lake, name)
    assert sorted(table.name for table in lake.tables()) == ["a", "b", "c", "ä"]
    assert [table.name for table in lake.tables()][:3] == ["a", "b", "c"]


def test_another_connection_sees_the_same_tables(
    lake: Lake, open_lake: OpenLake, table: Table
) -> None:
    other = open_lake().table("sales.orders")
    assert (other.table_id, other.version) == (table.table_id, 0)


# --- dropping -----------------------------------------------------------------------------


def test_a_dropped_table_leaves_no_rows_and_may_come_again(lake: Lake, table: Table) -> None:
    empty = dict.fromkeys(row_counts(lake), 0)
    kept = new_lake_table(lake, "kept")
    with_kept = {name: n // 2 for name, n in row_counts(lake).items()}
    table.commit([add("a.parquet"), {"txn": {"appId": "app", "version": 1}}])
    table.set_properties({"owner": "me"})
    lake.drop_table("sales.orders", force=True)
    assert row_counts(lake) == with_kept
    assert [t.name for t in lake.tables()] == ["kept"]
    with pytest.raises(TableNotFoundError):
        lake.table("sales.orders")
    with pytest.raises(TableNotFoundError):
        lake.drop_table("sales.orders", force=True)
    again = new_lake_table(lake)
    assert again.table_id != table.table_id
    assert (again.version, live_paths(again)) == (0, [])
    assert again.commit([add("a.parquet")], app_txn=("app", 1)) == 1
    lake.drop_table(again.location, force=True)
    lake.drop_table(kept.name, force=True)
    assert row_counts(lake) == empty


def test_nothing_can_be_done_with_a_dropped_table(lake: Lake, table: Table) -> None:
    assert table.version == 0
    lake.drop_table(table.name, force=True)
    before = row_counts(lake)
    verbs: list[Callable[[], object]] = [
        lambda: table.commit([add("a.parquet")]),
        lambda: table.set_properties({"a": "b"}),
        lambda: table.add_columns(schema_json("more")),
        lambda: table.upgrade_protocol("deletionVectors"),
        lambda: table.rename("other"),
    ]
    for verb in verbs:
        with pytest.raises(TableNotFoundError, match="dropped"):
            verb()
    assert row_counts(lake) == before


# --- renaming -----------------------------------------------------------------------------


def test_a_table_can_be_renamed(lake: Lake, table: Table) -> None:
    table.commit([add("a.parquet")])
    other = lake.table(table.name)
    assert other.version == 1
    assert table.rename("sales.all") == 2
    assert table.name == "sales.all"
    with pytest.raises(TableNotFoundError):
        lake.table("sales.orders")
    assert lake.table("sales.all").table_id == table.table_id
    info = commit_info(lake, table, 2)
    assert info["operation"] == "RENAME TABLE"
    assert info["operationParameters"] == {"from": "sales.orders", "to": "sales.all"}
    assert kinds(published(lake, table, 2)) == ["commitInfo", "metaData"]
    assert _line(lake, table, 2, "metaData")["name"] == "sales.all"
    # Its location, id and history stay, and the old name is free.
    assert live_paths(table) == ["a.parquet"]
    assert [record.version for record in table.history()] == [2, 1, 0]
    assert new_lake_table_at(lake, "sales.orders").version == 0
    # A handle by the old name is still a handle on this table.
    with pytest.raises(MetadataChangedError):
        other.commit([add("b.parquet")])
    other.refresh()
    assert other.commit([add("b.parquet")]) == 3
    check_ledger(lake, table)


def new_lake_table_at(lake: Lake, name: str) -> Table:
    return lake.create_table(name, location="file:///lake/elsewhere", schema=SCHEMA)


@pytest.mark.parametrize("name", ["taken", "sales.orders", "", " x"], ids=repr)
def test_a_name_that_cannot_be_had_changes_nothing(lake: Lake, table: Table, name: str) -> None:
    new_lake_table(lake, "taken")
    before = row_counts(lake)
    with pytest.raises((TableExistsError, ConfigurationError)):
        table.rename(name)
    assert row_counts(lake) == before
    assert (table.name, table.version) == ("sales.orders", 0)
    assert table.commit([add("a.parquet")]) == 1


# --- properties ---------------------------------------------------------------------------


def test_setting_properties_is_a_commit(lake: Lake, table: Table) -> None:
    assert table.set_properties({"owner": "me", "delta.logRetentionDuration": "7 days"}) == 1
    assert table.set_properties({"owner": "you"}) == 2
    properties = lake.table(table.name).snapshot().properties
    assert properties == {
        "delta.enableInCommitTimestamps": "true",
        "delta.logRetentionDuration": "7 days",
        "owner": "you",
    }
    assert table.snapshot(0).properties == {"delta.enableInCommitTimestamps": "true"}
    info = commit_info(lake, table, 2)
    assert info["operation"] == "SET TBLPROPERTIES"
    assert info["operationParameters"] == {"properties": '{"owner":"you"}'}
    assert kinds(published(lake, table, 2)) == ["commitInfo", "metaData"]
    assert _registry(lake, table)["properties"] == properties
    check_ledger(lake, table)


def _registry(lake: Lake, table: Table) -> dict[str, Any]:
    with lake.store.read() as session:
        record = lake.store.table_by_name(session, table.name)
    assert record is not None
    return {
        "properties": record.properties,
        "versions": (record.protocol_min_reader, record.protocol_min_writer),
    }


def test_unsetting_properties_is_a_commit(lake: Lake, table: Table) -> None:
    table.set_properties({"a": "1", "b": "2"})
    assert table.unset_properties(["a"]) == 2
    assert table.snapshot().properties == {"delta.enableInCommitTimestamps": "true", "b": "2"}
    info = commit_info(lake, table, 2)
    assert info["operation"] == "UNSET TBLPROPERTIES"
    assert info["operationParameters"] == {"properties": '["a"]', "ifExists": "false"}
    before = row_counts(lake)
    with pytest.raises(ConfigurationError, match="no property 'a'"):
        table.unset_properties(["b", "a"])
    assert row_counts(lake) == before
    assert table.unset_properties(["b", "a"], if_exists=True) == 3


@pytest.mark.parametrize(
    ("name", "feature", "readers"),
    [
        ("delta.enableChangeDataFeed", "changeDataFeed", None),
        ("delta.enableDeletionVectors", "deletionVectors", ["deletionVectors"]),
        ("delta.enableTypeWidening", "typeWidening", ["typeWidening"]),
    ],
)
def test_a_property_that_needs_a_feature_upgrades_the_protocol(
    lake: Lake, table: Table, name: str, feature: str, readers: list[str] | None
) -> None:
    table.set_properties({name: "true"})
    assert kinds(published(lake, table, 1)) == ["commitInfo", "protocol", "metaData"]
    protocol = _line(lake, table, 1, "protocol")
    assert feature in protocol["writerFeatures"]
    assert "inCommitTimestamp" in protocol["writerFeatures"]
    assert protocol.get("readerFeatures") == readers
    assert _registry(lake, table)["versions"] == (3 if readers else 1, 7)
    # It has the feature now: no second upgrade, also not to switch it off.
    table.set_properties({name: "false"})
    assert kinds(published(lake, table, 2)) == ["commitInfo", "metaData"]


def test_an_old_protocol_stays_old_where_it_can(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.enableInCommitTimestamps": "false"})
    table.set_properties({"delta.enableChangeDataFeed": "true"})
    assert _line(lake, table, 1, "protocol") == {"minReaderVersion": 1, "minWriterVersion": 4}
    table.set_properties({"delta.enableInCommitTimestamps": "true"})
    protocol = _line(lake, table, 2, "protocol")
    assert protocol["minWriterVersion"] == 7
    assert {"changeDataFeed", "generatedColumns", "checkConstraints"} < set(
        protocol["writerFeatures"]
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.appendOnly": "maybe"},
        {"delta.checkpointInterval": "0"},
        {"delta.logRetentionDuration": "a while"},
        {"delta.isolationLevel": "Chaos"},
        {"delta.isolationLevel": "SnapshotIsolation"},
        {"delta.nonsense": "x"},
        {"delta.feature.fromTheFuture": "supported"},
        {"delta.columnMapping.mode": "id"},
        {"delta.constraints.positive": "id >"},
        {"delta.constraints.positive": "no_such > 0"},
        "nonsense",
        {1: "x"},
    ],
    ids=repr,
)
def test_nonsense_properties_are_refused(lake: Lake, table: Table, properties: Any) -> None:
    before = row_counts(lake)
    with pytest.raises(DeltaLakeDbError):
        table.set_properties(properties)
    assert row_counts(lake) == before


def test_a_change_of_properties_that_lost_is_refused(lake: Lake, table: Table) -> None:
    other = lake.table(table.name)
    assert other.version == 0
    table.set_properties({"a": "1"})
    with pytest.raises(MetadataChangedError, match="'a'"):
        other.set_properties({"b": "2"})
    assert table.snapshot().properties.get("b") is None
