"""Processes that write to one SQLite catalog: each gets its share, and none waits for ever."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from deltalakedb.errors import CatalogBusyError
from deltalakedb.store import Store

from support.store import OpenStore

WRITING = """
import sys, time
from deltalakedb.store import Store

url, last = sys.argv[1], int(sys.argv[2])
store = Store.open(url)
print("ready", flush=True)
sys.stdin.readline()
done = 0
while True:
    with store.write() as session:
        number = session.execute("SELECT n FROM counter", {})[0][0]
        if number >= last:
            break
        session.execute("UPDATE counter SET n = n + 1", {})
        time.sleep(0.001)
    done += 1
    time.sleep(0.0002)
print(done, flush=True)
"""
PROCESSES = 8
EACH = 60


def catalog(folder: Path) -> str:
    url = f"sqlite:///{folder / 'lake.db'}"
    with closing(Store.open(url)) as store, store.write() as session:
        session.script("CREATE TABLE counter AS SELECT 0 AS n;")
    return url


def test_each_process_gets_its_share_of_the_writes(tmp_path: Path) -> None:
    url = catalog(tmp_path)
    arguments = [sys.executable, "-c", WRITING, url, str(PROCESSES * EACH)]
    processes = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    done = [int(process.communicate()[0]) for process in processes]
    assert sum(done) == PROCESSES * EACH
    assert min(done) > EACH / 4, done


def test_a_writer_that_waits_too_long_is_refused_and_can_write_later(
    tmp_path: Path, open_store: OpenStore
) -> None:
    store = open_store(f"{catalog(tmp_path)}?timeout=0.2")
    other = sqlite3.connect(tmp_path / "lake.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CatalogBusyError, match=r"stayed locked by another writer for 0\.2 s"):
        store.write().__enter__()
    waiting = threading.Timer(0.1, other.close)
    waiting.start()
    with store.write() as session:
        assert session.execute("PRAGMA busy_timeout", {}) == [(200,)]
    with store.read() as session:
        assert session.execute("PRAGMA busy_timeout", {}) == [(200,)]
    waiting.join()
