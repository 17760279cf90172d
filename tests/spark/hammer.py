"""Writers of every kind on the same tables: Spark applications, and Python without Spark.

Tables: `counters` (a row for each key, incremented by UPDATE, MERGE and overwriting), `events`
(rows that are appended, deleted and compacted) and `audit` (gets the events of transactions, in the
same commit). Each writer journals its commits as the checker wants them, and at its end says which
of its changes were acknowledged.

    python -m spark.hammer '{"url": …, "name": …, "journal": …, "told": …, "stop": …, "scratch": …}'
"""

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from concurrency.checker import KEY_PARAMETER
from concurrency.journal import Journal, Outcome, Part
from deltalakedb.actions import AddFile, RemoveFile
from deltalakedb.errors import CommitConflictError, DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.java import java_home
from deltalakedb.transaction.commit import Commit, Committed, TableRead
from deltalakedb.transaction.committer import Committer

from support.spark import new_session

KEYS = 6
COUNTERS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
EVENTS = pa.schema([("id", pa.string())])
_CHANGED = {"ConcurrentAppendError", "ConcurrentDeleteReadError", "ConcurrentDeleteDeleteError"}
REFUSALS: Mapping[str, set[str]] = {
    "append": set(),
    "together": set(),
    "delete": _CHANGED,
    "update": _CHANGED,
    "merge": _CHANGED,
    "overwrite": _CHANGED,
    "optimize": {"ConcurrentDeleteReadError", "ConcurrentDeleteDeleteError"},
}
"""The conflicts that each operation may meet; appending never does."""
TRIES = 4
PAUSE = 0.5
"""Seconds that a writer without Spark waits, or nobody else would ever get through."""


def create_tables(lake: Lake, folder: Path, journal: Journal) -> None:
    """The tables, with all counters at zero."""
    Journalled(lake, journal, "founder")
    vectors = {
        "delta.enableDeletionVectors": "true",
        # Appending to it does not disturb whoever deletes.
        "delta.isolationLevel": "WriteSerializable",
    }
    for name, schema, properties in (
        ("counters", COUNTERS, {}),
        ("events", EVENTS, vectors),
        ("audit", EVENTS, {}),
    ):
        lake.create_table(
            name,
            location=str(folder / name),
            schema=schema,
            properties=properties,
            # Only changes of the same counter meet: otherwise the quickest writer would always win.
            partition_by=["k"] if name == "counters" else [],
        )
    lake.table("counters").append(pa.table({"k": range(KEYS), "n": [0] * KEYS}, schema=COUNTERS))
    journal.end()


class Journalled:
    """Journals every commit of a lake, whoever makes it."""

    def __init__(self, lake: Lake, journal: Journal, name: str) -> None:
        self._committer = lake._committer
        self._journal = journal
        self._name = name
        self._count = 0
        self.operation = "append"
        lake._committer.commit = self.commit  # type: ignore[method-assign]

    def commit(
        self,
        commits: Sequence[Commit],
        reads: Sequence[TableRead] = (),
        *,
        notify: bool = True,
    ) -> list[Committed]:
        self._count += 1
        key = f"{self._name}-{self._count}"
        parts = {commit.table.name: _part(commit) for commit in commits}
        for commit in commits:
            if commit.base is None:
                key = f"create {commit.table.name}"
        keyed = [_with_key(commit, key) for commit in commits]
        self._journal.trying(key, self.operation, parts)
        try:
            became = Committer.commit(self._committer, keyed, reads, notify=notify)
        except DeltaLakeDbError as error:
            self._journal.heard(key, Outcome.REFUSED, error=error)
            raise
        done = {c.table.name: one for c, one in zip(commits, became, strict=True)}
        self._journal.heard(
            key,
            Outcome.ACKNOWLEDGED,
            versions={name: int(one) for name, one in done.items()},
            commit_uuids={name: one.commit_uuid for name, one in done.items()},
        )
        return became


def _with_key(commit: Commit, key: str) -> Commit:
    parameters = {**commit.operation.parameters, KEY_PARAMETER: key}
    return replace(commit, operation=replace(commit.operation, parameters=parameters))


def _part(commit: Commit) -> Part:
    return Part(
        tuple(a.path for a in commit.actions if isinstance(a, AddFile)),
        tuple(a.path for a in commit.actions if isinstance(a, RemoveFile)),
    )


@dataclass
class Told:
    """What was acknowledged to a writer, row by row."""

    increments: Counter[int] = field(default_factory=Counter)
    added: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def read(cls, path: Path) -> "Told":
        found = json.loads(path.read_text())
        found["increments"] = Counter({int(k): n for k, n in found["increments"].items()})
        return cls(**found)


class Writer:
    """What both kinds of writers do."""

    def __init__(self, lake: Lake, journal: Journal, name: str) -> None:
        self.lake = lake
        self.name = name
        self.told = Told()
        self.chance = random.Random(name)
        self._journalled = Journalled(lake, journal, name)
        self._journal = journal
        self._number = 0
        self._mine: list[str] = []

    @property
    def operations(self) -> list[Callable[[], None]]:
        raise NotImplementedError

    def run(self, stop: Callable[[], bool], *, rounds: int = sys.maxsize) -> None:
        """Work until told to stop, or so many rounds of every operation, in any order."""
        for _ in range(rounds):
            for operation in self.chance.sample(self.operations, len(self.operations)):
                if stop():
                    break
                self.attempt(operation)
            if stop():
                break
        self._journal.end()

    def attempt(self, operation: Callable[[], None]) -> None:
        """Do it, and again where others came first, as applications do."""
        name = operation.__name__
        self._journalled.operation = name
        for _ in range(TRIES):
            try:
                operation()
                self.told.done[name] += 1
                return
            except CommitConflictError as error:
                self.told.refused[f"{name}: {type(error).__name__}"] += 1

    def new_ids(self) -> list[str]:
        self._number += 1
        return [f"{self.name}-{self._number}-{n}" for n in range(3)]

    def key(self) -> int:
        return self.chance.randrange(KEYS)

    def _added(self, ids: list[str]) -> None:
        self.told.added += ids
        self._mine += ids


class PlainWriter(Writer):
    """Python and Arrow."""

    @property
    def operations(self) -> list[Callable[[], None]]:
        return [self.append, self.together, self.overwrite, self.optimize]

    def attempt(self, operation: Callable[[], None]) -> None:
        super().attempt(operation)
        time.sleep(PAUSE)

    def append(self) -> None:
        ids = self.new_ids()
        self.lake.table("events").append(pa.table({"id": ids}))
        self._added(ids)

    def together(self) -> None:
        ids = self.new_ids()
        with self.lake.transaction() as tx:
            tx.table("events").append(pa.table({"id": ids}))
            tx.table("audit").append(pa.table({"id": ids}))
        self._added(ids)
        self.told.together += ids

    def overwrite(self) -> None:
        """An increment: read and replace, in one transaction."""
        key = self.key()
        with self.lake.transaction() as tx:
            table = tx.table("counters")
            # The condition says which rows others must not change meanwhile.
            (before,) = table.snapshot().to_arrow(where=f"k = {key}")["n"].to_pylist()
            table.overwrite(
                pa.table({"k": [key], "n": [before + 1]}, schema=COUNTERS), where=f"k = {key}"
            )
        self.told.increments[key] += 1

    def optimize(self) -> None:
        self.lake.table(self.chance.choice(["events", "audit", "counters"])).optimize()


class SparkWriter(Writer):
    """An application of Spark."""

    def __init__(self, lake: Lake, journal: Journal, name: str, spark: SparkSession) -> None:
        super().__init__(lake, journal, name)
        self.spark = spark

    @property
    def operations(self) -> list[Callable[[], None]]:
        return [self.append, self.together, self.update, self.merge, self.delete, self.optimize]

    def table(self, name: str) -> DeltaTable:
        return DeltaTable.forName(self.spark, name, catalog=self.lake)

    def frame(self, ids: list[str]) -> Any:
        return self.spark.createDataFrame([(one,) for one in ids], "id string").coalesce(1)

    def append(self) -> None:
        ids = self.new_ids()
        self.lake.table("events").append(self.frame(ids))
        self._added(ids)

    def together(self) -> None:
        ids = self.new_ids()
        with self.lake.transaction() as tx:
            tx.table("events").append(self.frame(ids))
            tx.table("audit").append(self.frame(ids))
        self._added(ids)
        self.told.together += ids

    def update(self) -> None:
        key = self.key()
        self.table("counters").update(f"k = {key}", {"n": "n + 1"})
        self.told.increments[key] += 1

    def merge(self) -> None:
        keys = self.chance.sample(range(KEYS), 2)
        source = self.spark.createDataFrame([(one,) for one in keys], "k bigint")
        (
            self.table("counters")
            .alias("t")
            .merge(source.alias("s"), "t.k = s.k")
            .whenMatchedUpdate(set={"n": "t.n + 1"})
            .whenNotMatchedInsert(values={"k": "s.k", "n": "-1000L"})
            .execute()
        )
        self.told.increments.update(keys)

    def delete(self) -> None:
        """Some of our own events; whoever compacts them meanwhile makes it fail."""
        if not self._mine:
            return
        one = self.chance.choice(self._mine)
        self.table("events").delete(f"id = '{one}'")
        self._mine.remove(one)
        self.told.deleted.append(one)

    def optimize(self) -> None:
        name = self.chance.choice(["events", "audit", "counters"])
        self.table(name).optimize().executeCompaction()


def main() -> None:
    given = json.loads(sys.argv[1])
    stop = Path(given["stop"])
    journal = Journal(Path(given["journal"]))
    with Lake.connect(given["url"], mirror="worker") as lake:
        writer: Writer
        if given["spark"]:
            os.environ["JAVA_HOME"] = str(java_home())
            spark = new_session(Path(given["scratch"]))
            writer = SparkWriter(lake, journal, given["name"], spark)
        else:
            writer = PlainWriter(lake, journal, given["name"])
        print("begun", flush=True)  # noqa: T201
        writer.run(stop.exists, rounds=given["rounds"] or sys.maxsize)
        Path(given["told"]).write_text(writer.told.to_json())


if __name__ == "__main__":
    main()
