"""A mirror worker as a process of its own: `python -m deltalakedb.demo.worker URL`.

It is what `deltalakedb mirror run` runs, but for its lease: when it is killed, another one may go
on after two seconds instead of thirty.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalakedb.lake import Lake

LEASE_SECONDS: Final = 2.0


@contextmanager
def running_worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that runs until it is killed, or at the latest when the block ends."""
    process = subprocess.Popen([sys.executable, "-m", __name__, url])  # noqa: S603 - this module
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Publish every commit as it comes, until SIGTERM."""
    with Lake.connect(sys.argv[1], mirror="worker") as lake:
        worker = lake.mirror.worker(lease_seconds=LEASE_SECONDS)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: worker.stop())
        worker.run()


if __name__ == "__main__":
    main()
