"""Commit files parsed to log batches: in this process, or in parser processes for large logs.

Guarantees:

- Batches come in the order of versions, wherever they are parsed; so does the first error.
- A bounded number of batches is in flight at any time.
- Parser processes run this module only, never the caller's program, and end with the caller. They
  receive their settings, credentials among them, through a pipe.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from deltalakedb.actions.planning import Plan
from deltalakedb.deltalog.fetch import fetch_all, unchanged_log
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.importing.log_rows import CommitFile, LogBatch, LogBatchBuilder
from deltalakedb.storage import Storage, open_storage
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    from deltalakedb.deltalog.listing import LogFile

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_COMMITS: Final = 1_000
PROCESSES_FROM: Final = 2_000
"""The number of commits from which parser processes pay for their start."""
_MAX_PROCESSES: Final = 4
_PROGRAM: Final = "from deltalakedb.importing.parsing import serve; serve()"


class Task(NamedTuple):
    """Commits to parse together, and the plan for the keys of their first files."""

    files: tuple[CommitFile, ...]
    plan: Plan


Parser = Callable[[Iterable[Task]], Iterator[LogBatch]]
"""Parses tasks, in their order."""


def group(files: Iterable[LogFile]) -> Iterator[tuple[CommitFile, ...]]:
    """Commit files in groups of a few megabytes."""
    commits: list[CommitFile] = []
    size = 0
    for file in files:
        commits.append(CommitFile(file.key, file.version, file.modified_ms))
        size += file.size
        if size >= _BATCH_BYTES or len(commits) >= _BATCH_COMMITS:
            yield tuple(commits)
            commits, size = [], 0
    if commits:
        yield tuple(commits)


def parse(storage: Storage, task: Task) -> LogBatch:
    """Read and parse the commits of a task."""
    builder = LogBatchBuilder(task.plan)
    with unchanged_log():
        contents = fetch_all(storage, [file.key for file in task.files])
        for file, data in zip(task.files, contents, strict=True):
            builder.add_commit(file, data)
    return builder.build()


@contextmanager
def parser_for(
    storage: Storage, options: Mapping[str, str], commits: int, *, processes: int | None = None
) -> Iterator[Parser]:
    """The parser for a log of so many commits."""
    count = min(_MAX_PROCESSES, os.cpu_count() or 1) if processes is None else processes
    # Other processes cannot reach a store in memory.
    in_process = count < 1 or commits < PROCESSES_FROM or storage.location.startswith("memory:")
    if processes is None and in_process:
        yield lambda tasks: (parse(storage, task) for task in tasks)
        return
    with _ParserPool(storage.location, options, max(1, count)) as pool:
        yield pool.parse


# --- parser processes ---------------------------------------------------------------------


class _ParserPool:
    """Processes that parse; a thread of this process waits for each."""

    def __init__(self, location: str, options: Mapping[str, str], count: int) -> None:
        self._settings = (location, dict(options))
        self._count = count
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._ended = False
        self._threads = Threads(max_workers=count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
        for process in self._started:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            process.wait()

    def parse(self, tasks: Iterable[Task]) -> Iterator[LogBatch]:
        """Parse tasks; at most twice as many as there are processes are in flight."""
        waiting: deque[Future[LogBatch]] = deque()
        for task in tasks:
            waiting.append(self._threads.submit(self._work, task))
            if len(waiting) > 2 * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _work(self, task: Task) -> LogBatch:
        process = self._take()
        try:
            _send(process.stdin, task)
            answer = _receive(process.stdout)
        except (OSError, EOFError) as error:
            raise DeltaLakeDbError(
                "A parser process ended before it had parsed its commits",
                why=f"its exit code is {process.poll()}",
                fix="Check that there is enough memory, and try again",
            ) from error
        finally:
            # A process that ended goes back too: a thread that waits for one must not wait forever.
            self._idle.put(process)
        if isinstance(answer, BaseException):
            raise answer
        batch: LogBatch = answer
        return batch

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise OSError("the parser processes have been ended")
            if len(self._started) == self._count:
                process = None
            else:
                process = self._start()
                self._started.append(process)
        return self._idle.get() if process is None else process

    def _start(self) -> subprocess.Popen[bytes]:
        # Unlike multiprocessing, this does not run the caller's program again.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        _send(process.stdin, self._settings)
        return process


def serve() -> None:
    """Run a parser process: parse tasks from standard input until it ends."""
    tasks, out = sys.stdin.buffer, sys.stdout.buffer
    # Printed text must not end up among the results.
    sys.stdout = sys.stderr
    # Rows have no cycles, and a collection of very many takes long. This process only parses.
    gc.disable()
    try:
        location, options = _receive(tasks)
        storage = open_storage(location, options)
        while True:
            task: Task = _receive(tasks)
            answer: LogBatch | BaseException
            try:
                answer = parse(storage, task)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                answer = error
            _send(out, answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _send(pipe: Any, value: object) -> None:
    data = pickle.dumps(value, protocol=5)
    pipe.write(len(data).to_bytes(8, "big"))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    size = int.from_bytes(_exactly(pipe, 8), "big")
    return pickle.loads(_exactly(pipe, size))  # noqa: S301 - from our own process


def _exactly(pipe: Any, size: int) -> bytes:
    data: bytes = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data
