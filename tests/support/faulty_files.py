"""Local files of which a share of all system calls goes wrong, in this process, for a while.

The system calls of `deltalakedb.storage` are replaced. Whoever works with files otherwise (the test
itself) notices nothing.
"""

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deltalakedb.storage import local_files

CALLS = ("open", "read", "write", "fsync", "link", "close")
KINDS = (
    *("before", "after"),  # an error although nothing, or everything, was done
    *("too late", "throttled", "disk full"),  # other errors, before anything was done
    *("partial", "short"),  # half of the bytes were written, with an error or without one
    *("made twice",),  # what a network file system says when it repeats a request that succeeded
    *("garbled", "shortened"),  # other bytes are read than there are
)
_NUMBERS = {"too late": errno.ETIMEDOUT, "throttled": errno.EAGAIN, "disk full": errno.ENOSPC}


class FaultyFiles:
    """Decides what goes wrong. With `named` the system knows no files without a name."""

    def __init__(self, *, rate: float = 0.1, seed: int = 0, named: bool = False) -> None:
        self.rate = rate
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self._named = named
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._decks: dict[str, list[str]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let files fail while the block lasts."""
        # A name in a module of ours: nobody else's files are touched.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_files, "os", _FaultyOs(self, named=self._named))
            yield

    def choose(self, call: str) -> str | None:
        """What shall go wrong with this call, if anything."""
        with self._lock:
            self.requests += 1
            if self._chance.random() >= self.rate:
                return None
            # Each kind once before any comes again.
            deck = self._decks.setdefault(call, [])
            if not deck:
                kinds = _kinds(call)
                deck += self._chance.sample(kinds, len(kinds))
            kind = deck.pop()
            self.faults[kind] += 1
            return kind

    def garble(self, data: bytes, fault: str) -> bytes:
        """Other bytes. Nothing garbles two answers in the same way."""
        with self._lock:
            at = self._chance.randrange(len(data)) if data else 0
        if fault == "shortened" or not data:
            return data[:at]
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _kinds(call: str) -> tuple[str, ...]:
    if call == "write":
        return ("before", "partial", "partial", "short", *_NUMBERS)
    if call == "link":
        return ("before", "after", "after", "made twice", *_NUMBERS)
    if call == "read":
        return ("before", "garbled", "shortened")
    # Who opened a file and is told that it failed would lose it; a descriptor is always closed.
    return ("after",) if call == "close" else ("before", *_NUMBERS)


class _FaultyOs:
    """The module `os`, whose calls may fail."""

    def __init__(self, faults: FaultyFiles, *, named: bool) -> None:
        self._faults = faults
        self._hidden = frozenset({"O_TMPFILE"}) if named else frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(name)
        found = getattr(os, name)
        return self._failing(name, found) if name in CALLS else found

    def _failing(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            fault = self._faults.choose(name)
            if fault is None:
                return act(*arguments, **options)
            if fault in ("partial", "short"):
                handle, data = arguments
                done = act(handle, data[: len(data) // 2])
                if fault == "short":
                    return done
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if fault in ("garbled", "shortened"):
                return self._faults.garble(act(*arguments, **options), fault)
            if fault in ("after", "made twice"):
                act(*arguments, **options)
            if fault == "made twice":
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            number = _NUMBERS.get(fault, errno.EIO)
            raise OSError(number, os.strerror(number))

        return call
