"""`format("deltalakedb")` whose processes die where a test wants them to.

Points are counted in one process: of a task, after its rows are staged; of the commit, at every
statement and at every write of the object store, and after all of it.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from deltalakedb.spark.source.datasource import DeltaLakeDbSource
from deltalakedb.spark.source.writer import StreamWriter, Target
from deltalakedb.store.url import parse_url

from support.kill_points import KillPoints

TASK, COMMIT = "task", "commit"
DEATH = frozenset({"labels", "diein", "at", "session"})
"""Options of this source alone."""


class DyingSource(DeltaLakeDbSource):
    """Options: `labels` (a file), `dieIn` (task or commit), `at` (a point by its number or name);
    `session` takes all processes along.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._death = {name.lower(): options[name] for name in options if name.lower() in DEATH}
        super().__init__({n: value for n, value in options.items() if n.lower() not in DEATH})

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        writer = _DyingWriter(Target.planned(self._options, schema, overwrite=overwrite))
        writer.death = self._death
        return writer


class _DyingWriter(StreamWriter):
    death: Mapping[str, str]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        staged = super().write(iterator)
        points = self._points(TASK)
        points.reach("staged")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        points = self._points(COMMIT)
        points.watch_statements(parse_url(self._target.options.catalog).engine)
        points.watch_storage(writes_only=True)
        points.reach("commit begins")
        super().commit(messages, batchId)
        points.reach("committed")
        # The process may be used again.
        points.disarm()

    def _points(self, place: str) -> KillPoints:
        death = self.death
        text = death.get("at", "") if death.get("diein") == place else ""
        at = int(text) if text.isdigit() else text
        kind = _WithSession if death.get("session") == "true" else KillPoints
        points = kind(at, Path(death.get("labels", "/dev/null")))
        points.arm()
        return points


class _WithSession(KillPoints):
    def die(self) -> None:
        kill_session(os.getsid(0))


def kill_session(session: int) -> None:
    """End every process of a session with SIGKILL: Java, and all its Pythons; this one last."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    ours = os.getpid()
    for pid in sorted(found, key=lambda one: one == ours):
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
