"""The command line as it is documented: the page, the contract of names, completion, progress."""

from __future__ import annotations

import os
import pty
import runpy
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
from deltalakedb.cli.output import as_commands

from fix_lake import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = {
    *("migrate", "tables", "create", "import", "show", "files", "history", "verify", "export"),
    *("mirror run", "mirror once", "mirror status", "mirror retry"),
    *("optimize", "vacuum", "restore", "rebuild", "expire", "demo", "serve", "doctor"),
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


def test_advice_names_commands() -> None:
    told = as_commands("See lake.verify('a b'); lake.mirror.run_once() or lake.drop_table('x')")
    assert told == (
        "See `deltalakedb verify 'a b'`; `deltalakedb mirror once` or lake.drop_table('x')"
    )


def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
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
    for number, (command, title) in enumerate(
        (
            ("import one", "Reading versions"),
            ("verify orders", "Comparing versions"),
            ("optimize orders", "Compacting"),
            ("vacuum orders", "Deleting"),
            ("mirror once", "Publishing versions"),
        )
    ):
        told = on_terminal(*command.split())
        assert title in told, command
        silent = command.replace("one", "two") if number == 0 else command
        assert on_terminal(*silent.split(), "--json") == "", command
