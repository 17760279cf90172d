"""Writers of every kind at once on each engine: nothing is lost, doubled or reordered.

Every commit that was acknowledged is in the ledger once, no other is, and readers see commits over
many tables whole or not at all, at every instant.
"""

from collections.abc import Sequence

import pytest

from concurrency.crowd import SLOW_MACHINE, Crowd
from concurrency.journal import Outcome, Story
from deltalakedb.store.url import Engine

WRITERS: dict[Engine, int] = {"postgres": 16, "sqlite": 8, "duckdb": 8}
READERS = 2
ENOUGH = 3
"""Commits of every writer, and looks of every reader, without which a run shows nothing."""


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
