"""Writers of every kind at once on each engine: nothing is lost, doubled or reordered.

Every commit that was acknowledged is in the ledger once, no other is, and readers see commits over
many tables whole or not at all, at every instant.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from concurrency.checker import KEY_PARAMETER, check
from concurrency.crowd import SLOW_MACHINE, Crowd
from concurrency.journal import Journal, Outcome, Part, Story
from concurrency.workload import acknowledge, add, create_tables, remove
from deltalakedb.actions import Action
from deltalakedb.errors import CommitConflictError, ConcurrentDeleteDeleteError
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

WRITERS: dict[Engine, int] = {"postgres": 16, "sqlite": 8, "duckdb": 8}
READERS = 2
ENOUGH = 3
"""Commits of every writer, and looks of every reader, without which a run shows nothing."""
OVERTAKEN = 66
"""More commits than are looked at while the head is held."""


@pytest.mark.timeout(SLOW_MACHINE)
def test_mixed_commits_for_seconds(crowd: Crowd, catalog_url: str, engine: Engine) -> None:
    contend(crowd, catalog_url, engine, seconds=4)


@pytest.mark.soak
def test_mixed_commits_for_half_a_minute(crowd: Crowd, catalog_url: str, engine: Engine) -> None:
    contend(crowd, catalog_url, engine, seconds=30)


def contend(crowd: Crowd, url: str, engine: Engine, *, seconds: float) -> None:
    crowd.settle(url)
    count = WRITERS[engine]
    # Every fourth writer makes blind appends only.
    jobs = {
        f"{'blind' if n % 4 == 0 else 'mixed'}{n}": ("write", {"blind": n % 4 == 0})
        for n in range(count)
    }
    jobs |= {f"reader{n}": ("read", {}) for n in range(READERS)}
    work = {name: crowd.job(run, name, **options) for name, (run, options) in jobs.items()}
    if engine == "duckdb":  # one process only
        crowd.start("threads", {"run": "threads", "url": url, "jobs": list(work.values())})
    else:
        for name, job in work.items():
            crowd.start(name, job)
    crowd.wait_for(seconds, lambda: everybody_worked(crowd.stories, len(work)))
    crowd.finish()
    report = crowd.prove()
    crowd.tell(f"contention on {engine}", report)
    blind = [story for story in crowd.stories if story.path.stem.startswith("blind")]
    assert len(blind) == count // 4
    for story in blind:
        assert {one.outcome for one in story.tries} <= {Outcome.ACKNOWLEDGED, Outcome.ALREADY}
    assert report.in_flight_there == 0


def everybody_worked(stories: Sequence[Story], workers: int) -> bool:
    done = [story.count(Outcome.ACKNOWLEDGED) + story.reads >= ENOUGH for story in stories]
    return sum(done) >= workers + 1  # the founder has a journal too


def test_a_commit_that_many_have_overtaken_catches_up_first(
    catalog_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "writer.jsonl"
    journal = Journal(path)
    with Lake.connect(catalog_url, mirror="worker") as lake:
        create_tables(lake, journal, tmp_path)
        late, removing = lake.table("a"), lake.table("a")
        assert late.version == removing.version == 1
        others = lake.table("a")
        for n in range(OVERTAKEN):
            part = Part((f"p=0/{n}",), ("token/0.parquet",) if n == 0 else ())
            commit(journal, others, f"other{n}", part)
        assert commit(journal, late, "late", Part(("p=0/late",))) == 2 + OVERTAKEN
        with pytest.raises(ConcurrentDeleteDeleteError):
            commit(journal, removing, "too late", Part((), ("token/0.parquet",)))
    journal.end()
    assert check(catalog_url, [path]).problems == []


def commit(journal: Journal, table: Table, key: str, part: Part) -> int:
    journal.trying(key, "commit", {table.name: part})
    actions: list[Action] = [*map(add, part.adds), *map(remove, part.removes)]
    try:
        committed = table.commit(actions, operation_parameters={KEY_PARAMETER: key})
    except CommitConflictError as error:
        journal.heard(key, Outcome.REFUSED, error=error)
        raise
    acknowledge(journal, key, {table.name: committed})
    return int(committed)
