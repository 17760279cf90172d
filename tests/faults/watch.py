"""Watches the logs of tables on a local disk: every name in the order in which it appears.

The kernel tells it (inotify), so nothing is missed between two looks.
"""

import ctypes
import os
import re
import select
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_MODIFY, _MOVED_TO, _CREATE, _DELETE, _MOVED_FROM = 0x2, 0x80, 0x100, 0x200, 0x40
_OVERFLOW = 0x4000
_HEAD = struct.Struct("iIII")
_COMMIT = re.compile(r"(\d{20})\.json")


class LogWatch:
    """Has a violation for each commit file that came too early, or was touched afterwards."""

    def __init__(self, folders: Iterable[Path]) -> None:
        if sys.platform != "linux":
            pytest.skip("only Linux tells the order in which files appear")
        libc = ctypes.CDLL(None, use_errno=True)
        self.violations: list[str] = []
        self._handle = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        assert self._handle >= 0, os.strerror(ctypes.get_errno())
        self._folders: dict[int, Path] = {}
        self._next: dict[int, int] = {}
        mask = _MODIFY | _MOVED_TO | _CREATE | _DELETE | _MOVED_FROM
        for folder in folders:
            number = libc.inotify_add_watch(self._handle, os.fsencode(folder), mask)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._folders[number] = folder
            self._next[number] = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self._handle)

    @property
    def commits(self) -> int:
        """How many commit files have appeared."""
        return sum(self._next.values())

    def _run(self) -> None:
        while True:
            last = self._ended.is_set()
            ready, _, _ = select.select([self._handle], [], [], 0 if last else 0.05)
            if ready:
                self._read(os.read(self._handle, 1 << 16))
            elif last:
                return

    def _read(self, data: bytes) -> None:
        while data:
            number, mask, _, length = _HEAD.unpack_from(data)
            name = data[_HEAD.size : _HEAD.size + length].rstrip(b"\0").decode()
            data = data[_HEAD.size + length :]
            if mask & _OVERFLOW:
                self.violations.append("more happened than the kernel could tell")
                continue
            found = _COMMIT.fullmatch(name)
            if found is not None:
                self._see(number, int(found[1]), mask)

    def _see(self, number: int, version: int, mask: int) -> None:
        place = f"version {version} of {self._folders[number]}"
        if not mask & (_CREATE | _MOVED_TO):
            self.violations.append(f"{place} was touched after it had appeared ({mask:#x})")
        elif version != self._next[number]:
            self.violations.append(f"{place} appeared, {self._next[number]} was next")
        else:
            self._next[number] += 1
