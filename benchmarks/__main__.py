"""`make bench` runs every scenario, prints a table of ratios for each and writes it as JSON.

`python -m benchmarks reading commits` runs some of them; each one has a file of its own in `--out`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Report

SCENARIOS = (
    *("commits", "reading", "reading-curve", "checkpoints", "importing", "mirroring", "page"),
    *("spark-scan", "spark-writing", "spark-changes", "spark-tables"),
)


def main() -> int:
    """Run the scenarios that were asked for; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"any of {', '.join(SCENARIOS)}"
    )
    parser.add_argument("--quick", action="store_true", help="small data: do they still run?")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    unknown = sorted(set(options.scenarios) - set(SCENARIOS))
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; choose from {', '.join(SCENARIOS)}")
    missed = False
    for name in options.scenarios or SCENARIOS:
        report = Report()
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        module.run(report, quick=options.quick)
        if options.quick:
            # Goals are set for real sizes; small data never take the place of a real result either.
            report.ratios = [replace(ratio, met=None) for ratio in report.ratios]
        print(f"== {name}")
        report.show()
        print()
        report.write(options.out / (f"{name}-quick.json" if options.quick else f"{name}.json"))
        missed = missed or any(ratio.met is False for ratio in report.ratios)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
