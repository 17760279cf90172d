"""A service that is down, slow, or answers nonsense: Spark gets a clear error within a time limit.

Nothing is committed by such an answer, nothing is registered, and all works as soon as the service
does.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import Service, embedded_service
from deltalakedb.storage import local_path
from interop.readers import Refused
from spark.delta.lake_spark import LakeSpark

from support.broken_service import BrokenService, Fault, Request, Wire, head
from support.profiles import SOAK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The setting of the sessions, and what a statement may take beside it on a busy machine.
SECONDS: Final = 2
BESIDE: Final = 20
MEGABYTE: Final = b" " * 1024 * 1024
CONFLICT: Final = {"error": "It is taken.", "code": "conflict"}
UNKNOWN: Final = {"error": "There is none.", "code": "unknown-table"}


def answers(status: int, body: object, **headers: str) -> Fault:
    """A fault that is an answer."""
    return lambda wire, _: wire.answer(status, body, **headers)


def redirect(wire: Wire, request: Request) -> None:
    """Name the same place again."""
    wire.answer(307, b"", Location=request.target)


def large_body(wire: Wire, _: Request) -> None:
    """A gigabyte of spaces."""
    wire.send(head(200, {"Content-Length": str(1024 * len(MEGABYTE))}))
    for _number in range(1024):
        wire.send(MEGABYTE)


def endless_head(wire: Wire, _: Request) -> None:
    """A head with more and more fields."""
    wire.send(b"HTTP/1.1 200 OK\r\n")
    for number in count():
        wire.send(b"X-%d: %s\r\n" % (number, b"x" * 4000))


def stall_within(wire: Wire, _: Request) -> None:
    """Half an answer, and nothing more."""
    wire.send(head(200, {"Content-Length": "100"}) + b'{"table"')
    wire.stall()


def drip(wire: Wire, _: Request) -> None:
    """An answer that comes slowly, without end."""
    wire.send(head(200, {"Content-Length": "1000000"}))
    wire.drip(b" ")


FAULTS: Final[dict[str, Fault]] = {
    "a closed connection": lambda _wire, _request: None,
    "another protocol": lambda wire, _: wire.send(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "a page": answers(200, b"<!doctype html><title>Welcome</title>"),
    "no body": answers(200, b""),
    "no content": answers(204, b""),
    "a gateway": answers(502, b"<html>Bad gateway</html>"),
    "a status of no meaning": answers(999, {"error": "?"}),
    "another success": answers(201, {"table": "t", "version": 1, "outcome": "committed"}),
    "a truncated body": lambda wire, _: wire.send(head(200, {"Content-Length": "99"}) + b'{"t"'),
    "half of a text": answers(200, b'{"table": "t", "version": 1, "outc'),
    "a list": answers(200, []),
    "no fields": answers(200, {}),
    "fields of other types": answers(
        200,
        {name: [1] for name in ("table", "version", "outcome", "name", "warehouse", "tables")},
    ),
    "a wrong token": answers(401, {"error": "The token is missing or wrong", "code": "token"}),
    "an error of the server": answers(500, {"error": "Something went wrong", "code": "failed"}),
    "a conflict with another status": answers(500, CONFLICT),
    "an unknown table with another status": answers(500, UNKNOWN),
    "redirects": redirect,
    "a large body": large_body,
    "an endless head": endless_head,
    "no answer": lambda wire, _: wire.stall(),
    "half an answer": stall_within,
    "a slow answer": drip,
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake with a warehouse."""
    folder = tmp_path_factory.mktemp("broken")
    url = f"sqlite:///{folder}/lake.db"
    with deltalakedb.connect(url, warehouse=str(folder / "lake")) as lake:
        yield lake


@pytest.fixture(scope="module")
def broken(lake: Lake) -> Iterator[BrokenService]:
    """What is at the address that the session has."""
    with BrokenService(embedded_service(lake)) as broken:
        yield broken


@pytest.fixture
def spark(started: LakeSpark, lake: Lake, broken: BrokenService) -> Iterator[LakeSpark]:
    """The session, with a table."""
    started.use(broken.service)
    started.run(f"SET deltalakedb.timeout={SECONDS}")
    if not any(table.name == "b.t" for table in lake.tables()):
        started.run("CREATE DATABASE IF NOT EXISTS b")
        started.run("CREATE TABLE b.t (id BIGINT) USING delta")
        started.run("INSERT INTO b.t VALUES (0)")
    yield started
    started.run("RESET deltalakedb.timeout")


def log_files(lake: Lake) -> set[Path]:
    """Every commit file below the warehouse."""
    warehouse = local_path(lake.warehouse or "")
    assert warehouse is not None
    return {path for path in warehouse.rglob("*.json") if path.parent.name == "_delta_log"}


def state(lake: Lake) -> object:
    """What the catalog and the log have."""
    tables = {table.name: (table.location, table.version) for table in lake.tables()}
    return tables, log_files(lake)


@contextmanager
def refused(lake: Lake, *, token: str, words: str = "deltalakedb: cannot ") -> Iterator[list[str]]:
    """Check that a statement is refused in time, with a clear error, and changes nothing."""
    before, started, errors = state(lake), time.monotonic(), list[str]()
    with pytest.raises(Refused) as error:
        yield errors
    took = time.monotonic() - started
    text = str(error.value)
    errors.append(text)
    assert words in text, text
    assert token not in text
    assert took < SECONDS + BESIDE, took
    assert state(lake) == before


STATEMENTS: Final[dict[str, str]] = {
    "commits": "INSERT INTO b.t VALUES ({number})",
    "published": "SELECT * FROM b.t",
    "table": "SELECT * FROM b.t",
    "tables": "SHOW TABLES IN b",
    "config": "CREATE TABLE b.t{number} (id BIGINT) USING delta",
    "rename": "ALTER TABLE b.t RENAME TO b.t{number}",
    "drop": "DROP TABLE b.t",
}
"""For each route a statement that needs it."""

# Faults that a call repeats its request after, until its time is over.
REPEATED: Final = {
    *("a closed connection", "another protocol", "a truncated body", "an endless head"),
    *("no answer", "half an answer", "a slow answer"),
}

numbers: Final = count(1)


@pytest.mark.parametrize("fault", FAULTS)
def test_nonsense_is_a_clear_error_and_changes_nothing(
    spark: LakeSpark, lake: Lake, broken: BrokenService, fault: str
) -> None:
    every = SOAK or fault not in REPEATED
    for route in STATEMENTS if every else ("commits", "table"):
        statement = STATEMENTS[route]
        with broken.fault(route, FAULTS[fault]), refused(lake, token=broken.service.token):
            spark.run(statement.format(number=next(numbers)))
        assert route in [request.route for request in broken.requests], route
    number, before = next(numbers), lake.table("b.t").version
    spark.run(f"INSERT INTO b.t VALUES ({number})")
    assert lake.table("b.t").version == before + 1
    assert (number,) in spark.rows("SELECT id FROM b.t")
    spark.run(f"CREATE TABLE b.t{number} USING delta AS SELECT 1 AS a")
    spark.run(f"DROP TABLE b.t{number}")
    assert lake.verify("b.t").ok


@pytest.mark.parametrize("fault", ["a page", "no answer", "a closed connection"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE b.{name} (id BIGINT) USING delta",
        "CREATE OR REPLACE TABLE b.{name} USING delta AS SELECT 1 AS id",
    ],
)
def test_a_table_whose_first_commit_has_no_answer_is_not_there(
    spark: LakeSpark, lake: Lake, broken: BrokenService, statement: str, fault: str
) -> None:
    name = f"new{next(numbers)}"
    with broken.fault("commits", FAULTS[fault]), refused(lake, token=broken.service.token):
        spark.run(statement.format(name=name))
    assert ("b", name, False) not in spark.rows("SHOW TABLES IN b")
    spark.run(statement.format(name=name))
    assert lake.table(f"b.{name}").version == 0
    spark.run(f"DROP TABLE b.{name}")
    assert ("b", name, False) not in spark.rows("SHOW TABLES IN b")


def test_a_new_table_with_rows_is_refused_as_by_delta_alone(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    statement = "CREATE TABLE b.again USING delta AS SELECT 1 AS id"
    with broken.fault("commits", FAULTS["a page"]), refused(lake, token=broken.service.token):
        spark.run(statement)
    # Its files are there, and may be those of a commit whose answer is lost: they stay.
    words = "AnalysisException: [DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION]"
    with refused(lake, token=broken.service.token, words=words):
        spark.run(statement)
    spark.run(statement.replace("CREATE", "CREATE OR REPLACE"))
    assert spark.rows("SELECT id FROM b.again") == [(1,)]
    spark.run("DROP TABLE b.again")


def test_a_success_of_another_commit_is_none(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    for version in (0, 7_000, -1, 2**63, 0.5, "1", None, True):
        answer = {"table": "b.t", "version": version, "outcome": "committed"}
        with (
            broken.fault("commits", answers(200, answer)),
            refused(lake, token=broken.service.token) as errors,
        ):
            spark.run("INSERT INTO b.t VALUES (0)")
        assert "DESCRIBE HISTORY" in errors[0]


def test_a_success_that_is_none_is_an_error(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    def lie(wire: Wire, request: Request) -> None:
        version = int(request.target.rpartition("version=")[2])
        wire.answer(200, {"table": "b.t", "version": version, "outcome": "committed"})

    # Delta looks for the file itself.
    words = "json does not exist"
    with broken.fault("commits", lie), refused(lake, token=broken.service.token, words=words):
        spark.run("INSERT INTO b.t VALUES (0)")
    with broken.fault("commits", lie), refused(lake, token=broken.service.token, words=words):
        spark.run("CREATE TABLE b.lie USING delta AS SELECT 1 AS a")
    spark.run("INSERT INTO b.t VALUES (0)")
    assert lake.verify("b.t").ok


def test_a_conflict_that_nobody_can_see_ends_the_statement(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    for statement in ("INSERT INTO b.t VALUES (0)", "CREATE TABLE b.other (a INT) USING delta"):
        with (
            broken.fault("commits", answers(409, CONFLICT)),
            refused(lake, token=broken.service.token, words="is not there"),
        ):
            spark.run(statement)
        proposals = [one for one in broken.requests if one.route == "commits"]
        assert len(proposals) == 1


def test_a_name_is_not_taken_for_that_of_another_table(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    spark.run("CREATE TABLE IF NOT EXISTS b.second (id BIGINT) USING delta")

    def other(wire: Wire, request: Request) -> None:
        target = request.target.replace("b.t", "b.second")
        answer = broken.forward(Request(request.method, target, request.headers, b""))
        wire.answer(answer.status, answer.body)

    for statement in ("INSERT INTO b.t VALUES (5)", "SELECT * FROM b.t"):
        with broken.fault("table", other), refused(lake, token=broken.service.token):
            spark.run(statement)
    spark.run("DROP TABLE b.second")


# With ids: a :: in that of a test would make it run apart from the others of this file.
@pytest.mark.parametrize(
    "location",
    ["", "b", "file:%", "file:", "s3://", "::"],
    ids=["empty", "relative", "badly encoded", "no path", "no bucket", "colons"],
)
def test_a_place_that_is_none_is_an_error(
    spark: LakeSpark, lake: Lake, broken: BrokenService, location: str
) -> None:
    table = {"name": "b.t", "location": location, "table_id": "1"}
    for route, answer in (
        ("table", table),
        ("tables", {"tables": [table]}),
        ("config", {"warehouse": location}),
    ):
        with broken.fault(route, answers(200, answer)), refused(lake, token=broken.service.token):
            spark.run(STATEMENTS[route].format(number=next(numbers)))
    assert spark.rows("SELECT count(*) > 0 FROM b.t") == [(True,)]


def test_a_place_that_the_session_has_no_log_store_for_is_an_error(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    table = {"name": "b.t", "location": "hdfs://h/x", "table_id": "1"}
    words = "would commit to it without asking the lake"
    for route, answer in (("table", table), ("config", {"warehouse": "hdfs://h/x"})):
        with (
            broken.fault(route, answers(200, answer)),
            refused(lake, token=broken.service.token, words=words),
        ):
            spark.run(STATEMENTS[route].format(number=next(numbers)))
    assert spark.rows("SELECT count(*) > 0 FROM b.t") == [(True,)]


def test_an_answer_that_is_lost_is_no_second_commit(
    spark: LakeSpark, lake: Lake, broken: BrokenService
) -> None:
    def lost(wire: Wire, request: Request) -> None:
        broken.forward(request)
        wire.stall()

    before = lake.table("b.t").version
    with broken.fault("commits", lost), pytest.raises(Refused) as error:
        spark.run("INSERT INTO b.t VALUES (-1)")
    assert "DESCRIBE HISTORY" in str(error.value)
    assert lake.table("b.t").version == before + 1
    assert spark.rows("SELECT count(*) FROM b.t WHERE id = -1") == [(1,)]

    def first_is_lost(wire: Wire, request: Request) -> None:
        answer = broken.forward(request)
        if len([one for one in broken.requests if one.route == "commits"]) > 1:
            wire.answer(answer.status, answer.body)

    with broken.fault("commits", first_is_lost):
        spark.run("INSERT INTO b.t VALUES (-2)")
    assert lake.table("b.t").version == before + 2
    assert spark.rows("SELECT count(*) FROM b.t WHERE id = -2") == [(1,)]
    with broken.fault("commits", lost), pytest.raises(Refused):
        spark.run("CREATE TABLE b.late USING delta AS SELECT 1 AS a")
    assert spark.rows("SELECT a FROM b.late") == [(1,)]
    spark.run("DROP TABLE b.late")
    assert lake.verify("b.t").ok


def unused_address() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def wrong_token(service: Service) -> Service:
    """The service, with a token of its own making."""
    return Service(service.uri, "a-token-that-is-not-the-right-one")


@pytest.mark.parametrize(
    "other",
    [
        lambda service: Service(unused_address(), service.token),
        wrong_token,
        lambda service: Service("https" + service.uri.removeprefix("http"), service.token),
    ],
    ids=["refused", "wrong token", "no TLS"],
)
def test_a_service_that_is_not_there(
    spark: LakeSpark, lake: Lake, broken: BrokenService, other: Callable[[Service], Service]
) -> None:
    spark.run("SELECT * FROM b.t")
    wrong = other(broken.service)
    spark.use(wrong)
    for statement in STATEMENTS.values():
        with refused(lake, token=wrong.token):
            spark.run(statement.format(number=next(numbers)))
    spark.run("SELECT 1")  # what needs no table needs no service
    spark.use(broken.service)
    spark.run("INSERT INTO b.t VALUES (-3)")
    assert lake.verify("b.t").ok
