"""Tokens in files that only their user can read, until the process ends.

PySpark passes the settings of a builder to Java as arguments, and every user of the machine can
list those. A setting names the file instead.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from deltalakedb.forking import ProcessLock

_files: Final[dict[str, Path]] = {}
_lock: Final = ProcessLock()


def token_setting(token: str) -> str:
    """The setting that stands for a token: `@` and the file that has it."""
    with _lock.lock:
        path = _files.get(token)
        if path is None or not path.exists():
            descriptor, name = tempfile.mkstemp(prefix="deltalakedb-token-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(token)
            path = _files[token] = Path(name)
            atexit.register(_remove, path, os.getpid())
    return f"@{path}"


def _remove(path: Path, process: int) -> None:
    """Remove a file, unless a fork of its process ends."""
    if os.getpid() == process:
        with suppress(OSError):
            path.unlink(missing_ok=True)
