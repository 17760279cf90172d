"""Metrics of this process and of others that serve them to Prometheus: conflicts, latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from deltalakedb.errors import ConfigurationError
from deltalakedb.service.answers import Histogram, Source

_LINE = re.compile(r"deltalakedb_(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>[-+.\w]+)")
_LE = re.compile(r'le="([^"]+)"')
_SECONDS = 2.0
_MOST_BYTES = 2_000_000


def check_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """URLs of metrics that may be asked for."""
    for source in sources:
        try:
            parts = urlsplit(source)
        except ValueError as error:
            raise _no_source(repr(source), str(error)) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise _no_source(parts.hostname or repr(source))
    return tuple(sources)


def _no_source(given: str, why: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{given} is no address of metrics",
        why=why,
        fix="Name the /metrics of a worker or writer: http://host:9187/metrics",
    )


def fetch(source: str) -> Source:
    """The metrics of another process, or what is in the way."""
    try:
        with urlopen(source, timeout=_SECONDS) as answer:  # noqa: S310 - checked by check_sources
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
    except (URLError, OSError, ValueError, HTTPException) as error:
        return Source(source, f"It does not answer: {error}", {}, {}, None)
    return read_exposition(source, text)


def read_exposition(source: str, text: str) -> Source:
    """Our counters and gauges without labels by name, and our histograms as quantiles."""
    values: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, float]]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, value = match["name"], _number(match["value"])
        if value is None or not math.isfinite(value):
            continue
        if match["labels"] is None:
            values[name] = value
        elif name.endswith("_bucket") and (le := _LE.search(match["labels"])):
            bound = _number(le[1])
            if bound is not None:
                buckets.setdefault(name.removesuffix("_bucket"), []).append((bound, value))
    histograms = {}
    for name, counted in sorted(buckets.items()):
        count = values.pop(f"{name}_count", 0)
        total = values.pop(f"{name}_sum", 0)
        histograms[name] = Histogram(
            int(count),
            round(total / count, 3) if count else None,
            *(_quantile(sorted(counted), n / 100) for n in (50, 95, 99)),
        )
    return Source(source, None, dict(sorted(values.items())), histograms, _conflict_rate(values))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _quantile(cumulative: Sequence[tuple[float, float]], part: float) -> float | None:
    """The bound of the bucket that a quantile lies in; None where it is beyond all bounds."""
    count = cumulative[-1][1]
    for bound, seen in cumulative:
        if count and seen >= part * count:
            return None if bound == float("inf") else bound
    return None


def _conflict_rate(values: Mapping[str, float]) -> float | None:
    """Conflicts for each version that was committed; None where nothing was."""
    committed = values.get("versions_committed_total", 0)
    return values.get("commit_conflicts_total", 0) / committed if committed else None
