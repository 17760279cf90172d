"""Rows of a snapshot, from files that pyarrow wrote and the catalog of each engine lists."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from deltalakedb.actions.partition import encode_partition_value
from deltalakedb.errors import (
    CatalogError,
    ConfigurationError,
    DataFileMissingError,
    InvalidArgumentError,
    InvalidConditionError,
    InvalidSchemaError,
    UnsupportedConditionError,
)
from deltalakedb.lake import Lake
from deltalakedb.reading.dataset import SnapshotRows, rows_of
from deltalakedb.snapshot import Snapshot
from deltalakedb.table import Table

from support.lake import Json, OpenLake, remove
from support.published import inline_vector

PARTITIONS = pa.schema(
    [
        ("word", pa.string()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
    ]
)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), *PARTITIONS])
DAY = date(2026, 11, 1)
MOMENT = datetime(2026, 11, 1, 12, 30, 15, 123456, tzinfo=UTC)
PRICE = Decimal("-1.50")
WORDS: tuple[str | None, ...] = (
    None,
    "plain",
    "a b",
    "a/b",
    "100%",
    "%2F",
    "a=b:c",
    "größe 東京 🦆",
    'it\'s "quoted"',
    "+?#&",
)
FOLDER = "a table, 100% odd"
Row = dict[str, Any]


def values_of(word: str | None, *, nulls: bool = False) -> Row:
    if nulls:
        return {"word": word, "day": None, "moment": None, "price": None}
    return {"word": word, "day": DAY, "moment": MOMENT, "price": PRICE}


class Files:
    """Writes data files below a table, and says how to add them."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table = table
        self.folder = folder
        self.written = 0

    def write(self, rows: list[Row], values: Mapping[str, Any] | None = None) -> Json:
        """Write `rows` of one partition; the add action, with statistics of `id`."""
        values = values or {}
        schema = self.table.snapshot().schema
        texts = {
            name: encode_partition_value(value, schema.field(name).type)
            for name, value in values.items()
        }
        folders = [f"{name}={quote(text or '__null__', safe='')}" for name, text in texts.items()]
        path = "/".join([*folders, f"part {self.written} é.parquet"])
        self.written += 1
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        columns = [field for field in SCHEMA if field.name in rows[0]]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), target)
        ids = [row["id"] for row in rows]
        bounds = {"minValues": {"id": min(ids)}, "maxValues": {"id": max(ids)}}
        stats = {"numRecords": len(ids), **bounds, "nullCount": {"id": 0}}
        return {
            "add": {
                "path": quote(path),
                "partitionValues": texts,
                "size": target.stat().st_size,
                "modificationTime": 1_700_000_000_000,
                "dataChange": True,
                "stats": json.dumps(stats),
            }
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / FOLDER


@pytest.fixture
def plain(lake: Lake, folder: Path) -> Files:
    """A table without partitions: ten files of ten ids each."""
    table = lake.create_table("sales.plain", location=str(folder), schema=SCHEMA)
    files = Files(table, folder)
    adds = []
    for start in range(0, 100, 10):
        rows = [{"id": i, "name": f"n{i % 3}"} for i in range(start, start + 10)]
        adds.append(files.write(rows))
    table.commit(adds)
    return files


Read = Callable[..., list[Row]]


def by_arrow(snapshot: Snapshot, where: Any = None) -> list[Row]:
    table = snapshot.to_arrow(where)
    assert table.schema == SCHEMA
    rows: list[Row] = table.to_pylist()
    return rows


def by_polars(snapshot: Snapshot, where: Any = None) -> list[Row]:
    frame = snapshot.to_polars(where)
    assert isinstance(frame, pl.DataFrame)
    return list(frame.to_dicts())


def by_duckdb(snapshot: Snapshot, where: Any = None) -> list[Row]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows: list[Row] = snapshot.to_duckdb(where, connection).to_arrow_table().to_pylist()
    return rows


def sorted_rows(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.fixture(params=[by_arrow, by_polars, by_duckdb])
def read(request: pytest.FixtureRequest) -> Read:
    """Each way to have the rows, in the order of `id`."""
    way: Read = request.param
    return lambda snapshot, where=None: sorted_rows(way(snapshot, where))


# --- partition values ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(shared_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, list[Row]]:
    """A table, and the rows of its version 1: a file for each word.

    In version 2 one of the files is gone, and there is one of nulls.
    """
    folder = tmp_path_factory.mktemp("odd") / FOLDER
    table = shared_lake.create_table(
        "sales.odd", location=str(folder), schema=SCHEMA, partition_by=PARTITIONS.names
    )
    files = Files(table, folder)
    rows, adds = [], []
    for i, word in enumerate(WORDS):
        mine = [{"id": 10 * i + j, "name": None if j else f"n{i}"} for j in range(3)]
        adds.append(files.write(mine, values_of(word)))
        rows += [{**row, **values_of(word)} for row in mine]
    table.commit(adds)
    nulls = files.write([{"id": 1000, "name": "null"}], values_of(None, nulls=True))
    table.commit([remove(adds[1]["add"]["path"]), nulls])
    return table, rows


def head_rows(rows: list[Row]) -> list[Row]:
    """What the second version makes of the rows of the first."""
    last = {"id": 1000, "name": "null", **values_of(None, nulls=True)}
    return [row for row in rows if row["word"] != "plain"] + [last]


def test_rows_at_every_version(odd: tuple[Table, list[Row]], read: Read) -> None:
    table, rows = odd
    assert read(table.snapshot(0)) == []
    assert read(table.snapshot(1)) == rows
    assert read(table.snapshot()) == head_rows(rows)
    assert read(table.snapshot(2)) == head_rows(rows)


CONDITIONS: list[tuple[Any, Callable[[Row], bool]]] = [
    ("word = 'a/b'", lambda r: r["word"] == "a/b"),
    ("word = 'größe 東京 🦆' AND id > 70", lambda r: "größe" in (r["word"] or "") and r["id"] > 70),
    ("word IS NULL", lambda r: r["word"] is None),
    (
        "word IN ('100%', '%2F') OR id = 1000",
        lambda r: r["word"] in ("100%", "%2F") or r["id"] > 999,
    ),
    ("word LIKE 'a%'", lambda r: (r["word"] or "").startswith("a")),
    ("day = DATE '2026-11-01' AND name IS NOT NULL", lambda r: bool(r["day"] and r["name"])),
    ("moment < '2026-11-01T12:30:15.123457Z'", lambda r: r["moment"] is not None),
    ("moment < '2026-11-01T12:30:15.123456Z'", lambda _: False),
    ("price = -1.5", lambda r: r["price"] is not None),
    ("price > -1.5 OR price IS NULL", lambda r: r["price"] is None),
    ("id BETWEEN 2 AND 21", lambda r: 2 <= r["id"] <= 21),
    ("name = 'n4'", lambda r: r["name"] == "n4"),
    (pc.field("word") == "+?#&", lambda r: r["word"] == "+?#&"),
    (~pc.field("word").isin(["a b"]), lambda r: r["word"] != "a b"),
    ((pc.field("moment") == pa.scalar(MOMENT)) & (pc.field("id") < 5), lambda r: r["id"] < 5),
]


@pytest.mark.parametrize(
    ("where", "kept"), CONDITIONS, ids=[str(where)[:40] for where, _ in CONDITIONS]
)
def test_where_keeps_exactly_the_matching_rows(
    where: Any, kept: Callable[[Row], bool], odd: tuple[Table, list[Row]]
) -> None:
    table, first = odd
    for version, rows in ((1, first), (2, head_rows(first))):
        snapshot = table.snapshot(version)
        wanted = [row for row in rows if kept(row)]
        for way in (by_arrow, by_polars, by_duckdb):
            assert sorted_rows(way(snapshot, where)) == wanted
        dataset = snapshot.to_arrow_dataset()
        if not isinstance(where, str):
            assert sorted_rows(dataset.to_table(filter=where).to_pylist()) == wanted
            assert dataset.count_rows(filter=where) == len(wanted)


def test_columns_are_those_asked_for(plain: Files) -> None:
    snapshot = plain.table.snapshot()
    some = snapshot.to_arrow("id < 2", columns=["name", "id"])
    assert some.to_pylist() == [{"name": "n0", "id": 0}, {"name": "n1", "id": 1}]
    assert snapshot.to_polars("id < 2", columns=iter(["name"])).to_dict(as_series=False) == {
        "name": ["n0", "n1"]
    }
    assert snapshot.to_arrow(columns=[]).num_rows == 100


# --- laziness -----------------------------------------------------------------------------


@pytest.fixture
def first_only(plain: Files) -> Files:
    """Only the file with the ids 0 to 9 is there: whoever opens another one fails."""
    for file in plain.folder.glob("*.parquet"):
        if "part 0" not in file.name:
            file.unlink()
    with pytest.raises(DataFileMissingError, match="part"):
        plain.table.snapshot().to_arrow()
    return plain


def test_files_that_cannot_match_are_not_opened(first_only: Files) -> None:
    snapshot = first_only.table.snapshot()
    assert snapshot.to_arrow("id < 5").num_rows == 5
    assert snapshot.to_arrow_dataset("id < 8").filter(pc.field("id") > 5).count_rows() == 2
    dataset = rows_of(snapshot)
    assert dataset.to_table(filter=pc.field("id") < 5).num_rows == 5
    assert dataset.filter(pc.field("id") < 5).count_rows() == 5
    either = (pc.field("id") < 5) & (pc.utf8_length(pc.field("name")) == 2)
    assert dataset.count_rows(filter=either) == 5


def test_duckdb_reads_the_files_that_the_condition_leaves(first_only: Files) -> None:
    snapshot = first_only.table.snapshot()
    with duckdb.connect() as connection:
        relation = snapshot.to_duckdb("id < 8", connection)
        assert relation.filter("id < 5").aggregate("count(*)").fetchone() == (5,)
        assert relation.filter("id IN (3, 4)").project("name").fetchall() == [("n0",), ("n1",)]
        some = snapshot.to_duckdb("id < 2", connection, columns=["name"])
        assert some.fetchall() == [("n0",), ("n1",)]


def test_polars_pushes_its_filters_down_to_the_catalog(first_only: Files) -> None:
    lazy = pl.scan_pyarrow_dataset(rows_of(first_only.table.snapshot()))
    assert lazy.filter(pl.col("id") < 5).select(pl.len()).collect().item() == 5


def test_a_plain_table_is_a_dataset_of_pyarrow_that_all_of_pyarrow_reads(plain: Files) -> None:
    dataset = plain.table.snapshot().to_arrow_dataset()
    assert isinstance(dataset, pads.FileSystemDataset)
    fragments = list(dataset.get_fragments())
    assert len(fragments) == 10
    for fragment in fragments:
        assert pads.Scanner.from_fragment(fragment).count_rows() == 10
        assert sum(batch.num_rows for batch in fragment.to_batches()) == 10
    assert pads.Scanner.from_dataset(dataset, columns=["id"]).to_table().num_rows == 100
    assert pads.dataset([dataset, dataset]).count_rows() == 200
    assert (
        dataset.join(dataset.filter(pc.field("id") < 5), "id", "id", "left semi").count_rows() == 5
    )
    some = plain.table.snapshot().to_arrow_dataset("id >= 95")
    assert isinstance(some, pads.Dataset)
    assert some.count_rows() == 5
    assert pickle.loads(pickle.dumps(dataset)).count_rows() == 100  # noqa: S301 -- our own


@pytest.mark.parametrize(
    ("column", "properties"),
    [
        (pa.float64(), {}),
        (pa.struct([("x", pa.float32())]), {}),
        (pa.string(), {"delta.columnMapping.mode": "name"}),
    ],
    ids=["floats", "nested", "mapped"],
)
def test_a_table_that_pyarrow_would_read_otherwise_is_none_of_its_datasets(
    column: pa.DataType, properties: dict[str, str], lake: Lake, folder: Path
) -> None:
    table = lake.create_table(
        "t", location=str(folder), schema=pa.schema([("c", column)]), properties=properties
    )
    table.append(pa.table({"c": pa.array([None], column)}))
    rows = table.snapshot().to_arrow_dataset()
    assert isinstance(rows, SnapshotRows)
    assert rows.to_table().to_pylist() == [{"c": None}]


def test_rows_that_a_deletion_vector_hides_are_in_no_dataset(plain: Files) -> None:
    path = plain.table.snapshot().files()["path"][0].as_py()
    add = plain.write([{"id": 1000, "name": "hidden"}, {"id": 1001, "name": "there"}])
    add["add"]["deletionVector"] = inline_vector([0])
    plain.table.set_properties({"delta.enableDeletionVectors": "true"})
    plain.table.commit([add, remove(path)])
    rows = plain.table.snapshot().to_arrow_dataset("id >= 1000")
    assert isinstance(rows, SnapshotRows)
    assert rows.to_table()["id"].to_pylist() == [1001]


def test_an_open_dataset_stays_at_its_version(plain: Files) -> None:
    dataset = plain.table.snapshot().to_arrow_dataset("id < 15")
    paths = plain.table.snapshot().files()["path"].to_pylist()
    plain.table.commit([remove(path) for path in paths])
    assert dataset.count_rows() == 15
    assert plain.table.snapshot().to_arrow().num_rows == 0


# --- what goes wrong ----------------------------------------------------------------------


def test_a_missing_file_is_named(plain: Files) -> None:
    (plain.folder / "part 3 é.parquet").unlink()
    snapshot = plain.table.snapshot()
    for way in (snapshot.to_arrow, snapshot.to_polars):
        with pytest.raises(DataFileMissingError, match="part%203%20%C3%A9") as caught:
            way("id = 33")
        assert caught.value.fix
    with duckdb.connect() as connection, pytest.raises(duckdb.Error, match="part 3 é"):
        snapshot.to_duckdb("id = 33", connection).fetchall()


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("no_such = 1", InvalidConditionError),
        ("id = ", InvalidConditionError),
        ("length(name) = 2", UnsupportedConditionError),
        (7, InvalidArgumentError),
    ],
)
def test_a_wrong_condition_is_refused_before_reading(
    where: Any, error: type[Exception], plain: Files
) -> None:
    snapshot = plain.table.snapshot()
    for way in (
        snapshot.to_arrow_dataset,
        snapshot.to_arrow,
        snapshot.to_polars,
        snapshot.to_duckdb,
    ):
        with pytest.raises(error):
            way(where)


def test_wrong_columns_are_refused(plain: Files) -> None:
    snapshot = plain.table.snapshot()
    with pytest.raises(InvalidSchemaError, match="The columns are: id, name"):
        snapshot.to_arrow(columns=["no_such"])
    with pytest.raises(ConfigurationError, match=r"\['id'\]"):
        snapshot.to_arrow(columns="id")
    with pytest.raises(ConfigurationError, match="list of names"):
        snapshot.to_polars(columns=7)  # type: ignore[arg-type]


def test_a_closed_lake_says_so(plain: Files, open_lake: OpenLake) -> None:
    other = open_lake()
    dataset = rows_of(other.table("sales.plain").snapshot())
    other.close()
    with pytest.raises(CatalogError, match="closed"):
        dataset.to_table()


# --- what pyarrow means -------------------------------------------------------------------

NAN = float("nan")
X = pc.field("x")
MEANINGS = {
    "not above": ~(X > 5),
    "not below": ~(X < 5),
    "unequal": X != 5,
    "unequal to NaN": pc.field("x") != NAN,
    "not below NaN": ~(X < NAN),
    "whole number not below NaN": ~(pc.field("id") < NAN),
    "a NaN": pc.is_nan(X),
    "no NaN": ~pc.is_nan(X),
    "is null, or NaN": X.is_null(nan_is_null=True),
    "zero": X == 0.0,
    "not among": ~X.isin([0.0, 5.0]),
    "among, with null": X.isin([-0.0, None]),
    "whole number as double": pc.field("id") == 2.0,
    "half a number": pc.field("id") > 2.5,
    "a call": pc.add(pc.field("id"), 1) == 3,
    "the first column": pc.field(0) == 2,
}


@pytest.fixture(scope="module")
def floats(shared_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A file for each partition of a double."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    folder = tmp_path_factory.mktemp("floats")
    table = shared_lake.create_table(
        "floats", location=str(folder), schema=schema, partition_by=["x"]
    )
    files = Files(table, folder)
    values = [NAN, 0.0, -0.0, 5.0, 7.0, float("inf"), None]
    table.commit([files.write([{"id": i}], {"x": value}) for i, value in enumerate(values)])
    return table


@pytest.mark.parametrize("meaning", MEANINGS)
def test_a_filter_of_a_dataset_means_what_pyarrow_means(meaning: str, floats: Table) -> None:
    dataset = floats.snapshot().to_arrow_dataset()
    every = dataset.to_table()
    assert every.num_rows == 7
    wanted = pads.dataset(every).to_table(filter=MEANINGS[meaning])["id"].to_pylist()
    found = dataset.to_table(filter=MEANINGS[meaning])["id"].to_pylist()
    assert sorted(found) == sorted(wanted)
    assert dataset.filter(MEANINGS[meaning]).count_rows() == len(wanted)
