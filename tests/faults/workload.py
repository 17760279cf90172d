"""Tables, and commits to them."""

import random
from collections.abc import Sequence
from pathlib import Path

from deltalakedb.lake import Lake
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.mirror.publish import RetrySchedule
from deltalakedb.table import Table

from support.lake import SCHEMA, add, remove

IMPATIENT = RetrySchedule(first_seconds=0.02, most_seconds=0.2, attempts=1_000_000)

"""Tries again soon; whatever is told as permanent waits for an hour all the same."""
_V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}


def impatient(lake: Lake, mode: str) -> Lake:
    """The lake with a mirror that tries again at once; its commits are published by that one."""
    lake.mirror = Mirror(lake.store, mode=mode, schedule=IMPATIENT)
    committer = lake._committer
    committer._guard = lake.mirror.committing
    committer._subscribers = (lake.mirror.after_commit, *committer._subscribers[1:])
    return lake


def create_tables(lake: Lake, place: str | Path, count: int, *, interval: int = 5) -> list[Table]:
    """Tables with many checkpoints, some of them of the other kind. Nobody publishes yet."""
    return [
        lake.create_table(
            f"t{number:02}",
            location=f"{place}/t{number:02}",
            schema=SCHEMA,
            properties={
                "delta.checkpointInterval": str(interval),
                **(_V2 if number % 5 == 4 else {}),
            },
        )
        for number in range(count)
    ]


class Writer:
    """Commits to tables at random; the files that it names are nowhere."""

    def __init__(self, tables: Sequence[Table], name: str) -> None:
        self._tables = tables
        self._chance = random.Random(name)
        self._name = name
        self._files: dict[str, list[str]] = {table.name: [] for table in tables}
        self.commits = 0

    def commit(self) -> None:
        """One commit to one table: some files come, and sometimes one goes."""
        table = self._chance.choice(self._tables)
        files = self._files[table.name]
        self.commits += 1
        new = [f"{self._name}-{self.commits}-{n}" for n in range(self._chance.randint(1, 4))]
        actions = [add(path) for path in new]
        if files and self._chance.random() < 0.3:
            actions.append(remove(files.pop(0)))
        table.commit(actions)
        files += new
