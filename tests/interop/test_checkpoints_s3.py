"""Checkpoints in an S3 bucket: large uploads, read back by another catalog, cleaned up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.deltalog.last_checkpoint import parse_hint
from deltalakedb.deltalog.names import LAST_CHECKPOINT
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.cleanup import clean_log

from support.lake import add, live_paths, remove, schema_json
from support.published import record_of
from support.s3 import S3Server

DAY_MS = 86_400_000
V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}


@pytest.fixture
def lakes(s3_server: S3Server, tmp_path: Path) -> Iterator[tuple[Lake, Lake]]:
    """The catalog that writes a table, and one that only has the bucket to go by."""
    options: dict[str, Any] = {
        "storage_options": s3_server.storage_options,
        "clock": ManualClock(),
    }
    with (
        deltalakedb.connect(f"sqlite:///{tmp_path}/a.db", mirror="worker", **options) as ours,
        deltalakedb.connect(f"sqlite:///{tmp_path}/b.db", mirror="worker", **options) as other,
    ):
        yield ours, other


@pytest.mark.parametrize(
    ("properties", "limit"), [({}, None), ({}, 400), (V2, 400)], ids=["one file", "parts", "v2"]
)
def test_a_checkpoint_in_a_bucket_is_all_that_a_reader_needs(
    lakes: tuple[Lake, Lake], s3_bucket: str, properties: dict[str, str], limit: int | None
) -> None:
    lake, other = lakes
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    location = f"s3://{s3_bucket}/lake/a table"
    table = lake.create_table(
        "t", location=location, schema=schema_json("id"), properties=properties
    )
    # So much that a file of the checkpoint is too large for a single request.
    noise = random.Random(0)
    adds = [add(f"f{number}") for number in range(1_000)]
    for action in adds:
        action["add"]["tags"] = {"noise": noise.randbytes(10_000).hex()}
    table.commit(adds)
    clock.advance(DAY_MS)
    table.commit([remove("f0"), add("late")])
    lake.mirror.run_once()
    storage, record = lake.open_storage(location), record_of(lake, table)
    # The worker has written it.
    assert not write_checksum(lake.store, storage, record, 2)
    written = write_checkpoint(lake.store, storage, record, 2, max_actions=limit)
    assert written.size_in_bytes is not None
    assert written.size_in_bytes > 15_000_000
    assert write_checkpoint(lake.store, storage, record, 1).version == 1
    hint = parse_hint(storage.get(LAST_CHECKPOINT))
    assert hint is not None
    assert (hint.version, hint.size) == (2, written.size)
    clock.advance(40 * DAY_MS)
    cleaned = clean_log(lake.store, storage, record, now_ms=clock.now_ms())
    assert (cleaned.oldest, cleaned.commits) == (2, 2)
    imported = other.import_table(location, name="t")
    assert imported.snapshot().version == 2
    assert live_paths(imported) == live_paths(table)
    assert imported.snapshot().metadata == table.snapshot().metadata
