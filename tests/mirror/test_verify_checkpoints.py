"""Verifying checkpoints, hints, checksums, compactions: what differs from the catalog is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltalakedb.deltalog.names import checkpoint_key, checksum_key, commit_key
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint, write_checksum
from deltalakedb.mirror.verification import Kind
from deltalakedb.table import Table

from support.delta_log import write_appends
from support.lake import add
from support.mirror_lakes import NewTable
from support.mirror_logs import checkpointed, eventful, log_of, one
from support.published import record_of, storage_of


@pytest.fixture
def table(queued: Lake, new_table: NewTable) -> Table:
    return eventful(queued, new_table)


# --- checkpoints --------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    found = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(found.to_pylist()), found.schema), path)


def without_a_file(rows: list[Any]) -> list[Any]:
    return [row for row in rows if not (row["add"] and row["add"]["path"] == "d")]


def without_the_txn(rows: list[Any]) -> list[Any]:
    return [row for row in rows if not row["txn"]]


def with_another_size(rows: list[Any]) -> list[Any]:
    for row in rows:
        if row["add"]:
            row["add"]["size"] = 1
    return rows


def without_stats(rows: list[Any]) -> list[Any]:
    for row in rows:
        if row["add"]:
            row["add"]["stats"] = None
    return rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_a_file, ["the live file 'd' is in the catalog and not in the log"]),
        (
            without_the_txn,
            ["the app transaction 'app' is 7 in the catalog and absent in the log"],
        ),
        (
            with_another_size,
            [
                "the live file 'a b' differs in size",
                f"the live file 'c' with the deletion vector 'u{1:0>20}@1' differs in size",
                "the live file 'd' differs in size",
            ],
        ),
        (without_stats, []),
    ],
)
def test_a_checkpoint_that_says_something_else_is_told(
    queued: Lake, table: Table, change: Callable[[list[Any]], list[Any]], words: list[str]
) -> None:
    rewrite(checkpointed(queued, table, 4), change)
    verification = queued.verify(table.name)
    told = verification.of(Kind.CHECKPOINT_DIFFERS)
    assert sorted(finding.what for finding in told) == words
    assert {(finding.version, finding.key) for finding in told} <= {(4, checkpoint_key(4))}
    assert verification.ok == (not words)
    assert verification.checkpoints == (() if words else (4,))
    # The log itself is right, and a checkpoint that is not does not spoil that.
    assert (verification.replays, verification.of(Kind.STATE_DIFFERS)) == (1 if words else 2, [])


def test_app_transactions_that_expire_are_not_missed_in_a_checkpoint(
    queued: Lake, table: Table
) -> None:
    table.set_properties({"delta.setTransactionRetentionDuration": "1 day"})
    queued.mirror.run_once()
    rewrite(checkpointed(queued, table, 6), without_the_txn)
    assert queued.verify(table.name).ok


@pytest.mark.parametrize("content", [b"", b"no parquet"])
def test_a_damaged_checkpoint_is_told(queued: Lake, table: Table, content: bytes) -> None:
    checkpointed(queued, table, 2)
    (log_of(table) / "_last_checkpoint").unlink()
    checkpointed(queued, table, 4).write_bytes(content)
    (log_of(table) / "_last_checkpoint").unlink()
    verification = queued.verify(table.name)
    kind, version, _ = one(verification)
    assert (kind, version) == (Kind.DAMAGED_CHECKPOINT, 4)
    assert (verification.checkpoints, verification.replays) == ((2,), 2)


def test_a_checkpoint_of_a_version_that_is_not_published_is_told(
    queued: Lake, table: Table
) -> None:
    path = checkpointed(queued, table, 5)
    table.commit([add("e", values={"day": "1"})])
    path.rename(path.with_name(Path(checkpoint_key(6)).name))
    (log_of(table) / "_last_checkpoint").unlink()
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.CHECKPOINT_DIFFERS, 6)
    assert what == "the newest published version is 5"


def test_parts_that_make_no_checkpoint_are_told_and_harmless(queued: Lake, table: Table) -> None:
    record, storage = record_of(queued, table), storage_of(table)
    hint = write_checkpoint(queued.store, storage, record, 4, max_actions=2)
    assert hint.parts
    assert queued.verify(table.name).checkpoints == (4,)
    parts = sorted(log_of(table).glob("*.checkpoint.*.parquet"))
    parts[1].unlink()
    verification = queued.verify(table.name)
    assert {f.kind for f in verification.findings} == {Kind.UNFINISHED_CHECKPOINT, Kind.LOST_HINT}
    (log_of(table) / "_last_checkpoint").unlink()
    verification = queued.verify(table.name)
    assert one(verification)[:2] == (Kind.UNFINISHED_CHECKPOINT, 4)
    assert verification.ok


def test_a_v2_checkpoint_is_compared_with_its_sidecars(queued: Lake, new_table: NewTable) -> None:
    v2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}
    table = new_table(queued, properties=v2)
    table.commit([add(f"f{n}") for n in range(9)])
    queued.mirror.run_once()
    record, storage = record_of(queued, table), storage_of(table)
    write_checkpoint(queued.store, storage, record, 1, max_actions=4)
    assert queued.verify(table.name).checkpoints == (1,)
    sidecars = sorted((log_of(table) / "_sidecars").iterdir())
    assert len(sidecars) == 3
    sidecars[0].unlink()
    verification = queued.verify(table.name)
    assert {f.kind for f in verification.findings} == {Kind.DAMAGED_CHECKPOINT, Kind.LOST_HINT}


# --- hints, checksums, compactions --------------------------------------------------------


def test_a_hint_that_names_an_absent_checkpoint_is_told(queued: Lake, table: Table) -> None:
    checkpointed(queued, table, 4).unlink()
    kind, version, what = one(queued.verify(table.name))
    assert (kind, version) == (Kind.LOST_HINT, 4)
    assert what == "it names a checkpoint of version 4, which is missing or damaged"


def test_a_damaged_hint_is_told_and_harmless(queued: Lake, table: Table) -> None:
    checkpointed(queued, table, 4)
    (log_of(table) / "_last_checkpoint").write_text("{")
    verification = queued.verify(table.name)
    assert one(verification)[0] is Kind.DAMAGED_HINT
    assert verification.ok


def test_a_checksum_beyond_the_newest_commit_is_told(queued: Lake, table: Table) -> None:
    (log_of(table) / Path(checksum_key(9)).name).write_text("{}")
    kind, version, _ = one(queued.verify(table.name))
    assert (kind, version) == (Kind.ORPHAN_CHECKSUM, 9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"numFiles": 4}, "numFiles is 4, and 3 in the catalog"),
        ({"tableSizeBytes": None}, "tableSizeBytes is None, and 300 in the catalog"),
        ({"protocol": 3}, "it is damaged: "),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, "the protocol has "),
        ({"metadata": None}, "it is damaged: "),
    ],
)
def test_a_checksum_that_says_something_else_is_told(
    queued: Lake, table: Table, change: dict[str, Any], words: str
) -> None:
    write_checksum(queued.store, storage_of(table), record_of(queued, table), 5)
    path = log_of(table) / Path(checksum_key(5)).name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    findings = queued.verify(table.name).findings
    assert {(f.kind, f.version, f.key) for f in findings} == {
        (Kind.CHECKSUM_DIFFERS, 5, checksum_key(5))
    }
    assert any(finding.what.startswith(words) for finding in findings)


def test_a_compaction_is_compared_with_its_commits(queued: Lake, tmp_path: Path) -> None:
    write_appends(tmp_path, 4)
    log = tmp_path / "_delta_log"
    lines = [
        line
        for version in (1, 2)
        for line in (log / Path(commit_key(version)).name).read_text().splitlines()
        if "commitInfo" not in line
    ]
    compacted = log / f"{1:020d}.{2:020d}.compacted.json"
    compacted.write_text("\n".join(lines))
    queued.import_table(str(tmp_path), name="old")
    assert queued.verify("old").ok
    compacted.write_text(lines[0])
    kind, version, what = one(queued.verify("old"))
    assert (kind, version) == (Kind.COMPACTION_DIFFERS, 1)
    assert "versions 1 to 2" in what
    compacted.write_text("{")
    assert one(queued.verify("old"))[0] is Kind.COMPACTION_DIFFERS
