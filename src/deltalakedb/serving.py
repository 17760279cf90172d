"""Small HTTP servers inside a process: the operations page, and metrics for Prometheus.

Guarantees:

- Nobody holds a thread for long: a request (its line, headers and body) has to arrive within
  `REQUEST_SECONDS` as a whole, however slowly it trickles in, and each part of an answer has to be
  taken within `ANSWER_SECONDS`.
- At most `CONNECTIONS` are served at a time. Further ones wait in the backlog of the socket.
- Answers do not tell which Python serves them.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from deltalakedb.errors import ConfigurationError
from deltalakedb.telemetry import logger

if TYPE_CHECKING:
    from types import TracebackType

    from _typeshed import WriteableBuffer

REQUEST_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 15.0
CONNECTIONS: Final = 64
PLAIN: Final = "text/plain; charset=utf-8"
# How long it may take to notice that it shall end.
_POLL_SECONDS: Final = 0.05


def small_number(text: str, most: int) -> int | None:
    """A decimal number from 0 to `most` in at most nine ASCII digits; None for any other text."""
    if len(text) > 9 or not text.isascii() or not text.isdecimal():
        return None
    number = int(text)
    return number if number <= most else None


def host_of(given: str) -> str | None:
    """The name or address in a header `Host`; None where there is none."""
    try:
        return urlsplit(f"//{given}").hostname
    except ValueError:
        return None


def is_address(host: str | None) -> bool:
    """Whether a host is `localhost` or an IP address, which no other site can be the name of."""
    if host is None:
        return False
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


class Handler(BaseHTTPRequestHandler):
    """One request on one connection, which has to arrive in time."""

    # Answers to what cannot be understood have headers, too: HTTP 0.9 has none.
    default_request_version = "HTTP/1.0"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_InTime(self.connection, REQUEST_SECONDS))

    def answer(
        self,
        status: int,
        kind: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        silent: bool = False,
    ) -> None:
        """Send an answer; a `silent` one without its body."""
        self.connection.settimeout(ANSWER_SECONDS)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not silent:
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - of the base
        """What the base class refuses; its own words would repeat what it was sent."""
        self.answer(int(code), PLAIN, b"This is no request that is answered here\n")

    def version_string(self) -> str:
        """Who answers; not which release, and not which Python."""
        return "deltalakedb"

    def log_message(self, *_: object) -> None:
        """Every request in the log would be noise, and could carry what people searched for."""


class _InTime(io.RawIOBase):
    """What a connection receives until its time is over: then TimeoutError."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("The request did not arrive in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each connection, and no more than `CONNECTIONS` of them."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[Handler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        # An OSError sends the loop around: it looks whether it shall end, and then comes back here.
        if not self._free.acquire(timeout=_POLL_SECONDS):
            raise BlockingIOError("As many connections are open as may be")
        try:
            return super().get_request()
        except BaseException:
            self._free.release()
            raise

    def close_request(self, request: Any) -> None:
        """Called once for each connection that was accepted, whatever became of it."""
        try:
            super().close_request(request)
        finally:
            self._free.release()

    def handle_error(self, *_: object) -> None:
        """Who hangs up is no news."""
        logger.debug("connection_lost", exc_info=True)


class Served:
    """A server in a thread of its own, from `start` to `close`, or while a block lasts."""

    def __init__(self, what: str, handler: type[Handler], *, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"{what} cannot be served at {host}:{port}",
                why=str(error),
                fix="Choose another port or address, or stop what uses it",
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering, and give the port back. More than once does no harm."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self if self._thread.is_alive() else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
