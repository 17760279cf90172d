"""Commit files of a backlog are staged on a local disk while earlier ones are published.

A disk writes several files together faster than one after the other. The publisher still links them
one by one, in order: a staged file is invisible until then, and one that is never linked leaves
nothing behind.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from deltalakedb.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from deltalakedb.storage import Storage
    from deltalakedb.storage.local_files import NewFile

_THREADS: Final = 8
# The number of files that are open at once.
_WINDOW: Final = 16


class Prefetch:
    """Stages objects ahead, in their order; a context manager."""

    def __init__(self, storage: Storage, objects: Iterable[tuple[str, bytes]]) -> None:
        self.storage = storage
        self._waiting = deque(objects) if storage.is_local else deque[tuple[str, bytes]]()
        self._staged: dict[str, tuple[bytes, Future[NewFile | None]]] = {}
        self._pool: Threads | None = None

    def __enter__(self) -> Self:
        # A single file gains nothing.
        if len(self._waiting) > 1:
            self._pool = Threads(
                min(_THREADS, len(self._waiting)), thread_name_prefix="deltalakedb-publish"
            )
            self._stage()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for _, staged in self._staged.values():
            if not staged.cancelled() and staged.exception() is None:
                _drop(staged.result())

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Put an object if absent, with its staged file if there is one; not yet durable."""
        content, staged = self._staged.pop(key, (None, None))
        file = None if staged is None else staged.result()
        self._stage()
        if content != data:
            _drop(file)
            file = None
        return self.storage.put_if_absent(key, data, settle=False, staged=file)

    def _stage(self) -> None:
        while self._pool is not None and self._waiting and len(self._staged) < _WINDOW:
            key, data = self._waiting.popleft()
            self._staged[key] = data, self._pool.submit(self.storage.stage, key, data)


def _drop(file: NewFile | None) -> None:
    # The file was not needed: an error does no harm.
    with suppress(OSError):
        if file is not None:
            file.close()
