"""Commit files become pieces: here, or by helper processes where there are many.

Guarantees:

- Pieces come in the order of versions, whoever parses them; so does the first error.
- A bounded number of pieces is on its way at any time.
- Helpers are programs of their own: they import nothing of the caller's, and end with it. What
  they need to know (credentials among it) goes through a pipe.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from deltalakedb.actions.planning import Plan
from deltalakedb.errors import DeltaLakeDbError, InvalidLogError, ObjectNotFoundError
from deltalakedb.importing.log_rows import CommitFile, Piece, PieceBuilder
from deltalakedb.storage import Storage, open_storage
from deltalakedb.threads import Threads

if TYPE_CHECKING:
    from deltalakedb.deltalog.listing import LogFile

_PIECE_BYTES: Final = 4 * 1024 * 1024
_PIECE_COMMITS: Final = 1_000
HELPERS_FROM: Final = 2_000
"""From how many commits on helpers are worth their start."""
_MOST_HELPERS: Final = 4
_AT_ONCE: Final = 32
_PROGRAM: Final = "from deltalakedb.importing.parsing import serve; serve()"


class Task(NamedTuple):
    """Commits to parse together, and the plan that their first files' keys are made by."""

    files: tuple[CommitFile, ...]
    plan: Plan


Parser = Callable[[Iterable[Task]], Iterator[Piece]]
"""Parses tasks, in their order."""


def group(files: Iterable[LogFile]) -> Iterator[tuple[CommitFile, ...]]:
    """Commit files in groups of a few megabytes."""
    held: list[CommitFile] = []
    size = 0
    for file in files:
        held.append(CommitFile(file.key, file.version, file.modified_ms))
        size += file.size
        if size >= _PIECE_BYTES or len(held) >= _PIECE_COMMITS:
            yield tuple(held)
            held, size = [], 0
    if held:
        yield tuple(held)


def parse(storage: Storage, task: Task) -> Piece:
    """Read and parse the commits of a task."""
    builder = PieceBuilder(task.plan)
    try:
        for file, data in zip(task.files, _fetch(storage, task.files), strict=True):
            builder.add_commit(file, data)
    except ObjectNotFoundError as error:
        raise InvalidLogError(
            "The log changed while it was read", why=error.what, fix="Try again"
        ) from error
    return builder.piece()


def _fetch(storage: Storage, files: Sequence[CommitFile]) -> Iterator[bytes]:
    keys = [file.key for file in files]
    if storage.is_local or len(keys) < 2:
        yield from map(storage.get, keys)
        return
    with Threads(max_workers=_AT_ONCE) as pool:
        rest = iter(keys)
        while window := list(islice(rest, 4 * _AT_ONCE)):
            yield from pool.map(storage.get, window)


@contextmanager
def parser_for(
    storage: Storage, options: Mapping[str, str], commits: int, *, helpers: int | None = None
) -> Iterator[Parser]:
    """What parses a log of so many commits best."""
    count = min(_MOST_HELPERS, os.cpu_count() or 1) if helpers is None else helpers
    # A store in memory is that of this process alone.
    alone = count < 1 or commits < HELPERS_FROM or storage.location.startswith("memory:")
    if helpers is None and alone:
        yield lambda tasks: (parse(storage, task) for task in tasks)
        return
    with _Helpers(storage.location, options, max(1, count)) as pool:
        yield pool.parse


# --- helpers ------------------------------------------------------------------------------


class _Helpers:
    """Some processes that parse; a thread of this one waits for each."""

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
                    with _quiet():
                        pipe.close()
            process.wait()

    def parse(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """Parse tasks; twice as many as there are helpers are on their way."""
        waiting: deque[Future[Piece]] = deque()
        for task in tasks:
            waiting.append(self._threads.submit(self._work, task))
            if len(waiting) > 2 * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _work(self, task: Task) -> Piece:
        process = self._take()
        try:
            _send(process.stdin, task)
            answer = _receive(process.stdout)
        except (OSError, EOFError) as error:
            raise DeltaLakeDbError(
                "A helper process ended before its work did",
                why=f"its exit code is {process.poll()}",
                fix="Look for a lack of memory, and try again",
            ) from error
        finally:
            # One that ended goes back too: whoever takes it next must not wait for ever.
            self._idle.put(process)
        if isinstance(answer, BaseException):
            raise answer
        found: Piece = answer
        return found

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise OSError("the helpers have been sent home")
            if len(self._started) == self._count:
                process = None
            else:
                process = self._start()
                self._started.append(process)
        return self._idle.get() if process is None else process

    def _start(self) -> subprocess.Popen[bytes]:
        # The caller's own program is not run again, as multiprocessing would.
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
    """Be a helper: parse what comes by standard input until it ends."""
    given, out = sys.stdin.buffer, sys.stdout.buffer
    # Whatever prints must not end up among the answers.
    sys.stdout = sys.stderr
    # Rows have no cycles, and looking for some among very many takes its time.
    gc.disable()
    try:
        location, options = _receive(given)
        storage = open_storage(location, options)
        while True:
            task: Task = _receive(given)
            answer: Piece | BaseException
            try:
                answer = parse(storage, task)
            except Exception as error:  # noqa: BLE001 - it is raised where the work was asked for
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


@contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except OSError:
        return
