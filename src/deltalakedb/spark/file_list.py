"""A list of files as Spark reads one without listing anything: a file-sink metadata log.

Spark takes the files of `<folder>/_spark_metadata/0` for those of the folder, wherever they lie. It
reads the log when the DataFrame is made, so the folder is gone again when that has happened.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalakedb.actions.file_paths import ODD_PATH
from deltalakedb.spark.paths import hadoop_uri
from deltalakedb.storage.file_places import FilePlaces

if TYPE_CHECKING:
    import pyarrow as pa

# What may not lie below the table, and what JSON writes in another way.
_NEEDS_CARE: Final = ODD_PATH + r'|["\\\x00-\x1f]'
_BLOCK: Final = 134_217_728
_AT_ONCE: Final = 100_000


@contextmanager
def spark_file_list(places: FilePlaces, files: pa.Table) -> Iterator[str]:
    """The URI of a folder that has these files of a table, for Spark, while the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="deltalakedb-scan-"))
    try:
        log = folder / "_spark_metadata"
        log.mkdir()
        with (log / "0").open("wb") as out:
            out.write(b"v1")
            for some in _distinct(files).to_batches(max_chunksize=_AT_ONCE):
                lines = _lines(places, some).to_pylist()
                out.write("\n".join(["", *lines]).encode())
        yield folder.as_uri()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _distinct(files: pa.Table) -> pa.Table:
    """Each file once, also if it is there with two deletion vectors."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.count_distinct(files["path"]).as_py() == files.num_rows:
        return files
    seen: dict[str, int] = {}
    for number, path in enumerate(files["path"].to_pylist()):
        seen.setdefault(path, number)
    return files.take(pa.array(seen.values(), pa.int64()))


def _lines(places: FilePlaces, files: pa.RecordBatch) -> pa.Array:
    """A line of JSON for each file. Tables have many: they are made column by column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = files["path"].cast(pa.string())
    if pc.any(pc.match_substring_regex(paths, _NEEDS_CARE)).as_py():
        given = paths.to_pylist()
        for path in given:
            places.resolve(path)
        uris = (hadoop_uri(places.location, path) for path in given)
        paths = pa.array((_escaped(uri) for uri in uris), pa.string())
        before = ""
    else:
        before = _escaped(hadoop_uri(places.location, ""))
    return pc.binary_join_element_wise(
        f'{{"path":"{before}',
        paths,
        '","size":',
        files["size_bytes"].cast(pa.string()),
        ',"isDir":false,"modificationTime":',
        files["modification_time"].cast(pa.string()),
        f',"blockReplication":1,"blockSize":{_BLOCK},"action":"add"}}',
        "",
    )


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
