"""The archive of what has expired: what is in it, deaths on the way, and the way back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.errors import (
    ArchiveError,
    CatalogBusyError,
    DeltaLakeDbError,
)
from deltalakedb.lake import Lake
from deltalakedb.retention.archive import schema_of
from deltalakedb.retention.expire import expire_table
from deltalakedb.retention.restore import restore_expired
from deltalakedb.storage import Storage
from deltalakedb.store.retention import EXPIRING
from deltalakedb.store.url import Engine
from deltalakedb.table import Table
from retention.test_expire import DAY_MS, LAST, KilledError, aged, expire_with, versions

from support.catalog_rows import all_rows, mark_published
from support.lake import OpenLake, add, live_paths, new_lake_table, remove
from support.profiles import SOAK
from support.store import ENGINES

# --- the archive --------------------------------------------------------------------------


def the_run(folder: Path) -> Path:
    (manifest,) = folder.rglob("manifest.json")
    return manifest.parent


def test_the_archive_is_plain_parquet_with_the_columns_of_each_relation(
    lake: Lake, tmp_path: Path
) -> None:
    table = aged(lake)
    expired = lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    run = the_run(tmp_path)
    assert expired.archive == f"file://{run}"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["table_id"] == table.table_id
    assert (manifest["first_version"], manifest["last_version"]) == (0, 6)
    by_name = {relation.name: relation for relation in EXPIRING}
    for file in manifest["files"]:
        found = pq.read_table(run / file["key"])
        assert found.num_rows == file["rows"]
        assert found.schema.equals(schema_of(by_name[file["relation"]]))
    adds = pq.read_table(run / "dl_add_files-00000.parquet")
    assert dict(zip(adds["path"].to_pylist(), adds["kept"].to_pylist(), strict=True)) == {
        f"f{n}": False for n in range(1, 7)
    }


def test_many_rows_become_many_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltalakedb.retention.archive._MAX_ROWS", 3)
    monkeypatch.setattr("deltalakedb.store.retention._PAGE", 2)
    table = aged(lake)
    before = all_rows(lake, table)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    assert len(list(the_run(tmp_path).glob("dl_add_files-*.parquet"))) == 2
    lake.restore_expired(table.name, str(tmp_path))
    assert all_rows(lake, table) == before


def steps_of(lake: Lake, table: Table, folder: Path) -> list[str]:
    passed: list[str] = []
    expire_with(lake, table, folder, passed.append)
    restore_expired(
        lake.store, table._record, lake.open_storage(str(folder / "archive")), step=passed.append
    )
    return passed


def test_a_process_that_dies_between_two_steps_loses_nothing(
    lake: Lake, engine: Engine, tmp_path: Path
) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    passed = steps_of(lake, table, tmp_path / "first")
    assert all_rows(lake, table) == before
    assert "commit" in passed
    assert passed.index("manifest") < passed.index("delete dl_table_versions")
    steps = passed[: passed.index("deleted") + 1]
    for number, fatal in enumerate(steps):
        # The engines share the steps; each of them has all in the long form.
        if not SOAK and fatal != "deleted" and number % len(ENGINES) != ENGINES.index(engine):
            continue
        folder = tmp_path / str(number)

        def die(step: str, fatal: str = fatal) -> None:
            if step == fatal:
                raise KilledError

        with pytest.raises(KilledError):
            expire_with(lake, table, folder, die)
        done = fatal == "deleted"
        assert versions(table) == list(range(7 if done else 0, LAST + 1))
        if not done:
            assert all_rows(lake, table) == before
            expire_with(lake, table, folder, lambda _: None)
        for other in passed[len(steps) :]:

            def die_again(step: str, fatal: str = other) -> None:
                if step == fatal:
                    raise KilledError

            with pytest.raises(KilledError):
                restore(lake, table, folder, die_again)
            assert versions(table) == [7, 8, 9]
        restore(lake, table, folder, lambda _: None)
        assert all_rows(lake, table) == before


DYING = """
import os, signal, sys
import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.retention.expire import expire_table

url, name, archive, now, fatal = sys.argv[1:]

def step(label):
    if label == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

lake = deltalakedb.connect(url, clock=ManualClock(int(now)), mirror="worker")
table = lake.table(name)._record
expire_table(lake.store, table, older_than="2 days", archive=lake.open_storage(archive), step=step)
"""


@pytest.mark.parametrize("fatal", ["manifest", "delete dl_add_files", "commit", "deleted"])
def test_a_process_that_is_killed_loses_nothing(
    catalog_url: str, tmp_path: Path, fatal: str
) -> None:
    with deltalakedb.connect(catalog_url, clock=ManualClock(), mirror="worker") as lake:
        table = aged(lake)
        before = all_rows(lake, table)
        now = lake.store.clock.now_ms()
    arguments = [catalog_url, table.name, str(tmp_path), str(now), fatal]
    died = subprocess.run([sys.executable, "-c", DYING, *arguments], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    with deltalakedb.connect(catalog_url, clock=ManualClock(now), mirror="worker") as lake:
        table = lake.table(table.name)
        if fatal == "deleted":
            assert versions(table) == [7, 8, 9]
            lake.restore_expired(table.name, str(tmp_path))
        assert all_rows(lake, table) == before


def restore(lake: Lake, table: Table, folder: Path, step: Callable[[str], None]) -> None:
    storage = lake.open_storage(str(folder / "archive"))
    restore_expired(lake.store, table._record, storage, step=step)


class Forgetful(Storage):
    """A store that says it has written what it has not."""

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data[:-1] if "dl_add_files" in key else data)


def test_an_archive_that_does_not_read_back_deletes_nothing(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    real = lake.open_storage(str(tmp_path))
    bad = Forgetful(real.location, real._store, folder=tmp_path)
    with pytest.raises(ArchiveError, match="dl_add_files"):
        expire_table(lake.store, table._record, older_than="0 days", archive=bad)
    assert all_rows(lake, table) == before
    assert list(tmp_path.rglob("manifest.json")) == []


# --- the way back -------------------------------------------------------------------------


def test_archives_come_back_in_the_reverse_order(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    first = lake.expire(table.name, older_than="6 days", archive=str(tmp_path))
    second = lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    assert first.archive is not None
    assert second.archive is not None
    with pytest.raises(ArchiveError, match="goes before version 7"):
        lake.restore_expired(table.name, first.archive)
    one = lake.restore_expired(table.name, second.archive)
    assert (one.first_version, one.last_version, one.archives) == (3, 6, (second.archive,))
    assert versions(table) == list(range(3, LAST + 1))
    lake.restore_expired(table.name, first.archive)
    assert all_rows(lake, table) == before
    lake.expire(table.name, older_than="6 days", archive=str(tmp_path / "a"))
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path / "a"))
    both = lake.restore_expired(table.name, str(tmp_path / "a"))
    assert (both.first_version, both.last_version, len(both.archives)) == (0, 6, 2)
    assert json.loads(json.dumps(both.to_dict()))["versions"] == 7
    assert all_rows(lake, table) == before


def test_what_was_committed_since_stays_when_the_past_comes_back(
    lake: Lake, tmp_path: Path
) -> None:
    table = aged(lake)
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path))
    table.commit([add("new"), remove("f9")])
    lake.restore_expired(table.name, str(tmp_path))
    assert [live_paths(table, v) for v in (1, 6, 9, 10)] == [["f1"], ["f6"], ["f9"], ["new"]]
    with lake.store.read() as session:
        assert lake.store.check_active_files(session, table.table_id) == []


def test_keys_of_planned_columns_are_those_of_today(lake: Lake, tmp_path: Path) -> None:
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    table = new_lake_table(lake, partition_by=["day"])
    table.commit([add("a", values={"day": "1"})])
    clock.advance(DAY_MS)
    table.commit([remove("a"), add("b", values={"day": "2"})])
    mark_published(lake, table)
    before = all_rows(lake, table)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    lake.restore_expired(table.name, str(tmp_path))
    assert all_rows(lake, table) == before
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path / "2"))
    table.set_properties({"deltalakedb.planningColumns": "id"})
    lake.restore_expired(table.name, str(tmp_path / "2"))
    text = "SELECT path, key1_low, key1_high, key2_low, key2_high FROM dl_active_files"
    with lake.store.write() as session:
        keys = sorted(session.execute(text, {}))
        lake.store.rebuild_active_files(session, table.table_id)
        assert sorted(session.execute(text, {})) == keys
    assert {row[0] for row in keys if row[3] is not None} == {"a", "b"}
    assert table.snapshot(1).files("day = '1'").num_rows == 1


def spoil_file(run: Path) -> None:
    path = next(run.glob("dl_add_files-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def shorten_file(run: Path) -> None:
    path = next(run.glob("dl_add_files-*"))
    path.write_bytes(path.read_bytes()[:-1])


def lose_file(run: Path) -> None:
    next(run.glob("dl_add_files-*")).unlink()


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def no_json(run: Path) -> None:
    (run / "manifest.json").write_text("{")


def lose_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


OTHER_RELATION = {
    "relation": "dl_unknown",
    "key": "x.parquet",
    "rows": 0,
    "kept": 0,
    "size_bytes": 0,
    "sha256": "",
}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_file, "another digest"),
        (shorten_file, "bytes instead of"),
        (lose_file, "missing"),
        (lose_manifest, "no complete archive"),
        (no_json, "damaged"),
        (edit(format="something"), "not the manifest"),
        (edit(format_version=2), "format version 2"),
        (edit(surprise=1), "damaged"),
        (edit(files=[OTHER_RELATION]), "dl_unknown"),
    ],
)
def test_a_damaged_archive_changes_nothing(
    lake: Lake, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    table = aged(lake)
    lake.expire(table.name, older_than="0 days", archive=str(tmp_path))
    before = all_rows(lake, table)
    spoil(the_run(tmp_path))
    with pytest.raises(ArchiveError, match=words):
        lake.restore_expired(table.name, str(tmp_path))
    assert all_rows(lake, table) == before


def test_the_archive_of_another_table_is_refused(lake: Lake, tmp_path: Path) -> None:
    table = aged(lake)
    other = aged(lake, "sales.others")
    expired = lake.expire(other.name, older_than="2 days", archive=str(tmp_path))
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path / "mine"))
    assert expired.archive is not None
    with pytest.raises(ArchiveError, match=r"another table, 'sales\.others'"):
        lake.restore_expired(table.name, expired.archive)
    with pytest.raises(ArchiveError, match="no complete archive"):
        lake.restore_expired(table.name, str(tmp_path))


def test_two_that_restore_at_once_do_not_restore_twice(
    lake: Lake, open_lake: OpenLake, tmp_path: Path
) -> None:
    table = aged(lake)
    before = all_rows(lake, table)
    lake.expire(table.name, older_than="2 days", archive=str(tmp_path / "archive"))
    other = open_lake()
    storage = lake.open_storage(str(tmp_path / "archive"))

    class Slow(Storage):
        def get(self, key: str) -> bytes:
            if "dl_table_versions" in key and versions(table)[0]:
                other.restore_expired(table.name, str(tmp_path / "archive"))
            return super().get(key)

    slow = Slow(storage.location, storage._store, folder=tmp_path / "archive")
    with pytest.raises(CatalogBusyError, match="Its oldest version is 0 now"):
        restore_expired(lake.store, table._record, slow)
    assert all_rows(lake, table) == before
    with pytest.raises(DeltaLakeDbError, match="goes before version 0"):
        lake.restore_expired(table.name, str(tmp_path / "archive"))
