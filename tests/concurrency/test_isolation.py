"""Transactions over several tables at once, at each level and on each engine.

No order of commits leaves what a transaction saw unexplained: nobody sees half of another's commit,
and no two commit that each depend on what the other has changed.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest

from concurrency.checker import KEY_PARAMETER, check
from concurrency.crowd import SLOW_MACHINE, Crowd
from concurrency.isolation import Change, History, check_isolation
from concurrency.journal import Journal, Look, Outcome, Part, Sight
from concurrency.shifts import SHIFTS, broken_rules, open_shifts, pair_path
from concurrency.workload import acknowledge, add
from deltalakedb.errors import ConcurrentAppendError
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from deltalakedb.transaction.committer import Committer
from deltalakedb.transaction.transaction import Transaction
from deltalakedb.transaction_table import TransactionTable

LEVELS = ("Serializable", "WriteSerializable")
PEOPLE = 4
WATCHERS = 1
ENOUGH = 3
"""Commits of every person, and looks of every watcher, without which a run shows nothing."""


@pytest.mark.timeout(SLOW_MACHINE)
@pytest.mark.parametrize("level", LEVELS)
def test_shifts_for_a_second(crowd: Crowd, catalog_url: str, engine: Engine, level: str) -> None:
    contend(crowd, catalog_url, engine, level, seconds=1.5)


@pytest.mark.soak
@pytest.mark.parametrize("level", LEVELS)
def test_shifts_for_a_minute(crowd: Crowd, catalog_url: str, engine: Engine, level: str) -> None:
    contend(crowd, catalog_url, engine, level, seconds=60)


def contend(crowd: Crowd, url: str, engine: Engine, level: str, *, seconds: float) -> None:
    crowd.settle(url, partial(open_shifts, level=level))
    names = [f"person{n}" for n in range(PEOPLE)] + [f"watcher{n}" for n in range(WATCHERS)]
    work = {
        name: crowd.job("watch" if name.startswith("watcher") else "shifts", name) for name in names
    }
    if engine == "duckdb":  # one process only
        crowd.start("threads", {"run": "threads", "url": url, "jobs": list(work.values())})
    else:
        for name, job in work.items():
            crowd.start(name, job)
    crowd.wait_for(seconds, lambda: enough(crowd, len(work)))
    crowd.finish()
    report = crowd.prove()
    crowd.tell(f"{level} shifts on {engine}", report)
    assert report.looks > ENOUGH * len(work)
    # Without a conflict nobody was in anybody's way.
    assert any(refusal.startswith("shift: ") for refusal in report.refusals), report.refusals


def enough(crowd: Crowd, workers: int) -> bool:
    stories = crowd.stories
    done = [story.count(Outcome.ACKNOWLEDGED) + story.reads >= ENOUGH for story in stories]
    refused = sum(story.count(Outcome.REFUSED) for story in stories)
    return sum(done) >= workers + 1 and refused > 0  # the founder has a journal too


# --- the checker can fail -----------------------------------------------------------------

SEEN = frozenset({"p=1/0"})
START = Change("start", adds=SEEN)


def histories(level: str, **changes: Iterable[Change]) -> list[History]:
    return [History(name, [START, *rest], level) for name, rest in changes.items()]


def look(key: str, **versions: int) -> Look:
    """A look at tables in which nothing but the first file is seen."""
    return Look(key, {name: Sight(version, SEEN) for name, version in versions.items()})


def appends(key: str) -> Change:
    return Change(key, adds=frozenset({f"p=2/{key}"}))


@pytest.mark.parametrize("level", LEVELS)
def test_write_skew_is_found(level: str) -> None:
    """Each of two commits adds to one table after it has seen the other one."""
    there = histories(level, a=[appends("one")], b=[appends("two")])
    looks = [look("one", a=0, b=0), look("two", a=0, b=0)]
    (problem,) = check_isolation(there, looks)
    assert problem.startswith("write skew: ")
    assert "one needed that there is no two (b 1 after 0)" in problem
    assert "two needed that there is no one (a 1 after 0)" in problem
    # One after the other they are fine, as are two that see other partitions.
    follows = Look("two", {"a": Sight(1, SEEN | {"p=2/one"}), "b": Sight(0, SEEN)})
    assert list(check_isolation(there, [looks[0], follows])) == []
    apart = [
        Look(key, {name: Sight(0, SEEN, "1") for name in ("a", "b")}) for key in ("one", "two")
    ]
    assert list(check_isolation(there, apart)) == []


def test_a_longer_skew_is_found() -> None:
    there = histories("Serializable", a=[appends("one")], b=[appends("two")], c=[appends("three")])
    looks = [look("one", b=0), look("two", c=0), look("three", a=0)]
    (problem,) = check_isolation(there, looks)
    assert problem.startswith("write skew: ")
    assert problem.count("needed") == 3


def test_a_lost_update_is_found() -> None:
    there = histories("WriteSerializable", a=[Change("one", removes=SEEN), appends("two")])
    (problem,) = check_isolation(there, [look("one", a=0), look("two", a=0)])
    assert "two needed that there is no one (a 1 after 0)" in problem


@pytest.mark.parametrize("level", LEVELS)
def test_a_blind_append_counts_as_the_level_says(level: str) -> None:
    """The look is used after the append; what has read anything is no blind append."""
    there = histories(level, a=[appends("blind")], b=[appends("blind"), appends("two")])
    looks = [Look("two", {"a": Sight(0, SEEN)})]
    assert len(list(check_isolation(there, looks))) == (level == "Serializable")
    looks.append(Look("blind", {"c": Sight(0, SEEN)}))
    there += histories(level, c=[])
    assert len(list(check_isolation(there, looks))) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_look_at_half_a_commit_is_found(level: str) -> None:
    there = histories(level, a=[appends("pair")], b=[appends("pair")])
    half = Look("reader", {"a": Sight(1, SEEN | {"p=2/pair"}), "b": Sight(0, SEEN)})
    (problem,) = check_isolation(there, [half])
    assert problem.startswith("a look that is not of one instant: ")
    assert "did not see pair (b 1)" in problem
    whole = Look("reader", {name: Sight(1, SEEN | {"p=2/pair"}) for name in ("a", "b")})
    assert list(check_isolation(there, [whole, look("reader", a=0, b=0)])) == []


def test_looks_that_contradict_each_other_are_found() -> None:
    """One sees the first of two commits alone, and another one the second."""
    there = histories("WriteSerializable", a=[appends("one")], b=[appends("two")])
    looks = [
        Look("left", {"a": Sight(1, SEEN | {"p=2/one"}), "b": Sight(0, SEEN)}),
        Look("right", {"a": Sight(0, SEEN), "b": Sight(1, SEEN | {"p=2/two"})}),
    ]
    (problem,) = check_isolation(there, looks)
    assert problem.startswith("a look that is not of one instant: ")


def test_a_look_at_files_that_were_not_there_is_found() -> None:
    there = histories("Serializable", a=[appends("one")])
    assert list(check_isolation(there, [look("reader", a=1)])) == [
        "reader saw version 1 of a with other files: ['p=2/one']"
    ]
    assert list(check_isolation(there, [look("reader", a=2)])) == [
        "reader saw version 2 of a, which is not there"
    ]


def test_broken_rules_of_the_shifts_are_found() -> None:
    pair = pair_path("k", ("early", "late"))
    nobody = Look("reader", {name: Sight(0, frozenset()) for name in SHIFTS})
    assert list(broken_rules(nobody)) == ["reader saw 0 people on duty: []"]
    sights = {name: Sight(0, frozenset({f"p=duty/{name}"})) for name in SHIFTS}
    assert list(broken_rules(Look("reader", sights))) == []
    sights["early"] = Sight(0, frozenset({"p=duty/early", pair}))
    assert list(broken_rules(Look("reader", sights))) == [
        f"reader saw {pair} in early and not in ['late']"
    ]
    sights["early"] = Sight(0, frozenset(f"p=duty/{n}" for n in range(3)))
    assert next(iter(broken_rules(Look("reader", sights)))).startswith("reader saw 5 people")


@pytest.mark.parametrize("level", LEVELS)
def test_a_committer_that_forgets_reads_is_found(
    catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """The same two transactions: refused as it is, and found by the checker as it was."""
    path = tmp_path / "writer.jsonl"
    journal = Journal(path)
    with Lake.connect(catalog_url, mirror="worker") as lake:
        open_shifts(lake, journal, tmp_path, level=level)
        with pytest.raises(ConcurrentAppendError):
            crosswise(lake, journal, "honest")
        monkeypatch.setattr(Committer, "_check_reads", lambda *_: None)
        crosswise(lake, journal, "broken")
    journal.end()
    (problem,) = check(catalog_url, [path]).problems
    assert problem.startswith("write skew: broken-")


def crosswise(lake: Lake, journal: Journal, name: str) -> None:
    """Two transactions, each of which looks at the table that the other one adds to."""
    commits: list[Callable[[], Mapping[str, object]]] = []
    for key, there, here in ((f"{name}-1", *SHIFTS[:2]), (f"{name}-2", *SHIFTS[1::-1])):
        tx = lake._begin()
        seen = tx.table(there).snapshot()
        journal.saw(key, {there: Sight(seen.version, frozenset(seen.files()["path"].to_pylist()))})
        added = f"p=noise/{key}"
        tx.table(here).add_actions([add(added)], operation_parameters={KEY_PARAMETER: key})
        commits.append(partial(committed, tx, journal, key, {here: Part((added,))}))
    for commit in commits:
        commit()


def committed(
    tx: Transaction[TransactionTable], journal: Journal, key: str, parts: Mapping[str, Part]
) -> Mapping[str, object]:
    journal.trying(key, "shift", parts)
    try:
        tx.commit()
    except ConcurrentAppendError as error:
        journal.heard(key, Outcome.REFUSED, error=error)
        raise
    acknowledge(journal, key, tx.results)
    return tx.results
