"""The server of applications: slow clients are disconnected, and excess requests wait or fail."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import deltalakedb
from deltalakedb import asgi
from deltalakedb.asgi import MetricsEndpoint, Server
from deltalakedb.errors import ConfigurationError, MissingDriverError
from deltalakedb.lake import Lake
from deltalakedb.service import OperationsPage, app
from deltalakedb.service.parameters import small_number
from deltalakedb.store import browse
from deltalakedb.telemetry import Metrics

from support.web_client import Client

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


async def _echo(request: Request) -> Response:
    return PlainTextResponse(await request.body() or b"here")


ECHO = Starlette(routes=[Route("/", _echo, methods=["GET", "POST"])])


@pytest.fixture
def served() -> Iterator[Server]:
    with Server("A test", ECHO, host="127.0.0.1", port=0) as running:
        yield running


def connect(served: Server) -> socket.socket:
    parts = urlsplit(served.address)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)


def get(served: Server) -> str:
    return Client(served.address)("/").text


def trickle(slow: socket.socket) -> None:
    """Send a byte now and then, until the server hangs up: each comes in time."""
    slow.settimeout(0.02)
    for _ in range(500):
        try:
            slow.sendall(b"x")
            if slow.recv(1) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return
    pytest.fail("the connection is still open")


@pytest.mark.parametrize(
    "begin", [b"", b"GET / HTTP/1.1\r\nX-Header: ", HEAD], ids=["line", "headers", "body"]
)
def test_a_request_that_trickles_in_is_hung_up_on(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "REQUEST_SECONDS", 0.3)
    with (
        Server("A test", ECHO, host="127.0.0.1", port=0) as served,
        connect(served) as slow,
    ):
        slow.sendall(begin)
        trickle(slow)
        assert get(served) == "here"


def test_a_second_request_has_to_arrive_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "RESPONSE_SECONDS", 0.3)
    with Server("A test", ECHO, host="127.0.0.1", port=0) as served, connect(served) as slow:
        for _ in range(2):
            slow.sendall(GET + b"\r\n")
            answer = b""
            while not answer.endswith(b"here"):
                answer += slow.recv(1000)
        slow.sendall(b"GET / HTTP/1.1\r\nX-Header: ")
        trickle(slow)


def test_a_body_without_end_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "RESPONSE_SECONDS", 0.3)

    async def ignore(_: Request) -> Response:
        return PlainTextResponse("here")

    ignoring = Starlette(routes=[Route("/", ignore)])
    with Server("A test", ignoring, host="127.0.0.1", port=0) as served, connect(served) as endless:
        endless.sendall(GET + b"Transfer-Encoding: chunked\r\n\r\n")
        chunks = b"400\r\n" + b"x" * 1024 + b"\r\n"

        def send_for_ever() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                endless.sendall(chunks)

        with pytest.raises(OSError, match=r"reset|pipe"):
            send_for_ever()


def test_work_takes_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(asgi, "RESPONSE_SECONDS", 0.2)

    def slow(_: Request) -> Response:
        time.sleep(0.6)
        return PlainTextResponse("done")

    slowly = Starlette(routes=[Route("/", slow)])
    with Server("A test", slowly, host="127.0.0.1", port=0) as served:
        assert get(served) == "done"


def test_a_response_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "RESPONSE_SECONDS", 0.2)

    async def large(_: Request) -> Response:
        return PlainTextResponse(b"x" * 50_000_000)

    much = Starlette(routes=[Route("/", large)])
    with Server("A test", much, host="127.0.0.1", port=0) as served, connect(served) as deaf:
        deaf.sendall(GET + b"\r\n")
        end = time.monotonic() + 60
        while (
            served._server.server_state.connections
            or not served._server.server_state.total_requests
        ):
            assert time.monotonic() < end
            time.sleep(0.01)


CONTENTION = b"GET /api/v1/contention HTTP/1.1\r\nHost: localhost\r\n\r\n"


class _Stuck:
    """A query that takes as long as a test wants."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.release = threading.Event()

    def __call__(self, _: object) -> browse.Contention:
        self.started.release()
        self.release.wait(60)
        return browse.Contention(0, 0, 0)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Stuck]:
    query = _Stuck()
    monkeypatch.setattr(browse, "contention", query)
    yield query
    query.release.set()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with deltalakedb.connect(f"sqlite:///{tmp_path}/lake.db", mirror="worker") as opened:
        yield opened


def test_excess_requests_wait_for_a_worker(
    lake: Lake, stuck: _Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WORKERS", 2)
    with OperationsPage(lake) as page, ExitStack() as connections:
        opened = [connections.enter_context(connect(page)) for _ in range(3)]
        for one in opened:
            one.sendall(CONTENTION)
        assert stuck.started.acquire(timeout=60)
        assert stuck.started.acquire(timeout=60)
        assert not stuck.started.acquire(timeout=0.3)
        # A response that needs no worker does not wait.
        assert Client(page.address)("/style.css").status == 200
        stuck.release.set()
        for one in opened:
            assert b" 200 " in one.makefile("rb").readline()


def test_it_ends_while_a_request_is_worked_on(lake: Lake, stuck: _Stuck) -> None:
    with OperationsPage(lake) as page, connect(page) as waiting:
        waiting.sendall(CONTENTION)
        assert stuck.started.acquire(timeout=60)
        began = time.monotonic()
        page.close()
        assert time.monotonic() - began < 20
    assert not stuck.release.is_set()


def test_connections_are_limited_and_their_places_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "CONNECTIONS", 4)
    with Server("A test", ECHO, host="127.0.0.1", port=0) as served:
        idle = [connect(served) for _ in range(4)]
        with connect(served) as fifth:
            fifth.sendall(GET + b"\r\n")
            answer = fifth.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 503 ")
        # Connections that send nothing count, too.
        idle += [connect(served) for _ in range(8)]
        ended = 0
        for one in idle[4:]:
            one.settimeout(0.3)
            try:
                ended += one.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended += 1
        assert ended == 4
        for one in idle:
            one.close()
        for _ in range(5):
            assert get(served) == "here"


def test_it_ends_while_all_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "CONNECTIONS", 1)
    with Server("A test", ECHO, host="127.0.0.1", port=0) as served:
        first, second = connect(served), connect(served)
        second.sendall(GET + b"\r\n")
    first.close()
    second.close()
    served.close()
    with pytest.raises(OSError, match="refused"):
        connect(served)


def test_bytes_that_are_no_request_get_a_plain_answer(served: Server) -> None:
    with connect(served) as raw:
        raw.sendall(b"<script>alert(1)</script> / nonsense\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert b"nosniff" in answer
    assert b"Server: deltalakedb" in answer
    assert b"script" not in answer


def test_requests_are_not_logged(served: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert get(served) == "here"
    assert [record.name for record in caplog.records if "GET" in record.getMessage()] == []


def test_metrics_tell_nothing_of_python() -> None:
    metrics = Metrics()
    metrics.count("a_total", 3)
    with MetricsEndpoint(metrics, port=0) as served:
        client = Client(served.address)
        answer = client("/metrics?a=b")
        assert (answer.status, answer.text.splitlines()[1:]) == (
            200,
            ["# TYPE deltalakedb_a_total counter", "deltalakedb_a_total 3.0"],
        )
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["Server"] == "deltalakedb"
        for path, method, status in (("/", "GET", 404), ("/metrics", "POST", 405)):
            refused = client(path, method)
            assert (refused.status, refused.headers["X-Content-Type-Options"]) == (
                status,
                "nosniff",
            )
        for host in ("evil.example", "", "a b", "127.0.0.1.evil.example:80"):
            assert client("/metrics", Host=host).status == 421
        for host in ("127.0.0.1:9187", "LOCALHOST", "[::1]:9187"):
            assert client("/metrics", Host=host).status == 200
        with pytest.raises(ConfigurationError, match="Metrics cannot be served at 127"):
            MetricsEndpoint(metrics, port=urlsplit(served.address).port or 0)


def test_numbers_have_all_their_digits() -> None:
    metrics = Metrics()
    metrics.count("versions_total", 1_234_567)
    metrics.count("rows", 7)
    metrics.gauge("bytes", 123_456_789_012_345)
    metrics.gauge("share", 0.1)
    metrics.gauge("backlog", 2, table='a "b"\n\\')
    metrics.observe("latency_ms", 1_234_567.25)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.exposition())
        for sample in family.samples
    }
    assert samples["deltalakedb_versions_total",] == 1_234_567
    assert samples["deltalakedb_rows",] == 7
    assert samples["deltalakedb_bytes",] == 123_456_789_012_345
    assert samples["deltalakedb_share",] == 0.1
    assert samples["deltalakedb_backlog", 'a "b"\n\\'] == 2
    assert samples["deltalakedb_latency_ms_sum",] == 1_234_567.25
    assert samples["deltalakedb_latency_ms_bucket", "+Inf"] == 1


def test_an_address_of_ipv6_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Server("A test", ECHO, host="::1", port=0) as served:
        assert served.address.startswith("http://[::1]:")
        assert get(served) == "here"


@pytest.mark.parametrize("package", ["jinja2", "prometheus_client", "starlette", "uvicorn"])
def test_a_missing_extra_is_named(
    package: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in [one for one in sys.modules if one.startswith("deltalakedb.service")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "deltalakedb.asgi")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDriverError, match=r"pip install 'deltalakedb\[web\]'"):
        lake.serve_metrics(port=0)
    with pytest.raises(MissingDriverError, match=r"pip install 'deltalakedb\[web\]'"):
        __import__("deltalakedb.service")
    if package == "prometheus_client":
        with pytest.raises(MissingDriverError, match=r"pip install 'deltalakedb\[web\]'"):
            Metrics().exposition()


def test_small_numbers_are_small() -> None:
    assert [small_number(text, 500) for text in ("0", "500", "000000500")] == [0, 500, 500]
    for text in (
        "501",
        "0000000500",
        "000000001999999",
        "",
        "-1",
        "+1",
        " 1",
        "1.0",
        "1_0",
        "٣",
        "²",
    ):
        assert small_number(text, 500) is None, text
