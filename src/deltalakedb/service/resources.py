"""What can be asked, as plain values: the JSON API answers with them, the pages show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints
from uuid import UUID

from deltalakedb.errors import TableNotFoundError
from deltalakedb.mirror.mirror import state_of
from deltalakedb.service import answers
from deltalakedb.service.cached import Remembered
from deltalakedb.service.metrics import fetch, read_exposition
from deltalakedb.service.parameters import Parameter, make_cursor
from deltalakedb.store import browse
from deltalakedb.store.mirror import is_leased
from deltalakedb.store.relations import LIVE

if TYPE_CHECKING:
    from deltalakedb.lake import Lake
    from deltalakedb.store.browse import TableLine

# So many points and bars at most make a plot.
POINTS = 200
BARS = 60

_NAME = Parameter("name", "text", "The name of the table.", required=True)
_LIMIT = Parameter("limit", "limit", "How many at most.")
_SEARCH = (
    Parameter("operation", "text", "Only this operation, in any case: WRITE, merge, …"),
    Parameter("committer", "text", "Only this committer: the whole name, in any case."),
    Parameter("since", "time", "Not before this time (ISO 8601; UTC, unless it says otherwise)."),
    Parameter("until", "time", "Not after this time (ISO 8601; UTC, unless it says otherwise)."),
)
_FEWER = (
    "A page may have fewer than asked for, even none, and still a `next`: one request looks at "
)
_STRETCH = f"{_FEWER}{browse.SEARCHED:,} commits at most."


def _cursor(*shape: type) -> Parameter:
    return Parameter("cursor", "cursor", "`next` of the page before.", shape=shape)


@dataclass(frozen=True, slots=True)
class Resource:
    """Something to ask for: `answer` is given the catalog and the checked parameters."""

    path: str
    description: str
    answer: Callable[[Catalog, Mapping[str, Any]], Any]
    parameters: tuple[Parameter, ...] = ()
    changes: bool = False
    """Whether it changes the state of something: only by POST, and only with the token."""

    @property
    def answers_with(self) -> Any:
        """The type of its answers."""
        return get_type_hints(self.answer)["return"]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The lake that is looked at, where else metrics are, and whether anything can be changed."""

    lake: Lake
    sources: Sequence[str] = ()
    changeable: bool = False
    summaries: Remembered[browse.Summary] = field(default_factory=Remembered)

    def line(self, name: str) -> TableLine:
        """A table by its name; TableNotFoundError where there is none."""
        with self.lake.store.read() as session:
            found = browse.tables(session, name=name, limit=1)
        if not found:
            raise TableNotFoundError(f"There is no table {name!r}", fix="See /tables")
        return found[0]


def summary(catalog: Catalog, _: Mapping[str, Any]) -> answers.Summary:
    """The catalog in numbers; they are gauges for Prometheus too.

    They add up all tables. Where that takes long, they may be some seconds old.
    """
    store = catalog.lake.store

    def add_up() -> browse.Summary:
        with store.read() as session:
            return browse.summary(session)

    found = catalog.summaries.get(add_up)
    answer = answers.Summary(
        tables=found.tables,
        versions=found.versions,
        live_files=found.live_files,
        live_bytes=found.live_bytes,
        backlog=found.backlog,
        tables_behind=found.tables_behind,
        tables_drifted=found.tables_drifted,
        lag_ms=_since(found.waiting_since, store.clock.now_ms()),
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
        found = browse.tables(
            session, after=after, limit=limit, contains=asked["contains"], behind=asked["behind"]
        )
    now = store.clock.now_ms()
    following = make_cursor(found[-1].name) if len(found) == limit else None
    return answers.Tables([_table(line, now) for line in found], following)


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
        found = browse.changes(
            session, limit=asked["limit"], before=asked["cursor"], **_search(asked)
        )
    following = None if found.before is None else make_cursor(*found.before)
    return answers.Changes(found.changes, following)


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
        found = browse.versions(
            session, line.table_id, limit=asked["limit"], before=before, **_search(asked)
        )
    following = None if found.before is None else make_cursor(found.before)
    return answers.Versions(found.versions, following)


def activity(catalog: Catalog, asked: Mapping[str, Any]) -> browse.Activity:
    """When a table was committed to, or all of them."""
    name = asked["name"]
    table_id = None if name is None else catalog.line(name).table_id
    with catalog.lake.store.read() as session:
        return browse.activity(session, table_id, bars=BARS)


def growth(catalog: Catalog, asked: Mapping[str, Any]) -> answers.GrowthPoints:
    """How a table grew."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        return answers.GrowthPoints(browse.growth(session, line.table_id, points=POINTS))


def files(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Files:
    """A page of the live files of a table."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        found = browse.files(session, line.table_id, limit=asked["limit"], after=asked["cursor"])
    following = None if found.after is None else make_cursor(*found.after)
    return answers.Files(found.files, following)


def sizes(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Sizes:
    """How large the live files of a table are."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        found = browse.sizes(session, line.table_id)
    return answers.Sizes(found, sum(one.files for one in found), line.live_files)


def contention(catalog: Catalog, _: Mapping[str, Any]) -> browse.Contention:
    """How commits got on with each other."""
    with catalog.lake.store.read() as session:
        return browse.contention(session)


def metrics(catalog: Catalog, _: Mapping[str, Any]) -> answers.Metrics:
    """Metrics of this process, and of those that it was told to ask."""
    found = [read_exposition("this process", catalog.lake.metrics.exposition())]
    if catalog.sources:
        with ThreadPoolExecutor(min(8, len(catalog.sources))) as pool:
            found += pool.map(fetch, catalog.sources)
    return answers.Metrics(found)


def retry(catalog: Catalog, asked: Mapping[str, Any]) -> answers.Retried:
    """Publish a table now; what became of it."""
    line = catalog.line(asked["name"])
    done = catalog.lake.mirror.retry(line.name)
    catalog.summaries.forget()
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
                Parameter("behind", "flag", "Only tables whose mirror has something to do."),
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
            f"When commits were made: those of a table, or the newest {browse.PLOTTED:,} of all.",
            activity,
            (Parameter("name", "text", "The name of a table."),),
        ),
        Resource(
            "/api/v1/growth", "The size of a table at some of its versions.", growth, (_NAME,)
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
            f"How large live files are, of the newest {browse.SAMPLED:,}.",
            sizes,
            (_NAME,),
        ),
        Resource(
            "/api/v1/contention",
            f"How many of the newest {browse.CONTENDED:,} commits of all tables were rebased over "
            "commits of others, as the catalog remembers it.",
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
