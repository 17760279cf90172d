"""A catalog through PgBouncer: each transaction may be another session of the server."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.actions import Txn
from deltalakedb.errors import ConfigurationError
from store.test_connections import with_options

from support.pgbouncer import PgBouncer, why_no_pgbouncer
from support.postgres_server import PostgresServer
from support.store import Catalogs, OpenStore, commit, new_table

pytestmark = pytest.mark.skipif(bool(why_no_pgbouncer()), reason=why_no_pgbouncer())

SETTINGS = ("lock_timeout", "enable_seqscan", "enable_hashjoin", "synchronous_commit")


def database(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


@pytest.fixture(scope="module")
def bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server) as running:
        yield running


@pytest.fixture
def pooled_url(bouncer: PgBouncer, catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("postgres") as url:
        yield bouncer.url(database(url))


def test_writers_and_readers_share_two_sessions(pooled_url: str, tmp_path: Path) -> None:
    writers, rounds = 4, 12
    failures: list[BaseException] = []
    with deltalakedb.connect(with_options(pooled_url, pool_size=8)) as lake:
        for n in range(writers):
            lake.create_table(
                f"t{n}",
                location=(tmp_path / f"t{n}").as_uri(),
                schema=pa.schema([("id", pa.int64())]),
                properties={"delta.checkpointInterval": "5"},
            )

        def work(n: int) -> None:
            try:
                table = lake.table(f"t{n}")
                for number in range(rounds):
                    table.append(pa.table({"id": [n * rounds + number]}))
                    snapshot = table.snapshot()
                    assert snapshot.version == number + 1
                    assert snapshot.files().num_rows == number + 1
                    assert sum(b.num_rows for b in snapshot.iter_files(batch_size=2)) == number + 1
                    assert len(table.history()) == number + 2
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        for n in range(writers):
            found = lake.table(f"t{n}").snapshot().to_arrow()["id"].to_pylist()
            assert sorted(found) == list(range(n * rounds, (n + 1) * rounds))
            assert lake.verify(f"t{n}").ok


def test_a_statement_that_is_repeated_is_not_prepared(
    pooled_url: str, open_store: OpenStore
) -> None:
    stores = [open_store(pooled_url) for _ in range(3)]
    table_id = new_table(stores[0])
    for number in range(1, 25):
        assert commit(stores[number % 3], table_id, [Txn("a", number)]) == number
        for store in stores:
            assert store.dialect.ask(lambda s: s.one("head", table_id=table_id)) == (number,)


def test_a_schema_of_its_own_is_found_in_every_transaction(
    bouncer: PgBouncer, catalogs: Catalogs, open_store: OpenStore
) -> None:
    with catalogs.empty("postgres") as url:
        pooled = bouncer.url(database(url))
        one = open_store(with_options(pooled, schema="one"))
        other = open_store(with_options(pooled, schema="other"))
        for store in (one, other):
            store.migrator.ensure()
        table_id = new_table(one, "t")
        for _ in range(10):
            assert one.dialect.ask(lambda s: s.one("head", table_id=table_id)) == (0,)
            assert other.dialect.ask(lambda s: s.one("head", table_id=table_id)) is None


def test_no_setting_stays_in_a_shared_session(pooled_url: str, tmp_path: Path) -> None:
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as stranger:

        def settings() -> list[object]:
            found = []
            for name in (*SETTINGS, "search_path"):
                row = stranger.execute(f"SHOW {name}").fetchone()
                assert row is not None
                found.append(row[0])
            return found

        before = settings()
        with deltalakedb.connect(pooled_url, mirror="worker") as lake:
            table = lake.create_table(
                "t", location=tmp_path.as_uri(), schema=pa.schema([("id", pa.int64())])
            )
            for number in range(6):
                table.append(pa.table({"id": [number]}))
                assert table.snapshot().files().num_rows == number + 1
                assert settings() == before
            row = stranger.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
            assert row == (0,)
            row = stranger.execute("SELECT count(*) FROM pg_listening_channels()").fetchone()
            assert row == (0,)


def test_a_worker_publishes_without_being_told(pooled_url: str, tmp_path: Path) -> None:
    with (
        deltalakedb.connect(pooled_url, mirror="worker") as lake,
        deltalakedb.connect(pooled_url, mirror="worker") as other,
    ):
        table = lake.create_table(
            "t", location=tmp_path.as_uri(), schema=pa.schema([("id", pa.int64())])
        )
        worker = other.mirror.worker()
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            table.append(pa.table({"id": [1]}))
            while not (tmp_path / "_delta_log" / f"{1:020}.json").exists():
                assert thread.is_alive()
                thread.join(0.05)
        finally:
            worker.stop()
            thread.join()


def test_a_direct_connection_prepares_statements(catalogs: Catalogs, open_store: OpenStore) -> None:
    with catalogs.fresh("postgres") as url:
        store = open_store(with_options(url, pool_size=1))
        with store.read() as session:
            for _ in range(10):
                session.one("head", table_id="00000000-0000-0000-0000-000000000000")
            rows = session.execute("SELECT count(*) FROM pg_prepared_statements", {})
        assert rows[0][0] > 0


def test_pooling_of_statements_is_refused(
    postgres_server: PostgresServer, catalogs: Catalogs
) -> None:
    with (
        PgBouncer(postgres_server, pool_mode="statement") as each,
        catalogs.fresh("postgres") as url,
        pytest.raises(ConfigurationError, match="transactions"),
    ):
        deltalakedb.connect(each.url(database(url)))
