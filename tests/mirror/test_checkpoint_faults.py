"""An object store that fails: whatever breaks a checkpoint off, the table is read as before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from deltalakedb.deltalog.checkpoint_rows import RowMaker
from deltalakedb.errors import (
    CatalogConnectionLostError,
    CorruptCatalogError,
    DeltaLakeDbError,
    StorageUnavailableError,
)
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.storage import Storage, open_storage
from deltalakedb.store.url import Engine
from deltalakedb.table import Table

from support.checkpoint_oracle import checkpointed, replayed
from support.lake import add, live_paths, remove, schema_json
from support.profiles import SOAK
from support.published import folder_of, log_of, publish, record_of, storage_of
from support.store import ENGINES

V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}
FORMS: dict[str, tuple[dict[str, str], int | None]] = {
    "one file": ({}, None),
    "parts": ({}, 2),
    "sidecars": (V2, 2),
}


class Faulty(Storage):
    """Fails once, at the n-th request that writes or looks: before it took effect, or after."""

    def __init__(self, location: str, fail_at: int, *, after: bool) -> None:
        inner = open_storage(location)
        super().__init__(inner.location, inner._store, folder=inner._folder)
        self.requests = 0
        self._fail_at = fail_at
        self._after = after

    def _strike(self, key: str, *, after: bool) -> None:
        if not after:
            self.requests += 1
        if self.requests == self._fail_at and after == self._after:
            raise StorageUnavailableError(f"Cannot reach {key}")

    def _request(self, key: str, act: Callable[[], Any]) -> Any:
        self._strike(key, after=False)
        done = act()
        self._strike(key, after=True)
        return done

    def put(self, key: str, data: bytes) -> None:
        self._request(key, lambda: super(Faulty, self).put(key, data))

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> bool:
        created: bool = self._request(
            key, lambda: super(Faulty, self).put_if_absent(key, data, **options)
        )
        return created

    def update(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        changed: bool = self._request(key, lambda: super(Faulty, self).update(key, change))
        return changed

    def head(self, key: str) -> Any:
        return self._request(key, lambda: super(Faulty, self).head(key))

    @contextmanager
    def writing(self, key: str) -> Iterator[IO[bytes]]:
        self._strike(key, after=False)
        with super().writing(key) as file:
            yield file
        self._strike(key, after=True)


def make_table(lake: Lake, folder: Path, properties: dict[str, str]) -> Table:
    table = lake.create_table(
        "t", location=str(folder / "t"), schema=schema_json("id"), properties=properties
    )
    table.commit([add(f"f{number}") for number in range(6)])
    table.commit([remove("f0"), remove("f1")])
    publish(lake, table)
    storage = storage_of(table)
    # An older checkpoint, which must stay in force until there is another.
    write_checkpoint(lake.store, storage, record_of(lake, table), 1)
    table.commit([add("late")])
    publish(lake, table)
    return table


def check_log(lake: Lake, table: Table) -> None:
    """The hint names a complete checkpoint, nothing is half written, and all can be read."""
    log = log_of(table)
    hint = json.loads((log / "_last_checkpoint").read_bytes())
    named = sorted(log.glob(f"{hint['version']:020d}.checkpoint*.parquet"))
    if "parts" in hint:
        named = [path for path in named if f".{hint['parts']:010d}.parquet" in path.name]
        assert len(named) == hint["parts"]
    elif "v2Checkpoint" in hint:
        named = [log / hint["v2Checkpoint"]["path"]]
    else:
        named = [log / f"{hint['version']:020d}.checkpoint.parquet"]
    assert checkpointed(*named) == replayed(log, hint["version"])
    assert not [path for path in log.rglob("*") if path.name.endswith(".tmp")]
    copy = log.parent.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder_of(table), copy)
    other = lake.import_table(str(copy), name="copy")
    for version in range(table.version + 1):
        assert live_paths(other, version) == live_paths(table, version)
    lake.drop_table("copy")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_fails_anywhere_leaves_a_table_that_can_be_read(
    lake: Lake, engine: Engine, tmp_path: Path, form: str, after: bool
) -> None:
    properties, limit = FORMS[form]
    table = make_table(lake, tmp_path, properties)
    record = record_of(lake, table)
    before = tmp_path / "before"
    shutil.copytree(log_of(table), before)
    # The engines share the requests; each of them has all in the long form.
    first, every = (1, 1) if SOAK else (1 + ENGINES.index(engine), len(ENGINES))
    fail_at = first - every
    while True:
        fail_at += every
        shutil.rmtree(log_of(table))
        shutil.copytree(before, log_of(table))
        storage = Faulty(table.location, fail_at, after=after)
        try:
            write_checkpoint(lake.store, storage, record, table.version, max_actions=limit)
        except DeltaLakeDbError:
            check_log(lake, table)
            # Whoever tries again succeeds, whatever was left.
            write_checkpoint(
                lake.store, storage_of(table), record, table.version, max_actions=limit
            )
        else:
            assert storage.requests < fail_at
            break
        check_log(lake, table)
        hint = json.loads((log_of(table) / "_last_checkpoint").read_bytes())
        assert hint["version"] == table.version
    assert fail_at > 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "failure",
    [
        (CatalogConnectionLostError("gone"), CatalogConnectionLostError),
        (pa.ArrowInvalid("nonsense"), CorruptCatalogError),
        (ValueError("nonsense"), CorruptCatalogError),
    ],
)
def test_a_catalog_that_fails_in_the_middle_leaves_a_table_that_can_be_read(
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    failure: tuple[Exception, type[DeltaLakeDbError]],
) -> None:
    error, expected = failure
    properties, limit = FORMS[form]
    table = make_table(lake, tmp_path, properties)

    def fail(*_: Any) -> Any:
        raise error

    # Tombstones come first, and are written by then.
    monkeypatch.setattr(RowMaker, "adds", fail)
    with pytest.raises(expected):
        write_checkpoint(
            lake.store,
            storage_of(table),
            record_of(lake, table),
            table.version,
            max_actions=limit,
        )
    check_log(lake, table)
    assert json.loads((log_of(table) / "_last_checkpoint").read_bytes())["version"] == 1


def test_a_full_disk_is_told_as_such(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(lake, tmp_path, {})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DeltaLakeDbError, match="No space left"):
        write_checkpoint(lake.store, storage_of(table), record_of(lake, table), table.version)
    monkeypatch.undo()
    check_log(lake, table)
