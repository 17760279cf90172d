"""A program of our API in the race of test_race.py, until it is ended or killed.

It prints what it is about to do, and what came of it, as a line of JSON each.
"""

from __future__ import annotations

import json
import random
import sys
import time
from itertools import count
from typing import Any

import deltalakedb
from deltalakedb.errors import CommitConflictError, DeltaLakeDbError


def tell(**line: Any) -> None:
    """Print a line."""
    print(json.dumps(line), flush=True)  # noqa: T201 - the result


def main() -> None:
    """Append, commit to two tables at once, and increment, again and again."""
    url, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    chance = random.Random(name)
    with deltalakedb.connect(url) as lake:
        log, counters = lake.table("race.log"), lake.table("race.counters")
        for number in count():
            kind = chance.choice(("insert", "transaction", "increment"))
            key = None if kind == "increment" else f"{kind}-{name}-{number}"
            head = counters.version
            tell(kind=kind, key=key, outcome="started")
            try:
                if kind == "insert":
                    log.append([{"k": key}])
                elif kind == "transaction":
                    with lake.transaction() as tx:
                        tx.table("race.log").append([{"k": key}])
                        tx.table("race.other").append([{"k": key}])
                else:
                    row = chance.randrange(rows)
                    with lake.transaction() as tx:
                        table = tx.table("race.counters")
                        (old,) = table.snapshot().to_arrow(where=f"id = {row}").to_pylist()
                        new = {"id": row, "n": old["n"] + 1}
                        table.overwrite([new], where=f"id = {row}")
            except CommitConflictError as error:
                moved = counters.version > head
                tell(kind=kind, key=key, outcome="refused", error=repr(error), moved=moved)
            except DeltaLakeDbError as error:
                tell(kind=kind, key=key, outcome="failed", error=repr(error))
            else:
                tell(kind=kind, key=key, outcome="done")
            time.sleep(0.3)  # sessions of Spark need more for a statement


if __name__ == "__main__":
    main()
