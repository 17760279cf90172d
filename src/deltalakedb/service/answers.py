"""The answers of the JSON API; their types make the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from deltalakedb.mirror.mirror import State
from deltalakedb.store.browse import ChangeLine, FileLine, Growth, SizeCount, VersionLine


@dataclass(frozen=True, slots=True)
class Summary:
    """The catalog in numbers."""

    tables: int
    versions: int
    live_files: int
    live_bytes: int
    backlog: int
    tables_behind: int
    tables_drifted: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class TableMirror:
    """The state of a table's `_delta_log` against the catalog."""

    state: State
    published_version: int | None
    backlog: int
    lag_ms: int
    attempts: int
    last_error: str | None
    next_attempt_at: int | None
    checkpoint_version: int | None
    checkpoint_error: str | None
    lease_owner: str | None
    drift: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TableHead:
    """A table at its newest version."""

    name: str
    location: str
    version: int
    committed_at: int | None
    committer: str | None
    operation: str | None
    live_files: int
    live_bytes: int
    mirror: TableMirror


@dataclass(frozen=True, slots=True)
class Tables:
    """A page of tables."""

    tables: list[TableHead]
    next: str | None


@dataclass(frozen=True, slots=True)
class Changes:
    """A page of the commits of all tables."""

    changes: list[ChangeLine]
    next: str | None


@dataclass(frozen=True, slots=True)
class Versions:
    """A page of the commits of a table."""

    versions: list[VersionLine]
    next: str | None


@dataclass(frozen=True, slots=True)
class GrowthPoints:
    """The size of a table at a sample of its versions."""

    points: list[Growth]


@dataclass(frozen=True, slots=True)
class Files:
    """A page of live files."""

    files: list[FileLine]
    next: str | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of live files; the newest `counted` of them make the distribution."""

    sizes: list[SizeCount]
    counted: int
    live_files: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution; the quantiles are bounds of its buckets, null beyond the last one."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Source:
    """The metrics of a process, or the error of asking for them."""

    source: str
    error: str | None
    values: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    conflicts_per_version: float | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of processes."""

    sources: list[Source]


@dataclass(frozen=True, slots=True)
class Retried:
    """The result of publishing a table at once."""

    published: int
    outcomes: list[str]
    errors: list[str]
    table: TableHead


@dataclass(frozen=True, slots=True)
class Failure:
    """An error: what failed, why, and what to do; `error` is the whole text."""

    error: str
    what: str
    why: str
    fix: str


def to_json(value: Any) -> Any:
    """An answer as plain JSON values: dataclasses and named tuples become objects."""
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, map(to_json, value), strict=True))
    if isinstance(value, Mapping):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    return value
