"""Repairing: what can be made from the catalog is; whatever is somebody else's is left alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.names import checkpoint_key, checksum_key, commit_key
from deltalakedb.errors import TableNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.repair import Repair, repair_table
from deltalakedb.mirror.verification import Kind
from deltalakedb.storage import Storage
from deltalakedb.table import Table
from mirror.test_verify_checkpoints import rewrite, without_a_file

from support.delta_log import write_appends
from support.lake import OpenLake, add, live_paths, remove, schema_json
from support.mirror_lakes import NewTable
from support.mirror_logs import log_of, queue
from support.published import record_of, storage_of
from support.s3 import S3Server

DAY_MS = 86_400_000
Files = dict[str, bytes]


@pytest.fixture
def table(queued: Lake, new_table: NewTable) -> Table:
    """Versions 0 to 5, published, with checkpoints of versions 2 and 4 and a checksum."""
    made = new_table(queued, properties={"delta.checkpointInterval": "1000"})
    for number in range(1, 6):
        gone = [remove(f"f{number - 2}")] if number > 2 else []
        made.commit([add(f"f{number}"), *gone, *([add("d")] if number == 1 else [])])
    queued.mirror.run_once()
    for version in (2, 4):
        write_checkpoint(queued.store, storage_of(made), record_of(queued, made), version)
    write_checksum(queued.store, storage_of(made), record_of(queued, made), 4)
    assert queued.verify(made.name).ok
    return made


def in_log(table: Table, key: str) -> Path:
    return log_of(table).parent / key


def files_of(table: Table) -> Files:
    return {
        str(path.relative_to(log_of(table))): path.read_bytes()
        for path in log_of(table).rglob("*")
        if path.is_file()
    }


def commits_of(table: Table) -> Files:
    return {name: data for name, data in files_of(table).items() if name.endswith(".json")}


def read_by_delta_rs(table: Table) -> list[str]:
    """The live files as another reader of the log sees them."""
    uris = DeltaTable(str(log_of(table).parent)).file_uris()
    return sorted(uri.rpartition("/")[2] for uri in uris)


def repaired(lake: Lake, table: Table) -> Repair:
    """Plan, then repair; the plan has to say what is done, and to change nothing."""
    before = files_of(table)
    plan = lake.repair(table.name, dry_run=True)
    assert files_of(table) == before
    done = lake.repair(table.name)
    assert (plan.dry_run, done.dry_run) == (True, False)
    assert {step.kind for step in plan.steps} == {step.kind for step in done.steps}
    assert json.loads(json.dumps(done.to_dict()))["ok"] is done.ok
    return done


# --- commits ------------------------------------------------------------------------------


def test_where_nothing_is_wrong_nothing_is_done(queued: Lake, table: Table) -> None:
    before = files_of(table)
    done = repaired(queued, table)
    assert (done.ok, done.steps, done.left) == (True, (), ())
    assert files_of(table) == before


def test_commits_that_vanished_are_written_again_byte_for_byte(queued: Lake, table: Table) -> None:
    before = files_of(table)
    for version in (0, 3, 5):
        in_log(table, commit_key(version)).unlink()
    done = repaired(queued, table)
    assert done.ok
    assert [(step.kind, step.version) for step in done.steps] == [
        (Kind.MISSING_COMMIT, version) for version in (0, 3, 5)
    ]
    assert files_of(table) == before


def test_a_whole_log_is_written_again(queued: Lake, table: Table) -> None:
    commits = commits_of(table)
    shutil.rmtree(log_of(table))
    assert repaired(queued, table).ok
    assert commits_of(table) == commits
    assert read_by_delta_rs(table) == live_paths(table)


@pytest.mark.parametrize("left", [0, 1, 200])
def test_a_commit_that_a_power_cut_shortened_is_completed(
    queued: Lake, table: Table, left: int
) -> None:
    before = files_of(table)
    path = in_log(table, commit_key(5))
    path.write_bytes(path.read_bytes()[:left])
    done = repaired(queued, table)
    assert done.ok
    assert done.steps[0].what == f"completed from {left} to {len(before[path.name])} bytes"
    assert files_of(table) == before


def test_a_shortened_commit_that_stopped_publishing_does_so_no_more(
    queued: Lake, table: Table
) -> None:
    table.commit([add("new")])
    table.commit([add("newer")])
    payload = bytes(queue(queued, table)[6]["payload"])
    in_log(table, commit_key(6)).write_bytes(payload[:40])
    queued.mirror.run_once()
    assert queued.mirror.status()[0].state == "drifted"
    assert repaired(queued, table).ok
    assert in_log(table, commit_key(6)).read_bytes() == payload
    assert queued.mirror.status()[0].drift is None
    queued.mirror.run_once()
    assert queued.verify(table.name).published_version == 7


def test_on_an_object_store_no_commit_is_completed(
    open_lake: OpenLake, s3_server: S3Server
) -> None:
    lake = open_lake(mirror="worker", storage_options=s3_server.storage_options)
    location = f"s3://{s3_server.new_bucket()}/t"
    table = lake.create_table("s3", location=location, schema=schema_json("id"))
    table.commit([add("a")])
    lake.mirror.run_once()
    storage = lake.open_storage(location)
    data = storage.get(commit_key(1))
    storage.put(commit_key(1), data[:10])
    done = lake.repair("s3")
    assert (done.steps, [f.kind for f in done.left]) == ((), [Kind.TRUNCATED_COMMIT])
    storage.delete(commit_key(1))
    assert lake.repair("s3").ok
    assert storage.get(commit_key(1)) == data


def test_changed_and_foreign_commits_are_left_alone(queued: Lake, table: Table) -> None:
    changed = in_log(table, commit_key(2))
    changed.write_bytes(changed.read_bytes().replace(b'"size":100', b'"size":101'))
    in_log(table, commit_key(6)).write_text('{"commitInfo":{}}\n')
    before = files_of(table)
    done = repaired(queued, table)
    assert not done.ok
    assert [finding.kind for finding in done.left] == [Kind.DIFFERENT_COMMIT, Kind.FOREIGN_COMMIT]
    assert files_of(table) == before


def test_a_fork_is_left_alone(queued: Lake, table: Table) -> None:
    table.commit([add("ours")])
    in_log(table, commit_key(6)).write_text('{"commitInfo":{}}\n')
    queued.mirror.run_once()
    before = files_of(table)
    done = repaired(queued, table)
    assert [finding.kind for finding in done.left] == [Kind.FOREIGN_COMMIT]
    assert files_of(table) == before
    assert queued.mirror.status()[0].state == "drifted"


def test_an_imported_commit_comes_back_only_if_its_bytes_are_known(
    queued: Lake, table: Table, tmp_path: Path
) -> None:
    # One that another writer spelled.
    write_appends(tmp_path / "theirs", 3)
    theirs = queued.import_table(str(tmp_path / "theirs"), name="theirs")
    in_log(theirs, commit_key(1)).unlink()
    done = repaired(queued, theirs)
    assert (done.steps, [f.kind for f in done.left]) == ((), [Kind.MISSING_COMMIT])
    # One that this release wrote.
    shutil.copytree(log_of(table).parent, tmp_path / "ours")
    ours = queued.import_table(str(tmp_path / "ours"), name="ours")
    before = files_of(ours)
    in_log(ours, commit_key(1)).unlink()
    assert repaired(queued, ours).ok
    assert files_of(ours) == before


@pytest.mark.parametrize("payload", ["NULL", "X'00'"])
def test_bytes_to_publish_that_are_gone_are_made_anew(
    queued: Lake, table: Table, payload: str
) -> None:
    table.commit([add("new")])
    if queued.store.dialect.engine != "sqlite":
        payload = payload.replace("X'00'", "'\\x00'::BYTEA")
    text = f"UPDATE dl_mirror_status SET payload = {payload} WHERE version = 6"
    with queued.store.write() as session:
        session.execute_count(text, {})
    queued.mirror.run_once()
    assert queued.mirror.status()[0].state == "blocked"
    (finding,) = queued.verify(table.name).findings
    assert (finding.kind, finding.version) == (Kind.DAMAGED_PAYLOAD, 6)
    assert repaired(queued, table).ok
    queued.mirror.run_once()
    assert queued.verify(table.name).published_version == 6


def test_a_drift_that_is_gone_is_forgotten(queued: Lake, table: Table) -> None:
    table.commit([add("ours")])
    path = in_log(table, commit_key(6))
    path.write_text('{"commitInfo":{}}\n')
    queued.mirror.run_once()
    path.unlink()
    done = repaired(queued, table)
    assert [step.kind for step in done.steps] == [Kind.STALE_DRIFT]
    queued.mirror.run_once()
    assert queued.mirror.status()[0].state == "published"


# --- what helps readers -------------------------------------------------------------------


def no_parquet(table: Table) -> None:
    in_log(table, checkpoint_key(4)).write_bytes(b"no parquet")


def empty(table: Table) -> None:
    in_log(table, checkpoint_key(4)).write_bytes(b"")


def wrong(table: Table) -> None:
    rewrite(in_log(table, checkpoint_key(4)), without_a_file)


def lost(table: Table) -> None:
    in_log(table, checkpoint_key(4)).unlink()


def garbled_hint(table: Table) -> None:
    (log_of(table) / "_last_checkpoint").write_text("{")


def orphan(table: Table) -> None:
    in_log(table, checksum_key(9)).write_text("{}")


def wrong_checksum(table: Table) -> None:
    path = in_log(table, checksum_key(4))
    document = {**json.loads(path.read_text()), "numFiles": 99, "tableSizeBytes": 0}
    path.write_text(json.dumps(document))


def wrong_compaction(table: Table) -> None:
    name = f"{1:020d}.{2:020d}.compacted.json"
    (log_of(table) / name).write_text(json.dumps(add("f1")))


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (no_parquet, {Kind.DAMAGED_CHECKPOINT, Kind.LOST_HINT}),
        (empty, {Kind.DAMAGED_CHECKPOINT, Kind.LOST_HINT}),
        (wrong, {Kind.CHECKPOINT_DIFFERS, Kind.LOST_HINT}),
        (lost, {Kind.LOST_HINT}),
        (garbled_hint, {Kind.DAMAGED_HINT}),
        (orphan, {Kind.ORPHAN_CHECKSUM}),
        (wrong_checksum, {Kind.CHECKSUM_DIFFERS}),
        (wrong_compaction, {Kind.COMPACTION_DIFFERS}),
    ],
)
def test_what_is_made_from_the_catalog_is_made_anew(
    queued: Lake,
    table: Table,
    spoil: Callable[[Table], None],
    kinds: set[Kind],
) -> None:
    commits = commits_of(table)
    spoil(table)
    assert set(map(Kind, queued.verify(table.name).counts)) == kinds
    done = repaired(queued, table)
    assert (done.ok, done.left) == (True, ())
    assert {step.kind for step in done.steps} == kinds
    verification = queued.verify(table.name)
    assert verification.findings == ()
    assert 2 in verification.checkpoints
    assert commits_of(table).items() >= commits.items()
    assert read_by_delta_rs(table) == live_paths(table)


def test_a_hint_without_any_checkpoint_goes(queued: Lake, table: Table) -> None:
    for version in (2, 4):
        in_log(table, checkpoint_key(version)).unlink()
    assert repaired(queued, table).ok
    assert not (log_of(table) / "_last_checkpoint").exists()


def test_parts_that_nobody_works_on_any_more_go(
    queued: Lake, table: Table, clock: ManualClock
) -> None:
    record, storage = record_of(queued, table), storage_of(table)
    write_checkpoint(queued.store, storage, record, 5, max_actions=1)
    parts = sorted(log_of(table).glob("*.checkpoint.*.parquet"))
    assert len(parts) > 2
    parts[-1].unlink()
    for path in parts[:-1]:
        os.utime(path, (clock.now_ms() / 1000, clock.now_ms() / 1000))
    done = repaired(queued, table)
    assert [finding.kind for finding in done.left] == [Kind.UNFINISHED_CHECKPOINT]
    assert done.ok
    clock.advance(2 * DAY_MS)
    done = repaired(queued, table)
    assert (done.left, done.steps[0].what) == ((), "deleted")
    assert not list(log_of(table).glob("*.checkpoint.*.*.parquet"))


def test_a_multi_part_checkpoint_that_is_damaged_is_replaced(queued: Lake, table: Table) -> None:
    record, storage = record_of(queued, table), storage_of(table)
    write_checkpoint(queued.store, storage, record, 5, max_actions=1)
    parts = sorted(log_of(table).glob("*.checkpoint.*.parquet"))
    parts[1].write_bytes(b"no parquet")
    assert repaired(queued, table).ok
    assert queued.verify(table.name).checkpoints == (2, 4, 5)


def test_a_log_that_begins_nowhere_gets_a_checkpoint(
    queued: Lake, table: Table, clock: ManualClock, tmp_path: Path
) -> None:
    clock.advance(DAY_MS)
    table.commit([add("new")])
    queued.mirror.run_once()
    queued.expire(table.name, older_than="1 hour", archive=str(tmp_path / "archive"))
    for path in log_of(table).iterdir():
        if "checkpoint" in path.name or path.name in map(key_name, range(5)):
            path.unlink()
    (finding,) = queued.verify(table.name).findings
    assert finding.kind is Kind.UNREADABLE_LOG
    assert repaired(queued, table).ok
    assert queued.verify(table.name).checkpoints == (6,)
    assert read_by_delta_rs(table) == live_paths(table)


def key_name(version: int) -> str:
    return Path(commit_key(version)).name


def test_a_checkpoint_beyond_what_is_published_is_left_alone(queued: Lake, table: Table) -> None:
    shutil.copy(in_log(table, checkpoint_key(4)), in_log(table, checkpoint_key(9)))
    before = files_of(table)
    done = repaired(queued, table)
    assert [(f.kind, f.version) for f in done.left] == [(Kind.CHECKPOINT_DIFFERS, 9)]
    assert files_of(table) == before


def test_while_commits_are_in_doubt_no_checkpoint_is_made(queued: Lake, table: Table) -> None:
    changed = in_log(table, commit_key(2))
    changed.write_bytes(changed.read_bytes().replace(b'"size":100', b'"size":101'))
    no_parquet(table)
    before = files_of(table)
    done = repaired(queued, table)
    assert {finding.kind for finding in done.left} == {
        *(Kind.DIFFERENT_COMMIT, Kind.DAMAGED_CHECKPOINT, Kind.LOST_HINT),
    }
    assert files_of(table) == before


# --- the catalog --------------------------------------------------------------------------


def test_dl_active_files_is_rebuilt(queued: Lake, table: Table) -> None:
    with queued.store.write() as session:
        session.execute_count("DELETE FROM dl_active_files WHERE path IN ('f4', 'f1')", {})
    assert queued.verify(table.name).of(Kind.STATE_DIFFERS)
    before = files_of(table)
    done = queued.repair(table.name)
    assert (done.ok, done.left) == (True, ())
    assert [step.kind for step in done.steps] == [Kind.CATALOG_CONTRADICTION]
    assert files_of(table) == before


def test_a_ledger_that_differs_from_its_log_is_left_alone(queued: Lake, table: Table) -> None:
    with queued.store.write() as session:
        for relation in ("dl_add_files", "dl_active_files"):
            text = f"UPDATE {relation} SET size_bytes = 5 WHERE path = 'f5'"
            session.execute_count(text, {})
    done = repaired(queued, table)
    assert (done.steps, {f.kind for f in done.left}) == ((), {Kind.STATE_DIFFERS})


def test_everything_at_once(queued: Lake, table: Table) -> None:
    commits = commits_of(table)
    in_log(table, commit_key(3)).unlink()
    path = in_log(table, commit_key(5))
    path.write_bytes(path.read_bytes()[:3])
    for spoil in (no_parquet, orphan, wrong_checksum, wrong_compaction):
        spoil(table)
    with queued.store.write() as session:
        session.execute_count("DELETE FROM dl_active_files WHERE path = 'f2'", {})
    done = queued.repair(table.name)
    assert (done.ok, done.left) == (True, ())
    assert queued.verify(table.name).findings == ()
    assert commits_of(table) == commits
    assert read_by_delta_rs(table) == live_paths(table)


class KilledError(BaseException):
    """The process ends here."""


def test_a_repair_that_dies_can_be_done_again(queued: Lake, table: Table) -> None:
    for number in range(40):

        class Dying(Storage):
            """Dies at its `number`-th write."""

            writes = 0

            def _write(self) -> None:
                type(self).writes += 1
                if self.writes > number:  # noqa: B023 - the class lives for one round
                    raise KilledError

            def put(self, key: str, data: bytes) -> None:
                self._write()
                super().put(key, data)

            def put_if_absent(self, key: str, data: bytes, **options: Any) -> bool:
                self._write()
                return super().put_if_absent(key, data, **options)

            def delete(self, key: str) -> None:
                self._write()
                super().delete(key)

            def delete_many(self, keys: Any) -> None:
                self._write()
                super().delete_many(keys)

            def update(self, key: str, change: Any) -> bool:
                self._write()
                return super().update(key, change)

        # One that dies between deleting it and writing it anew leaves none, which harms nobody.
        write_checksum(queued.store, storage_of(table), record_of(queued, table), 4)
        in_log(table, commit_key(3)).unlink()
        for spoil in (wrong, orphan, wrong_checksum):
            spoil(table)
        real = storage_of(table)
        dying = Dying(real.location, real._store, folder=real._folder)
        try:
            repair_table(queued.store, dying, record_of(queued, table))
        except KilledError:
            assert queued.repair(table.name).ok
        else:
            break
        assert queued.verify(table.name).findings == ()
    else:
        pytest.fail("it never came to its end")
    assert number > 4


def test_an_unknown_table_is_told_as_such(queued: Lake) -> None:
    with pytest.raises(TableNotFoundError):
        queued.repair("nobody")
