"""A file-sink metadata log: a list of files that Spark reads instead of listing folders.

- Spark takes the files in `<folder>/_spark_metadata/0` for those of the folder, wherever they are.
  It reads the log when a DataFrame is created; then the folder is deleted.
- The folder of a process that was killed stays. The next process that writes a list deletes it: a
  folder is locked while it is in use, and the kernel drops the locks of a process that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.spark.io.paths import hadoop_uris
from deltalakedb.storage.locations import FilePlaces

# Characters that JSON escapes.
_ESCAPED: Final = r'["\\\x00-\x1f]'
_PREFIX: Final = "deltalakedb-scan-"
_LOG: Final = "_spark_metadata"
_BLOCK: Final = 134_217_728
_AT_ONCE: Final = 100_000


_swept: set[str] = set()


@contextmanager
def spark_file_list(places: FilePlaces, files: pa.Table) -> Iterator[str]:
    """The URI of a folder with a list of these files, for Spark, during the block."""
    _sweep(tempfile.gettempdir())
    with _new_folder() as folder:
        log = folder / _LOG
        log.mkdir()
        with (log / "0").open("wb") as out:
            out.write(b"v1")
            for batch in distinct(files, "path").to_batches(max_chunksize=_AT_ONCE):
                lines = _lines(places, batch).to_pylist()
                out.write("\n".join(["", *lines]).encode())
        yield folder.as_uri()


# --- folders ------------------------------------------------------------------------------


@contextmanager
def _new_folder() -> Iterator[Path]:
    """A folder that is locked during the block, and deleted after it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with ExitStack() as held:
            # Until it is locked, another process may delete it.
            with suppress(FileNotFoundError):
                held.enter_context(_locked(folder, wait=True))
            if folder.exists():
                held.callback(_delete, folder)
                yield folder
                return


def _sweep(parent: str) -> None:
    """Delete the folders of processes that were killed; once in a process."""
    if parent in _swept or not hasattr(os, "geteuid"):
        return
    _swept.add(parent)
    for folder in Path(parent).glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(folder, wait=False) as locked:
            if locked and folder.stat().st_uid == os.geteuid():
                _delete(folder)


def _delete(folder: Path) -> None:
    shutil.rmtree(folder / _LOG, ignore_errors=True)
    # Other files are not ours: earlier releases let Spark insert rows there.
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Whether the folder is locked; never on a system without such locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        locked = False
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            locked = True
        yield locked
    finally:
        os.close(opened)


# --- lines --------------------------------------------------------------------------------


def distinct(files: pa.Table, column: str) -> pa.Table:
    """Each file once: a path may be there with several deletion vectors."""
    if pc.count_distinct(files[column]).as_py() == files.num_rows:
        return files
    seen: dict[str, int] = {}
    for number, path in enumerate(files[column].to_pylist()):
        seen.setdefault(path, number)
    return files.take(pa.array(seen.values(), pa.int64()))


def _lines(places: FilePlaces, files: pa.RecordBatch) -> pa.Array:
    """A line of JSON for each file, by Arrow's functions: tables have many files."""
    uris = hadoop_uris(places, files["path"])
    if pc.any(pc.match_substring_regex(uris, _ESCAPED)).as_py():
        uris = pa.array(map(_escaped, uris.to_pylist()), pa.string())
    return pc.binary_join_element_wise(
        '{"path":"',
        uris,
        '","size":',
        files["size_bytes"].cast(pa.string()),
        ',"isDir":false,"modificationTime":',
        files["modification_time"].cast(pa.string()),
        f',"blockReplication":1,"blockSize":{_BLOCK},"action":"add"}}',
        "",
    )


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
