"""Draw the curves of `python -m benchmarks reading-curve` as SVG.

`python -m benchmarks.plot_reading [REPORT] [FOLDER]`; the SVG is written by hand, so that drawing
needs nothing installed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

Curve = Mapping[str, Mapping[int, float]]

WIDTH, HEIGHT = 800, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 250, 48, 60
# Ours are solid, peers are dashed; colours that colour-blind readers can tell apart.
STYLES = {
    "ours on postgres": ("#0072b2", ""),
    "ours on sqlite": ("#009e73", ""),
    "ours on duckdb": ("#56b4e9", ""),
    "delta-rs": ("#d55e00", "7 4"),
    "delta-rs, no checkpoint": ("#e69f00", "2 4"),
    "DuckLake": ("#cc79a7", "7 4"),
    "DuckLake on postgres": ("#7a5195", "2 4"),
}
PLOTS = {
    "history": ("Open and list 10,000 files", "commits in the history", "open-history.svg"),
    "live files": ("Open and list after 1,000 commits", "live files", "open-files.svg"),
}


def main() -> None:
    """Draw what the command line names."""
    report = Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench/reading-curve.json")
    plot(report, Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images"))


def plot(report: Path, folder: Path) -> None:
    """Read the report and write one image a curve."""
    curves = json.loads(report.read_text("utf-8"))["curves"]
    folder.mkdir(parents=True, exist_ok=True)
    for curve, (title, axis, file) in PLOTS.items():
        points = {
            name: {int(size): seconds for size, seconds in found.items()}
            for name, found in curves[curve].items()
        }
        (folder / file).write_text(draw(points, title=title, axis=axis), "utf-8")
        print(folder / file)


def draw(curve: Curve, *, title: str, axis: str) -> str:
    """One chart with logarithmic axes."""
    sizes = sorted({size for points in curve.values() for size in points})
    times = [seconds * 1000 for points in curve.values() for seconds in points.values()]
    scale = _Scale(sizes, times)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}, by {escape(axis)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
        *_axes(scale, axis),
    ]
    ends = [
        (scale.y(points[max(points)] * 1000), max(points), name)
        for name, points in curve.items()
        if points
    ]
    heights = _spread([height for height, _, _ in sorted(ends)])
    for (_, last, name), height in zip(sorted(ends), heights, strict=True):
        parts += _line(curve[name], name, scale, label=(last, height))
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """Where a size and a time (in ms) lie in the image."""

    def __init__(self, sizes: list[int], times: list[float]) -> None:
        self.sizes = sizes
        self.low = math.floor(math.log10(min(times)))
        self.high = max(math.ceil(math.log10(max(times))), self.low + 1)
        self._left = math.log10(sizes[0])
        self._wide = math.log10(sizes[-1]) - self._left or 1.0

    def x(self, size: int) -> float:
        inside = WIDTH - LEFT - RIGHT
        return LEFT + inside * (math.log10(size) - self._left) / self._wide

    def y(self, milliseconds: float) -> float:
        inside = HEIGHT - TOP - BOTTOM
        share = (math.log10(milliseconds) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - inside * share


def _axes(scale: _Scale, axis: str) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for power in range(scale.low, scale.high + 1):
        y = scale.y(10.0**power)
        shown = f"{10.0**power:,g} ms" if power < 3 else f"{10 ** (power - 3):,} s"
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>'
    for size in scale.sizes:
        x = scale.x(size)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#eeeeee"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{size:,}</text>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle}" y="{bottom + 44}" text-anchor="middle">{escape(axis)}</text>'


def _line(
    points: Mapping[int, float], name: str, scale: _Scale, *, label: tuple[int, float]
) -> Iterator[str]:
    colour, dashes = STYLES.get(name, ("#444444", ""))
    places = [(scale.x(size), scale.y(seconds * 1000)) for size, seconds in sorted(points.items())]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dashed}/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    last, height = label
    seconds = points[last]
    shown = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
    yield (
        f'<text x="{scale.x(last) + 10:.1f}" y="{height + 4:.1f}" fill="{colour}">'
        f"{escape(name.replace('ours', 'deltalakedb'))}: {shown}</text>"
    )


def _spread(heights: list[float]) -> list[float]:
    """Labels from top to bottom, moved apart where they would overlap, and kept in the image."""
    gap = 16.0
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else max(height, TOP))
    limit = float(HEIGHT - BOTTOM)
    for position in range(len(placed) - 1, -1, -1):
        placed[position] = min(placed[position], limit)
        limit = placed[position] - gap
    return placed


if __name__ == "__main__":
    main()
