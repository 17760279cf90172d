"""Plots as SVG inside a page: no script, no style attribute, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deltalakedb.web.markup import Markup, element

WIDTH, HEIGHT = 720, 200
_LEFT, _BOTTOM, _TOP = 80, 24, 8


def bars(
    counts: Sequence[tuple[str, int]], *, title: str, shown: Callable[[int], str] = str
) -> Markup:
    """A bar for each label."""
    most = max((count for _, count in counts), default=0) or 1
    step = (WIDTH - _LEFT) / max(1, len(counts))
    room = HEIGHT - _BOTTOM - _TOP
    parts: list[Markup] = []
    for place, (label, count) in enumerate(counts):
        tall = room * count / most
        left = _LEFT + place * step
        parts.append(
            element(
                "rect",
                element("title", f"{label}: {shown(count)}"),
                class_="bar",
                x=_r(left + 2),
                y=_r(_TOP + room - tall),
                width=_r(step - 4),
                height=_r(tall),
            )
        )
        parts.append(_label(label, left + step / 2, HEIGHT - 8, "middle"))
    parts += [_label(shown(most), _LEFT - 6, _TOP + 10, "end"), _axis()]
    return _plot(title, parts)


def line(
    points: Sequence[tuple[float, int]],
    *,
    title: str,
    ends: tuple[str, str],
    shown: Callable[[int], str] = str,
) -> Markup:
    """A line through points from left to right; `ends` are the labels below its two ends."""
    parts: list[Markup] = []
    if points:
        first, last = points[0][0], points[-1][0]
        most = max(value for _, value in points) or 1
        room = HEIGHT - _BOTTOM - _TOP
        span = (last - first) or 1
        path = " ".join(
            f"{_r(_LEFT + (WIDTH - _LEFT - 4) * (at - first) / span)},"
            f"{_r(_TOP + room - room * value / most)}"
            for at, value in points
        )
        parts = [
            element("polyline", class_="line", points=path),
            _label(shown(most), _LEFT - 6, _TOP + 10, "end"),
            _label("0", _LEFT - 6, _TOP + room, "end"),
            _label(ends[0], _LEFT, HEIGHT - 8, "start"),
            _label(ends[1], WIDTH - 4, HEIGHT - 8, "end"),
            _axis(),
        ]
    return _plot(title, parts)


def _plot(title: str, parts: Sequence[Markup]) -> Markup:
    return element(
        "figure",
        element("figcaption", title),
        element(
            "svg",
            element("title", title),
            parts,
            role="img",
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            width=WIDTH,
            height=HEIGHT,
        ),
    )


def _axis() -> Markup:
    low = HEIGHT - _BOTTOM
    return element("line", class_="axis", x1=_LEFT, y1=low, x2=WIDTH, y2=low)


def _label(text: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", text, x=_r(x), y=_r(y), text_anchor=anchor)


def _r(number: float) -> str:
    return f"{number:.1f}"
