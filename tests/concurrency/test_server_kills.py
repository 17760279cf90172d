"""`kill -9` of the Postgres server under load: writers ride it out, and nothing is doubled.

Every answer that was lost with the server is resolved by the commit UUID, so that in the end each
writer knows of each of its commits whether it happened.
"""

import random
import time
from collections.abc import Iterator

import pytest

from concurrency.crowd import Crowd
from concurrency.journal import Outcome

from postgres_server import PostgresServer

WRITERS = 6


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[PostgresServer]:
    """A server of its own: its commits survive its death, as the system keeps what it wrote."""
    with PostgresServer(fsync=False, settings={"synchronous_commit": "on"}) as server:
        yield server


def test_three_deaths_of_the_server(crowd: Crowd, mortal_server: PostgresServer) -> None:
    kill_server(crowd, mortal_server, kills=3)


@pytest.mark.soak
def test_hundreds_of_deaths_of_the_server(crowd: Crowd, mortal_server: PostgresServer) -> None:
    kill_server(crowd, mortal_server, kills=200)


def kill_server(crowd: Crowd, server: PostgresServer, *, kills: int) -> None:
    crowd.settle(server.url(server.create_database()))
    chance = random.Random(kills)
    for n in range(WRITERS):
        name = f"{'blind' if n < 2 else 'mixed'}{n}"
        crowd.start(name, crowd.job("write", name, blind=n < 2, outages=True))
    crowd.start("reader", crowd.job("read", "reader", outages=True))
    for _ in range(kills):
        wait_for_commits(crowd)
        time.sleep(chance.random() * 0.1)
        server.kill()
        server.start()
    wait_for_commits(crowd)
    crowd.finish()
    report = crowd.prove()
    crowd.tell(f"{kills} kills of the server", report)
    # Patience is all it takes: nobody died, so nobody is left in doubt.
    assert report.outcomes[Outcome.UNKNOWN.value] == 0
    assert report.outcomes[Outcome.IN_FLIGHT.value] == 0


def wait_for_commits(crowd: Crowd) -> None:
    enough = crowd.acknowledged() + WRITERS
    crowd.wait_for(0, lambda: crowd.acknowledged() >= enough)
