"""Put the newest reports into docs/benchmarks.md: `python -m benchmarks.publish [REPORTS]`.

Each scenario has a part there between two markers, which is written anew; a scenario without a
report (build/bench/NAME.json) keeps what it has. Plots go to docs/images: the curves, and one of
all results beside their goals.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.plot_goals import draw, goals_of_page
from benchmarks.plot_reading import PLOTS, plot

DOCS = Path(__file__).resolve().parent.parent / "docs"
TITLES = {name: f"{title}, by {axis}" for name, (title, axis, _) in PLOTS.items()}


def main() -> None:
    """Publish every report that is there."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench")
    page = DOCS / "benchmarks.md"
    text = page.read_text("utf-8")
    for name in re.findall(r"<!-- begin (\S+) -->", text):
        report = folder / f"{name}.json"
        if not report.exists():
            print(f"{name}: no {report}, left as it is")
            continue
        found = json.loads(report.read_text("utf-8"))
        if found["curves"]:
            plot(report, DOCS / "images")
        text = replaced(text, name, shown(found))
        print(f"{name}: written")
    page.write_text(text, "utf-8")
    (DOCS / "images" / "goals.svg").write_text(draw(goals_of_page(text)), "utf-8")


def replaced(page: str, name: str, content: str) -> str:
    """The page with another content between the markers of a scenario."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{content}\n{end}{tail}"


def shown(report: dict[str, Any]) -> str:
    """A report as Markdown: plots, ratios, medians, notes."""
    lines: list[str] = []
    for curve in report["curves"]:
        lines += [f"![{TITLES[curve]}](images/{PLOTS[curve][2]})", ""]
    if report["ratios"]:
        lines += ["| what | result | | goal | |", "|---|---:|---|---|---|"]
        lines += [_row(ratio) for ratio in report["ratios"]]
        lines.append("")
    lines += ["Medians in milliseconds:", ""]
    for scenario, medians in report["medians"].items():
        times = ", ".join(f"{who} {seconds * 1000:.2f}" for who, seconds in medians.items())
        lines.append(f"- {scenario}: {times}")
    if report["notes"]:
        lines += ["", "Notes:", "", *(f"- {note}" for note in report["notes"])]
    return "\n".join(lines)


def _row(ratio: dict[str, Any]) -> str:
    verdict = {None: "", True: "met", False: "**missed**"}[ratio["met"]]
    return (
        f"| {ratio['scenario']} | {ratio['value']:.2f} | {ratio['meaning']} "
        f"| {ratio['goal']} | {verdict} |"
    )


if __name__ == "__main__":
    main()
