"""How much memory a checkpoint takes, in a process of its own.

`python -m benchmarks.checkpoint_memory URL TABLE FOLDER` writes the newest one to FOLDER, and tells
how many actions it has and how many bytes the peak lies above what the process had before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq  # a worker has loaded it long before

import deltalakedb
from benchmarks.reading_memory import reset_peak, status_bytes
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.storage import open_storage


def measure(url: str, table: str, folder: Path) -> dict[str, int]:
    """Ask a new process."""
    answer = subprocess.run(
        (sys.executable, "-m", "benchmarks.checkpoint_memory", url, table, str(folder)),
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, int] = json.loads(answer.stdout)
    return found


def _write(url: str, name: str, folder: Path) -> dict[str, int]:
    with deltalakedb.connect(url, mirror="worker") as lake:
        version = lake.table(name).version
        with lake.store.read() as session:
            record = lake.store.table_by_name(session, name)
        if record is None:
            raise AssertionError(f"there is no table {name}")
        reset_peak()
        before = status_bytes("VmRSS")
        written = write_checkpoint(lake.store, open_storage(str(folder)), record, version)
        peak = status_bytes("VmHWM")
    rows = pq.read_metadata(folder / "_delta_log" / f"{version:020d}.checkpoint.parquet").num_rows
    if rows != written.size:
        raise AssertionError(f"the checkpoint has {rows} rows, and says {written.size}")
    return {"rows": rows, "extra_bytes": peak - before, "peak_bytes": peak}


if __name__ == "__main__":
    print(json.dumps(_write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
