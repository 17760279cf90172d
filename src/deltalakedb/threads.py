"""Thread pools that also work while the interpreter ends.

Python refuses new work for a `ThreadPoolExecutor` as soon as the main thread has ended, although
other threads (an application's own, or the one that writes checkpoints) run on until they finish.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """A thread pool that runs work in the calling thread where no thread can take it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called; the future is done already if the interpreter is ending."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            done: Future[Any] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - as in a thread: result() raises it
                done.set_exception(error)
            return done
