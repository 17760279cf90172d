"""Metrics, events and spans: what happened, told to whoever listens.

Metrics are plain counters and histograms in this process, read with `Metrics.read()` or exported by
the operations page. Each commit emits one structured log record on the logger `deltalakedb`. Spans
go to OpenTelemetry when its API is installed; without it they cost nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

logger = logging.getLogger("deltalakedb")

_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)


@dataclass(slots=True)
class Histogram:
    """A distribution in cumulative buckets (upper bounds in the unit of the metric)."""

    count: int = 0
    total: float = 0.0
    buckets: dict[float, int] = field(default_factory=lambda: dict.fromkeys(_BUCKETS, 0))

    def observe(self, value: float) -> None:
        """Count one value."""
        self.count += 1
        self.total += value
        for bound in _BUCKETS:
            if value <= bound:
                self.buckets[bound] += 1


class Metrics:
    """Named counters, gauges and histograms; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, Histogram] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + amount

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._histograms.setdefault(name, Histogram()).observe(value)

    def read(self) -> dict[str, Any]:
        """Every metric by name: a number, or for a histogram its count, sum and buckets."""
        with self._lock:
            read: dict[str, Any] = {**self._counters, **self._gauges}
            for name, histogram in self._histograms.items():
                read[name] = {
                    "count": histogram.count,
                    "sum": histogram.total,
                    "buckets": dict(histogram.buckets),
                }
            return read


def event(name: str, fields: Mapping[str, Any]) -> None:
    """One structured log record: the name as its message, the fields as attribute `fields`."""
    if logger.isEnabledFor(logging.INFO):
        shown = " ".join(f"{key}={value}" for key, value in fields.items())
        logger.info("%s %s", name, shown, extra={"event": name, "fields": dict(fields)})


@cache
def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("deltalakedb")


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """An OpenTelemetry span around a piece of work, when its API is installed."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    with tracer.start_as_current_span(name, attributes=attributes):
        yield
