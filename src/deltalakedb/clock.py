"""Clocks, which are injected so that tests can control time.

A catalog uses the clock of its database (`Dialect.now_ms`) unless it is opened with another.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    """The system clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that is set by hand, for tests and replays."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        """Move on; a negative step turns the clock back."""
        self._now_ms += milliseconds


class RemoteClock:
    """The clock of a server, read from time to time and advanced by the monotonic clock.

    The local wall clock is not used.
    """

    def __init__(self, *, valid_seconds: float = 60.0) -> None:
        self._valid_seconds = valid_seconds
        self._reading: tuple[int, float] | None = None

    @property
    def is_set(self) -> bool:
        """Whether the clock has been read."""
        return self._reading is not None

    def is_due(self) -> bool:
        """Whether the clock is to be read again."""
        reading = self._reading
        return reading is None or time.monotonic() - reading[1] > self._valid_seconds

    def set(self, now_ms: int, *, asked_at: float) -> None:
        """Set the time of the server, as queried at `asked_at` (monotonic)."""
        self._reading = now_ms, (asked_at + time.monotonic()) / 2

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        assert self._reading is not None  # noqa: S101 - callers set it first
        now_ms, read_at = self._reading
        return now_ms + round((time.monotonic() - read_at) * 1000)
