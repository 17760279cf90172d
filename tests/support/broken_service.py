"""A service whose answers can be spoiled: what is behind its address is slow, broken or another."""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from deltalakedb.spark.delta.embedded import Service

PREFIX: Final = "/api/v1/delta/"


@dataclass(frozen=True)
class Request:
    """A request as it was sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def route(self) -> str:
        """The last part of its path."""
        return urlsplit(self.target).path.removeprefix(PREFIX)


@dataclass(frozen=True)
class Answer:
    """A status, and the body of an answer of the service."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The connection that a request came by."""

    def __init__(self, connection: socket.socket, ended: threading.Event) -> None:
        self._connection = connection
        self._ended = ended

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._connection.sendall(data)

    def answer(self, status: int, body: bytes | object, **headers: str) -> None:
        """Send a whole answer; what is not bytes as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(head(status, {"Content-Length": str(len(data)), **headers}) + data)

    def stall(self) -> None:
        """Send nothing more, until the client or the test has had enough."""
        while not self._ended.wait(0.05):
            with contextlib.suppress(BlockingIOError):
                if not self._connection.recv(1, socket.MSG_DONTWAIT):
                    return

    def drip(self, data: bytes) -> None:
        """Send the same bytes slowly, without end."""
        while not self._ended.wait(0.05):
            self.send(data)


Fault = Callable[[Wire, Request], None]
Forward = Callable[[Request], Answer]


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer."""
    lines = [f"HTTP/1.1 {status} Anything", "Content-Type: application/json", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


class BrokenService:
    """Passes requests on to a service; those of a route may get a fault instead."""

    def __init__(self, service: Service) -> None:
        self._behind = service
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._faults: dict[str, Fault] = {}
        self.requests: list[Request] = []
        self._start(self._accept)

    @property
    def service(self) -> Service:
        """Its address, and the token of the service behind it."""
        port = self._listener.getsockname()[1]
        return Service(f"http://127.0.0.1:{port}", self._behind.token)

    @contextlib.contextmanager
    def fault(self, route: str, fault: Fault) -> Iterator[None]:
        """Let all requests of a route end with a fault."""
        self.requests.clear()
        self._faults[route] = fault
        try:
            yield
        finally:
            del self._faults[route]

    def forward(self, request: Request) -> Answer:
        """The answer of the service behind it."""
        connection = http.client.HTTPConnection(urlsplit(self._behind.uri).netloc, timeout=60)
        try:
            connection.request(
                request.method,
                request.target,
                request.body,
                {"Authorization": request.headers.get("authorization", "")},
            )
            reply = connection.getresponse()
            return Answer(reply.status, reply.read())
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        # A client that has had enough closes its side at any time.
        with contextlib.suppress(OSError), connection:
            connection.settimeout(60)
            request = _read(connection)
            if request is None:
                return
            self.requests.append(request)
            wire = Wire(connection, self._ended)
            fault = self._faults.get(request.route)
            if fault is not None:
                fault(wire, request)
            else:
                answer = self.forward(request)
                wire.answer(answer.status, answer.body)


def _read(connection: socket.socket) -> Request | None:
    with connection.makefile("rb") as stream:
        first = stream.readline().decode("latin-1").split()
        if len(first) != 3 or not first[2].startswith("HTTP/"):
            return None  # another protocol, such as TLS
        headers: dict[str, str] = {}
        while line := stream.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0")))
        return Request(first[0], first[1], headers, body)
