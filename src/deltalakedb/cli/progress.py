"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deltalakedb.errors import DeltaLakeDbError

_LOOK_SECONDS = 0.3


class Bar:
    """The `progress` of a long operation: one line, with the title of the current step."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Set the amount done and the total; 0 if the total is unknown."""
        self._progress.update(self._task, completed=done, total=total or None)

    def phase(self, title: str) -> None:
        """Start the next step; its title appears at once."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(title, total=None)


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Bar]:
    """A bar for one operation; an operation that cannot report its progress does not use it."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not _is_watched(quiet=quiet),
    ) as progress:
        yield Bar(progress, title)


@contextmanager
def countdown(title: str, left: Callable[[], int], *, quiet: bool = False) -> Iterator[None]:
    """A bar for work that does not report its progress: `left` is polled."""
    if not _is_watched(quiet=quiet):
        yield
        return
    total, over = left(), threading.Event()
    with progress_bar(title) as progress:

        def look() -> None:
            while not over.wait(_LOOK_SECONDS):
                # The operation itself reports an error of the catalog.
                with suppress(DeltaLakeDbError):
                    progress(max(total - left(), 0), total)

        progress(0, total)
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _is_watched(*, quiet: bool) -> bool:
    return sys.stderr.isatty() and not quiet
