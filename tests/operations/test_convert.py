"""Parquet files become a table where they lie."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.errors import (
    ConfigurationError,
    DataFileError,
    DataFileMissingError,
    SchemaMismatchError,
    TableExistsError,
)
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.store.url import Engine


@pytest.fixture
def engine() -> Engine:
    """The commit is that of any new table; what is tested here is made before it."""
    return "sqlite"


def put(folder: Path, key: str, table: pa.Table | dict[str, Any], **options: Any) -> None:
    file = folder / key
    file.parent.mkdir(parents=True, exist_ok=True)
    made = pa.table(table) if isinstance(table, dict) else table
    pq.write_table(made, file, **options)


def stats_of(snapshot: Snapshot, part: str = "") -> dict[str, Any]:
    rows = snapshot.files(columns=["path", "stats"]).to_pylist()
    found: dict[str, Any] = json.loads(next(row["stats"] for row in rows if part in row["path"]))
    return found


def test_files_become_a_table(lake: Lake, tmp_path: Path) -> None:
    put(tmp_path / "t", "a.parquet", {"id": [1, 2], "word": ["x", None]})
    put(tmp_path / "t", "sub/b", {"id": [3], "more": [{"x": 1.5}]})
    for hidden in ("_SUCCESS", ".a.crc", "_temporary/0/x.parquet", ".hidden/y"):
        (tmp_path / "t" / hidden).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / hidden).write_bytes(b"no parquet")
    before = sorted(tmp_path.rglob("*"))
    table = lake.convert_table(str(tmp_path / "t"), properties={"owner": "me"})
    assert sorted(tmp_path.rglob("*")) == before
    rows = sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [
        {"id": 1, "word": "x", "more": None},
        {"id": 2, "word": None, "more": None},
        {"id": 3, "word": None, "more": {"x": 1.5}},
    ]
    assert (table.name, table.version) == ("t", 0)
    info = table.history(1)[0].commit_info
    assert info is not None
    assert info.operation == "CONVERT"
    told = info.operation_parameters or {}
    assert (told["numFiles"], told["partitionedBy"]) == ("2", "[]")
    assert info.operation_metrics == {"numConvertedFiles": "2"}
    table.append([{"id": 4}])
    assert table.snapshot().to_arrow(where="id > 2").num_rows == 2


def test_directories_name_partitions(lake: Lake, tmp_path: Path) -> None:
    odd = "a%2Fb%3D %25ü"
    put(tmp_path / "t", f"_day=2026-11-01/p={odd}/n=1.50/x.parquet", {"id": [1]})
    null = "__HIVE_DEFAULT_PARTITION__"
    put(tmp_path / "t", f"_day=2026-11-02/p={null}/n={null}/x.parquet", {"id": [2], "p": ["no"]})
    types = pa.schema([("_day", pa.date32()), ("p", pa.string()), ("n", pa.decimal128(10, 2))])
    table = lake.convert_table(str(tmp_path / "t"), partition_schema=types)
    snapshot = table.snapshot()
    assert snapshot.partition_columns == ("_day", "p", "n")
    assert sorted(snapshot.schema.names) == ["_day", "id", "n", "p"]
    rows = sorted(snapshot.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [
        {"id": 1, "_day": date(2026, 11, 1), "p": "a/b= %ü", "n": Decimal("1.50")},
        {"id": 2, "_day": date(2026, 11, 2), "p": None, "n": None},
    ]
    assert snapshot.files(where="_day = DATE '2026-11-02'").num_rows == 1


def test_footers_have_the_statistics(lake: Lake, tmp_path: Path) -> None:
    moment = datetime(2026, 11, 1, 1, 2, 3, 456789, tzinfo=UTC)
    columns = {
        "id": pa.array([3, None, 1], pa.int32()),
        "word": ["b", "ä" * 40, "a"],
        "price": pa.array([Decimal("1.10"), None, Decimal("-2.00")], pa.decimal128(10, 2)),
        "at": pa.array([moment, None, None], pa.timestamp("us", tz="UTC")),
        "ratio": [float("nan"), 1.0, 2.0],
        "inner": [{"x": 1, "many": [1]}, {"x": None, "many": None}, None],
        "empty": pa.array([None, None, None], pa.string()),
        "raw": [b"a", b"b", None],
    }
    put(tmp_path / "t", "a.parquet", columns, row_group_size=2)
    put(tmp_path / "t", "b.parquet", {"id": pa.array([9], pa.int32())}, write_statistics=False)
    snapshot = lake.convert_table(str(tmp_path / "t")).snapshot()
    found = stats_of(snapshot, "a.parquet")
    assert found["numRecords"] == 3
    assert {name: found["minValues"][name] for name in ("id", "word", "price")} == {
        "id": 1,
        "word": "a",
        "price": -2.0,
    }
    assert found["maxValues"]["word"].startswith("ä" * 32)
    assert found["maxValues"]["at"].startswith("2026-11-01T01:02:03.456")
    assert found["maxValues"]["inner"] == {"x": 1}
    # A footer passes over NaN; bytes have no bounds; inside of lists nothing is counted.
    assert not {"ratio", "raw", "empty"} & found["maxValues"].keys()
    assert found["nullCount"]["inner"] == {"x": 2}
    assert (found["nullCount"]["empty"], found["nullCount"]["ratio"]) == (3, 0)
    assert stats_of(snapshot, "b.parquet")["minValues"] == {}
    assert snapshot.files(where="id = 7").num_rows == 1


def test_old_timestamps_are_moments(lake: Lake, tmp_path: Path) -> None:
    moment = datetime(2026, 11, 1, 1, 2, 3, tzinfo=UTC)
    moments = pa.array([moment], pa.timestamp("us", tz="UTC"))
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    put(tmp_path / "t", "a.parquet", {"at": moments, "s": [{"i": 1}]}, **options)
    snapshot = lake.convert_table(str(tmp_path / "t")).snapshot()
    assert str(snapshot.schema.field("at").type) == "timestamp"
    assert snapshot.to_arrow()["at"].to_pylist() == [moment]


def test_small_integers_grow_together(lake: Lake, tmp_path: Path) -> None:
    put(tmp_path / "t", "a.parquet", {"n": pa.array([1], pa.int8())})
    put(tmp_path / "t", "b.parquet", {"n": pa.array([70_000], pa.int32())})
    snapshot = lake.convert_table(str(tmp_path / "t")).snapshot()
    assert str(snapshot.schema.field("n").type) == "integer"
    assert sorted(snapshot.to_arrow()["n"].to_pylist()) == [1, 70_000]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"id": ["text"]}, r"b\.parquet.*column id is string.*long"),
        ({"id": pa.array([1], pa.int32())}, r"b\.parquet.*column id is integer"),
        ({"ID": [1]}, "differ in case"),
        ({"s": [{"x": "text"}]}, r"column s\.x is string"),
        ({"at": pa.array([1], pa.timestamp("ns"))}, r"b\.parquet.*'at'.*timestamp\[ns\]"),
        ({"at": pa.array([1], pa.time32("s"))}, r"b\.parquet.*'at'"),
    ],
)
def test_files_that_do_not_fit_are_told(
    lake: Lake, tmp_path: Path, other: dict[str, Any], told: str
) -> None:
    put(tmp_path / "t", "a.parquet", {"id": [1], "s": [{"x": 1}]})
    put(tmp_path / "t", "b.parquet", other)
    with pytest.raises(SchemaMismatchError, match=told):
        lake.convert_table(str(tmp_path / "t"))
    assert lake.tables() == []


def test_what_is_no_set_of_parquet_files_is_told(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with pytest.raises(DataFileMissingError, match="no files"):
        lake.convert_table(str(folder))
    put(folder, "day=x/a.parquet", {"id": [1]})
    with pytest.raises(SchemaMismatchError, match="They name day"):
        lake.convert_table(str(folder))
    for wrong, told in (
        (pa.schema({"other": pa.string()}), "expected: other"),
        (pa.schema({"day": pa.date32()}), "another type"),
    ):
        with pytest.raises(SchemaMismatchError, match=told):
            lake.convert_table(str(folder), partition_schema=wrong)
    day = pa.schema({"day": pa.string()})
    mapped = {"delta.columnMapping.mode": "name"}
    with pytest.raises(ConfigurationError, match="column mapping"):
        lake.convert_table(str(folder), partition_schema=day, properties=mapped)
    (folder / "day=x" / "note.txt").write_text("no parquet")
    with pytest.raises(DataFileError, match=r"note\.txt"):
        lake.convert_table(str(folder), partition_schema=day)
    (folder / "day=x" / "note.txt").unlink()
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020}.json").write_text("{}")
    with pytest.raises(TableExistsError, match="import_table"):
        lake.convert_table(str(folder), partition_schema=day)
