"""Files as Arrow: exact types and values, bounded memory, and no connection left behind."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.actions import AddFile
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import (
    CatalogBusyError,
    CatalogConnectionLostError,
    CatalogError,
    CatalogUnreachableError,
    ConfigurationError,
    InvalidConditionError,
)
from deltalakedb.lake import Lake
from deltalakedb.snapshot import matching
from deltalakedb.snapshot.listing import COLUMNS, DEFAULT_COLUMNS, rebatch
from deltalakedb.store import Store
from deltalakedb.store.postgres_arrow import with_literals
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.lake import Json, OpenLake, add, deletion_vector, new_lake_table
from support.postgres_server import PostgresServer
from support.store import Catalogs

INTEGERS = {
    "added_version",
    "size_bytes",
    "modification_time",
    "base_row_id",
    "default_row_commit_version",
}
TYPES = {
    name: pa.int64() if name in INTEGERS else pa.bool_() if name == "data_change" else pa.string()
    for name in COLUMNS
}


@pytest.fixture
def table(lake: Lake) -> Table:
    """An empty table, partitioned by day."""
    return new_lake_table(lake, partition_by=["day"])


def filled(lake: Lake, count: int) -> Table:
    """A table with that many files, in two commits."""
    table = new_lake_table(lake)
    half = count // 2
    table.commit([add(f"{n:05}") for n in range(half)])
    table.commit([add(f"{n:05}") for n in range(half, count)])
    return table


def listed(table: Table, **options: Any) -> list[str]:
    paths: list[str] = table.snapshot().files(**options)["path"].to_pylist()
    return paths


# --- types and values ---------------------------------------------------------------------


def test_an_empty_table_has_the_types_of_any(table: Table) -> None:
    for columns in (None, COLUMNS):
        files = table.snapshot().files(columns=columns)
        names = columns or DEFAULT_COLUMNS
        assert files.num_rows == 0
        assert files.schema == pa.schema([(name, TYPES[name]) for name in names])
    assert list(table.snapshot().iter_files()) == []


def test_every_column_comes_back_as_it_was_committed(lake: Lake) -> None:
    table = new_lake_table(
        lake,
        partition_by=["day"],
        properties={"delta.enableDeletionVectors": "true"},
    )
    stats = '{"numRecords":2,  "minValues":{"id":1}}'
    body: Json = {
        "path": "day=a%20b/ä.parquet",
        "partitionValues": {"day": 'a "b"'},
        "size": 2**62,
        "modificationTime": 5,
        "dataChange": False,
        "stats": stats,
        "tags": {"k": "v", "empty": ""},
        "deletionVector": deletion_vector(3),
        "baseRowId": 2**40,
        "defaultRowCommitVersion": 0,
        "clusteringProvider": "liquid",
        "unknown": [1, None],
    }
    table.commit([{"add": body}])
    table.commit([add("plain", values={"day": None}, rows=None)])
    files = table.snapshot().files(columns=COLUMNS, limit=2)
    assert files.schema == pa.schema([(name, TYPES[name]) for name in COLUMNS])
    first, second = files.to_pylist()
    for name in ("partition_values", "tags", "deletion_vector", "extra"):
        first[name] = json.loads(first[name])
    assert first == {
        "path": "day=a%20b/ä.parquet",
        "dv_id": "u00000000000000000003@1",
        "added_version": 1,
        "size_bytes": 2**62,
        "modification_time": 5,
        "partition_values": {"day": 'a "b"'},
        "stats": stats,
        "deletion_vector": deletion_vector(3),
        "tags": {"k": "v", "empty": ""},
        "base_row_id": 2**40,
        "default_row_commit_version": 0,
        "data_change": False,
        "clustering_provider": "liquid",
        "extra": {"unknown": [1, None]},
    }
    assert (second["stats"], second["tags"], second["deletion_vector"]) == (None, None, None)
    assert (second["dv_id"], second["data_change"]) == ("", True)
    assert json.loads(second["partition_values"]) == {"day": None}


ODD = ("\x00", "\ue000", "\ue0000", "\ue0001", "a\x00\ue0001b", "\uefff", "\U0010ffff")


@pytest.mark.parametrize("where", [None, "day is not null"], ids=["all", "where"])
def test_characters_that_postgres_cannot_hold_come_back(lake: Lake, where: str | None) -> None:
    table = new_lake_table(lake, partition_by=["day"])
    table.commit(
        [
            {
                "add": {
                    "path": f"{n}",
                    "partitionValues": {"day": text},
                    "size": 1,
                    "modificationTime": 1,
                    "dataChange": True,
                    "tags": {text: text},
                    "clusteringProvider": text,
                }
            }
            for n, text in enumerate(ODD)
        ]
    )
    columns = ["path", "partition_values", "tags", "clustering_provider"]
    files = table.snapshot().files(where, columns=columns, limit=100).to_pylist()
    assert [f["path"] for f in files] == [str(n) for n in range(len(ODD))]
    for found, text in zip(files, ODD, strict=True):
        assert json.loads(found["partition_values"]) == {"day": text}
        assert json.loads(found["tags"]) == {text: text}
        assert found["clustering_provider"] == text


def test_only_the_columns_that_are_asked_for_come_in_their_order(table: Table) -> None:
    table.commit([add("a", values={"day": "x"})])
    files = table.snapshot().files(columns=["size_bytes", "path"])
    assert files.to_pylist() == [{"size_bytes": 100, "path": "a"}]
    assert files.column_names == ["size_bytes", "path"]


@pytest.mark.parametrize("columns", [["nope"], [], "path", ["path", "path"], ["table_id"], [5]])
def test_columns_that_cannot_be_listed_are_refused(table: Table, columns: Any) -> None:
    for listing in (table.snapshot().files, table.snapshot().iter_files):
        with pytest.raises(ConfigurationError, match="clustering_provider"):
            listing(columns=columns)


# --- order and parts ----------------------------------------------------------------------


def test_a_part_is_in_the_order_of_paths_on_every_engine(table: Table) -> None:
    # Languages order these otherwise than code points do.
    paths = ["B", "a", "_", "é", "Z9", "z", "-x", "A", "\U0001f600", "\uffff"]
    table.commit([add(path, values={"day": "x"}) for path in paths])
    ordered = sorted(paths)
    for where in (None, "day = 'x'"):
        assert listed(table, where=where, limit=100) == ordered
        assert listed(table, where=where, limit=3) == ordered[:3]
        assert listed(table, where=where, limit=3, offset=4) == ordered[4:7]
        assert listed(table, where=where, offset=8) == ordered[8:]
        assert listed(table, where=where, limit=0) == []
        assert listed(table, where=where, offset=100) == []
        assert listed(table, where=where, limit=2**70) == ordered
        assert sorted(listed(table, where=where)) == ordered
    assert table.cached_snapshot().files(limit=2**70)["path"].to_pylist() == ordered


@pytest.mark.parametrize("name", ["limit", "offset"])
@pytest.mark.parametrize("value", [-1, "1", 1.5, True])
def test_limits_are_whole_numbers(table: Table, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        table.snapshot().files(**{name: value})


# --- conditions ---------------------------------------------------------------------------


def test_a_condition_leaves_out_files_that_cannot_match(table: Table) -> None:
    def described(path: str, day: str, low: int, high: int) -> Json:
        action = add(path, values={"day": day})
        stats = {"numRecords": 1, "minValues": {"id": low}, "maxValues": {"id": high}}
        action["add"]["stats"] = json.dumps(stats)
        return action

    table.commit([described("a", "x", 1, 5), described("b", "x", 6, 9), described("c", "y", 1, 5)])
    table.commit([add("unknown", values={"day": "x"}, rows=None)])
    snapshot = table.snapshot()
    for where, paths in {
        "day = 'x' AND id > 5": ["b", "unknown"],
        "day = 'y'": ["c"],
        "day = 'nothing'": [],
        "id = 3": ["a", "c", "unknown"],
        "day = 'it''s :p0 %s ? $1'": [],
    }.items():
        assert sorted(snapshot.files(where)["path"].to_pylist()) == paths
        batches = list(snapshot.iter_files(1, where))
        assert sorted(b["path"][0].as_py() for b in batches) == paths
    assert snapshot.files("id > 5", limit=1, offset=1)["path"].to_pylist() == ["unknown"]
    assert sorted(table.cached_snapshot().files("day = 'y'")["path"].to_pylist()) == ["c"]
    parsed = parse_where("day = 'y'", snapshot.schema, snapshot.partition_columns)
    assert snapshot.files(parsed)["path"].to_pylist() == ["c"]


def test_a_condition_that_does_not_fit_the_table_is_refused_at_once(table: Table) -> None:
    with pytest.raises(InvalidConditionError, match="nope"):
        table.snapshot().files("nope = 1")
    with pytest.raises(InvalidConditionError):
        table.snapshot().iter_files(where="day =")


# --- one file -----------------------------------------------------------------------------


def test_a_file_is_looked_up_by_its_key(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.enableDeletionVectors": "true"})
    table.commit([add("a\ue000", dv=1), add("b")])
    table.commit([{"remove": {"path": "b", "dataChange": True}}])
    head, before, first = table.snapshot(), table.snapshot(1), table.snapshot(0)
    assert head.has_file("a\ue000")
    assert head.has_file("a\ue000", "u00000000000000000001@1")
    assert not head.has_file("a\ue000", "")
    assert not head.has_file("a\ue000", "u00000000000000000002@1")
    assert not head.has_file("b")
    assert before.has_file("b")
    assert before.has_file("b", "")
    assert not first.has_file("b")


# --- batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 100, 999, 1_000, 1_001, 2_500, 10_000])
def test_batches_have_exactly_the_size_that_was_asked_for(shared_lake: Lake, size: int) -> None:
    if not shared_lake.tables():
        filled(shared_lake, 2_500)
    (table,) = shared_lake.tables()
    step = 500 if size == 1 else 1
    batches = list(table.snapshot().iter_files(size))
    full, rest = divmod(2_500, size)
    assert [b.num_rows for b in batches] == [size] * full + ([rest] if rest else [])
    assert {tuple(b.schema.names) for b in batches[::step]} == {DEFAULT_COLUMNS}
    paths = [path for b in batches for path in b["path"].to_pylist()]
    assert sorted(paths) == [f"{n:05}" for n in range(2_500)]


@pytest.mark.parametrize("size", [0, -1, "5", True])
def test_the_size_of_a_batch_is_checked_at_once(table: Table, size: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch_size"):
        table.snapshot().iter_files(size)


def test_rebatching_keeps_every_row() -> None:
    def numbers(*sizes: int) -> Iterator[pa.RecordBatch]:
        start = 0
        for size in sizes:
            yield pa.record_batch({"n": pa.array(range(start, start + size), pa.int64())})
            start += size

    for sizes in [(), (0,), (3,), (1, 1, 1, 1), (10, 0, 1), (4, 4), (2, 9, 2)]:
        found = list(rebatch(numbers(*sizes), 4))
        assert [v for b in found for v in b["n"].to_pylist()] == list(range(sum(sizes)))
        assert all(b.num_rows == 4 for b in found[:-1])
        assert all(0 < b.num_rows <= 4 for b in found)


# --- connections --------------------------------------------------------------------------


def in_use(lake: Lake) -> int:
    """How many connections listings hold at this moment."""
    dialect: Any = lake.store.dialect
    pools = [dialect._listings]
    if lake.store.dialect.engine == "postgres" and dialect._arrow is not None:
        pools.append(dialect._arrow._pool)
    return sum(pool.in_use for pool in pools)


WHERE = pytest.mark.parametrize("where", [None, "id >= 0 or id is null"], ids=["all", "where"])


@WHERE
def test_a_listing_gives_its_connection_back(
    lake: Lake, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "LEAST_FILES", 10_000)  # pages hold no connection
    table = filled(lake, 2_000)
    snapshot = table.snapshot()
    unused = snapshot.iter_files(10, where)
    assert in_use(lake) == 0
    exhausted = snapshot.iter_files(10, where)
    next(exhausted)
    assert in_use(lake) == 1
    assert len(list(exhausted)) == 199
    assert in_use(lake) == 0
    closed = snapshot.iter_files(10, where)
    next(closed)
    closed.close()
    assert in_use(lake) == 0
    dropped = snapshot.iter_files(10, where)
    next(dropped)
    assert in_use(lake) == 1
    del dropped
    gc.collect()
    assert in_use(lake) == 0
    del unused
    assert snapshot.files(where).num_rows == 2_000


@WHERE
def test_an_error_of_the_reader_leaks_nothing(lake: Lake, where: str | None) -> None:
    snapshot = filled(lake, 2_000).snapshot()

    def fail() -> None:
        for _ in snapshot.iter_files(10, where):
            raise ZeroDivisionError

    for _ in range(40):  # more often than there are connections
        with pytest.raises(ZeroDivisionError):
            fail()
    assert in_use(lake) == 0
    assert snapshot.files(where).num_rows == 2_000


@WHERE
def test_commits_go_on_while_listings_are_open(
    catalog_url: str, open_lake: OpenLake, where: str | None
) -> None:
    joint = "&" if "?" in catalog_url else "?"
    lake = deltalakedb.connect(f"{catalog_url}{joint}pool_size=1&timeout=5", mirror="worker")
    with lake:
        table = filled(lake, 3_000)
        reading = table.snapshot().iter_files(10, where)
        next(reading)
        table.commit([{"remove": {"path": "00001", "dataChange": True}}, add("new")])
        assert table.snapshot().num_files == 3_000
        assert sum(b.num_rows for b in reading) == 2_990


def test_no_more_listings_than_connections(catalog_url: str) -> None:
    joint = "&" if "?" in catalog_url else "?"
    url = f"{catalog_url}{joint}pool_size=1&timeout=0.2"
    with deltalakedb.connect(url, mirror="worker") as lake:
        snapshot = filled(lake, 3_000).snapshot()
        reading = snapshot.iter_files(10)
        next(reading)
        with pytest.raises(CatalogBusyError, match="pool_size"):
            snapshot.files(limit=3_000)  # from the rows: pages need no such connection
        reading.close()
        assert snapshot.files().num_rows == 3_000


def test_a_closed_lake_lists_nothing(lake: Lake) -> None:
    snapshot = filled(lake, 10).snapshot()
    lake.close()
    for _ in range(2):
        with pytest.raises(CatalogError, match="closed"):
            snapshot.files()


FORKING = """
import os, sys
import deltalakedb
from deltalakedb.errors import ForkedProcessError
lake = deltalakedb.connect(sys.argv[1], mirror="worker")
snapshot = lake.table("sales.orders").snapshot()
reading = snapshot.iter_files(10)
rows = next(reading).num_rows
assert snapshot.files().num_rows == 2000
child = os.fork()
if child == 0:
    try:
        print("child", snapshot.files().num_rows, flush=True)
    except ForkedProcessError as error:
        print("child refused:", error, flush=True)
    lake.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert snapshot.files().num_rows == 2000
print("parent", rows + sum(batch.num_rows for batch in reading), flush=True)
lake.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_listing_that_is_read_half_survives_a_fork(
    engine: Engine, lake: Lake, catalog_url: str
) -> None:
    filled(lake, 2_000)
    lake.close()
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING, catalog_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    child, parent = answer.stdout.splitlines()
    assert parent == "parent 2000"
    # SQLite would rely on locks that only the parent has: it has the file open for the listing.
    assert child == "child 2000" if engine == "postgres" else child.startswith("child refused:")


@pytest.mark.parametrize("name", ["with space", "100%", "what?", "a%20b", "q'uote#x", "ä;b"])
def test_a_file_may_have_an_odd_name(engine: Engine, tmp_path: Any, name: str) -> None:
    if engine == "postgres":
        pytest.skip("a server has no file")
    with deltalakedb.connect(f"{engine}:///{quote(str(tmp_path / name))}", mirror="worker") as lake:
        table = filled(lake, 4)
        assert table.snapshot().files().num_rows == 4


def test_no_commit_is_lost_when_another_process_looks_after_a_listing(
    engine: Engine, catalog_url: str
) -> None:
    """Two copies of SQLite in one process would drop each other's locks and delete the log."""
    if engine != "sqlite":
        pytest.skip("only SQLite shares its file between processes")
    count = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(sys.argv[2]))"
    with deltalakedb.connect(catalog_url, mirror="worker") as lake:
        table = filled(lake, 4)
        for n in range(3):
            assert table.snapshot().files().num_rows == 4 + n
            table.commit([add(f"late {n}")])
            path = catalog_url.removeprefix("sqlite:///")
            seen = subprocess.run(
                [sys.executable, "-c", count, path, "SELECT current_version FROM dl_table_heads"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert seen.stdout == f"({table.version},)\n"


# --- Postgres -----------------------------------------------------------------------------


@pytest.fixture
def postgres_lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("postgres") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


@contextmanager
def terminated(lake: Lake) -> Iterator[None]:
    """End every other connection to the database."""
    with lake.store.read() as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            {},
        )
    yield


def test_idle_connections_that_died_are_replaced(postgres_lake: Lake) -> None:
    snapshot = filled(postgres_lake, 10).snapshot()
    assert snapshot.files().num_rows == 10
    with terminated(postgres_lake):
        assert snapshot.files().num_rows == 10
        assert snapshot.files("id > 0").num_rows == 10
        assert snapshot.has_file("00001")
        assert snapshot.version == 2


def test_opening_survives_connections_that_died(
    postgres_lake: Lake, postgres_server: PostgresServer
) -> None:
    import psycopg

    table = filled(postgres_lake, 10)
    table.snapshot()
    with postgres_lake.store.read() as session:
        ((database,),) = session.execute("SELECT current_database()", {})
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [database],
        )
    assert table.snapshot().version == 2


@pytest.mark.parametrize("where", [None, "id >= 0 or id is null"], ids=["all", "where"])
def test_a_connection_lost_in_the_middle_is_told(
    postgres_lake: Lake, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "LEAST_FILES", 10_000)  # pages hold no connection
    table = new_lake_table(postgres_lake)
    wide = json.dumps({"numRecords": 1, "note": "x" * 5_000})
    body = [AddFile(f"{n:05}", {}, 1, 1, data_change=True, stats=wide) for n in range(5_000)]
    table.commit(body)
    reading = table.snapshot().iter_files(10, where)
    next(reading)
    with terminated(postgres_lake), pytest.raises(CatalogConnectionLostError, match="lost"):
        for _ in reading:
            pass
    assert in_use(postgres_lake) == 0
    assert table.snapshot().files(where, columns=["path"]).num_rows == 5_000


def test_a_server_that_is_gone_is_told_without_its_password(
    postgres_server: PostgresServer, postgres_lake: Lake
) -> None:
    snapshot = filled(postgres_lake, 1).snapshot()
    with postgres_lake.store.read() as session:
        ((database,),) = session.execute("SELECT current_database()", {})
    url = postgres_server.url(database, tcp=True).replace("//postgres@", "//postgres:Zebra-42@")
    dead = url.replace(f":{postgres_server.port}/", ":1/")
    lake = Lake(Store.open(dead + ("&" if "?" in dead else "?") + "timeout=2"))
    object.__setattr__(snapshot, "_store", lake.store)
    with pytest.raises(CatalogUnreachableError, match="cannot be reached") as caught:
        snapshot.files()
    seen = f"{caught.value!r} {caught.value} {caught.value.__cause__} {caught.value.__context__}"
    assert "Zebra" not in seen
    lake.close()


def test_a_custom_schema_is_listed(catalogs: Catalogs) -> None:
    with catalogs.empty("postgres") as url:
        odd = 'it\'s "odd" ä%\\'
        joint = "&" if "?" in url else "?"
        with deltalakedb.connect(f"{url}{joint}schema={quote(odd)}", mirror="worker") as lake:
            snapshot = filled(lake, 6).snapshot()
            assert snapshot.files().num_rows == 6
            assert snapshot.files("id > 0").num_rows == 6


def test_only_uuids_and_whole_numbers_become_sql_text() -> None:
    uuid = "0123e567-e89b-12d3-a456-426614174000"
    text = "a = :a AND b = ':a' AND c::text = :b"
    made = with_literals(text, {"a": uuid, "b": -5})
    assert made == f"a = '{uuid}'::uuid AND b = ':a' AND c::text = (-5)::bigint"
    for value in ("x' OR '1'='1", "", 1.5, None, True, b"x", [1]):
        with pytest.raises((TypeError, ValueError)):
            with_literals(text, {"a": value, "b": 1})  # type: ignore[dict-item]
