"""The examples of docs/how-to are run as they stand, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deltalakedb.cli.app import run as command_line
from deltalakedb.lake import Lake

HOW_TO = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to"


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """Run the examples of a page in an empty folder; the lines that they print."""

    def run_page(page: str, port: str = "no port") -> list[str]:
        monkeypatch.chdir(tmp_path)
        # Any port that is free: tests share the machine.
        text = (HOW_TO / page).read_text("utf-8").replace(f"port={port}", "port=0")
        names: dict[str, object] = {}
        for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(example, page, "exec"), names)  # noqa: S102 - that is the test
        lake = names["lake"]
        assert isinstance(lake, Lake)
        lake.close()
        return capsys.readouterr().out.splitlines()

    return run_page


def test_reading(run: Callable[[str], list[str]]) -> None:
    assert run("read.md") == [
        "5",
        "[{'id': 4}]",
        "[0, 4]",
        "3",
        "5",
        "{'id': [4]}",
        "[(2, 1.5)]",
        "[('2026-11-01', 3), ('2026-11-02', 2)]",
        "[(2, 3.0, '2026-11-01')]",
    ]


def test_operating(run: Callable[..., list[str]]) -> None:
    assert run("operate.md", port="9188") == [
        "['deltalakedb_versions_committed_total 2']",
        "[(1, 'WRITE'), (0, 'CREATE TABLE')]",
    ]


def test_recovering(run: Callable[[str], list[str]]) -> None:
    assert run("runbook.md") == ["[('foreign commit', 2)]", "[2]", "True 2", "2"]


def test_the_runbook_names_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = (HOW_TO / "runbook.md").read_text("utf-8")
    named = set(re.findall(r"deltalakedb ((?:mirror )?[a-z][a-z-]+)(?=[ `])", text))
    assert len(named) >= 12
    for command in named:
        assert command_line([*command.split(), "--help"]) == 0, command
        capsys.readouterr()


def test_cloning(run: Callable[[str], list[str]]) -> None:
    lines = run("clone.md")
    rows = [{"id": 1, "day": "2026-11-01"}, {"id": 2, "day": "2026-11-09"}]
    assert lines == [f"{rows} 1", "0", "('id', 'day') 1"]


def test_retention(run: Callable[[str], list[str]]) -> None:
    lines = run("retention.md")
    assert lines[:2] == ["5", "0"]
    assert lines[2].startswith("0 4 {'dl_table_versions': 5, ")
    assert lines[3:] == [
        "5 [5]",
        "5",
        "0 4 [5, 4, 3, 2, 1, 0]",
        (
            "[{'version': 1, 'path': '0.parquet', 'kept': True}, "
            "{'version': 2, 'path': '1.parquet', 'kept': True}]"
        ),
    ]


def test_publishing(run: Callable[[str], list[str]]) -> None:
    assert run("mirror.md") == ["published", "1", "sales.orders 2 caught up"]


def test_checkpoints(run: Callable[[str], list[str]]) -> None:
    assert run("checkpoints.md") == [f"{2:020d}.checkpoint.parquet"]


def test_leaving(run: Callable[[str], list[str]]) -> None:
    assert run("leave.md") == [
        "sales.orders 2 ('inCommitTimestamp',)",
        "TableExportedError",
        "5",
        "4 [4, 3, 2, 1, 0]",
        "()",
    ]


def test_verifying(run: Callable[[str], list[str]]) -> None:
    assert run("verify.md") == [
        "True 4 1 3",
        "missing commit 2 _delta_log/00000000000000000002.json",
        "missing commit 2",
        "True 1 True",
        "[<Kind.FOREIGN_COMMIT: 'foreign commit'>]",
        "[4] 4",
        "True",
    ]


def test_maintaining(run: Callable[[str], list[str]]) -> None:
    assert run("maintain.md") == [
        "4 files became 1 in version 5",
        "version 7 is what version 5 was",
        "0 files would go, 10 stay",
    ]
