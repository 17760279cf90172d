"""The routes for engines: what each answers, with which token, and what a bad request gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from jsonschema import Draft202012Validator

import deltalakedb
from deltalakedb.errors import ConfigurationError, StorageUnavailableError
from deltalakedb.lake import Lake
from deltalakedb.service.access import Scope, Token, parse_tokens
from deltalakedb.service.commits import PREFIX, ROUTES
from deltalakedb.service.openapi import openapi
from deltalakedb.storage import Storage

from support.lake import SCHEMA, live_paths
from support.proposals import append, commit_file, first_commit, new_id, published
from support.web_client import Client, Reply, serving

READ, WRITE, ADMINISTER = (f"{name}-token-of-some-length" for name in ("r", "w", "a"))
TOKENS = [
    Token(READ, Scope.READ, "reader"),
    Token(WRITE, Scope.WRITE, "etl"),
    Token(ADMINISTER, Scope.ADMINISTER, "admin"),
]
DOCUMENT = openapi("0")
PLAIN = {"delta.enableInCommitTimestamps": "false"}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    url = f"sqlite:///{tmp_path}/lake.db"
    with deltalakedb.connect(url, mirror="worker", warehouse=str(tmp_path / "lake")) as lake:
        lake.create_table(
            "sales.orders", location=str(tmp_path / "t"), schema=SCHEMA, properties=PLAIN
        )
        yield lake


@pytest.fixture
def client(lake: Lake) -> Iterator[Client]:
    with serving(lake, tokens=TOKENS) as client:
        yield client


def ask(
    client: Client, route: str, body: bytes = b"", *, token: str = ADMINISTER, **query: Any
) -> Reply:
    """The answer of a route, which is one that the OpenAPI document describes."""
    path = f"{PREFIX}/{route}"
    method = next(one.method for one in ROUTES if one.path == path)
    sent = f"{path}?{urlencode(query)}" if query else path
    reply = client(sent, method, body.decode(), Authorization=f"Bearer {token}")
    answer = DOCUMENT["paths"][path][method.lower()]["responses"][str(reply.status)]
    schema = answer["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(reply.json)
    return reply


def test_a_commit_is_decided_recorded_and_published(
    client: Client, lake: Lake, tmp_path: Path
) -> None:
    data = append("a", txn_id=new_id())
    place = f"file:{tmp_path}/t"
    reply = ask(client, "commits", data, token=WRITE, location=place, version=1)
    assert (reply.status, reply.json) == (
        200,
        {"table": "sales.orders", "version": 1, "outcome": "committed"},
    )
    assert published(tmp_path / "t", 1) == data
    assert lake.table("sales.orders").history(1)[0].committer == "etl"
    again = ask(client, "commits", data, token=WRITE, location=place, version=1)
    assert again.json["outcome"] == "repeated"


def test_each_refusal_has_its_code(client: Client, tmp_path: Path) -> None:
    place = f"file:{tmp_path}/t"

    def code(data: bytes, **query: Any) -> tuple[int, str]:
        reply = ask(client, "commits", data, **query)
        assert reply.json["what"]
        return reply.status, reply.json["code"]

    other = f"file:{tmp_path}/elsewhere"
    assert code(first_commit(), location=other, version=0) == (404, "unknown-table")
    assert code(append("a"), location=place, version=0) == (409, "conflict")
    assert code(append("a"), location=place, version=5) == (423, "drifted")
    assert code(b"nonsense", location=place, version=1) == (422, "rejected")
    assert code(commit_file(), location=place, version="x") == (400, "invalid")
    for nowhere in ("ftp://x/y", "s3://b/lake/a#b", "s3a://b/a?b", "s3://b/a%20b", "hdfs://n/t"):
        assert code(append("a"), location=nowhere, version=1) == (404, "unknown-table")
    assert code(append("a"), location=place) == (400, "invalid")
    assert code(append("a"), location="", version=1) == (400, "invalid")
    broken = ask(client, "commits", append("../a"), location=place, version=1)
    assert (broken.status, broken.json["rule"]) == (422, "data-path")
    assert published(tmp_path / "t", 1) is None


def test_a_store_that_fails_asks_for_the_same_request_again(
    client: Client, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise StorageUnavailableError("The store is down")

    data, place = append("a", txn_id=new_id()), f"file:{tmp_path}/t"
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "put_if_absent", fail)
        reply = ask(client, "commits", data, location=place, version=1)
        assert (reply.status, reply.json["code"]) == (503, "unavailable")
        listing = ask(client, "published", location=place)
        assert (listing.status, listing.json["code"]) == (503, "unavailable")
    reply = ask(client, "commits", data, location=place, version=1)
    assert (reply.status, reply.json["outcome"]) == (200, "repeated")
    assert published(tmp_path / "t", 1) == data
    assert live_paths(lake.table("sales.orders")) == ["a"]


def test_everything_is_published_before_a_listing(client: Client, tmp_path: Path) -> None:
    assert published(tmp_path / "t", 0) is None
    reply = ask(client, "published", token=READ, location=f"file:{tmp_path}/t")
    assert reply.json == {"table": "sales.orders", "version": 0}
    assert published(tmp_path / "t", 0) is not None
    assert ask(client, "published", location=f"file:{tmp_path}/x").status == 404


def test_tables_are_named_found_renamed_and_dropped(
    client: Client, lake: Lake, tmp_path: Path
) -> None:
    warehouse = ask(client, "config", token=READ).json["warehouse"]
    place = f"{warehouse}/hr.db/people"
    assert ask(client, "commits", first_commit(), location=place, version=0).status == 200
    named = ask(client, "table", token=READ, name="HR.People").json
    assert (named["name"], named["location"]) == ("hr.people", place)
    names = [one["name"] for one in ask(client, "tables", token=READ).json["tables"]]
    assert names == ["hr.people", "sales.orders"]
    assert ask(client, "names", token=WRITE, location=place, name="hr.staff").status == 200
    taken = ask(client, "names", token=WRITE, location=place, name="sales.orders")
    assert (taken.status, taken.json["code"]) == (409, "table-exists")
    assert ask(client, "table", name="hr.people").json["code"] == "unknown-table"
    assert ask(client, "rename", name="hr.staff", to="hr.all").json["name"] == "hr.all"
    assert published(tmp_path / "t", 0) is None
    assert ask(client, "drop", name="sales.orders").json == {"table": "sales.orders"}
    assert published(tmp_path / "t", 0) is not None
    assert [table.name for table in lake.tables()] == ["hr.all"]
    assert (tmp_path / "t").exists()


def test_every_route_needs_a_token_with_its_scope(client: Client, lake: Lake) -> None:
    before = [table.name for table in lake.tables()]
    for route in ROUTES:
        name = route.path.rpartition("/")[2]
        query: dict[str, Any] = dict.fromkeys(route.parameters, "1")
        for token, scope in ((READ, Scope.READ), (WRITE, Scope.WRITE)):
            reply = ask(client, name, token=token, **query)
            if scope < route.scope:
                assert (reply.status, reply.json["code"]) == (403, "scope"), name
            else:
                assert reply.status not in (401, 403), (name, reply.text)
        for wrong in ("", "x" * 40):
            reply = ask(client, name, token=wrong, **query)
            assert (reply.status, reply.json["code"]) == (401, "token"), name
            assert READ not in reply.text
        assert client(route.path, route.method).status == 401
    assert [table.name for table in lake.tables()] == before


def test_without_tokens_nothing_is_answered(lake: Lake) -> None:
    with serving(lake) as client:
        assert {ask(client, "config").status, ask(client, "commits").status} == {403}


def test_an_unknown_route_is_no_unknown_table(client: Client) -> None:
    reply = client(f"{PREFIX}/nothing", "POST", Authorization=f"Bearer {ADMINISTER}")
    assert (reply.status, reply.json["code"]) == (404, "unknown-route")


def test_a_body_that_is_too_large_is_refused(client: Client, tmp_path: Path) -> None:
    place = f"file:{tmp_path}/t"
    large = ask(client, "tables", b"x")
    assert (large.status, large.json["code"]) == (413, "too-large")
    many = commit_file(*[{"txn": {"appId": f"a{n}", "version": n}} for n in range(20_000)])
    assert len(many) > 500_000
    assert ask(client, "commits", many, location=place, version=1).status == 200


def test_concurrent_requests_of_one_version_have_one_winner(
    client: Client, lake: Lake, tmp_path: Path
) -> None:
    replies: list[int] = []
    place = f"file:{tmp_path}/t"

    def propose(name: str) -> None:
        data = append(name, txn_id=new_id())
        replies.append(ask(client, "commits", data, location=place, version=1).status)

    threads = [threading.Thread(target=propose, args=(f"f{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [200, *[409] * 5]
    assert len(live_paths(lake.table("sales.orders"))) == 1


def test_a_file_of_tokens() -> None:
    text = f"# engines\n\nwrite etl {WRITE}\n  administer admin {ADMINISTER}\n"
    assert parse_tokens(text) == TOKENS[1:]
    assert WRITE not in repr(parse_tokens(text))
    for wrong in (f"owner etl {WRITE}", "write etl", "write etl short", f"read a {READ}\n" * 2):
        with pytest.raises(ConfigurationError) as refused:
            parse_tokens(wrong)
        assert WRITE not in str(refused.value)
