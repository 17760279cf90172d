"""What a commit refuses through the public API; each refusal names its rule and writes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from deltalakedb.actions import (
    Protocol,
)
from deltalakedb.errors import (
    CommitRejectedError,
    DeltaLakeDbError,
    InvalidActionError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import (
    Json,
    add,
    check_ledger,
    commit_info,
    kinds,
    new_lake_table,
    published,
    remove,
    row_counts,
    schema_json,
)

BIG = 2**63 - 1


@pytest.fixture
def table(lake: Lake) -> Table:
    """An empty table."""
    return new_lake_table(lake)


def _with(body: Json, **changes: Any) -> Json:
    (name, fields), *_ = body.items()
    return {name: {**fields, **changes}}


def _new_metadata(table: Table, **changes: Any) -> Json:
    metadata = table.snapshot().metadata
    return {
        "metaData": {
            "id": metadata.id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": metadata.schema_string,
            "partitionColumns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            **changes,
        }
    }


_DAY = {"day": "1"}
_A = add("a.parquet", values=_DAY)
_NEW = add("new.parquet", values=_DAY)
_PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}

Refused = tuple[str, Callable[[Table], list[Any]]]
REFUSALS: list[Refused] = [
    ("one-add-per-path", lambda _: [_NEW, _NEW]),
    ("one-add-per-path", lambda _: [_NEW, add("%6Eew.parquet", values=_DAY)]),
    ("one-remove-per-path", lambda _: [remove("a.parquet"), remove("a.parquet")]),
    ("add-and-remove", lambda _: [remove("a.parquet"), _A]),
    ("remove-live-file", lambda _: [remove("missing.parquet")]),
    ("remove-live-file", lambda _: [_NEW, remove("A.parquet")]),
    ("one-metadata", lambda t: [_new_metadata(t), _new_metadata(t)]),
    ("one-protocol", lambda _: [_PROTOCOL, _PROTOCOL]),
    ("one-commit-info", lambda _: [{"commitInfo": {"a": 1}}, {"commitInfo": {"a": 1}}, _NEW]),
    ("one-txn-per-app", lambda _: [{"txn": {"appId": "x", "version": n}} for n in (1, 2)]),
    ("partition-values", lambda _: [add("new.parquet")]),
    ("partition-values", lambda _: [add("new.parquet", values={"day": "1", "id": "2"})]),
    ("partition-values", lambda _: [add("new.parquet", values={"Day": "1"})]),
    ("data-path", lambda _: [add("../out.parquet", values=_DAY)]),
    ("data-path", lambda _: [add("_delta_log/x.parquet", values=_DAY)]),
    ("non-negative", lambda _: [_with(remove("a.parquet"), deletionTimestamp=-1)]),
    ("statistics", lambda _: [_with(_NEW, stats="{")]),
    ("statistics", lambda _: [_with(_NEW, stats='{"numRecords": -1}')]),
    ("deletion-vector", lambda _: [add("new.parquet", values=_DAY, dv=1)]),
    ("change-data", lambda _: [{"cdc": {**_NEW["add"], "path": "_change_data/c.parquet"}}]),
    ("metadata-domain", lambda _: [_domain("mine")]),
    ("metadata-domain", lambda _: [_domain("delta.mine")]),
    ("checkpoint-only-action", lambda _: [{"checkpointMetadata": {"version": 1}}]),
    ("unknown-action", lambda _: [{"fromTheFuture": {}}]),
    ("table-id", lambda t: [_new_metadata(t, id="other")]),
    ("schema", lambda t: [_new_metadata(t, schemaString="nonsense")]),
    ("schema", lambda t: [_new_metadata(t, schemaString=schema_json("id", "ID", "day"))]),
    ("schema-change", lambda t: [_new_metadata(t, schemaString=_columns("day", "more"))]),
    ("partition-columns", lambda t: [_new_metadata(t, partitionColumns=[])]),
    ("table-properties", lambda t: [_new_metadata(t, configuration={"delta.appendOnly": "x"})]),
    ("protocol-downgrade", lambda _: [_PROTOCOL]),
    ("required-features", lambda t: [_new_metadata(t, configuration=_with_cdf(t))]),
    ("check-constraints", lambda t: [_new_metadata(t, configuration=_with_check(t))]),
]


def _columns(*names: str) -> str:
    return schema_json(*((name, "string") for name in names))


def _domain(name: str) -> Json:
    return {"domainMetadata": {"domain": name, "configuration": "{}", "removed": False}}


def _with_cdf(table: Table) -> dict[str, str]:
    return {**table.snapshot().properties, "delta.enableChangeDataFeed": "true"}


def _with_check(table: Table) -> dict[str, str]:
    return {**table.snapshot().properties, "delta.constraints.positive": "id > 0"}


@pytest.mark.parametrize(
    ("rule", "actions"), REFUSALS, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(REFUSALS)]
)
def test_a_refusal_names_its_rule_and_leaves_nothing(
    lake: Lake, rule: str, actions: Callable[[Table], list[Any]]
) -> None:
    table = new_lake_table(lake, partition_by=["day"])
    table.commit([_A])
    given = actions(table)
    before = row_counts(lake)
    with pytest.raises(CommitRejectedError) as refusal:
        table.commit(given)
    assert refusal.value.rule == rule
    assert f"rule: {rule}" in str(refusal.value)
    assert refusal.value.fix
    assert row_counts(lake) == before
    # The handle can go on.
    assert table.commit([add("after.parquet", values=_DAY)]) == 2
    check_ledger(lake, table)


@pytest.mark.parametrize(
    "garbage",
    [
        *({}, {"add": {}}, {"add": None}, {"add": []}, {"add": {"path": 1}}, None, 7, "add"),
        {"Add": {"path": "a"}},
        {**add("x.parquet"), **remove("a.parquet")},
        _with(add("x.parquet"), size="100"),
        _with(add("x.parquet"), size=2**63),
        _with(add("x.parquet"), size=1.5),
        _with(add("x.parquet"), size=-1),
        _with(add("x.parquet"), dataChange="yes"),
        _with(add("x.parquet"), partitionValues={"day": 1}),
        _with(add("x.parquet"), stats={"numRecords": 1}),
        _with(add("x.parquet"), path=""),
        _with(add("x.parquet"), path="\ud800"),
        _with(add("x.parquet"), extra=float("nan")),
        _with(add("x.parquet"), modificationTime=-(2**63) - 1),
        {"remove": {"path": "a.parquet"}},
        {"txn": {"appId": "app", "version": "1"}},
        {"protocol": {"minReaderVersion": 1}},
        {"metaData": {"id": "x"}},
        object(),
    ],
)
def test_garbage_is_refused_before_anything_is_written(
    lake: Lake, table: Table, garbage: Any
) -> None:
    before = row_counts(lake)
    with pytest.raises(DeltaLakeDbError) as refusal:
        table.commit([add("good.parquet"), garbage])
    assert isinstance(refusal.value, (InvalidActionError, CommitRejectedError))
    assert row_counts(lake) == before


@pytest.mark.parametrize("actions", [None, 7, add("a.parquet"), "add"], ids=repr)
def test_actions_are_a_list_of_actions(lake: Lake, table: Table, actions: Any) -> None:
    before = row_counts(lake)
    with pytest.raises(DeltaLakeDbError):
        table.commit(actions)
    assert row_counts(lake) == before


@pytest.mark.parametrize(
    "options",
    [
        {"operation": ""},
        {"operation": None},
        {"operation": 7},
        {"operation_parameters": "mode=append"},
        {"operation_parameters": {"x": object()}},
        {"operation_metrics": {"x": float("inf")}},
        {"expected_version": "0"},
        {"read": "everything"},
        {"enforced": "checkConstraints"},
    ],
)
def test_options_of_the_wrong_kind_are_refused(
    lake: Lake, table: Table, options: dict[str, Any]
) -> None:
    before = row_counts(lake)
    with pytest.raises(DeltaLakeDbError):
        table.commit([add("a.parquet")], **options)
    assert row_counts(lake) == before


def test_a_commit_of_nothing_is_a_version_that_says_so(lake: Lake, table: Table) -> None:
    """As in Delta: an operation that found nothing to do may be put on record."""
    assert table.commit([], operation="DELETE") == 1
    assert kinds(published(lake, table, 1)) == ["commitInfo"]
    assert commit_info(lake, table, 1)["isBlindAppend"] is False
    assert table.history()[0].counts.num_actions == 1
    check_ledger(lake, table)


def test_the_largest_numbers_are_kept_exactly(lake: Lake, table: Table) -> None:
    huge = _with(add("a.parquet"), size=BIG, modificationTime=BIG)
    table.commit([huge])
    assert published(lake, table, 1)[1] == huge
    assert table.snapshot().files()["size_bytes"].to_pylist() == [BIG]
    table.commit([remove("a.parquet"), add("b.parquet", size=1)])
    assert table.snapshot().size_bytes == 1


def test_sizes_that_sum_up_beyond_a_long_are_refused(lake: Lake, table: Table) -> None:
    before = row_counts(lake)
    with pytest.raises(DeltaLakeDbError):
        table.commit([add("a.parquet", size=BIG), add("b.parquet", size=BIG)])
    assert row_counts(lake) == before


def test_an_append_only_table_loses_no_data(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.appendOnly": "true"})
    table.commit([add("a.parquet")])
    before = row_counts(lake)
    with pytest.raises(CommitRejectedError, match=r"append-only") as refusal:
        table.commit([remove("a.parquet")])
    assert refusal.value.rule == "append-only"
    assert row_counts(lake) == before
    assert table.commit([remove("a.parquet", data_change=False), add("b", data_change=False)]) == 2
    table.unset_properties(["delta.appendOnly"])
    assert table.commit([remove("b")]) == 4


def test_rows_under_a_check_constraint_need_someone_who_enforced_it(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.constraints.positive": "id > 0"})
    before = row_counts(lake)
    with pytest.raises(CommitRejectedError) as refusal:
        table.commit([add("a.parquet")])
    assert refusal.value.rule == "check-constraints"
    assert row_counts(lake) == before
    assert table.commit([add("a.parquet")], enforced={"checkConstraints"}) == 1
    assert table.commit([remove("a.parquet")]) == 2


def test_a_protocol_that_this_release_cannot_honour_is_refused(lake: Lake, table: Table) -> None:
    protocol = table.snapshot().protocol
    features = (*(protocol.writer_features or ()), "fromTheFuture")
    before = row_counts(lake)
    with pytest.raises(UnsupportedFeatureError, match="fromTheFuture"):
        table.commit([Protocol(1, 7, None, features)])
    with pytest.raises(UnsupportedFeatureError):
        table.commit([Protocol(9, 9)])
    assert row_counts(lake) == before
