"""Children of a process that has used its lake, as gunicorn and multiprocessing fork them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import deltalakedb
from deltalakedb.store.url import Engine

from support.lake import add, new_lake_table
from support.pgbouncer import PgBouncer, why_no_pgbouncer
from support.postgres_server import PostgresServer
from support.profiles import SOAK
from support.s3 import S3Server
from support.store import Catalogs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = Path(__file__).with_name("forking.py")
PREFORK = Path(__file__).with_name("prefork.py")
LISTING = Path(__file__).with_name("fork_while_listing.py")
IN_TRANSACTION = """if True:
    import os, sys
    from deltalakedb.errors import ForkedProcessError
    from deltalakedb.store import Store
    store = Store.open(sys.argv[1])

    def leave(error):
        try:
            transaction.__exit__(error and type(error), error, None)
        except ForkedProcessError:
            os._exit(1)
        os._exit(0)

    codes = []
    transaction = store.write()
    session = transaction.__enter__()
    session.script("CREATE TABLE x AS SELECT 1 AS value;")
    for error in (None, ValueError()):
        pid = os.fork()
        if not pid:
            leave(error)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    transaction.__exit__(None, None, None)
    assert codes == [1, 0], codes
    rows = store.dialect.ask(lambda s: s.execute("SELECT value FROM x", {}))
    assert len(rows) == 1, rows
    store.close()
    sys.stdout.write("refused at commit, left alone at an error")
"""
FILES = 3_000  # several times what is fetched at once
_SHORT = (("thread", "postgres"), ("thread", "sqlite"), ("checkpoints", "sqlite"))
CHILDREN = 100 if SOAK else 3


def run(*arguments: str | Path) -> str:
    """The output of a program that has to end well and to warn of nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def fork(kind: str, url: str, location: str, options: dict[str, str] | None = None) -> Any:
    """What became of the children of a parent of this kind."""
    arguments = [kind, url, str(CHILDREN), location, json.dumps(options or {})]
    answer = json.loads(run(PROGRAM, *arguments))
    assert (answer["errors"], answer["verified"]) == ("", True)
    return answer["found"]


# Longer than a child is waited for: one that hangs is reported, and not the whole test.
@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("kind", ["fresh", "reading", "checkpoints", "thread"])
def test_forked_children_work_or_are_refused_at_once(
    engine: Engine, kind: str, catalog_url: str, tmp_path: Path
) -> None:
    if not SOAK and (kind, engine) not in _SHORT:
        pytest.skip("the long form has it")
    found = fork(kind, catalog_url, f"file://{tmp_path}/t")
    # A DuckDB file belongs to the process that opened it.
    assert found == {"refused" if engine == "duckdb" else "worked": CHILDREN}


def test_forked_children_of_a_process_that_used_s3_are_refused_at_once(
    tmp_path: Path, s3_server: S3Server
) -> None:
    location = f"s3://{s3_server.new_bucket()}/t"
    url = f"sqlite:///{tmp_path}/lake.db"
    assert fork("s3", url, location, s3_server.storage_options) == {"refused": CHILDREN}


@pytest.mark.timeout(300)
def test_tasks_of_a_multiprocessing_pool_work_or_are_refused_at_once(
    engine: Engine, catalog_url: str, tmp_path: Path
) -> None:
    outcomes = json.loads(run(PREFORK, catalog_url, f"file://{tmp_path}/t", "100"))
    assert outcomes == {"refused" if engine == "duckdb" else "worked": 100}


@pytest.fixture(scope="module", params=["direct", "pgbouncer"])
def url_of_many_files(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, catalogs: Catalogs
) -> Iterator[str]:
    with catalogs.fresh("postgres") as direct, ExitStack() as stack:
        with deltalakedb.connect(direct, mirror="worker") as lake:
            table = new_lake_table(lake, "a.t")
            table.commit([add(f"f{number}") for number in range(FILES)])
        if request.param == "direct":
            yield direct
            return
        if why_no_pgbouncer():
            pytest.skip(why_no_pgbouncer())
        bouncer = stack.enter_context(PgBouncer(postgres_server))
        yield bouncer.url(str(conninfo_to_dict(direct)["dbname"]))


@pytest.mark.parametrize("how", ["leave", "close", "resume"])
def test_a_child_forked_while_files_are_listed_leaves_the_listing_to_its_parent(
    url_of_many_files: str, how: str
) -> None:
    assert run(LISTING, url_of_many_files, how) == str(FILES)


def test_a_child_does_not_end_the_transaction_of_its_parent(
    engine: Engine, catalog_url: str
) -> None:
    if engine == "duckdb":
        pytest.skip("its own threads do not survive a fork")
    assert run("-c", IN_TRANSACTION, catalog_url) == "refused at commit, left alone at an error"
