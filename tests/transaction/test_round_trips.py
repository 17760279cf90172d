"""How many round trips to Postgres a small commit takes; each is time that its table is held."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.actions import AddFile
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.postgres_server import PostgresServer
from support.round_trips import RoundTrips
from support.store import Catalogs


@pytest.fixture
def trips(postgres_server: PostgresServer) -> Iterator[RoundTrips]:
    with RoundTrips(postgres_server.port) as trips:
        yield trips


@pytest.fixture
def lakes(
    trips: RoundTrips, postgres_server: PostgresServer, catalogs: Catalogs, tmp_path: Path
) -> Iterator[tuple[Lake, Lake]]:
    """The same catalog, where round trips are counted, and where they are not."""
    with catalogs.fresh("postgres") as near:
        database = str(psycopg.conninfo.conninfo_to_dict(near)["dbname"])
        far = postgres_server.url(database, tcp=True, sslmode="disable")
        far = far.replace(f":{postgres_server.port}/", f":{trips.port}/")
        with (
            deltalakedb.connect(far, mirror="worker") as counted,
            deltalakedb.connect(near, mirror="worker") as other,
        ):
            # No notification of workers, which is no part of a commit.
            counted.store.dialect.wake_workers = lambda: None  # type: ignore[method-assign]
            other.create_table(
                "t", location=tmp_path.as_uri(), schema=pa.schema([("id", pa.int64())])
            )
            yield counted, other


def add(number: int) -> AddFile:
    return AddFile(f"part-{number}.parquet", {}, 1, 1, data_change=True)


def warm(table: Table) -> None:
    """Commit once: the connection is open then, and the clock of the server is known."""
    table.commit([add(-1)])


def test_a_small_commit(lakes: tuple[Lake, Lake], trips: RoundTrips) -> None:
    table = lakes[0].table("t")
    warm(table)
    for number in range(12):
        trips.take()
        table.commit([add(number)])
        assert trips.take() == 2


def test_a_small_commit_that_others_have_overtaken(
    lakes: tuple[Lake, Lake], trips: RoundTrips
) -> None:
    table, others = lakes[0].table("t"), lakes[1].table("t")
    warm(table)
    for number in range(12):
        for one in range(3):
            others.commit([add(1000 + 3 * number + one)])
        trips.take()
        table.commit([add(number)])
        assert trips.take() == 2
