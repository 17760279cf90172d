"""Rows that are written come back as they were, with exact statistics, or are refused."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from deltalakedb.actions.partition import decode_path
from deltalakedb.errors import (
    CommitConflictError,
    ConfigurationError,
    ConstraintViolatedError,
    InvalidConditionError,
    SchemaMismatchError,
    StorageError,
    UnsupportedFeatureError,
)
from deltalakedb.lake import Lake
from deltalakedb.operations import alter
from deltalakedb.table import Table
from deltalakedb.transaction.commit import state_of

from support.lake import OpenLake, schema_json
from support.s3 import S3Server

NAIVE = datetime(2026, 11, 1, 12)  # noqa: DTZ001 - such columns exist
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "word": ["b", "a/b c%", None, "é"],
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00")]).cast(
            pa.decimal128(10, 2)
        ),
        "at": pa.array(
            [datetime(2026, 11, 1, 12, tzinfo=UTC), None] * 2, pa.timestamp("us", "UTC")
        ),
        "naive": pa.array([NAIVE, None] * 2, pa.timestamp("us")),
        "day": pa.array([date(2026, 11, 1), date(2026, 11, 2), None, date(2026, 11, 1)]),
        "real": [1.5, float("nan"), None, -1.0],
        "yes": [True, None, False, True],
        "raw": [b"\x00\xff", None, b"", b"x"],
        "nested": [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": []}, {"a": 4, "b": None}],
        "map": pa.array([[("k", 1)], None, [], [("k", None)]], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.fixture
def inline(open_lake: OpenLake) -> Lake:
    return open_lake(mirror="inline")


def new(lake: Lake, folder: Path, schema: Any = ROWS.schema, **options: Any) -> Table:
    return lake.create_table("t", location=str(folder / "a b é"), schema=schema, **options)


def rows(data: pa.Table) -> list[str]:
    """Rows that can be compared, whatever their order."""
    names = sorted(data.column_names)
    return sorted(repr([row[name] for name in names]) for row in data.to_pylist())


def data_files(folder: Path) -> set[str]:
    root = folder / "a b é"
    return {
        str(p.relative_to(root)) for p in root.rglob("*.parquet") if "_delta_log" not in p.parts
    }


@pytest.mark.parametrize("partition_by", [[], ["day"], ["word", "yes"], ["price", "at"]])
def test_rows_come_back_as_they_were(inline: Lake, tmp_path: Path, partition_by: list[str]) -> None:
    table = new(inline, tmp_path, partition_by=partition_by)
    assert table.append(ROWS) == 1
    assert table.append(ROWS.slice(1, 2)) == 2
    assert rows(table.snapshot().to_arrow()) == rows(pa.concat_tables([ROWS, ROWS.slice(1, 2)]))
    files = table.snapshot().files()
    assert {decode_path(path) for path in files["path"].to_pylist()} == data_files(tmp_path)
    sizes = {decode_path(row["path"]): row["size_bytes"] for row in files.to_pylist()}
    for key, size in sizes.items():
        assert (tmp_path / "a b é" / key).stat().st_size == size
    (newest, *_) = table.history()
    assert newest.commit_info is not None
    assert newest.commit_info.operation_metrics is not None
    assert newest.commit_info.operation_metrics["numOutputRows"] == "2"
    theirs = DeltaTable(str(tmp_path / "a b é"))
    counted = QueryBuilder().register("t", theirs).execute("select count(*) n from t").read_all()
    assert pa.table(counted)["n"].to_pylist() == [6]


def test_statistics_are_exact(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path)
    table.append(ROWS)
    (text,) = table.snapshot().files()["stats"].to_pylist()
    stats = json.loads(text)
    assert stats["numRecords"] == 4
    assert stats["tightBounds"] is True
    assert stats["minValues"] == {
        "id": 1,
        "word": "a/b c%",
        "price": -2.25,
        "at": "2026-11-01T12:00:00.000Z",
        "naive": "2026-11-01T12:00:00.000",
        "day": "2026-11-01",
        "real": -1.0,
        "nested": {"a": 1},
    }
    # NaN is above every number: nothing is known of the greatest one.
    assert "real" not in stats["maxValues"]
    assert stats["maxValues"]["word"] == "é"
    assert stats["maxValues"]["nested"] == {"a": 4}
    assert stats["nullCount"] == {
        "id": 1,
        "word": 1,
        "price": 1,
        "at": 2,
        "naive": 2,
        "day": 1,
        "real": 1,
        "yes": 1,
        "raw": 1,
        "nested": {"a": 2, "b": 2},
        "map": 1,
    }


@pytest.mark.parametrize(
    ("properties", "covered"),
    [
        ({"delta.dataSkippingNumIndexedCols": "2"}, {"id", "word"}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, set()),
        ({"delta.dataSkippingStatsColumns": "day, nested.a"}, {"day", "nested"}),
    ],
)
def test_statistics_cover_what_the_table_says(
    inline: Lake, tmp_path: Path, properties: dict[str, str], covered: set[str]
) -> None:
    table = new(inline, tmp_path, properties=properties)
    table.append(ROWS)
    (text,) = table.snapshot().files()["stats"].to_pylist()
    assert set(json.loads(text)["nullCount"]) == covered


def test_column_mapping_writes_physical_names_and_ids(inline: Lake, tmp_path: Path) -> None:
    table = new(
        inline, tmp_path, properties={"delta.columnMapping.mode": "name"}, partition_by=["day"]
    )
    table.append(ROWS)
    assert rows(table.snapshot().to_arrow()) == rows(ROWS)
    for key in data_files(tmp_path):
        schema = pq.read_schema(tmp_path / "a b é" / key)
        assert not set(schema.names) & set(ROWS.column_names)
        assert all(field.metadata[b"PARQUET:field_id"] for field in schema)


def test_large_writes_are_spread_over_files(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64())]))
    batches = [
        pa.record_batch({"id": list(range(n, n + 10_000))}) for n in range(0, 100_000, 10_000)
    ]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    table.append(reader, target_bytes=20_000)
    snapshot = table.snapshot()
    assert snapshot.num_files > 5
    assert sorted(snapshot.to_arrow()["id"].to_pylist()) == list(range(100_000))
    # Each file knows its own range.
    assert snapshot.files(where="id = 5").num_rows == 1


@pytest.mark.parametrize("kind", ["table", "batch", "reader", "polars", "dicts", "dataset"])
def test_whatever_speaks_arrow_can_be_written(inline: Lake, tmp_path: Path, kind: str) -> None:
    plain = pa.table({"id": [1, 2], "word": ["a", None]})
    data: Any = {
        "table": plain,
        "batch": plain.to_batches()[0],
        "reader": plain.to_reader(),
        "polars": pl.from_arrow(plain),
        "dicts": plain.to_pylist(),
        "dataset": pa.dataset.dataset(plain) if hasattr(pa, "dataset") else plain,
    }[kind]
    table = new(inline, tmp_path, plain.schema)
    table.append(data)
    assert rows(table.snapshot().to_arrow()) == rows(plain)


def test_no_rows_are_a_commit_without_files(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path)
    assert table.append(ROWS.slice(0, 0)) == 1
    assert table.snapshot().num_files == 0
    assert data_files(tmp_path) == set()


# --- what fits ----------------------------------------------------------------------------


def test_columns_are_matched_by_name_and_widened_where_nothing_is_lost(
    inline: Lake, tmp_path: Path
) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("small", pa.int8()), ("real", pa.float64()), ("word", pa.string())]
    )
    table = new(inline, tmp_path, schema)
    table.append(
        pa.table(
            {
                "WORD": pa.array(["x", "y"]).dictionary_encode(),
                "Real": pa.array([1.5, None], pa.float32()),
                "id": pa.array([1, 2], pa.int16()),
                "small": pa.array([1, 127], pa.int64()),
            }
        )
    )
    table.append(pa.table({"id": [3]}))
    assert sorted(map(str, table.snapshot().to_arrow()["id"].to_pylist())) == ["1", "2", "3"]
    assert sorted(map(str, table.snapshot().to_arrow()["small"].to_pylist())) == [
        "1",
        "127",
        "None",
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"id": [1], "other": [1]}, "other"),
        ({"id": ["x"]}, "type string"),
        ({"id": [1.5]}, "type double"),
        ({"id": [1], "ID": [2]}, "twice"),
        ({"small": [1000]}, "does not fit"),
        ({"at": [NAIVE]}, "timestamp"),
        ({"nested": [{"a": 1, "x": 1}]}, "nested.x"),
        ({"nested": [{"a": "text"}]}, "nested.a"),
        ({"list": [["x"]]}, "list.element"),
    ],
)
def test_what_does_not_fit_is_refused_by_column(
    inline: Lake, tmp_path: Path, data: dict[str, Any], says: str
) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("small", pa.int8()),
            ("at", pa.timestamp("us", "UTC")),
            ("nested", pa.struct([("a", pa.int64())])),
            ("list", pa.list_(pa.int64())),
        ]
    )
    table = new(inline, tmp_path, schema)
    with pytest.raises(SchemaMismatchError, match=says):
        table.append(pa.table(data))
    assert table.snapshot().version == 0
    assert data_files(tmp_path) == set()


def test_data_that_is_none_is_refused(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path)
    for data in (7, "rows", None, [1, 2]):
        with pytest.raises(ConfigurationError, match="cannot be written"):
            table.append(data)


def test_new_columns_are_added_when_asked(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    table.append(pa.table({"id": [2], "word": ["x"]}), merge_schema=True)
    table.append(pa.table({"word": ["y"]}))
    found = table.snapshot().to_arrow().to_pylist()
    assert sorted(map(repr, found)) == sorted(
        map(
            repr,
            [
                {"id": 1, "word": None},
                {"id": 2, "word": "x"},
                {"id": None, "word": "y"},
            ],
        )
    )
    assert table.snapshot(version=1).schema.names == ("id",)


# --- constraints --------------------------------------------------------------------------


def test_not_null_is_enforced_in_structs_too(inline: Lake, tmp_path: Path) -> None:
    nested = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("nested", nested)])
    table = new(inline, tmp_path, schema)
    with pytest.raises(ConstraintViolatedError, match="'id'"):
        table.append(pa.table({"id": [1, None], "nested": [{"a": 1}, {"a": 1}]}))
    with pytest.raises(ConstraintViolatedError, match=r"nested\.a"):
        table.append(pa.table({"id": [1, 2], "nested": [{"a": 1}, {"a": None}]}))
    with pytest.raises(SchemaMismatchError, match="NOT NULL"):
        table.append(pa.table({"nested": [{"a": 1}]}))
    # A struct that is null has no field that could be.
    table.append(pa.table({"id": [1, 2], "nested": [{"a": 1}, None]}))
    assert table.snapshot().to_arrow().num_rows == 2
    assert len(data_files(tmp_path)) == 1


def test_check_constraints_are_enforced(inline: Lake, tmp_path: Path) -> None:
    table = new(
        inline,
        tmp_path,
        pa.schema([("id", pa.int64())]),
        properties={"delta.constraints.positive": "id > 0"},
    )
    table.append(pa.table({"id": [1, 2]}))
    for bad in ([0], [1, -1], [None]):
        with pytest.raises(ConstraintViolatedError, match="positive"):
            table.append(pa.table({"id": pa.array(bad, pa.int64())}))
    assert table.snapshot().version == 1
    assert len(data_files(tmp_path)) == 1


def test_a_constraint_that_cannot_be_evaluated_is_not_skipped(inline: Lake, tmp_path: Path) -> None:
    table = new(
        inline,
        tmp_path,
        pa.schema([("id", pa.int64())]),
        properties={"delta.constraints.odd": "id % 2 = 1"},
    )
    with pytest.raises(UnsupportedFeatureError, match="odd"):
        table.append(pa.table({"id": [1]}))


@pytest.mark.parametrize("condition", ["id >", "no_such > 0", "", "id = 'x' AND"])
def test_a_check_that_no_row_can_be_asked_is_refused_at_creation(
    inline: Lake, tmp_path: Path, condition: str
) -> None:
    properties = {"delta.constraints.odd": condition}
    with pytest.raises(InvalidConditionError, match="'odd'"):
        new(inline, tmp_path, pa.schema([("id", pa.int64())]), properties=properties)
    assert inline.tables() == []


def test_a_check_is_added_where_all_rows_fulfil_it(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    for condition in ("id > 1", "id > 0 AND id < 2"):
        with pytest.raises(ConstraintViolatedError, match="1 of the rows"):
            table.set_properties({"delta.constraints.few": condition})
    with pytest.raises(UnsupportedFeatureError, match="odd"):
        table.set_properties({"delta.constraints.odd": "id % 2 = 1"})
    assert table.snapshot().version == 1
    table.set_properties({"delta.constraints.positive": "id > 0", "owner": "me"})
    assert table.snapshot().properties["delta.constraints.positive"] == "id > 0"
    with pytest.raises(ConstraintViolatedError, match="positive"):
        table.append(pa.table({"id": [0]}))


def test_a_check_is_not_added_beside_rows_that_nobody_asked(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    before = table.snapshot()
    commit = alter.set_properties(
        table.record, state_of(before), {"delta.constraints.positive": "id > 0"}, verified=True
    )
    inline.table(table.name).append(pa.table({"id": [-1]}))
    with pytest.raises(CommitConflictError):
        table.submit(commit)


# --- in the place of others ---------------------------------------------------------------


def test_rows_are_replaced_by_none(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, partition_by=["day"])
    table.append(ROWS)
    day = ROWS["day"][0].as_py()
    table.overwrite([], where=f"day = '{day}'")
    left = [row for row in ROWS.to_pylist() if row["day"] != day]
    assert rows(table.snapshot().to_arrow()) == rows(pa.Table.from_pylist(left, ROWS.schema))
    with inline.transaction() as tx:
        tx.table(table.name).overwrite([])
    assert table.snapshot().to_arrow().num_rows == 0


def test_all_rows_are_replaced(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, partition_by=["day"])
    table.append(ROWS)
    table.overwrite(ROWS.slice(0, 1))
    assert rows(table.snapshot().to_arrow()) == rows(ROWS.slice(0, 1))
    assert rows(table.snapshot(version=1).to_arrow()) == rows(ROWS)


def test_a_partition_is_replaced_without_reading_it(inline: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = new(inline, tmp_path, schema, partition_by=["day"])
    table.append(pa.table({"id": [1, 2, 3], "day": ["a", "b", None]}))
    (tmp_path / "a b é" / next(k for k in data_files(tmp_path) if "day=a" in k)).write_bytes(b"")
    table.overwrite(pa.table({"id": [10, 11], "day": ["a", "a"]}), where="day = 'a'")
    found = table.snapshot().to_arrow()
    assert sorted(found["id"].to_pylist()) == [2, 3, 10, 11]


def test_rows_by_any_condition_are_replaced(inline: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = new(inline, tmp_path, schema, partition_by=["day"])
    table.append(pa.table({"id": [1, 2, 30], "day": ["a", "a", "b"]}))
    table.append(pa.table({"id": [None, 40], "day": ["a", "b"]}))
    before = table.snapshot().files(columns=["path"])["path"].to_pylist()
    table.overwrite(pa.table({"id": [7], "day": ["z"]}), where="id >= 2 AND id < 40")
    found = table.snapshot().to_arrow()
    assert sorted(found["id"].to_pylist(), key=str) == [1, 40, 7, None]
    # Files without such a row stay as they are.
    after = table.snapshot().files(columns=["path"])["path"].to_pylist()
    assert len(set(before) & set(after)) == 2


def test_new_rows_must_fulfil_the_condition(inline: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = new(inline, tmp_path, schema, partition_by=["day"])
    table.append(pa.table({"id": [1], "day": ["a"]}))
    with pytest.raises(ConstraintViolatedError, match="overwrite where"):
        table.overwrite(pa.table({"id": [1], "day": ["b"]}), where="day = 'a'")
    assert table.snapshot().version == 1
    assert len(data_files(tmp_path)) == 1


def test_a_replacement_conflicts_with_what_it_has_not_seen(inline: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = new(inline, tmp_path, schema, partition_by=["day"])
    table.append(pa.table({"id": [1, 2], "day": ["a", "b"]}))
    with inline.transaction() as tx:
        tx.table("t").overwrite(pa.table({"id": [5], "day": ["a"]}), where="day = 'a'")
        # Another partition is none of its business.
        inline.table("t").append(pa.table({"id": [9], "day": ["b"]}))
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [2, 5, 9]
    files = data_files(tmp_path)
    with pytest.raises(CommitConflictError), inline.transaction() as tx:  # noqa: PT012
        tx.table("t").overwrite(pa.table({"id": [6], "day": ["a"]}), where="day = 'a'")
        inline.table("t").overwrite(pa.table({"id": [7], "day": ["a"]}), where="day = 'a'")
    # What was staged in vain is gone; what the winner wrote is there.
    assert len(data_files(tmp_path) - files) == 1


# --- many tables, and failures ------------------------------------------------------------


def test_rows_of_many_tables_are_one_transaction(inline: Lake, tmp_path: Path) -> None:
    tables = [
        inline.create_table(name, location=str(tmp_path / name), schema=schema_json("id"))
        for name in ("a", "b")
    ]
    with inline.transaction() as tx:
        tx.table("a").append(pa.table({"id": [1]}))
        tx.table("a").append(pa.table({"id": [2]}))
        tx.table("b").overwrite(pa.table({"id": [3]}))
    assert [sorted(t.snapshot().to_arrow()["id"].to_pylist()) for t in tables] == [[1, 2], [3]]
    assert tx.results == {"a": 1, "b": 1}


def test_an_abandoned_transaction_leaves_no_files(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64())]))
    with pytest.raises(ZeroDivisionError), inline.transaction() as tx:  # noqa: PT012
        tx.table("t").append(pa.table({"id": [1]}))
        assert len(data_files(tmp_path)) == 1
        raise ZeroDivisionError
    assert data_files(tmp_path) == set()
    assert table.snapshot().version == 0


def test_rows_with_an_app_transaction_are_written_once(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64())]))
    again = [table.append(pa.table({"id": [1]}), app_txn=("load", 7)) for _ in range(3)]
    assert [committed.already_committed for committed in again] == [False, True, True]
    assert table.snapshot().to_arrow()["id"].to_pylist() == [1]
    assert len(data_files(tmp_path)) == 1


def test_a_batch_that_fails_in_the_middle_leaves_nothing(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False)]))

    def batches() -> Any:
        yield pa.record_batch({"id": list(range(1000))})
        yield pa.record_batch({"id": pa.array([None], pa.int64())})

    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(ConstraintViolatedError):
        table.append(pa.RecordBatchReader.from_batches(schema, batches()), target_bytes=1)
    assert data_files(tmp_path) == set()


def test_a_place_that_cannot_be_written_to_is_told(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path, pa.schema([("id", pa.int64()), ("day", pa.string())]))
    (tmp_path / "file").write_bytes(b"")
    bad = inline.create_table(
        "bad", location=str(tmp_path / "file" / "t"), schema=schema_json("id")
    )
    with pytest.raises(StorageError, match="Cannot write"):
        bad.append(pa.table({"id": [1]}))
    assert table.version == 0


def test_rows_are_written_to_an_object_store(
    open_lake: OpenLake, s3_server: S3Server, s3_bucket: str
) -> None:
    lake = open_lake(mirror="inline", storage_options=s3_server.storage_options)
    location = f"s3://{s3_bucket}/some/table"
    table = lake.create_table("t", location=location, schema=ROWS.schema, partition_by=["word"])
    table.append(ROWS)
    assert rows(table.snapshot().to_arrow()) == rows(ROWS)
    storage = lake.open_storage(location)
    # Checksums of commits follow by themselves.
    lake.mirror.drain()
    before = {info.key for info in storage.list()}
    with pytest.raises(SchemaMismatchError):
        table.append(pa.table({"id": ["x"]}))
    assert {info.key for info in storage.list()} == before
    with pytest.raises(ZeroDivisionError), lake.transaction() as tx:  # noqa: PT012
        tx.table("t").append(ROWS)
        raise ZeroDivisionError
    lake.mirror.drain()
    left = {info.key for info in storage.list()}
    assert {key for key in left if "_delta_log" not in key} == {
        key for key in before if "_delta_log" not in key
    }


def test_an_interruption_after_the_commit_deletes_nothing(inline: Lake, tmp_path: Path) -> None:
    table = new(inline, tmp_path)

    def interrupt(step: str) -> None:
        if step == "committed":
            raise KeyboardInterrupt

    inline._committer._step = interrupt
    with pytest.raises(KeyboardInterrupt), inline.transaction() as tx:
        tx.table("t").append(ROWS)
    inline._committer._step = None
    assert rows(table.snapshot().to_arrow()) == rows(ROWS)


def test_rows_of_dicts_need_not_have_the_same_keys(lake: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
    table.append([{"id": 1}, {"id": 2, "name": "x"}])
    assert table.snapshot().to_arrow().sort_by("id")["name"].to_pylist() == [None, "x"]
    with pytest.raises(SchemaMismatchError, match="nmae"):
        table.append([{"id": 3}, {"id": 4, "nmae": "typo"}])
    table.append([{"id": 5}, {"id": 6, "more": 1.5}], merge_schema=True)
    assert table.snapshot().to_arrow().sort_by("id")["more"].to_pylist() == [None, None, None, 1.5]


def test_an_append_that_is_tried_again_is_of_the_table_as_it_is(lake: Lake, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
    stale = lake.table("t")
    assert stale.version == 0
    table.add_columns(pa.schema([("word", pa.string())]))
    with pytest.raises(CommitConflictError):
        stale.append(pa.table({"id": [1]}))
    stale.append(pa.table({"id": [1]}))
    assert table.snapshot().to_arrow().num_rows == 1
