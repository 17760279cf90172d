"""Clocks that are wrong by an hour, a year, or for good: what the runbook promises holds.

Only the process that is started here has the wrong clock. Postgres and the file system have the
right one, as a database server and an object store would.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.mirror.publish import Outcome
from deltalakedb.store.mirror import mirror_table
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.published import folder_of, log_of
from support.store import ENGINES, Catalogs

LIFE = Path(__file__).with_name("clock_life.py")
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
# How far the clock is from ours, as libfaketime has it; the short form takes the worst.
CLOCKS = ("@2099-01-01 00:00:00", "+365d", "-365d", "+1h", "-1h", "+50m")
SHORT = {("postgres", CLOCKS[0]), ("sqlite", CLOCKS[0]), ("sqlite", "+365d"), ("duckdb", "+365d")}
LIVES = [
    pytest.param(
        engine,
        clock,
        id=f"{engine} {clock}",
        marks=() if (engine, clock) in SHORT else pytest.mark.soak,
    )
    for engine in ENGINES
    for clock in CLOCKS
]

FAKETIME = shutil.which("faketime")
if FAKETIME is None:
    pytest.skip("faketime is not installed (apt-get install faketime)", allow_module_level=True)


@pytest.fixture
def url(engine: Engine, catalogs: Catalogs) -> Iterator[str]:
    """A fresh catalog, made by a right clock."""
    with catalogs.empty(engine) as made:
        yield made


def live_and_die(url: str, clock: str, archive: Path) -> dict[str, Any]:
    """What a process with this clock told before it died with a lease."""
    done = subprocess.run(
        [str(FAKETIME), "-f", clock, sys.executable, str(LIFE), url, str(archive)],
        env={**os.environ, "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
        stdout=subprocess.PIPE,
        timeout=300,
        check=False,
    )
    assert done.returncode == 9, done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def create(lake: Lake, name: str, folder: Path) -> Table:
    return lake.create_table(
        name,
        location=str(folder / name),
        schema='{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}',
        properties={
            "delta.checkpointInterval": "2",
            "delta.deletedFileRetentionDuration": "interval 1 days",
        },
    )


def files_of(table: Table) -> set[Path]:
    """Data files and commit files."""
    data = set(folder_of(table).glob("*.parquet"))
    return data | set(log_of(table).glob("*.json"))


def times_of(table: Table) -> list[int]:
    return [record.committed_at for record in reversed(table.history())]


@pytest.mark.parametrize(("engine", "clock"), LIVES)
def test_a_wrong_clock_costs_nothing_but_work(
    engine: Engine, url: str, tmp_path: Path, clock: str
) -> None:
    with deltalakedb.connect(url) as lake:
        busy = create(lake, "busy", tmp_path)
        for number in range(5):
            busy.overwrite([{"id": number}])
    with deltalakedb.connect(url, mirror="worker") as lake:
        create(lake, "waiting", tmp_path)
    # The files of the versions before the last were removed just now, and are still needed.
    before = files_of(busy)
    begun = now_ms()
    told = live_and_die(url, clock, tmp_path / "archive")
    ended = now_ms()

    with deltalakedb.connect(url) as lake:
        busy = lake.table("busy")
        check_times(engine, clock, told, times_of(busy), (begun, ended))
        assert before <= files_of(busy), "a file that was still needed is gone"
        assert busy.snapshot(0).to_arrow().num_rows == 0
        assert busy.snapshot(1).to_arrow().num_rows == 1
        check_lease(lake, engine, clock)
        # Afterwards everything goes on: commits, checkpoints and clean-up by the right clock.
        last = times_of(busy)[-1]
        for _ in range(2):
            assert busy.append([{"id": 2}]).timestamp > last
        lake.mirror.drain()
        with lake.store.read() as session:
            noted = mirror_table(session, busy.table_id)
        assert noted.checkpoint_error is None
        assert noted.cleaned_at // DAY_MS in {begun // DAY_MS, now_ms() // DAY_MS}
        assert all(lake.verify(name).ok for name in ("busy", "waiting"))
        assert {status.state for status in lake.mirror.status()} == {"published"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def check_times(
    engine: Engine, clock: str, told: dict[str, Any], times: list[int], right: tuple[int, int]
) -> None:
    """Versions are dense and times increase; by the server's clock, where there is one."""
    assert times == sorted(set(times))
    commits = told["commits"]
    if engine == "postgres":
        assert len(times) == 6 + 4
        assert times[-4:] == commits
        assert right[0] - MINUTE_MS < times[-4] < times[-1] < right[1] + MINUTE_MS
        assert (told["vacuum"], told["expire"], told["upkeep"]) == (0, 0, None)
    elif "2099" in clock:
        # An embedded catalog has no other clock; this one is too far ahead to be believed.
        assert len(times) == 6
        for text in [*commits, told["vacuum"], told["expire"]]:
            assert "ClockError" in text, text
            assert "2099-01-01T" in text
            assert times_as_text(right[0])[:13] in text or times_as_text(right[1])[:13] in text
    else:
        assert len(times) == 6 + 4
        assert times[-4:] == commits
        if clock == "+365d":
            assert times[-1] - right[1] > 364 * DAY_MS
            assert "clean-up: The clock" in told["upkeep"]
            for text in (told["vacuum"], told["expire"]):
                assert "ClockError" in text, text
        else:
            # Behind, times go on a millisecond at a time; nothing is older than it is.
            assert times[-1] < right[1] + 2 * HOUR_MS


def times_as_text(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))


def check_lease(lake: Lake, engine: Engine, clock: str) -> None:
    """A dead worker's table is told to be leased, or taken over; `retry` takes it at once."""
    found = {done.table: done for done in lake.mirror.run_once()}
    if engine == "postgres":
        assert found["waiting"].outcome is Outcome.LEASED
        assert found["waiting"].lease_owner == "dead"
        assert (found["waiting"].next_attempt_at or 0) < now_ms() + MINUTE_MS
        found = {done.table: done for done in lake.mirror.retry("waiting")}
    assert found["waiting"].outcome is Outcome.CAUGHT_UP, clock
    assert found["waiting"].last_version == 0
