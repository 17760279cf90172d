"""The README's examples are run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - that is the test
    assert capsys.readouterr().out.splitlines() == [
        "2 3 [{'id': 4, 'day': datetime.date(2026, 11, 2)}]",
        "2",
    ]
