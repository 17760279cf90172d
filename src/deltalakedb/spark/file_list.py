"""A list of files as Spark reads one without listing anything: a file-sink metadata log.

Spark takes the files of `<folder>/_spark_metadata/0` for those of the folder, wherever they lie. It
reads the log when the DataFrame is made, so the folder is gone again when that has happened.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_BLOCK = 134_217_728


class ListedFile(NamedTuple):
    """A file as Spark needs to know it; the path is an absolute URI, percent-encoded."""

    uri: str
    size: int
    modified_ms: int


@contextmanager
def spark_file_list(files: Iterable[ListedFile]) -> Iterator[str]:
    """The URI of a folder that has these files, for Spark, while the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-scan-"))
    try:
        log = folder / "_spark_metadata"
        log.mkdir()
        with (log / "0").open("w", encoding="utf-8") as out:
            out.write("v1")
            for file in files:
                out.write("\n")
                out.write(_line(file))
        yield folder.as_uri()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _line(file: ListedFile) -> str:
    # Tables have many files, and nothing but the path can need escaping.
    return (
        f'{{"path":{json.dumps(file.uri)},"size":{file.size:d},"isDir":false,'
        f'"modificationTime":{file.modified_ms:d},"blockReplication":1,"blockSize":{_BLOCK},'
        '"action":"add"}'
    )
