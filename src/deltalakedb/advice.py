"""What an error advises to do in Python, for whoever has no Python at hand.

An error says `lake.drop_table('sales.orders', force=True)`; at the command line, and on the
operations page, that is `deltalakedb drop sales.orders --force`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

# What an error advises to call, and the command that does it.
_COMMANDS: Final[Mapping[str, str]] = {
    "lake.adopt": "adopt",
    "lake.clone_table": "clone",
    "lake.convert_table": "convert",
    "lake.create_table": "create",
    "lake.discard_import": "import --discard",
    "lake.drop_table": "drop",
    "lake.expire": "expire",
    "lake.export": "export",
    "lake.import_table": "import",
    "lake.mirror.retry": "mirror retry",
    "lake.mirror.run": "mirror run",
    "lake.mirror.run_once": "mirror once",
    "lake.mirror.status": "mirror status",
    "lake.repair": "repair",
    "lake.restore_expired": "restore-expired",
    "lake.table": "show",
    "lake.tables": "tables",
    "lake.verify": "verify",
    "snapshot.files": "files",
    "table.history": "history",
}
# Arguments that are called the same on the command line, and those with one value that are not.
_OPTIONS: Final = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("archive", "name", "older_than", "partition_schema", "retention_hours", "since"),
        *("timestamp", "until", "version"),
    )
}
_FLAGS: Final = {
    "allow_short_retention=True": "--allow-short-retention",
    "drop_features=False": "--keep-features",
    "force=True": "--force",
    "replace=True": "--replace",
    "verify=False": "--no-verify",
}
_WORDS: Final = {"partition_schema": "--partition-schema", "storage_options": "--storage-option"}
_QUOTED: Final = r"'(?:[^'\\]|\\.)*'"
_TEXT: Final = rf"""(?:{_QUOTED}|"(?:[^"\\]|\\.)*")"""
_KEYWORD: Final = (
    rf"(?P<flag>{'|'.join(_FLAGS)})\b"
    rf"|(?P<option>{'|'.join(_OPTIONS)})=(?P<value>…|{_QUOTED}|[0-9]+\b)"
)
_ADVICE: Final = re.compile(
    # What somebody typed is shown in quotes, and stays as it is.
    rf"(?<![^\s(\[])(?P<quoted>{_TEXT})"
    r"|(?<![\w/.'\"-])(?:"
    rf"(?P<call>{'|'.join(sorted(map(re.escape, _COMMANDS), reverse=True))})\b"
    rf"(?:\((?P<given>(?:{_TEXT}|[^()'\"])*)\))?"
    rf"|{_KEYWORD}|(?P<word>{'|'.join(_WORDS)})\b)"
)
_GIVEN: Final = re.compile(rf"{_KEYWORD}|(?P<place>{_TEXT})")


def as_commands(text: str) -> str:
    """An error's advice for somebody at the command line.

    Calls become commands (`lake.verify('a')` is `deltalakedb verify a`), arguments become options
    (`force=True` is --force); everything else stays, also what somebody has typed.
    """
    return _ADVICE.sub(_as_command, text)


def command_line(name: str, *arguments: str, options: Iterable[str] = ()) -> str:
    """A command with its arguments, as a shell takes them."""
    # Whatever begins with a hyphen would be taken for an option.
    if any(one.startswith("-") for one in arguments):
        return shlex.join(["deltalakedb", *name.split(), *options, "--", *arguments])
    return shlex.join(["deltalakedb", *name.split(), *arguments, *options])


def _as_command(match: re.Match[str]) -> str:
    if match["quoted"]:
        return match[0]
    if match["word"]:
        return _WORDS[match["word"]]
    if not match["call"]:
        return shlex.join(_as_option(match))
    given = list(_GIVEN.finditer(match["given"] or ""))
    places = [_value(one["place"]) for one in given if one["place"]]
    options = [word for one in given if not one["place"] for word in _as_option(one)]
    named = command_line(
        _COMMANDS[match["call"]], *(place for place in places if place), options=options
    )
    return f"`{named}`"


def _as_option(match: re.Match[str]) -> list[str]:
    if match["flag"]:
        return [_FLAGS[match["flag"]]]
    option, value = _OPTIONS[match["option"]], match["value"]
    return [option] if value == "…" else [option, _value(value)]


def _value(literal: str) -> str:
    """A literal of Python as text."""
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError):
        return ""
