"""Fork safety: the objects that a forked child renews, and those that it must not touch.

A fork copies the memory of a process and one of its threads. Locks held by other threads stay
locked in the child for ever, and connections belong to the parent. Objects register here to be
renewed in the child.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Final, Protocol, TypeVar

from deltalakedb.errors import ForkedProcessError

T = TypeVar("T")

# Packages that deltalakedb imports, at once or later.
_PACKAGES: Final = frozenset(
    {
        *("deltalakedb", "pyarrow", "numpy", "pandas", "obstore", "orjson", "sqlglot", "duckdb"),
        *("psycopg", "psycopg_binary", "adbc_driver_manager", "adbc_driver_postgresql", "polars"),
    }
)


class Renewed(Protocol):
    """An object that a forked child renews."""

    def after_fork(self) -> None:
        """Renew the object; called in the child before any other code."""


_renewed: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_after_fork(thing: Renewed) -> None:
    """Call `after_fork()` of an object in each child, as long as the object is alive."""
    _renewed.add(thing)


_no_fork = threading.RLock()


@contextmanager
def without_forks() -> Iterator[None]:
    """Block forks of this process during the block, which must be short."""
    with _no_fork:
        yield


def _before_fork() -> None:
    _no_fork.acquire()
    _finish_imports()


def _after_fork_in_parent() -> None:
    _no_fork.release()


def _after_fork_in_child() -> None:
    global _no_fork  # noqa: PLW0603 - renewed like all locks
    _no_fork = threading.RLock()
    for thing in list(_renewed):
        thing.after_fork()


def _finish_imports() -> None:
    """Wait for imports of other threads: a child could neither continue nor restart them.

    Most of our imports are lazy, in the thread that needs them first.
    """
    count = 0
    while count != len(names := [name for name in list(sys.modules) if _is_ours(name)]):
        count = len(names)
        for name in names:
            with suppress(ImportError):
                import_module(name)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in _PACKAGES


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


class ProcessLock:
    """A lock that is free in a forked child: `with name.lock:`.

    It wraps a lock of C: an interrupt could leave a lock that is taken by Python code held.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Renew the lock: its holder is not in this process."""
        self.lock = threading.Lock()


class Process:
    """The process that an object belongs to: the one that created this value."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this is the process, and not a child of it."""
        return os.getpid() == self._number

    def check(self, what: str, fix: str) -> None:
        """Raise ForkedProcessError in a child."""
        if not self.is_this:
            raise ForkedProcessError(
                f"{what} cannot be used in this process",
                why=f"it belongs to process {self._number}, which forked this one",
                fix=fix,
            )


def keep_for_ever(thing: object) -> None:
    """Never free an object, not even when the interpreter ends.

    Freeing a connection of the parent would send data to its server or wait for its threads.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class _ParentOnly:
    """A generator that only the process that started it may resume or close.

    A child keeps its copy for ever from the moment of the fork: when an interpreter ends, it closes
    suspended generators after the modules that distinguish parent and child are gone.
    """

    def __init__(self, generator: Generator[object, None, None]) -> None:
        self._generator = generator
        self.is_forked = False
        renew_after_fork(self)

    def after_fork(self) -> None:
        self.is_forked = True
        keep_for_ever(self._generator)


def owned(batches: Generator[T, None, None], what: str) -> Generator[T, None, None]:
    """The same, closed at the end; a child neither goes on with it nor closes it."""
    process = Process()
    parent_only = _ParentOnly(batches)
    try:
        for batch in batches:
            yield batch
            process.check(what, "Start it again in this process")
    finally:
        if not parent_only.is_forked:
            batches.close()
