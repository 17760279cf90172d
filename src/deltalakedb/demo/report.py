"""The output of the demo: chapters, sentences, checks, small tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_INDENT: Final = "   "


class Report:
    """Prints the demo, in colours on a terminal, and counts failed checks."""

    def __init__(self) -> None:
        tty = sys.stdout.isatty()
        self._console = Console(highlight=False, width=None if tty else 120, soft_wrap=not tty)
        self._started = time.monotonic()
        self._chapters = 0
        self.failed = 0

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        return time.monotonic() - self._started

    def title(self, text: str) -> None:
        """Print a title."""
        self._console.print(Text(text, style="bold"))

    def chapter(self, text: str) -> None:
        """Print the title of the next chapter."""
        self._chapters += 1
        line = Text(f"\n{self._chapters}. {text}", style="bold cyan")
        line.append(f"  {self.seconds:.0f} s", style="dim")
        self._console.print(line)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a sentence, or several lines."""
        for line in text.splitlines():
            self._console.print(Text(_INDENT + line, style=style))

    def command(self, text: str) -> None:
        """Print a command in one line, however narrow the terminal is."""
        self._console.print(Text(f"{_INDENT}  {text}"), soft_wrap=True)

    def check(self, text: str, *, ok: bool) -> None:
        """Print the result of a check."""
        self.failed += not ok
        mark, style = ("✓", "green") if ok else ("✗ NOT TRUE:", "bold red")
        self._console.print(Text(f"{_INDENT}{mark} {text}", style=style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a few rows."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("  ")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row("", *(Text(str(cell)) for cell in row))
        self._console.print(table)
