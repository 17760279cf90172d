"""A proxy in front of an S3 server that lets a share of all requests go wrong, in every known way.

It also watches the order in which commit files appear: it alone talks to the server, so a commit
file is visible when the server has said so, and `violations` has every request that would have made
one visible too early, or would have changed one.
"""

import random
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from support.s3 import S3Server

TIMEOUT_SECONDS = 0.4
"""How long the client waits for an answer."""

_COMMIT = re.compile(r"(?P<table>/[^?]*/_delta_log/)(?P<version>\d{20})\.json")
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})

BEFORE = ("refused", "slow down", "cut off", "too late", "half sent")
"""What goes wrong before the server hears of a request."""
AFTER = ("answer refused", "answer cut off", "answer too late", "answer halved")
"""What goes wrong after the server has done what it was asked."""
READING = ("garbled", "shortened")
"""What an answer with content can hold instead."""
WRITING = ("garbled on its way", "conflict")
"""What a server says of a request with content that did not arrive as it was sent, or came beside
another one."""
KINDS = (*BEFORE, *AFTER, *READING, *WRITING)


class FaultyS3:
    """Passes requests on; `rate` of them meet a fault. Use it as a context manager."""

    def __init__(self, server: S3Server, *, rate: float = 0.1, seed: int = 0) -> None:
        self.rate = rate
        self.always: tuple[str, str] | None = None
        """A kind, and a part of the method and path of requests: those meet it, and no others."""
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.writing = threading.Lock()
        self._server = server
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._there: set[tuple[str, int]] = set()
        self._decks: dict[str, list[str]] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.proxy = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def storage_options(self) -> dict[str, str]:
        """How to reach the server through this proxy."""
        return {
            **self._server.storage_options,
            "endpoint_url": f"http://127.0.0.1:{self._http.server_address[1]}",
            "timeout": f"{TIMEOUT_SECONDS}s",
        }

    @property
    def commits(self) -> int:
        """How many commit files are visible."""
        return len(self._there)

    def connect(self) -> HTTPConnection:
        """A connection to the server itself."""
        return HTTPConnection("127.0.0.1", self._server.port, timeout=60)

    def choose(self, method: str, path: str) -> str | None:
        """What shall go wrong with this request, if anything."""
        with self._lock:
            self.requests += 1
            if self.always is not None:
                kind, about = self.always
                return kind if about in f"{method} {path}" else None
            if self._chance.random() >= self.rate:
                return None
            # Each kind once before any comes again.
            deck = self._decks.setdefault(method, [])
            if not deck:
                more = READING if method == "GET" else WRITING if method == "PUT" else ()
                deck += self._chance.sample([*BEFORE, *AFTER, *more], len(BEFORE + AFTER + more))
            kind = deck.pop()
            self.faults[kind] += 1
            return kind

    # --- the order of commits ---------------------------------------------------------------

    def expect(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Look at a request that goes on to the server."""
        found = _COMMIT.fullmatch(path)
        if found is None or method in ("GET", "HEAD"):
            return
        table, version = found["table"], int(found["version"])
        if method != "PUT" or headers.get("if-none-match") != "*":
            self.violations.append(f"{method} of {path} is not conditional")
        with self._lock:
            if version and (table, version - 1) not in self._there:
                self.violations.append(f"{path} came before the version that is older by one")

    def note(self, method: str, path: str, status: int) -> None:
        """Look at an answer of the server."""
        found = _COMMIT.fullmatch(path)
        if found is not None and method == "PUT" and status == 200:
            with self._lock:
                key = (found["table"], int(found["version"]))
                if key in self._there:
                    self.violations.append(f"{path} was created twice")
                self._there.add(key)


class _Answer:
    """What the server has said."""

    def __init__(self, answer: HTTPResponse) -> None:
        self.status = answer.status
        self.headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in _HOP]
        self.length = answer.getheader("content-length")
        self.body = answer.read()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        proxy: FaultyS3 = self.server.proxy  # type: ignore[attr-defined]
        length = int(self.headers.get("content-length") or 0)
        fault = proxy.choose(self.command, self.path)
        try:
            if fault == "half sent":
                self.rfile.read(length // 2)
                self._cut()
                return
            body = self.rfile.read(length)
            if fault in (*BEFORE, *WRITING) and not self._before(str(fault), body):
                return
            self._after(fault, self._ask(proxy, body))
        except (OSError, HTTPException):
            # The client has gone, or does not like what it got.
            self._cut()

    def _before(self, fault: str, body: bytes) -> bool:
        """Let a request fail before the server hears of it; whether it may go on all the same."""
        if fault == "refused":
            self._refuse(500, "InternalError")
        elif fault == "slow down":
            self._refuse(503, "SlowDown")
        elif fault == "garbled on its way" and body:
            self._refuse(400, "XAmzContentSHA256Mismatch")
        elif fault == "conflict" and self.headers.get("if-none-match"):
            self._refuse(409, "ConditionalRequestConflict")
        elif fault in WRITING:
            return True
        else:
            if fault == "too late":
                time.sleep(TIMEOUT_SECONDS * 1.5)
            self._cut()
        return False

    def _ask(self, proxy: FaultyS3, body: bytes) -> _Answer:
        headers = {k.lower(): v for k, v in self.headers.items() if k.lower() != "connection"}
        proxy.expect(self.command, self.path, headers)
        # The server looks and writes in two steps; a real one does it at once.
        with proxy.writing if self.command == "PUT" else nullcontext():
            connection = proxy.connect()
            try:
                connection.request(self.command, self.path, body, headers)
                answer = _Answer(connection.getresponse())
            finally:
                connection.close()
            proxy.note(self.command, self.path, answer.status)
        return answer

    def _after(self, fault: str | None, answer: _Answer) -> None:
        """Give an answer, or something else."""
        if fault == "answer refused":
            self._refuse(500, "InternalError")
            return
        if fault in ("answer cut off", "answer too late"):
            if fault == "answer too late":
                time.sleep(TIMEOUT_SECONDS * 1.5)
            self._cut()
            return
        body = answer.body
        if fault == "garbled" and answer.status == 200 and body:
            # Nothing garbles two answers in the same way.
            at = secrets.randbelow(len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        elif fault == "shortened" and answer.status == 200:
            body = body[: len(body) // 2]
        self.send_response(answer.status)
        for key, value in answer.headers:
            self.send_header(key, value)
        length = str(len(body)) if self.command != "HEAD" else answer.length or "0"
        self.send_header("Content-Length", length)
        self.end_headers()
        if fault == "answer halved":
            self.wfile.write(body[: len(body) // 2])
            self._cut()
            return
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>x</Message></Error>"
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    def _cut(self) -> None:
        self.close_connection = True
