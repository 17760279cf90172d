"""SIGKILL of the process that decides about a proposal, between any two steps of it.

The writer repeats its proposal then, as Delta's log store does. It is one version, with its bytes.
"""

import random
import time
from pathlib import Path

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.fork_server import Child, ForkServer
from support.lake import SCHEMA, live_paths
from support.mirror_logs import check_published
from support.profiles import SOAK
from support.proposals import append, first_commit, new_id, published
from support.store import ENGINES

FEWEST = 12
"""How many points there are at least; fewer would mean that the counting is broken."""
PLAIN = {"delta.enableInCommitTimestamps": "false"}


def opened(url: str, warehouse: Path) -> Lake:
    return Lake.connect(url, mirror="worker", clock=ManualClock(), warehouse=str(warehouse))


def points(engine: Engine) -> tuple[int, int]:
    """The first point and the stride: the engines share the points, unless there is time."""
    return (1, 1) if SOAK or engine == "sqlite" else (1 + ENGINES.index(engine), 4)


def check(lake: Lake, table: Table, proposals: dict[int, bytes]) -> None:
    """Each proposal is one version, byte for byte, and the ledger has nothing else."""
    assert table.snapshot().version == max(proposals)
    assert len(table.history(100)) == max(proposals) + 1
    for version, data in proposals.items():
        assert published(table.location, version) == data
    check_published(lake, table)
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []
    assert lake.verify(table.name).ok


@pytest.mark.timeout(600)
def test_death_between_steps_of_a_proposal(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path
) -> None:
    warehouse, labels = tmp_path / "warehouse", tmp_path / "labels"
    location = str(tmp_path / "orders")
    with opened(catalog_url, warehouse) as lake:
        lake.create_table("orders", location=location, schema=SCHEMA, properties=PLAIN)
    at, stride = points(engine)
    proposals: dict[int, bytes] = {}
    deaths = 0
    while True:
        version = len(proposals) + 1
        data = proposals[version] = append(f"f{version}", txn_id=new_id())
        job = {"url": catalog_url, "location": location, "version": version, "data": data.decode()}
        status = crew.run({"run": "propose", **job, "at": at, "labels": str(labels)})
        with opened(catalog_url, warehouse) as lake:
            done = lake.ratify(location, version, data)
            assert done.version == version
            table = lake.table("orders")
            assert live_paths(table) == sorted(f"f{number}" for number in proposals)
            if status == 0:
                assert done.repeated
                check(lake, table, proposals)
                break
        assert status == -9, crew.log.read_text()
        deaths += 1
        at += stride
    assert deaths >= FEWEST // stride, labels.read_text()


@pytest.mark.timeout(600)
def test_death_between_steps_of_a_new_table(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path
) -> None:
    warehouse, labels = tmp_path / "warehouse", tmp_path / "labels"
    with opened(catalog_url, warehouse):
        pass
    at, stride = points(engine)
    while True:
        name = f"t{at}"
        location = str(warehouse / "sales.db" / name)
        data = first_commit(txn_id=new_id())
        job = {"url": catalog_url, "location": location, "version": 0, "data": data.decode()}
        status = crew.run({"run": "propose", **job, "at": at, "labels": str(labels)})
        with opened(catalog_url, warehouse) as lake:
            assert lake.ratify(location, 0, data).version == 0
            check(lake, lake.table(f"sales.{name}"), {0: data})
        if status == 0:
            break
        assert status == -9, crew.log.read_text()
        at += stride
    assert at > FEWEST


@pytest.mark.timeout(300)
def test_processes_that_propose_and_commit_are_killed_at_random(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path
) -> None:
    """Each acknowledged commit is one version, in the log too; no other is there twice."""
    if engine == "duckdb":
        pytest.skip("A DuckDB file belongs to one process")
    warehouse, location = tmp_path / "warehouse", str(tmp_path / "orders")
    with opened(catalog_url, warehouse) as lake:
        lake.create_table("orders", location=location, schema=SCHEMA, properties=PLAIN)
    stop, chance = tmp_path / "stop", random.Random(7)
    journals: list[Path] = []

    def start(own: bool) -> Child:
        name = f"w{len(journals)}"
        journals.append(tmp_path / f"{name}.journal")
        job = {"run": "contend", "url": catalog_url, "location": location, "name": name}
        return crew.start({**job, "own": own, "stop": str(stop), "journal": str(journals[-1])})

    running = [start(own) for own in (False, False, False, True)]
    for _ in range(40 if SOAK else 8):
        time.sleep(chance.uniform(0.1, 0.6))
        place = chance.randrange(len(running))
        running[place].kill()
        assert running[place].wait() == -9, crew.log.read_text()
        running[place] = start(place == 3)
    time.sleep(0.5)
    stop.touch()
    for child in running:
        assert child.wait() == 0, crew.log.read_text()
    begun: set[str] = set()
    done: dict[str, int] = {}
    for journal in filter(Path.exists, journals):  # others were killed before they had begun
        for line in journal.read_text().splitlines():
            verb, path, *numbers = line.split()
            begun.add(path)
            if verb == "done":
                assert path not in done
                done[path] = int(numbers[0])
    assert len(done) > 50
    assert len(set(done.values())) == len(done)
    with opened(catalog_url, warehouse) as lake:
        lake.mirror.run_once()
        table = lake.table("orders")
        paths = live_paths(table)
        assert len(paths) == len(set(paths)) == table.snapshot().version
        assert set(done) <= set(paths) <= begun
        for path, version in done.items():
            file = published(location, version)
            assert file is not None
            assert path in file.decode()
        check_published(lake, table)
        with lake.store.read() as session:
            assert lake.store.check_active_files(session, table.table_id) == []
        assert lake.verify(table.name).ok
