"""Changes of columns, column mapping and protocol: each is a commit, or changes nothing."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    DeltaLakeDbError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table
from operations.test_table_changes import _columns, _line, _registry

from support.lake import (
    add,
    check_ledger,
    commit_info,
    kinds,
    new_lake_table,
    published,
    row_counts,
    schema_json,
)


@pytest.fixture
def table(lake: Lake) -> Table:
    return new_lake_table(lake)


# --- columns ------------------------------------------------------------------------------


def test_columns_are_added_at_the_end(lake: Lake, table: Table) -> None:
    table.commit([add("a.parquet")])
    assert table.add_columns(pa.schema([("price", pa.decimal128(10, 2)), ("note", pa.string())]))
    assert _columns(table) == [
        ("id", "long"),
        ("day", "string"),
        ("price", "decimal(10,2)"),
        ("note", "string"),
    ]
    assert len(table.snapshot(1).schema.fields) == 2
    info = commit_info(lake, table, 2)
    assert info["operation"] == "ADD COLUMNS"
    shown = json.loads(info["operationParameters"]["columns"])
    assert [entry["column"]["name"] for entry in shown] == ["price", "note"]
    assert kinds(published(lake, table, 2)) == ["commitInfo", "metaData"]
    check_ledger(lake, table)


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        (pa.schema([pa.field("more", pa.int64(), nullable=False)]), "added-column-nullable"),
        (schema_json("ID"), "column-names-unique"),
        (schema_json("day"), "column-names-unique"),
        (schema_json("more", "MORE"), "schema"),
    ],
)
def test_a_column_that_cannot_be_added_changes_nothing(
    lake: Lake, table: Table, columns: Any, rule: str
) -> None:
    before = row_counts(lake)
    with pytest.raises(CommitRejectedError) as refusal:
        table.add_columns(columns)
    assert refusal.value.rule == rule
    assert row_counts(lake) == before


@pytest.mark.parametrize("columns", [None, "nonsense", 7], ids=repr)
def test_columns_must_be_a_schema_of_some(lake: Lake, table: Table, columns: Any) -> None:
    before = row_counts(lake)
    with pytest.raises(DeltaLakeDbError):
        table.add_columns(columns)
    assert row_counts(lake) == before


def test_a_column_of_a_newer_type_upgrades_the_protocol(lake: Lake, table: Table) -> None:
    table.add_columns(schema_json(("at", "timestamp_ntz")))
    assert kinds(published(lake, table, 1)) == ["commitInfo", "protocol", "metaData"]
    protocol = _line(lake, table, 1, "protocol")
    assert protocol["readerFeatures"] == ["timestampNtz"]
    assert "timestampNtz" in protocol["writerFeatures"]


# --- column mapping -----------------------------------------------------------------------


def _mapping(table: Table) -> list[tuple[str, int, str]]:
    return [
        (
            field.name,
            field.metadata["delta.columnMapping.id"],
            field.metadata["delta.columnMapping.physicalName"],
        )
        for field in table.snapshot().schema.fields
    ]


def test_a_table_with_column_mapping_gives_columns_ids_and_names_of_their_own(lake: Lake) -> None:
    table = new_lake_table(
        lake, partition_by=["day"], properties={"delta.columnMapping.mode": "name"}
    )
    (_, one, first), (_, two, second) = _mapping(table)
    assert (one, two) == (1, 2)
    assert first.startswith("col-")
    assert first != second
    assert table.snapshot().properties["delta.columnMapping.maxColumnId"] == "2"
    assert "columnMapping" in _line(lake, table, 0, "protocol")["writerFeatures"]
    table.commit([add("a.parquet", values={second: "1"})])
    table.add_columns(schema_json("more"))
    assert _mapping(table)[:2] == [("id", one, first), ("day", two, second)]
    assert _mapping(table)[2][:2] == ("more", 3)
    assert table.snapshot().properties["delta.columnMapping.maxColumnId"] == "3"


def test_ids_of_columns_that_are_gone_are_not_given_out_again(lake: Lake) -> None:
    table = new_lake_table(
        lake,
        properties={"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "41"},
    )
    assert [number for _, number, _ in _mapping(table)] == [42, 43]
    table.add_columns(schema_json("more"))
    assert [number for _, number, _ in _mapping(table)] == [42, 43, 44]


def test_column_mapping_switched_on_later_keeps_the_names_in_files(lake: Lake) -> None:
    table = new_lake_table(lake, partition_by=["day"])
    table.commit([add("a.parquet", values={"day": "1"})])
    table.set_properties({"delta.columnMapping.mode": "name"})
    assert _mapping(table) == [("id", 1, "id"), ("day", 2, "day")]
    assert table.snapshot().properties["delta.columnMapping.maxColumnId"] == "2"
    assert _line(lake, table, 2, "protocol")["minReaderVersion"] == 2
    table.commit([add("b.parquet", values={"day": "2"})])
    table.set_properties({"owner": "me"})
    assert _mapping(table) == [("id", 1, "id"), ("day", 2, "day")]
    check_ledger(lake, table)


# --- the protocol -------------------------------------------------------------------------


def test_features_can_be_added_to_the_protocol(lake: Lake, table: Table) -> None:
    assert table.upgrade_protocol("deletionVectors", "rowtracking") == 1
    assert kinds(published(lake, table, 1)) == ["commitInfo", "protocol"]
    protocol = _line(lake, table, 1, "protocol")
    assert protocol["readerFeatures"] == ["deletionVectors"]
    # What a feature builds on comes with it, and what was there stays.
    assert {"deletionVectors", "rowTracking", "domainMetadata", "inCommitTimestamp"} < set(
        protocol["writerFeatures"]
    )
    info = commit_info(lake, table, 1)
    assert info["operation"] == "UPGRADE PROTOCOL"
    assert json.loads(info["operationParameters"]["newProtocol"])["minReaderVersion"] == 3
    assert _registry(lake, table)["versions"] == (3, 7)
    check_ledger(lake, table)


@pytest.mark.parametrize("feature", ["fromTheFuture", "catalogManaged", "collations"])
def test_a_feature_that_cannot_be_honoured_is_not_added(
    lake: Lake, table: Table, feature: str
) -> None:
    before = row_counts(lake)
    with pytest.raises(UnsupportedFeatureError):
        table.upgrade_protocol(feature)
    assert row_counts(lake) == before


def test_a_feature_that_is_there_is_no_error(lake: Lake, table: Table) -> None:
    before = table.snapshot().protocol
    assert table.upgrade_protocol("inCommitTimestamp") == 1
    assert table.snapshot().protocol == before


def test_a_change_of_nothing_is_refused(lake: Lake, table: Table) -> None:
    before = row_counts(lake)
    verbs: list[Callable[[], object]] = [
        table.upgrade_protocol,
        lambda: table.set_properties({}),
        lambda: table.unset_properties([]),
        lambda: table.add_columns(pa.schema([])),
    ]
    for verb in verbs:
        with pytest.raises(ConfigurationError, match="There is no"):
            verb()
    assert row_counts(lake) == before


def test_a_table_is_asked_for_by_text(lake: Lake) -> None:
    for name in (7, None, ["sales.orders"]):
        with pytest.raises(ConfigurationError, match="no name of a table"):
            lake.table(name)  # type: ignore[arg-type]
