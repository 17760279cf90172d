"""Snapshots: which version, what the table was there, and that it stays so."""

import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    ConfigurationError,
    CorruptCatalogError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.table import Table

from support.lake import OpenLake, add, live_paths, new_lake_table, remove

START = datetime.fromtimestamp(ManualClock().now_ms() // 1000, tz=UTC)

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.fixture
def table(lake: Lake) -> Table:
    """An empty table."""
    return new_lake_table(lake)


def domain(name: str, configuration: str = "{}", *, removed: bool = False) -> dict[str, object]:
    body = {"domain": name, "configuration": configuration, "removed": removed}
    return {"domainMetadata": body}


def keys(snapshot: Snapshot) -> list[tuple[str, str]]:
    files = snapshot.files(columns=["path", "dv_id"])
    return sorted(zip(files["path"].to_pylist(), files["dv_id"].to_pylist(), strict=True))


# --- which version ------------------------------------------------------------------------


def test_the_newest_version_is_the_default(table: Table) -> None:
    for n in range(3):
        table.commit([add(f"{n}.parquet", size=n)])
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.num_files, snapshot.size_bytes) == (3, 3, 3)


def test_each_version_is_as_it_was(table: Table) -> None:
    table.commit([add("a"), add("b")])
    table.commit([remove("a"), add("c", size=7)])
    table.set_properties({"owner": "me"})
    assert [live_paths(table, v) for v in range(4)] == [[], ["a", "b"], ["b", "c"], ["b", "c"]]
    assert [table.snapshot(v).num_files for v in range(4)] == [0, 2, 2, 2]
    assert [table.snapshot(v).size_bytes for v in range(4)] == [0, 200, 107, 107]
    assert [table.snapshot(v).properties.get("owner") for v in range(4)] == [None, None, None, "me"]


def test_schema_and_protocol_are_those_of_the_version(table: Table) -> None:
    table.add_columns(
        '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
    )
    table.upgrade_protocol("deletionVectors")
    names = [[f.name for f in table.snapshot(v).schema.fields] for v in range(3)]
    assert names == [["id", "day"], ["id", "day", "n"], ["id", "day", "n"]]
    assert [table.snapshot(v).protocol.min_reader_version for v in range(3)] == [1, 1, 3]
    # Also when the handle goes back and forth, and reuses what it holds.
    assert [f.name for f in table.snapshot(0).schema.fields] == ["id", "day"]
    assert table.snapshot().protocol.min_reader_version == 3


def test_partition_columns_are_told(lake: Lake) -> None:
    table = new_lake_table(lake, partition_by=["day"])
    assert table.snapshot().partition_columns == ("day",)


@pytest.mark.parametrize("version", [-1, 4, 2**63, 2**80, -(2**80)])
def test_a_version_that_is_not_there_names_those_that_are(table: Table, version: int) -> None:
    for n in range(3):
        table.commit([add(f"{n}")])
    with pytest.raises(VersionNotFoundError) as caught:
        table.snapshot(version)
    message = str(caught.value)
    assert f"no version {version}." in message
    assert "versions 0 (2023-11-14T22:13:20.000Z) to 3 (2023-11-14T22:13:20.003Z)" in message


@pytest.mark.parametrize("version", ["3", 1.0, True, object()])
def test_a_version_is_a_whole_number(table: Table, version: int) -> None:
    with pytest.raises(ConfigurationError, match="whole number"):
        table.snapshot(version)


def test_a_version_and_a_time_together_are_refused(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="one of the two"):
        table.snapshot(0, timestamp=START)


def test_times_resolve_to_the_newest_version_before_them(table: Table, clock: ManualClock) -> None:
    for n in range(3):
        clock.advance(1_000)
        table.commit([add(f"{n}")])
    for seconds, version in [(0, 0), (0.999, 0), (1, 1), (1.5, 1), (2, 2), (2.9999, 2), (3, 3)]:
        moment = START + timedelta(seconds=seconds)
        assert table.snapshot(timestamp=moment).version == version
        assert table.snapshot(timestamp=moment.isoformat()).version == version
    assert table.snapshot(2).timestamp == START + timedelta(seconds=2)


def test_a_time_may_name_its_zone_and_is_utc_without(table: Table, clock: ManualClock) -> None:
    clock.advance(1_000)
    table.commit([add("a")])
    assert table.snapshot(timestamp="2023-11-14T22:13:20.5").version == 0
    assert table.snapshot(timestamp="2023-11-14T23:13:20.5+01:00").version == 0
    assert table.snapshot(timestamp=" 2023-11-14 22:13:21Z ").version == 1
    far = (START + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=-9)))
    assert table.snapshot(timestamp=far).version == 1
    assert table.snapshot(timestamp=far.astimezone(UTC).replace(tzinfo=None)).version == 1


@pytest.mark.parametrize(
    ("seconds", "why"), [(-0.001, "before the first"), (2.001, "after the last"), (9e9, "after")]
)
def test_a_time_outside_the_history_names_what_there_is(
    table: Table, clock: ManualClock, seconds: float, why: str
) -> None:
    clock.advance(2_000)
    table.commit([add("a")])
    with pytest.raises(VersionNotFoundError, match=why) as caught:
        table.snapshot(timestamp=START + timedelta(seconds=seconds))
    assert "0 (2023-11-14T22:13:20.000Z) to 1 (2023-11-14T22:13:22.000Z)" in str(caught.value)


@pytest.mark.parametrize("moment", ["yesterday", "", 5, datetime(2026, 1, 1).date()])  # noqa: DTZ001
def test_what_is_no_time_is_refused(table: Table, moment: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time"):
        table.snapshot(timestamp=moment)


def test_the_first_and_last_times_there_are(table: Table) -> None:
    for moment in (FIRST, LAST, LAST.replace(tzinfo=None)):
        with pytest.raises(VersionNotFoundError):
            table.snapshot(timestamp=moment)


def test_a_dropped_table_is_told(lake: Lake, table: Table) -> None:
    lake.drop_table(table.name, force=True)
    for look in (table.snapshot, table.refresh, table.cached_snapshot):
        with pytest.raises(TableNotFoundError, match="not registered"):
            look()


def test_a_version_whose_metadata_is_lost_is_not_made_up(lake: Lake, table: Table) -> None:
    with lake.store.write() as session:
        session.execute_count("DELETE FROM dl_metadata_updates", {})
    with pytest.raises(CorruptCatalogError, match="incomplete"):
        lake.table(table.name).snapshot()


# --- what cannot be read ------------------------------------------------------------------


def test_a_table_that_needs_more_than_we_know_is_refused(lake: Lake, table: Table) -> None:
    query = lake.store.dialect.sql(
        "UPDATE dl_protocol_updates SET min_reader_version = 3, min_writer_version = 7, "
        "reader_features = :names, writer_features = :names"
    )
    with lake.store.write() as session:
        names: object = ["futureFeature"]
        if session.engine == "sqlite":
            names = '["futureFeature"]'
        session.execute_count(query, {"names": names})
    fresh = lake.table(table.name)
    for look in (fresh.snapshot, fresh.cached_snapshot):
        with pytest.raises(UnsupportedFeatureError, match="futureFeature"):
            look()
    with pytest.raises(UnsupportedFeatureError), lake.snapshot([table.name]):
        pass
    assert fresh.refresh() == 0


# --- the rest of the state ----------------------------------------------------------------


def test_app_transactions_are_those_of_the_version(table: Table) -> None:
    table.commit([add("a")], app_txn=("one", 5))
    table.commit([add("b")], app_txn=("two", 1))
    table.commit([add("c")], app_txn=("one", 6))
    table.commit([{"txn": {"appId": "ä\ue000", "version": -3}}])
    assert [table.snapshot(v).app_transactions for v in range(5)] == [
        {},
        {"one": 5},
        {"one": 5, "two": 1},
        {"one": 6, "two": 1},
        {"one": 6, "two": 1, "ä\ue000": -3},
    ]


def test_domain_metadata_hides_what_was_removed(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.feature.domainMetadata": "supported"})
    table.commit([domain("a", '{"n":1}'), domain("b", "\ue000 text")])
    table.commit([domain("a", removed=True)])
    table.commit([domain("a", "again")])
    assert [table.snapshot(v).domain_metadata for v in range(4)] == [
        {},
        {"a": '{"n":1}', "b": "\ue000 text"},
        {"b": "\ue000 text"},
        {"a": "again", "b": "\ue000 text"},
    ]


# --- it stays as it is --------------------------------------------------------------------


def test_a_snapshot_does_not_see_what_comes_later(open_lake: OpenLake) -> None:
    """No isolation beyond READ COMMITTED is needed: each listing is a transaction of its own."""
    mine, theirs = open_lake(), open_lake()
    table = new_lake_table(mine, properties={"delta.enableDeletionVectors": "true"})
    table.commit([add("a"), add("b"), add("c", dv=1)], app_txn=("app", 1))
    snapshot = table.snapshot()
    before = (keys(snapshot), snapshot.app_transactions, snapshot.size_bytes)
    reading = snapshot.iter_files(1)
    first = next(reading)
    other = theirs.table(table.name)
    other.commit([remove("a"), add("d")], app_txn=("app", 2))
    other.commit([remove("c", dv=1), add("c", dv=2), add("a", size=5)])
    other.commit([remove("b"), remove("d"), remove("a")])
    assert (keys(snapshot), snapshot.app_transactions, snapshot.size_bytes) == before
    seen = [first, *reading]
    assert sorted(b["path"][0].as_py() for b in seen) == ["a", "b", "c"]
    assert live_paths(table) == ["c"]
    assert keys(table.snapshot(snapshot.version)) == before[0]


def test_many_tables_at_one_instant(lake: Lake) -> None:
    tables = [new_lake_table(lake, name) for name in ("a", "b")]
    with lake.snapshot(["a", "b"]) as at:
        with lake.transaction() as tx:
            for name in ("a", "b"):
                tx.table(name).add_actions([add("x")])
        assert [at[name].files().num_rows for name in ("a", "b")] == [0, 0]
    with lake.snapshot([]) as at:
        assert at == {}
    with lake.snapshot("a") as at:
        assert list(at) == ["a"]
        assert at["a"].version == 1
    assert [t.snapshot().num_files for t in tables] == [1, 1]


# --- history ------------------------------------------------------------------------------


def test_history_is_searched_in_sql(open_lake: OpenLake, clock: ManualClock) -> None:
    ann, bob = open_lake(committer="ann"), open_lake(committer="bob")
    new_lake_table(ann)
    for number, (lake, operation) in enumerate(
        [(ann, "WRITE"), (bob, "MERGE"), (ann, "MERGE"), (bob, "WRITE")]
    ):
        clock.advance(1_000)
        table = lake.table("sales.orders")
        table.commit([add(f"{number}")], operation=operation)

    def found(**options: object) -> list[int]:
        records = table.history(**options)  # type: ignore[arg-type]
        if "limit" not in options:
            streamed = table.iter_history(**options)  # type: ignore[arg-type]
            assert list(streamed) == records
        return [record.version for record in records]

    assert found() == [4, 3, 2, 1, 0]
    assert found(limit=2) == [4, 3]
    assert found(limit=0) == []
    assert found(limit=None) == [4, 3, 2, 1, 0]
    assert found(operation="MERGE") == [3, 2]
    assert found(committer="ann") == [3, 1, 0]
    assert found(committer="ann", operation="MERGE", limit=5) == [3]
    assert found(committer="nobody") == []
    assert found(since=START + timedelta(seconds=2)) == [4, 3, 2]
    assert found(until="2023-11-14T22:13:22Z") == [2, 1, 0]
    assert found(since=START + timedelta(seconds=2), until=START + timedelta(seconds=3)) == [3, 2]
    assert found(since=LAST) == []
    assert found(until=FIRST) == []


@pytest.mark.parametrize("limit", [-1, "5", 2.5, True])
def test_a_limit_is_a_whole_number(table: Table, limit: int) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        table.history(limit)


def test_a_time_of_the_history_is_checked(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="The since 'soon' is not a time"):
        table.history(since="soon")
    with pytest.raises(ConfigurationError, match="The until 5 is not a time"):
        next(table.iter_history(until=5))  # type: ignore[arg-type]


# --- metrics ------------------------------------------------------------------------------


def test_opening_is_measured_and_live_files_are_told(lake: Lake, table: Table) -> None:
    table.commit([add("a"), add("b")])
    table.snapshot()
    before = lake.metrics.read()["metadata_open_latency_ms"]["count"]
    table.snapshot()
    table.snapshot(0)
    read = lake.metrics.read()
    assert read["metadata_open_latency_ms"]["count"] == before + 2
    # The older version says nothing of how many there are now.
    assert read['files_active_gauge{table="sales.orders"}'] == 2


def test_rows_that_are_read_are_counted(lake: Lake, table: Table) -> None:
    table.commit([add(f"{n}") for n in range(7)])
    before = lake.metrics.read().get("rows_scanned", 0)
    table.snapshot().files()
    list(table.snapshot().iter_files(2))
    assert lake.metrics.read()["rows_scanned"] - before == 14


def test_every_query_is_a_span(lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    table.commit([add("a")])
    exporter.clear()
    snapshot = table.snapshot()
    snapshot.files()
    list(snapshot.iter_files())
    snapshot.has_file("a")
    table.history()
    assert (snapshot.app_transactions, snapshot.domain_metadata) == ({}, {})
    seen = exporter.get_finished_spans()
    provider.shutdown()
    assert {span.name for span in seen} == {
        f"deltalakedb.{name}"
        for name in (
            "open",
            "files",
            "has_file",
            "history",
            "app_transactions",
            "domain_metadata",
        )
    }
    assert {(span.attributes or {}).get("table") for span in seen} == {table.name}


# --- the cache ----------------------------------------------------------------------------


def rows_scanned(lake: Lake) -> float:
    found: float = lake.metrics.read().get("rows_scanned", 0)
    return found


def test_the_cache_reads_only_what_is_new(lake: Lake, table: Table) -> None:
    table.commit([add(f"{n:03}") for n in range(500)])
    assert table.cached_snapshot().files().num_rows == 500
    held = table.cached_snapshot()
    before = rows_scanned(lake)
    assert table.cached_snapshot() is held
    assert table.cached_snapshot().files().num_rows == 500
    assert rows_scanned(lake) == before
    table.commit([add("x"), add("y"), remove("007")])
    table.commit([remove("x"), remove("008")])
    table.set_properties({"owner": "me"})
    snapshot = table.cached_snapshot()
    assert keys(snapshot) == keys(table.snapshot())
    assert snapshot.properties["owner"] == "me"
    # Two that went and one that came, and not x, which came and went; the fresh list has 499.
    assert rows_scanned(lake) - before == 3 + 499
    assert held.files().num_rows == 500


def test_a_file_that_comes_back_is_the_new_one(lake: Lake) -> None:
    table = new_lake_table(lake, properties={"delta.enableDeletionVectors": "true"})
    table.commit([add("a", size=1), add("b", size=1), add("c", size=1)])
    table.cached_snapshot()
    table.commit([add("a", size=2, data_change=False)])  # the same file, described anew
    table.commit([remove("b")])
    table.commit([add("b", size=3)])
    table.commit([remove("c"), add("c", size=1, dv=1)])
    found = table.cached_snapshot().files(limit=10).to_pylist()
    assert found == table.snapshot().files(limit=10).to_pylist()
    assert [(f["path"], f["size_bytes"], f["added_version"]) for f in found] == [
        ("a", 2, 2),
        ("b", 3, 4),
        ("c", 1, 5),
    ]


def test_what_the_cache_does_not_hold_is_asked_for(table: Table) -> None:
    table.commit([add("a", values={}), add("b")])
    cached = table.cached_snapshot()
    assert cached.files(columns=["data_change"])["data_change"].to_pylist() == [True, True]
    assert cached.files(columns=["path"], limit=1, offset=1)["path"].to_pylist() == ["b"]
    assert [b.num_rows for b in cached.iter_files(1)] == [1, 1]
    assert [b.num_rows for b in cached.iter_files(5, columns=["tags"])] == [2]
    assert cached.has_file("a")
    with pytest.raises(ConfigurationError):
        cached.files(limit=-1)


def test_the_cache_finds_out_when_its_history_is_gone(lake: Lake, table: Table) -> None:
    """Forgotten intervals must not leave dead files in the list."""
    table.commit([add("a"), add("b")])
    table.cached_snapshot()
    table.commit([remove("a")])
    with lake.store.write() as session:
        session.execute_count("DELETE FROM dl_active_files WHERE removed_version = 2", {})
    assert keys(table.cached_snapshot()) == [("b", "")]


def test_the_cache_serves_many_threads(table: Table) -> None:
    table.commit([add("0")])
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        version = 0
        try:
            while not stop.is_set():
                snapshot = table.cached_snapshot()
                assert snapshot.files().num_rows == snapshot.num_files == snapshot.version
                assert snapshot.version >= version
                version = snapshot.version
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for n in range(1, 30):
        table.commit([add(f"{n}")])
    stop.set()
    for reader in readers:
        reader.join(30)
    assert errors == []
    assert table.cached_snapshot().version == 30
