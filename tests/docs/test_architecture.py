"""docs/architecture.md names rooms, modules and functions that exist."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from support.doc_blocks import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGE = ROOT / "src" / "deltalakedb"
WALKS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1:]
NAMES = sorted({name for _, text in WALKS for name in re.findall(r"`((?:\w+\.)+\w+)`", text)})


def _resolve(name: str) -> Any:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            resolved: Any = importlib.import_module(".".join(["deltalakedb", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            resolved = getattr(resolved, part)
        return resolved
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    assert _resolve(name) is not None


def test_seven_walks_of_a_dozen_steps_at_most() -> None:
    assert len(WALKS) == 7
    for title, text in WALKS:
        assert 5 <= len(re.findall(r"^\d+\. ", text, re.MULTILINE)) <= 12, title


def test_every_room_is_in_the_table() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"demo"}
    assert rooms == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
