"""A process that is interrupted at random moments of its work, and proves that nothing stays.

Run as a program, because Ctrl-C goes to the main thread of a process:
`python interrupted.py URL FOLDER INTERRUPTS SEED`. What is printed last is a report as JSON.
"""

import _thread
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.store.url import parse_url
from deltalakedb.table import Table

POOL_SIZE = 2
ENOUGH = 20.0
"""Seconds for what is done at once unless something is locked."""
STUCK = 120.0

logging.getLogger("deltalakedb").setLevel(logging.CRITICAL)


def _send_signal() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Interrupter:
    """Interrupts the main thread after a delay: by a real signal, or between two instructions.

    Not by PyThreadState_SetAsyncExc: it may hit a thread that the main thread is about to start,
    which no signal does.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def strike(self, work: Callable[[], None], most_seconds: float) -> str:
        """Do some work, and interrupt it once: whether it was `interrupted` or `done` before."""
        delay = self._chance.random() * most_seconds
        fire = self._chance.choice([_send_signal, _thread.interrupt_main])
        over, delivered = threading.Event(), False
        fired = threading.Event()

        def wait_and_fire() -> None:
            if not over.wait(delay):
                fire()
                fired.set()

        thread = threading.Thread(target=wait_and_fire, daemon=True)
        outcome = "interrupted"
        try:
            thread.start()
            work()
            outcome = "done"
            over.set()
            thread.join()
            end = time.monotonic() + 1
            while fired.is_set() and time.monotonic() < end:
                time.sleep(0.001)
            delivered = True
        except KeyboardInterrupt:
            delivered = True
        assert delivered
        over.set()
        thread.join()
        return outcome


class Story:
    """What was done to the table, and what must be there."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url = f"{url}{'&' if '?' in url else '?'}pool_size={POOL_SIZE}&timeout={ENOUGH:g}"
        self.folder = folder
        self.chance = random.Random(seed)
        self.interrupter = Interrupter(self.chance)
        self.acknowledged: set[int] = set()
        self.begun: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self.lake = self.connect()
        self.lake.create_table(
            "t",
            location=folder.as_uri(),
            schema=pa.schema([("id", pa.int64())]),
            properties={"delta.checkpointInterval": "5"},
        )
        self.table: Table = self.lake.table("t")
        self.number = 0

    def connect(self) -> Lake:
        return deltalakedb.connect(self.url)

    def measure(self) -> None:
        """Do everything once, and see how long it takes."""
        for name in ("commit", "append", "transaction", "listing"):
            work = self.work(name)
            started = time.monotonic()
            work()
            self.seconds[name] = time.monotonic() - started

    def work(self, name: str) -> Callable[[], None]:
        self.number += 1
        number = self.number
        self.begun.add(number)
        return {
            "commit": lambda: self.commit(number),
            "append": lambda: self.append(number),
            "transaction": lambda: self.transact(number),
            "listing": self.list,
            "close": self.close,
        }[name]

    def again(self) -> None:
        """One interrupt, and a look at what it left."""
        name = self.chance.choice(["commit", "append", "transaction", "listing", "close"])
        work = self.work(name)
        started = time.monotonic()
        outcome = self.interrupter.strike(work, self.seconds.get(name, 0.05) * 1.2)
        if outcome == "done":
            self.seconds[name] = time.monotonic() - started
        self.counts[f"{name} {outcome}"] += 1
        self.look()

    def commit(self, number: int) -> None:
        self.table.commit([{"txn": {"appId": f"commit {number}", "version": 1}}])
        self.acknowledged.add(number)

    def append(self, number: int) -> None:
        self.table.append(pa.table({"id": [number]}))
        self.acknowledged.add(number)

    def transact(self, number: int) -> None:
        with self.lake.transaction() as transaction:
            transaction.table("t").append(pa.table({"id": [number]}))
        self.acknowledged.add(number)

    def list(self) -> None:
        snapshot = self.table.snapshot()
        snapshot.files()
        for _ in snapshot.iter_files(batch_size=3):
            pass
        self.lake.tables()
        self.table.history(limit=3)

    def close(self) -> None:
        self.lake.close()

    def look(self) -> None:
        """Every place of the pool is free, others can write, and `close` returns."""
        self.lake.mirror.drain()
        if self.chance.random() < 0.2 or self.lake.closed:
            self.lake.close()
            others_can_write(self.url)
            self.lake = self.connect()
            self.table = self.lake.table("t")
        with ExitStack() as held:
            for _ in range(POOL_SIZE):
                held.enter_context(self.lake.store.read())
        with self.lake.store.write() as session:
            self.lake.store.lock_head(session, self.table.table_id)
        others_can_write(self.url)

    def prove(self) -> dict[str, Any]:
        """All that was acknowledged is there once; what was interrupted is there once or not."""
        self.lake.close()
        with self.connect() as lake:
            table = lake.table("t")
            snapshot = table.snapshot()
            found = Counter(snapshot.to_arrow()["id"].to_pylist())
            found.update(int(app.split()[1]) for app in snapshot.app_transactions)
            assert max(found.values(), default=0) <= 1, found
            assert self.acknowledged <= set(found), sorted(self.acknowledged - set(found))
            assert set(found) <= self.begun, sorted(set(found) - self.begun)
            history = table.history(None)
            assert [one.version for one in history] == list(range(len(found) + 1))[::-1]
            lake.mirror.retry()
            lake.mirror.drain()
            verification = lake.verify("t")
            assert verification.ok, verification
        return {
            "counts": dict(self.counts),
            "interrupts": sum(n for name, n in self.counts.items() if "interrupted" in name),
            "versions": len(history),
        }


def others_can_write(url: str) -> None:
    """Write by a connection that is not the catalog's."""
    if url.startswith("sqlite"):
        import sqlite3

        other = sqlite3.connect(parse_url(url).target, timeout=ENOUGH, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        other.close()
    elif url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(parse_url(url).target) as server:
            server.execute(f"SET lock_timeout = '{ENOUGH:g}s'")
            server.execute("LOCK TABLE dl_table_heads IN ACCESS EXCLUSIVE MODE")


def main() -> None:
    url, folder, interrupts, seed = sys.argv[1:]
    # A job in the background of a shell ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(STUCK, exit=True)
    story = Story(url, Path(folder), int(seed))
    story.measure()
    while sum(n for name, n in story.counts.items() if "interrupted" in name) < int(interrupts):
        story.again()
    sys.stdout.write(json.dumps(story.prove()) + "\n")


if __name__ == "__main__":
    main()
