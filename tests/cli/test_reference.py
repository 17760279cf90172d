"""The command line as it is documented: the page, the contract of names, completion, progress."""

from __future__ import annotations

import json
import os
import pty
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

import deltalakedb
from deltalakedb.cli.app import app, run
from deltalakedb.store.roles import roles_down_script, roles_script

from support.lake import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = {
    *("migrate", "tables", "create", "import", "show", "files", "history", "verify", "export"),
    *("mirror run", "mirror once", "mirror status", "mirror retry"),
    *("optimize", "vacuum", "restore", "rebuild", "expire", "demo", "serve", "doctor"),
    *("drop", "roles"),
}
# They run until they are told to stop, or tell a story.
WITHOUT_JSON = {"mirror run", "serve", "demo"}


def _commands() -> Iterator[tuple[str, Any]]:
    top: Any = typer.main.get_command(app)
    for name, command in top.commands.items():
        inner = getattr(command, "commands", None)
        yield from (
            [(name, command)] if inner is None else ((f"{name} {n}", c) for n, c in inner.items())
        )


def test_the_page_of_commands_is_what_they_say() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "cli_docs.py"))["page"]()
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == page, "run scripts/cli_docs.py"


def test_every_promised_command_is_there_and_tells_itself_to_programs() -> None:
    found = dict(_commands())
    assert CONTRACT - set(found) == set()
    silent = {
        name
        for name, command in found.items()
        if "--json" not in {option for one in command.params for option in one.opts}
    }
    assert silent == WITHOUT_JSON
    for command in found.values():
        assert command.help
        assert all(one.help for one in command.params), command.name


def test_exit_codes_and_the_release_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "130 interrupted" in " ".join(capsys.readouterr().out.split())
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("deltalakedb 0.")


@pytest.mark.parametrize("arguments", [[], ["mirror"]])
def test_without_a_command_the_help_is_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert "Usage: deltalakedb" in out
    assert "status" in out or "history" in out
    assert err == ""


def test_the_module_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deltalakedb"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: deltalakedb" in done.stdout


def test_examples_of_the_help_are_commands() -> None:
    found = 0
    for name, command in _commands():
        for line in (command.epilog or "").splitlines():
            if line.startswith("deltalakedb "):
                found += 1
                words = shlex.split(line.partition(" | ")[0])[1:]
                assert words[: len(name.split())] == name.split()
                given = words[len(name.split()) :]
                if any(one.name == "catalog" for one in command.params):
                    given += ["--catalog", "sqlite:///lake.db"]
                command.make_context(name, given)
    assert found >= 15


def test_the_roles_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["roles"]) == 0
    assert capsys.readouterr().out == roles_script()
    assert run(["roles", "--down"]) == 0
    assert capsys.readouterr().out == roles_down_script()
    assert run(["roles", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sql": roles_script()}


def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None, "make needs it too"
    script = """
    deltalakedb --show-completion > completion.sh
    source completion.sh
    complete -p deltalakedb
    COMP_WORDS=(deltalakedb mirror st) COMP_CWORD=2
    _deltalakedb_completion deltalakedb
    echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        [bash, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["status"], done.stdout + done.stderr


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command with its errors on a terminal; what appears there."""

    def call(*arguments: str) -> str:
        ours, theirs = pty.openpty()
        seen: list[bytes] = []

        def read() -> None:
            # How the end of a terminal is told on Linux.
            with suppress(OSError):
                while block := os.read(ours, 1 << 16):
                    seen.append(block)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        with monkeypatch.context() as patched, os.fdopen(theirs, "w") as stream:
            patched.setenv("TERM", "xterm")
            patched.setattr(sys, "stderr", stream)
            assert run(arguments) == 0
        reader.join(10)
        os.close(ours)
        return b"".join(seen).decode()

    return call


def test_progress_is_shown_on_a_terminal_and_never_to_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_terminal: Callable[..., str]
) -> None:
    url = f"sqlite:///{tmp_path}/lake.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELTALAKEDB_CATALOG", url)
    with deltalakedb.connect(url) as lake:
        table = lake.create_table("orders", location="orders", schema=SCHEMA)
        table.append([{"id": 1}])
        table.append([{"id": 2}])
        for name in ("one", "two"):
            shutil.copytree("orders", name)
    for number, (command, *titles) in enumerate(
        (
            ("import one", "Reading versions", "Writing versions", "Comparing with the log"),
            (
                *("verify orders", "Listing the log", "Comparing versions"),
                *("Comparing checkpoints", "Replaying the log", "Checking the catalog"),
            ),
            ("repair orders", "Comparing versions", "Repairing"),
            ("optimize orders", "Finding small files", "Rewriting files"),
            ("vacuum orders", "Finding needed files", "Listing files", "Deleting files"),
            ("vacuum orders --dry-run", "Finding needed files", "Listing files"),
            ("expire orders", "Archiving versions"),
            ("mirror once", "Publishing versions"),
        )
    ):
        told = on_terminal(*command.split())
        assert [title for title in titles if title not in told] == [], command
        silent = command.replace("one", "two") if number == 0 else command
        assert on_terminal(*silent.split(), "--json") == "", command
