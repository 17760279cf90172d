"""No code block of README and docs is there that nobody runs or checks."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from deltalakedb.cli.app import app
from deltalakedb.cli.app import run as command_line
from deltalakedb.store.url import parse_url

from support.doc_blocks import BASH, EXCUSED, ROOT, Block, Reader, all_blocks, blocks_in, excuse

# Written by programs that run what is in them.
GENERATED = ("docs/explain.md", "docs/wrong-usages.md")
BLOCKS = [block for block in all_blocks() if block.page not in GENERATED]
# Words that begin a command, beside ours and what is excused: tools that users have.
TOOLS = {
    *("export", "createdb", "psql", "pg_dump", "pg_restore", "sqlite3"),
    *("cd", "mkdir", "umask", "python", "python3", "chmod", "printf", ".venv/bin/python"),
    *("awk", "install", "spark-submit", "beeline"),
}
LANGUAGES = {"python", "sh", "sql", "text", "ini", "yaml"}


def _ids(block: Block) -> str:
    return f"{block.page}:{block.first_line[:30]}"


def _chosen(*languages: str) -> list[Block]:
    return [one for one in BLOCKS if one.language in languages]


def test_every_block_says_what_it_is() -> None:
    assert [_ids(one) for one in BLOCKS if one.language not in LANGUAGES] == []


def test_every_command_that_is_excused_is_there() -> None:
    commands = [command for block in _chosen("sh") for command in block.commands]
    used = {start for start in EXCUSED for command in commands if f"{command} ".startswith(start)}
    assert set(EXCUSED) == used


@pytest.mark.parametrize("block", _chosen("sh"), ids=_ids)
def test_commands_are_spelled_as_they_are(block: Block) -> None:
    checked = subprocess.run([BASH, "-n"], input=block.text, text=True, check=False)
    assert checked.returncode == 0
    for line in block.commands:
        words = shlex.split(re.split(r" [>|] ", line)[0], comments=True)
        if words[0] == "deltalakedb":
            _check_command(words[1:])
        elif words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in targets), line
        elif words[:2] == [".venv/bin/python", "-m"]:
            module = ROOT.joinpath(*words[2].split("."))
            assert module.is_dir() or module.with_suffix(".py").is_file(), line
        elif "install" in words and any("pip" in Path(word).name for word in words):
            _check_extras(line)
        else:
            assert excuse(line) or words[0] in TOOLS, f"{block.page}: nobody knows {line!r}"


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


def _check_extras(line: str) -> None:
    """Whether there are the extras that pip is asked for; there is no release to be named yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = re.findall(r"\[([\w,]+)\]", line)
    assert {name for some in asked for name in some.split(",")} <= set(
        project["optional-dependencies"]
    )
    assert not re.search(r"[ ']deltalakedb\b", line), "it is not on PyPI"


def test_commands_that_the_runbook_names_in_passing_are_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs/how-to/runbook.md").read_text("utf-8")
    named = set(re.findall(r"deltalakedb ((?:mirror )?[a-z][a-z-]+)(?=[ `])", text))
    assert len(named) >= 12
    for command in named:
        assert command_line([*command.split(), "--help"]) == 0, command
        capsys.readouterr()


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/deploy.md", "docs/how-to/upgrade.md"])
def test_pages_that_install_name_the_note_about_releases(page: str) -> None:
    assert "quick-start.md#until-the-first-release" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("block", _chosen("ini", "yaml", "text"), ids=_ids)
def test_other_blocks_are_well_formed(block: Block) -> None:
    if block.language == "ini":
        text = block.text if "[" in block.text else f"[all]\n{block.text}"
        reader = configparser.ConfigParser(strict=False, interpolation=None)
        reader.read_string(text)
        assert reader.sections()
    elif block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    else:
        for url in re.findall(r"^(?:sqlite|duckdb|postgresql):\S+", block.text, re.MULTILINE):
            parse_url(url)


# --- the reader itself: what is wrong on a page is found --------------------------------------

WRONG = {
    "Python that fails": "```python\n1 / 0\n```\n",
    "a command that fails": "```sh\nfalse\n```\n",
    "a command of ours that fails": "```sh\ndeltalakedb tables --catalog sqlite:///no/such.db\n```\n",
    "a command after one that is excused": "```sh\nmake dist\nfalse\n```\n",
    "a program that there is not": "```sh\nno-such-program\n```\n",
    "a variable that nobody has set": '```sh\necho "$NO_SUCH_VARIABLE"\n```\n',
    "a name that nobody has defined": "```python\nprint(spark)\n```\n",
    "something else is printed": "```python\nprint(1)\n```\n\nIt prints:\n\n```text\n2\n```\n",
    "a language that nobody runs": "```rust\nfn main() {}\n```\n",
    "SQL that nobody runs": "```sql\nSELECT 1;\n```\n",
    "a script that fails": "```python\n1 / 0\n```\n\n```sh\n.venv/bin/python it.py\n```\n",
}


@pytest.mark.parametrize("page", WRONG.values(), ids=WRONG)
def test_a_reader_meets_what_is_wrong(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, ArithmeticError, NameError)):
        Reader().paste(blocks_in("a page", page))


def test_a_reader_has_one_shell_and_one_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAID_BEFORE", "something else")
    page = (
        "```sh\nmkdir inner\ncd inner\nexport SAID_BEFORE='a b'\n```\n"
        "```python\nimport os\n\nthere = os.environ['SAID_BEFORE'], os.getcwd()[-5:]\n```\n"
        "  1. In a list:\n\n      ```python\n      print(*there)\n      ```\n\n"
        "It prints:\n\n```text\na b inner\n```\n"
    )
    reader = Reader()
    reader.paste(blocks_in("a page", page))
    assert reader.printed == ["a b inner"]
    assert [outcome for _, outcome in reader.outcomes] == ["ran", "ran", "ran", "compared"]
