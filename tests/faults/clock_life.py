"""A process whose clock is wrong: it writes, tidies up, and dies as a worker that has a lease.

Run by `test_clocks.py` under libfaketime. What became of each step goes to standard output.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import deltalakedb
from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.mirror.worker import Worker


def attempt(what: Callable[[], Any]) -> Any:
    """The result, or the error as text."""
    try:
        return what()
    except DeltaLakeDbError as error:
        return f"{type(error).__name__}: {error}"


def main(url: str, archive: str) -> None:
    """Live and die."""
    logging.getLogger("deltalakedb").setLevel(logging.CRITICAL)
    with deltalakedb.connect(url) as lake:
        table = lake.table("busy")
        told = {
            "commits": [attempt(lambda: table.append([{"id": 1}]).timestamp) for _ in range(4)],
            "vacuum": attempt(lambda: table.vacuum().files),
            "expire": attempt(
                lambda: lake.expire("busy", archive=archive, older_than=timedelta(1)).versions
            ),
        }
        lake.mirror.drain()
        (busy, _) = lake.mirror.status()
        told["upkeep"] = busy.checkpoint_error
        sys.stdout.write(json.dumps(told))
        sys.stdout.flush()
        Worker(lake.store, owner="dead", step=lambda _: os._exit(9)).run_once()


main(*sys.argv[1:])
