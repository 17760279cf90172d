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


def test_a_project_runs_twice_on_a_lake(tmp_path: Path) -> None:
    shell = _shell(tmp_path)
    python: dict[str, object] = {}
    printed = ""
    for block in blocks_of(PAGE):
        if named := _FILE.search(block.introduced):
            path = tmp_path / named[1]
            path.parent.mkdir(exist_ok=True)
            text = block.text
            path.write_text(
                _quick(text, peer("dbt", "delta-spark")) if path.name == "run.py" else text
            )
        elif block.language == "python":
            printed = shell.run("python", "-c", _joined(python, block.text))
        elif block.language == "text":
            assert printed == block.text
        elif not block.text.startswith("pip "):
            shell.script(block.text)
    with deltalakedb.connect(f"sqlite:///{tmp_path}/shop.db") as lake:
        names = [
            "sales.orders",
            *(f"shop.{n}" for n in ("daily", "latest", "price_history", "prices")),
        ]
        assert [table.name for table in lake.tables()] == names
        assert all(table.verify().ok for table in lake.tables())
        totals = lake.table("shop.daily").snapshot().to_arrow().sort_by("day").to_pylist()
        assert [(row["orders"], row["total"]) for row in totals] == [(2, 31), (1, 11), (1, 20)]
        latest = lake.table("shop.latest").snapshot().to_arrow().sort_by("item")
        assert [str(day) for day in latest["day"].to_pylist()] == ["2026-11-02", "2026-11-03"]


def _joined(before: dict[str, object], text: str) -> str:
    """A block after the imports of the first one."""
    if "imports" not in before:
        before["imports"] = "".join(
            f"{line}\n" for line in text.splitlines() if line.startswith(("import ", "from "))
        )
    return f"{before['imports']}{text}"
