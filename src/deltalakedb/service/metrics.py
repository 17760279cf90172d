"""Metrics of this process and of others that serve them to Prometheus: conflicts, latencies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from deltalakedb.errors import ConfigurationError
from deltalakedb.service.answers import Histogram, Source

_PREFIX = "deltalakedb_"
_SECONDS = 2.0
_MAX_BYTES = 2_000_000


def check_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """The URLs of metrics, each checked."""
    for source in sources:
        try:
            parts = urlsplit(source)
        except ValueError as error:
            raise _no_source(repr(source), str(error)) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise _no_source(parts.hostname or repr(source))
    return tuple(sources)


def _no_source(source: str, why: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{source} is no address of metrics",
        why=why,
        fix="Name the /metrics of a worker or writer: http://host:9187/metrics",
    )


def fetch(source: str) -> Source:
    """The metrics of another process, or the error of asking for them."""
    try:
        with urlopen(source, timeout=_SECONDS) as response:  # noqa: S310 - checked by check_sources
            body = response.read(_MAX_BYTES + 1)
    except (URLError, OSError, ValueError, HTTPException) as error:
        return _failed(source, f"It does not answer: {error}")
    if len(body) > _MAX_BYTES:
        return _failed(source, f"Its answer is longer than {_MAX_BYTES:,} bytes")
    return parse_exposition(source, body.decode("utf-8", "replace"))


def parse_exposition(source: str, text: str) -> Source:
    """The metrics in a text in the format of Prometheus, or the error of parsing it."""
    try:
        return summarise(source, text_string_to_metric_families(text))
    except (ValueError, LookupError, ArithmeticError) as error:  # of parser and numbers
        return _failed(source, f"Its answer is not in the text format of Prometheus: {error}")


def _failed(source: str, error: str) -> Source:
    return Source(source, error[:500], {}, {}, None)


def summarise(source: str, families: Iterable[Metric]) -> Source:
    """Our counters and gauges without labels, and our histograms as quantiles, by name."""
    values: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, float]]] = {}
    for sample in (one for family in families for one in family.samples):
        if not sample.name.startswith(_PREFIX) or not math.isfinite(sample.value):
            continue
        name = sample.name.removeprefix(_PREFIX)
        if not sample.labels:
            values[name] = sample.value
        elif (
            name.endswith("_bucket") and (bound := _number(sample.labels.get("le", ""))) is not None
        ):
            buckets.setdefault(name.removesuffix("_bucket"), []).append((bound, sample.value))
    histograms = {}
    for name, cumulative in sorted(buckets.items()):
        count = values.pop(f"{name}_count", 0)
        total = values.pop(f"{name}_sum", 0)
        histograms[name] = Histogram(
            int(count),
            round(total / count, 3) if count else None,
            *(_quantile(sorted(cumulative), n / 100) for n in (50, 95, 99)),
        )
    return Source(source, None, dict(sorted(values.items())), histograms, _conflict_rate(values))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _quantile(cumulative: Sequence[tuple[float, float]], part: float) -> float | None:
    """The bound of the bucket that holds a quantile; None beyond the last bound."""
    count = cumulative[-1][1]
    for bound, below in cumulative:
        if count and below >= part * count:
            return None if bound == math.inf else bound
    return None


def _conflict_rate(values: Mapping[str, float]) -> float | None:
    """Conflicts for each committed version; None where nothing was committed."""
    committed = values.get("versions_committed_total", 0)
    return values.get("commit_conflicts_total", 0) / committed if committed else None
