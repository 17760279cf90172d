"""Write the measured constants, and what they mean, into docs/sizing.md.

`python -m benchmarks.publish_sizing [REPORT]`, after `python -m benchmarks sizing`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.publish import DOCS, replaced
from benchmarks.sizing import VARIABLES, predict

Constants = Mapping[str, Mapping[str, float]]
# The lake that the page speaks of.
TARGET = {"tables": 10_000, "commits": 10_000_000, "added": 150_000_000, "removed": 50_000_000}
GB, MB = 1e9, 1e6


def main() -> None:
    """Put the newest report into the page."""
    report = Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench/sizing.json")
    found = json.loads(report.read_text("utf-8"))
    page = DOCS / "sizing.md"
    text = page.read_text("utf-8")
    text = replaced(text, "constants", _constants(found["constants"]))
    text = replaced(text, "check", _check(found["constants"], found["notes"]))
    text = replaced(text, "target", _target(found["constants"]))
    text = replaced(text, "times", _times(found["constants"]))
    text = replaced(text, "relations", _relations(found["constants"]["postgres"]))
    page.write_text(text, "utf-8")
    print(page)


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _fitted(one: Mapping[str, float]) -> dict[str, float]:
    return {name: one[f"bytes: {name}"] for name in VARIABLES}


def _constants(found: Constants) -> str:
    names = {
        "base": "an empty catalog",
        "tables": "a table, with its version 0",
        "commits": "a commit, without its files",
        "added": "a file that was added",
        "removed": "a file that was removed, beside what adding it took",
    }
    rows = [
        [f"bytes of {told}", *(f"{found[engine][f'bytes: {name}']:,.0f}" for engine in found)]
        for name, told in names.items()
    ]
    others = (
        "log bytes per file",
        "Arrow bytes per listed file",
        "WAL bytes per small commit",
        "WAL bytes per file of a large commit",
    )
    rows += [
        [name, *(f"{found[engine][name]:,.0f}" if found[engine][name] else "" for engine in found)]
        for name in others
    ]
    return _table(["", *found], rows)


def _check(found: Constants, notes: list[str]) -> str:
    rows = [
        [
            engine,
            f"{one['predicted'] / MB:,.1f} MB",
            f"{one['measured'] / MB:,.1f} MB",
            f"{(one['predicted'] / one['measured'] - 1) * 100:+.1f} %",
        ]
        for engine, one in found.items()
    ]
    return _table(["", "predicted", "measured", "error"], rows) + f"\n\n({'; '.join(notes)}.)"


def _target(found: Constants) -> str:
    rows = []
    for engine, one in found.items():
        fitted = _fitted(one)
        parts = [fitted[name] * TARGET[name] for name in VARIABLES[1:]]
        rows.append(
            [
                engine,
                f"{predict(fitted, TARGET) / GB:,.0f} GB",
                *(f"{part / GB:,.1f} GB" for part in parts),
            ]
        )
    return _table(["", "in all", "tables", "commits", "files added", "files removed"], rows)


def _times(found: Constants) -> str:
    names = [name for name in next(iter(found.values())) if " ms, " in name]
    told = {
        "head ms": "open a table (ms)",
        "list ms": "open and list all files (ms)",
        "pruned ms": "list by partition and range (ms)",
        "commit ms": "commit one file (ms)",
    }
    rows = []
    for name in sorted(names, key=lambda one: (list(told).index(one.split(",")[0]), len(one), one)):
        what, _, files = name.partition(", ")
        shown = (f"{found[engine][name]:,.1f}" for engine in found)
        rows.append([f"{told[what]}, {files}", *shown])
    others = (
        *("create ms", "status ms per table", "list us per file"),
        *("files committed per s", "versions published per s"),
    )
    rows += [[name, *(f"{found[engine][name]:,.2f}" for engine in found)] for name in others]
    return _table(["", *found], rows)


def _relations(postgres: Mapping[str, float]) -> str:
    suffix = ": bytes per file"
    names = [name.removesuffix(suffix) for name in postgres if name.endswith(suffix)]
    rows = [
        [
            f"`{name}`",
            f"{postgres[name + suffix]:,.0f}",
            f"{postgres[name + ': index bytes per file']:,.0f}",
        ]
        for name in names
    ]
    return _table(["on Postgres, bytes per file that was added", "rows", "indexes"], rows)


if __name__ == "__main__":
    main()
