"""All scenarios of a run in one table of ratios, as JSON, and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import Ratio, Report
from benchmarks.plot_goals import Goal, draw
from benchmarks.plot_reading import plot


def show(reports: Mapping[str, Report], failed: Mapping[str, str]) -> None:
    """Print every ratio with its goal, then how many were met."""
    ratios = [(name, ratio) for name, report in reports.items() for ratio in report.ratios]
    wide = max((len(name) for name, _ in ratios), default=8)
    what = max((len(ratio.scenario) for _, ratio in ratios), default=8)
    print(f"{'scenario':<{wide}}  {'what':<{what}}  {'result':>9}  {'goal':<12}  verdict  meaning")
    for name, ratio in ratios:
        print(
            f"{name:<{wide}}  {ratio.scenario:<{what}}  {ratio.value:>9.2f}  {ratio.goal:<12}  "
            f"{_verdict(ratio):<7}  {ratio.meaning}"
        )
    judged = [ratio.met for _, ratio in ratios if ratio.met is not None]
    if judged:
        print(f"\n{sum(judged)} of {len(judged)} goals met")
    for name, error in failed.items():
        print(f"{name} FAILED: {error}")


def write(
    reports: Mapping[str, Report], failed: Mapping[str, str], folder: Path, *, quick: bool
) -> None:
    """The same as JSON, and plots beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "-quick" if quick else ""
    ratios = [
        {"in": name, **asdict(ratio)} for name, report in reports.items() for ratio in report.ratios
    ]
    text = json.dumps({"ratios": ratios, "failed": dict(failed)}, indent=1, ensure_ascii=False)
    summary = folder / f"summary{suffix}.json"
    summary.write_text(text, "utf-8")
    print(summary)
    goals = [
        Goal(f"{ratio.scenario}: {ratio.meaning}", ratio.value, ratio.goal)
        for report in reports.values()
        for ratio in report.ratios
        if ratio.goal[:1] in ("≥", "≤")
    ]
    if goals:
        image = folder / f"goals{suffix}.svg"
        image.write_text(draw(goals), "utf-8")
        print(image)
    for name, report in reports.items():
        if report.curves:
            plot(folder / f"{name}{suffix}.json", folder)


def _verdict(ratio: Ratio) -> str:
    return {None: "", True: "met", False: "MISSED"}[ratio.met]
