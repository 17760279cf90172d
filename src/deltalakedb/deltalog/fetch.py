"""Log files, fetched before anything is locked.

A spool holds them in memory while they are few and on disk when they are many, so that a database
transaction never waits for an object store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import NamedTuple, Self

from deltalakedb.storage import Storage
from deltalakedb.threads import Threads

_IN_MEMORY = 64 * 1024 * 1024
_AT_ONCE = 32


class Spooled(NamedTuple):
    """Where the bytes of a file are in the spool, and their SHA-256."""

    offset: int
    size: int
    digest: str


class Spool:
    """Copies of log files by key, deleted when the context ends."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        # Closed by __exit__; the spool is the context manager.
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._end = 0
        self._entries: dict[str, Spooled] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fetch(self, keys: Sequence[str]) -> Iterator[str]:
        """Fetch files; yields each key once its file is in the spool."""
        wanted = [key for key in keys if key not in self._entries]
        if self._storage.is_local or len(wanted) < 2:
            for key in wanted:
                self._write(key, self._storage.get(key))
                yield key
            return
        with Threads(max_workers=_AT_ONCE) as pool:
            rest = iter(wanted)
            # A window, so that few files are in memory before they are written to the spool.
            while window := list(islice(rest, 4 * _AT_ONCE)):
                for key, data in zip(window, pool.map(self._storage.get, window), strict=True):
                    self._write(key, data)
                    yield key

    def get(self, key: str) -> bytes:
        """The bytes of a file, fetched now if they are not in the spool."""
        if key not in self._entries:
            self._write(key, self._storage.get(key))
        entry = self._entries[key]
        self._file.seek(entry.offset)
        return self._file.read(entry.size)

    def entry(self, key: str) -> Spooled:
        """Size and digest of a file that was fetched."""
        return self._entries[key]

    def _write(self, key: str, data: bytes) -> None:
        self._file.seek(self._end)
        self._file.write(data)
        self._entries[key] = Spooled(self._end, len(data), hashlib.sha256(data).hexdigest())
        self._end += len(data)
