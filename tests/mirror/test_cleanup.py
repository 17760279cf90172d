"""Clean-up of the log: what goes is what nobody can need, whatever happens on the way."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from deltalakedb.clock import ManualClock
from deltalakedb.errors import StorageError, StorageUnavailableError
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.cleanup import Cleaned, clean_log
from deltalakedb.storage import Storage, open_storage

from support.lake import add, live_paths, remove, row_counts, schema_json
from support.published import folder_of, log_of, publish, record_of, storage_of

DAY_MS = 86_400_000
RETENTION = {"delta.logRetentionDuration": "interval 5 days"}
V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}
BY_FILE = {"delta.enableInCommitTimestamps": "false"}


class Aged:
    """A table with one version a day, 0 to 12, and the tools to look at its log."""

    def __init__(
        self, lake: Lake, folder: Path, clock: ManualClock, properties: dict[str, str]
    ) -> None:
        self.lake = lake
        self.clock = clock
        self.table = lake.create_table(
            "t",
            location=str(folder / "t"),
            schema=schema_json("id"),
            properties={**RETENTION, **properties},
        )
        publish(lake, self.table, at_ms=clock.now_ms())
        for number in range(1, 13):
            clock.advance(DAY_MS)
            gone = [remove(f"f{number - 3}")] if number > 3 else []
            self.table.commit([add(f"f{number}"), *gone])
            publish(lake, self.table, at_ms=clock.now_ms())

    @property
    def log(self) -> Path:
        return log_of(self.table)

    def checkpoint(self, *versions: int, **options: Any) -> None:
        record = record_of(self.lake, self.table)
        for version in versions:
            write_checkpoint(self.lake.store, storage_of(self.table), record, version, **options)

    def clean(self, storage: Storage | None = None) -> Cleaned:
        return clean_log(
            self.lake.store,
            storage or storage_of(self.table),
            record_of(self.lake, self.table),
            now_ms=self.clock.now_ms(),
        )

    def names(self) -> set[str]:
        return {str(path.relative_to(self.log)) for path in self.log.rglob("*") if path.is_file()}

    def commits(self) -> list[int]:
        names = (path.stem for path in self.log.glob("*.json"))
        return sorted(int(name) for name in names if name.isdigit())

    def checkpoints(self) -> list[int]:
        return sorted({int(path.name[:20]) for path in self.log.glob("*.checkpoint.*")})

    def hint(self) -> int:
        found: int = json.loads((self.log / "_last_checkpoint").read_bytes())["version"]
        return found

    def check_readable(self, since: int) -> None:
        """Whoever has the log alone sees the same files at every version from `since` on."""
        copy = self.log.parent.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder_of(self.table), copy)
        other = self.lake.import_table(str(copy), name="copy")
        for version in range(since, self.table.version + 1):
            assert live_paths(other, version) == live_paths(self.table, version)
        self.lake.drop_table("copy")


@pytest.fixture
def aged(lake: Lake, tmp_path: Path, clock: ManualClock) -> Aged:
    return Aged(lake, tmp_path, clock, {})


# It is day 12, at a quarter past ten in the evening, and the cutoff the midnight before day 7:
# version 6 was current then.
CURRENT = 6


def test_the_newest_checkpoint_before_the_cutoff_stays_with_all_that_follows(aged: Aged) -> None:
    aged.checkpoint(2, 5, 9, 12)
    before = row_counts(aged.lake)
    assert aged.clean() == Cleaned(5, commits=5, checkpoints=1)
    assert aged.commits() == list(range(5, 13))
    assert aged.checkpoints() == [5, 9, 12]
    aged.check_readable(5)
    assert row_counts(aged.lake) == before
    # It is done, and nothing more goes until midnight.
    assert aged.clean() == Cleaned(5)
    aged.clock.advance(DAY_MS // 2)
    aged.checkpoint(7)
    assert aged.clean() == Cleaned(7, commits=2, checkpoints=1)
    aged.check_readable(7)


@pytest.mark.parametrize("checkpoints", [(), (7, 8, 12)])
def test_without_an_old_enough_checkpoint_nothing_goes(
    aged: Aged, checkpoints: tuple[int, ...]
) -> None:
    aged.checkpoint(*checkpoints)
    before = aged.names()
    assert aged.clean() == Cleaned()
    assert aged.names() == before


def test_a_checkpoint_of_the_current_version_itself_is_old_enough(aged: Aged) -> None:
    aged.checkpoint(CURRENT)
    assert aged.clean().oldest == CURRENT
    aged.check_readable(CURRENT)


def test_a_table_may_refuse_to_be_cleaned(lake: Lake, tmp_path: Path, clock: ManualClock) -> None:
    aged = Aged(lake, tmp_path, clock, {"delta.enableExpiredLogCleanup": "false"})
    aged.checkpoint(5)
    assert aged.clean() == Cleaned()
    assert aged.commits() == list(range(13))


def test_a_young_table_loses_nothing(lake: Lake, tmp_path: Path, clock: ManualClock) -> None:
    aged = Aged(lake, tmp_path, clock, {"delta.logRetentionDuration": "interval 30 days"})
    aged.checkpoint(5)
    assert aged.clean() == Cleaned()


def touch(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_in_commit_timestamps_count_however_young_the_files_are(aged: Aged) -> None:
    aged.checkpoint(5)
    for path in aged.log.iterdir():
        touch(path, aged.clock.now_ms())
    assert aged.clean().oldest == 5


def test_without_them_the_time_of_the_file_counts_too(
    lake: Lake, tmp_path: Path, clock: ManualClock
) -> None:
    aged = Aged(lake, tmp_path, clock, BY_FILE)
    aged.checkpoint(2, 5)
    # Published late: to readers it is the current version of a later day.
    touch(aged.log / f"{4:020d}.json", clock.now_ms())
    assert aged.clean().oldest == 2
    touch(aged.log / f"{4:020d}.json", clock.now_ms() - 8 * DAY_MS)
    assert aged.clean().oldest == 5


def test_versions_before_in_commit_timestamps_began_go_by_their_files(
    lake: Lake, tmp_path: Path, clock: ManualClock
) -> None:
    aged = Aged(lake, tmp_path, clock, BY_FILE)
    aged.checkpoint(5)
    aged.table.set_properties({"delta.enableInCommitTimestamps": "true"})
    publish(lake, aged.table, at_ms=clock.now_ms())
    touch(aged.log / f"{4:020d}.json", clock.now_ms())
    assert aged.clean() == Cleaned()
    touch(aged.log / f"{4:020d}.json", clock.now_ms() - 8 * DAY_MS)
    assert aged.clean().oldest == 5


# --- other files --------------------------------------------------------------------------


def test_checksums_and_compactions_go_with_their_versions(aged: Aged) -> None:
    aged.checkpoint(5)
    record = record_of(aged.lake, aged.table)
    for version in range(13):
        write_checksum(aged.lake.store, storage_of(aged.table), record, version)
    for start, end in ((1, 3), (3, 4), (3, 6), (6, 8)):
        (aged.log / f"{start:020d}.{end:020d}.compacted.json").write_bytes(b"")
    hidden = aged.log / f".{1:020d}.json.crc"
    hidden.write_bytes(b"crc")
    unknown = [aged.log / name for name in ("note.txt", "_staged", f"{1:020d}.json.bak")]
    for path in unknown:
        path.write_bytes(b"")
    assert aged.clean() == Cleaned(5, commits=5, checksums=5, compactions=2)
    assert not hidden.exists()
    assert all(path.exists() for path in unknown)
    assert len(list(aged.log.glob("*.compacted.json"))) == 2
    assert len(list(aged.log.glob("*.crc"))) == 8


def test_half_written_files_of_the_dead_go_after_a_day(aged: Aged) -> None:
    (aged.log / "_sidecars").mkdir()
    old = [aged.log / f".x.{'0' * 32}.tmp", aged.log / "_sidecars" / f".y.{'1' * 32}.tmp"]
    young = aged.log / f".x.{'2' * 32}.tmp"
    for path in (*old, young):
        path.write_bytes(b"")
    for path in old:
        os.utime(path, (1, 1))
    assert aged.clean() == Cleaned(leftovers=2)
    assert young.exists()
    assert not any(path.exists() for path in old)


# --- V2 -----------------------------------------------------------------------------------


def sidecars(aged: Aged) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for path in (aged.log / "_sidecars").glob("*.parquet"):
        found.setdefault(int(path.name[:20]), []).append(path)
    return found


@pytest.fixture
def v2(lake: Lake, tmp_path: Path, clock: ManualClock) -> Aged:
    aged = Aged(lake, tmp_path, clock, V2)
    aged.checkpoint(2, 5, 9, max_actions=2)
    for path in (aged.log / "_sidecars").iterdir():
        touch(path, clock.now_ms() - 10 * DAY_MS)
    return aged


def test_sidecars_stay_while_a_checkpoint_names_them(v2: Aged) -> None:
    before = sidecars(v2)
    assert v2.clean() == Cleaned(5, commits=5, checkpoints=1, sidecars=len(before[2]))
    assert sidecars(v2) == {5: before[5], 9: before[9]}
    v2.check_readable(5)


def test_sidecars_that_nothing_names_yet_are_left_alone(v2: Aged) -> None:
    young = v2.log / "_sidecars" / "new.parquet"
    young.write_bytes(b"")
    touch(young, v2.clock.now_ms() - DAY_MS // 2)
    old = v2.log / "_sidecars" / "old.parquet"
    old.write_bytes(b"")
    touch(old, v2.clock.now_ms() - 9 * DAY_MS)
    v2.clean()
    assert young.exists()
    assert not old.exists()


def test_where_a_checkpoint_cannot_be_read_no_sidecar_goes(v2: Aged) -> None:
    (top,) = v2.log.glob(f"{9:020d}.checkpoint.*.parquet")
    top.write_bytes(b"damaged")
    before = sidecars(v2)
    assert v2.clean() == Cleaned(5, commits=5, checkpoints=1)
    assert sidecars(v2) == before


def test_a_checkpoint_without_its_sidecars_is_not_relied_on(v2: Aged) -> None:
    sidecars(v2)[5][0].unlink()
    assert v2.clean().oldest == 2
    v2.check_readable(2)


# --- what to rely on ----------------------------------------------------------------------


def test_a_damaged_checkpoint_is_not_relied_on(aged: Aged) -> None:
    aged.checkpoint(2, 5)
    file = aged.log / f"{5:020d}.checkpoint.parquet"
    file.write_bytes(file.read_bytes()[:-3])
    assert aged.clean().oldest == 2


def test_neither_is_one_with_a_missing_part(aged: Aged) -> None:
    aged.checkpoint(2)
    aged.checkpoint(5, max_actions=1)
    max(aged.log.glob(f"{5:020d}.checkpoint.*")).unlink()
    assert aged.clean().oldest == 2


def test_nor_one_that_lacks_files_which_the_ledger_counts(aged: Aged) -> None:
    aged.checkpoint(2, 5)
    aged.checkpoint(1)
    poor = aged.log / f"{1:020d}.checkpoint.parquet"
    poor.replace(aged.log / f"{5:020d}.checkpoint.parquet")
    assert aged.clean().oldest == 2


def test_nor_one_whose_commit_is_gone(aged: Aged) -> None:
    aged.checkpoint(2, 5)
    (aged.log / f"{5:020d}.json").unlink()
    assert aged.clean().oldest == 2


def test_the_hint_never_names_what_has_gone(aged: Aged) -> None:
    aged.checkpoint(2)
    stale = (aged.log / "_last_checkpoint").read_bytes()
    aged.checkpoint(5)
    # Somebody died before he could name the second one.
    (aged.log / "_last_checkpoint").write_bytes(stale)
    assert aged.clean().oldest == 5
    assert aged.hint() == 5


def test_the_hint_never_names_what_has_gone_with_sidecars(v2: Aged) -> None:
    (v2.log / "_last_checkpoint").write_bytes(b'{"version":2,"size":5}')
    assert v2.clean().oldest == 5
    found = json.loads((v2.log / "_last_checkpoint").read_bytes())
    (top,) = v2.log.glob(f"{5:020d}.checkpoint.*.parquet")
    assert (found["version"], found["v2Checkpoint"]["path"]) == (5, top.name)


def test_protected_checkpoints_go_only_with_all_the_others(
    lake: Lake, tmp_path: Path, clock: ManualClock
) -> None:
    aged = Aged(lake, tmp_path, clock, {})
    aged.checkpoint(2, 5)
    first = aged.log / f"{12:020d}.json"
    protocol = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["checkpointProtection", "inCommitTimestamp"],
    }
    metadata = json.loads(
        next(
            line
            for line in (aged.log / f"{0:020d}.json").read_text("utf-8").splitlines()
            if "metaData" in line
        )
    )
    metadata["metaData"]["configuration"]["delta.requireCheckpointProtectionBeforeVersion"] = "6"
    with first.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"protocol": protocol}) + "\n" + json.dumps(metadata) + "\n")
    lake.drop_table("t")
    table = lake.import_table(str(folder_of(aged.table)), name="protected")
    record = record_of(lake, table)

    def clean() -> Cleaned:
        return clean_log(lake.store, storage_of(table), record, now_ms=clock.now_ms())

    assert clean() == Cleaned()
    write_checkpoint(lake.store, storage_of(table), record, 6)
    assert clean() == Cleaned(6, commits=6, checkpoints=2)


# --- interruptions ------------------------------------------------------------------------


class Failing(Storage):
    """A storage that breaks after some deletes."""

    def __init__(self, location: str, deletes: int) -> None:
        inner = open_storage(location)
        super().__init__(inner.location, inner._store, folder=inner._folder)
        self.left = deletes

    def delete(self, key: str) -> None:
        if not self.left:
            raise StorageUnavailableError(f"Cannot delete {key}")
        self.left -= 1
        super().delete(key)


def test_whoever_is_interrupted_leaves_a_log_that_can_be_read(aged: Aged, tmp_path: Path) -> None:
    aged.checkpoint(2, 5, 9)
    whole = tmp_path / "whole"
    shutil.copytree(aged.log, whole)
    for deletes in range(8):
        shutil.rmtree(aged.log)
        shutil.copytree(whole, aged.log)
        try:
            done = aged.clean(Failing(aged.table.location, deletes))
        except StorageError:
            assert deletes < 6
        else:
            assert deletes >= 6
            assert done.commits == 5
        aged.check_readable(5)
        assert aged.clean().oldest == 5
        assert aged.commits() == list(range(5, 13))
        assert aged.checkpoints() == [5, 9]


def test_commits_of_versions_that_expired_stay_as_long_as_others(
    lake: Lake, tmp_path: Path, clock: ManualClock
) -> None:
    """The ledger says no more when they were made, but their files do."""
    aged = Aged(lake, tmp_path, clock, {"delta.logRetentionDuration": "interval 30 days"})
    aged.checkpoint(5, 10)
    lake.expire("t", older_than="1 day", archive=str(tmp_path / "archive"))
    aged.clean()
    assert aged.commits() == [*range(13)]
    clock.advance(26 * DAY_MS)
    aged.clean()
    assert aged.commits() == [*range(5, 13)]
