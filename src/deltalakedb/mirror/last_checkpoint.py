"""`_last_checkpoint` in the object store, and the footers of checkpoint files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from deltalakedb.deltalog.checkpoints import read_control_actions, sidecars_of
from deltalakedb.deltalog.last_checkpoint import LastCheckpoint, V2Hint, parse_hint
from deltalakedb.deltalog.listing import list_log
from deltalakedb.deltalog.names import LAST_CHECKPOINT, sidecar_key
from deltalakedb.errors import InvalidLogError, ObjectNotFoundError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from deltalakedb.deltalog.listing import Checkpoint
    from deltalakedb.storage import Storage

# Footers of checkpoints have tens of kilobytes; one read nearly always holds all of it.
_TAIL: Final = 64 * 1024
_END: Final = 8


def advance_hint(storage: Storage, hint: LastCheckpoint) -> bool:
    """Write `_last_checkpoint` for a checkpoint that exists; False where it names a newer one.

    A newer one that does not exist is replaced: readers could not open the table.
    """

    def change(current: bytes | None) -> bytes | None:
        known = None if current is None else parse_hint(current)
        if known is not None and known.version > hint.version:
            return None if known.version in list_log(storage).checkpoints else hint.to_json()
        return hint.to_json()

    return storage.update(LAST_CHECKPOINT, change)


def hinted_version(storage: Storage) -> int | None:
    """The version that `_last_checkpoint` names; None where it is absent or damaged."""
    try:
        hint = parse_hint(storage.get(LAST_CHECKPOINT))
    except ObjectNotFoundError:
        return None
    return None if hint is None else hint.version


def describe(
    storage: Storage, checkpoint: Checkpoint, sizes: Mapping[str, int]
) -> LastCheckpoint | None:
    """The hint that names a checkpoint; None where a file of it is missing or cannot be read.

    `sizes` has the sizes of all objects of the log.
    """
    files = {file.key: file.size for file in checkpoint.files}
    if checkpoint.is_v2:
        (top,) = checkpoint.files
        named = sidecar_keys(storage, top.key, top.size)
        if named is None or not named <= sizes.keys():
            return None
        files |= {key: sizes[key] for key in named}
    rows = 0
    for key, size in files.items():
        count = _count_rows(storage, key, size)
        if count is None:
            return None
        rows += count
    first = checkpoint.files[0]
    return LastCheckpoint(
        checkpoint.version,
        rows,
        parts=len(checkpoint.files) if checkpoint.has_parts else None,
        size_in_bytes=sum(files.values()),
        v2=V2Hint(first.key.rpartition("/")[2], first.size, first.modified_ms)
        if checkpoint.is_v2
        else None,
    )


def _count_rows(storage: Storage, key: str, size: int) -> int | None:
    if key.endswith(".json"):
        return sum(bool(line.strip()) for line in storage.get(key).splitlines())
    footer = parquet_footer(storage, key, size)
    return None if footer is None else int(footer.num_rows)


def sidecar_keys(storage: Storage, key: str, size: int) -> set[str] | None:
    """The sidecars that a checkpoint file names; None where it cannot be read."""
    is_json = key.endswith(".json")
    if not is_json:
        footer = parquet_footer(storage, key, size)
        if footer is None:
            return None
        leaves = (footer.schema.column(number).path for number in range(footer.num_columns))
        # Most files have no such column; those with one are small.
        if not any(path.startswith("sidecar.") for path in leaves):
            return set()
    try:
        actions = read_control_actions(storage.get(key), file=key, is_json=is_json)
    except (InvalidLogError, ObjectNotFoundError):
        return None
    return {sidecar_key(sidecar.path) for sidecar in sidecars_of(actions)}


def parquet_footer(storage: Storage, key: str, size: int) -> pq.FileMetaData | None:
    """The footer of a Parquet file; None where the file is missing or has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        start = max(0, size - _TAIL)
        tail = storage.get_range(key, start=start, length=size - start)
        footer = int.from_bytes(tail[-_END : -_END + 4], "little") + _END
        if len(tail) < footer <= size:
            tail = storage.get_range(key, start=size - footer, length=footer)
        # The parser of footers needs the magic bytes at the start, and nothing in between.
        return pq.read_metadata(pa.PythonFile(io.BytesIO(b"PAR1" + tail), mode="r"))
    except (ObjectNotFoundError, pa.ArrowException, OSError, ValueError):
        return None
