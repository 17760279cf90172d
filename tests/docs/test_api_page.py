"""The API page names whatever the documentation uses, and nothing that is not there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import deltalakedb
from deltalakedb import service as web
from deltalakedb import spark
from deltalakedb.lake import Lake
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.table import Table
from deltalakedb.transaction.transaction import Transaction

from support.doc_blocks import ROOT, all_blocks

PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
ENTRIES = re.findall(r"^::: (deltalakedb\.[\w.]+)((?:\n {4}.*)*)", PAGE, re.MULTILINE)
# Of a function in a module of its name, the heading says what it is called.
NAMES = {
    heading[1] if (heading := re.search(r"heading: (\S+)", options)) else name
    for name, options in ENTRIES
} | {
    f"{name}.{member.strip()}"
    for name, options in ENTRIES
    for members in re.findall(r"members: \[(.*)\]", options)
    for member in members.split(",")
}
# Types of Python and Spark, and those of ours that only our own code looks into.
OTHERS = {
    "AbstractContextManager",
    "Any",
    "Callable",
    "DataFrame",
    "Iterable",
    "Iterator",
    "None",
    "Self",
}
INTERNAL = {"Handle", "Storage", "TableRecord", "TableState", "Action"}


def _object(path: str) -> Any:
    parent, _, name = path.rpartition(".")
    if not parent:
        return importlib.import_module(name)
    try:
        return getattr(_object(parent), name)
    except AttributeError:  # a module that nobody has imported yet
        return importlib.import_module(path)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_is_on_the_page_is_there_and_explained(name: str) -> None:
    found = _object(name)
    assert inspect.getdoc(found)
    assert not inspect.ismodule(found) or name in ("deltalakedb.actions", "deltalakedb.errors")


@pytest.mark.parametrize("module", [deltalakedb, spark, web], ids=lambda m: m.__name__)
def test_public_names_are_on_the_page(module: Any) -> None:
    assert [name for name in module.__all__ if f"{module.__name__}.{name}" not in NAMES] == []


def _imported() -> Iterator[tuple[str, str]]:
    for block in all_blocks():
        if block.language != "python" or block.page == "docs/wrong-usages.md":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deltalakedb"):
                yield from ((block.page, f"{node.module}.{alias.name}") for alias in node.names)


def test_what_examples_import_is_on_the_page() -> None:
    assert [
        f"{page}: {name}"
        for page, name in _imported()
        if name not in NAMES and name.rpartition(".")[0] not in NAMES
    ] == []


@pytest.mark.parametrize("kind", [Lake, Table, Transaction, Mirror])
def test_types_that_methods_return_are_on_the_page(kind: type) -> None:
    known = {name.rpartition(".")[2] for name in NAMES}
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            returned = inspect.signature(method).return_annotation
            types = set(re.findall(r"\b[A-Z]\w+", str(returned)))
            assert types <= known | OTHERS | INTERNAL, f"{name}: {returned}"
