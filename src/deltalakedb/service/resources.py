"""The resources of the JSON API; the pages show the same values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints
from uuid import UUID

from deltalakedb.errors import TableNotFoundError
from deltalakedb.mirror.mirror import state_of
from deltalakedb.service import answers
from deltalakedb.service.metrics import fetch, summarise
from deltalakedb.service.parameters import Parameter, make_cursor
from deltalakedb.store import browse
from deltalakedb.store.mirror import is_leased
from deltalakedb.store.relations import LIVE

if TYPE_CHECKING:
    from deltalakedb.lake import Lake
    from deltalakedb.store.browse import TableLine

# The largest number of points and bars of a plot.
POINTS = 200
BARS = 60
# A value that takes longer than this to compute is cached, for this many times as long: then it
# takes a twentieth of the catalog's time at most, however many clients ask for it.
SLOW_SECONDS = 0.05
CACHED_FOR = 20
Value = TypeVar("Value")

_NAME = Parameter("name", "text", "The name of the table.", required=True)
_LIMIT = Parameter("limit", "limit", "How many at most.")
_SEARCH = (
    Parameter("operation", "text", "Only this operation, in any case: WRITE, merge, …"),
    Parameter("committer", "text", "Only this committer: the whole name, in any case."),
    Parameter("since", "time", "Not before this time (ISO 8601; UTC, unless it says otherwise)."),
    Parameter("until", "time", "Not after this time (ISO 8601; UTC, unless it says otherwise)."),
)
_FEWER = "A page may have fewer than `limit`, even none, and still a `next`: one request looks at "
_STRETCH = f"{_FEWER}{browse.SEARCHED:,} commits at most."


def _cursor(*shape: type) -> Parameter:
    return Parameter("cursor", "cursor", "`next` of the page before.", shape=shape)


@dataclass(frozen=True, slots=True)
class Resource:
    """An address of the API: `answer` takes the catalog and the checked parameters."""

    path: str
    description: str
    answer: Callable[[Catalog, Mapping[str, Any]], Any]
    parameters: tuple[Parameter, ...] = ()
    changes: bool = False
    """Whether it changes the catalog or a table: only by POST, and only with the token."""

    @property
    def answers_with(self) -> Any:
        """The type of its answers."""
        return get_type_hints(self.answer)["return"]


class Cached(Generic[Value]):
    """The last value of a slow computation, while it is fresh. Safe to use from any thread."""

    def __init__(self) -> None:
        self._last: tuple[Value, float] | None = None

    def get(self, compute: Callable[[], Value]) -> Value:
        """The last value, or a new one."""
        last = self._last
        started = time.monotonic()
        if last is not None and started < last[1]:
            return last[0]
        value = compute()
        ended = time.monotonic()
        seconds = ended - started
        fresh_until = ended + CACHED_FOR * seconds
        self._last = (value, fresh_until) if seconds >= SLOW_SECONDS else None
        return value

    def clear(self) -> None:
        """Forget the value, after a change."""
        self._last = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """A lake, the sources of other metrics, and whether requests may change anything."""

    lake: Lake
    sources: Sequence[str] = ()
    changeable: bool = False
    summaries: Cached[browse.Summary] = field(default_factory=Cached)

    def line(self, name: str) -> TableLine:
        """A table by its name; TableNotFoundError where there is none."""
        with self.lake.store.read() as session:
            lines = browse.tables(session, name=name, limit=1)
        if not lines:
            raise TableNotFoundError(f"There is no table {name!r}", fix="See /tables")
        return lines[0]


def summary(catalog: Catalog, _: Mapping[str, Any]) -> answers.Summary:
    """The catalog in numbers, which become gauges for Prometheus too.

    They are sums over all tables. Where those take long, they may be seconds old.
    """
    store = catalog.lake.store

    def add_up() -> browse.Summary:
        with store.read() as session:
            return browse.summary(session)

    sums = catalog.summaries.get(add_up)
    answer = answers.Summary(
        tables=sums.tables,
        versions=sums.versions,
        live_files=sums.live_files,
        live_bytes=sums.live_bytes,
        backlog=sums.backlog,
        tables_behind=sums.tables_behind,
        tables_drifted=sums.tables_drifted,
        lag_ms=_since(sums.waiting_since, store.clock.now_ms()),
    )
    for name, value in answers.to_json(answer).items():
        store.metrics.gauge(f"catalog_{name}", value)
    return answer


def _since(waiting: int | None, now: int) -> int:
    return 0 if waiting is None else max(0, now - waiting)


def tables(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Tables:
    """A page of tables."""
    (after,) = asked["cursor"] or ("",)
    limit = asked["limit"]
    store = catalog.lake.store
    with store.read() as session:
        lines = browse.tables(
            session, after=after, limit=limit, contains=asked["contains"], behind=asked["behind"]
        )
    now = store.clock.now_ms()
    following = make_cursor(lines[-1].name) if len(lines) == limit else None
    return answers.Tables([_table(line, now) for line in lines], following)


def table(catalog: Catalog, asked: Mapping[str, Any]) -> answers.TableHead:
    """One table."""
    return _table(catalog.line(asked["name"]), catalog.lake.store.clock.now_ms())


def _table(line: TableLine, now: int) -> answers.TableHead:
    published = line.version if line.oldest is None else line.oldest - 1
    mirror = answers.TableMirror(
        state=state_of(
            oldest=line.oldest, drift=line.drift, status=line.status, error_kind=line.error_kind
        ),
        published_version=published if published >= 0 else None,
        backlog=line.backlog,
        lag_ms=_since(line.waiting_since, now),
        attempts=line.attempts,
        last_error=line.last_error,
        next_attempt_at=line.next_attempt_at,
        checkpoint_version=line.checkpoint_version,
        checkpoint_error=line.checkpoint_error,
        lease_owner=line.lease_owner
        if is_leased(line.lease_owner, line.lease_expires_at, now)
        else None,
        drift=line.drift,
    )
    return answers.TableHead(
        name=line.name,
        location=line.location,
        version=line.version,
        committed_at=line.committed_at,
        committer=line.committer,
        operation=line.operation,
        live_files=line.live_files,
        live_bytes=line.live_bytes,
        mirror=mirror,
    )


def changes(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Changes:
    """A page of the commits of all tables."""
    with catalog.lake.store.read() as session:
        page = browse.changes(
            session, limit=asked["limit"], before=asked["cursor"], **_search(asked)
        )
    cursor = None if page.before is None else make_cursor(*page.before)
    return answers.Changes(page.changes, cursor)


def _search(asked: Mapping[str, Any]) -> dict[str, Any]:
    since, until = asked["since"], asked["until"]
    return {
        "operation": asked["operation"],
        "committer": asked["committer"],
        "since": 0 if since is None else max(0, since),
        "until": LIVE if until is None else until,
    }


def versions(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Versions:
    """A page of the history of a table."""
    line = catalog.line(asked["name"])
    (before,) = asked["cursor"] or (None,)
    with catalog.lake.store.read() as session:
        page = browse.versions(
            session, line.table_id, limit=asked["limit"], before=before, **_search(asked)
        )
    cursor = None if page.before is None else make_cursor(page.before)
    return answers.Versions(page.versions, cursor)


def activity(catalog: Catalog, asked: Mapping[str, Any]) -> browse.Activity:
    """Commits over time: of a table, or of all."""
    name = asked["name"]
    table_id = None if name is None else catalog.line(name).table_id
    with catalog.lake.store.read() as session:
        return browse.activity(session, table_id, bars=BARS)


def growth(catalog: Catalog, asked: Mapping[str, Any]) -> answers.GrowthPoints:
    """The growth of a table."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        return answers.GrowthPoints(browse.growth(session, line.table_id, points=POINTS))


def files(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Files:
    """A page of the live files of a table."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        page = browse.files(session, line.table_id, limit=asked["limit"], after=asked["cursor"])
    cursor = None if page.after is None else make_cursor(*page.after)
    return answers.Files(page.files, cursor)


def sizes(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Sizes:
    """The sizes of the live files of a table."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        counts = browse.sizes(session, line.table_id)
    return answers.Sizes(counts, sum(one.files for one in counts), line.live_files)


def contention(catalog: Catalog, _: Mapping[str, Any]) -> browse.Contention:
    """How many of the newest commits were rebased."""
    with catalog.lake.store.read() as session:
        return browse.contention(session)


def metrics(catalog: Catalog, _: Mapping[str, Any]) -> answers.Metrics:
    """Metrics of this process and of the other sources."""
    sources = [summarise("this process", catalog.lake.metrics.collect())]
    if catalog.sources:
        with ThreadPoolExecutor(min(8, len(catalog.sources))) as pool:
            sources += pool.map(fetch, catalog.sources)
    return answers.Metrics(sources)


def retry(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Retried:
    """Publish a table now."""
    line = catalog.line(asked["name"])
    done = catalog.lake.mirror.retry(line.name)
    catalog.summaries.clear()
    return answers.Retried(
        published=sum(one.count for one in done),
        outcomes=[one.outcome.name.lower() for one in done],
        errors=[str(one.error) for one in done if one.error is not None],
        table=table(catalog, {"name": line.name}),
    )


RESOURCES: Mapping[str, Resource] = {
    one.path: one
    for one in (
        Resource("/api/v1/summary", "The catalog in numbers.", summary),
        Resource(
            "/api/v1/tables",
            "Tables by name, each with its head and its mirror.",
            tables,
            (
                Parameter("contains", "text", "Only names with this in them, in any case."),
                Parameter("behind", "flag", "Only tables whose mirror is behind."),
                _cursor(str),
                _LIMIT,
            ),
        ),
        Resource("/api/v1/table", "One table.", table, (_NAME,)),
        Resource(
            "/api/v1/changes",
            f"The commits of all tables, newest first. {_STRETCH}",
            changes,
            (*_SEARCH, _cursor(int, UUID), _LIMIT),
        ),
        Resource(
            "/api/v1/versions",
            f"The commits of a table, newest first. {_STRETCH}",
            versions,
            (_NAME, *_SEARCH, _cursor(int), _LIMIT),
        ),
        Resource(
            "/api/v1/activity",
            f"Commits over time: those of a table, or the newest {browse.PLOTTED:,} of all.",
            activity,
            (Parameter("name", "text", "The name of a table."),),
        ),
        Resource(
            "/api/v1/growth", "The size of a table at a sample of its versions.", growth, (_NAME,)
        ),
        Resource(
            "/api/v1/files",
            "The live files of a table, those of the newest versions first, by path in each. "
            f"{_FEWER}{browse.LOOKED_AT:,} files at most.",
            files,
            (_NAME, _cursor(int, str, str), _LIMIT),
        ),
        Resource(
            "/api/v1/sizes",
            f"The sizes of live files, of the newest {browse.SAMPLED:,}.",
            sizes,
            (_NAME,),
        ),
        Resource(
            "/api/v1/contention",
            f"How many of the newest {browse.CONTENDED:,} commits of all tables were rebased over "
            "commits of others.",
            contention,
        ),
        Resource(
            "/api/v1/metrics",
            "Conflicts, latencies and other metrics of this process, and of those named by "
            "--metrics.",
            metrics,
        ),
        Resource(
            "/api/v1/retry",
            "Publish a table to its _delta_log now; one that has drifted is compared again.",
            retry,
            (_NAME,),
            changes=True,
        ),
    )
}
