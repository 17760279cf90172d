"""`kill -9` of the Postgres server under load: writers ride it out, and nothing is doubled.

Every answer that was lost with the server is resolved by the commit UUID, so that in the end each
writer knows of each of its commits whether it happened.
"""

import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from concurrency.checker import KEY_PARAMETER
from concurrency.crowd import SLOW_MACHINE, Crowd
from concurrency.jobs import PATIENT
from concurrency.journal import Journal, Outcome, Part
from concurrency.workload import acknowledge, add, transfer_path
from deltalakedb.lake import Lake
from deltalakedb.transaction.commit import Committed

from support.postgres_server import PostgresServer

WRITERS = 6
# Whoever asks for more than a commit on the server's own disk waits for a standby that does not
# exist: the commit is safe, and there after a restart, but its answer never comes.
SETTINGS = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
UNANSWERED = "-csynchronous_commit=on"


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[PostgresServer]:
    """A server of its own; like any, it has its commits on disk when it dies."""
    with PostgresServer(settings=SETTINGS) as server:
        yield server


@pytest.mark.timeout(SLOW_MACHINE)
def test_three_deaths_under_load(crowd: Crowd, mortal_server: PostgresServer) -> None:
    kill_under_load(crowd, mortal_server, kills=3)


@pytest.mark.soak
def test_hundreds_of_deaths_under_load(crowd: Crowd, mortal_server: PostgresServer) -> None:
    kill_under_load(crowd, mortal_server, kills=200)


@pytest.mark.timeout(SLOW_MACHINE)
def test_connections_cut_under_load(crowd: Crowd, mortal_server: PostgresServer) -> None:
    cut_under_load(crowd, mortal_server, cuts=40)


@pytest.mark.soak
def test_thousands_of_connections_cut_under_load(
    crowd: Crowd, mortal_server: PostgresServer
) -> None:
    cut_under_load(crowd, mortal_server, cuts=3000)


@pytest.mark.timeout(SLOW_MACHINE)
def test_deaths_between_a_commit_and_its_answer(
    crowd: Crowd, mortal_server: PostgresServer
) -> None:
    kill_before_the_answer(crowd, mortal_server, kills=2)


@pytest.mark.soak
def test_a_hundred_deaths_between_a_commit_and_its_answer(
    crowd: Crowd, mortal_server: PostgresServer
) -> None:
    kill_before_the_answer(crowd, mortal_server, kills=100)


def kill_under_load(crowd: Crowd, server: PostgresServer, *, kills: int) -> None:
    chance = random.Random(kills)
    start(crowd, server.url(server.create_database()))
    for _ in range(kills):
        wait_for_commits(crowd)
        time.sleep(chance.random() * 0.1)
        server.kill()
        server.start()
    wait_for_commits(crowd)
    finish(crowd, f"{kills} kills of the server")


def cut_under_load(crowd: Crowd, server: PostgresServer, *, cuts: int) -> None:
    """The server ends single connections, wherever they are; the others go on meanwhile."""
    chance = random.Random(cuts)
    url = server.url(server.create_database())
    start(crowd, url)
    wait_for_commits(crowd)
    with psycopg.connect(url, autocommit=True) as admin:
        done = 0
        while done < cuts:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
                "AND state <> 'idle'"
            ).fetchall()
            if found:
                admin.execute("SELECT pg_terminate_backend(%s)", [chance.choice(found)[0]])
                done += 1
            time.sleep(chance.random() * 0.03)
    wait_for_commits(crowd)
    finish(crowd, f"{cuts} connections cut")


def start(crowd: Crowd, url: str) -> None:
    crowd.settle(url)
    for n in range(WRITERS):
        name = f"{'blind' if n < 2 else 'mixed'}{n}"
        crowd.start(name, crowd.job("write", name, blind=n < 2, outages=True))
    crowd.start("reader", crowd.job("read", "reader", outages=True))
    # Whoever is still connecting for the first time has no patience yet.
    names = [*(f"{'blind' if n < 2 else 'mixed'}{n}" for n in range(WRITERS)), "reader"]
    crowd.wait_for(0, lambda: all(crowd.has_begun(name) for name in names))


def finish(crowd: Crowd, title: str) -> None:
    crowd.finish()
    report = crowd.prove()
    crowd.tell(title, report)
    # Patience is all it takes: nobody died, so nobody is left in doubt.
    assert report.outcomes[Outcome.UNKNOWN.value] == 0
    assert report.outcomes[Outcome.IN_FLIGHT.value] == 0


def wait_for_commits(crowd: Crowd) -> None:
    enough = crowd.acknowledged() + WRITERS
    crowd.wait_for(0, lambda: crowd.acknowledged() >= enough)


def kill_before_the_answer(crowd: Crowd, server: PostgresServer, *, kills: int) -> None:
    database = server.create_database()
    crowd.settle(server.url(database))
    journal = Journal(crowd.journal("unlucky"))
    with Lake.connect(
        server.url(database, options=UNANSWERED), retry=PATIENT, mirror="worker"
    ) as lake:
        for n in range(kills):
            names = ("a", "b") if n % 2 else ("a",)
            committing = Committing(lake, journal, f"unlucky-{n}", names)
            committing.start()
            wait_for_unanswered_commit(server.url(database))
            server.kill()
            server.start()
            committing.join()
            acknowledge(journal, committing.key, committing.results, resolved=True)
    journal.end()
    report = crowd.prove()
    crowd.tell(f"{kills} kills of the server before its answer", report)
    assert report.resolved == kills


class Committing(threading.Thread):
    """A commit whose answer does not come before the server dies."""

    def __init__(self, lake: Lake, journal: Journal, key: str, names: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self.key = key
        self.results: dict[str, Committed] = {}
        self._lake = lake
        self._journal = journal
        self._names = names

    def run(self) -> None:
        path = transfer_path(self.key, self._names)
        with self._lake.transaction() as tx:
            for name in self._names:
                tx.table(name).add_actions(
                    [add(path)], operation_parameters={KEY_PARAMETER: self.key}
                )
            parts = {name: Part((path,)) for name in self._names}
            self._journal.trying(self.key, "transfer", parts)
        self.results = tx.results


def wait_for_unanswered_commit(url: str) -> None:
    waiting = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event = 'SyncRep'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(waiting).fetchone() is None:
            time.sleep(0.005)
