"""Fixes in errors: values that are rendered for Python, the command line and Spark."""

import ast
import pickle
import re
import shlex
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from deltalakedb.advice import COMMANDS, FLAGS, OPTIONS, as_commands, as_spark, command_line, parse
from deltalakedb.errors import DeltaLakeDbError, Fix, Option

SOURCES = Path(__file__).resolve().parents[1] / "src" / "deltalakedb"
NAMES = [
    "sales.orders",
    "a b",
    "it's",
    '"',
    "<script>alert('no')</script>\"",
    "ä\\n",
    "line\nbreak",
    "-x",
    "`",
    "`lake.tables()`",
    "(",
    "❤",
    "…",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_fix_with_the_name_of_a_table_is_a_command(name: str) -> None:
    text = f"Compare them with {Fix('lake.verify', name)}, and see {Fix('lake.tables')}."
    assert as_commands(text) == (
        f"Compare them with `{command_line('verify', name)}`, and see `deltalakedb tables`."
    )
    words = shlex.split(command_line("verify", name))
    assert [word for word in words if word != "--"] == ["deltalakedb", "verify", name]


@pytest.mark.parametrize("name", NAMES)
def test_a_fix_is_read_back_from_its_text(name: str) -> None:
    for fix in (
        Fix("lake.verify", name),
        Fix("lake.import_table", "/x", name=name),
        Fix("lake.drop_table", name, force=True),
        Fix("lake.restore_expired", ...),
        Option("name", name),
        Option("name"),
        Option("version", 3),
    ):
        code = str(fix).removeprefix("`").removesuffix("`")
        assert "`" not in code
        assert str(parse(code)) == str(fix)


def test_an_error_takes_a_fix_or_text() -> None:
    error = DeltaLakeDbError("There is no table 'x'", fix=Fix("lake.tables"))
    assert error.fix == "`lake.tables()`"
    assert str(error) == "There is no table 'x'. `lake.tables()`."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    assert DeltaLakeDbError("No", fix="try again").fix == "try again"


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        (
            str(Fix("lake.import_table", "/x", name="a")),
            "`deltalakedb import /x --name a`",
        ),
        (str(Fix("lake.drop_table", "-x", force=True)), "`deltalakedb drop --force -- -x`"),
        (str(Fix("lake.export", "x", verify=False)), "`deltalakedb export x --no-verify`"),
        (str(Fix("lake.import_table", ...)), "`deltalakedb import`"),
        (f"({Fix('table.history')})", "(`deltalakedb history`)"),
        (
            f"Pass {Option('version', 3)}, or {Option('timestamp', '2026-11-01T00:00:00Z')}",
            "Pass `--version 3`, or `--timestamp 2026-11-01T00:00:00Z`",
        ),
        (f"Choose another one: {Option('name')}", "Choose another one: `--name`"),
        (str(Option("allow_short_retention", value=True)), "`--allow-short-retention`"),
        (str(Option("drop_features", value=False)), "`--keep-features`"),
        (f"Check {Option('storage_options')}", "Check `--storage-option`"),
    ],
)
def test_fixes_are_commands(text: str, rendered: str) -> None:
    assert as_commands(text) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "`lake.transaction()`",
        "`lake.unheard_of('x', y=1)`",
        "`lake.verify(name)`",
        "`lake.verify('x'`",
        "`lake.verify('x', deep=True)`",
        "`force=False`",
        "`owner='me'`",
        "`connect(…, on_drift='allow')`",
        # A condition, a name, a URL or the answer of a server is not a fix.
        "the condition 'version=3 AND force=True'",
        "the column `version`",
        "no table 'lake.tables'",
        "lake.tables()",
        "sqlite:///lake.tables",
        '<?xml version="1.0"?>',
        "raise timeout=… in the catalog URL",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert as_commands(text) == text


def test_a_stray_backtick_does_not_hide_a_fix() -> None:
    assert as_commands(f"column `x: {Fix('lake.tables')}") == "column `x: `deltalakedb tables`"


def test_spark_has_no_lake() -> None:
    assert as_spark(str(Fix("lake.table", "a"))) == "`DeltaTable.forName(spark, 'a')`"
    assert as_spark(str(Fix("lake.create_table", ...))) == "`DeltaTable.create(spark, …)`"
    assert as_spark(str(Fix("lake.adopt", "a"))) == "`connect(…).adopt('a')`"
    assert as_spark(str(Option("version", 3))) == "`.option('versionAsOf', 3)`"
    assert as_spark(str(Option("storage_options"))) == "`storage_options=…`"


def _errors_and_fixes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the modules that commands use, except the values themselves."""
    for path in SOURCES.rglob("*.py"):
        if "spark" not in path.parts and path.name not in ("advice.py", "errors.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                yield f"{path.name}:{getattr(node, 'lineno', 0)}", node


def _name(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def test_every_fix_has_a_command() -> None:
    fixes = 0
    for at, node in _errors_and_fixes():
        if not isinstance(node, ast.Call) or _name(node) not in ("Fix", "Option"):
            continue
        fixes += 1
        first, *values = [*node.args, *(one.value for one in node.keywords)]
        if not isinstance(first, ast.Constant):
            continue
        is_flag = any(isinstance(getattr(one, "value", None), bool) for one in values)
        flags: Container[object] = {name for name, _ in FLAGS}
        known = COMMANDS if _name(node) == "Fix" else flags if is_flag else OPTIONS
        assert first.value in known, at
    assert fixes > 40


def test_no_message_names_a_call_in_prose() -> None:
    """A call that is not a `Fix` would not be rendered for the command line."""
    prose = re.compile(r"\blake\.(?!db\b|duckdb\b)[a-z]|\b[a-z_]+=…(?!.* in the catalog URL)")
    left = {}
    for at, node in _errors_and_fixes():
        if isinstance(node, ast.keyword) and node.arg in ("fix", "why"):
            for part in ast.walk(node.value):
                text = getattr(part, "value", None)
                if isinstance(text, str) and prose.search(text) and text not in COMMANDS:
                    left[at] = text
    assert left == {}
