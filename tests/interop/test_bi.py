"""JDBC and Connect clients of a driver that asks a running service: docs/how-to/bi.md, and more.

One driver serves both. After the statements of a client our reader has the rows that it has, and
`verify` reports nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from interop.sql_servers import Shell, free_port, variables

from support.doc_blocks import Block, blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = "docs/how-to/bi.md"
# Smaller than by default: the tables have a handful of rows.
QUICK = (
    *("--conf", "spark.sql.shuffle.partitions=1"),
    *("--conf", "spark.databricks.delta.snapshotPartitions=1"),
    *("--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.log.level=WARN"),
    *("--conf", "spark.driver.host=127.0.0.1"),
)
STATEMENTS = """
CREATE DATABASE jdbc;
CREATE TABLE jdbc.t (id BIGINT, part INT, v STRING) USING delta PARTITIONED BY (part);
INSERT INTO jdbc.t SELECT id, CAST(id % 3 AS INT), CONCAT('v', id) FROM range(9);
CREATE TABLE jdbc.s USING delta AS SELECT id + 5 AS id, 7 AS part, 'm' AS v FROM range(6);
UPDATE jdbc.t SET v = 'u' WHERE id = 1;
DELETE FROM jdbc.t WHERE id = 2;
MERGE INTO jdbc.t t USING jdbc.s s ON t.id = s.id
  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
ALTER TABLE jdbc.t ADD COLUMNS (extra INT);
OPTIMIZE jdbc.t;
SELECT 'counted', count(*) FROM jdbc.t VERSION AS OF 1;
DESCRIBE HISTORY jdbc.t;
RESTORE TABLE jdbc.t TO VERSION AS OF 4;
ALTER TABLE jdbc.s RENAME TO jdbc.renamed;
SHOW TABLES IN jdbc;
DROP TABLE jdbc.renamed;
SELECT 'row', id, part, v FROM jdbc.t ORDER BY id;
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """The service and the driver, their lake, and the page with their ports."""

    shell: Shell
    lake: Lake
    blocks: list[Block]
    thrift: int
    connect: int

    def block(self, language: str, number: int = 0) -> str:
        """The text of a block of the page."""
        return _text(self.blocks, language, number)

    def beeline(self, statements: str) -> list[list[str]]:
        """The rows that statements print, through JDBC."""
        (self.shell.folder / "statements.sql").write_text(statements, "utf-8")
        url = f"jdbc:hive2://127.0.0.1:{self.thrift}"
        options = ("--silent=true", "--showHeader=false", "--outputformat=tsv2")
        out = self.shell.run("beeline", "-u", url, "-n", "tester", *options, "-f", "statements.sql")
        # On a busy machine it prints null, where there is no log of a statement yet.
        lines = [re.sub(r"^(null *)+", "", line) for line in out.splitlines()]
        return [line.split("\t") for line in lines]

    def rows(self, name: str) -> list[tuple[object, ...]]:
        """The rows of a table by our reader, after `verify`."""
        table = self.lake.table(name)
        found = table.verify()
        assert found.ok, found
        return sorted(tuple(row.values()) for row in table.snapshot().to_arrow().to_pylist())


def _text(blocks: list[Block], language: str, number: int) -> str:
    return [one.text for one in blocks if one.language == language][number]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers as the page starts them, at ports that are free."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pyspark[connect]")
    folder = tmp_path_factory.mktemp("bi")
    shell = Shell(folder, variables())
    service, thrift, connect = free_port(), free_port(), free_port()
    ports = {"8765": service, "10000": thrift, "15002": connect}
    blocks = []
    for block in blocks_of(PAGE):
        text = block.text
        for port, free in ports.items():
            text = text.replace(port, str(free))
        blocks.append(Block(block.page, block.language, text, block.introduced))
    shell.run(sys.executable, "-c", _text(blocks, "python", 0))
    (folder / "bi.conf").write_text(_text(blocks, "ini", 0), "utf-8")
    driver = _text(blocks, "sh", 1).replace("spark-submit", f"spark-submit {' '.join(QUICK)}")
    with (
        shell.serving(_text(blocks, "sh", 0), "serve", service),
        shell.serving(driver, "driver", thrift, connect),
        deltalakedb.connect(f"sqlite:///{folder}/bi.db") as lake,
    ):
        yield Servers(shell, lake, blocks, thrift, connect)


def test_the_page_works(servers: Servers) -> None:
    (servers.shell.folder / "report.sql").write_text(servers.block("sql"), "utf-8")
    printed = servers.shell.script(servers.block("sh", 2))
    assert "| north  | 5.0    |" in printed
    assert servers.rows("sales.totals") == [("north", 5.0), ("south", 2.5), ("west", 0.5)]
    connect = f"from pathlib import Path\n{servers.block('python', 1)}"
    assert servers.shell.run(sys.executable, "-W", "ignore", "-c", connect) == servers.block("text")
    assert servers.rows("sales.orders") == [(1, "north", 1.5), (2, "south", 2.5), (4, "west", 4.5)]
    assert servers.rows("sales.late") == servers.rows("sales.copied") == [(4, "west", 4.5)]
    assert {one.committer for one in servers.lake.table("sales.totals").history()} == {"bi"}


@pytest.mark.soak
def test_statements_through_jdbc(servers: Servers) -> None:
    printed = servers.beeline(STATEMENTS)
    assert ["counted", "9"] in printed
    history = [row[4] for row in printed if len(row) == 15]
    assert history[:4] == ["OPTIMIZE", "ADD COLUMNS", "MERGE", "DELETE"]
    assert [row[1] for row in printed if row[0] == "jdbc"] == ["renamed", "t"]
    rows = [(int(row[1]), int(row[2]), row[3]) for row in printed if row[0] == "row"]
    assert servers.rows("jdbc.t") == rows
    assert [row[0] for row in rows] == [0, 1, *range(3, 11)]
    assert [row[2] for row in rows] == ["v0", "u", "v3", "v4", *["m"] * 6]
    operations = [one.operation for one in servers.lake.table("jdbc.t").history()]
    assert operations == ["RESTORE", *history]
    assert "jdbc.renamed" not in servers.lake


def test_the_metadata_of_jdbc_has_the_tables_of_the_lake(servers: Servers) -> None:
    schema = servers.lake.table("sales.orders").snapshot().schema
    table = servers.lake.create_table("hr.people", schema=schema)

    def listed() -> list[list[str]]:
        return [row[1:3] for row in servers.beeline("!tables\n") if len(row) > 3]

    assert ["hr", "people"] in listed()
    table.rename("hr.staff")
    assert ["hr", "staff"] in listed()
    assert ["hr", "people"] not in listed()
    servers.lake.drop_table("hr.staff")
    assert "hr" not in [row[0] for row in listed()]


@pytest.mark.soak
def test_statements_through_connect(servers: Servers) -> None:
    app = Path(__file__).with_name("connect_statements.py")
    address = f"sc://127.0.0.1:{servers.connect}"
    printed = servers.shell.run(sys.executable, "-W", "ignore", str(app), address)
    assert printed.split() == ["9", "9", "renamed,saved,t"]
    expected = [(0, 0, "v0"), (1, 1, "u"), *((n, 7, "m") for n in range(3, 11)), (100, 1, "w")]
    assert servers.rows("connect.t") == expected
    assert servers.rows("connect.renamed") == expected
    assert servers.rows("connect.saved") == [(100, 1, "w"), (100, 1, "w")]
    assert "connect.s" not in servers.lake


def test_a_scheme_without_our_log_store_is_refused(servers: Servers) -> None:
    schema = servers.lake.table("sales.orders").snapshot().schema
    with deltalakedb.connect(f"sqlite:///{servers.shell.folder}/bi.db", mirror="worker") as lake:
        lake.create_table("far.t", location="gs://bucket/t", schema=schema)
    assert ["far", "t", "false"] in servers.beeline("SHOW TABLES IN far;\n")
    with pytest.raises(AssertionError, match=r"spark\.delta\.logStore\.gs\.impl=io\.deltalakedb"):
        servers.beeline("INSERT INTO far.t VALUES (5, 'far', 5.5);\n")
