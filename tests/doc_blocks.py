"""The code blocks of README and docs, and how a page of them is run from top to bottom."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

BASH = shutil.which("bash") or "bash"
ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0]


def blocks_of(page: str) -> list[Block]:
    """The code blocks of one page, in order."""
    text = (ROOT / page).read_text("utf-8")
    return [Block(page, match[2].strip(), match[3]) for match in _BLOCK.finditer(text)]


def pages() -> list[str]:
    """README and all pages of the site."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(page.relative_to(ROOT).as_posix() for page in found)]


def all_blocks() -> Iterator[Block]:
    """Every code block there is."""
    for page in pages():
        yield from blocks_of(page)


def run_page(page: str, replaced: Mapping[str, str] | None = None) -> None:
    """Run Python and shell blocks one after the other, as a reader would paste them.

    But for what has to be `replaced` because a test server is not the real one.
    """
    names: dict[str, object] = {}
    for block in blocks_of(page):
        text = block.text
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        run_block(replace(block, text=text), names)


def run_block(block: Block, names: dict[str, object]) -> None:
    """Run one block in the current folder; others are left to the tests that know them.

    What a shell block exports is there for the blocks below it. `pip install` is left out: what it
    would install is what is being tested.
    """
    if block.language == "python":
        exec(compile(block.text, block.page, "exec"), names)  # noqa: S102 - that is the test
    elif block.language == "sh" and not block.text.startswith("pip install"):
        _run_shell(block)


def _run_shell(block: Block) -> None:
    done = subprocess.run(
        [BASH, "-euo", "pipefail", "-c", f"{block.text}\nenv -0 > .exported"],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.page}: {block.text}{done.stdout}{done.stderr}"
    exported = Path(".exported")
    for entry in exported.read_text().split("\0"):
        name, equals, value = entry.partition("=")
        if equals and name.isupper() and name not in ("PATH", "PWD", "OLDPWD", "SHLVL"):
            os.environ[name] = value
    exported.unlink()
