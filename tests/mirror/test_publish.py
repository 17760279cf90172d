"""Publishing: commit files in order, byte for byte, once; and what happens when it cannot be."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    ConfigurationError,
    ForeignCommitError,
    MirrorError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.mirror.publish import Outcome, Publisher, RetrySchedule, Storages
from deltalakedb.store.mirror import mirror_table
from deltalakedb.table import Table

from support.lake import OpenLake, add, remove
from support.mirror_lakes import NewTable
from support.mirror_logs import check_published, lines, log_of, queue, versions_in


def test_a_commit_is_in_the_log_when_it_returns(inline: Lake, new_table: NewTable) -> None:
    table = new_table(inline)
    assert versions_in(table) == [0]
    assert {"protocol", "metaData"} <= {next(iter(line)) for line in lines(table, 0)}
    table.commit([add("a.parquet")])
    table.commit([remove("a.parquet"), add("b.parquet")])
    table.set_properties({"owner": "me"})
    check_published(inline, table)
    assert versions_in(table) == [0, 1, 2, 3]
    assert next(iter(lines(table, 2)[0])) == "commitInfo"


def test_every_table_of_a_transaction_is_in_its_log(inline: Lake, new_table: NewTable) -> None:
    tables = [new_table(inline, name) for name in ("a", "b", "c")]
    with inline.transaction() as tx:
        for table in tables:
            tx.table(table.name).add_actions([add("x.parquet")])
    for table in tables:
        check_published(inline, table)
        assert versions_in(table) == [0, 1]


def test_what_is_left_to_the_worker_waits_in_the_queue(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    table.commit([add("a.parquet")])
    assert not log_of(table).exists()
    (status,) = queued.mirror.status()
    assert (status.head, status.published_version, status.backlog) == (1, None, 2)
    assert status.state == "pending"
    (done,) = queued.mirror.run_once()
    assert (done.outcome, done.count, done.last_version) == (Outcome.CAUGHT_UP, 2, 1)
    check_published(queued, table)
    (status,) = queued.mirror.status()
    assert (status.published_version, status.backlog, status.lag_ms) == (1, 0, 0)
    assert status.state == "published"
    assert queued.mirror.run_once() == []


def test_an_odd_way_to_publish_is_refused(open_lake: OpenLake) -> None:
    with pytest.raises(ConfigurationError, match="sometimes"):
        open_lake(mirror="sometimes")


def test_a_file_that_is_there_already_with_the_same_bytes_is_a_success(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued)
    table.commit([add("a.parquet")])
    payloads = {version: bytes(row["payload"]) for version, row in queue(queued, table).items()}
    log_of(table).mkdir(parents=True)
    for version, data in payloads.items():
        (log_of(table) / f"{version:020d}.json").write_bytes(data)
    before = (log_of(table) / f"{0:020d}.json").stat().st_mtime_ns
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.CAUGHT_UP
    assert (log_of(table) / f"{0:020d}.json").stat().st_mtime_ns == before
    check_published(queued, table)


def test_a_foreign_commit_stops_its_table_and_no_other(queued: Lake, new_table: NewTable) -> None:
    table, other = new_table(queued, "a"), new_table(queued, "b")
    queued.mirror.run_once()
    foreign = b'{"commitInfo":{"operation":"WRITE"}}\n'
    path = log_of(table) / f"{1:020d}.json"
    path.write_bytes(foreign)
    for each in (table, other):
        each.commit([add("x.parquet")])
        each.commit([add("y.parquet")])
    done = {published.table: published for published in queued.mirror.run_once()}
    assert done["b"].outcome is Outcome.CAUGHT_UP
    assert done["a"].outcome is Outcome.DRIFTED
    assert isinstance(done["a"].error, ForeignCommitError)
    assert "lake.adopt" in str(done["a"].error)
    assert path.read_bytes() == foreign
    assert versions_in(table) == [0, 1]
    drifted, fine = queued.mirror.status()
    assert (drifted.state, fine.state) == ("drifted", "published")
    assert (drifted.published_version, drifted.backlog) == (0, 2)
    assert drifted.drift is not None
    assert drifted.drift["version"] == 1
    assert drifted.drift["object_key"] == f"_delta_log/{1:020d}.json"
    assert drifted.drift["found_digest"] == hashlib.sha256(foreign).hexdigest()
    assert drifted.drift["expected_digest"] == queue(queued, table)[1]["digest"]
    # Nobody goes on by himself, not even when the file is gone.
    path.unlink()
    assert queued.mirror.run_once() == []
    assert versions_in(table) == [0]
    # Somebody who has looked lets it go on.
    queued.mirror.retry("a")
    check_published(queued, table)
    assert queued.mirror.status()[0].drift is None


def test_commits_go_on_while_a_table_has_drifted_where_that_is_allowed(
    open_lake: OpenLake, new_table: NewTable
) -> None:
    inline = open_lake(mirror="inline", on_drift="allow")
    table = new_table(inline)
    (log_of(table) / f"{1:020d}.json").write_bytes(b"{}\n")
    assert table.commit([add("a.parquet")]) == 1
    assert table.commit([add("b.parquet")]) == 2
    assert table.snapshot().num_files == 2
    assert versions_in(table) == [0, 1]
    assert inline.mirror.status()[0].state == "drifted"


# --- failing ------------------------------------------------------------------------------


def block(table: Table) -> Callable[[], None]:
    """Put a file where the log should be; give back how to take it away."""
    log = log_of(table)
    log.parent.mkdir(parents=True, exist_ok=True)
    saved = log.with_name("saved")
    if log.exists():
        shutil.move(log, saved)
    log.write_bytes(b"")

    def unblock() -> None:
        log.unlink()
        if saved.exists():
            shutil.move(saved, log)

    return unblock


def test_a_commit_does_not_fail_because_of_the_log(
    inline: Lake, new_table: NewTable, clock: ManualClock
) -> None:
    table = new_table(inline)
    unblock = block(table)
    assert table.commit([add("a.parquet")]) == 1
    row = queue(inline, table)[1]
    assert (row["status"], row["attempts"], row["error_kind"]) == ("FAILED", 1, "permanent")
    assert "_delta_log" in row["last_error"]
    # While it waits, further commits do not try.
    assert table.commit([add("b.parquet")]) == 2
    assert queue(inline, table)[1]["attempts"] == 1
    (status,) = inline.mirror.status()
    assert (status.state, status.backlog, status.published_version) == ("blocked", 2, 0)
    assert inline.metrics.read()["mirror_failures_total"] == 1
    assert inline.metrics.read()["mirror_permanent_failures_total"] == 1
    unblock()
    clock.advance(row["next_attempt_at"])
    table.commit([add("c.parquet")])
    check_published(inline, table)


def test_the_wait_after_failures_grows_and_then_is_periodic() -> None:
    schedule = RetrySchedule(random=lambda: 0.5)
    waits = [schedule.delay_ms(n, permanent=False) for n in range(1, 13)]
    assert waits[:9] == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert waits[9:] == [3_600_000] * 3
    assert schedule.delay_ms(1, permanent=True) == 3_600_000
    low, high = RetrySchedule(random=lambda: 0.0), RetrySchedule(random=lambda: 1.0)
    assert (low.delay_ms(1, permanent=False), high.delay_ms(1, permanent=False)) == (375, 625)
    assert RetrySchedule(attempts=10**9).delay_ms(10**6, permanent=False) <= 75_000


def test_a_damaged_payload_is_not_published(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    with queued.store.write() as session:
        session.execute_count(
            queued.store.dialect.sql("UPDATE dl_mirror_status SET payload = :payload"),
            {"payload": b"{}"},
        )
    (done,) = queued.mirror.run_once()
    assert done.outcome is Outcome.FAILED
    assert "damaged" in str(done.error)
    assert versions_in(table) == []
    with queued.store.write() as session:
        session.execute_count("UPDATE dl_mirror_status SET payload = NULL", {})
    (done,) = queued.mirror.run_once()
    assert "gone" in str(done.error)


def test_a_large_commit_is_published_whole(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    table.commit([add(f"{'long-name-' * 20}{n}.parquet") for n in range(4_000)])
    assert queue(queued, table)[1]["payload_bytes"] > 1_000_000
    table.commit([add("small.parquet")])
    queued.mirror.run_once()
    check_published(queued, table)


def test_a_long_backlog_is_published_in_order(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    for number in range(150):
        table.commit([add(f"{number}.parquet")])
    order: list[int] = []

    storages = Storages({})
    storage = storages.at(table.location)
    put = storage.put_if_absent

    def watched(key: str, data: bytes, **options: Any) -> bool:
        order.append(int(Path(key).stem))
        return put(key, data, **options)

    storage.put_if_absent = watched  # type: ignore[method-assign]
    with queued.store.read() as session:
        record = queued.store.table_by_name(session, table.name)
    assert record is not None
    done = Publisher(queued.store, storages).publish(record)
    assert (done.outcome, done.count) == (Outcome.CAUGHT_UP, 151)
    assert order == list(range(151))
    check_published(queued, table)


def test_many_publishers_of_one_table_write_the_same_log(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    for number in range(40):
        table.commit([add(f"{number}.parquet")])
    with queued.store.read() as session:
        record = queued.store.table_by_name(session, table.name)
    assert record is not None
    ready = threading.Barrier(4)
    outcomes: list[Outcome] = []

    def publish() -> None:
        publisher = Publisher(queued.store, Storages({}))
        ready.wait()
        outcomes.append(publisher.publish(record).outcome)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [Outcome.CAUGHT_UP] * 4
    check_published(queued, table)


def test_publishing_can_be_interrupted_between_versions(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    for number in range(5):
        table.commit([add(f"{number}.parquet")])
    with queued.store.read() as session:
        record = queued.store.table_by_name(session, table.name)
    assert record is not None
    answers = iter([True, True, False])
    done = Publisher(queued.store, Storages({})).publish(record, go_on=lambda: next(answers))
    assert (done.outcome, done.count, done.last_version) == (Outcome.INTERRUPTED, 2, 1)
    assert versions_in(table) == [0, 1]


def open_files() -> int:
    """How many files this process has open, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


@pytest.mark.parametrize("named", [False, True])
def test_a_backlog_that_is_broken_off_leaves_nothing_behind(
    queued: Lake, new_table: NewTable, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    table = new_table(queued)
    for number in range(40):
        table.commit([add(f"{number}.parquet")])
    if named:
        # As on a file system that knows no files without a name.
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    handles = open_files()
    answers = iter([True] * 20 + [False])
    with queued.store.read() as session:
        record = queued.store.table_by_name(session, table.name)
    assert record is not None
    done = Publisher(queued.store, Storages({})).publish(record, go_on=lambda: next(answers))
    assert (done.outcome, done.count) == (Outcome.INTERRUPTED, 20)
    assert sorted(path.name for path in log_of(table).iterdir()) == [
        f"{version:020d}.json" for version in range(20)
    ]
    assert open_files() <= handles
    queued.mirror.run_once()
    check_published(queued, table)


# --- around it ----------------------------------------------------------------------------


def test_a_table_with_unpublished_versions_is_not_dropped(
    queued: Lake, new_table: NewTable
) -> None:
    table = new_table(queued)
    with pytest.raises(MirrorError, match="not in its _delta_log"):
        queued.drop_table(table.name)
    queued.mirror.run_once()
    queued.drop_table(table.name)
    with pytest.raises(TableNotFoundError):
        queued.table(table.name)
    assert versions_in(table) == [0]


def test_retrying_a_table_that_is_not_there_says_so(queued: Lake) -> None:
    with pytest.raises(TableNotFoundError, match="nothing"):
        queued.mirror.retry("nothing")


def test_metrics_and_events_tell_what_happened(
    queued: Lake, new_table: NewTable, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(queued)
    clock.advance(250)
    with caplog.at_level("INFO", logger="deltalakedb"):
        queued.mirror.run_once()
    told = [r.fields for r in caplog.records if getattr(r, "event", "") == "mirror_published"]  # type: ignore[attr-defined]
    assert told == [
        {
            "table": table.name,
            "table_id": table.table_id,
            "version": 0,
            "object_key": f"_delta_log/{0:020d}.json",
            "attempt": 1,
            "latency_ms": 250,
            "bytes": queue(queued, table)[0]["payload_bytes"],
        }
    ]
    metrics = queued.metrics.read()
    assert (metrics["mirror_latency_ms"]["count"], metrics["mirror_latency_ms"]["sum"]) == (1, 250)
    assert metrics[f'mirror_backlog_gauge{{table="{table.name}"}}'] == 0
    text = queued.metrics.exposition()
    assert "# TYPE deltalakedb_mirror_latency_ms histogram" in text
    assert 'deltalakedb_mirror_latency_ms_bucket{le="500"} 1' in text
    assert f'deltalakedb_mirror_backlog_gauge{{table="{table.name}"}} 0' in text


def test_a_failure_is_told_with_its_table_version_key_and_attempt(
    queued: Lake, new_table: NewTable, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(queued)
    block(table)
    with caplog.at_level("WARNING", logger="deltalakedb"):
        queued.mirror.run_once()
    (told,) = [r.fields for r in caplog.records if getattr(r, "event", "") == "mirror_failed"]  # type: ignore[attr-defined]
    assert told["table_id"] == table.table_id
    assert (told["version"], told["attempt"], told["kind"]) == (0, 1, "permanent")
    assert told["object_key"] == f"_delta_log/{0:020d}.json"
    assert told["error"]


def test_the_drift_of_a_table_nobody_tended_is_nothing(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    with queued.store.read() as session:
        assert mirror_table(session, table.table_id).drift is None
    assert json.dumps(queued.mirror.status()[0].to_dict())
