"""Contents on their way to the disk while the files before them get their names.

A disk that is asked for one file at a time makes a backlog wait for each; asked for several, it
writes them together. Names are still given one after the other, by whoever publishes: nothing here
can be seen by anybody until then, and what gets no name leaves nothing behind.
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
# How many files are open at once.
_WINDOW: Final = 16


class Ahead:
    """Creates objects in the order in which they were announced. Use it as a context manager."""

    def __init__(self, storage: Storage, objects: Iterable[tuple[str, bytes]]) -> None:
        self.storage = storage
        self._announced = deque(objects) if storage.is_local else deque[tuple[str, bytes]]()
        self._staged: dict[str, tuple[bytes, Future[NewFile | None]]] = {}
        self._pool: Threads | None = None

    def __enter__(self) -> Self:
        # One alone has nobody to share the disk with.
        if len(self._announced) > 1:
            self._pool = Threads(
                min(_THREADS, len(self._announced)), thread_name_prefix="deltalakedb-publish"
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
        """As the storage does, unsettled."""
        content, staged = self._staged.pop(key, (None, None))
        file = None if staged is None else staged.result()
        self._stage()
        if content != data:
            _drop(file)
            file = None
        return self.storage.put_if_absent(key, data, settle=False, staged=file)

    def _stage(self) -> None:
        while self._pool is not None and self._announced and len(self._staged) < _WINDOW:
            key, data = self._announced.popleft()
            self._staged[key] = data, self._pool.submit(self.storage.stage, key, data)


def _drop(file: NewFile | None) -> None:
    # Nobody needs it, so nobody needs to know.
    with suppress(OSError):
        if file is not None:
            file.close()
