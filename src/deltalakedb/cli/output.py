"""The output of commands: tables and text for people, or JSON for programs, never both.

Names and messages are untrusted: they are printed as text, never as markup or control sequences.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deltalakedb.advice import as_commands
from deltalakedb.formatting import duration, moment, size

__all__ = [
    "as_commands",
    "cell_text",
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
    "size",
]


def console(*, stderr: bool = False) -> Console:
    """Where to print; as wide as the terminal, or as wide as it takes where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(
        file=stream, width=width, highlight=False, emoji=False, soft_wrap=not stream.isatty()
    )


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
        table.add_row(*(cell_text(cell) for cell in row))
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
        table.add_row(cell_text(name), cell_text(value))
    console().print(table)


def say(text: str) -> None:
    """A sentence for people."""
    console().print(printable(text), markup=False)


def cell_text(value: object) -> str:
    """A value in a table."""
    if value is None:
        return ""
    if isinstance(value, (dict, list, tuple)):
        return escape(printable(json.dumps(value, ensure_ascii=False, default=str)))
    return escape(printable(str(value)))


def printable(text: str) -> str:
    """Text without what would move the cursor or colour the terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )
