"""A project of dbt on a lake: docs/how-to/dbt.md, in processes of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import deltalakedb
from interop.readers import Unavailable, peer
from interop.sql_servers import Shell, variables

from support.doc_blocks import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = "docs/how-to/dbt.md"
NAMES = [
    "sales.orders",
    *(f"shop.{name}" for name in ("daily", "latest", "price_history", "prices")),
]
_IMPORTS = ("import ", "from ")
_FILE = re.compile(r"`([\w/]+\.\w+)`(?: is .*)?:$")
_PACKAGES = re.compile(r'\.config\("spark\.jars\.packages", "[^"]+"\)')


def _shell(folder: Path) -> Shell:
    try:
        dbt = peer("dbt", "dbt")
    except Unavailable as missing:
        pytest.skip(str(missing))
    known = variables(DBT_SEND_ANONYMOUS_USAGE_STATS="false", PYTHONWARNINGS="ignore")
    return Shell(folder, {**known, "PATH": f"{dbt / 'bin'}:{known['PATH']}"})


def _quick(run: str, jars: Path) -> str:
    """The program of the page with the jars that are there, and for a handful of rows."""
    names = ",".join(map(str, sorted(jars.glob("*.jar"))))
    settings = {
        "spark.jars": names,
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.host": "127.0.0.1",
    }
    changed, times = _PACKAGES.subn(f".config(map={settings!r})", run)
    assert times == 1
    return changed


@pytest.mark.soak
def test_a_project_runs_twice_on_a_lake(tmp_path: Path) -> None:
    shell = _shell(tmp_path)
    imports, printed = "", ""
    for block in blocks_of(PAGE):
        if named := _FILE.search(block.introduced):
            path = tmp_path / named[1]
            path.parent.mkdir(exist_ok=True)
            jars = peer("dbt", "delta-spark")
            path.write_text(_quick(block.text, jars) if path.suffix == ".py" else block.text)
        elif block.language == "python":
            # A reader has one Python: later blocks use the names that the first one imports.
            lines = block.text.splitlines()
            imports = imports or "\n".join(one for one in lines if one.startswith(_IMPORTS))
            printed = shell.run("python", "-c", f"{imports}\n{block.text}")
        elif block.language == "text":
            assert printed == block.text
        elif not block.text.startswith("pip "):
            shell.script(block.text)
    with deltalakedb.connect(f"sqlite:///{tmp_path}/shop.db") as lake:
        assert [table.name for table in lake.tables()] == NAMES
        assert all(table.verify().ok for table in lake.tables())
        totals = lake.table("shop.daily").snapshot().to_arrow().sort_by("day").to_pylist()
        assert [(row["orders"], row["total"]) for row in totals] == [(2, 31), (1, 11), (1, 20)]
        latest = lake.table("shop.latest").snapshot().to_arrow().sort_by("item")
        assert [str(day) for day in latest["day"].to_pylist()] == ["2026-11-02", "2026-11-03"]
