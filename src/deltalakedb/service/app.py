"""The ASGI application: its routes, its access checks, its errors.

Guarantees:

- `routes` is the one list that answers requests; the OpenAPI document has the same resources.
- A route that changes the catalog takes POST only, needs the token (compared in constant time) and
  refuses requests from other sites.
- A request by an unknown host name is refused, so that no other site can make a browser ask here by
  a name of its own (DNS rebinding).
- A body has at most `LARGEST_BODY` bytes, and `WORKERS` requests are worked on at a time.
- An error is a page or JSON with what, why and fix, never a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from anyio import CapacityLimiter, to_thread
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from deltalakedb.advice import as_commands
from deltalakedb.asgi import KnownHosts, Server
from deltalakedb.errors import (
    CatalogError,
    CatalogPermissionError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidConditionError,
    TableNotFoundError,
)
from deltalakedb.service import pages, resources
from deltalakedb.service.access import Access, RefusedError, Scope, Token, bearer
from deltalakedb.service.answers import Failure, to_json
from deltalakedb.service.commits import PREFIX, delta_routes, engine_failure
from deltalakedb.service.metrics import check_sources
from deltalakedb.service.openapi import openapi
from deltalakedb.service.pages import PAGES, Page
from deltalakedb.service.parameters import parse
from deltalakedb.service.resources import RESOURCES, Catalog, Resource

if TYPE_CHECKING:
    from deltalakedb.lake import Lake

FORM: Final = "application/x-www-form-urlencoded"
LARGEST_BODY: Final = 8_192
WORKERS: int = 32
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Other sites get none; with "no-referrer" a browser sends our own forms with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Work = Callable[[Request], Response]
Endpoint = Callable[[Request], Awaitable[Response]]


def application(
    lake: Lake,
    *,
    token: str | None = None,
    tokens: Sequence[Token] = (),
    sources: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Starlette:
    """The application over a lake, for any ASGI server.

    `token` may do everything, and each of `tokens` what its scope allows; without any the
    application changes nothing. `sources` are URLs of metrics of other processes. `names` are host
    names that it answers to, beside localhost and addresses.
    """
    access = Access([*([] if token is None else [Token(token)]), *tokens])
    service = Service(Catalog(lake, check_sources(sources), changeable=access.is_open), access)
    known = frozenset({"localhost", *(name.lower() for name in names)})
    app = Starlette(
        routes=routes(service),
        middleware=[Middleware(KnownHosts, names=known, refusal=_unknown_host)],
        exception_handlers={
            HTTPException: _refused,
            DeltaLakeDbError: _failed,
            ClientDisconnect: _disconnected,
            # uvicorn logs it after the response.
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    return app


class OperationsPage(Server):
    """The application, served for the length of a block. It binds to loopback by default.

    The options are those of `application`, and the certificate and key files of TLS.
    """

    def __init__(
        self,
        lake: Lake,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str | None = None,
        tokens: Sequence[Token] = (),
        sources: Sequence[str] = (),
        names: Sequence[str] = (),
        tls: tuple[str, str] | None = None,
    ) -> None:
        app = application(lake, token=token, tokens=tokens, sources=sources, names=(host, *names))
        super().__init__("The operations page", app, host=host, port=port, tls=tls)


# --- routes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes share."""

    catalog: Catalog
    access: Access
    workers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(WORKERS))

    async def body(self, request: Request, largest: int) -> bytes:
        """The body of a request, which has at most so many bytes."""
        return await _body(request, largest)

    async def work(self, work: Work, request: Request) -> Response:
        """Run blocking work in a thread; a server that shuts down does not wait for it."""
        return await to_thread.run_sync(work, request, abandon_on_cancel=True, limiter=self.workers)


def routes(service: Service) -> list[Route]:
    """Every route: pages, resources of the API, the form, metrics, the style sheet."""
    return [
        *(Route(page.path, _shows(service, _page(service, page))) for page in PAGES),
        *(_resource(service, resource) for resource in RESOURCES.values()),
        *delta_routes(service),
        Route("/retry", _retry_form(service), methods=["POST"]),
        Route("/metrics", _shows(service, _metrics(service))),
        Route("/style.css", _style),
        Route("/api/v1/openapi.json", _openapi),
    ]


def _shows(service: Service, work: Work) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await service.work(work, request)

    return endpoint


def _page(service: Service, page: Page) -> Work:
    return lambda request: _html(page.render(service.catalog, _query(request)))


def _resource(service: Service, resource: Resource) -> Route:
    def work(request: Request) -> Response:
        asked = parse(_query(request), resource.parameters)
        return _json(resource.answer(service.catalog, asked))

    async def change(request: Request) -> Response:
        await _body(request)
        _check_origin(request)
        service.access.check(bearer(request.headers.get("Authorization", "")), Scope.ADMINISTER)
        return await service.work(work, request)

    if resource.changes:
        return Route(resource.path, change, methods=["POST"])
    return Route(resource.path, _shows(service, work))


def _retry_form(service: Service) -> Endpoint:
    """The button of the page, whose token is a field of its form."""

    async def endpoint(request: Request) -> Response:
        body = await _body(request)
        _check_origin(request)
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != FORM:
            raise RefusedError(415, "This is no form", fix=f"Send it as {FORM}")
        fields = _fields(body)
        service.access.check(fields.pop("token", ""), Scope.ADMINISTER)
        if set(fields) != {"name"} or not fields["name"] or "\0" in fields["name"]:
            raise RefusedError(400, "The form must have a name and a token")
        return await service.work(
            lambda _: _html(pages.retried(resources.retry(service.catalog, fields))), request
        )

    return endpoint


def _metrics(service: Service) -> Work:
    def work(_: Request) -> Response:
        resources.summary(service.catalog, {})
        return _response(service.catalog.lake.metrics.exposition(), CONTENT_TYPE_PLAIN_0_0_4)

    return work


async def _style(_: Request) -> Response:
    return _response(pages.STYLE, "text/css")


async def _openapi(_: Request) -> Response:
    return _json(openapi(_release()))


def _release() -> str:
    try:
        return version("deltalakedb")
    except PackageNotFoundError:
        return "0"


# --- requests -----------------------------------------------------------------------------


def _check_origin(request: Request) -> None:
    """Refuse a request that a page of another site makes a browser send."""
    host = request.headers.get("Host", "").lower()
    same = {f"http://{host}", f"https://{host}"}
    origins = {origin.lower() for origin in request.headers.getlist("Origin")}
    sites = set(request.headers.getlist("Sec-Fetch-Site"))
    if not origins <= same or not sites <= {"none", "same-origin"}:
        raise RefusedError(
            403, "The request comes from another site", fix="Use this server's own page"
        )


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


async def _body(request: Request, largest: int = LARGEST_BODY) -> bytes:
    length = request.headers.get("Content-Length", "0")
    if not length.isdecimal() or int(length) > largest:
        raise _too_large(largest)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > largest:
            raise _too_large(largest)
    return b"".join(parts)


def _too_large(largest: int) -> RefusedError:
    return RefusedError(
        413,
        "The request is too large",
        why=f"A body has at most {largest:,} bytes",
        headers={"Connection": "close"},
    )


def _fields(body: bytes) -> dict[str, str]:
    try:
        values = parse_qs(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=4
        )
    except ValueError:
        raise RefusedError(400, "The form cannot be parsed") from None
    if any(len(all_values) > 1 for all_values in values.values()):
        raise RefusedError(400, "A field of the form occurs twice")
    return {name: value for name, (value,) in values.items()}


# --- responses ----------------------------------------------------------------------------


def _response(
    text: str, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = text.encode("utf-8", "replace")
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type=kind)


def _html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return _response(text, "text/html", status, headers)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII only, since names may hold what UTF-8 cannot; and no tags, for a client that sniffs.
    text = json.dumps(to_json(value), default=str).replace("<", "\\u003c").replace(">", "\\u003e")
    return _response(text, "application/json", status, headers)


async def _failed(request: Request, error: Exception) -> Response:
    """The response to an error: JSON below /api/, a page elsewhere."""
    status = _status(error)
    if not isinstance(error, DeltaLakeDbError):
        error = DeltaLakeDbError("Something went wrong here", fix="See the log of this server")
    headers = error.headers if isinstance(error, RefusedError) else None
    if request.url.path.startswith(f"{PREFIX}/"):
        return _json(engine_failure(error, status), status, headers)
    if request.url.path.startswith("/api/"):
        texts = map(as_commands, (str(error), error.what, error.why, error.fix))
        return _json(Failure(*texts), status, headers)
    return _html(pages.failed(status, error), status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    """The response where no route fits a path or a method."""
    allowed = getattr(error, "headers", None) or {}
    if "Allow" in allowed:
        methods = ", ".join(sorted(allowed["Allow"].split(", ")))
        refusal = RefusedError(
            405,
            f"This address does not take {request.method[:20]}",
            fix=f"Use {methods}",
            headers={"Allow": methods},
        )
    else:
        refusal = RefusedError(404, "There is no such page", fix="See / or /api/v1/openapi.json")
    return await _failed(request, refusal)


def _unknown_host(request: Request) -> Awaitable[Response]:
    refusal = RefusedError(
        421,
        "This server does not answer by that host name",
        why=f"Host: {request.headers.get('Host', '')[:200]}",
        fix="Ask it by its address, or name it with --allow-host",
    )
    return _failed(request, refusal)


async def _disconnected(*_: object) -> Response:
    return Response(status_code=400)  # the client is gone


def _status(error: Exception) -> int:
    if isinstance(error, RefusedError):
        return error.status
    if isinstance(error, TableNotFoundError):
        return 404
    if isinstance(error, CatalogPermissionError):
        return 403
    if isinstance(error, (ConfigurationError, InvalidConditionError)):
        return 400
    return 503 if isinstance(error, CatalogError) else 500
