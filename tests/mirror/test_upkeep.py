"""What a published table gets beside its commits, and that none of it can harm it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import deltalakedb
import deltalakedb.mirror.checkpoint
from deltalakedb.clock import ManualClock
from deltalakedb.errors import StorageUnavailableError
from deltalakedb.lake import Lake
from deltalakedb.store.mirror import note_cleaned
from deltalakedb.table import Table

from support.lake import add
from support.mirror_lakes import NewTable
from support.mirror_logs import check_published, log_of

DAY_MS = 86_400_000


def checkpoints(log: Path) -> list[int]:
    return sorted(int(path.name.split(".")[0]) for path in log.glob("*.checkpoint.parquet"))


def hinted(log: Path) -> int:
    version: int = json.loads((log / "_last_checkpoint").read_text("utf-8"))["version"]
    return version


def new_orders(lake: Lake, folder: Path, *, interval: int) -> Table:
    """The table of the processes below, with a checkpoint after so many commits."""
    return lake.create_table(
        "sales.orders",
        location=str(folder),
        schema=pa.schema([("id", pa.int64())]),
        properties={"delta.checkpointInterval": str(interval)},
    )


def test_checkpoints_come_at_their_interval_while_commits_go_on(
    inline: Lake, new_table: NewTable
) -> None:
    table = new_table(inline, properties={"delta.checkpointInterval": "5"})
    inline.mirror.drain()
    for number in range(12):
        table.commit([add(f"{number}.parquet")])
        inline.mirror.drain()
    assert checkpoints(log_of(table)) == [5, 10]
    assert hinted(log_of(table)) == 10
    assert inline.mirror.status()[0].checkpoint_version == 10
    assert sorted(int(path.stem) for path in log_of(table).glob("*.crc")) == list(range(13))
    check_published(inline, table)


ENDING = """
import atexit, sys, threading
import pyarrow as pa
import deltalakedb

lake = deltalakedb.connect(sys.argv[1])
table = lake.table("sales.orders")

def append():
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    assert table.snapshot().to_arrow().num_rows == table.snapshot().version

def append_when_the_main_thread_has_ended():
    threading.main_thread().join()
    append()

append()
threading.Thread(target=append_when_the_main_thread_has_ended).start()
atexit.register(append)
"""


def test_a_process_that_ends_without_close_makes_the_checkpoints_that_are_due(
    tmp_path: Path, catalog_url: str
) -> None:
    with deltalakedb.connect(catalog_url) as lake:
        table = new_orders(lake, tmp_path / "orders", interval=1)
    arguments = [sys.executable, "-c", ENDING, catalog_url]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert checkpoints(log_of(table)) == [1, 2, 3]


KILLED = """
import os, signal, sys
import pyarrow as pa
import deltalakedb
from deltalakedb.mirror.upkeep import Upkeep

Upkeep.run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
lake = deltalakedb.connect(sys.argv[1])
lake.table("sales.orders").append(pa.table({"id": pa.array([1], pa.int64())}))
signal.pause()
"""


def test_upkeep_of_a_process_that_was_killed_is_done_by_the_next(
    tmp_path: Path, catalog_url: str
) -> None:
    with deltalakedb.connect(catalog_url) as lake:
        table = new_orders(lake, tmp_path / "orders", interval=2)
        table.append(pa.table({"id": pa.array([0], pa.int64())}))
    killed = subprocess.run([sys.executable, "-c", KILLED, catalog_url], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert checkpoints(log_of(table)) == []
    with deltalakedb.connect(catalog_url) as lake:
        lake.table("sales.orders").append(pa.table({"id": pa.array([2], pa.int64())}))
        check_published(lake, lake.table("sales.orders"))
    assert checkpoints(log_of(table))[-1] >= 2


def test_a_backlog_gets_the_newest_checkpoint_that_is_due(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued, properties={"delta.checkpointInterval": "5"})
    for number in range(17):
        table.commit([add(f"{number}.parquet")])
    queued.mirror.run_once()
    assert checkpoints(log_of(table)) == [15]
    assert hinted(log_of(table)) == 15


def test_an_interval_that_nobody_can_read_counts_as_the_default(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued, properties={"delta.checkpointInterval": "777"})
    queued.mirror.run_once()
    commit = log_of(table) / f"{0:020d}.json"
    commit.write_text(commit.read_text("utf-8").replace('"777"', '"often"'), "utf-8")
    queued.drop_table(table.name, force=True)
    again = queued.import_table(table.location, name="again")
    for number in range(11):
        again.commit([add(f"{number}.parquet")])
    queued.mirror.run_once()
    assert checkpoints(log_of(again)) == [10]


def test_closing_the_lake_waits_for_the_checkpoint(inline: Lake, new_table: NewTable) -> None:
    table = new_table(inline, properties={"delta.checkpointInterval": "2"})
    for number in range(2):
        table.commit([add(f"{number}.parquet")])
    inline.close()
    assert checkpoints(log_of(table)) == [2]


def test_a_checkpoint_that_fails_harms_nothing_and_is_made_later(
    queued: Lake, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageUnavailableError("No checkpoint today", fix="Try again")

    table = new_table(queued, properties={"delta.checkpointInterval": "2"})
    for number in range(2):
        table.commit([add(f"{number}.parquet")])
    with monkeypatch.context() as patched:
        patched.setattr(deltalakedb.mirror.checkpoint, "write_checkpoint", refuse)
        queued.mirror.run_once()
    check_published(queued, table)
    (status,) = queued.mirror.status()
    assert (status.state, status.checkpoint_version) == ("published", None)
    assert "No checkpoint today" in (status.checkpoint_error or "")
    assert queued.metrics.read()["mirror_upkeep_failures_total"] == 1
    table.commit([add("late.parquet")])
    queued.mirror.run_once()
    (status,) = queued.mirror.status()
    assert (status.checkpoint_version, status.checkpoint_error) == (2, None)
    assert checkpoints(log_of(table)) == [2]


def test_the_log_is_cleaned_once_a_day(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table = new_table(queued, properties={"delta.checkpointInterval": "2"})
    for number in range(4):
        table.commit([add(f"{number}.parquet")])
        clock.advance(1_000)
    queued.mirror.run_once()
    clock.advance(40 * DAY_MS)
    for number in range(4, 6):
        table.commit([add(f"{number}.parquet")])
    queued.mirror.run_once()
    left = sorted(int(path.stem) for path in log_of(table).glob("*.json"))
    assert left == [4, 5, 6]
    assert checkpoints(log_of(table)) == [4, 6]


def test_a_clean_up_in_2099_does_not_switch_it_off(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table = new_table(queued, properties={"delta.checkpointInterval": "2"})
    for number in range(4):
        table.commit([add(f"{number}.parquet")])
    queued.mirror.run_once()
    with queued.store.write() as session:
        note_cleaned(session, table.table_id, now=clock.now_ms() + 73 * 365 * DAY_MS)
    clock.advance(40 * DAY_MS)
    for number in range(4, 6):
        table.commit([add(f"{number}.parquet")])
    queued.mirror.run_once()
    assert sorted(int(path.stem) for path in log_of(table).glob("*.json")) == [4, 5, 6]
