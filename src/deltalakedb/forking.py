"""What a forked child renews, and what it must leave alone.

A fork copies the memory of a process, and one of its threads. Locks that the other threads held
stay locked in the child for ever, and connections of the parent are the parent's. Each room renews
its own: it registers what it has to do here.
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

# Imported by deltalakedb, at once or later.
_PACKAGES: Final = frozenset(
    {
        *("deltalakedb", "pyarrow", "numpy", "pandas", "obstore", "orjson", "sqlglot", "duckdb"),
        *("psycopg", "psycopg_binary", "adbc_driver_manager", "adbc_driver_postgresql", "polars"),
    }
)


class Renewed(Protocol):
    """Something that a child of this process has to make anew."""

    def after_fork(self) -> None:
        """Called in the child, before anything else runs there."""


_renewed: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_after_fork(thing: Renewed) -> None:
    """Have `after_fork()` of a thing called in each child, as long as the thing is there."""
    _renewed.add(thing)


_no_fork = threading.RLock()


@contextmanager
def without_forks() -> Iterator[None]:
    """Let no thread of this process fork while the block lasts. It has to be short."""
    with _no_fork:
        yield


def _before_fork() -> None:
    _no_fork.acquire()
    _finish_imports()


def _after_fork_in_parent() -> None:
    _no_fork.release()


def _after_fork_in_child() -> None:
    global _no_fork  # noqa: PLW0603 - as all locks, it is made anew
    _no_fork = threading.RLock()
    for thing in list(_renewed):
        thing.after_fork()


def _finish_imports() -> None:
    """Wait for imports of other threads: a child could neither go on with them nor begin anew.

    Most of ours are made where they are needed, by whichever thread comes there first.
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
    """A lock that nobody holds in a forked child: `with name.lock:`.

    That is one of C, as an interrupt could come while one of Python's is taken, and leave it held.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Make it anew: whoever held it is not in this process."""
        self.lock = threading.Lock()


class Process:
    """The process that something belongs to: the one in which this was made."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this process is the one, and no child of it."""
        return os.getpid() == self._number

    def check(self, what: str, fix: str) -> None:
        """Raise ForkedProcessError where this is a child."""
        if not self.is_this:
            raise ForkedProcessError(
                f"{what} cannot be used in this process",
                why=f"it belongs to process {self._number}, which forked this one",
                fix=fix,
            )


def keep_for_ever(thing: object) -> None:
    """Never free a thing, not even when the interpreter ends.

    Freeing a connection of the parent would talk to its server, or wait for its threads.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class _ParentOnly:
    """A generator that only the process that started it may resume or close.

    A child keeps its copy for ever from the moment of the fork: when an interpreter ends, it closes
    suspended generators after the modules that would tell parent and child apart are gone.
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
