"""`make bench` runs every scenario beside its peers, and ends with one table of all ratios.

`python -m benchmarks reading commits` runs some of them. Each writes a JSON file of its own to
`--out`, and the run a `summary.json` and plots. It ends with 1 when a goal was missed or a
scenario failed; with `--quick` only when one failed: goals are set for real sizes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from benchmarks import summary
from benchmarks.harness import Report

SCENARIOS = (
    *("commits", "contention", "reading", "reading-curve", "planning", "checkpoints", "importing"),
    *("mirroring", "page", "sizing"),
    *("spark-scan", "spark-writing", "spark-changes", "spark-tables", "spark-sql"),
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
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    unknown = sorted(set(options.scenarios) - set(SCENARIOS))
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; choose from {', '.join(SCENARIOS)}")
    reports: dict[str, Report] = {}
    failed: dict[str, str] = {}
    for name in options.scenarios or SCENARIOS:
        report = Report()
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        try:
            module.run(report, quick=options.quick)
        except Exception as error:  # noqa: BLE001 - the others can still be measured
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
            continue
        if options.quick:
            # Goals are set for real sizes; small data never take the place of a real result either.
            report.ratios = [replace(ratio, met=None) for ratio in report.ratios]
        print(f"== {name}")
        report.show()
        print(flush=True)
        report.write(options.out / (f"{name}-quick.json" if options.quick else f"{name}.json"))
        reports[name] = report
    print("== all")
    summary.show(reports, failed)
    summary.write(reports, failed, options.out, quick=options.quick)
    missed = any(ratio.met is False for report in reports.values() for ratio in report.ratios)
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
