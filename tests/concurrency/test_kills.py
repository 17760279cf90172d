"""SIGKILL of a writer, wherever it is in its commit: the commit is there as a whole or not at all.

No lock is left behind: the next writer commits at once.
"""

import random
import time
from pathlib import Path

import pytest

from concurrency.crowd import SLOW_MACHINE, Crowd
from concurrency.dying import KINDS, LAST
from concurrency.journal import Outcome
from deltalakedb.store.url import Engine

from support.fork_server import ForkServer

# How many points a commit has at least; fewer would mean that the counting is broken.
FEWEST = {"one table": 12, "rebased": 13, "many tables": 20, "properties": 8, "create": 8}


@pytest.mark.timeout(SLOW_MACHINE)
@pytest.mark.parametrize("kind", KINDS)
def test_death_at_every_point_of_a_commit(
    crowd: Crowd, catalog_url: str, engine: Engine, kind: str, tmp_path: Path
) -> None:
    # No waiting where a lock of the dead would be one that stays; a server needs a moment.
    impatient = {"postgres": "", "sqlite": "?timeout=0", "duckdb": "&timeout=0"}
    url = catalog_url + impatient[engine]
    crowd.settle(url)
    labels = tmp_path / "labels"
    deaths = 0
    while True:
        name = f"life{deaths + 1}"
        job = crowd.job("die", name, kind=kind, at=deaths + 1, labels=str(labels))
        status = crowd.fork_server.run(job)
        if status == 0:
            break
        assert status == -9, crowd.fork_server.log.read_text()
        deaths += 1
    report = crowd.prove()
    reached = labels.read_text().splitlines()
    assert len(reached) == deaths >= FEWEST[kind], reached
    # Only who died after COMMIT has left something behind.
    assert reached.count(LAST) == 1, reached
    assert report.in_flight_there == 1
    assert report.outcomes[Outcome.IN_FLIGHT.value] == deaths


@pytest.mark.timeout(SLOW_MACHINE)
def test_random_deaths_under_load(crowd: Crowd, catalog_url: str, engine: Engine) -> None:
    kill_under_load(crowd, catalog_url, engine, kills=6 if engine == "duckdb" else 12)


@pytest.mark.soak
def test_hundreds_of_random_deaths(crowd: Crowd, catalog_url: str, engine: Engine) -> None:
    kill_under_load(crowd, catalog_url, engine, kills=300)


def kill_under_load(crowd: Crowd, url: str, engine: Engine, *, kills: int) -> None:
    crowd.settle(url)
    chance = random.Random(f"{engine}{kills}")
    # DuckDB has all writers in one process, which dies as a whole.
    names = ["crew"] if engine == "duckdb" else [f"writer{n}" for n in range(6)]
    for name in names:
        start(crowd, name)
    if engine != "duckdb":
        crowd.start("reader", crowd.job("read", "reader"))
    for _ in range(kills):
        victim = chance.choice(names)
        enough = crowd.acknowledged() + chance.randrange(4)
        while crowd.acknowledged() < enough or not has_begun(crowd, victim):
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        crowd.kill(victim)
        start(crowd, victim)
    crowd.wait_for(0, lambda: all(has_begun(crowd, name) for name in names))
    crowd.finish()
    report = crowd.prove()
    crowd.tell(f"{kills} kills of writers on {engine}", report)
    assert report.outcomes[Outcome.ACKNOWLEDGED.value] > kills


def has_begun(crowd: Crowd, name: str) -> bool:
    return any(crowd.has_begun(worker) for worker in workers_of(name))


def workers_of(name: str) -> list[str]:
    return [f"crew{n}" for n in range(4)] if name == "crew" else [name]


def start(crowd: Crowd, name: str) -> None:
    jobs = [crowd.job("write", worker, blind=False) for worker in workers_of(name)]
    if name == "crew":
        crowd.start(name, {"run": "threads", "url": crowd.url, "jobs": jobs})
    else:
        crowd.start(name, jobs[0])


def test_the_fork_server_returns_the_exit_status_of_a_child(fork_server: ForkServer) -> None:
    assert fork_server.run({"run": "no such job"}) == 1
