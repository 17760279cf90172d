"""How a benchmark is run: peers and ourselves on the same work, interleaved, told as ratios.

A machine is noisy, so absolute times prove nothing: each round runs every contestant once, in turn,
and what counts is the median over the rounds of the ratio within a round.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Ratio:
    """One line of the result: ours against a peer, and the bar that was set."""

    scenario: str
    ours: str
    peer: str
    value: float
    meaning: str
    goal: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Report:
    """What a run has found."""

    ratios: list[Ratio] = field(default_factory=list)
    medians: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    curves: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    """Seconds by what is varied, contestant and its size; `plot_reading.py` draws them."""
    constants: dict[str, dict[str, float]] = field(default_factory=dict)
    """What was measured by engine and name, with the unit in the name."""

    def write(self, path: Path) -> None:
        """Everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False), "utf-8")

    def show(self) -> None:
        """One table of ratios."""
        for scenario, medians in self.medians.items():
            print(_line(scenario, medians))
        print()
        width = max((len(r.scenario) for r in self.ratios), default=0)
        for r in self.ratios:
            verdict = "" if r.met is None else ("  ok" if r.met else "  MISSED")
            goal = f"  (goal {r.goal})" if r.goal else ""
            print(f"{r.scenario:<{width}}  {r.value:6.2f}  {r.meaning}{goal}{verdict}")
        for engine, constants in self.constants.items():
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in constants.items())
            print(f"{engine}: {shown}")
        for note in self.notes:
            print(f"note: {note}")


Contestant = Callable[[], float]
"""Does its work once and says how many seconds it took."""


def compare(
    scenario: str, contestants: Mapping[str, Contestant], *, rounds: int, report: Report
) -> dict[str, list[float]]:
    """Run every contestant once a round, in turn; their times by name."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants.items())
    for turn in range(rounds):
        # Another order each round: nobody always runs first, or after the same neighbour.
        rotation, place = divmod(turn, len(order))
        turned = order[place:] + order[:place]
        for name, contestant in reversed(turned) if rotation % 2 else turned:
            gc.collect()
            times[name].append(contestant())
    report.medians[scenario] = {name: statistics.median(found) for name, found in times.items()}
    # A run takes long: who waits sees how far it is.
    print(_line(scenario, report.medians[scenario]), file=sys.stderr, flush=True)
    return times


def _line(scenario: str, medians: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} {seconds * 1000:.2f} ms" for name, seconds in medians.items())
    return f"{scenario}: {shown}"


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def timed(work: Callable[[], object]) -> float:
    """Seconds that a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def timed_each(work: Callable[[Any], object], items: Iterable[Any]) -> float:
    """Seconds that a piece of work takes for all items, one after the other."""
    started = time.perf_counter()
    for item in items:
        work(item)
    return time.perf_counter() - started
