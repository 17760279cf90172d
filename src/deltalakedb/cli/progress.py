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


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how much is done, and of how much."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not _is_watched(quiet=quiet),
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


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
