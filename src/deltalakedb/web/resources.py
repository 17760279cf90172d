"""What can be asked, as plain values: the JSON API answers with them, the pages show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from deltalakedb.errors import TableNotFoundError
from deltalakedb.mirror.service import state_of
from deltalakedb.store import browse
from deltalakedb.store.relations import LIVE
from deltalakedb.web.measures import conflict_rate, fetch, read_exposition
from deltalakedb.web.parameters import Parameter, make_cursor

if TYPE_CHECKING:
    from deltalakedb.lake import Lake
    from deltalakedb.store.browse import TableLine

Answer = dict[str, Any]
POINTS = 200

_NAME = Parameter("name", "text", "The name of the table.", required=True)
_LIMIT = Parameter("limit", "limit", "How many at most.")
_SEARCH = (
    Parameter("operation", "text", "Only this operation."),
    Parameter("committer", "text", "Only this committer."),
    Parameter("since", "time", "Not before this time (ISO 8601)."),
    Parameter("until", "time", "Not after this time (ISO 8601)."),
)
_STRETCH = (
    "A page may have fewer than asked for, even none, and still a `next`: one request looks at "
    f"{browse.SEARCHED} commits at most."
)


def _cursor(*shape: type) -> Parameter:
    return Parameter("cursor", "cursor", "`next` of the page before.", shape=shape)


@dataclass(frozen=True, slots=True)
class Resource:
    """Something to ask for: `answer` is given the catalog and the checked parameters."""

    path: str
    description: str
    answer: Callable[[Catalog, Mapping[str, Any]], Answer]
    parameters: tuple[Parameter, ...] = ()
    changes: bool = False
    """Whether it changes the state of something: only by POST, and only with the token."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The lake that is looked at, and where else metrics are."""

    lake: Lake
    sources: Sequence[str] = field(default=())

    def line(self, name: str) -> TableLine:
        """A table by its name; TableNotFoundError where there is none."""
        with self.lake.store.read() as session:
            found = browse.tables(session, name=name, limit=1)
        if not found:
            raise TableNotFoundError(f"There is no table {name!r}", fix="See /tables")
        return found[0]


def summary(catalog: Catalog, _: Mapping[str, Any]) -> Answer:
    """The catalog in numbers; they are gauges for Prometheus too."""
    store = catalog.lake.store
    with store.read() as session:
        found = browse.summary(session)
    waiting = found.waiting_since
    answer = found._asdict()
    del answer["waiting_since"]
    answer["lag_ms"] = 0 if waiting is None else max(0, store.clock.now_ms() - waiting)
    for name, value in answer.items():
        store.metrics.gauge(f"catalog_{name}", value)
    return answer


def tables(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
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
    return {"tables": [_table(line, now) for line in found], "next": following}


def table(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """One table."""
    return _table(catalog.line(asked["name"]), catalog.lake.store.clock.now_ms())


def _table(line: TableLine, now: int) -> Answer:
    published = line.version if line.oldest is None else line.oldest - 1
    return {
        "name": line.name,
        "location": line.location,
        "version": line.version,
        "committed_at": line.committed_at,
        "committer": line.committer,
        "operation": line.operation,
        "live_files": line.live_files,
        "live_bytes": line.live_bytes,
        "mirror": {
            "state": state_of(
                oldest=line.oldest,
                drift=line.drift,
                status=line.status,
                error_kind=line.error_kind,
            ),
            "published_version": published if published >= 0 else None,
            "backlog": line.backlog,
            "lag_ms": 0 if line.waiting_since is None else max(0, now - line.waiting_since),
            "attempts": line.attempts,
            "last_error": line.last_error,
            "next_attempt_at": line.next_attempt_at,
            "checkpoint_version": line.checkpoint_version,
            "checkpoint_error": line.checkpoint_error,
            "lease_owner": line.lease_owner if line.lease_expires_at > now else None,
            "drift": line.drift,
        },
    }


def changes(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """A page of the commits of all tables."""
    with catalog.lake.store.read() as session:
        found = browse.changes(
            session, limit=asked["limit"], before=asked["cursor"], **_search(asked)
        )
    following = None if found.before is None else make_cursor(*found.before)
    lines = [{"name": name, **one._asdict()} for name, one in found.changes]
    return {"changes": lines, "next": following}


def _search(asked: Mapping[str, Any]) -> dict[str, Any]:
    since, until = asked["since"], asked["until"]
    return {
        "operation": asked["operation"],
        "committer": asked["committer"],
        "since": 0 if since is None else max(0, since),
        "until": LIVE if until is None else until,
    }


def versions(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """A page of the history of a table."""
    line = catalog.line(asked["name"])
    (before,) = asked["cursor"] or (None,)
    with catalog.lake.store.read() as session:
        found = browse.versions(
            session, line.table_id, limit=asked["limit"], before=before, **_search(asked)
        )
    following = None if found.before is None else make_cursor(found.before)
    return {"versions": [one._asdict() for one in found.versions], "next": following}


def growth(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """How a table grew."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        found = browse.growth(session, line.table_id, points=POINTS)
    return {"points": [one._asdict() for one in found]}


def files(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """A page of the live files of a table."""
    line = catalog.line(asked["name"])
    limit = asked["limit"]
    with catalog.lake.store.read() as session:
        found = browse.files(session, line.table_id, limit=limit, after=asked["cursor"])
    more = len(found) == limit
    last = found[-1] if more else None
    following = make_cursor(last.added_version, last.path, last.dv_id) if last else None
    return {"files": [one._asdict() for one in found], "next": following}


def sizes(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """How large the live files of a table are."""
    line = catalog.line(asked["name"])
    with catalog.lake.store.read() as session:
        found = browse.sizes(session, line.table_id)
    counted = sum(one.files for one in found)
    return {
        "sizes": [one._asdict() for one in found],
        "counted": counted,
        "live_files": line.live_files,
    }


def metrics(catalog: Catalog, _: Mapping[str, Any]) -> Answer:
    """Metrics of this process, and of those that it was told to ask."""
    here = read_exposition(catalog.lake.metrics.exposition())
    found = [{"source": "this process", "error": None, **here}]
    if catalog.sources:
        with ThreadPoolExecutor(min(8, len(catalog.sources))) as pool:
            found += pool.map(fetch, catalog.sources)
    for one in found:
        one["conflicts_per_version"] = conflict_rate(one.get("values", {}))
    return {"sources": found}


def retry(catalog: Catalog, asked: Mapping[str, Any]) -> Answer:
    """Publish a table now; what became of it."""
    line = catalog.line(asked["name"])
    done = catalog.lake.mirror.retry(line.name)
    return {
        "published": sum(one.count for one in done),
        "outcomes": [one.outcome.name.lower() for one in done],
        "errors": [str(one.error) for one in done if one.error is not None],
        "table": table(catalog, {"name": line.name}),
    }


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
            "/api/v1/growth", "The size of a table at some of its versions.", growth, (_NAME,)
        ),
        Resource(
            "/api/v1/files",
            "The live files of a table, those of the newest versions first.",
            files,
            (_NAME, _cursor(int, str, str), _LIMIT),
        ),
        Resource(
            "/api/v1/sizes",
            f"How large live files are, of the newest {browse.SAMPLED}.",
            sizes,
            (_NAME,),
        ),
        Resource("/api/v1/metrics", "Conflicts, latencies and other metrics.", metrics),
        Resource(
            "/api/v1/retry",
            "Publish a table to its _delta_log now; one that has drifted is compared again.",
            retry,
            (_NAME,),
            changes=True,
        ),
    )
}
