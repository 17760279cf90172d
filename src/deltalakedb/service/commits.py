"""Routes for engines that let this catalog decide about their commits, such as Delta on Spark.

Guarantees:

- Each request needs a token with the scope of its route.
- A request that is repeated has the effect of one.
- The code of an error says what the engine may do next; see `_ANSWERS`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deltalakedb.errors import (
    CatalogError,
    CommitFileMissingError,
    CommitRejectedError,
    ConfigurationError,
    CorruptCatalogError,
    DeltaLakeDbError,
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
from deltalakedb.service.access import RefusedError, Scope, Token, bearer
from deltalakedb.storage import normalise_location
from deltalakedb.store.table_lookup import table_exists

if TYPE_CHECKING:
    from deltalakedb.lake import Lake
    from deltalakedb.service.app import Service
    from deltalakedb.store import TableRecord

PREFIX: Final = "/api/v1/delta"
LARGEST_COMMIT: int = 512 * 1024 * 1024
LARGEST_VERSION: Final = 2**63 - 1

# The first that fits. A code means: 404 the engine may go on without this catalog, 409 conflict: it
# compares its commit with the one that won, 503: it repeats the request, all others: it gives up.
_ANSWERS: Final[tuple[tuple[type[DeltaLakeDbError], int, str], ...]] = (
    (TableNotFoundError, 404, "unknown-table"),
    (UnexpectedVersionError, 409, "conflict"),
    (TableExistsError, 409, "table-exists"),
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

Parameters = Mapping[str, str]
Work = Callable[["Call"], Any]


class Call:
    """A request: its lake, its parameters, its body, and the owner of its token."""

    def __init__(self, lake: Lake, parameters: Parameters, body: bytes, token: Token) -> None:
        self.lake = lake
        self.parameters = parameters
        self.body = body
        self.owner = token.owner

    @property
    def location(self) -> str:
        """The normalised location of the parameter."""
        return normalise_location(self.parameters["location"])

    @property
    def version(self) -> int:
        """The number of the parameter."""
        text = self.parameters["version"]
        if not (text.isascii() and text.isdecimal()) or int(text) > LARGEST_VERSION:
            raise RefusedError(400, f"version={text[:40]!r} is no version of a table")
        return int(text)


def delta_routes(service: Service) -> list[Route]:
    """Every route of this module."""

    def route(path: str, work: Work, scope: Scope, *parameters: str, method: str = "POST") -> Route:
        return Route(
            f"{PREFIX}/{path}",
            _endpoint(service, work, scope, parameters, largest=_largest(path)),
            methods=[method],
        )

    return [
        route("commits", _commit, Scope.WRITE, "location", "version"),
        route("published", _publish, Scope.READ, "location"),
        route("config", _config, Scope.READ, method="GET"),
        route("tables", _tables, Scope.READ, method="GET"),
        route("table", _table, Scope.READ, "name", method="GET"),
        route("names", _set_name, Scope.WRITE, "location", "name"),
        route("rename", _rename, Scope.ADMINISTER, "name", "to"),
        route("drop", _drop, Scope.ADMINISTER, "name"),
    ]


def _largest(path: str) -> int:
    return LARGEST_COMMIT if path == "commits" else 0


def _endpoint(
    service: Service, work: Work, scope: Scope, names: tuple[str, ...], *, largest: int
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        # Before the body is read: it may be large.
        token = service.access.check(bearer(request.headers.get("Authorization", "")), scope)
        body = await service.body(request, largest)
        parameters = _parameters(request, names)
        call = Call(service.catalog.lake, parameters, body, token)
        return await service.work(lambda _: _answered(work, call), request)

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


def _answered(work: Work, call: Call) -> Response:
    try:
        return _json(work(call))
    except RefusedError:
        raise
    except DeltaLakeDbError as error:
        for kind, status, code in _ANSWERS:
            if isinstance(error, kind):
                return _failure(error, status, code)
        raise


def _failure(error: DeltaLakeDbError, status: int, code: str) -> Response:
    answer = {
        "error": str(error),
        "what": error.what,
        "why": error.why,
        "fix": str(error.fix),
        "code": code,
    }
    if isinstance(error, CommitRejectedError):
        answer["rule"] = error.rule
    return _json(answer, status)


def _json(value: Any, status: int = 200) -> Response:
    # ASCII only, since names may hold what UTF-8 cannot.
    return Response(json.dumps(value), status, media_type="application/json")


# --- commits ------------------------------------------------------------------------------


def _commit(call: Call) -> Any:
    done = call.lake.ratify(call.location, call.version, call.body, committer=call.owner)
    outcome = "repeated" if done.repeated else "committed"
    return {"table": done.table.name, "version": done.version, "outcome": outcome}


def _publish(call: Call) -> Any:
    table, version = call.lake.proposals.publish(call.location)
    return {"table": table.name, "version": version}


# --- names --------------------------------------------------------------------------------


def _config(call: Call) -> Any:
    return {"warehouse": call.lake.warehouse}


def _tables(call: Call) -> Any:
    store = call.lake.store
    with store.read() as session:
        return {"tables": [_described(table) for table in store.tables(session)]}


def _table(call: Call) -> Any:
    return _described(_find(call, call.parameters["name"]))


def _find(call: Call, name: str) -> TableRecord:
    """The table that Spark calls by a name."""
    store = call.lake.store
    with store.read() as session:
        table = store.table_by_name(session, name)
    if table is None:
        raise TableNotFoundError(f"This lake has no table {name!r}")
    return table


def _set_name(call: Call) -> Any:
    """Name a table after what the engine calls it, if no other table has that name."""
    name, location = call.parameters["name"], call.location
    store = call.lake.store
    with store.write() as session:
        table = store.table_by_location(session, location)
        if table is None:
            raise TableNotFoundError(f"No table of this lake lies at {location}")
        other = store.table_by_name(session, name)
        if other is not None and other.table_id != table.table_id:
            raise table_exists(name, location, other.name, other.location)
        if other is None:
            session.changed(
                "rename_table",
                table_id=table.table_id,
                name=name,
                updated_at=store.clock.now_ms(),
            )
    with store.read() as session:
        return _described(store.table_by_location(session, location) or table)


def _rename(call: Call) -> Any:
    table = call.lake.table(_find(call, call.parameters["name"]).name)
    table.rename(call.parameters["to"])
    return _described(_find(call, call.parameters["to"]))


def _drop(call: Call) -> Any:
    table = _find(call, call.parameters["name"])
    try:
        call.lake.drop_table(table.name)
    except TableNotFoundError:
        raise
    except MirrorError as error:
        raise RefusedError(409, error.what, why=error.why, fix=str(error.fix)) from error
    return {"table": table.name}


def _described(table: TableRecord) -> dict[str, str]:
    return {"name": table.name, "location": table.location, "table_id": table.table_id}
