"""Draw every result that has a goal: how much better or worse it is than asked for, as SVG.

Written by hand as in `plot_reading.py`, so that drawing needs nothing installed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, LINE = 900, 420, 90, 58, 18
MET, MISSED = "#0072b2", "#d55e00"
_ROW = re.compile(
    r"^\| (?P<what>[^|]+) \| (?P<value>[\d.]+) \| (?P<meaning>[^|]*) "
    r"\| (?P<goal>[≥≤] [\d.]+) \| (?:met|\*\*missed\*\*) \|$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A result beside its goal."""

    what: str
    value: float
    goal: str

    @property
    def margin(self) -> float:
        """Above 1: better than asked for, by that factor."""
        asked = float(self.goal.split()[1])
        value = max(self.value, 1e-9)
        return value / asked if self.goal.startswith("≥") else asked / value


def goals_of_page(page: str) -> list[Goal]:
    """The results that a page of published benchmarks shows with a goal."""
    return [
        Goal(f"{row['what'].strip()}: {row['meaning'].strip()}", float(row["value"]), row["goal"])
        for row in _ROW.finditer(page)
    ]


def draw(goals: Iterable[Goal]) -> str:
    """One bar a result, from the goal to what was measured, on a logarithmic axis."""
    rows = list(goals)
    height = TOP + LINE * len(rows) + 24
    widest = max((abs(math.log10(row.margin)) for row in rows), default=0.0)
    reach = max(0.1, min(2.0, widest))
    middle = LEFT + (WIDTH - LEFT - RIGHT) * 0.25
    scale = (WIDTH - RIGHT - middle) / reach
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
        ),
        "<title>Results beside their goals</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="12" y="24" font-size="16" font-weight="bold">Results beside their goals</text>',
        f'<text x="{middle:.1f}" y="44" text-anchor="middle">the goal</text>',
        f'<text x="{WIDTH - RIGHT}" y="44" text-anchor="end">better →</text>',
    ]
    for number, row in enumerate(rows):
        y = TOP + LINE * number
        length = max(-0.25 * reach, min(reach, math.log10(row.margin))) * scale
        begin, colour = (middle, MET) if length >= 0 else (middle + length, MISSED)
        wide = max(abs(length), 1.5)
        label = row.what if len(row.what) <= 72 else f"{row.what[:71]}…"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            (
                f'<rect x="{begin:.1f}" y="{y + 3}" width="{wide:.1f}" height="12" '
                f'fill="{colour}"><title>{escape(f"{row.value:g}, goal {row.goal}")}</title></rect>'
            ),
            f'<text x="{WIDTH - RIGHT + 8}" y="{y + 12}">{row.value:g} ({escape(row.goal)})</text>',
        ]
    parts.append(
        f'<line x1="{middle:.1f}" y1="{TOP - 6}" x2="{middle:.1f}" y2="{height - 18}" '
        'stroke="#444444"/>'
    )
    return "\n".join([*parts, "</svg>", ""])
