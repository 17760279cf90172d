"""Plots as coordinates; `templates/parts.html` draws them as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

# About as many pixels as a plot gets, so that its letters are as large as those around it.
_NARROW, _WIDE, _HEIGHT = 520, 1060, 190
_LEFT, _RIGHT, _BOTTOM, _TOP = 76, 8, 26, 12
_ROOM: Final = _HEIGHT - _BOTTOM - _TOP


class Label(NamedTuple):
    """A text at a point."""

    text: str
    x: str
    y: str
    anchor: Literal["start", "middle", "end"]


class Line(NamedTuple):
    """A horizontal line."""

    kind: Literal["axis", "grid"]
    y: str
    x1: int
    x2: int


class Bar(NamedTuple):
    """A bar, with the text that a pointer shows."""

    title: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of bars, or of a line through `points` with the `area` below it."""

    title: str
    width: int
    lines: Sequence[Line]
    labels: Sequence[Label]
    bars: Sequence[Bar] = ()
    points: str = ""
    area: str = ""
    height: int = _HEIGHT

    @property
    def wide(self) -> bool:
        """Whether it takes the whole width of a page."""
        return self.width == _WIDE


def plot_bars(
    counts: Sequence[tuple[str, int]], *, title: str, ends: tuple[str, str] | None = None
) -> Plot:
    """A bar for each label, on a wide plot.

    `ends` are the labels below the two ends, in place of one for each bar.
    """
    highest = max((count for _, count in counts), default=0) or 1
    step = (_WIDE - _LEFT - _RIGHT) / max(1, len(counts))
    gap = min(6.0, step / 5)
    lines, labels = _grid(highest, "{:,}".format, _WIDE)
    bars = []
    for place, (label, count) in enumerate(counts):
        height = _ROOM * count / highest
        left = _LEFT + place * step
        bars.append(
            Bar(
                f"{label}: {count:,}",
                _decimal(left + gap / 2),
                _decimal(_TOP + _ROOM - height),
                _decimal(step - gap),
                _decimal(height),
            )
        )
        if ends is None:
            labels.append(_label(label, left + step / 2, _HEIGHT - 8, "middle"))
    if ends is not None:
        labels += _ends(ends, _WIDE)
    return Plot(title, _WIDE, lines, labels, bars)


def plot_line(
    points: Sequence[tuple[float, int]],
    *,
    title: str,
    ends: tuple[str, str],
    unit: Callable[[int], str] = "{:,}".format,
) -> Plot:
    """A line through points from left to right; `ends` are the labels below its two ends."""
    first, last = points[0][0], points[-1][0]
    highest = max(value for _, value in points) or 1
    span = (last - first) or 1
    places = [
        f"{_decimal(_LEFT + (_NARROW - _LEFT - _RIGHT) * (at - first) / span)},"
        f"{_decimal(_TOP + _ROOM - _ROOM * value / highest)}"
        for at, value in points
    ]
    low = _TOP + _ROOM
    below = [f"{_NARROW - _RIGHT},{low}", f"{_LEFT},{low}"]
    lines, labels = _grid(highest, unit, _NARROW)
    return Plot(
        title,
        _NARROW,
        lines,
        [*labels, *_ends(ends, _NARROW)],
        points=" ".join(places),
        area=" ".join([*places, *below]),
    )


def _grid(highest: int, unit: Callable[[int], str], width: int) -> tuple[list[Line], list[Label]]:
    """The axis, a line at about half and one at full height, each with its number."""
    lines = [_line("axis", _TOP + _ROOM, width)]
    labels = [_label("0", _LEFT - 8, _TOP + _ROOM + 4, "end")]
    for value in {highest // 2 or highest, highest}:
        y = _TOP + _ROOM - _ROOM * value / highest
        lines.append(_line("grid", y, width))
        labels.append(_label(unit(value), _LEFT - 8, y + 4, "end"))
    return lines, labels


def _ends(ends: tuple[str, str], width: int) -> list[Label]:
    return [
        _label(ends[0], _LEFT, _HEIGHT - 8, "start"),
        _label(ends[1], width - _RIGHT, _HEIGHT - 8, "end"),
    ]


def _line(kind: Literal["axis", "grid"], y: float, width: int) -> Line:
    return Line(kind, _decimal(y), _LEFT, width - _RIGHT)


def _label(text: str, x: float, y: float, anchor: Literal["start", "middle", "end"]) -> Label:
    return Label(text, _decimal(x), _decimal(y), anchor)


def _decimal(number: float) -> str:
    return f"{number:.1f}"
