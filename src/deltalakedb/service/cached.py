"""An answer that is dear to make is made anew only after a rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

# What takes longer than this is remembered, for so many times as long as it took: then it takes a
# twentieth of the time of the catalog at most, however many ask for it.
DEAR_SECONDS: Final = 0.05
REST: Final = 20


class Remembered(Generic[Value]):
    """The last answer, as long as it may be used. Safe to use from any thread."""

    def __init__(self) -> None:
        self._last: tuple[Value, float] | None = None

    def get(self, make: Callable[[], Value]) -> Value:
        """The last answer, or a new one."""
        last = self._last
        started = time.monotonic()
        if last is not None and started < last[1]:
            return last[0]
        value = make()
        ended = time.monotonic()
        took = ended - started
        self._last = (value, ended + REST * took) if took >= DEAR_SECONDS else None
        return value

    def forget(self) -> None:
        """Something has changed."""
        self._last = None
