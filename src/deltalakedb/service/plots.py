"""Plots as SVG inside a page: no script, no style attribute, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deltalakedb.service.markup import Markup, element

# About as many pixels as they get, so that their letters are as large as those around them.
_NARROW, _WIDE, _HEIGHT = 520, 1060, 190
_LEFT, _RIGHT, _BOTTOM, _TOP = 76, 8, 26, 12
_ROOM = _HEIGHT - _BOTTOM - _TOP


def bars(
    counts: Sequence[tuple[str, int]],
    *,
    title: str,
    ends: tuple[str, str] | None = None,
    shown: Callable[[int], str] = "{:,}".format,
) -> Markup:
    """A bar for each label, on a wide plot.

    `ends` are the labels below the two ends, instead of one for each.
    """
    most = max((count for _, count in counts), default=0) or 1
    step = (_WIDE - _LEFT - _RIGHT) / max(1, len(counts))
    gap = min(6.0, step / 5)
    parts = _grid(most, shown, _WIDE)
    for place, (label, count) in enumerate(counts):
        tall = _ROOM * count / most
        left = _LEFT + place * step
        parts.append(
            element(
                "rect",
                element("title", f"{label}: {shown(count)}"),
                class_="bar",
                x=_r(left + gap / 2),
                y=_r(_TOP + _ROOM - tall),
                width=_r(step - gap),
                height=_r(tall),
            )
        )
        if ends is None:
            parts.append(_label(label, left + step / 2, _HEIGHT - 8, "middle"))
    if ends is not None:
        parts += _ends(ends, _WIDE)
    return _plot(title, parts, _WIDE)


def line(
    points: Sequence[tuple[float, int]],
    *,
    title: str,
    ends: tuple[str, str],
    shown: Callable[[int], str] = "{:,}".format,
) -> Markup:
    """A line through points from left to right; `ends` are the labels below its two ends."""
    if not points:
        return _plot(title, [], _NARROW)
    first, last = points[0][0], points[-1][0]
    most = max(value for _, value in points) or 1
    span = (last - first) or 1
    places = [
        f"{_r(_LEFT + (_NARROW - _LEFT - _RIGHT) * (at - first) / span)},"
        f"{_r(_TOP + _ROOM - _ROOM * value / most)}"
        for at, value in points
    ]
    low = _TOP + _ROOM
    below = [f"{_NARROW - _RIGHT},{low}", f"{_LEFT},{low}"]
    parts = [
        *_grid(most, shown, _NARROW),
        element("polygon", class_="area", points=" ".join([*places, *below])),
        element("polyline", class_="line", points=" ".join(places)),
        *_ends(ends, _NARROW),
    ]
    return _plot(title, parts, _NARROW)


def _plot(title: str, parts: Sequence[Markup], width: int) -> Markup:
    return element(
        "figure",
        element("figcaption", title),
        element(
            "svg", element("title", title), parts, role="img", viewBox=f"0 0 {width} {_HEIGHT}"
        ),
        class_="wide" if width == _WIDE else None,
    )


def _grid(most: int, shown: Callable[[int], str], width: int) -> list[Markup]:
    """The axis, a line at about half and one at full height, each with its number."""
    parts = [_across(_TOP + _ROOM, "axis", width), _label("0", _LEFT - 8, _TOP + _ROOM + 4, "end")]
    for value in {most // 2 or most, most}:
        y = _TOP + _ROOM - _ROOM * value / most
        parts += [_across(y, "grid", width), _label(shown(value), _LEFT - 8, y + 4, "end")]
    return parts


def _ends(ends: tuple[str, str], width: int) -> list[Markup]:
    return [
        _label(ends[0], _LEFT, _HEIGHT - 8, "start"),
        _label(ends[1], width - _RIGHT, _HEIGHT - 8, "end"),
    ]


def _across(y: float, kind: str, width: int) -> Markup:
    return element("line", class_=kind, x1=_LEFT, y1=_r(y), x2=width - _RIGHT, y2=_r(y))


def _label(text: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", text, x=_r(x), y=_r(y), text_anchor=anchor)


def _r(number: float) -> str:
    return f"{number:.1f}"
