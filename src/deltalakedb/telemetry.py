"""Metrics, events and spans of this process.

- Metrics are plain counters, gauges and histograms. `Metrics.read()` returns them, and
  prometheus-client exposes them.
- Each commit emits one structured log record on the logger `deltalakedb`.
- Spans go to OpenTelemetry where its API is installed; otherwise they cost nothing.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.errors import MissingDriverError
from deltalakedb.forking import ProcessLock

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger("deltalakedb")
_NO_SPAN = nullcontext()
_PREFIX: Final = "deltalakedb_"

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
        """The number of values up to each bound."""
        return dict(zip(_BUCKETS, accumulate(self._buckets), strict=False))


class Metrics:
    """Named counters, gauges and histograms; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._counters: dict[str, float] = {}
        self._gauges: dict[tuple[str, str | None], float] = {}
        self._histograms: dict[str, Histogram] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        with self._lock.lock:
            self._counters[name] = self._counters.get(name, 0) + amount

    def committed(self, versions: int, latency_ms: float) -> None:
        """Count a commit: its latency and the number of versions it created."""
        with self._lock.lock:
            total = self._counters.get("versions_committed_total", 0)
            self._counters["versions_committed_total"] = total + versions
            histogram = self._histograms.get("commit_latency_ms")
            if histogram is None:
                histogram = self._histograms["commit_latency_ms"] = Histogram()
            histogram.observe(latency_ms)

    def gauge(self, name: str, value: float, *, table: str | None = None) -> None:
        """Set a gauge; `read` has that of a table as `name{table="…"}`."""
        with self._lock.lock:
            self._gauges[name, table] = value

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock.lock:
            self._histograms.setdefault(name, Histogram()).observe(value)

    def read(self) -> dict[str, Any]:
        """Every metric by name: a number, or for a histogram its count, sum and buckets."""
        with self._lock.lock:
            read: dict[str, Any] = dict(self._counters)
            for (name, table), value in self._gauges.items():
                read[name if table is None else f'{name}{{table="{_label(table)}"}}'] = value
            for name, histogram in self._histograms.items():
                read[name] = {
                    "count": histogram.count,
                    "sum": histogram.total,
                    "buckets": histogram.cumulative(),
                }
            return read

    def exposition(self) -> str:
        """Every metric in the text format of Prometheus. It needs the extra `web`."""
        try:
            from prometheus_client import generate_latest
        except ImportError as error:
            raise MissingDriverError(
                "Metrics for Prometheus need prometheus-client, which is not installed",
                fix="Run: pip install 'deltalakedb[web]'",
            ) from error
        return generate_latest(self).decode()

    def collect(self) -> Iterator[Metric]:
        """Every metric as a family of prometheus-client, whose protocol `Collector` this is."""
        from prometheus_client import core

        with self._lock.lock:
            counters, gauges = sorted(self._counters.items()), list(self._gauges.items())
            histograms = [
                (name, one.cumulative(), one.count, one.total)
                for name, one in sorted(self._histograms.items())
            ]
        for name, value in counters:
            if name.endswith("_total"):
                yield core.CounterMetricFamily(f"{_PREFIX}{name}", "", value)
            else:
                yield core.UntypedMetricFamily(f"{_PREFIX}{name}", "", value)
        families: dict[str, core.GaugeMetricFamily] = {}
        for (name, table), value in sorted(gauges, key=lambda one: (one[0][0], one[0][1] or "")):
            labels = [] if table is None else ["table"]
            if name not in families:
                families[name] = core.GaugeMetricFamily(f"{_PREFIX}{name}", "", labels=labels)
            families[name].add_metric([] if table is None else [table], value)
        yield from families.values()
        for name, cumulative, count, total in histograms:
            buckets = [(f"{bound:g}", float(below)) for bound, below in cumulative.items()]
            yield core.HistogramMetricFamily(
                f"{_PREFIX}{name}", "", [*buckets, ("+Inf", float(count))], total
            )


def event(name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    """One structured log record: the name as its message, the fields as attribute `fields`.

    The fields are computed only where the logger is enabled.
    """
    _log(logging.INFO, name, fields)


def warning(name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    """As `event`, at the level of a warning."""
    _log(logging.WARNING, name, fields)


def _log(level: int, name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    if logger.isEnabledFor(level):
        values = dict(fields())
        text = " ".join(f"{key}={value}" for key, value in values.items())
        logger.log(level, "%s %s", name, text, extra={"event": name, "fields": values})


def _label(value: str) -> str:
    """A label's value, escaped as in the text format of Prometheus."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """An OpenTelemetry span around a piece of work, where a tracer provider is set.

    An application that sets one has imported the API; it is not imported here.
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
