"""DuckDB, polars and pyarrow read the dataset, and push columns and filters into it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

from deltalakedb.actions.datatypes import INTEGER, LONG, STRING, StructType
from deltalakedb.errors import DataFileError, InvalidSchemaError, MissingDriverError
from deltalakedb.reading.dataset import SnapshotRows, to_duckdb, to_polars
from reading.table_files import Making, column

FIELDS = (
    column("part", INTEGER, 1),
    column("id", LONG, 2),
    column("s", StructType((column("x", LONG, 4),)), 3),
    column("broken", LONG, 5),
)


@pytest.fixture
def dataset(tmp_path: Path) -> SnapshotRows:
    """Two partitions of mapped columns: the second's file is gone, and a column is unreadable."""
    made = Making(tmp_path)
    for part in ("1", "2"):
        rows = [{"p2": i, "p3": {"p4": -i}, "p5": "text"} for i in range(10)]
        made.write(pa.Table.from_pylist(rows))["partitionValues"] = {"p1": part}
    (tmp_path / "part-1.parquet").unlink()
    return made.open(*FIELDS, partitions=("part",), mode="name")


@pytest.fixture
def whole(tmp_path: Path) -> SnapshotRows:
    made = Making(tmp_path)
    for i in range(3):
        made.write(pa.table({"a": range(i * 10, i * 10 + 10), "b": ["x", None] * 5}))
    return made.open(column("a", LONG), column("b", STRING))


def test_duckdb_gets_the_columns_and_rows_that_it_was_given(dataset: SnapshotRows) -> None:
    connection = duckdb.connect()
    some = dataset.filter((pc.field("part") == 1) & (pc.field("id") > 7))
    relation = to_duckdb(some, connection, ["id", "s"])
    assert relation.columns == ["id", "s"]
    assert relation.select("id, s.x").order("id").fetchall() == [(8, -8), (9, -9)]
    with pytest.raises(duckdb.Error, match="part-1"):
        to_duckdb(dataset, connection, ["id"]).fetchall()
    with pytest.raises(InvalidSchemaError, match="no column 'nothing'"):
        to_duckdb(dataset, connection, ["id", "nothing"])


def test_duckdb_counts_joins_and_repeats(whole: SnapshotRows) -> None:
    connection = duckdb.connect()
    assert connection.sql("SELECT count(*) FROM whole").fetchone() == (30,)
    assert connection.sql("SELECT count(*) FROM whole WHERE b IS NULL").fetchone() == (15,)
    joined = "SELECT count(*) FROM whole x JOIN whole y USING (a)"
    assert connection.sql(joined).fetchone() == (30,)
    relation = to_duckdb(whole, connection)
    assert relation.filter("a >= 28").order("a").fetchall() == [(28, "x"), (29, None)]
    assert relation.filter("a >= 28").order("a").fetchall() == [(28, "x"), (29, None)]
    assert to_duckdb(whole).aggregate("sum(a)").fetchone() == (435,)


def test_polars_asks_for_its_columns_and_rows_only(dataset: SnapshotRows) -> None:
    lazy = pl.scan_pyarrow_dataset(dataset)
    picked = lazy.filter((pl.col("part") == 1) & (pl.col("id") > 7)).select("id").collect()
    assert picked["id"].to_list() == [8, 9]


def test_polars_has_every_row(whole: SnapshotRows) -> None:
    frame = to_polars(whole)
    assert frame.shape == (30, 2)
    assert frame["a"].to_list() == list(range(30))
    lazy = pl.scan_pyarrow_dataset(whole)
    assert lazy.head(12).collect()["a"].to_list() == list(range(12))
    assert lazy.select(pl.len()).collect().item() == 30


def test_pyarrow_sorts_and_writes_it(whole: SnapshotRows, tmp_path: Path) -> None:
    assert whole.sort_by([("a", "descending")])["a"][0].as_py() == 29
    readers = {"whole": whole.to_reader(), "scan": whole.scanner(columns=["a"]).to_reader()}
    for name, reader in readers.items():
        pads.write_dataset(reader, tmp_path / name, format="parquet")
        assert pads.dataset(tmp_path / name).count_rows() == 30
    assert pa.table(whole) == whole.to_table()
    assert whole.take([29, 0], ["a"])["a"].to_pylist() == [29, 0]


def test_pyarrow_refuses_what_is_not_its_own(whole: SnapshotRows) -> None:
    assert not isinstance(whole, pads.Dataset)
    assert not isinstance(whole.scanner(), pads.Scanner)
    with pytest.raises(TypeError, match="SnapshotRows"):
        pads.dataset([whole, whole])
    with pytest.raises(TypeError):
        pads.Scanner.from_dataset(whole)


def test_rows_can_be_sent_elsewhere(whole: SnapshotRows) -> None:
    some = pickle.loads(pickle.dumps(whole.filter(pc.field("a") > 5)))  # noqa: S301 -- our own
    assert some.count_rows() == 24


def test_a_scanner_reads_as_often_as_it_is_asked(whole: SnapshotRows) -> None:
    scanner = whole.scanner(columns=["a"], filter=pc.field("a") > 20)
    assert scanner.projected_schema.names == ["a"]
    assert scanner.dataset_schema == whole.schema
    assert scanner.count_rows() == scanner.to_table().num_rows == 9
    assert scanner.take([1, 0])["a"].to_pylist() == [22, 21]
    assert scanner.head(2)["a"].to_pylist() == [21, 22]
    assert sum(batch.num_rows for batch in scanner.to_batches()) == 9


def test_an_error_of_a_file_reaches_whoever_reads(dataset: SnapshotRows) -> None:
    with pytest.raises(DataFileError, match="'broken'"):
        list(dataset.to_batches(filter=pc.field("part") == 1))


def test_more_scans_than_threads_of_pyarrow_all_end(whole: SnapshotRows) -> None:
    many = 3 * pa.io_thread_count()
    with ThreadPoolExecutor(many) as pool:
        readers = [whole.scanner().to_reader() for _ in range(many)]
        assert [t.num_rows for t in pool.map(lambda r: r.read_all(), readers)] == [30] * many


@pytest.mark.parametrize(
    "rest",
    [
        "b = d.to_batches(batch_size=10); print(next(b).num_rows)",
        "b = d.scanner(batch_size=10).to_reader(); print(next(b).num_rows)",
        "r = duckdb.sql('SELECT 10 FROM d LIMIT 3'); print(r.fetchone()[0])",
    ],
)
def test_whoever_stops_in_the_middle_can_leave(rest: str, tmp_path: Path) -> None:
    """A process with a half-read dataset ends: no thread of it waits for ever."""
    made = Making(tmp_path)
    for _ in range(10):
        made.write(pa.table({"a": range(1000)}), row_group_size=10)
    source = tmp_path / "dataset.pickle"
    source.write_bytes(pickle.dumps(made.open(column("a", LONG))))
    code = f"import pickle, sys, duckdb; d = pickle.load(open(sys.argv[1], 'rb')); {rest}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "10"


@pytest.mark.parametrize(("package", "convert"), [("polars", to_polars), ("duckdb", to_duckdb)])
def test_a_missing_package_is_named(
    package: str,
    convert: object,
    whole: SnapshotRows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert callable(convert)
    with pytest.raises(MissingDriverError, match=f"pip install {package}"):
        convert(whole)
