"""The limits of retries of a commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, limited in number and in time.

    It does not limit the wait for another writer's lock: that is the `timeout` of the catalog URL.
    A transaction is retried if the database aborted it in favour of another, if it was too far
    behind, or if its connection broke.
    """

    max_attempts: int = 30
    max_seconds: float = 120.0
    first_delay: float = 0.01
    max_delay: float = 2.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    jitter: Callable[[], float] = field(default=random.random, repr=False)

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the attempt of that number (from 1)."""
        return min(self.max_delay, self.first_delay * 2.0 ** min(attempt, 30)) * self.jitter()
