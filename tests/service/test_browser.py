"""The operations page in a real Chromium: what people see, and that hostile names do nothing.

All of it works without JavaScript, so most of it is tried without; where a script could run it is
switched on, to see that none does.
"""

import http.server
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.formatting import moment
from deltalakedb.lake import Lake
from deltalakedb.service import OperationsPage

from support.chromium import MISSING, browser, chromium
from support.lake import SCHEMA, add, remove

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

TOKEN = "a token of some length"
PWN = "window.__pwned=1"
# A name, and how it is shown where that differs.
HOSTILE = {
    f"<script>{PWN}</script>": None,
    f"\"'><img src=x onerror={PWN}>": None,
    f"</title></textarea><svg onload={PWN}>": None,
    f"javascript:{PWN}": None,
    f"&lt;script&gt;{PWN}&lt;/script&gt;": None,
    f'" autofocus onfocus="{PWN}': None,
    "../../etc/passwd?name=a&name=b#c%00": None,
    "invoice\u202egpj.exe": "invoice\\u202egpj.exe",
    "\u2066right\u2069 \x1b[31m": "\\u2066right\\u2069 \\u001b[31m",
    "漢字 ñ 🦆 " + "long" * 400: None,
}
# Whatever a script of a page would leave behind, and whatever the policy had to stop.
WATCH = """
window.__violations = [];
document.addEventListener('securitypolicyviolation', (e) => window.__violations.push(e.blockedURI));
"""
SUSPECT = """() => ({
  pwned: window.__pwned ?? null,
  violations: window.__violations,
  scripts: document.querySelectorAll('script, img, iframe, object, embed, base').length,
  handlers: [...document.querySelectorAll('*')].filter(
    (one) => [...one.attributes].some((a) => /^on|^style$/i.test(a.name))).length,
  links: [...document.querySelectorAll('a, link, form')].map(
    (one) => one.href || one.action).filter((to) => !to.startsWith(location.origin + '/')),
})"""
CLEAN: dict[str, object] = {
    "pwned": None,
    "violations": [],
    "scripts": 0,
    "handlers": 0,
    "links": [],
}


class Served(NamedTuple):
    """A lake, and where its page is."""

    lake: Lake
    address: str
    times: list[int]

    def url(self, path: str, **query: str) -> str:
        return f"{self.address}{path}?{urlencode(query)}" if query else self.address + path


@pytest.fixture(scope="module")
def chrome() -> Iterator["Browser"]:
    program = chromium()
    if program is None:
        pytest.skip(MISSING)
    with browser(program, "--host-resolver-rules=MAP evil.example 127.0.0.1") as started:
        yield started


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Hostile tables, one with a history, and one whose log somebody else has written into."""
    folder = tmp_path_factory.mktemp("page")
    clock = ManualClock()
    url = f"sqlite:///{folder}/lake.db"
    with deltalakedb.connect(url, clock=clock, mirror="worker", committer="ann") as lake:
        for number, name in enumerate(HOSTILE):
            printable = name if name.isprintable() else f"h{number}"
            lake.create_table(printable, location=str(folder / f"h{number}"), schema=SCHEMA)
            if name != printable:  # we take no such name, but who else writes into the catalog?
                rename = "UPDATE dl_tables SET name = :name WHERE name = :old"
                with lake.store.dialect.write() as session:
                    session.execute(rename, {"name": name, "old": printable})
            clock.advance(1000)
        orders = lake.create_table("orders", location=str(folder / "orders"), schema=SCHEMA)
        for number in range(60):
            clock.advance(60_000)
            orders.commit(
                [add(f"<b onclick={PWN}>{number}.parquet", size=4 ** (number % 12) * 300)]
            )
        clock.advance(60_000)
        path = f"<b onclick={PWN}>0.parquet"
        parameters = {"predicate": f"</pre><script>{PWN}</script>"}
        orders.commit([remove(path)], operation=f"<i>{PWN}</i>", operation_parameters=parameters)
        with deltalakedb.connect(url, clock=clock, mirror="worker", committer="<b>bob") as other:
            clock.advance(60_000)
            other.table("orders").commit([add("bob.parquet")], operation="MERGE")
        times = [one.committed_at for one in orders.history(limit=1000)][::-1]
        with OperationsPage(lake, token=TOKEN) as page:
            yield Served(lake, page.address, times)


@contextmanager
def watched(chrome: "Browser", *, scripts: bool) -> Iterator["Page"]:
    """A page of a fresh profile. At the end nothing may have been said on its console."""
    context = chrome.new_context(java_script_enabled=scripts)
    said: list[str] = []

    def close(dialog: "Dialog") -> None:
        said.append(dialog.message)
        dialog.dismiss()

    context.on("console", lambda message: said.append(message.text))
    context.on("weberror", lambda error: said.append(str(error.error)))
    context.on("dialog", close)
    try:
        if scripts:
            context.add_init_script(WATCH)
        page = context.new_page()
        page.set_default_timeout(20_000)
        yield page
        # Chromium itself tells of a page that came with an error status.
        assert [text for text in said if not text.startswith("Failed to load resource")] == []
    finally:
        context.close()


@pytest.fixture
def page(chrome: "Browser") -> Iterator["Page"]:
    """A page in a browser that runs scripts."""
    with watched(chrome, scripts=True) as page:
        yield page


@pytest.fixture
def plain_page(chrome: "Browser") -> Iterator["Page"]:
    """A page in a browser that runs none."""
    with watched(chrome, scripts=False) as page:
        yield page


def cells(page: "Page", column: int) -> list[str]:
    """The texts of a column of the last table of a page."""
    return page.locator("table").last.locator(f"tbody tr td:nth-child({column})").all_inner_texts()


def backlog(served: Served, name: str) -> int:
    return next(one.backlog for one in served.lake.mirror.status() if one.table == name)


# --- hostile names ------------------------------------------------------------------------


def test_hostile_names_are_text_and_nothing_runs(page: "Page", served: Served) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("/", "/tables", "/changes", "/mirror", "/metrics-page"):
        page.goto(served.url(path))
        assert page.evaluate(SUSPECT) == CLEAN, path
    for number, (name, shown) in enumerate(HOSTILE.items()):
        page.goto(served.url("/tables", contains=name[:40]))
        # By the link that people follow, not by an address that we make.
        page.locator("tbody a").first.click()
        assert page.locator("h1").text_content() == (shown or name)
        assert page.evaluate(SUSPECT) == CLEAN, name
        if number % 3:  # its other page is made by the same hand
            continue
        page.get_by_role("link", name="Files", exact=True).click()
        assert page.locator("h1").text_content() == f"Files of {shown or name}"
        assert page.evaluate(SUSPECT) == CLEAN, name
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(served.address).netloc}


def test_names_of_any_length_do_not_widen_a_page(plain_page: "Page", served: Served) -> None:
    long = next(name for name in HOSTILE if len(name) > 1000)
    paths = ["/", "/tables", "/changes", "/mirror", "/metrics-page"]
    urls = [served.url(path) for path in paths]
    urls += [
        served.url(path, name=name) for path in ("/table", "/files") for name in (long, "orders")
    ]
    for width in (1100, 400):
        plain_page.set_viewport_size({"width": width, "height": 700})
        for url in urls:
            plain_page.goto(url)
            assert plain_page.evaluate("document.documentElement.scrollWidth") <= width, url
            heading = plain_page.locator("h1").bounding_box()
            assert heading is not None
            assert heading["height"] < 150, url


def test_hostile_commits_files_and_errors_are_text(page: "Page", served: Served) -> None:
    page.goto(served.url("/table", name="orders", operation=f"<i>{PWN}</i>"))
    page.locator("summary").click()
    assert f"</pre><script>{PWN}</script>" in page.locator("details pre").inner_text()
    assert page.evaluate(SUSPECT) == CLEAN
    page.goto(served.url("/changes", committer="<b>bob"))
    assert cells(page, 4) == ["<b>bob"]
    assert page.evaluate(SUSPECT) == CLEAN
    page.goto(served.url("/files", name="orders"))
    assert cells(page, 1)[:2] == ["bob.parquet", f"<b onclick={PWN}>59.parquet"]
    assert page.evaluate(SUSPECT) == CLEAN
    for bad in ("/table?name=<img onerror=window.__pwned=1>", "/<script>", "/tables?<b>=1"):
        page.goto(served.address + bad)
        assert page.locator("h1").inner_text()[:3] in ("400", "404")
        assert page.evaluate(SUSPECT) == CLEAN


def test_even_a_script_inside_the_page_would_not_run(chrome: "Browser", served: Served) -> None:
    context = chrome.new_context()
    try:
        context.add_init_script(WATCH)
        page = context.new_page()
        page.goto(served.url("/"))
        page.evaluate(
            """() => {
              const made = document.createElement('script');
              made.textContent = 'window.__pwned = 1';
              document.body.append(made);
              document.body.insertAdjacentHTML('beforeend', '<b onclick="window.__pwned=1">x</b>');
              document.body.lastChild.click();
            }"""
        )
        page.wait_for_function("window.__violations.length >= 2")
        assert page.evaluate("window.__pwned ?? null") is None
    finally:
        context.close()


# --- what people do -----------------------------------------------------------------------


def test_plots_and_tables_are_there_without_scripts(plain_page: "Page", served: Served) -> None:
    plain_page.goto(served.url("/table", name="orders"))
    assert plain_page.locator("figure svg polyline").count() == 2
    assert plain_page.locator("figcaption").first.inner_text() == "Commits per 5 minutes"
    commits = [bar.bounding_box() for bar in plain_page.locator("svg rect.bar").all()]
    assert sum(bar is not None and bar["height"] > 1 for bar in commits) == 14
    for figure in plain_page.locator("figure svg").all():
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 300
    plain_page.get_by_role("link", name="Files", exact=True).click()
    bars = [bar.bounding_box() for bar in plain_page.locator("svg rect.bar").all()]
    assert len(bars) == 12
    assert sum(bar is not None and bar["height"] > 1 for bar in bars) == 12
    plain_page.goto(served.url("/"))
    assert plain_page.locator("nav a").all_inner_texts() == [
        *("Overview", "Tables", "Changes", "Mirror", "Metrics")
    ]
    color = plain_page.locator("nav a").first.evaluate("one => getComputedStyle(one).color")
    assert color != "rgb(0, 0, 238)", "the style sheet was not loaded"


def test_changes_are_searched_in_all_tables(plain_page: "Page", served: Served) -> None:
    plain_page.goto(served.url("/changes"))
    assert plain_page.locator("datalist option[value=OPTIMIZE]").count() == 1
    plain_page.get_by_label("Operation").fill("merge")
    plain_page.get_by_label("Operation").press("Enter")
    assert cells(plain_page, 4) == ["<b>bob"]
    plain_page.get_by_label("Operation").fill("WRITE")
    plain_page.get_by_label("Since").fill(moment(served.times[2]) or "")
    plain_page.get_by_label("Until").fill(moment(served.times[4]) or "")
    plain_page.get_by_role("button", name="Search").click()
    assert cells(plain_page, 3) == ["4", "3", "2"]
    plain_page.get_by_label("Committer").fill("nobody")
    plain_page.get_by_role("button", name="Search").click()
    assert "No commit fits." in plain_page.locator("main").inner_text()
    assert plain_page.get_by_label("Committer").input_value() == "nobody"
    plain_page.get_by_label("Until").fill("yesterday")
    plain_page.get_by_role("button", name="Search").click()
    assert plain_page.locator("h1").inner_text().startswith("400: ")


def test_a_history_is_searched_and_paged(plain_page: "Page", served: Served) -> None:
    plain_page.goto(served.url("/table", name="orders"))
    plain_page.get_by_label("Operation").fill("WRITE")
    plain_page.get_by_role("button", name="Search").click()
    first = cells(plain_page, 1)
    plain_page.get_by_role("link", name="Next page").click()
    second = cells(plain_page, 1)
    assert [int(one) for one in first + second] == list(range(60, 0, -1))
    assert plain_page.get_by_role("link", name="Next page").count() == 0
    assert plain_page.get_by_label("Operation").input_value() == "WRITE"


def test_tables_are_found_by_a_part_of_their_name(plain_page: "Page", served: Served) -> None:
    plain_page.goto(served.url("/tables"))
    plain_page.get_by_label("Name contains").fill("ORDER")
    plain_page.get_by_role("button", name="Search").click()
    assert cells(plain_page, 1) == ["orders"]


# --- changing something -------------------------------------------------------------------


def test_the_button_publishes_with_the_token_only(plain_page: "Page", served: Served) -> None:
    name = next(iter(HOSTILE))
    folder = Path(urlsplit(served.lake.table(name).location).path)
    foreign = folder / "_delta_log" / f"{0:020d}.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b'{"<script>": "not ours"}\n')

    def publish(token: str) -> str:
        plain_page.goto(served.url("/table", name=name))
        field = plain_page.get_by_label("Token")
        assert field.get_attribute("type") == "password"
        field.fill(token)
        plain_page.get_by_role("button", name="Publish now").click()
        return plain_page.locator("main").inner_text()

    for wrong in ("", "wrong", TOKEN + "x"):
        assert "The token is missing or wrong" in publish(wrong)
    assert backlog(served, name) == 1
    assert "Not published" in publish(TOKEN)
    plain_page.goto(served.url("/mirror"))
    drifted = plain_page.locator("tbody tr", has_text="drifted")
    assert drifted.locator("td").first.inner_text() == name
    drifted.locator("a").click()
    assert "Drift report" in plain_page.locator("main").inner_text()
    foreign.unlink()
    assert "1 versions were published" in publish(TOKEN)
    assert TOKEN not in plain_page.url
    assert backlog(served, name) == 0
    assert foreign.is_file()


class _Evil(http.server.BaseHTTPRequestHandler):
    """A page of another site that has learnt the token, and sends a form with it."""

    form: bytes = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.form)

    def log_message(self, *_: object) -> None:
        pass


def test_another_site_can_change_and_read_nothing(chrome: "Browser", served: Served) -> None:
    form = (
        f'<iframe name=f></iframe><form method=post action="{served.address}/retry">'
        f'<input name=name value=orders><input name=token value="{TOKEN}">'
        "<button>Win a duck</button></form>"
    )
    handler = type("Evil", (_Evil,), {"form": form.encode()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    waiting = backlog(served, "orders")
    context = chrome.new_context()
    try:
        page = context.new_page()
        # Another port, and another name for the same machine: same-site and cross-site.
        for host in ("127.0.0.1", "evil.example"):
            address = f"http://{host}:{server.server_address[1]}/"
            page.goto(address)
            page.get_by_role("button").click()
            assert "comes from another site" in page.locator("main").inner_text()
            page.goto(address)
            assert page.evaluate(_FETCHES, [served.address, TOKEN]) == ["refused"] * 4
            assert page.evaluate(_FRAMED, served.address) == "nothing"
        # By a name that an attacker lets point here, its own page is not given out either.
        answer = page.goto(f"http://evil.example:{urlsplit(served.address).port}/")
        assert answer is not None
        assert answer.status == 421
    finally:
        context.close()
        server.shutdown()
        server.server_close()
    assert backlog(served, "orders") == waiting


# Reading, changing with a bearer token, changing by a form, and loading it as a script.
_FETCHES = """async ([to, token]) => {
  const body = new URLSearchParams({name: 'orders', token});
  const tries = [
    () => fetch(to + '/api/v1/tables'),
    () => fetch(to + '/api/v1/retry?name=orders',
                {method: 'POST', headers: {Authorization: 'Bearer ' + token}}),
    () => fetch(to + '/retry', {method: 'POST', body}),
    () => new Promise((done, failed) => {
      const made = document.createElement('script');
      made.onload = done; made.onerror = failed; made.src = to + '/api/v1/tables';
      document.body.append(made);
    }),
  ];
  const found = [];
  for (const one of tries) {
    try { await one(); found.push('answered'); } catch { found.push('refused'); }
  }
  // The answer cannot be read, but it is sent: the server itself has to refuse it.
  await fetch(to + '/retry', {method: 'POST', mode: 'no-cors', body}).catch(() => null);
  return found;
}"""
_FRAMED = """async (to) => {
  const frame = document.querySelector('iframe');
  await new Promise((done) => { frame.onload = done; frame.src = to + '/'; });
  try { return frame.contentDocument ? 'same' : 'nothing'; } catch { return 'nothing'; }
}"""


def test_a_page_without_token_says_so_and_has_no_button(plain_page: "Page", served: Served) -> None:
    name = f'" autofocus onfocus="{PWN}'
    with OperationsPage(served.lake) as closed:
        plain_page.goto(f"{closed.address}/table?{urlencode({'name': name})}")
        assert plain_page.get_by_label("Token").count() == 0
        assert plain_page.get_by_role("button", name="Publish now").count() == 0
        note = plain_page.locator(".note").inner_text()
    assert note.startswith("Read-only: ")
    command = note.partition("or run ")[2]
    assert shlex.split(command) == ["deltalakedb", "mirror", "retry", name]
