"""Small HTTP servers: who is slow is hung up on, and who is one too many waits."""

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from deltalakedb import serving
from deltalakedb.errors import ConfigurationError
from deltalakedb.mirror.endpoint import MetricsEndpoint
from deltalakedb.serving import Handler, Served, small_number
from deltalakedb.telemetry import Metrics

from support.web_client import Client

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


class _Echo(Handler):
    def do_GET(self) -> None:  # noqa: N802
        self.answer(200, "text/plain", b"here")

    def do_POST(self) -> None:  # noqa: N802
        self.answer(200, "text/plain", self.rfile.read(1000))


@pytest.fixture
def served() -> Iterator[Served]:
    with Served("A test", _Echo, host="127.0.0.1", port=0) as running:
        yield running


def connect(served: Served) -> socket.socket:
    parts = urlsplit(served.address)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)


def get(served: Served) -> str:
    return Client(served.address)("/").text


@pytest.mark.parametrize(
    "begin", [b"", b"GET / HTTP/1.1\r\nX-Header: ", HEAD], ids=["line", "headers", "body"]
)
def test_a_request_that_trickles_in_is_hung_up_on(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.3)
    with (
        Served("A test", _Echo, host="127.0.0.1", port=0) as served,
        connect(served) as slow,
    ):
        slow.sendall(begin)
        slow.settimeout(0.02)
        for _ in range(500):  # each byte comes in time, the request never does
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection is still open")
        assert get(served) == "here"


def test_an_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ANSWER_SECONDS", 0.2)
    ended = threading.Event()

    class Large(_Echo):
        def do_GET(self) -> None:  # noqa: N802
            try:
                self.answer(200, "text/plain", b"x" * 50_000_000)
            finally:
                ended.set()

    with Served("A test", Large, host="127.0.0.1", port=0) as served, connect(served) as deaf:
        deaf.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended.wait(60)


def test_who_is_one_too_many_waits_until_a_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 2)
    with Served("A test", _Echo, host="127.0.0.1", port=0) as served:
        idle = [connect(served) for _ in range(2)]
        with connect(served) as third:
            third.sendall(b"GET / HTTP/1.1\r\n\r\n")
            third.settimeout(0.3)
            with pytest.raises(TimeoutError):
                third.recv(1)
            for one in idle:
                one.close()
            third.settimeout(60)
            assert b" 200 " in third.makefile("rb").readline()
        for _ in range(5):  # places are given back, whatever became of a connection
            assert get(served) == "here"


def test_it_ends_while_all_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 1)
    with Served("A test", _Echo, host="127.0.0.1", port=0) as served:
        first, second = connect(served), connect(served)
        second.sendall(b"GET / HTTP/1.1\r\n\r\n")
    first.close()
    second.close()
    served.close()
    with pytest.raises(OSError, match="refused"):
        connect(served)


def test_what_is_no_request_gets_a_plain_answer(served: Served) -> None:
    with connect(served) as raw:
        raw.sendall(b"<script>alert(1)</script> / nonsense\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert b"nosniff" in answer
    assert b"script" not in answer


def test_metrics_tell_nothing_of_python() -> None:
    metrics = Metrics()
    metrics.count("a_total", 3)
    with MetricsEndpoint(metrics, port=0) as served:
        client = Client(served.address)
        answer = client("/metrics?a=b")
        assert (answer.status, answer.text) == (
            200,
            "# TYPE deltalakedb_a_total counter\ndeltalakedb_a_total 3\n",
        )
        assert answer.headers["Server"] == "deltalakedb"
        assert client("/").status == 404
        assert client("/metrics", "POST", "x").status == 501
        for host in ("evil.example", "", "a b", "127.0.0.1.evil.example:80"):
            assert client("/metrics", Host=host).status == 421
        for host in ("127.0.0.1:9187", "LOCALHOST", "[::1]:9187"):
            assert client("/metrics", Host=host).status == 200
        with pytest.raises(ConfigurationError, match="Metrics cannot be served at 127"):
            MetricsEndpoint(metrics, port=urlsplit(served.address).port or 0)


def test_numbers_have_all_their_digits() -> None:
    metrics = Metrics()
    metrics.count("versions_total", 1_234_567)
    metrics.gauge("bytes", 123_456_789_012_345)
    metrics.gauge("share", 0.1)
    metrics.observe("latency_ms", 1_234_567.25)
    text = metrics.exposition()
    assert "deltalakedb_versions_total 1234567\n" in text
    assert "deltalakedb_bytes 123456789012345\n" in text
    assert "deltalakedb_share 0.1\n" in text
    assert "deltalakedb_latency_ms_sum 1234567.25\n" in text


def test_an_address_of_ipv6_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Served("A test", _Echo, host="::1", port=0) as served:
        assert served.address.startswith("http://[::1]:")
        assert get(served) == "here"


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
