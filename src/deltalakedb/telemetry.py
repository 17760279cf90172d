"""Metrics, events and spans: what happened, told to whoever listens.

Metrics are plain counters and histograms in this process, read with `Metrics.read()` or exported by
the operations page. Each commit emits one structured log record on the logger `deltalakedb`. Spans
go to OpenTelemetry when its API is installed; without it they cost nothing.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

from deltalakedb.forking import ProcessLock

logger = logging.getLogger("deltalakedb")
_NO_SPAN = nullcontext()

_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)


class Histogram:
    """A distribution in buckets (upper bounds in the unit of the metric)."""

    __slots__ = ("_buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._buckets = [0] * (len(_BUCKETS) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.count += 1
        self.total += value
        self._buckets[bisect_left(_BUCKETS, value)] += 1

    def cumulative(self) -> dict[float, int]:
        """How many values were at most each bound."""
        return dict(zip(_BUCKETS, accumulate(self._buckets), strict=False))


class Metrics:
    """Named counters, gauges and histograms; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, Histogram] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        with self._lock.lock:
            self._counters[name] = self._counters.get(name, 0) + amount

    def committed(self, versions: int, latency_ms: float) -> None:
        """What each commit tells, at once: its latency, and how many versions it made."""
        with self._lock.lock:
            total = self._counters.get("versions_committed_total", 0)
            self._counters["versions_committed_total"] = total + versions
            histogram = self._histograms.get("commit_latency_ms")
            if histogram is None:
                histogram = self._histograms["commit_latency_ms"] = Histogram()
            histogram.observe(latency_ms)

    def gauge(self, name: str, value: float, *, table: str | None = None) -> None:
        """Set a gauge; one of a table is read as `name{table="…"}`."""
        if table is not None:
            name = f'{name}{{table="{_label(table)}"}}'
        with self._lock.lock:
            self._gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock.lock:
            self._histograms.setdefault(name, Histogram()).observe(value)

    def read(self) -> dict[str, Any]:
        """Every metric by name: a number, or for a histogram its count, sum and buckets."""
        with self._lock.lock:
            read: dict[str, Any] = {**self._counters, **self._gauges}
            for name, histogram in self._histograms.items():
                read[name] = {
                    "count": histogram.count,
                    "sum": histogram.total,
                    "buckets": histogram.cumulative(),
                }
            return read

    def exposition(self) -> str:
        """Every metric in the text format that Prometheus scrapes."""
        with self._lock.lock:
            lines: list[str] = []
            for kind, series in (("counter", self._counters), ("gauge", self._gauges)):
                known: set[str] = set()
                for name, value in sorted(series.items()):
                    bare = name.partition("{")[0]
                    if bare not in known:
                        known.add(bare)
                        lines.append(f"# TYPE deltalakedb_{bare} {kind}")
                    lines.append(f"deltalakedb_{name} {_exact(value)}")
            for name, histogram in sorted(self._histograms.items()):
                lines.append(f"# TYPE deltalakedb_{name} histogram")
                lines += [
                    f'deltalakedb_{name}_bucket{{le="{bound:g}"}} {count}'
                    for bound, count in histogram.cumulative().items()
                ]
                lines.append(f'deltalakedb_{name}_bucket{{le="+Inf"}} {histogram.count}')
                lines.append(f"deltalakedb_{name}_sum {_exact(histogram.total)}")
                lines.append(f"deltalakedb_{name}_count {histogram.count}")
            return "\n".join(lines) + "\n"


def event(name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    """One structured log record: the name as its message, the fields as attribute `fields`.

    The fields are asked for only when somebody listens.
    """
    _log(logging.INFO, name, fields)


def warning(name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    """As `event`, for what somebody should look at."""
    _log(logging.WARNING, name, fields)


def _log(level: int, name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    if logger.isEnabledFor(level):
        told = dict(fields())
        shown = " ".join(f"{key}={value}" for key, value in told.items())
        logger.log(level, "%s %s", name, shown, extra={"event": name, "fields": told})


def _exact(value: float) -> str:
    """A number with all of its digits: rates are differences of large ones."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _label(value: str) -> str:
    """A value of a label, as Prometheus wants it between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """An OpenTelemetry span around a piece of work, when somebody collects them.

    Whoever does has imported the API: without that there is nothing to ask.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _NO_SPAN
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return _NO_SPAN
    tracer = provider.get_tracer("deltalakedb")
    started: AbstractContextManager[Any] = tracer.start_as_current_span(name, attributes=attributes)
    return started
