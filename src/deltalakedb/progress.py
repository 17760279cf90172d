"""How far a long piece of work is, for whoever passed `progress` to it.

`progress(done, total)` is called now and then while the part of the work goes on that its
documentation names. A `progress` that also has a method `phase(title)` is told of all parts: first
the title of each, in words for people, then how much of it is done. A `total` of 0 says that
nobody knows yet how much there will be.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]


class Phases:
    """The parts of one piece of work, told to `progress` as they come."""

    __slots__ = ("_heard", "_phase", "_progress")

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._phase: Callable[[str], None] | None = getattr(progress, "phase", None)
        self._heard = False

    def begin(self, title: str, *, main: bool = False) -> None:
        """A part begins. Who listens to one part only hears how far the `main` one is."""
        self._heard = main or self._phase is not None
        if self._phase is not None:
            self._phase(title)

    def __call__(self, done: int, total: int = 0) -> None:
        """How much of this part is done, and of how much."""
        if self._progress is not None and self._heard:
            self._progress(done, total)
