"""How much memory `iter_files` takes, in a process of its own: `python -m benchmarks.reading_memory
URL TABLE` prints the rows it has seen and the bytes that the peak lies above the start of the loop.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa  # whoever takes batches has loaded it before

import deltalakedb

_PROC = Path("/proc/self")


def measure(url: str, table: str) -> dict[str, int]:
    """Ask a new process."""
    answer = subprocess.run(
        (sys.executable, "-m", "benchmarks.reading_memory", url, table),
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, int] = json.loads(answer.stdout)
    return found


def can_measure() -> bool:
    """Whether this system tells and resets the peak of a process (Linux)."""
    return (_PROC / "clear_refs").exists()


def reset_peak() -> None:
    """The peak of this process starts again here."""
    (_PROC / "clear_refs").write_text("5")


def status_bytes(name: str) -> int:
    """What the system says of this process, e.g. VmRSS."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    if found is None:
        raise AssertionError(f"/proc/self/status has no {name}")
    return int(found[1]) * 1024


def _iterate(snapshot: Any) -> dict[str, int]:
    reset_peak()
    before = status_bytes("VmRSS")
    rows = path_bytes = 0
    batch: pa.RecordBatch
    for batch in snapshot.iter_files(batch_size=10_000):
        rows += batch.num_rows
        path_bytes += sum(len(path) for path in batch.column("path").to_pylist())
    return {"rows": rows, "path_bytes": path_bytes, "extra_bytes": status_bytes("VmHWM") - before}


if __name__ == "__main__":
    with deltalakedb.connect(sys.argv[1]) as _lake:
        print(json.dumps(_iterate(_lake.table(sys.argv[2]).snapshot())))
