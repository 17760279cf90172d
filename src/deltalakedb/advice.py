"""What an error advises to do in Python, for whoever has no Python at hand.

An error says `lake.verify('sales.orders')`; at the command line, and on the operations page, that
is `deltalakedb verify sales.orders`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from typing import Final

_STRING: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_CALL: Final = re.compile(
    r"\blake\.(?P<name>(?:mirror\.)?\w+)"
    rf"(?:\((?:(?P<table>{_STRING})(?:,[^()]*)?|[^()]*)\))?"
)
_OPTIONS: Final = re.compile(r"\bstorage_options\b")
_COMMANDS: Final[Mapping[str, str]] = {
    "adopt": "adopt",
    "clone_table": "clone",
    "convert_table": "convert",
    "create_table": "create",
    "expire": "expire",
    "export": "export",
    "import_table": "import",
    "mirror.retry": "mirror retry",
    "mirror.run_once": "mirror once",
    "mirror.status": "mirror status",
    "repair": "repair",
    "restore_expired": "restore-expired",
    "table": "show",
    "tables": "tables",
    "verify": "verify",
}


def as_commands(text: str) -> str:
    """An error's advice for somebody at the command line: `lake.tables()` is a command there."""

    def command(match: re.Match[str]) -> str:
        name = _COMMANDS.get(match["name"])
        if name is None:
            return match[0]
        return f"`{command_line(name, *_given(match['table']))}`"

    return _OPTIONS.sub("the storage options (`--storage-option`)", _CALL.sub(command, text))


def command_line(name: str, *arguments: str) -> str:
    """A command with its arguments, as a shell takes them."""
    # Whatever begins with a hyphen would be taken for an option.
    end = ["--"] if any(one.startswith("-") for one in arguments) else []
    return shlex.join(["deltalakedb", *name.split(), *end, *arguments])


def _given(literal: str | None) -> tuple[str, ...]:
    if literal is None:
        return ()
    try:
        value = ast.literal_eval(literal)
    except (SyntaxError, ValueError):
        return ()
    return (value,) if value else ()
