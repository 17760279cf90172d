"""A progress bar on standard error, while somebody looks at it: a terminal, and not a program."""

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
    """What long work is given as `progress`: one line, with the title of what goes on."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """How much is done, and of how much; 0 where nobody knows."""
        self._progress.update(self._task, completed=done, total=total or None)

    def phase(self, title: str) -> None:
        """Something else goes on from now; it is shown at once, however short it is."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(title, total=None)


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Bar]:
    """A bar for a piece of work; what cannot tell how far it is leaves it alone."""
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
    """A bar for work that tells nobody how far it is: `left` is asked now and then."""
    if not _is_watched(quiet=quiet):
        yield
        return
    total, over = left(), threading.Event()
    with progress_bar(title) as tell:

        def look() -> None:
            while not over.wait(_LOOK_SECONDS):
                # What ails the catalog is told by who works with it.
                with suppress(DeltaLakeDbError):
                    tell(max(total - left(), 0), total)

        tell(0, total)
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _is_watched(*, quiet: bool) -> bool:
    return sys.stderr.isatty() and not quiet
