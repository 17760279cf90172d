"""Workers: leases, succession, waking up, stopping, and many tables at once."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake
from deltalakedb.mirror.lease import Lease, new_owner
from deltalakedb.mirror.publish import Outcome
from deltalakedb.mirror.upkeep import Upkeep, UpkeepResult
from deltalakedb.mirror.worker import Worker
from deltalakedb.store import TableRecord
from deltalakedb.store.mirror import mirror_table, note_upkeep
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.lake import OpenLake, add
from support.mirror_lakes import NewTable
from support.mirror_logs import check_published, log_of, queue, versions_in

LONG = 30.0


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """A worker that runs in a thread while the block lasts."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(LONG)
        assert not thread.is_alive()


def wait_until_published(lake: Lake, *tables: Table) -> None:
    deadline = time.monotonic() + LONG
    names = {table.name for table in tables}
    while any(status.backlog for status in lake.mirror.status() if status.table in names):
        assert time.monotonic() < deadline, lake.mirror.status()
        time.sleep(0.01)


# --- leases -------------------------------------------------------------------------------


def test_a_lease_has_one_owner_until_it_is_given_back(queued: Lake, new_table: NewTable) -> None:
    table_id = new_table(queued).table_id
    first = Lease.take(queued.store, table_id, "one")
    assert first is not None
    assert Lease.take(queued.store, table_id, "two") is None
    first.release()
    second = Lease.take(queued.store, table_id, "two")
    assert second is not None
    assert second.generation == first.generation + 1
    # Who was succeeded cannot take it from his successor.
    first.release()
    with queued.store.read() as session:
        assert mirror_table(session, table_id).owner == "two"


def test_an_expired_lease_is_anybodys_and_its_owner_finds_out(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table_id = new_table(queued).table_id
    hung = Lease.take(queued.store, table_id, "hung", seconds=30)
    assert hung is not None
    clock.advance(29_999)
    assert Lease.take(queued.store, table_id, "next", seconds=30) is None
    clock.advance(1)
    assert Lease.take(queued.store, table_id, "next", seconds=30) is not None
    assert not hung.hold()


def test_a_lease_is_kept_while_its_owner_works(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table_id = new_table(queued).table_id
    lease = Lease.take(queued.store, table_id, "one", seconds=30)
    assert lease is not None
    for _ in range(10):
        clock.advance(11_000)
        assert lease.hold()
        assert Lease.take(queued.store, table_id, "two") is None


def test_of_many_that_want_a_lease_one_gets_it(queued: Lake, new_table: NewTable) -> None:
    table_id = new_table(queued).table_id
    ready = threading.Barrier(8)
    won: list[str] = []

    def take() -> None:
        owner = new_owner()
        ready.wait()
        if Lease.take(queued.store, table_id, owner) is not None:
            won.append(owner)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


YEARS_MS = 73 * 365 * 86_400_000


def test_a_lease_from_a_clock_in_2099_holds_nobody_up(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table = new_table(queued)
    clock.advance(YEARS_MS)
    assert Lease.take(queued.store, table.table_id, "dead") is not None
    clock.advance(-YEARS_MS)
    assert queued.mirror.status()[0].lease_owner is None
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.CAUGHT_UP
    check_published(queued, table)


def test_what_a_worker_in_2099_left_undone_is_found(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    """Its lease, and its failure to look after the log, are noted at a time that never comes."""
    table = new_table(queued)
    queued.mirror.run_once()
    clock.advance(YEARS_MS)
    with queued.store.write() as session:
        note_upkeep(session, table.table_id, "checkpoint: failed", now=clock.now_ms())
    clock.advance(-YEARS_MS)
    (done,) = queued.mirror.run_once()
    assert done.table == table.name
    assert queued.mirror.status()[0].checkpoint_error is None


def test_a_failure_in_2099_is_tried_again_now(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table = new_table(queued)
    log_of(table).parent.mkdir()
    log_of(table).write_bytes(b"")
    clock.advance(YEARS_MS)
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.FAILED
    log_of(table).unlink()
    clock.advance(-YEARS_MS)
    with running(queued.mirror.worker()):
        wait_until_published(queued, table)
    check_published(queued, table)


def test_an_owner_whose_clock_was_turned_back_renews_his_lease(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table_id = new_table(queued).table_id
    lease = Lease.take(queued.store, table_id, "one")
    assert lease is not None
    clock.advance(-3_600_000)
    assert lease.hold()
    assert Lease.take(queued.store, table_id, "two") is None


def test_retry_takes_a_table_from_whoever_has_it(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    lease = Lease.take(queued.store, table.table_id, "another")
    assert lease is not None
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.LEASED
    (done,) = queued.mirror.retry(table.name)
    assert done.outcome is Outcome.CAUGHT_UP
    check_published(queued, table)
    # Who had it finds out when it asks, and gives nothing back that is not its own.
    lease.release()
    assert queued.mirror.status()[0].lease_owner is None


@pytest.mark.parametrize("seconds", [0, -1, 61, float("nan")])
def test_a_lease_that_nobody_could_wait_for_is_refused(queued: Lake, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="lease_seconds"):
        queued.mirror.worker(lease_seconds=seconds)


# --- a pass -------------------------------------------------------------------------------


def test_tables_that_another_worker_tends_are_left_to_it(
    queued: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table = new_table(queued, "a")
    new_table(queued, "b")
    assert Lease.take(queued.store, table.table_id, "another", seconds=30) is not None
    done = {one.table: one for one in queued.mirror.run_once()}
    assert done["b"].outcome is Outcome.CAUGHT_UP
    assert (done["a"].outcome, done["a"].lease_owner) == (Outcome.LEASED, "another")
    assert done["a"].next_attempt_at == clock.now_ms() + 30_000
    assert versions_in(table) == []
    (status, _) = queued.mirror.status()
    assert status.lease_owner == "another"
    # It has died: after its time another one takes over.
    clock.advance(30_000)
    assert [done.table for done in queued.mirror.run_once()] == ["a"]
    check_published(queued, table)
    assert queued.mirror.status()[0].lease_owner is None


def test_many_tables_are_published_in_one_pass(queued: Lake, new_table: NewTable) -> None:
    tables = [new_table(queued, f"t{number}") for number in range(12)]
    for table in tables:
        table.commit([add("a.parquet")])
    done = queued.mirror.run_once(concurrency=3)
    assert {published.outcome for published in done} == {Outcome.CAUGHT_UP}
    assert len(done) == 12
    for table in tables:
        check_published(queued, table)


def test_a_pass_tries_also_what_would_still_wait(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    log_of(table).parent.mkdir()
    log_of(table).write_bytes(b"")
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.FAILED
    log_of(table).unlink()
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.CAUGHT_UP
    assert queue(queued, table)[0]["attempts"] == 2


def test_no_table_at_once_is_refused(queued: Lake) -> None:
    with pytest.raises(ConfigurationError, match="concurrency"):
        queued.mirror.worker(concurrency=0)


# --- running ------------------------------------------------------------------------------


def test_a_worker_publishes_what_is_committed_while_it_runs(
    open_lake: OpenLake, new_table: NewTable
) -> None:
    from deltalakedb.clock import SystemClock

    lake = open_lake(mirror="worker", clock=SystemClock())
    table = new_table(lake)
    with running(lake.mirror.worker()):
        wait_until_published(lake, table)
        for number in range(20):
            table.commit([add(f"{number}.parquet")])
        wait_until_published(lake, table)
    check_published(lake, table)
    assert lake.mirror.status()[0].lease_owner is None


def test_a_worker_is_woken_by_a_commit(
    engine: Engine, open_lake: OpenLake, new_table: NewTable
) -> None:
    """With a pause of an hour, only word of the commit can wake it."""
    if engine != "postgres":
        pytest.skip("only Postgres has channels; the others look again after 0.2 s")
    lake = open_lake(mirror="worker")
    worker = lake.mirror.worker()
    thread = threading.Thread(target=lambda: worker.run(poll_seconds=3600))
    thread.start()
    try:
        table = new_table(lake)
        wait_until_published(lake, table)
        table.commit([add("a.parquet")])
        wait_until_published(lake, table)
    finally:
        worker.stop()
        thread.join(LONG)
    assert not thread.is_alive()
    check_published(lake, table)


def test_a_worker_that_is_stopped_finishes_its_version_and_gives_its_leases_back(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued)
    for number in range(30):
        table.commit([add(f"{number}.parquet")])
    reached = threading.Event()

    def step(name: str) -> None:
        if name == "written" and not reached.is_set():
            worker.stop()
            reached.set()

    worker = Worker(queued.store, step=step)
    worker.run()
    assert reached.is_set()
    assert versions_in(table) == [0]
    assert queue(queued, table)[0]["status"] == "SUCCEEDED"
    assert queued.mirror.status()[0].lease_owner is None


def test_one_table_that_cannot_be_written_does_not_hold_up_the_others(
    queued: Lake, new_table: NewTable
) -> None:
    tables = [new_table(queued, f"t{number}") for number in range(5)]
    bad = tables[0]
    log_of(bad).parent.mkdir()
    log_of(bad).write_bytes(b"")
    with running(queued.mirror.worker(concurrency=1)):
        wait_until_published(queued, *tables[1:])
        # Its turn may be the last one.
        deadline = time.monotonic() + LONG
        while queue(queued, bad)[0]["status"] == "PENDING":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert [status.state for status in queued.mirror.status()] == ["blocked", *["published"] * 4]


def test_a_checkpoint_that_takes_long_keeps_no_other_table_waiting(
    queued: Lake, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [new_table(queued, f"t{number}") for number in range(6)]
    slow, busy = threading.Event(), threading.Semaphore(0)
    run = Upkeep.run

    def wait(upkeep: Upkeep, table: TableRecord, published: int) -> UpkeepResult:
        busy.release()
        assert slow.wait(LONG)
        return run(upkeep, table, published)

    monkeypatch.setattr(Upkeep, "run", wait)
    # One place: whoever has it is looking after a log, and would keep the others from theirs.
    with running(queued.mirror.worker(concurrency=1)):
        assert busy.acquire(timeout=LONG)
        # It has hands for four.
        deadline = time.monotonic() + LONG
        while sum(not status.backlog for status in queued.mirror.status()) < 4:
            assert time.monotonic() < deadline, queued.mirror.status()
            time.sleep(0.01)
        # Of them one at a time is looked after.
        assert not busy.acquire(blocking=False)
        slow.set()
        wait_until_published(queued, *tables)
    for table in tables:
        check_published(queued, table)
