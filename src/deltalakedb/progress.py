"""Progress of long operations.

`progress(done, total)` is called during the main phase of an operation. A `progress` that also has
a method `phase(title)` is called for all phases: first with the title of each phase, then with its
progress. A `total` of 0 means that the total is not known yet.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]


class Phases:
    """Reports the phases of one operation to `progress`."""

    __slots__ = ("_is_reported", "_phase", "_progress")

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._phase: Callable[[str], None] | None = getattr(progress, "phase", None)
        self._is_reported = False

    def begin(self, title: str, *, main: bool = False) -> None:
        """Begin a phase. A `progress` without `phase` receives the `main` phase only."""
        self._is_reported = main or self._phase is not None
        if self._phase is not None:
            self._phase(title)

    def __call__(self, done: int, total: int = 0) -> None:
        """Report the progress of the current phase."""
        if self._progress is not None and self._is_reported:
            self._progress(done, total)
