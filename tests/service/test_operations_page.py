"""The operations page over real HTTP: what it shows, on every engine."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from deltalakedb.clock import ManualClock
from deltalakedb.formatting import moment
from deltalakedb.lake import Lake
from deltalakedb.service import resources
from deltalakedb.service.commits import ROUTES
from deltalakedb.service.openapi import openapi
from deltalakedb.service.resources import RESOURCES
from deltalakedb.store import browse

from support.lake import SCHEMA, OpenLake, add, new_lake_table, remove
from support.web_client import Client, serving

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
            assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;" in reply.text
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


def test_lists_come_in_pages_that_miss_and_repeat_nothing(client: Client, small_lake: Lake) -> None:
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
    new_lake_table(small_lake, "Übersicht")
    assert [t["name"] for t in walk("/api/v1/tables", "tables", contains="Übers")] == ["Übersicht"]
    small_lake.drop_table("Übersicht", force=True)
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
    monkeypatch.setattr("deltalakedb.service.resources.POINTS", 2)
    points = client.get("/api/v1/growth", name=HOSTILE)["points"]
    assert [point["version"] for point in points] == [0, 3, 5]
    sizes = client.get("/api/v1/sizes", name=HOSTILE)
    assert (sizes["counted"], sizes["live_files"]) == (3, 3)
    counted = {one["below"]: one["files"] for one in sizes["sizes"] if one["files"]}
    assert counted == {1024: 1, 16384: 1, 262144: 1}
    one = client.get("/api/v1/table", name=HOSTILE)
    assert (one["version"], one["mirror"]["state"], one["mirror"]["backlog"]) == (5, "pending", 6)


def test_a_search_takes_letters_of_any_case(client: Client) -> None:
    for path, beside in (("/api/v1/changes", {}), ("/api/v1/versions", {"name": HOSTILE})):
        key = path.rpartition("/")[2]
        for asked in ({"operation": "write"}, {"operation": "wRiTe", "committer": "ANN"}):
            found = client.get(path, **asked, **beside)[key]
            assert [one["version"] for one in found] == [4, 3, 2, 1], asked
        assert client.get(path, operation="writ", **beside)[key] == []
    page = client(f"/table?{urlencode({'name': HOSTILE, 'operation': 'write'})}").text
    assert 'value="write"' in page
    assert '<option value="MERGE">' in page


def test_commits_are_counted_over_time(
    client: Client, small_lake: Lake, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(**query: str) -> tuple[int, list[int], int]:
        found = client.get("/api/v1/activity", **query)
        return found["step_ms"], found["commits"], found["counted"]

    # Six commits, a second apart; the other tables were created in the first second.
    assert counts(name=HOSTILE) == (1000, [1] * 6, 6)
    assert counts() == (1000, [3, 1, 1, 1, 1, 1], 8)
    assert "Commits per second" in client("/").text
    monkeypatch.setattr("deltalakedb.store.browse.PLOTTED", 3)
    assert counts() == (1000, [1, 1, 1], 3)
    # A long time later a table has a gap, and stretches are as long as they have to be.
    day = 86_400_000
    clock.advance(40 * day)
    for number in range(3):
        small_lake.table("b").commit([add(f"later-{number}.parquet")])
    step, commits, counted = counts(name="b")
    assert (step, counted) == (day, 4)
    assert (commits[0], commits[-1], sum(commits), len(commits)) == (1, 3, 4, 41)
    monkeypatch.setattr("deltalakedb.service.resources.BARS", 4)
    step, commits, _ = counts(name="b")
    assert (step, sum(commits), len(commits) <= 4) == (14 * day, 4, True)
    assert client("/api/v1/activity?name=nothing").status == 404


def test_a_plot_begins_where_the_history_does(client: Client, small_lake: Lake) -> None:
    with small_lake.store.write() as session:  # as expired versions leave it
        query = "DELETE FROM dl_table_versions WHERE version < 3 AND table_id = :table_id"
        table_id = small_lake.table(HOSTILE).table_id
        session.execute(small_lake.store.dialect.sql(query), {"table_id": table_id})
    found = client.get("/api/v1/activity", name=HOSTILE)
    assert (found["commits"], found["counted"]) == ([1, 1, 1], 3)


def test_an_empty_catalog_has_pages_too(open_lake: OpenLake) -> None:
    with serving(open_lake()) as client:
        for path in ("/", "/tables", "/changes", "/mirror", "/metrics-page"):
            assert client(path).status == 200
        assert client.get("/api/v1/activity")["commits"] == []
        assert client.get("/api/v1/contention")["commits"] == 0


def test_commits_that_were_rebased_are_told(
    client: Client, small_lake: Lake, clock: ManualClock
) -> None:
    clock.advance(1000)
    table = small_lake.table("b")
    with small_lake.transaction() as late:
        late.table("b").add_actions([add("late.parquet")])
        for number in range(2):
            table.commit([add(f"first-{number}.parquet")])
    versions = client.get("/api/v1/versions", name="b")["versions"]
    assert [one["rebased_over"] for one in versions] == [2, 0, 0, None]
    changes = client.get("/api/v1/changes", limit=3)["changes"]
    assert {(one["version"], one["rebased_over"]) for one in changes if one["name"] == "b"} == {
        *((3, 2), (2, 0), (1, 0))
    }
    found = client.get("/api/v1/contention")
    assert found == {"commits": 11, "rebased": 1, "rebased_over_most": 2}
    assert "1 were rebased over commits that others had made" in client("/metrics-page").text
    # What people write into their commits cannot make it fail.
    nul = "\0 \\u0000"
    fresh = small_lake.table("b")
    fresh.commit([add("4.parquet")], operation=nul, operation_parameters={nul: nul})
    assert client.get("/api/v1/contention")["rebased"] == 1
    assert client("/").status == client("/table?name=b").status == 200


@pytest.mark.parametrize("bounds", [(1, 1), (2, 2), (3, 50), (50, 50)])
def test_files_come_in_pages_however_many_a_commit_has(
    client: Client, small_lake: Lake, monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int]
) -> None:
    new_lake_table(small_lake, "v", properties={"delta.enableDeletionVectors": "true"})
    table = small_lake.table("v")
    paths = [f"{letter}.parquet" for letter in "hbfadgcei"]
    table.commit([add("older.parquet"), add("gone.parquet")])
    table.commit([add(path, dv=n if n % 2 else None) for n, path in enumerate(paths)])
    table.commit([remove("a.parquet", dv=3), remove("c.parquet"), remove("gone.parquet")])
    table.commit([add("z.parquet"), add("y.parquet")])
    wanted = [
        *("y.parquet", "z.parquet"),
        *(path for path in sorted(paths) if path[0] not in "ac"),
        "older.parquet",
    ]
    # So many are sorted, and so many of a version that has more are looked at.
    monkeypatch.setattr(browse, "SORTED", bounds[0])
    monkeypatch.setattr(browse, "LOOKED_AT", bounds[1])
    for limit in (1, 2, 3, 100):
        found, cursor = [], ""
        for _ in range(100):
            page = client.get("/api/v1/files", name="v", limit=limit, cursor=cursor)
            assert len(page["files"]) <= limit
            found += [one["path"] for one in page["files"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert found == wanted, limit
    assert client("/files?name=v").status == 200


def test_numbers_that_are_dear_are_remembered_for_a_while(
    client: Client, small_lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resources, "SLOW_SECONDS", 1e9)  # whatever the machine
    small_lake.table("b").commit([add("1.parquet")])
    assert client.get("/api/v1/summary")["versions"] == 9
    monkeypatch.setattr(resources, "SLOW_SECONDS", 0)
    monkeypatch.setattr(resources, "CACHED_FOR", 1e9)
    small_lake.table("b").commit([add("2.parquet")])
    assert client.get("/api/v1/summary")["versions"] == 10  # these were cheap until now
    small_lake.table("b").commit([add("3.parquet")])
    assert client.get("/api/v1/summary")["versions"] == 10
    small_lake.create_table("here", location=str(tmp_path / "here"), schema=SCHEMA)
    client("/api/v1/retry?name=here", "POST", Authorization=f"Bearer {TOKEN}")
    assert client.get("/api/v1/summary")["versions"] == 12


# --- the document -------------------------------------------------------------------------


def _schema(document: Any, told: Any) -> Any:
    """The schema of an answer, that lets nothing pass that it does not name."""
    parts = copy.deepcopy(document["components"])
    for one in parts["schemas"].values():
        one["additionalProperties"] = False
    if "$ref" in told:
        told = parts["responses"][told["$ref"].rpartition("/")[2]]
    return {"components": parts, **told["content"]["application/json"]["schema"]}


def test_the_document_is_one() -> None:
    document = json.loads(json.dumps(openapi("1.0")))
    OpenAPIV31SpecValidator(document).validate()
    identities = [one["operationId"] for v in document["paths"].values() for one in v.values()]
    assert len(set(identities)) == len(identities)
    assert all(one["description"] for one in document["components"]["schemas"].values())


def test_every_answer_is_as_the_document_says(
    client: Client, small_lake: Lake, tmp_path: Path
) -> None:
    small_lake.create_table("here", location=str(tmp_path / "here"), schema=SCHEMA)
    document = client.get("/api/v1/openapi.json")
    engines = {route.path for route in ROUTES}  # test_commits.py asks these
    assert set(document["paths"]) == {*RESOURCES, *engines, "/metrics", "/retry"}
    seen = set()

    def check(path: str, verb: str, query: Mapping[str, str], **headers: str) -> int:
        reply = client(f"{path}?{urlencode(query)}", verb.upper(), **headers)
        told = document["paths"][path][verb]["responses"][str(reply.status)]
        Draft202012Validator(_schema(document, told)).validate(reply.json)
        seen.add((path, reply.status))
        return reply.status

    for path, resource in RESOURCES.items():
        is_named = any(one.name == "name" for one in resource.parameters)
        name = {"name": "here" if resource.changes else HOSTILE} if is_named else {}
        verb = "post" if resource.changes else "get"
        token = {"Authorization": f"Bearer {TOKEN}"} if resource.changes else {}
        assert check(path, verb, name, **token) == 200
        assert check(path, verb, {"nothing": "1"}, **token) == 400
        assert check(path, verb, name, **token, Host="evil.example") == 421
        if name:
            assert check(path, verb, {"name": "nothing"}, **token) == 404
    assert check("/api/v1/retry", "post", {"name": "b"}) == 401
    foreign = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}
    assert check("/api/v1/retry", "post", {"name": "b"}, **foreign) == 403
    reply = client("/api/v1/summary", "POST", "")
    told = document["paths"]["/api/v1/summary"]["get"]["responses"][str(reply.status)]
    Draft202012Validator(_schema(document, told)).validate(reply.json)
    assert reply.headers["Content-Type"] == "application/json"
    exposed = document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert client("/metrics").headers["Content-Type"] in exposed
    # One of each kind of answer that is empty in this catalog: a table that has drifted.
    with small_lake.store.write() as session:
        session.script("""UPDATE dl_mirror_tables SET drift = '{"version": 3}'""")
    check("/api/v1/tables", "get", {})
