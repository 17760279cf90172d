"""Write docs/cli.md from the commands themselves; with --check only say whether it is as it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from deltalakedb.cli.app import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
INTRODUCTION = """# The command line

The extra `cli` brings it ([install](how-to/deploy.md#install)); `python -m deltalakedb` is the same
program. `scripts/cli_docs.py` makes this page from the commands, and a test checks that it is
current.

Name the catalog with `--catalog URL` or in the variable `DELTALAKEDB_CATALOG`; keep passwords in a
variable too ([how](how-to/connect.md#passwords)). Output is for people, or with `--json` for
programs: one JSON document on standard output, in which `files` and `history` list everything
unless `--limit` says otherwise. Progress bars appear on standard error, only on a terminal, and not
with `--json`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused or failed: a paragraph says what, why and what to do ([examples](wrong-usages.md)) |
| 2 | wrong usage: an unknown command, an unknown option, or a value that cannot be used |
| 3 | done, but something needs your attention: drift, unpublished versions, a failed check |
| 130 | interrupted |

`deltalakedb --debug COMMAND` shows the traceback of an error too. After `deltalakedb
--install-completion`, Bash, Zsh, Fish and PowerShell complete commands and options.
"""


def page() -> str:
    """The whole page."""
    top: Any = typer.main.get_command(app)
    parts = [INTRODUCTION, _section("deltalakedb", top, level=2, usage=False)]
    for path, command in _commands(top, "deltalakedb"):
        parts.append(_section(path, command, level=2))
    return "\n".join(parts)


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _section(path: str, command: Any, *, level: int, usage: bool = True) -> str:
    shown = [one for one in command.params if not one.hidden and one.name != "help"]
    arguments = [one for one in shown if not _is_option(one)]
    options = [one for one in shown if _is_option(one)]
    lines = [f"{'#' * level} {path if usage else 'Options of all commands'}\n"]
    if usage:
        words = " ".join(_argument(one) for one in arguments)
        lines += [
            *(f"{_plain(text)}\n" for text in command.help.split("\n\n")),
            f"`{' '.join(f'{path} {words} [OPTIONS]'.split())}`\n",
        ]
    rows = [(_argument(one), _help(one)) for one in arguments]
    rows += [(_option(one), _help(one)) for one in options]
    lines += ["| | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows), ""]
    usual = [line for line in (command.epilog or "").splitlines() if line.startswith("deltalakedb")]
    if usual:
        lines += ["```sh", *usual, "```", ""]
    return "\n".join(lines)


def _is_option(one: Any) -> bool:
    return str(one.opts[0]).startswith("-")


def _argument(one: Any) -> str:
    name = one.metavar or str(one.name).upper()
    return name if one.required else f"[{name}]"


def _option(one: Any) -> str:
    names = ", ".join((*one.opts, *one.secondary_opts))
    return names if one.is_flag else f"{names} {one.metavar or str(one.name).upper()}"


def _help(one: Any) -> str:
    notes = []
    if _is_option(one) and one.required:
        notes.append("required")
    if one.envvar:
        notes.append(f"or the variable `{one.envvar}`")
    if one.default not in (None, False, True, ()):
        notes.append(f"default: `{getattr(one.default, 'value', one.default)}`")
    more = f" ({', '.join(notes)})" if notes else ""
    return f"{_plain(one.help or '')}{more}".strip()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("|", "\\|")).strip()


def main() -> int:
    """Write the page, or compare it; the exit code."""
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text("utf-8") == page():
            return 0
        sys.stderr.write("docs/cli.md is not what the commands say: run scripts/cli_docs.py\n")
        return 1
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
