"""Whose clock counts: the database's; and what becomes of one that cannot be right."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import deltalakedb
from deltalakedb.clock import ManualClock, RemoteClock, SystemClock
from deltalakedb.errors import ClockError
from deltalakedb.formatting import format_time
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine

from support.lake import add, new_lake_table
from support.store import Catalogs

YEAR_MS = 365 * 86_400_000
IN_2099 = 4_070_908_800_000


@pytest.fixture
def url(engine: Engine, catalogs: Catalogs) -> Iterator[str]:
    """A fresh catalog that the right clock has made."""
    with catalogs.empty(engine) as made:
        yield made


@pytest.fixture
def by_database(url: str) -> Iterator[Lake]:
    """A lake that goes by the clock of its database."""
    with deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


def turn_to(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    """Turn the clock of this machine."""
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    monkeypatch.setattr(time, "time", lambda: now_ms / 1000)


def test_commits_have_the_time_of_the_database_or_none(
    engine: Engine, url: str, by_database: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time_ns() // 1_000_000
    new_lake_table(by_database).commit([add("a")])
    turn_to(monkeypatch, IN_2099)
    with deltalakedb.connect(url, mirror="worker") as lake:
        table = lake.table("sales.orders")
        if engine == "postgres":
            assert abs(table.commit([add("b")]).timestamp - right) < 3_600_000
            return
        with pytest.raises(ClockError) as caught:
            table.commit([add("b")])
        assert table.refresh() == 1
    assert "2099-01-01T00:00:00" in str(caught.value)
    assert format_time(right)[:10] in str(caught.value)


def test_a_process_whose_clock_jumps_is_refused_too(
    engine: Engine, by_database: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "postgres":
        pytest.skip("the clock of the machine has no part in it")
    table = new_lake_table(by_database)
    turn_to(monkeypatch, IN_2099)
    with pytest.raises(ClockError):
        table.commit([add("a")])
    with pytest.raises(ClockError):
        new_lake_table(by_database, "another")


def test_a_clock_that_is_passed_is_not_questioned(
    url: str, by_database: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_lake_table(by_database)
    turn_to(monkeypatch, IN_2099)
    with deltalakedb.connect(url, mirror="worker", clock=SystemClock()) as lake:
        assert lake.table("sales.orders").commit([add("a")]).timestamp == IN_2099


def test_an_idle_year_is_no_reason_to_refuse(
    engine: Engine, by_database: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "postgres":
        pytest.skip("the clock of the machine has no part in it")
    table = new_lake_table(by_database)
    later = time.time_ns() // 1_000_000 + YEAR_MS
    turn_to(monkeypatch, later)
    assert table.commit([add("a")]).timestamp == later


def test_after_a_commit_in_the_future_commits_go_on_with_a_warning(
    lake: Lake, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_lake_table(lake)
    clock.advance(YEAR_MS)
    ahead = table.commit([add("a")]).timestamp
    clock.advance(-YEAR_MS)
    for number in range(3):
        assert table.commit([add(f"b{number}")]).timestamp == ahead + number + 1
    (told,) = [one for one in caplog.records if one.__dict__.get("event") == "commit_time_ahead"]
    fields = told.__dict__["fields"]
    assert fields["table"] == "sales.orders"
    assert fields["newest_commit"] == format_time(ahead)
    assert fields["clock"] == format_time(clock.now_ms())


def test_reading_the_clock_takes_no_second_connection(engine: Engine, url: str) -> None:
    if engine != "postgres":
        pytest.skip("there is nothing to read")
    with deltalakedb.connect(f"{url}&pool_size=1&timeout=1") as lake:
        lake.store.dialect._clock = RemoteClock(valid_seconds=0)  # type: ignore[attr-defined]
        with lake.store.write():
            assert abs(lake.store.clock.now_ms() - time.time() * 1000) < 3_600_000


def test_a_remote_clock_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RemoteClock(valid_seconds=60)
    assert clock.is_due()
    assert not clock.is_set
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    clock.set(1_000_000, asked_at=98.0)
    assert clock.now_ms() == 1_001_000
    monkeypatch.setattr(time, "monotonic", lambda: 158.0)
    assert clock.now_ms() == 1_059_000
    assert not clock.is_due()
    monkeypatch.setattr(time, "monotonic", lambda: 160.0)
    assert clock.is_due()
