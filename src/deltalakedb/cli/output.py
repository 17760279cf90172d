"""What commands print: tables and text for people, JSON for programs, never both.

Names and messages come from anybody: they are shown as text, never as markup or control sequences.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deltalakedb.readable import duration, moment, size

__all__ = [
    "as_commands",
    "console",
    "duration",
    "moment",
    "printable",
    "say",
    "show_fields",
    "show_json",
    "show_json_list",
    "show_pairs",
    "show_rows",
    "shown",
    "size",
]

# What an error advises to call in Python, and the command that does it.
_COMMANDS = {
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
_OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("archive", "name", "older_than", "partition_schema", "retention_hours", "since"),
        *("timestamp", "until", "version"),
    )
}
_FLAGS = {
    "allow_short_retention=True": "--allow-short-retention",
    "drop_features=False": "--keep-features",
    "force=True": "--force",
    "replace=True": "--replace",
    "verify=False": "--no-verify",
}
_WORDS = {"partition_schema": "--partition-schema", "storage_options": "--storage-option"}
_QUOTED = r"'(?:[^'\\]|\\.)*'"
_TEXT = rf"""(?:{_QUOTED}|"(?:[^"\\]|\\.)*")"""
_KEYWORD = (
    rf"(?P<flag>{'|'.join(_FLAGS)})\b"
    rf"|(?P<option>{'|'.join(_OPTIONS)})=(?P<value>…|{_QUOTED}|[0-9]+\b)"
)
_ADVICE = re.compile(
    # What somebody typed is shown in quotes, and stays as it is.
    rf"(?<![^\s(\[])(?P<quoted>{_TEXT})"
    r"|(?<![\w/.'\"-])(?:"
    rf"(?P<call>{'|'.join(sorted(map(re.escape, _COMMANDS), reverse=True))})\b"
    rf"(?:\((?P<given>(?:{_TEXT}|[^()'\"])*)\))?"
    rf"|{_KEYWORD}|(?P<word>{'|'.join(_WORDS)})\b)"
)
_GIVEN = re.compile(rf"{_KEYWORD}|(?P<place>{_TEXT})")


def console(*, stderr: bool = False) -> Console:
    """Where to print; as wide as the terminal, or as wide as it takes where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty())


def show_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def show_json_list(values: Iterable[Any]) -> None:
    """One JSON document: a list, written as its values come."""
    opened = False
    for value in values:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
        sys.stdout.write(",\n" if opened else "[\n")
        sys.stdout.write(indent(text, "  "))
        opened = True
    sys.stdout.write("\n]\n" if opened else "[]\n")


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Rows under titles, or a sentence where there are none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    if table.row_count:
        console().print(table)
    else:
        console().print(empty)


def show_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    show_pairs(fields.items())


def show_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Short words, and beside each as many lines as it takes."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(shown(name), shown(value))
    console().print(table)


def say(text: str) -> None:
    """A sentence for people."""
    console().print(printable(text), markup=False)


def shown(value: object) -> str:
    """A value in a table."""
    if value is None:
        return ""
    if isinstance(value, (dict, list, tuple)):
        return escape(printable(json.dumps(value, ensure_ascii=False, default=str)))
    return escape(printable(str(value)))


def as_commands(text: str) -> str:
    """An error's advice for somebody at the command line.

    Calls become commands (`lake.verify('a')` is `deltalakedb verify a`), arguments become options
    (`force=True` is --force); everything else stays, also what somebody has typed.
    """
    return _ADVICE.sub(_as_command, text)


def _as_command(match: re.Match[str]) -> str:
    if match["quoted"]:
        return match[0]
    if match["word"]:
        return _WORDS[match["word"]]
    if not match["call"]:
        return _as_option(match)
    words = [f"deltalakedb {_COMMANDS[match['call']]}"]
    words += [
        _shell_word(one["place"]) if one["place"] else _as_option(one)
        for one in _GIVEN.finditer(match["given"] or "")
    ]
    return f"`{' '.join(words)}`"


def _as_option(match: re.Match[str]) -> str:
    if match["flag"]:
        return _FLAGS[match["flag"]]
    option, value = _OPTIONS[match["option"]], match["value"]
    return option if value == "…" else f"{option} {_shell_word(value)}"


def _shell_word(literal: str) -> str:
    """A value of Python as a word of a shell."""
    return shlex.quote(str(ast.literal_eval(literal)))


def printable(text: str) -> str:
    """Text without what would move the cursor or colour the terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )
