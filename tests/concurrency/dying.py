"""A writer that kills itself at a given point of its commit.

The points are all places between two steps of the commit loop and all places before a statement of
its database transaction; counted from one, the first of them being right after the announcement.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from concurrency.checker import KEY_PARAMETER, KEY_PROPERTY
from concurrency.journal import Journal, Part
from concurrency.workload import SCHEMA, acknowledge, add, remove, transfer_path
from deltalakedb.lake import Lake
from deltalakedb.transaction.commit import Committed

from support.kill_points import KillPoints

Results = Mapping[str, Committed]

LAST = "step committed"
"""Here, and only here, the commit has happened."""


class Dying:
    """Makes one commit that succeeds, to show that nothing is locked, and then the fatal one."""

    def __init__(self, lake: Lake, journal: Journal, name: str, points: KillPoints) -> None:
        self._lake = lake
        self._journal = journal
        self._name = name
        self._points = points
        self._announced: str | None = None

    def survive(self) -> None:
        """Make a commit that nothing interrupts, after whatever happened to those before us."""
        self._append("a", f"{self._name}-alive")

    def _append(self, name: str, key: str) -> None:
        path = f"p=0/{key}.parquet"
        self._journal.trying(key, "append", {name: Part((path,))})
        committed = self._lake.table(name).commit(
            [add(path)], operation_parameters={KEY_PARAMETER: key}
        )
        acknowledge(self._journal, key, {name: committed})

    def die(self, kind: str) -> None:
        """Make a commit of that kind, and maybe not come back."""
        results = KINDS[kind](self, f"{self._name}-fatal")
        assert self._announced is not None
        acknowledge(self._journal, self._announced, results)

    def _announce(
        self, key: str, parts: Mapping[str, Part], app_txn: tuple[str, int] | None = None
    ) -> None:
        self._announced = key
        self._journal.trying(key, "fatal", parts, app_txn)
        self._points.arm()

    def _one_table(self, key: str) -> Results:
        """Removes and adds files, with an app transaction: rows in most relations."""
        table = self._lake.table("a")
        paths = table.snapshot().files()["path"].to_pylist()
        old = next(path for path in paths if path.startswith("p="))
        new = f"p=1/{key}.parquet"
        self._announce(key, {"a": Part((new,), (old,))}, (key, 1))
        return {
            "a": table.commit(
                [add(new), remove(old)],
                operation_parameters={KEY_PARAMETER: key},
                app_txn=(key, 1),
            )
        }

    def _rebased(self, key: str) -> Results:
        """A commit that others have overtaken."""
        table = self._lake.table("b")
        assert table.version >= 0
        self._append("b", f"{key}-before")
        new = f"p=1/{key}.parquet"
        self._announce(key, {"b": Part((new,))})
        return {"b": table.commit([add(new)], operation_parameters={KEY_PARAMETER: key})}

    def _many_tables(self, key: str) -> Results:
        names = ("a", "b", "c")
        path = transfer_path(key, names)
        with self._lake.transaction() as tx:
            for name in names:
                tx.table(name).add_actions([add(path)], operation_parameters={KEY_PARAMETER: key})
            self._announce(key, {name: Part((path,)) for name in names})
        return tx.results

    def _properties(self, key: str) -> Results:
        table = self._lake.table("c")
        assert table.version >= 0
        self._announce(key, {"c": Part()})
        return {"c": table.set_properties({KEY_PROPERTY: key})}

    def _create(self, key: str) -> Results:
        name = key.replace("-", "_").replace(".", "_")
        self._announce(f"create {name}", {name: Part()})
        table = self._lake.create_table(
            name, location=f"/nowhere/{name}", schema=SCHEMA, partition_by=["p"]
        )
        (record,) = table.history()
        return {
            name: Committed(
                record.version, timestamp=record.committed_at, commit_uuid=record.commit_uuid
            )
        }


KINDS: Mapping[str, Callable[[Dying, str], Results]] = {
    "one table": Dying._one_table,
    "rebased": Dying._rebased,
    "many tables": Dying._many_tables,
    "properties": Dying._properties,
    "create": Dying._create,
}


def _step(points: KillPoints, name: str) -> None:
    points.reach(f"step {name}")
    if f"step {name}" == LAST:
        points.disarm()


def commit_and_die(job: Mapping[str, Any]) -> None:
    """Make two commits, and die at point `at` of the second."""
    journal = Path(job["journal"])
    points = KillPoints(job["at"], Path(job["labels"]))
    with Lake.connect(job["url"], mirror="worker") as lake:
        lake._committer._step = partial(_step, points)
        points.watch_statements(lake.store.dialect.engine)
        dying = Dying(lake, Journal(journal), journal.stem, points)
        dying.survive()
        dying.die(job["kind"])
        Journal(journal).end()
