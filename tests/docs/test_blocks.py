"""No code block of README and docs is there that nobody runs or checks."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from deltalakedb.cli.app import app
from deltalakedb.store.url import parse_url

from doc_blocks import BASH, ROOT, Block, all_blocks

# Which module of tests runs all Python blocks of a page, from top to bottom.
PYTHON = {
    "README.md": "tests/unit/test_readme.py",
    "docs/quick-start.md": "tests/docs/test_postgres_pages.py",
    "docs/concepts/commits.md": "tests/store/test_commit_features.py",
    "docs/concepts/mirror.md": "tests/docs/test_other_pages.py",
    "docs/how-to/backup.md": "tests/docs/test_postgres_pages.py",
    "docs/how-to/connect.md": "tests/docs/test_postgres_pages.py",
    "docs/how-to/import.md": "tests/docs/test_other_pages.py",
    "docs/how-to/object-stores.md": "tests/docs/test_other_pages.py",
    "docs/how-to/roles.md": "tests/docs/test_postgres_pages.py",
    "docs/how-to/spark.md": "tests/spark/test_how_to.py",
    "docs/how-to/upgrade.md": "tests/docs/test_postgres_pages.py",
    **{
        f"docs/how-to/{name}.md": "tests/unit/test_how_to.py"
        for name in (
            *("checkpoints", "clone", "leave", "maintain", "mirror", "operate"),
            *("read", "retention", "runbook", "verify"),
        )
    },
}
# Which module of tests runs, or compares with what there is, all SQL blocks of a page.
SQL = {
    "docs/schema.md": "tests/migration/test_schema_docs.py",
    "docs/how-to/roles.md": "tests/docs/test_postgres_pages.py",
}
# Pages, and kinds of blocks in them, that nobody has to run, and why.
EXEMPT = {
    ("docs/explain.md", "sql"): "written by benchmarks/explain_patterns.py, which runs them",
    ("docs/explain.md", ""): "plans, written by the same run",
    ("docs/decisions/0003-indexes.md", "sql"): "an index that was tried and not taken",
    ("docs/schema.md", "mermaid"): "a drawing",
    # Written by tests/cli/test_wrong_usages.py, which runs them.
    ("docs/wrong-usages.md", "sh"): "wrong on purpose",
    ("docs/wrong-usages.md", "python"): "wrong on purpose",
}
# Words that begin a line of a shell block, beside ours and make: tools that users have.
TOOLS = frozenset(
    {"pip", "export", "curl", "createdb", "psql", "pg_dump", "pg_restore", "sqlite3", "docker"}
    | {"kubectl", "helm", "systemctl", "sudo", "cd", "git", "python", "mkdir", "umask"}
)
BLOCKS = list(all_blocks())


def _is_exempt(block: Block) -> bool:
    return (block.page, block.language) in EXEMPT


def _ids(block: Block) -> str:
    return f"{block.page}:{block.first_line[:30]}"


def _chosen(*languages: str) -> list[Block]:
    return [one for one in BLOCKS if one.language in languages and not _is_exempt(one)]


def test_every_block_says_what_it_is() -> None:
    known = {"python", "sh", "sql", "text", "ini", "yaml", "json", "mermaid"}
    wrong = [f"{_ids(one)} ({one.language})" for one in BLOCKS if one.language not in known]
    assert [one for one in wrong if not one.startswith("docs/explain.md")] == []


@pytest.mark.parametrize(("language", "run_by"), [("python", PYTHON), ("sql", SQL)])
def test_every_page_with_code_has_a_test_that_runs_it(
    language: str, run_by: dict[str, str]
) -> None:
    assert {block.page for block in _chosen(language)} == set(run_by)
    for page, module in run_by.items():
        assert Path(page).name in (ROOT / module).read_text("utf-8"), f"{module} runs {page}?"


def test_what_is_exempt_is_there() -> None:
    assert set(EXEMPT) <= {(block.page, block.language) for block in BLOCKS}


@pytest.mark.parametrize("block", _chosen("sh"), ids=_ids)
def test_commands_are_spelled_as_they_are(block: Block) -> None:
    checked = subprocess.run([BASH, "-n"], input=block.text, text=True, check=False)
    assert checked.returncode == 0
    for line in _commands(block.text):
        words = shlex.split(line, comments=True)
        if not words or words[0] in TOOLS - {"python"}:
            continue
        if words[0] == "deltalakedb":
            _check_command(words[1:])
        elif words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in targets), line
        elif words[:2] == ["python", "-m"]:
            module = ROOT.joinpath(*words[2].split("."))
            assert module.is_dir() or module.with_suffix(".py").is_file(), line
        else:
            assert words[0] in TOOLS, f"{block.page}: nobody knows what {line!r} is"


def _commands(text: str) -> list[str]:
    """Lines of a script that begin with a command; continued ones are put together."""
    joined = text.replace("\\\n", " ")
    lines = (line.strip().partition(" | ")[0].partition(" > ")[0] for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _check_command(words: list[str]) -> None:
    """Whether the command line takes these words: commands, options, number of arguments."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        name, *words = words
        found = command.commands.get(name)
        assert found is not None, f"there is no command {name!r}"
        command = found
    if not any(word.startswith("--catalog") for word in words):
        words = ["--catalog", "sqlite:///lake.db", *words]
    if "catalog" not in {parameter.name for parameter in command.params}:
        words = words[2:]
    command.make_context(command.name, words)


@pytest.mark.parametrize("block", _chosen("ini", "yaml", "text"), ids=_ids)
def test_other_blocks_are_well_formed(block: Block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    elif block.language == "ini":
        text = block.text if "[" in block.text else f"[all]\n{block.text}"
        reader = configparser.ConfigParser(strict=False, interpolation=None)
        reader.read_string(text)
        assert reader.sections()
    else:
        for url in re.findall(r"^(?:sqlite|duckdb|postgresql):\S+", block.text, re.MULTILINE):
            parse_url(url)
