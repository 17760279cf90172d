"""An S3 server on this machine: moto, in a process of its own, as the tests have it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.s3 import running_server


@dataclass(frozen=True, slots=True)
class S3:
    """A bucket, and how to reach it."""

    bucket: str
    storage_options: dict[str, str]


@contextmanager
def serving() -> Iterator[S3]:
    """A server with one bucket while the block lasts."""
    with running_server() as server:
        yield S3(server.new_bucket(), server.storage_options)
