"""The connection breaks while COMMIT is under way: the commit is there once, and the writer knows.

A proxy cuts the connection at exactly that moment. Only Postgres can lose an answer: the other
engines work inside the process that asks.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from concurrency.checker import KEY_PARAMETER, check
from concurrency.journal import Journal, Outcome, Part, Sight
from concurrency.proxy import Cut, Proxy
from concurrency.workload import SCHEMA, acknowledge, add, create_tables, remove, transfer_path
from deltalakedb.errors import (
    CommitOutcomeUnknownError,
    ConcurrentAppendError,
    TableExistsError,
)
from deltalakedb.lake import Lake
from deltalakedb.transaction.retry import RetryPolicy

from support.postgres_server import PostgresServer
from support.store import Catalogs

IMPATIENT = RetryPolicy(max_attempts=4, max_delay=0.01)
CUTS = [Cut.BEFORE, Cut.AFTER, Cut.LATE]


class Scene:
    """A catalog behind a proxy, a client of it, and a journal."""

    def __init__(self, proxy: Proxy, near: str, far: str, folder: Path) -> None:
        self.proxy = proxy
        self.near = near
        self.far_url = far
        self.folder = folder
        self.path = folder / "writer.jsonl"
        self.journal = Journal(self.path)
        self.far = Lake.connect(far, mirror="worker")
        self.direct = Lake.connect(near, mirror="worker")
        create_tables(self.direct, self.journal, folder)

    def close(self) -> None:
        self.far.close()
        self.direct.close()

    def step(self, step: Callable[[str], None], policy: RetryPolicy | None = None) -> None:
        """Have the client call `step` between the steps of its commits."""
        self.far._committer._step = step
        self.far._committer._policy = policy or RetryPolicy()

    def cut(self, cut: Cut, *, before_retry: Callable[[], None] = lambda: None) -> None:
        """Cut the next commit; what is late arrives while it is being tried again."""
        commit = self.proxy.at_commit(cut)
        takes = 0

        def step(name: str) -> None:
            nonlocal takes
            commit(name)
            if name == "take" and self.proxy.lost:
                takes += 1
                if takes == 1:
                    before_retry()
                    # In a moment: by then the new try waits for the old one, or is about to.
                    threading.Timer(0.1, self.proxy.let_go).start()

        self.step(step)

    def prove(self) -> None:
        """The checker finds the journal true; the cut was at COMMIT."""
        assert [b"COMMIT" in data for data in self.proxy.lost] == [True]
        self.far.close()
        self.direct.close()
        self.journal.end()
        report = check(self.near, [self.path])
        assert report.problems == []

    def append(self, key: str, name: str = "a", *, lake: Lake | None = None) -> None:
        """A blind append, journalled."""
        table = (lake or self.direct).table(name)
        self.journal.trying(key, "append", {name: Part((f"p=0/{key}",))})
        committed = table.commit([add(f"p=0/{key}")], operation_parameters={KEY_PARAMETER: key})
        acknowledge(self.journal, key, {name: committed})


@pytest.fixture
def scene(postgres_server: PostgresServer, catalogs: Catalogs, tmp_path: Path) -> Iterator[Scene]:
    with catalogs.fresh("postgres") as near, Proxy(postgres_server.port) as proxy:
        database = psycopg.conninfo.conninfo_to_dict(near)["dbname"]
        assert isinstance(database, str)
        far = postgres_server.url(database, tcp=True, sslmode="disable", timeout="20")
        far = far.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        scene = Scene(proxy, near, far, tmp_path)
        yield scene
        scene.close()


@pytest.mark.parametrize("cut", CUTS)
def test_an_append_is_there_once(scene: Scene, cut: Cut) -> None:
    scene.cut(cut)
    scene.append("cut", lake=scene.far)
    scene.append("next", lake=scene.far)
    scene.prove()


@pytest.mark.parametrize("cut", CUTS)
def test_a_transaction_over_many_tables_is_there_once(scene: Scene, cut: Cut) -> None:
    names = ("a", "b", "c")
    path = transfer_path("cut", names)
    scene.cut(cut)
    with scene.far.transaction() as tx:
        for name in names:
            tx.table(name).add_actions([add(path)], operation_parameters={KEY_PARAMETER: "cut"})
        scene.journal.trying("cut", "transfer", {name: Part((path,)) for name in names})
    acknowledge(scene.journal, "cut", tx.results)
    scene.prove()


@pytest.mark.parametrize("cut", CUTS)
def test_a_delete_does_not_conflict_with_itself(scene: Scene, cut: Cut) -> None:
    scene.append("old")
    scene.cut(cut)
    table = scene.far.table("a")
    assert table.version == 2
    scene.journal.trying("cut", "delete", {"a": Part((), ("p=0/old",))})
    committed = table.commit([remove("p=0/old")], operation_parameters={KEY_PARAMETER: "cut"})
    acknowledge(scene.journal, "cut", {"a": committed})
    assert committed == 3
    scene.prove()


@pytest.mark.parametrize("cut", CUTS)
def test_an_expected_version_is_still_the_one(scene: Scene, cut: Cut) -> None:
    scene.cut(cut)
    scene.journal.trying("cut", "expected", {"b": Part(("p=0/new",))})
    committed = scene.far.table("b").commit(
        [add("p=0/new")], operation_parameters={KEY_PARAMETER: "cut"}, expected_version=0
    )
    acknowledge(scene.journal, "cut", {"b": committed})
    scene.prove()


@pytest.mark.parametrize("cut", CUTS)
def test_an_app_transaction_knows_its_own_commit(scene: Scene, cut: Cut) -> None:
    scene.cut(cut)
    scene.journal.trying("cut", "own app", {"b": Part(("p=0/new",))}, ("app", 7))
    committed = scene.far.table("b").commit(
        [add("p=0/new")], operation_parameters={KEY_PARAMETER: "cut"}, app_txn=("app", 7)
    )
    acknowledge(scene.journal, "cut", {"b": committed})
    assert not committed.already_committed
    scene.prove()


@pytest.mark.parametrize("cut", CUTS)
def test_an_app_transaction_on_one_table_of_two(scene: Scene, cut: Cut) -> None:
    names = ("a", "b")
    path = transfer_path("cut", names)
    scene.cut(cut)
    with scene.far.transaction() as tx:
        tx.table("a").add_actions(
            [add(path)], operation_parameters={KEY_PARAMETER: "cut"}, app_txn=("app", 7)
        )
        tx.table("b").add_actions([add(path)], operation_parameters={KEY_PARAMETER: "cut"})
        scene.journal.trying("cut", "transfer", {n: Part((path,)) for n in names}, ("app", 7))
    acknowledge(scene.journal, "cut", tx.results)
    assert {name: int(version) for name, version in tx.results.items()} == {"a": 2, "b": 1}
    scene.prove()


@pytest.mark.parametrize("cut", CUTS)
def test_a_table_is_created_once(scene: Scene, cut: Cut) -> None:
    scene.cut(cut)
    scene.journal.trying("create d", "create", {"d": Part()})
    table = scene.far.create_table(
        "d", location="/nowhere/d", schema=SCHEMA, partition_by=["p"], description="mine"
    )
    (record,) = table.history()
    scene.journal.heard(
        "create d",
        Outcome.ACKNOWLEDGED,
        versions={"d": record.version},
        commit_uuids={"d": record.commit_uuid},
    )
    with pytest.raises(TableExistsError):
        scene.far.create_table("d", location="/nowhere/d", schema=SCHEMA)
    scene.prove()


# Nobody can commit while a late COMMIT holds the head.
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_others_commit_more_than_is_read_under_lock_before_the_retry(
    scene: Scene, cut: Cut
) -> None:
    def others() -> None:
        for n in range(70):
            scene.append(f"other{n}")

    scene.cut(cut, before_retry=others)
    scene.journal.trying("cut", "append", {"a": Part(("p=0/cut",))})
    committed = scene.far.table("a").commit(
        [add("p=0/cut")], operation_parameters={KEY_PARAMETER: "cut"}
    )
    acknowledge(scene.journal, "cut", {"a": committed})
    assert committed == (2 if cut is Cut.AFTER else 72)
    scene.prove()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("cut", CUTS)
def test_a_commit_is_not_refused_for_what_came_after_it(scene: Scene, cut: Cut, order: int) -> None:
    """What it has read changes before the retry; whichever of the two heads is taken first."""
    there, here = sorted(("b", "c"), key=lambda n: scene.direct.table(n).table_id)[::order]
    scene.cut(cut, before_retry=lambda: None if cut is Cut.LATE else scene.append("other", there))
    refused = False
    try:
        with scene.far.transaction() as tx:
            paths = frozenset(tx.table(there).snapshot().files()["path"].to_pylist())
            scene.journal.saw("cut", {there: Sight(0, paths)})
            tx.table(here).add_actions(
                [add("p=0/cut")], operation_parameters={KEY_PARAMETER: "cut"}
            )
            scene.journal.trying("cut", "move", {here: Part(("p=0/cut",))})
    except ConcurrentAppendError as error:
        refused = True
        scene.journal.heard("cut", Outcome.REFUSED, error=error)
    else:
        acknowledge(scene.journal, "cut", tx.results)
    assert refused == (cut is Cut.BEFORE and there == "c")
    scene.prove()


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_a_server_that_stays_away_leaves_the_outcome_unknown(scene: Scene, cut: Cut) -> None:
    scene.step(scene.proxy.at_commit(cut, then_shut=True), IMPATIENT)
    table = scene.far.table("a")
    assert table.version == 1
    scene.journal.trying("cut", "append", {"a": Part(("p=0/cut",))})
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        table.commit([add("p=0/cut")], operation_parameters={KEY_PARAMETER: "cut"})
    scene.journal.heard("cut", Outcome.UNKNOWN, error=caught.value)
    scene.proxy.open()
    # The message tells what to look for, and that is how it is found.
    newest = scene.direct.table("a").history(1)[0]
    happened = cut is Cut.AFTER
    assert (str(newest.commit_uuid) in str(caught.value)) == happened
    assert newest.version == 1 + happened
    assert "app_txn" in caught.value.fix
    scene.append("next", lake=scene.far)
    scene.prove()


def test_an_old_try_that_holds_the_head_for_too_long_leaves_the_outcome_unknown(
    scene: Scene,
) -> None:
    """The server has not noticed that the connection is gone; the COMMIT comes after all."""
    with Lake.connect(scene.far_url.replace("timeout=20", "timeout=0.2"), mirror="worker") as lake:
        step = scene.proxy.at_commit(Cut.LATE)
        lake._committer._step = step
        lake._committer._policy = IMPATIENT
        table = lake.table("a")
        assert table.version == 1
        scene.journal.trying("cut", "append", {"a": Part(("p=0/cut",))})
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            table.commit([add("p=0/cut")], operation_parameters={KEY_PARAMETER: "cut"})
    scene.journal.heard("cut", Outcome.UNKNOWN, error=caught.value)
    scene.proxy.let_go()
    scene.append("next")  # waits for it
    assert "p=0/cut" in scene.direct.table("a").snapshot(version=2).files()["path"].to_pylist()
    scene.prove()
