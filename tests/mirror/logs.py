"""What a `_delta_log` holds, and what the catalog says it should."""

import hashlib
import json
from pathlib import Path
from typing import Any

from deltalakedb.lake import Lake
from deltalakedb.storage import local_path
from deltalakedb.table import Table


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
