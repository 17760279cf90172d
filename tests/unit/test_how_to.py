"""The examples of docs/how-to are run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOW_TO = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to"


def test_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (HOW_TO / "read.md").read_text("utf-8")
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, "read.md", "exec"), names)  # noqa: S102 - that is the test
    assert capsys.readouterr().out.splitlines() == [
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
