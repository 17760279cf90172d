"""The operations page over real HTTP: what it shows, on every engine."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.readable import moment
from deltalakedb.store import browse
from deltalakedb.web.resources import RESOURCES

from fix_lake import OpenLake, add, new_lake_table, remove
from web_client import Client, serving

HOSTILE = "<script>alert(1)</script>\"'&"
TOKEN = "a token of some length"
PAGES = ["/", "/tables", "/changes", "/table", "/files", "/mirror", "/metrics-page"]


@pytest.fixture
def small_lake(open_lake: OpenLake, clock: ManualClock) -> Lake:
    """Three tables, one of them hostile in all that a user can name."""
    lake = open_lake(committer="ann")
    for name in ("b", "c"):
        new_lake_table(lake, name)
    table = new_lake_table(lake, HOSTILE)
    for number in range(4):
        clock.advance(1000)
        table.commit([add(f"{number}<b>.parquet", size=10**number * 100)])
    clock.advance(1000)
    table.commit(
        [remove("0<b>.parquet")],
        operation="<img src=x>",
        operation_parameters={"predicate": "</pre><script>"},
    )
    return lake


@pytest.fixture
def client(small_lake: Lake) -> Iterator[Client]:
    with serving(small_lake, token=TOKEN) as client:
        yield client


class _Tags(HTMLParser):
    """Every tag and attribute of a page, to see what a browser would."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_pages_show_the_catalog_and_nothing_of_it_becomes_markup(client: Client) -> None:
    for path in PAGES:
        named = f"?name={quote(HOSTILE)}" if path in ("/table", "/files") else ""
        reply = client(path + named)
        assert reply.status == 200, reply.text
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        found = _Tags(reply.text)
        assert not found.tags & {"script", "img", "b", "style", "iframe", "object"}
        assert not any(name.startswith("on") or name == "style" for name in found.attributes)
        if path != "/metrics-page":
            assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;" in reply.text
    assert "svg" in _Tags(client(f"/files?name={quote(HOSTILE)}").text).tags
    assert "&lt;img src=x&gt;" in client(f"/table?name={quote(HOSTILE)}").text


def test_the_catalog_is_told_in_numbers(client: Client) -> None:
    numbers = client.get("/api/v1/summary")
    assert (numbers["tables"], numbers["versions"], numbers["live_files"]) == (3, 8, 3)
    assert (numbers["backlog"], numbers["tables_behind"], numbers["tables_drifted"]) == (8, 3, 0)
    assert numbers["lag_ms"] == 5000
    exposed = client("/metrics")
    assert exposed.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "deltalakedb_catalog_backlog 8" in exposed.text


def test_lists_come_in_pages_that_miss_and_repeat_nothing(client: Client) -> None:
    def walk(path: str, key: str, **query: str | int) -> list[Any]:
        found, cursor = [], ""
        while True:
            page = client.get(path, limit=2, cursor=cursor, **query)
            assert len(page[key]) <= 2
            found += page[key]
            cursor = page["next"]
            if cursor is None:
                return found

    names = [one["name"] for one in walk("/api/v1/tables", "tables")]
    assert sorted(names) == sorted([HOSTILE, "b", "c"])
    assert len(walk("/api/v1/tables", "tables", behind="true")) == 3
    assert [t["name"] for t in walk("/api/v1/tables", "tables", contains="SCRIPT>")] == [HOSTILE]
    assert walk("/api/v1/tables", "tables", contains="%") == []
    changed = walk("/api/v1/changes", "changes")
    assert [(one["name"], one["version"]) for one in changed[:5]] == [
        (HOSTILE, version) for version in (5, 4, 3, 2, 1)
    ]
    # These were committed in the same millisecond.
    assert sorted(one["name"] for one in changed[5:]) == sorted([HOSTILE, "b", "c"])
    history = walk("/api/v1/versions", "versions", name=HOSTILE)
    assert [one["version"] for one in history] == [5, 4, 3, 2, 1, 0]
    assert history[0]["operation_parameters"]["predicate"] == "</pre><script>"
    files = walk("/api/v1/files", "files", name=HOSTILE)
    assert [one["path"] for one in files] == [f"{n}<b>.parquet" for n in (3, 2, 1)]
    reply = client("/tables?limit=2").text
    (following,) = re.findall(r'href="(/tables\?[^"]*)"', reply)
    assert client(following.replace("&amp;", "&")).status == 200


def test_who_changed_what_is_searched(
    client: Client, small_lake: Lake, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(**query: str | int) -> tuple[list[int], str | None]:
        found = client.get("/api/v1/versions", name=HOSTILE, **query)
        return [one["version"] for one in found["versions"]], found["next"]

    assert search(operation="<img src=x>") == ([5], None)
    assert search(operation="WRITE")[0] == [4, 3, 2, 1]
    assert search(committer="ann", operation="CREATE TABLE")[0] == [0]
    assert search(committer="nobody") == ([], None)
    times = [one.committed_at for one in small_lake.table(HOSTILE).history()][::-1]
    as_text = [moment(at) for at in times]
    assert search(since=as_text[2], until=as_text[4]) == ([4, 3, 2], None)
    assert search(until=as_text[0])[0] == [0]
    assert search(until="1999-01-01")[0] == []
    assert search(since="2999-01-01")[0] == []
    # A search looks at so many versions at once, and then says where to go on.
    monkeypatch.setattr(browse, "SEARCHED", 2)
    found, cursor = search(operation="CREATE TABLE")
    assert (found, cursor is not None) == ([], True)
    found, cursor = search(operation="CREATE TABLE", cursor=cursor or "")
    assert search(operation="CREATE TABLE", cursor=cursor or "") == ([0], None)
    page = client(f"/table?{urlencode({'name': HOSTILE, 'operation': 'CREATE TABLE'})}").text
    assert "among those that were looked at" in page


def test_who_changed_what_is_searched_in_all_tables(
    client: Client, small_lake: Lake, open_lake: OpenLake, clock: ManualClock
) -> None:
    clock.advance(1000)
    open_lake(committer="bob").table("b").commit([add("b.parquet")], operation="STREAMING UPDATE")

    def search(**query: str | int) -> list[tuple[str, int]]:
        found = client.get("/api/v1/changes", **query)
        return [(one["name"], one["version"]) for one in found["changes"]]

    assert search(committer="bob") == [("b", 1)]
    assert search(operation="<img src=x>") == [(HOSTILE, 5)]
    assert search(operation="WRITE", committer="bob") == []
    assert len(search(operation="CREATE TABLE")) == 3
    times = [one.committed_at for one in small_lake.table(HOSTILE).history()][::-1]
    found = search(since=moment(times[2]) or "", until=moment(times[4]) or "", committer="ann")
    assert found == [(HOSTILE, 4), (HOSTILE, 3), (HOSTILE, 2)]
    assert search(until="1999-01-01") == search(since="2999-01-01") == []
    page = client(f"/changes?{urlencode({'committer': 'bob'})}").text
    assert ("STREAMING UPDATE" in page, "&lt;img" in page) == (True, False)


def test_a_search_in_all_tables_goes_on_where_it_has_looked_enough(
    client: Client, small_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_lake.drop_table("c", force=True)
    monkeypatch.setattr(browse, "SEARCHED", 2)
    answers = [client.get("/api/v1/changes", operation="CREATE TABLE")]
    while cursor := answers[-1]["next"]:
        answers.append(client.get("/api/v1/changes", operation="CREATE TABLE", cursor=cursor))
    found = [one["name"] for answer in answers for one in answer["changes"]]
    assert (sorted(found), len(answers) >= 4) == (sorted([HOSTILE, "b"]), True)
    assert "among those that were looked at" in client("/changes?operation=CREATE+TABLE").text


def test_growth_and_sizes_are_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    points = client.get("/api/v1/growth", name=HOSTILE)["points"]
    assert [point["live_files"] for point in points] == [0, 1, 2, 3, 4, 3]
    monkeypatch.setattr("deltalakedb.web.resources.POINTS", 2)
    points = client.get("/api/v1/growth", name=HOSTILE)["points"]
    assert [point["version"] for point in points] == [0, 3, 5]
    sizes = client.get("/api/v1/sizes", name=HOSTILE)
    assert (sizes["counted"], sizes["live_files"]) == (3, 3)
    counted = {one["below"]: one["files"] for one in sizes["sizes"] if one["files"]}
    assert counted == {1024: 1, 16384: 1, 262144: 1}
    one = client.get("/api/v1/table", name=HOSTILE)
    assert (one["version"], one["mirror"]["state"], one["mirror"]["backlog"]) == (5, "pending", 6)


def test_every_resource_is_documented_and_there(client: Client) -> None:
    document = client.get("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.")
    assert set(document["paths"]) == set(RESOURCES)
    for path, verbs in document["paths"].items():
        ((verb, told),) = verbs.items()
        query = {one["name"]: HOSTILE for one in told["parameters"] if one["required"]}
        reply = client(f"{path}?{urlencode(query)}")
        assert reply.status == (200 if verb == "get" else 405), reply.text
