"""Another writer, which asks a lake for its commits: the lines of commit files."""

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalakedb.lake import Lake
from deltalakedb.storage import normalise_location

from support.delta_log import PROTOCOL, metadata
from support.lake import Json, add


def new_id() -> str:
    """The txnId of a new commit."""
    return str(uuid.uuid4())


def commit_file(*actions: Json, txn_id: str | None = None, **info: Any) -> bytes:
    """The bytes of a commit file; `info` are fields of its commitInfo."""
    fields: Json = {"timestamp": 1, "operation": "WRITE", "operationParameters": {}, **info}
    if txn_id is not None:
        fields["txnId"] = txn_id
    return lines([{"commitInfo": fields}, *actions])


def lines(actions: Iterable[Json]) -> bytes:
    """A line for each action."""
    # Not as this project writes them: the bytes have to stay those of their writer.
    return "".join(
        f"{json.dumps(action, separators=(' ,', ' : '))}\n" for action in actions
    ).encode()


def first_commit(**options: Any) -> bytes:
    """Version 0 of a table of `id` and `day`."""
    configuration = options.pop("configuration", None)
    return commit_file(PROTOCOL, metadata(configuration), operation="CREATE TABLE", **options)


def append(path: str, **options: Any) -> bytes:
    """A commit that adds a file."""
    return commit_file(add(path), **options)


def log_folder(location: str | Path) -> Path:
    """The folder of the log of a local table."""
    return Path(normalise_location(str(location)).removeprefix("file://")) / "_delta_log"


def published(location: str | Path, version: int) -> bytes | None:
    """The bytes of a commit file; None where there is none."""
    path = log_folder(location) / f"{version:020d}.json"
    return path.read_bytes() if path.exists() else None


def propose_until_won(lake: Lake, location: str, data: bytes, *, start: int = 0) -> int:
    """Propose a commit as the next version until it is one, as an append without conflicts."""
    from deltalakedb.errors import UnexpectedVersionError

    version = start
    while True:
        try:
            return lake.ratify(location, version, data).version
        except UnexpectedVersionError:
            # The one that won is in the log, so the writer can compare its commit with it.
            assert published(location, version) is not None
            version += 1
