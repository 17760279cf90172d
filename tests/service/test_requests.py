"""Who may ask the operations page for what, and what a bad request gets."""

import html
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest

import deltalakedb.service
from deltalakedb.asgi import Server
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake
from deltalakedb.service import OperationsPage, application
from deltalakedb.service.answers import Histogram
from deltalakedb.service.metrics import parse_exposition
from deltalakedb.service.pages import environment
from deltalakedb.service.parameters import make_cursor

from support.lake import SCHEMA, add
from support.web_client import Client, serving

TOKEN = "a token of some length"
BEARER = f"Bearer {TOKEN}"
FORM = "application/x-www-form-urlencoded"
NAME = "sales/ä <x>"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A table with two versions that nobody has published."""
    url = f"sqlite:///{tmp_path}/lake.db"
    with deltalakedb.connect(url, mirror="worker", committer="ann") as lake:
        table = lake.create_table(NAME, location=str(tmp_path / "t"), schema=SCHEMA)
        table.commit([add("a.parquet")])
        yield lake


@pytest.fixture
def client(lake: Lake) -> Iterator[Client]:
    with serving(lake, token=TOKEN) as client:
        yield client


def published(lake: Lake) -> int:
    return 2 - lake.mirror.status()[0].backlog


def test_every_answer_forbids_scripts_frames_and_guessing(client: Client) -> None:
    for path in ("/", "/nothing", "/style.css", "/metrics", "/api/v1/tables", "/api/v1/table"):
        headers = client(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self';")
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        assert "Python" not in headers["Server"]
    head = client("/", method="HEAD")
    assert (head.status, head.text) == (200, "")


BAD = [
    ("/nothing", 404),
    ("/table?name=nothing", 404),
    ("/api/v1/table?name=nothing", 404),
    ("/api/v1/files?name=nothing", 404),
    ("/table", 400),
    ("/table?name=", 400),
    ("/table?name=a&name=b", 400),
    ("/table?name=%00", 400),
    ("/table?name=%ff", 400),
    (f"/table?name={'x' * 5000}", 400),
    ("/tables?limit=0", 400),
    ("/tables?limit=501", 400),
    ("/tables?limit=-1", 400),
    ("/tables?limit=1e3", 400),
    ("/tables?limit=%D9%A1", 400),
    ("/tables?limit=000000001999999", 400),
    ("/tables?limit=0000000050", 400),
    ("/tables?offset=1", 400),
    ("/tables?behind=maybe", 400),
    ("/tables?cursor=nonsense", 400),
    ("/tables?cursor=%E2%82%AC", 400),
    (f"/tables?cursor={make_cursor(7)}", 400),
    (f"/tables?cursor={make_cursor('a', 'b')}", 400),
    (f"/tables?cursor={make_cursor(chr(0))}", 400),
    (f"/tables?cursor={make_cursor(chr(0xD800))}", 400),
    (f"/changes?cursor={make_cursor(-1, str(UUID(int=1)))}", 400),
    (f"/changes?cursor={make_cursor(2**63, str(UUID(int=1)))}", 400),
    (f"/changes?cursor={make_cursor(1, 'no id of a table')}", 400),
    (f"/changes?cursor={make_cursor(1)}", 400),
    ("/changes?name=a", 400),
    ("/changes?since=yesterday", 400),
    (f"/table?name={quote(NAME)}&cursor={make_cursor(True)}", 400),
    (f"/table?name={quote(NAME)}&since=yesterday", 400),
    (f"/api/v1/versions?name={quote(NAME)}&until=%3Cscript%3E", 400),
    ("/retry", 405),
    ("/api/v1/retry", 405),
]


def test_a_bad_request_is_told_in_words(client: Client) -> None:
    for path, status in BAD:
        reply = client(path)
        assert reply.status == status, (path, reply.text)
        assert "Traceback" not in reply.text
        assert "<script" not in reply.text
        if path.startswith("/api/"):
            assert reply.json["what"]
        else:
            assert reply.headers["Content-Type"].startswith("text/html")


def test_nothing_is_changed_without_the_token(client: Client, lake: Lake) -> None:
    path = f"/api/v1/retry?name={quote(NAME)}"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        reply = client(path, "POST", **headers)
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    for token in ("", "wrong", TOKEN + "x", "ä"):
        body = urlencode({"name": NAME, "token": token})
        assert client("/retry", "POST", body, Content_Type=FORM).status == 401
    assert client(path + f"&token={quote(TOKEN)}", "POST").status == 401
    assert published(lake) == 0
    with serving(lake) as closed:
        reply = closed(path, "POST", Authorization=BEARER)
        assert (reply.status, "--token" in reply.json["fix"]) == (403, True)
    assert published(lake) == 0


def test_a_table_is_published_with_the_token(client: Client, lake: Lake) -> None:
    reply = client(f"/api/v1/retry?name={quote(NAME)}", "POST", Authorization=BEARER)
    assert reply.status == 200, reply.text
    assert reply.json["published"] == 2
    assert reply.json["table"]["mirror"]["state"] == "published"
    assert published(lake) == 2
    reply = client("/api/v1/retry?name=nothing", "POST", Authorization=BEARER)
    assert reply.status == 404


def test_a_drift_is_reported_and_taken_up_again_by_the_button(
    client: Client, lake: Lake, tmp_path: Path
) -> None:
    foreign = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b'{"not": "ours"}\n')
    body = urlencode({"name": NAME, "token": TOKEN})
    origin = f"http://{client.host}"
    reply = client("/retry", "POST", body, Content_Type=FORM, Origin=origin)
    assert (reply.status, "Not published" in reply.text) == (200, True)
    assert client("/api/v1/summary").json["tables_drifted"] == 1
    assert "drifted" in client("/mirror").text
    page = client(f"/table?name={quote(NAME)}").text
    assert "Drift report" in page
    assert 'action="/retry"' in page
    foreign.unlink()
    reply = client("/retry", "POST", body, Content_Type=FORM, Origin=origin)
    assert "2 versions were published" in reply.text
    assert "Everything is published" in client("/mirror").text
    assert published(lake) == 2


def test_a_server_without_token_offers_no_button(lake: Lake, client: Client) -> None:
    page = client(f"/table?name={quote(NAME)}").text
    assert ("Publish now" in page, "Read-only" in page) == (True, False)
    assert "has the button" in client("/mirror").text
    with serving(lake) as closed:
        page = html.unescape(closed(f"/table?name={quote(NAME)}").text)
        assert "has the button" not in closed("/mirror").text
        lake.mirror.retry(NAME)
        done = html.unescape(closed(f"/table?name={quote(NAME)}").text)
    assert not any(text in page for text in ("Publish now", 'name="token"', 'action="/retry"'))
    assert "Read-only: start the server with DELTALAKEDB_TOKEN to publish from here, or run" in page
    assert f">deltalakedb mirror retry '{NAME}'</code>" in page
    assert ("Read-only" in done, "Publish now" in done) == (False, False)


def test_advice_on_the_page_names_commands(client: Client, lake: Lake, tmp_path: Path) -> None:
    foreign = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b'{"not": "ours"}\n')
    body = urlencode({"name": NAME, "token": TOKEN})
    answers = [client("/retry", "POST", body, Content_Type=FORM)]
    answers += [client(path) for path in ("/mirror", f"/table?name={quote(NAME)}")]
    for answer in answers:
        page = html.unescape(answer.text)
        assert "lake." not in page
        for command in ("verify", "adopt", "mirror retry"):
            assert f">deltalakedb {command} '{NAME}'</code>" in page
    # The API tells it as it is stored, for programs that have Python at hand.
    error = client("/api/v1/table?" + urlencode({"name": NAME})).json["mirror"]["last_error"]
    assert f"lake.adopt({NAME!r})" in error
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "t").write_text("a file, where a folder should be")
    told = client("/retry", "POST", body, Content_Type=FORM).text
    assert "--storage-option<" in told


def test_other_sites_cannot_use_the_token(client: Client, lake: Lake) -> None:
    path = f"/api/v1/retry?name={quote(NAME)}"
    body = urlencode({"name": NAME, "token": TOKEN})
    foreign = [{"Origin": o} for o in ("http://evil.example", "null", "http://[bad", "")]
    foreign += [{"Sec_Fetch_Site": site} for site in ("cross-site", "same-site")]
    for headers in foreign:
        assert client(path, "POST", Authorization=BEARER, **headers).status == 403
        assert client("/retry", "POST", body, Content_Type=FORM, **headers).status == 403
    assert published(lake) == 0


def test_a_form_must_be_one(client: Client, lake: Lake) -> None:
    body = urlencode({"name": NAME, "token": TOKEN})
    assert client("/retry", "POST", body, Content_Type="text/plain").status == 415
    bad = (f"{body}&name=b", f"token={quote(TOKEN)}", f"{body}&more=1", "%ff=1", "a&" * 10)
    for one in bad:
        assert client("/retry", "POST", one, Content_Type=FORM).status in (400, 401), one
    assert client("/retry", "POST", "x" * 9000, Content_Type=FORM).status == 413
    # The length is looked at as a whole: leading zeros hide nothing. A body without a length is
    # counted.
    large = {
        "Content-Length: 000000009000": b"413",
        "Content-Length: 8193": b"413",
        f"Content-Length: {'9' * 20}": b"413",
        "Content-Length: 00000000000000000000010": b"400",
        "Content-Length: -1": b"400",
        "Content-Length: 1e3": b"400",
        "Content-Length: ٣": b"400",
        "Content-Length: 1\r\nContent-Length: 2": b"400",
        f"Transfer-Encoding: chunked\r\n\r\n2400\r\n{'x' * 9216}\r\n0": b"413",
    }
    for length, status in large.items():
        with socket.create_connection(("127.0.0.1", client.host.rpartition(":")[2])) as raw:
            head = f"POST /api/v1/retry HTTP/1.1\r\nHost: localhost\r\n{length}"
            raw.sendall(f"{head}\r\n\r\n".encode())
            assert raw.makefile("rb").readline().split()[1] == status, length
    for path in ("/tables", "/metrics", "/api/v1/tables"):
        refused = client(path, "POST", "")
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
    assert client("/api/v1/retry").headers["Allow"] == "POST"
    assert client("/nothing", "POST", "").status == 404
    refused = client("/", "DELETE")
    assert (refused.status, refused.headers["X-Content-Type-Options"]) == (405, "nosniff")
    assert refused.headers["Allow"] == "GET, HEAD"
    assert published(lake) == 0


def test_only_our_own_host_names_are_answered(client: Client, lake: Lake) -> None:
    port = client.host.rpartition(":")[2]
    for host in (f"localhost:{port}", f"[::1]:{port}", "10.0.0.7"):
        assert client("/api/v1/summary", Host=host).status == 200
    for host in ("evil.example", f"evil.example:{port}", "", "[", "localhost.evil.example"):
        assert client("/api/v1/summary", Host=host).status == 421
    with serving(lake, names=["lake.example"], token=TOKEN) as proxied:
        assert proxied("/", Host="Lake.example").status == 200
        # A proxy that passes the host on lets the button work; one that does not is told.
        body = urlencode({"name": "nothing", "token": TOKEN})
        form = {"Content_Type": FORM, "Origin": "https://lake.example"}
        assert proxied("/retry", "POST", body, Host="lake.example", **form).status == 404
        assert proxied("/retry", "POST", body, **form).status == 403
    with socket.create_connection(("127.0.0.1", int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 400 " in raw.makefile("rb").readline()
    with socket.create_connection(("127.0.0.1", int(port))) as raw:
        raw.sendall(b"<script>alert(1)</script> / nonsense\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert (b" 400 " in answer, b"<script" in answer) == (True, False)


def test_a_page_that_cannot_be_served_is_told(lake: Lake, client: Client) -> None:
    with pytest.raises(ConfigurationError, match="cannot be served"):
        OperationsPage(lake, port=int(client.host.rpartition(":")[2]))
    with pytest.raises(ConfigurationError, match="shorter than 16"):
        OperationsPage(lake, token="short")
    for source in ("ftp://host/metrics", "file:///etc/passwd", "http://me:pw@host/metrics"):
        with pytest.raises(ConfigurationError, match="no address of metrics") as told:
            OperationsPage(lake, sources=[source])
        assert "pw" not in str(told.value)


def test_a_catalog_that_is_gone_is_no_end(lake: Lake, client: Client, tmp_path: Path) -> None:
    (tmp_path / "lake.db").rename(tmp_path / "away")
    lake.store.close()
    (tmp_path / "lake.db").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    for path in ("/", "/api/v1/summary", "/metrics"):
        assert client(path).status == 503
    (tmp_path / "away").replace(tmp_path / "lake.db")


def test_conflicts_and_latencies_of_other_processes_are_shown(lake: Lake) -> None:
    with lake.serve_metrics(port=0) as other:
        gone = "http://127.0.0.1:1/metrics"
        with serving(lake, sources=[other.address, gone]) as client:
            here, there, away = client("/api/v1/metrics").json["sources"]
            page = client("/metrics-page").text
    assert there["values"]["versions_committed_total"] == 2
    assert there["histograms"]["commit_latency_ms"]["count"] == 2
    assert there["conflicts_per_version"] == here["conflicts_per_version"] == 0
    assert "does not answer" in away["error"]
    assert "commit_latency_ms" in page
    assert gone in page
    assert "serve_metrics" not in page
    with serving(lake) as alone:
        assert "lake.serve_metrics(port=9188)" in alone("/metrics-page").text


def test_a_writer_serves_its_metrics_until_it_is_closed(tmp_path: Path) -> None:
    with deltalakedb.connect(f"sqlite:///{tmp_path}/lake.db", mirror="worker") as writer:
        lake_address = writer.serve_metrics(port=0).address
        first = writer.serve_metrics(port=0)
        with pytest.raises(ConfigurationError, match="cannot be served"):
            writer.serve_metrics(
                port=int(first.address.rpartition(":")[2].removesuffix("/metrics"))
            )
        writer.create_table("t", location=str(tmp_path / "t"), schema=SCHEMA)
        for address in (first.address, lake_address):
            assert address.startswith("http://127.0.0.1:")
            text = Client(address)("/metrics").text
            assert "deltalakedb_versions_committed_total 1" in text
        first.close()
        with pytest.raises(OSError, match="refused"):
            Client(first.address)("/metrics")
        assert Client(lake_address)("/metrics").status == 200
    with pytest.raises(OSError, match="refused"):
        Client(lake_address)("/metrics")


def test_metrics_of_anybody_are_read_with_care() -> None:
    text = (
        "deltalakedb_a 1\nother_b 2\n"
        'deltalakedb_h_bucket{le="1"} 1\ndeltalakedb_h_bucket{le="5"} 9\n'
        'deltalakedb_h_bucket{le="+Inf"} 10\ndeltalakedb_h_sum 20\ndeltalakedb_h_count 10\n'
        'deltalakedb_g{table="<x>"} 3\n'
    )
    text += "deltalakedb_n nan\ndeltalakedb_h_count inf\n"
    text += 'deltalakedb_h_bucket{le="wide"} 7\ndeltalakedb_h_bucket{le="9"} nan\n'
    source = parse_exposition("somebody", text)
    assert source.error is None
    assert source.values == {"a": 1}
    assert source.histograms == {"h": Histogram(10, 2.0, 5, None, None)}
    for bad in (
        "deltalakedb_c nonsense\n",
        "# TYPE x\n",
        "<html>",
        "a{b",
        f"deltalakedb_a {9**999}",
    ):
        source = parse_exposition("somebody", text + bad)
        assert "not in the text format of Prometheus" in (source.error or ""), bad
        assert (source.values, source.histograms) == ({}, {})


def test_templates_escape_every_value() -> None:
    template = environment().from_string(
        '<a href="{{ url }}">{{ text }}{{ empty }}{{ [1, "&"] }}</a>'
    )
    made = template.render(url="\"'><", text="<b>\u202e\x00\ud800", empty=None)
    assert made == (
        '<a href="&#34;&#39;&gt;&lt;">&lt;b&gt;\\u202e\\u0000\\ud800[1, &#39;&amp;&#39;]</a>'
    )
    folder = Path(deltalakedb.service.__file__).parent / "templates"
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert len(texts) > 8
    for name, text in texts.items():
        # Nothing is marked as safe, and every attribute that holds a value is quoted.
        assert "safe" not in text, name
        assert "autoescape" not in text, name
        assert not re.search(r"=\{\{", text), name


def test_an_application_is_served_by_itself(lake: Lake) -> None:
    with Server("A test", application(lake), host="127.0.0.1", port=0) as server:
        client = Client(server.address)
        assert [client(path).status for path in ("/tables", "/tables/")] == [200, 404]


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "DELTALAKEDB_CATALOG": f"sqlite:///{tmp_path}/lake.db"}
    command = [sys.executable, "-m", "deltalakedb", "serve", "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**environment, "DELTALAKEDB_TOKEN": TOKEN},
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().rpartition(" ")[2].strip()
            assert address.startswith("http://127.0.0.1:")
            client = Client(address)
            assert client("/api/v1/summary").json["tables"] == 0
            assert client("/api/v1/retry?name=x", "POST", Authorization=BEARER).status == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
