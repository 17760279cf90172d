"""What must hold of every table when the mirror has caught up, whatever happened before."""

import hashlib
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path

from deltalakedb.deltalog.names import LOG, SIDECARS, LogKind, commit_key, parse_name
from deltalakedb.lake import Lake
from deltalakedb.storage import Storage, local_path
from deltalakedb.table import Table

from support.mirror_logs import queue
from support.s3 import S3Server


def wait_until_published(
    lake: Lake, *, seconds: float, alive: Callable[[], None] = lambda: None
) -> None:
    """Until no table has a backlog; what stands in the way for `seconds` is told."""
    deadline = time.monotonic() + seconds
    least = 0
    while behind := [status for status in lake.mirror.status() if status.backlog]:
        alive()
        blocked = [status for status in behind if status.state in ("blocked", "drifted")]
        assert not blocked, blocked
        left = sum(status.backlog for status in behind)
        if not least or left < least:
            least, deadline = left, time.monotonic() + seconds
        assert time.monotonic() < deadline, behind
        time.sleep(0.05)


def check_tables(lake: Lake, tables: Sequence[Table]) -> None:
    """Every log is dense, has the bytes that were promised, and nothing else.

    `lake` reaches the store without faults.
    """
    for table in tables:
        rows = queue(lake, table)
        assert list(rows) == list(range(table.version + 1))
        assert {row["status"] for row in rows.values()} == {"SUCCEEDED"}
        assert {row["payload"] for row in rows.values()} == {None}
        storage = lake.open_storage(table.location)
        keys = _keys(storage, table)
        commits = sorted(key for key in keys if _kind(key) is LogKind.COMMIT)
        assert commits == [commit_key(version) for version in rows]
        for version, row in rows.items():
            data = storage.get(commit_key(version))
            assert hashlib.sha256(data).hexdigest() == row["digest"], (table, version)
        assert [key for key in keys if not _belongs(key)] == []
        found = lake.verify(table.name)
        assert found.ok, found.findings


def _keys(storage: Storage, table: Table) -> list[str]:
    """Everything in a log, hidden files too."""
    folder = local_path(table.location)
    if folder is None:
        return [info.key for info in storage.list(LOG)]
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def _kind(key: str) -> LogKind | None:
    name = parse_name(key.removeprefix(f"{LOG}/"))
    return None if name is None else name.kind


def _belongs(key: str) -> bool:
    if _kind(key) is not None or key == f"{LOG}/_last_checkpoint":
        return True
    # Those of an attempt that was broken off go with the clean-up of the log.
    return key.startswith(f"{LOG}/{SIDECARS}/") and Path(key).name[0] != "."


def check_uploads(server: S3Server, bucket: str) -> None:
    """No upload in parts was begun and neither finished nor given up."""
    connection = HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("GET", f"/{bucket}?uploads")
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == 200, text
    assert "<Upload>" not in text, text
