"""When to try again: soon at first, then ever later, and in the end every now and then for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """Exponential backoff with jitter, for `attempts` tries; then one try a period until it works.

    What only a person can mend (a permanent error) goes to that period at once.
    """

    first_seconds: float = 0.5
    most_seconds: float = 60.0
    attempts: int = 10
    period_seconds: float = 3600.0
    jitter: float = 0.25
    random: Callable[[], float] = field(default=random.random, repr=False)

    @property
    def longest_ms(self) -> int:
        """No delay is longer than this."""
        seconds = max(self.period_seconds, self.most_seconds)
        return round(seconds * 1000 * (1 + self.jitter)) + 1

    def has_to_wait(self, due: int, now: int) -> bool:
        """Whether a try that is due later has to wait; a wait that is too long is none.

        It comes from a clock that was ahead.
        """
        return now < due <= now + self.longest_ms

    def delay_ms(self, attempts: int, *, permanent: bool) -> int:
        """How long to wait after so many failed attempts."""
        if permanent or attempts >= self.attempts:
            seconds = self.period_seconds
        else:
            # Beyond some doublings the limit holds anyway, and the power would overflow.
            seconds = min(self.most_seconds, self.first_seconds * 2.0 ** min(attempts - 1, 60))
        return max(1, round(seconds * 1000 * (1 + self.jitter * (2 * self.random() - 1))))
