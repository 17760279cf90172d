"""The code blocks of README and docs, and a reader who pastes them, page by page.

`Reader.read(page)` does with every block of a page what a stranger would do with it, in order: runs
Python in one interpreter and commands in one shell, whose folder and variables last. What is not
run is in `EXCUSED`, with the reason, or is no program: `text`, `ini`, `yaml`. Anything else fails
the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deltalakedb.cli.app import run as command_line
from deltalakedb.lake import Lake

BASH = shutil.which("bash") or "bash"
ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)

# Commands that no test of a page runs, by how they begin, and why. Their spelling is checked all
# the same: options and arguments of ours, targets of make, extras that pip is asked for.
EXCUSED: Mapping[str, str] = {
    "make ": "takes minutes; tests/spark/test_demo.py tells the demo, and .ci/run runs the tests",
    "pip install ": "fetches packages; `make dist` installs the wheel with each extra",
    "source .venv/bin/activate": "the tests run in such an environment already",
    ".venv/bin/python -m benchmarks": "rewrites a page from the results of a benchmark",
    "sudo ": "changes the machine; tests/project/test_deploy.py reads the unit, systemd checks it",
    "docker ": "needs Docker; tests/project/test_deploy.py reads the compose file and the image",
    "curl ": "asks the operations page at its port; tests/service/test_requests.py does it",
    "deltalakedb serve --catalog postgresql://etl@db/": "db is no server; tests/service do it",
}
# Commands that run until they are told to stop, and what they say when they have started.
_LASTING = ("deltalakedb serve", "deltalakedb mirror run")
_STARTED = re.compile("http://|started")
_PORT = re.compile(r"--(?:metrics-)?port \d+")

# What a command has that only a shell can do.
_SHELL_ONLY = re.compile(r"[|;&<`]|\$\(")
# A block that is followed by this is saved in the file, and not pasted.
_SCRIPT = re.compile(r"\.venv/bin/python (\w+\.py)")

Outcome = Literal["ran", "saved", "excused", "compared", "no program"]


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page, and the last line of text before it."""

    page: str
    language: str
    text: str
    introduced: str = ""

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0]

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block; continued lines are put together, comments left out."""
        lines = (line.strip() for line in self.text.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks_in(page: str, text: str) -> list[Block]:
    """The code blocks of a text, in order; those in a list without its indentation."""
    found = []
    for match in _BLOCK.finditer(text):
        code = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        found.append(Block(page, match[2].strip(), code, before))
    return found


def blocks_of(page: str) -> list[Block]:
    """The code blocks of one page."""
    return blocks_in(page, (ROOT / page).read_text("utf-8"))


def pages() -> list[str]:
    """README and all pages of the site."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(page.relative_to(ROOT).as_posix() for page in found)]


def all_blocks() -> Iterator[Block]:
    """Every code block there is."""
    for page in pages():
        yield from blocks_of(page)


def excuse(command: str) -> str | None:
    """Why a command is not run; None for one that is."""
    return next((why for start, why in EXCUSED.items() if f"{command} ".startswith(start)), None)


@dataclass(slots=True)
class Reader:
    """Somebody at a shell and a Python, in the folder and the environment of this process.

    `sql` runs a block of SQL. `instead` has what happens in the place of an excused command, by how
    it begins: what it would have made. `replaced` are addresses of servers that are only examples.
    """

    sql: Callable[[str], None] | None = None
    instead: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """How commands begin that are not run this time."""
    printed: list[str] = field(default_factory=list)
    """The lines that Python has printed."""
    outcomes: list[tuple[Block, Outcome]] = field(default_factory=list)
    _said: str = ""

    def read(self, page: str) -> None:
        """Paste all blocks of a page, from top to bottom."""
        self.paste(blocks_of(page))

    def paste(self, blocks: list[Block]) -> None:
        """Do with each block what is to be done with it."""
        names: dict[str, object] = {}
        followers = [*blocks[1:], None]
        try:
            for block, follower in zip(blocks, followers, strict=True):
                self.outcomes.append((block, self._one(block, follower, names)))
        finally:
            # A script of somebody's own ends here.
            for value in names.values():
                if isinstance(value, Lake):
                    value.close()

    def _one(self, block: Block, follower: Block | None, names: dict[str, object]) -> Outcome:
        text = block.text
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        if block.language == "python":
            if follower is not None and (script := _SCRIPT.fullmatch(follower.text.strip())):
                Path(script[1]).write_text(text, "utf-8")
                return "saved"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, block.page, "exec"), names)  # noqa: S102 - that is the test
            self._said = out.getvalue()
            self.printed += self._said.splitlines()
            return "ran"
        if block.language == "sh":
            return self._shell(Block(block.page, "sh", text))
        if block.language == "sql":
            assert self.sql is not None, f"{block.page}: nobody runs {block.first_line}"
            self.sql(text)
            return "ran"
        if block.language == "text" and block.introduced.endswith("prints:"):
            assert self._said.splitlines() == text.splitlines(), f"{block.page} prints"
            return "compared"
        assert block.language in ("text", "ini", "yaml"), (
            f"{block.page}: what is {block.language!r}?"
        )
        return "no program"

    def _shell(self, block: Block) -> Outcome:
        """Run a block; command by command, where some of it is ours or is excused."""
        if not any(one.startswith("deltalakedb ") or excuse(one) for one in block.commands):
            self._said = _bash(block.page, block.text)
            return "ran"
        ran = False
        for command in block.commands:
            if excuse(command):
                for start, happens in self.instead.items():
                    if command.startswith(start):
                        happens()
                continue
            ran = True
            if command.startswith(self.left_out):
                continue
            if command.startswith(_LASTING):
                _start_and_stop(block.page, command)
            elif command.startswith("deltalakedb ") and not _SHELL_ONLY.search(command):
                self._said = _ours(block.page, command)
            else:
                self._said = _bash(block.page, command)
        return "ran" if ran else "excused"


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def _ours(page: str, command: str) -> str:
    """Run our command line in this process, which takes a tenth of the time of a new one."""
    command, _, target = command.partition(" > ")
    words = [os.path.expandvars(word) for word in shlex.split(command, comments=True)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command_line(words[1:])
    assert code == 0, f"{page}: {command} ends with {code}\n{out.getvalue()}{err.getvalue()}"
    if target:
        Path(target).write_text(out.getvalue(), "utf-8")
    return out.getvalue()


def _bash(page: str, script: str) -> str:
    """Run a script and give what it prints; its variables and its folder are ours afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder, "environment")
        done = subprocess.run(
            [BASH, "-euo", "pipefail", "-c", f"{script}\nenv -0 > {shlex.quote(str(left))}"],
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{page}: {script}\n{done.stdout}{done.stderr}"
        entries = dict(entry.split("=", 1) for entry in left.read_text().split("\0") if entry)
    os.chdir(entries["PWD"])
    kept = {name: value for name, value in entries.items() if name.isupper()}
    os.environ.update(
        {name: kept[name] for name in kept.keys() - {"PATH", "PWD", "OLDPWD", "SHLVL"}}
    )
    return done.stdout


def _start_and_stop(page: str, command: str) -> None:
    """Start a command that runs until SIGTERM, at any port that is free, and stop it."""
    words = shlex.split(_PORT.sub("", command), comments=True)
    words += ["--port" if "serve" in words else "--metrics-port", "0"]
    with subprocess.Popen(
        words, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        timer = threading.Timer(60, process.kill)
        timer.start()
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if _STARTED.search(line):
                    process.terminate()
            # It may not have come to where it ends in order.
            assert process.wait() in (0, -signal.SIGTERM), f"{page}: {command}\n{''.join(said)}"
        finally:
            timer.cancel()
            process.kill()
