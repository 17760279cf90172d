"""What a `_delta_log` holds, and what the catalog says it should."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalakedb.deltalog.names import checkpoint_key, commit_key
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.mirror.verification import Kind, Verification
from deltalakedb.storage import local_path
from deltalakedb.table import Table

from support.lake import add, remove
from support.published import record_of, storage_of


def log_of(table: Table) -> Path:
    """The folder of a table's log."""
    folder = local_path(table.location)
    assert folder is not None
    return folder / "_delta_log"


def versions_in(table: Table) -> list[int]:
    """The versions whose commit files are there."""
    return sorted(int(path.stem) for path in log_of(table).glob("*.json") if path.stem.isdigit())


def lines(table: Table, version: int) -> list[dict[str, Any]]:
    """The actions of a commit file."""
    text = (log_of(table) / f"{version:020d}.json").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def queue(lake: Lake, table: Table) -> dict[int, dict[str, Any]]:
    """The mirror's row of each version."""
    columns = (
        *("version", "status", "attempts", "last_error", "error_kind", "digest"),
        *("payload", "payload_bytes", "next_attempt_at"),
    )
    sql = lake.store.dialect.sql(
        f"SELECT {', '.join(columns)} FROM dl_mirror_status "
        "WHERE table_id = :table_id ORDER BY version"
    )
    with lake.store.read() as session:
        rows = session.execute(sql, {"table_id": table.table_id})
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def check_published(lake: Lake, table: Table) -> None:
    """Every version is in the log, byte for byte, and nothing else that looks like one."""
    rows = queue(lake, table)
    assert versions_in(table) == list(rows)
    for version, row in rows.items():
        data = (log_of(table) / f"{version:020d}.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["digest"], version
        assert (row["status"], row["payload"]) == ("SUCCEEDED", None), version
        assert row["payload_bytes"] == len(data)


def eventful(queued: Lake, new_table: Callable[..., Table]) -> Table:
    """Versions 0 to 5, published: files with partitions, deletion vectors, a txn and a domain."""
    made = new_table(
        queued,
        partition_by=["day"],
        properties={
            "delta.enableDeletionVectors": "true",
            "delta.feature.domainMetadata": "supported",
            "delta.checkpointInterval": "1000",
        },
    )
    made.commit([add("a%20b", values={"day": "1"}), add("c", values={"day": None})])
    made.commit([add("d", values={"day": "ü"}, rows=None)], app_txn=("app", 7))
    made.commit([remove("c"), add("c", values={"day": None}, dv=1)])
    made.commit([{"domainMetadata": {"domain": "x", "configuration": "1", "removed": False}}])
    made.set_properties({"owner": "me"})
    queued.mirror.run_once()
    return made


def checkpointed(lake: Lake, table: Table, version: int) -> Path:
    """Write a checkpoint; its file."""
    write_checkpoint(lake.store, storage_of(table), record_of(lake, table), version)
    return log_of(table) / Path(checkpoint_key(version)).name


def log_file(table: Table, version: int) -> Path:
    """The commit file of a version."""
    return log_of(table) / Path(commit_key(version)).name


def one(verification: Verification) -> tuple[Kind, int | None, str]:
    """The only finding of a verification."""
    assert not verification.ok or all(f.harmless for f in verification.findings)
    (found,) = verification.findings
    assert json.dumps(verification.to_dict())
    return found.kind, found.version, found.what
