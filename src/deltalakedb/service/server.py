"""HTTP: who may ask, what is answered, and what every answer carries.

Guarantees:

- Only GET and HEAD are answered without the token. A POST needs it (compared in constant time), as
  a bearer token or a field of the form, and must not come from another site.
- A request for a host name that is not ours is refused, so that no other site can make a browser
  ask here by a name of its own (DNS rebinding).
- Requests are small, have to come in time, and only so many are served at once (see `serving`);
  errors are told as what, why and fix, never as code.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from deltalakedb.advice import as_commands
from deltalakedb.errors import (
    CatalogError,
    CatalogPermissionError,
    ConfigurationError,
    DeltaLakeDbError,
    InvalidConditionError,
    TableNotFoundError,
)
from deltalakedb.mirror.endpoint import CONTENT_TYPE as METRICS_TYPE
from deltalakedb.service import pages, resources
from deltalakedb.service.answers import Failure, to_json
from deltalakedb.service.metrics import check_sources
from deltalakedb.service.openapi import openapi
from deltalakedb.service.parameters import parse
from deltalakedb.service.resources import RESOURCES, Catalog
from deltalakedb.serving import Handler, Served, host_of, is_address, small_number
from deltalakedb.telemetry import logger

if TYPE_CHECKING:
    from deltalakedb.lake import Lake

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
LARGEST_BODY: Final = 8_192
SHORTEST_TOKEN: Final = 16
_SEE: Final = "See / or /api/v1/openapi.json"
# What is answered beside pages and resources.
_OTHERS: Final = ("/api/v1/openapi.json", "/metrics", "/style.css")
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    # Nothing to others; but with "no-referrer" a browser sends our own forms with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    status: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class _RefusedError(DeltaLakeDbError):
    """A request that is not answered, with its status."""

    def __init__(
        self, status: int, what: str, *, why: str = "", fix: str = "", allow: str | None = None
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.status = status
        self.allow = allow


class OperationsPage(Served):
    """Serves while the block lasts. It binds to loopback unless it is told otherwise.

    Without `token` nothing can be changed. `sources` are URLs of metrics of other processes.
    `names` are host names, beside localhost and addresses, that it may be asked by: a proxy's.
    """

    def __init__(
        self,
        lake: Lake,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str | None = None,
        sources: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> None:
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"The token is shorter than {SHORTEST_TOKEN} characters",
                why="It could be guessed",
                fix="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )
        self._catalog = Catalog(lake, check_sources(sources), changeable=token is not None)
        self._token = token
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        page = self

        class Asked(_Handler):
            operations = page

        super().__init__("The operations page", Asked, host=host, port=port)

    # --- answering ------------------------------------------------------------------------

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a request; never raises."""
        path, _, query = target.partition("?")
        as_json = path.startswith("/api/")
        try:
            self._check_host(headers.get("Host", ""))
            if method == "POST":
                return self._change(path, query, headers, body)
            return self._show(path, query)
        except Exception as error:  # noqa: BLE001 - a request must not end the server
            return _failed(error, as_json=as_json)

    def _show(self, path: str, query: str) -> Answer:
        if path in pages.PAGES:
            show, parameters = pages.PAGES[path]
            return _html(200, show(self._catalog, parse(query, parameters)))
        resource = RESOURCES.get(path)
        if path == "/retry" or (resource is not None and resource.changes):
            raise _RefusedError(405, f"{path} changes something", fix="Use POST", allow="POST")
        if resource is not None:
            return _json(200, resource.answer(self._catalog, parse(query, resource.parameters)))
        if path == "/api/v1/openapi.json":
            return _json(200, openapi(_release()))
        if path == "/metrics":
            resources.summary(self._catalog, {})
            return Answer(200, METRICS_TYPE, self._catalog.lake.metrics.exposition().encode())
        if path == "/style.css":
            return Answer(200, "text/css; charset=utf-8", pages.STYLE.encode())
        raise _RefusedError(404, "There is no such page", fix=_SEE)

    def _change(self, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer:
        resource = RESOURCES.get(path)
        if path != "/retry" and (resource is None or not resource.changes):
            if resource is None and path not in (*pages.PAGES, *_OTHERS):
                raise _RefusedError(404, "There is no such page", fix=_SEE)
            raise _RefusedError(
                405, "Nothing can be changed by this address", fix="Use GET", allow="GET, HEAD"
            )
        _check_origin(headers)
        if resource is not None:
            scheme, _, given = headers.get("Authorization", "").partition(" ")
            self._check_token(given.strip() if scheme.lower() == "bearer" else "")
            return _json(200, resource.answer(self._catalog, parse(query, resource.parameters)))
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != FORM:
            raise _RefusedError(415, "This is no form", fix=f"Send it as {FORM}")
        fields = _fields(body)
        self._check_token(fields.pop("token", ""))
        return _html(200, pages.retried(resources.retry(self._catalog, _named(fields))))

    # --- who asks -------------------------------------------------------------------------

    def _check_host(self, given: str) -> None:
        host = host_of(given)
        if host is None or (host not in self._names and not is_address(host)):
            raise _RefusedError(
                421,
                "This server does not answer by that host name",
                why=f"Host: {given[:200]}",
                fix="Ask it by its address, or name it with --allow-host",
            )

    def _check_token(self, given: str) -> None:
        if self._token is None:
            raise _RefusedError(
                403,
                "This server only shows, and changes nothing",
                why="It was started without a token",
                fix="Start it with --token, or DELTALAKEDB_TOKEN in its environment",
            )
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            raise _RefusedError(
                401, "The token is missing or wrong", fix="Send the one the server was started with"
            )


def _check_origin(headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site makes a browser send."""
    origin = headers.get("Origin")
    site = headers.get("Sec-Fetch-Site", "none")
    host = headers.get("Host", "").lower()
    same = origin is None or origin.lower() in (f"http://{host}", f"https://{host}")
    if not same or site not in ("none", "same-origin"):
        raise _RefusedError(
            403, "The request comes from another site", fix="Use this server's own page"
        )


def _fields(body: bytes) -> dict[str, str]:
    try:
        found = parse_qs(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=4
        )
    except ValueError:
        raise _RefusedError(400, "The form cannot be read") from None
    if any(len(values) > 1 for values in found.values()):
        raise _RefusedError(400, "A field of the form is given twice")
    return {name: values[0] for name, values in found.items()}


def _named(fields: Mapping[str, str]) -> dict[str, Any]:
    if set(fields) != {"name"} or not fields["name"] or "\0" in fields["name"]:
        raise _RefusedError(400, "The form must have a name and a token")
    return dict(fields)


# --- answers ------------------------------------------------------------------------------


def _html(status: int, text: str) -> Answer:
    return Answer(status, HTML, text.encode("utf-8", "replace"))


def _json(status: int, value: Any) -> Answer:
    # ASCII only: names may hold what no UTF-8 can. And whoever takes it for a page finds no tags.
    text = json.dumps(to_json(value), default=str).replace("<", "\\u003c").replace(">", "\\u003e")
    return Answer(status, JSON, text.encode())


def _failed(error: Exception, *, as_json: bool = False) -> Answer:
    status = _status(error)
    if not isinstance(error, DeltaLakeDbError):
        logger.error("operations_page_failed", exc_info=error)
        error = DeltaLakeDbError("Something went wrong here", fix="See the log of this server")
    if as_json:
        told = map(as_commands, (str(error), error.what, error.why, error.fix))
        answer = _json(status, Failure(*told))
    else:
        answer = _html(status, pages.failed(status, error.what, error.why, error.fix))
    if status == 401:
        return replace(answer, headers={"WWW-Authenticate": "Bearer"})
    if isinstance(error, _RefusedError) and error.allow is not None:
        return replace(answer, headers={"Allow": error.allow})
    return answer


def _status(error: Exception) -> int:
    if isinstance(error, _RefusedError):
        return error.status
    if isinstance(error, TableNotFoundError):
        return 404
    if isinstance(error, CatalogPermissionError):
        return 403
    if isinstance(error, (ConfigurationError, InvalidConditionError)):
        return 400
    return 503 if isinstance(error, CatalogError) else 500


def _release() -> str:
    try:
        return version("deltalakedb")
    except PackageNotFoundError:
        return "0"


# --- the wire -----------------------------------------------------------------------------


class _Handler(Handler):
    operations: OperationsPage

    def do_GET(self) -> None:  # noqa: N802 - of the base
        self._send(self.operations.answer("GET", self.path, self._headers(), b""))

    def do_HEAD(self) -> None:  # noqa: N802 - of the base
        self._send(self.operations.answer("GET", self.path, self._headers(), b""), silent=True)

    def do_POST(self) -> None:  # noqa: N802 - of the base
        length = small_number(self.headers.get("Content-Length", "0"), LARGEST_BODY)
        if length is None:
            refused = _RefusedError(
                413, "The request is too large, or does not say how large it is"
            )
            self._send(_failed(refused, as_json=self.path.startswith("/api/")))
            return
        body = self.rfile.read(length)
        self._send(self.operations.answer("POST", self.path, self._headers(), body))

    def _headers(self) -> dict[str, str]:
        # Names in the spelling of this module; of a header that comes twice the last one counts,
        # except for the host, where two would mean two askers.
        found = {name.title(): value for name, value in self.headers.items()}
        if len(self.headers.get_all("Host") or ()) != 1:
            found["Host"] = ""
        return found

    def _send(self, answer: Answer, *, silent: bool = False) -> None:
        self.answer(
            answer.status,
            answer.kind,
            answer.body,
            {**HEADERS, **answer.headers},
            silent=silent,
        )

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - of the base
        """What the base class refuses gets the headers of every other answer."""
        refused = _RefusedError(int(code), "This is no request that is answered here")
        # A line that could not be read has no path.
        asked = getattr(self, "path", "")
        self._send(_failed(refused, as_json=asked.startswith("/api/")))
