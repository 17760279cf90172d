"""Writers in processes of their own, started once and told when to go."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import deltalakedb
from benchmarks.bare import BareLoop, new_add, prepare


class WriterPool:
    """A process for each table; `run` lets all of them commit at once and waits for the last."""

    def __init__(self, url: str, tables: Sequence[tuple[str, str]], kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for name, table_id in tables:
            ours, theirs = context.Pipe()
            process = context.Process(target=_write, args=(theirs, url, name, table_id, kind))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.send(0)
        for process in self._processes:
            process.join()

    def run(self, commits: int) -> float:
        """Seconds until every process has made its commits."""
        for pipe in self._pipes:
            pipe.send(commits)
        for pipe in self._pipes:
            pipe.recv()  # it has prepared its rows
        started = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("go")
        for pipe in self._pipes:
            pipe.recv()
        return time.perf_counter() - started


def _write(pipe: Connection, url: str, name: str, table_id: str, kind: str) -> None:
    with deltalakedb.connect(url, mirror="worker") as lake:
        table, bare = lake.table(name), BareLoop(url, table_id)
        while commits := pipe.recv():
            if kind == "ours":
                work: list[Callable[[], object]] = [
                    partial(table.commit, [new_add()]) for _ in range(commits)
                ]
            else:
                work = [
                    partial(bare.send, prepare(table_id, bare.next_version(), [new_add()]))
                    for _ in range(commits)
                ]
            pipe.send("ready")
            pipe.recv()
            for commit in work:
                commit()
            pipe.send("done")
        bare.close()
