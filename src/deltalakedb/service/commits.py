"""Routes for engines that let this catalog decide about their commits, such as Delta on Spark.

Guarantees:

- Each request needs a token with the scope of its route.
- A request that is repeated has the effect of one.
- The code of an error says what the engine may do next; see `ANSWERS`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deltalakedb.advice import as_commands
from deltalakedb.errors import (
    AmbiguousTableError,
    CatalogError,
    CommitFileMissingError,
    CommitRejectedError,
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
    Fix,
    InvalidActionError,
    InvalidLogError,
    InvalidSchemaError,
    MirrorError,
    NotPublishedError,
    PathNotAllowedError,
    StorageError,
    TableDriftedError,
    TableExistsError,
    TableNotFoundError,
    UnexpectedVersionError,
    UnsupportedFeatureError,
)
from deltalakedb.operations.alter import check_name
from deltalakedb.service.access import RefusedError, Scope, Token, bearer
from deltalakedb.service.answers import to_json
from deltalakedb.storage import table_location
from deltalakedb.store.table_lookup import find_table_by_spark_name, table_exists

if TYPE_CHECKING:
    from deltalakedb.lake import Lake
    from deltalakedb.service.app import Service
    from deltalakedb.store import TableRecord

PREFIX: Final = "/api/v1/delta"
LARGEST_COMMIT: int = 512 * 1024 * 1024
LARGEST_VERSION: Final = 2**63 - 1

# The first that fits. A code means: 404 the engine may go on without this catalog, 409 conflict: it
# compares its commit with the one that won, 503: it repeats the request, all others: it gives up.
ANSWERS: Final[tuple[tuple[type[DeltaLakeDbError], int, str], ...]] = (
    (TableNotFoundError, 404, "unknown-table"),
    (UnexpectedVersionError, 409, "conflict"),
    (TableExistsError, 409, "table-exists"),
    (AmbiguousTableError, 409, "ambiguous-name"),
    (CommitFileMissingError, 410, "log-missing"),
    (TableDriftedError, 423, "drifted"),
    (NotPublishedError, 503, "unavailable"),
    (CommitRejectedError, 422, "rejected"),
    (UnsupportedFeatureError, 422, "rejected"),
    (InvalidActionError, 422, "rejected"),
    (InvalidSchemaError, 422, "rejected"),
    (InvalidLogError, 422, "rejected"),
    (PathNotAllowedError, 422, "rejected"),
    (CorruptCatalogError, 500, "failed"),
    (CatalogError, 503, "unavailable"),
    (StorageError, 503, "unavailable"),
    (MirrorError, 423, "drifted"),
    (ConfigurationError, 400, "invalid"),
)

_CODES: Final[Mapping[int, str]] = {
    400: "invalid",
    401: "token",
    403: "scope",
    404: "unknown-route",
    405: "unknown-route",
    413: "too-large",
    421: "unknown-host",
}
"""Codes of the errors that are not of a table."""

Parameters = Mapping[str, str]
Work = Callable[["Call"], object]


class Call:
    """A request: its lake, its parameters, its body, and the owner of its token."""

    def __init__(self, lake: Lake, parameters: Parameters, body: bytes, token: Token) -> None:
        self.lake = lake
        self.parameters = parameters
        self.body = body
        self.owner = token.owner

    @property
    def location(self) -> str:
        """The normalised location of the parameter; TableNotFoundError where no table can lie."""
        try:
            return table_location(self.parameters["location"])
        except ConfigurationError as error:
            raise TableNotFoundError(
                "No table of this lake lies at this location", why=str(error)
            ) from error

    @property
    def version(self) -> int:
        """The number of the parameter."""
        text = self.parameters["version"]
        if not (text.isascii() and text.isdecimal()) or int(text) > LARGEST_VERSION:
            raise RefusedError(400, f"version={text[:40]!r} is no version of a table")
        return int(text)


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """A route for engines: its method, the scope that its tokens need, its parameters, its work."""

    path: str
    work: Work
    answers_with: type
    description: str
    scope: Scope = Scope.READ
    method: str = "POST"
    parameters: tuple[str, ...] = ()
    largest_body: int = 0


def delta_routes(service: Service) -> list[Route]:
    """Every route of this module."""
    return [Route(one.path, _endpoint(service, one), methods=[one.method]) for one in ROUTES]


def _endpoint(service: Service, route: EngineRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        # Before the body is read: it may be large.
        sent = bearer(request.headers.get("Authorization", ""))
        token = service.access.check(sent, route.scope)
        body = await service.body(request, route.largest_body)
        parameters = _parameters(request, route.parameters)
        call = Call(service.catalog.lake, parameters, body, token)
        return await service.work(lambda _: _answered(route.work, call), request)

    return endpoint


def _parameters(request: Request, names: tuple[str, ...]) -> Parameters:
    sent = request.query_params.multi_items()
    if sorted(name for name, _ in sent) != sorted(names):
        expected = ", ".join(names) or "none"
        raise RefusedError(
            400,
            "The parameters of the request are not those of its route",
            fix=f"Send each of these once: {expected}",
        )
    if any("\0" in value or not value for _, value in sent):
        raise RefusedError(400, "A parameter is empty, or has a null character in it")
    return dict(sent)


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """An error for an engine: `code` says what it may do, and `rule` which rule was broken."""

    error: str
    what: str
    why: str
    fix: str
    code: str
    rule: str | None


def engine_failure(error: DeltaLakeDbError, status: int, code: str | None = None) -> EngineFailure:
    """An error as an engine gets it; without `code` that of its status."""
    rule = error.rule if isinstance(error, CommitRejectedError) else None
    what, why, fix = (as_commands(str(text)) for text in (error.what, error.why, error.fix))
    return EngineFailure(
        as_commands(str(error)), what, why, fix, code or _CODES.get(status, "failed"), rule
    )


def _answered(work: Work, call: Call) -> Response:
    try:
        return _json(work(call))
    except RefusedError:
        raise
    except DeltaLakeDbError as error:
        for kind, status, code in ANSWERS:
            if isinstance(error, kind):
                return _json(engine_failure(error, status, code), status)
        raise


def _json(value: Any, status: int = 200) -> Response:
    # ASCII only, since names may hold what UTF-8 cannot.
    return Response(json.dumps(to_json(value)), status, media_type="application/json")


# --- commits ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """A commit that is a version of its table, and is published."""

    table: str
    version: int
    outcome: Literal["committed", "repeated"]


def _commit(call: Call) -> Decided:
    done = call.lake.ratify(call.location, call.version, call.body, committer=call.owner)
    outcome: Literal["committed", "repeated"] = "repeated" if done.repeated else "committed"
    return Decided(done.table.name, done.version, outcome)


@dataclass(frozen=True, slots=True)
class PublishedLog:
    """A table, and the newest version, up to which its log is complete."""

    table: str
    version: int


def _publish(call: Call) -> PublishedLog:
    table, version = call.lake.proposals.publish(call.location)
    return PublishedLog(table.name, version)


# --- names --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Config:
    """The location below which new tables lie, null without one."""

    warehouse: str | None


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table of the lake."""

    name: str
    location: str
    table_id: str


@dataclass(frozen=True, slots=True)
class NamedTables:
    """Every table of the lake, by name."""

    tables: list[NamedTable]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A table that is no longer in the catalog; its files are where they were."""

    table: str


def _config(call: Call) -> Config:
    return Config(call.lake.warehouse)


def _tables(call: Call) -> NamedTables:
    store = call.lake.store
    with store.read() as session:
        return NamedTables([_named(table) for table in store.tables(session)])


def _table(call: Call) -> NamedTable:
    return _named(_find(call))


def _find(call: Call) -> TableRecord:
    """The table that Spark calls by the name of the parameter."""
    name, store = call.parameters["name"], call.lake.store
    with store.read() as session:
        table = find_table_by_spark_name(store, session, name)
    if table is None:
        raise TableNotFoundError(
            f"This lake has no table {name!r}", fix=f"See {Fix('lake.tables')}"
        )
    return table


def _set_name(call: Call) -> NamedTable:
    """Name a new table as the engine does, which knows more than its location."""
    name, location = call.parameters["name"], call.location
    check_name(name)
    store = call.lake.store
    with store.write() as session:
        table = store.table_by_location(session, location)
        if table is None:
            raise TableNotFoundError(f"No table of this lake lies at {location}")
        other = store.table_by_name(session, name)
        if other is not None and other.table_id != table.table_id:
            raise table_exists(name, location, other.name, other.location)
        session.changed(
            "rename_table", table_id=table.table_id, name=name, updated_at=store.clock.now_ms()
        )
    return replace(_named(table), name=name)


def _rename(call: Call) -> NamedTable:
    table = call.lake.table(_find(call).name)
    table.rename(call.parameters["to"])
    return NamedTable(table.name, table.location, table.table_id)


def _drop(call: Call) -> Dropped:
    table = _find(call)
    # What the engine has committed is in the log; a change of names, or of our own, may not be.
    call.lake.proposals.publish(table.location)
    call.lake.drop_table(table.name)
    return Dropped(table.name)


def _named(table: TableRecord) -> NamedTable:
    return NamedTable(table.name, table.location, table.table_id)


ROUTES: Final = (
    EngineRoute(
        f"{PREFIX}/commits",
        _commit,
        Decided,
        "Make the body, the lines of a commit file, a version of the table at a location. "
        "404: the table is not of this lake. 409: another commit is that version, and is in the "
        "log. 503: repeat the request, which may have been decided.",
        Scope.WRITE,
        parameters=("location", "version"),
        largest_body=LARGEST_COMMIT,
    ),
    EngineRoute(
        f"{PREFIX}/published",
        _publish,
        PublishedLog,
        "Publish all that is committed to the table at a location; for listings of its log.",
        parameters=("location",),
    ),
    EngineRoute(f"{PREFIX}/config", _config, Config, "The warehouse of the lake.", method="GET"),
    EngineRoute(f"{PREFIX}/tables", _tables, NamedTables, "Every table.", method="GET"),
    EngineRoute(
        f"{PREFIX}/table",
        _table,
        NamedTable,
        "The table that Spark calls by a name.",
        method="GET",
        parameters=("name",),
    ),
    EngineRoute(
        f"{PREFIX}/names",
        _set_name,
        NamedTable,
        "Name the table at a location as the engine that created it does.",
        Scope.WRITE,
        parameters=("location", "name"),
    ),
    EngineRoute(
        f"{PREFIX}/rename",
        _rename,
        NamedTable,
        "Rename a table.",
        Scope.ADMINISTER,
        parameters=("name", "to"),
    ),
    EngineRoute(
        f"{PREFIX}/drop",
        _drop,
        Dropped,
        "Remove a table from the catalog; its files stay.",
        Scope.ADMINISTER,
        parameters=("name",),
    ),
)
"""Every route for engines."""
