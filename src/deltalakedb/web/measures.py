"""Metrics of this process and of others that serve them to Prometheus: conflicts, latencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from deltalakedb.errors import ConfigurationError

_LINE = re.compile(r"deltalakedb_(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>[-+.\w]+)")
_LE = re.compile(r'le="([^"]+)"')
_SECONDS = 2.0
_MOST_BYTES = 2_000_000


def check_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """URLs of metrics that may be asked for."""
    for source in sources:
        parts = urlsplit(source)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ConfigurationError(
                f"{parts.hostname or source!r} is no address of metrics",
                fix="Name the /metrics of a worker or writer: http://host:9187/metrics",
            )
    return tuple(sources)


def fetch(source: str) -> dict[str, Any]:
    """The metrics of another process, or what is in the way."""
    try:
        with urlopen(source, timeout=_SECONDS) as answer:  # noqa: S310 - checked by check_sources
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
    except (URLError, OSError, ValueError) as error:
        return {"source": source, "error": f"It does not answer: {error}"}
    return {"source": source, "error": None, **read_exposition(text)}


def read_exposition(text: str) -> dict[str, Any]:
    """Our counters and gauges without labels by name, and our histograms as quantiles."""
    values: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, float]]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        name = match["name"]
        if match["labels"] is None:
            values[name] = value
        elif name.endswith("_bucket") and (bound := _LE.search(match["labels"])):
            buckets.setdefault(name.removesuffix("_bucket"), []).append((float(bound[1]), value))
    histograms = {}
    for name, counted in sorted(buckets.items()):
        count = values.pop(f"{name}_count", 0)
        total = values.pop(f"{name}_sum", 0)
        histograms[name] = {
            "count": int(count),
            "mean": round(total / count, 3) if count else None,
            **{f"p{n}": _quantile(sorted(counted), n / 100) for n in (50, 95, 99)},
        }
    return {"values": dict(sorted(values.items())), "histograms": histograms}


def _quantile(cumulative: Sequence[tuple[float, float]], part: float) -> float | None:
    """The bound of the bucket that a quantile lies in; None where it is beyond all bounds."""
    count = cumulative[-1][1]
    for bound, seen in cumulative:
        if count and seen >= part * count:
            return None if bound == float("inf") else bound
    return None


def conflict_rate(values: Mapping[str, float]) -> float | None:
    """Conflicts for each version that was committed; None where nothing was."""
    committed = values.get("versions_committed_total", 0)
    return values.get("commit_conflicts_total", 0) / committed if committed else None
