"""Log files, fetched before anything is locked.

A spool holds them in memory while they are few and on disk when they are many, so that a database
transaction never waits for an object store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import NamedTuple, Self

from deltalakedb.errors import InvalidLogError, ObjectNotFoundError
from deltalakedb.storage import Storage
from deltalakedb.threads import Threads

_IN_MEMORY = 64 * 1024 * 1024
_AT_ONCE = 32


def fetch_all(storage: Storage, keys: Sequence[str]) -> Iterator[bytes]:
    """The bytes of files, in order; many at a time from a remote store."""
    if storage.is_local or len(keys) < 2:
        yield from map(storage.get, keys)
        return
    with Threads(max_workers=_AT_ONCE) as pool:
        rest = iter(keys)
        # A window, so that few files are in memory.
        while window := list(islice(rest, 4 * _AT_ONCE)):
            yield from pool.map(storage.get, window)


@contextmanager
def unchanged_log() -> Iterator[None]:
    """Raise InvalidLogError where a file of the log was deleted while it was read."""
    try:
        yield
    except ObjectNotFoundError as error:
        raise InvalidLogError(
            "The log changed while it was read", why=error.what, fix="Try again"
        ) from error


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

    def fetch(self, keys: Sequence[str]) -> None:
        """Fetch files that are not in the spool."""
        wanted = [key for key in keys if key not in self._entries]
        for key, data in zip(wanted, fetch_all(self._storage, wanted), strict=True):
            self._write(key, data)

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
