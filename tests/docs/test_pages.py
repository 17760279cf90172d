"""Every page works as it stands: each in an empty folder, and all one after another in one.

What a test gives a page is what a machine may have: a Postgres, which libpq's variables name, an S3
server, which AWS's variables name, a Java, a clone. `doc_blocks.Reader` says what is not run.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from psycopg import sql
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.storage import open_storage

from support.doc_blocks import ROOT, Outcome, Reader, blocks_of, pages
from support.postgres_server import PostgresServer, why_no_tls
from support.s3 import S3Server

# Pages whose blocks others run, or that nobody has to run, and why.
ELSEWHERE = {
    "docs/cli.md": "examples of single commands, from their help: test_blocks.py has them parsed",
    "docs/explain.md": "written by benchmarks/explain_patterns.py, which runs the queries",
    "docs/architecture.md": "a drawing: test_architecture.py resolves every name on the page",
    "docs/wrong-usages.md": "written by tests/cli/test_wrong_usages.py, which does all of it",
    "docs/schema.md": "tests/store/sql/test_schema_docs.py runs its queries on every engine",
    "docs/how-to/bi.md": "needs servers of Spark: tests/interop/test_bi.py runs it",
    "docs/how-to/dbt.md": "needs dbt: tests/interop/test_dbt.py runs it",
    "docs/how-to/spark-sql.md": "needs Delta: tests/spark/delta/test_session.py runs it",
    "docs/decisions/0003-indexes.md": "an index that was tried and not taken",
}
SPARK = "docs/how-to/spark.md"
POSTGRES = {
    "docs/quick-start.md",
    *(f"docs/how-to/{name}.md" for name in ("backup", "connect", "deploy", "roles", "upgrade")),
}
# The S3 server of the tests has no TLS, which has to be allowed.
PLAIN = {
    '{"region": "eu-central-1"}': '{"region": "eu-central-1", "allow_http": "true"}',
    "option region=eu-central-1": "option region=eu-central-1 --storage-option allow_http=true",
}
# Commands that only look: they cannot get into the way of another page.
ONLY_LOOK = (
    *("deltalakedb doctor", "deltalakedb tables", "deltalakedb history", "deltalakedb files"),
    *("deltalakedb verify", "deltalakedb mirror status", "deltalakedb serve"),
    "deltalakedb mirror run",
)
PAGES = [page for page in pages() if blocks_of(page) and page not in ELSEWHERE]

# What Python prints on a page; not what it shows itself in a block after "prints:".
ROWS = [{"id": 1, "day": "2026-11-01"}, {"id": 2, "day": "2026-11-09"}]
PRINTED: dict[str, list[str]] = {
    "docs/concepts/mirror.md": ["[0, 0] [1, 1]", "[1, 0]", "[1, 1]", "1"],
    "docs/how-to/checkpoints.md": [f"{2:020d}.checkpoint.parquet"],
    "docs/how-to/clone.md": [f"{ROWS} 1", "0", "('id', 'day') 1"],
    "docs/how-to/connect.md": [
        "[]",
        "/sales.db/items True",
        "Lake('postgresql://clerk@localhost/lake_connect')",
    ],
    "docs/how-to/deploy.md": ["1"],
    "docs/how-to/import.md": ["1 2", "False"],
    "docs/how-to/leave.md": [
        "sales.orders 2 ('inCommitTimestamp',)",
        "TableExportedError",
        "5",
        "4 [4, 3, 2, 1, 0]",
        "()",
    ],
    "docs/how-to/maintain.md": [
        "4 files became 1 in version 5",
        "version 7 is what version 5 was",
        "0 files would go, 10 stay",
    ],
    "docs/how-to/mirror.md": ["published", "1", "sales.orders 2 caught up"],
    "docs/how-to/object-stores.md": [
        "published 3",
        "Storage('gs://my-bucket/orders')",
        "Storage('az://container/orders')",
    ],
    "docs/how-to/read.md": [
        "5",
        "[{'id': 4}]",
        "[0, 4]",
        "3",
        "5",
        "{'id': [4]}",
        "[(2, 1.5)]",
        "[('2026-11-01', 3), ('2026-11-02', 2)]",
        "[(2, 3.0, '2026-11-01')]",
    ],
    "docs/how-to/runbook.md": [
        "TableDriftedError",
        "[('foreign commit', 2)]",
        "[2]",
        "True 2",
        "2",
    ],
    "docs/how-to/upgrade.md": ["[]"],
    "docs/how-to/verify.md": [
        "True 4 1 3",
        "missing commit 2 _delta_log/00000000000000000002.json",
        "missing commit 2",
        "True 1 True",
        "[<Kind.FOREIGN_COMMIT: 'foreign commit'>]",
        "[4] 4",
        "True",
    ],
}
# The same for pages whose lines are long, or differ: some of them, in order.
AMONG = {
    "docs/concepts/commits.md": [
        "4 4 True",
        "{'sales.orders': <version 5>, 'sales.daily': <version 1>}",
        "5 1",
    ],
    "docs/how-to/operate.md": [
        "['deltalakedb_versions_committed_total 2.0']",
        "[(1, 'WRITE'), (0, 'CREATE TABLE')]",
    ],
    "docs/how-to/retention.md": ["5", "0", "5 [5]", "5", "0 4 [5, 4, 3, 2, 1, 0]"],
    SPARK: [
        *("108 1000", "('shop', 'id')", "1005 1000", "('shop',)"),
        *("t.id = s.id AND t.price < s.price", "10 49", "1004", "1005"),
    ],
}


class Machine:
    """A computer with a Postgres, an S3 server and a clone, where pages are read."""

    def __init__(self, server: PostgresServer, s3: S3Server) -> None:
        self.server = server
        self.s3 = s3

    def prepare(self, page: str) -> Reader:
        """What the page may expect to be there; whoever reads it then."""
        if page in POSTGRES:
            self._name_postgres()
        if page == "docs/how-to/object-stores.md":
            self._name_s3()
        if page == "README.md":
            Path(".venv").symlink_to(sys.prefix)  # as `make demo` leaves it
        if page == "docs/how-to/deploy.md":
            shutil.copytree(ROOT / "deploy", "deploy")
        return Reader(
            sql=self._as_owner,
            instead={"docker compose up": self._compose_up},
            replaced={
                "127.0.0.1:5432": f"127.0.0.1:{self.server.port}",
                "port=9188": "port=0",  # any that is free: tests share the machine
                **PLAIN,
            },
        )

    def clear(self) -> None:
        """Leave a server without databases and roles of ours."""
        with psycopg.connect(self.server.url(), autocommit=True) as admin:
            wanted = "SELECT datname FROM pg_database WHERE datname LIKE 'lake%'"
            for (name,) in admin.execute(wanted).fetchall():
                drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
                admin.execute(drop.format(sql.Identifier(name)))
            wanted = "SELECT rolname FROM pg_roles WHERE rolname IN ('clerk', 'etl', 'lake')"
            for (name,) in admin.execute(wanted).fetchall():
                admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))

    def _name_postgres(self) -> None:
        """Clients find the server as they would find their own."""
        os.environ.update(
            PGHOST=str(self.server.folder),
            PGPORT=str(self.server.port),
            PGUSER="postgres",
            PATH=f"{self.server._bindir}:{os.environ['PATH']}",
        )
        if not why_no_tls():
            # Where a certificate of the server's own would be: roles.md says what it is for.
            shutil.copy(self.server.certificate, "our-ca.pem")

    def _name_s3(self) -> None:
        options = self.s3.storage_options
        os.environ.update(
            AWS_ACCESS_KEY_ID=options["aws_access_key_id"],
            AWS_SECRET_ACCESS_KEY=options["aws_secret_access_key"],
            AWS_ENDPOINT_URL=options["endpoint_url"],
        )
        bucket = open_storage(f"s3://{self.s3.new_bucket('my-bucket')}", options)
        for found in list(bucket.list("")):  # what this page left when it was read before
            bucket.delete(found.key)
        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        account = {"private_key": key.decode(), "private_key_id": "1", "client_email": "a@b"}
        Path("key.json").write_text(json.dumps({**account, "gcs_base_url": "https://localhost"}))

    def _compose_up(self) -> None:
        """What the compose file would have made by now: a user, a database and its schema."""
        password = Path("secrets/lake_password").read_text().strip()
        with psycopg.connect(self.server.url(), autocommit=True) as admin:
            role = sql.SQL("CREATE ROLE lake LOGIN SUPERUSER PASSWORD {}")
            admin.execute(role.format(sql.Literal(password)))
            admin.execute("CREATE DATABASE lake OWNER lake")
        deltalakedb.migrate(self.server.url("lake"))

    def _as_owner(self, script: str) -> None:
        with psycopg.connect(os.environ["OWNER_URL"]) as owner:
            owner.execute(script.encode())


@contextmanager
def _surroundings() -> Iterator[None]:
    """The folder and the environment are afterwards what they were."""
    before, folder = dict(os.environ), Path.cwd()
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def machine(s3_server: S3Server) -> Iterator[Machine]:
    """A server for these pages alone: they create databases and roles by plain names."""
    with PostgresServer(fsync=False, ssl=not why_no_tls()) as server:
        yield Machine(server, s3_server)


@pytest.fixture
def read(machine: Machine, tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """Read a page in this test's folder; whatever it prints is as expected."""

    def read_one(page: str, left_out: tuple[str, ...] = ()) -> Reader:
        with _surroundings():
            os.chdir(tmp_path)
            reader = machine.prepare(page)
            reader.left_out = left_out
            reader.read(page)
            if page == "docs/how-to/deploy.md":
                machine.clear()  # the database of the compose file is one of its own
        _expect(page, reader.printed)
        return reader

    machine.clear()
    yield read_one
    machine.clear()


def _expect(page: str, printed: list[str]) -> None:
    if page in PRINTED:
        assert printed == PRINTED[page]
    lines = iter(printed)
    assert [one for one in AMONG.get(page, ()) if one not in lines] == [], printed


def _skip_what_is_missing(page: str) -> None:
    if page == "docs/how-to/backup.md" and not shutil.which("sqlite3"):
        pytest.skip("the sqlite3 command is not installed")
    if page == "docs/how-to/roles.md" and (missing := why_no_tls()):
        pytest.skip(missing)


@pytest.mark.parametrize("page", [page for page in PAGES if page != SPARK])
def test_a_page_works_in_an_empty_folder(page: str, read: Callable[..., Reader]) -> None:
    _skip_what_is_missing(page)
    reader = read(page)
    assert [block for block, _ in reader.outcomes] == blocks_of(page), "every block had its turn"
    # A page of which nothing is run shows commands that take minutes, and says so.
    ran: set[Outcome] = {outcome for _, outcome in reader.outcomes}
    assert "ran" in ran or page in ("docs/benchmarks.md", "docs/sizing.md")


@pytest.mark.spark
@pytest.mark.usefixtures("native_format")
def test_the_page_about_spark_works_in_an_empty_folder(
    spark: SparkSession, read: Callable[..., Reader]
) -> None:
    read(SPARK)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.usefixtures("native_format")
def test_all_pages_work_one_after_another_in_one_folder(
    spark: SparkSession, read: Callable[..., Reader]
) -> None:
    for page in [SPARK, *(page for page in PAGES if page != SPARK)]:
        try:
            _skip_what_is_missing(page)
        except pytest.skip.Exception:
            continue
        read(page, ONLY_LOOK)


def test_pages_that_are_run_elsewhere_have_blocks() -> None:
    assert all(blocks_of(page) for page in ELSEWHERE)
    assert set(PRINTED) | set(AMONG) <= set(PAGES)
