"""ASGI applications under uvicorn, in a thread of this process.

Guarantees:

- A request (its line, headers and body) arrives within `REQUEST_SECONDS` as a whole, and a response
  is read within `RESPONSE_SECONDS`, however slowly bytes trickle; otherwise the connection ends.
- At most `CONNECTIONS` are open. A request on a further one is refused with 503.
- Responses do not name the release of the server.
- Other uvicorn servers of the process keep their loggers, levels and signal handlers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from deltalakedb.errors import ConfigurationError, MissingDriverError

try:
    import jinja2  # noqa: F401 - of the same extra
    import prometheus_client
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingDriverError(
        "The operations page and the metrics endpoint need a web server, which is not installed",
        fix="Run: pip install 'deltalakedb[web]'",
    ) from error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.server import ServerState

    from deltalakedb.telemetry import Metrics

REQUEST_SECONDS: float = 15.0
RESPONSE_SECONDS: float = 15.0
CONNECTIONS: int = 256
# A large body may take longer: at least so many bytes arrive in a second.
_SLOWEST: Final = 1_000_000
_LONGEST_SECONDS: Final = 300.0
_SHUTDOWN_SECONDS: Final = 1
_BACKLOG: Final = 128
_SERVER: Final = ("Server", "deltalakedb")
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")


class Server:
    """A server in a thread of its own, from `start` to `close`, or for the length of a block.

    Errors name the served application by `name`. `tls` has the files of a certificate and its key.
    """

    def __init__(
        self,
        name: str,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        tls: tuple[str, str] | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"{name} cannot be served at {host}:{port}",
                why=str(error).partition(" (while attempting")[0],
                fix="Choose another port or address, or stop what uses it",
            ) from error
        # asyncio sets it only on sockets whose protocol is named; connections inherit it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = f"[{host}]" if ":" in host else host
        self.address = (
            f"{'http' if tls is None else 'https'}://{address}:{self._socket.getsockname()[1]}"
        )
        try:
            config = self._config(app, tls)
            config.load()
        except (OSError, ssl.SSLError) as error:
            self._socket.close()
            raise ConfigurationError(
                f"{name} cannot be served over TLS: {error}",
                fix="Name the files of a certificate and of its key, as PEM",
            ) from error
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name=name, daemon=True
        )

    @staticmethod
    def _config(app: ASGIApp, tls: tuple[str, str] | None) -> uvicorn.Config:
        return uvicorn.Config(
            _with_deadlines(app),
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            headers=[_SERVER],
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            backlog=_BACKLOG,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )

    def start(self) -> Self:
        """Start to answer."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering and release the port. Further calls do nothing."""
        if self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self if self._thread.is_alive() else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class MetricsEndpoint(Server):
    """Serves the metrics of this process to Prometheus at `/metrics`, for the length of a block.

    On loopback, the default, it answers to addresses and `localhost` only: no page of another site
    can read it by a host name of its own.
    """

    def __init__(self, metrics: Metrics, *, port: int, host: str = "127.0.0.1") -> None:
        def exposition(_: Request) -> Response:
            return PlainTextResponse(
                metrics.exposition(), media_type=prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
            )

        async def unknown_host(_: Request) -> Response:
            return PlainTextResponse("Ask by an address, such as 127.0.0.1\n", 421)

        hosts = Middleware(KnownHosts, names=frozenset({host.lower()}), refusal=unknown_host)
        app = Starlette(
            routes=[Route("/metrics", exposition)], middleware=[hosts] if is_loopback(host) else []
        )
        super().__init__("Metrics", app, host=host, port=port)
        self.address += "/metrics"


# --- deadlines ----------------------------------------------------------------------------


class _Connection(H11Protocol):
    """A connection that ends when its client is too slow.

    uvicorn itself limits only the time between two requests.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        # Queries may hold what people searched for. The logger itself is the process's.
        self.access_log = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn's own limit is for requests: connections that send none would not count.
        if len(self.connections) > 2 * CONNECTIONS:
            transport.abort()
        self.set_deadline(REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.set_deadline(None)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if not self.transport.is_closing():
            self.set_deadline(_SHUTDOWN_SECONDS / 2)

    def set_deadline(self, seconds: float | None) -> None:
        """End the connection after `seconds`, in place of an earlier deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
        )

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP, with the headers of every other response."""
        lines = [
            "HTTP/1.1 400 Bad Request",
            *(f"{name}: {value}" for name, value in (_SERVER, _NO_SNIFFING)),
            "Content-Type: text/plain; charset=utf-8",
            "Connection: close",
        ]
        self.transport.write("\r\n".join([*lines, "", msg]).encode())
        self.transport.close()


def _with_deadlines(app: ASGIApp) -> ASGIApp:
    """Time the arrival of each request and the reading of its response; not the work between."""

    async def timed(scope: Scope, receive: Receive, send: Send) -> None:
        connection: _Connection = scope["state"]["connection"]
        size = _body_size(scope)
        if size == 0:
            connection.set_deadline(None)
        elif size is not None and size > _SLOWEST:
            connection.set_deadline(min(REQUEST_SECONDS + size / _SLOWEST, _LONGEST_SECONDS))

        async def timed_receive() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                connection.set_deadline(None)
            return message

        async def timed_send(message: Message) -> None:
            connection.set_deadline(RESPONSE_SECONDS)
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(*_NO_SNIFFING)
            await send(message)

        await app(scope, timed_receive, timed_send)

    return timed


def _body_size(scope: Scope) -> int | None:
    """The bytes of the body of a request; None where they are not known."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else None


# --- hosts --------------------------------------------------------------------------------


class KnownHosts:
    """Middleware that refuses requests by an unknown host name (DNS rebinding).

    IP addresses and `localhost` are known: no other site can have them as its name.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        names: frozenset[str],
        refusal: Callable[[Request], Awaitable[Response]],
    ) -> None:
        self._app = app
        self._names = names
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not self._is_known(Request(scope)):
            app = await self._refusal(Request(scope))
        await app(scope, receive, send)

    def _is_known(self, request: Request) -> bool:
        sent = request.headers.getlist("Host")
        try:
            host = urlsplit(f"//{sent[0]}").hostname if len(sent) == 1 else None
        except ValueError:
            host = None
        return host is not None and (host in self._names or _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
