"""Verifying: whatever differs between the catalog and the log is told, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.names import commit_key
from deltalakedb.errors import TableNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checksum
from deltalakedb.mirror.verification import Kind, Verification
from deltalakedb.mirror.verify import verify_table
from deltalakedb.mirror.verify_commits import read_scope
from deltalakedb.storage import Storage
from deltalakedb.table import Table

from support.delta_log import write_appends
from support.lake import OpenLake, add, deletion_vector, remove, schema_json
from support.mirror_lakes import NewTable
from support.mirror_logs import checkpointed, eventful, log_file, log_of, one
from support.progress_recorder import ProgressRecorder
from support.published import record_of, storage_of
from support.s3 import S3Server

DAY_MS = 86_400_000


@pytest.fixture
def table(queued: Lake, new_table: NewTable) -> Table:
    return eventful(queued, new_table)


# --- nothing is wrong ---------------------------------------------------------------------


def test_a_published_table_is_found_in_order(queued: Lake, table: Table) -> None:
    for version in (2, 4):
        checkpointed(queued, table, version)
    write_checksum(queued.store, storage_of(table), record_of(queued, table), 5)
    told: list[tuple[int, int]] = []
    verification = queued.verify(table.name, progress=lambda *step: told.append(step))
    assert verification.ok
    assert verification.findings == ()
    assert (verification.first_version, verification.head, verification.published_version) == (
        *(0, 5, 5),
    )
    assert (verification.compared, verification.pending, verification.cleaned) == (6, 0, 0)
    assert (verification.replays, verification.files, verification.checkpoints) == (2, 3, (2, 4))
    assert told == [(6, 6)], "a plain function hears of versions alone"
    assert verification.to_dict()["ok"] is True


def test_every_phase_is_told(queued: Lake, table: Table) -> None:
    for version in (2, 4):
        checkpointed(queued, table, version)
    recorder = ProgressRecorder()
    assert queued.verify(table.name, progress=recorder).ok
    assert [*recorder.calls] == [
        *("Listing the log", "Comparing versions", "Comparing checkpoints", "Comparing checksums"),
        *("Replaying the log", "Checking the catalog"),
    ]
    assert recorder.calls["Comparing versions"] == [(6, 6)]
    assert recorder.calls["Comparing checkpoints"] == [(0, 2), (1, 2), (2, 2)]
    # All six commits from the beginning, and the last one from the checkpoint of version 4.
    assert recorder.calls["Replaying the log"] == [(0, 7), (6, 7), (7, 7)]


def test_each_commit_of_a_replay_is_told(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.mirror.verify._PROGRESS_INTERVAL", 2)
    queued.mirror.run_once()
    recorder = ProgressRecorder()
    assert queued.verify(table.name, progress=recorder).ok
    assert recorder.calls["Replaying the log"] == [(0, 6), (2, 6), (4, 6), (6, 6), (6, 6)]
    listed = recorder.calls["Listing the log"]
    assert listed[0] == (2, 0), "nobody knows how many there will be"


def test_what_is_not_published_yet_is_not_missed(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued)
    table.commit([add("a")])
    nothing = queued.verify(table.name)
    assert (nothing.ok, nothing.published_version, nothing.pending) == (True, None, 2)
    assert nothing.replays == 0
    queued.mirror.run_once()
    table.commit([add("b")])
    some = queued.verify(table.name)
    assert (some.ok, some.published_version, some.pending, some.files) == (True, 1, 1, 1)


def test_what_was_published_and_not_noted_yet_is_no_drift(queued: Lake, table: Table) -> None:
    forget = "UPDATE dl_mirror_status SET status = 'PENDING' WHERE version >= 4"
    with queued.store.write() as session:
        session.execute_count(forget, {})
    verification = queued.verify(table.name)
    assert verification.ok
    assert (verification.compared, verification.pending, verification.published_version) == (
        *(6, 0, 3),
    )


def test_commits_that_log_retention_took_are_not_missed(
    queued: Lake, table: Table, clock: ManualClock
) -> None:
    checkpointed(queued, table, 3)
    for version in range(3):
        log_file(table, version).unlink()
    kinds = {finding.kind for finding in queued.verify(table.name).findings}
    assert kinds == {Kind.MISSING_COMMIT}
    clock.advance(40 * DAY_MS)
    verification = queued.verify(table.name)
    assert verification.ok
    assert (verification.cleaned, verification.compared, verification.replays) == (3, 3, 1)


def test_an_expired_commit_that_no_checkpoint_stands_for_is_missed(
    queued: Lake, table: Table, clock: ManualClock
) -> None:
    clock.advance(40 * DAY_MS)
    log_file(table, 0).unlink()
    kind, version, _ = one(queued.verify(table.name))
    assert (kind, version) == (Kind.MISSING_COMMIT, 0)


def test_versions_that_expired_in_the_catalog_are_not_compared(
    queued: Lake, table: Table, clock: ManualClock, tmp_path: Path
) -> None:
    checkpointed(queued, table, 2)
    clock.advance(DAY_MS)
    table.commit([add("e", values={"day": "9"})])
    queued.mirror.run_once()
    queued.expire(table.name, older_than="1 hour", archive=str(tmp_path / "archive"))
    verification = queued.verify(table.name)
    assert verification.ok
    assert (verification.first_version, verification.compared, verification.replays) == (5, 2, 2)
    assert verification.checkpoints == ()


def test_an_imported_table_is_found_in_order(queued: Lake, tmp_path: Path) -> None:
    write_appends(tmp_path, 5)
    imported = queued.import_table(str(tmp_path), name="old")
    assert queued.verify("old").compared == 5
    imported.commit([add("new")])
    queued.mirror.run_once()
    verification = queued.verify("old")
    assert (verification.ok, verification.compared, verification.files) == (True, 6, 6)


def test_every_golden_table_that_imports_is_what_its_log_says(
    shared_lake: Lake, golden_dir: Path
) -> None:
    found: dict[str, list[str]] = {}
    count = 0
    for folder in sorted(golden_dir.iterdir()):
        if not (folder / "_delta_log").is_dir():
            continue
        try:
            shared_lake.import_table(str(folder), name=folder.name, trust_commits=True)
        except Exception:  # noqa: BLE001, S112 - tests of the import say which, and why
            continue
        count += 1
        verification = shared_lake.verify(folder.name)
        assert verification.replays
        if not verification.ok:
            found[folder.name] = [finding.what for finding in verification.findings]
    assert count > 50
    # This one is damaged on purpose.
    broken = "delta-deltalog-state-reconstruction-from-checkpoint-missing-protocol"
    hint = "it names a checkpoint of version 10, which is missing or damaged"
    assert found == {broken: ["the log has no protocol", hint]}


def test_large_tables_are_compared_in_parts(
    queued: Lake, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.mirror.verify.BUCKET", 7)
    table = new_table(queued)
    table.commit([add(f"f{n}") for n in range(50)])
    table.commit([remove(f"f{n}") for n in range(20)])
    queued.mirror.run_once()
    checkpointed(queued, table, 2)
    verification = queued.verify(table.name)
    assert (verification.ok, verification.files, verification.replays) == (True, 30, 2)
    with queued.store.write() as session:
        session.execute_count("UPDATE dl_active_files SET size_bytes = 5 WHERE path = 'f33'", {})
    verification = queued.verify(table.name)
    told = [f.what for f in verification.of(Kind.STATE_DIFFERS)]
    assert told == ["the live file 'f33' differs in size (replayed from version 0)"]
    told = [f.what for f in verification.of(Kind.CHECKPOINT_DIFFERS)]
    assert told == ["the live file 'f33' differs in size"]


# --- commit files -------------------------------------------------------------------------


def test_a_commit_file_that_vanished_is_missed(queued: Lake, table: Table) -> None:
    log_file(table, 3).unlink()
    verification = queued.verify(table.name)
    kind, version, what = one(verification)
    assert (kind, version) == (Kind.MISSING_COMMIT, 3)
    assert "log retention keeps it" in what
    assert verification.replays == 0
    assert verification.findings[0].key == commit_key(3)


@pytest.mark.parametrize("left", [0, 1, 100])
def test_a_commit_file_that_ends_too_early_is_told_as_such(
    queued: Lake, table: Table, left: int
) -> None:
    path = log_file(table, 5)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:left])
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.TRUNCATED_COMMIT, 5)
    assert what == f"it has {left} bytes of {size}"


def test_a_commit_file_with_other_bytes_is_told_with_both_digests(
    queued: Lake, table: Table
) -> None:
    path = log_file(table, 2)
    path.write_bytes(path.read_bytes().replace(b'"size":100', b'"size":101'))
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.DIFFERENT_COMMIT, 2)
    assert "was published with" in what


def test_a_commit_of_somebody_else_beyond_the_head_is_foreign(queued: Lake, table: Table) -> None:
    log_file(table, 6).write_text('{"commitInfo":{}}\n')
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.FOREIGN_COMMIT, 6)
    assert "the newest version of the catalog is 5" in what


def test_a_commit_of_somebody_else_in_place_of_ours_is_foreign(queued: Lake, table: Table) -> None:
    table.commit([add("mine", values={"day": "1"})])
    log_file(table, 6).write_text('{"commitInfo":{}}\n')
    queued.mirror.run_once()
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.FOREIGN_COMMIT, 6)
    assert "not published yet" in what


def test_a_drift_that_is_gone_is_told_and_harmless(queued: Lake, table: Table) -> None:
    table.commit([add("mine", values={"day": "1"})])
    log_file(table, 6).write_text('{"commitInfo":{}}\n')
    queued.mirror.run_once()
    log_file(table, 6).unlink()
    verification = queued.verify(table.name)
    assert one(verification)[0] is Kind.STALE_DRIFT
    assert verification.ok


def test_a_commit_that_an_import_never_saw_is_foreign(queued: Lake, tmp_path: Path) -> None:
    write_appends(tmp_path, 12)
    imported = queued.import_table(str(tmp_path), name="first")
    checkpointed(queued, imported, 11)
    queued.drop_table("first")
    gone = {version: log_file(imported, version).read_bytes() for version in range(12)}
    for version in range(12):
        log_file(imported, version).unlink()
    queued.import_table(str(tmp_path), name="old")
    verification = queued.verify("old")
    assert (verification.ok, verification.unrecorded, verification.replays) == (True, 1, 1)
    log_file(imported, 11).write_bytes(gone[11])
    kind, found, what = one(queued.verify("old"))
    assert (kind, found) == (Kind.FOREIGN_COMMIT, 11)
    assert "when the table was imported" in what


# --- states -------------------------------------------------------------------------------


def spoil(lake: Lake, statement: str) -> None:
    with lake.store.write() as session:
        session.execute_count(statement, {})


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "DELETE FROM dl_active_files WHERE path = 'd'",
            ["the live file 'd' is in the log and not in the catalog"],
        ),
        (
            "UPDATE dl_active_files SET path = 'z' WHERE path = 'd'",
            [
                "the live file 'z' is in the catalog and not in the log",
                "the live file 'd' is in the log and not in the catalog",
            ],
        ),
        (
            "UPDATE dl_active_files SET stats = '{}' WHERE path = 'd'",
            ["the live file 'd' differs in stats"],
        ),
        (
            "UPDATE dl_active_files SET partition_values = '{\"day\":\"2\"}' WHERE path = 'd'",
            ["the live file 'd' differs in partitionValues"],
        ),
        (
            "UPDATE dl_active_files SET base_row_id = 3, modification_time = 1 WHERE path = 'd'",
            ["the live file 'd' differs in modificationTime, baseRowId or defaultRowCommitVersion"],
        ),
    ],
)
def test_files_that_differ_are_named_with_what_differs(
    queued: Lake, table: Table, statement: str, words: list[str]
) -> None:
    spoil(queued, statement)
    verification = queued.verify(table.name)
    told = [finding.what for finding in verification.of(Kind.STATE_DIFFERS)]
    assert told == [f"{what} (replayed from version 0)" for what in words]
    assert verification.of(Kind.CATALOG_CONTRADICTION)
    assert not verification.ok


def test_a_deletion_vector_that_differs_is_told(queued: Lake, table: Table) -> None:
    other = json.dumps({**deletion_vector(1), "cardinality": 2})
    spoil(queued, f"UPDATE dl_active_files SET deletion_vector = '{other}' WHERE dv_id <> ''")
    told = [f.what for f in queued.verify(table.name).of(Kind.STATE_DIFFERS)]
    assert len(told) == 1
    assert "differs in deletionVector" in told[0]
    assert "with the deletion vector" in told[0]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "UPDATE dl_txn_actions SET txn_version = 8",
            "the app transaction 'app' is 8 in the catalog and 7 in the log",
        ),
        (
            "UPDATE dl_domain_metadata SET configuration = '2'",
            "the metadata domain 'x' is '2' in the catalog and '1' in the log",
        ),
        (
            "DELETE FROM dl_domain_metadata",
            "the metadata domain 'x' is absent in the catalog and '1' in the log",
        ),
        (
            'UPDATE dl_metadata_updates SET table_properties = \'{"owner": "you"}\'',
            (
                "the configuration of the metaData differs in delta.checkpointInterval, "
                "delta.enableDeletionVectors, delta.enableInCommitTimestamps, "
                "delta.feature.domainMetadata, owner"
            ),
        ),
        (
            "UPDATE dl_metadata_updates SET description = 'other'",
            "the description of the metaData differs",
        ),
    ],
)
def test_what_is_said_of_the_table_differently_is_named(
    queued: Lake, table: Table, statement: str, words: str
) -> None:
    spoil(queued, statement)
    told = [f.what for f in queued.verify(table.name).of(Kind.STATE_DIFFERS)]
    assert f"{words} (replayed from version 0)" in told


def test_a_protocol_that_differs_is_told(queued: Lake, new_table: NewTable) -> None:
    table = new_table(queued, properties={"delta.enableInCommitTimestamps": "false"})
    queued.mirror.run_once()
    spoil(queued, "UPDATE dl_protocol_updates SET min_writer_version = 3")
    told = [f.what for f in queued.verify(table.name).of(Kind.STATE_DIFFERS)]
    assert told == [
        (
            "the protocol has min_writer_version 3 in the catalog and 2 in the log "
            "(replayed from version 0)"
        ),
        "the writer features of the protocol differ in checkConstraints (replayed from version 0)",
    ]


def test_an_unreadable_log_is_told(queued: Lake, tmp_path: Path) -> None:
    write_appends(tmp_path, 3)
    queued.import_table(str(tmp_path), name="old")
    # A digest that fits, of a file that nobody can read: the worst case.
    bad = b"no json\n"
    (tmp_path / commit_key(1)).write_bytes(bad)
    digest = hashlib.sha256(bad).hexdigest()
    spoil(queued, f"UPDATE dl_mirror_status SET digest = '{digest}' WHERE version = 1")
    kind, version, what = one(queued.verify("old"))
    assert (kind, version) == (Kind.UNREADABLE_LOG, 2)
    assert "00000000000000000001.json, line 1" in what


def test_a_catalog_that_contradicts_itself_is_told(queued: Lake, table: Table) -> None:
    spoil(queued, "DELETE FROM dl_active_files WHERE path = 'c' AND dv_id = ''")
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.CATALOG_CONTRADICTION, 1)
    assert "(versions 1 to 3) is missing in dl_active_files" in what


# --- while others work --------------------------------------------------------------------


class Busy(Storage):
    """A store in which something happens at the moment a log is listed, or a file is read."""

    def __init__(self, table: Table, *, listed: Any = None, read: Any = None) -> None:
        real = storage_of(table)
        super().__init__(real.location, real._store, folder=real._folder)
        self._listed, self._read = listed, read

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Any:
        found = list(super().list(prefix, start_after=start_after))
        act, self._listed = self._listed, None
        if act is not None:
            act()
        return iter(found)

    def get(self, key: str) -> bytes:
        act, self._read = self._read, None
        if act is not None:
            act()
        return super().get(key)


def verified(lake: Lake, table: Table, **happening: Any) -> Verification:
    return verify_table(lake.store, Busy(table, **happening), record_of(lake, table))


def test_commits_that_are_published_meanwhile_are_no_drift(queued: Lake, table: Table) -> None:
    def publish() -> None:
        table.commit([add("e", values={"day": "1"})])
        queued.mirror.run_once()

    assert verified(queued, table, listed=publish).ok
    assert verified(queued, table, read=publish).ok
    table.commit([add("f", values={"day": "1"})])

    def publish_the_rest() -> None:
        queued.mirror.run_once()

    assert verified(queued, table, listed=publish_the_rest).ok


def test_what_is_committed_between_the_look_and_the_listing_is_not_foreign(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*given: Any) -> Any:
        scope = read_scope(*given)
        table.commit([add("e", values={"day": "1"})])
        queued.mirror.run_once()
        return scope

    monkeypatch.setattr("deltalakedb.mirror.verify.read_scope", late)
    verification = queued.verify(table.name)
    assert verification.ok
    assert verification.head == 5


def test_files_that_are_cleaned_up_meanwhile_are_not_missed(
    queued: Lake, table: Table, clock: ManualClock
) -> None:
    checkpointed(queued, table, 3)
    clock.advance(40 * DAY_MS)

    def clean() -> None:
        for version in range(3):
            log_file(table, version).unlink()

    verification = verified(queued, table, listed=clean)
    assert (verification.ok, verification.cleaned) == (True, 3)


def test_an_unknown_table_is_told_as_such(queued: Lake) -> None:
    with pytest.raises(TableNotFoundError):
        queued.verify("nobody")


def test_a_log_that_is_gone_altogether_is_told(queued: Lake, table: Table) -> None:
    shutil.rmtree(log_of(table))
    verification = queued.verify(table.name)
    assert [(f.kind, f.version) for f in verification.findings] == [
        (Kind.MISSING_COMMIT, version) for version in range(6)
    ]
    assert verification.replays == 0


def test_the_findings_of_a_very_wrong_log_are_counted_and_not_all_kept(
    queued: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.mirror.verification._MAX_FINDINGS", 2)
    shutil.rmtree(log_of(table))
    verification = queued.verify(table.name)
    assert len(verification.findings) == 2
    assert verification.counts == {"missing commit": 6}


def test_logs_on_an_object_store_are_verified_too(open_lake: OpenLake, s3_server: S3Server) -> None:
    lake = open_lake(mirror="worker", storage_options=s3_server.storage_options)
    location = f"s3://{s3_server.new_bucket()}/orders"
    table = lake.create_table("s3", location=location, schema=schema_json("id"))
    for number in range(40):
        table.commit([add(f"f{number}")])
    lake.mirror.run_once()
    verification = lake.verify("s3")
    assert (verification.ok, verification.compared, verification.replays) == (True, 41, 2)
    lake.open_storage(location).delete(commit_key(7))
    kind, version, _ = one(lake.verify("s3"))
    assert (kind, version) == (Kind.MISSING_COMMIT, 7)
