"""SIGKILL between any two steps of publishing: what is in the log is right, and others go on.

A step is whatever the publisher calls one, every statement to the catalog, and every call of the
object store. Publishing includes the checkpoint that is due.
"""

from pathlib import Path

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from faults.proof import check_tables
from faults.workload import Writer, create_tables

from support.fork_server import ForkServer
from support.mirror_logs import log_of, queue, versions_in
from support.store import ENGINES

MINUTE_MS = 60_000
MOMENTS = {
    "worker": ("step put", "after put_if_absent", "step written", "step note", "after update"),
    "inline": ("before put_if_absent", "after put_if_absent", "after settle", "after update"),
}
FEWEST = {"worker": 25, "inline": 25}
"""How many points there are at least; fewer would mean that the counting is broken."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", FEWEST)
def test_death_between_steps_of_publishing(
    crew: ForkServer, catalog_url: str, engine: Engine, tmp_path: Path, kind: str
) -> None:
    # The engines share the points; each of them has all in the long form.
    every = 3 if kind == "worker" else 6
    die_at_points(crew, catalog_url, tmp_path, kind, first=1 + ENGINES.index(engine), every=every)


@pytest.mark.soak
@pytest.mark.parametrize("kind", FEWEST)
def test_death_at_every_point_of_publishing(
    crew: ForkServer, catalog_url: str, tmp_path: Path, kind: str
) -> None:
    die_at_points(crew, catalog_url, tmp_path, kind, first=1, every=1)


def die_at_points(
    crew: ForkServer, url: str, folder: Path, kind: str, *, first: int, every: int
) -> None:
    clock = ManualClock()
    labels = folder / "labels"
    deaths = 0
    with Lake.connect(url, mirror="worker", clock=clock) as lake:
        create_tables(lake, folder, 1, interval=1)
        Writer([lake.table("t00")], "first").commit()
    while True:
        clock.advance(MINUTE_MS)
        job = {"run": "die", "kind": kind, "url": url, "at": first + every * deaths}
        status = crew.run({**job, "now": clock.now_ms(), "labels": str(labels)})
        if status == 0:
            break
        assert status == -9, crew.log.read_text()
        deaths += 1
        # The lease of the dead is over by then, and whoever comes next goes on.
        clock.advance(MINUTE_MS)
        with Lake.connect(url, mirror="worker", clock=clock) as lake:
            check_prefix(lake)
            lake.mirror.run_once()
            check_caught_up(lake, kind)
            Writer([lake.table("t00")], f"parent{deaths}").commit()
    reached = labels.read_text().splitlines()
    assert len(reached) == deaths >= FEWEST[kind] // every, reached
    if every == 1:
        assert set(MOMENTS[kind]) <= set(reached), reached
    with Lake.connect(url, mirror="worker", clock=clock) as lake:
        check_tables(lake, [lake.table("t00")])


def check_caught_up(lake: Lake, kind: str) -> None:
    (status,) = lake.mirror.status()
    assert (status.backlog, status.checkpoint_error) == (0, None), status
    # Who publishes after his commit holds no lease: what he owes comes with the next version.
    assert kind == "inline" or status.checkpoint_version == status.head


def check_prefix(lake: Lake) -> None:
    """The log has the first versions without a gap, and all that are told as published."""
    table = lake.table("t00")
    rows = queue(lake, table)
    there = versions_in(table) if log_of(table).exists() else []
    assert there == list(rows)[: len(there)]
    told = [version for version, row in rows.items() if row["status"] == "SUCCEEDED"]
    assert told == there[: len(told)]
