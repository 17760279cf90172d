"""A program whose children use what it has opened; it prints what became of each as JSON.

Arguments: the kind of parent, the URL of the catalog, how many children, the table's location, and
its storage options as JSON. A child that is not done within `_PATIENCE` seconds hangs, and is
killed.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

import pyarrow as pa

import deltalakedb
from deltalakedb.errors import CatalogBusyError, ForkedProcessError
from deltalakedb.lake import Lake

_PATIENCE = 60.0
_AT_ONCE = 4
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "day": pa.array(["a", "b"])})


def open_lake(url: str, options: dict[str, str]) -> Lake:
    return deltalakedb.connect(url, storage_options=options)


def use(lake: Lake) -> None:
    """What a child does with a lake: rows in, rows and files out."""
    table = lake.table("a.t")
    table.append(ROWS)
    snapshot = table.snapshot()
    rows = snapshot.to_arrow(where="id = 1").num_rows
    assert rows >= 1, rows
    files = sum(batch.num_rows for batch in snapshot.iter_files(10, where="id = 1"))
    assert files == snapshot.files().num_rows >= 1, files


def child(lake: Lake, url: str, options: dict[str, str]) -> int:
    """The exit code: how many of two lakes it could use, or 3 where it was refused clearly."""
    try:
        use(lake)
        # By what it has opened itself, it can do no less.
        with open_lake(url, options) as own:
            use(own)
    except (ForkedProcessError, CatalogBusyError):
        return 3
    finally:
        lake.close()
    return 0


@contextmanager
def parent(kind: str, lake: Lake) -> Iterator[None]:
    """What the parent has done before it forks, or does meanwhile."""
    table = lake.table("a.t")
    if kind == "reading":
        table.append(ROWS)
        assert table.snapshot().to_arrow().num_rows == 2
        assert sum(batch.num_rows for batch in table.snapshot().iter_files(10, where="id = 1"))
    elif kind in ("checkpoints", "s3"):
        for _ in range(3):
            table.append(ROWS)
        lake.mirror.drain()
    if kind != "thread":
        yield
        return
    ended = threading.Event()
    failures: list[BaseException] = []

    def commit() -> None:
        try:
            # Not faster: each child reads every file.
            while not ended.wait(0.01):
                table.append(ROWS)
        except BaseException as error:
            failures.append(error)
            raise

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
    assert not failures


def run(lake: Lake, url: str, options: dict[str, str], number: int, log: IO[str]) -> None:
    """Be a child, from the fork to the end."""
    code = 1
    try:
        code = child(lake, url, options)
    except BaseException:  # noqa: BLE001 - told by the parent
        traceback.print_exc(file=log)
        log.flush()
    if number % 2:
        os._exit(code)
    # As a program that forks and forgets: the interpreter ends, and frees what it has.
    sys.exit(code)


def main() -> None:
    kind, url, count, location, given = sys.argv[1:]
    options = json.loads(given)
    found: Counter[str] = Counter()
    with ExitStack() as stack, tempfile.TemporaryFile("w+") as log:
        lake = stack.enter_context(open_lake(url, options))
        lake.create_table(
            "a.t",
            location=location,
            schema=ROWS.schema,
            # The thread commits thousands of versions, and `verify` reads each checkpoint.
            properties={"delta.checkpointInterval": "100" if kind == "thread" else "2"},
        )
        stack.enter_context(parent(kind, lake))
        started: dict[int, float] = {}
        left = iter(range(int(count)))
        number: int | None = next(left, None)
        while started or number is not None:
            while number is not None and len(started) < _AT_ONCE:
                pid = os.fork()
                if not pid:
                    stack.pop_all()
                    run(lake, url, options, number, log)
                started[pid] = time.monotonic()
                number = next(left, None)
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended:
                del started[ended]
                code = os.waitstatus_to_exitcode(status)
                found[{0: "worked", 3: "refused"}.get(code, f"failed with {code}")] += 1
                continue
            for pid, since in list(started.items()):
                if time.monotonic() - since > _PATIENCE:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    del started[pid]
                    found["hung"] += 1
            time.sleep(0.002)
        stack.close()
        log.seek(0)
        errors = log.read()
    with open_lake(url, options) as after:
        table = after.table("a.t")
        commits, rows = table.snapshot().version, table.snapshot().to_arrow().num_rows
        assert rows == 2 * commits, (rows, commits)
        ok = after.verify("a.t").ok if not location.startswith("s3:") else True
    answer = {"found": found, "errors": errors, "commits": commits, "verified": ok}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
