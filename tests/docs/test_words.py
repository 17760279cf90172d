"""Documentation and help use the words of docs/glossary.md, and none that STYLE rules out.

A path joins `CLEAN` as soon as its texts are clean; it never leaves.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = re.compile(
    r"\b(tells?|told|said|shown|found|given|made|kept|some|who|whom|whoever|"
    r"somebody|nobody|anybody|everybody|what is|anew)\b",
    re.IGNORECASE,
)
# Written from the texts of other rooms, or from SQL plans.
GENERATED = {"docs/wrong-usages.md", "docs/explain.md", "docs/cli.md"}
# Not rewritten yet; names of measurements are on the page of benchmarks.
LATER = {"docs/benchmarks.md", "docs/decisions/0013-operations-page.md"}
PAGES = [
    name
    for path in (ROOT / "README.md", ROOT / "NEWS.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (name := str(path.relative_to(ROOT))) not in GENERATED | LATER
]
# Rooms of the code whose docstrings and texts are clean.
CLEAN = [
    "src/deltalakedb/actions",
    "src/deltalakedb/cli",
    "src/deltalakedb/conditions",
    "src/deltalakedb/deltalog",
    "src/deltalakedb/demo",
    "src/deltalakedb/importing",
    "src/deltalakedb/mirror",
    "src/deltalakedb/operations",
    "src/deltalakedb/reading",
    "src/deltalakedb/retention",
    "src/deltalakedb/service",
    "src/deltalakedb/snapshot",
    "src/deltalakedb/spark",
    "src/deltalakedb/staging",
    "src/deltalakedb/storage",
    "src/deltalakedb/store",
    "src/deltalakedb/transaction",
    # Modules of the root.
    *(f"src/deltalakedb/{path.name}" for path in sorted((ROOT / "src/deltalakedb").glob("*.py"))),
]
# Rooms of the code whose names and comments are clean, too.
NAMED = ["src/deltalakedb/spark"]


def _modules(paths: Iterable[str]) -> list[str]:
    return [
        str(module.relative_to(ROOT))
        for path in paths
        for module in (
            [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py"))
        )
    ]


def _forbidden(text: str) -> Iterator[str]:
    for match in FORBIDDEN.finditer(text):
        line = text[: match.start()].count("\n") + 1
        yield f"{line}: {text[max(0, match.start() - 40) : match.end() + 40]!r}"


def _prose(page: str) -> str:
    """The text of a page without its code; lines stay where they are."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"^ *```.*?^ *```", blank, page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", blank, text)


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_plain_words(page: str) -> None:
    assert list(_forbidden(_prose((ROOT / page).read_text("utf-8")))) == []


@pytest.mark.parametrize("module", _modules(CLEAN))
def test_texts_of_modules_use_plain_words(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    texts = (
        node.value
        for node in ast.walk(tree)
        # A sentence, not a key or a name.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    )
    assert [found for text in texts for found in _forbidden(_prose(text))] == []


def _defined(tree: ast.AST) -> Iterator[str]:
    """The names of functions, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@pytest.mark.parametrize("module", _modules(NAMED))
def test_names_and_comments_use_plain_words(module: str) -> None:
    text = (ROOT / module).read_text("utf-8")
    names = [name.replace("_", " ") for name in _defined(ast.parse(text))]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    assert [word for one in (*names, *comments) for word in _forbidden(one)] == []


def test_every_word_of_the_glossary_is_explained_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\*\*(.+)\*\*\n:   \S", page, re.MULTILINE)
    assert len(words) == len({word.lower() for word in words}) >= 40
    assert len(words) == len(re.findall(r"^\*\*", page, re.MULTILINE))
