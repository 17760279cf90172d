"""`make bench` runs every scenario, prints one table of ratios and writes it as JSON."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks.harness import Report

SCENARIOS = ("commits",)


def main() -> int:
    """Run the scenarios that were asked for; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help=str(SCENARIOS))
    parser.add_argument("--quick", action="store_true", help="small data: do they still run?")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    report = Report()
    for name in options.scenarios:
        importlib.import_module(f"benchmarks.{name}").run(report, quick=options.quick)
    report.show()
    report.write(options.out / "results.json")
    missed = [ratio for ratio in report.ratios if ratio.met is False]
    return 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
