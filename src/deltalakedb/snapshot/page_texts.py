"""Texts of pages in groups of eight files, so that few files are read without the rest of a page.

Paths and statistics are nearly all of a page. Each group of them is a row of the catalog, its
statistics compressed by themselves. The other columns of the page, and where its texts begin in
their groups, are one batch beside its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from deltalakedb.snapshot.pages import read_batch, write_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.dialect import Row, Session

COLUMN_KEY: Final = '["files"]'
"""The key of that batch among the bounds of the page's columns."""
TYPE: Final = "files"
"""Its type there."""
TEXTS: Final = ("path", "stats")
_FILES: Final = 8
# More than a page has; the number of a group also tells its page.
_GROUPS: Final = 4_096
# A page is decoded as a whole where more of its groups, one in so many, have a match.
_FEW: Final = 3


def is_few(matches: pa.Array, num_files: int) -> bool:
    """Whether files at these positions of a page are better read by groups."""
    return len(_groups_of(matches)) * _FILES * _FEW <= num_files


def files_batch(files: pa.Table) -> bytes:
    """The columns of a page without its texts; where these begin, and their sizes."""
    import pyarrow.compute as pc

    others = files.drop_columns([*TEXTS, "removed_version"])
    for name in TEXTS:
        sizes = pc.binary_length(files[name])
        others = others.append_column(f"{name}_start", _starts(sizes.to_pylist()))
        others = others.append_column(f"{name}_bytes", sizes)
    (batch,) = others.combine_chunks().to_batches()
    return write_batch(batch)


def text_rows(table_id: str, page_id: int, files: pa.Table) -> Iterator[Row]:
    """The rows of the groups of a page."""
    import pyarrow as pa

    codec = pa.Codec("lz4_raw")
    paths, stats = (_grouped(files[name].combine_chunks()) for name in TEXTS)
    for number, (path, text) in enumerate(zip(paths, stats, strict=True), page_id * _GROUPS):
        yield (table_id, number, path, codec.compress(text, asbytes=True) if text else b"")


def group_range(page_id: int) -> dict[str, int]:
    """The numbers of the groups of a page, as parameters."""
    return {"first": page_id * _GROUPS, "last": (page_id + 1) * _GROUPS - 1}


def read_few(
    session: Session,
    table_id: str,
    version: int,
    matches: Mapping[int, pa.Array],
    columns: Sequence[str],
) -> dict[int, pa.RecordBatch]:
    """The files at these positions of pages, by page; pages without groups are left out."""
    import pyarrow as pa

    rows = session.page_bounds(
        min(matches),
        max(matches),
        table_id=table_id,
        version=version,
        column_key=COLUMN_KEY,
        type=TYPE,
        lowest=0,
        highest=0,
    )
    batches = {page_id: data for page_id, _, data in rows if page_id in matches}
    groups = {page_id: _groups_of(matches[page_id]) for page_id in batches}
    numbers = [page_id * _GROUPS + group for page_id in groups for group in groups[page_id]]
    with_stats = "stats" in columns
    texts: dict[int, Row] = {}
    if numbers:
        found = session.page_texts(table_id, numbers, with_stats=with_stats)
        texts = {row[0]: row for row in found}
    others = [name for name in columns if name not in TEXTS]
    files = {}
    for page_id, data in batches.items():
        blobs = [texts.get(page_id * _GROUPS + group) for group in groups[page_id]]
        known = [one for one in blobs if one is not None]
        if len(known) < len(blobs):
            continue  # the page was closed meanwhile
        at = matches[page_id]
        wanted = [name for name in TEXTS if name in columns]
        places = [f"{name}_{kind}" for name in wanted for kind in ("start", "bytes")]
        batch = read_batch(data, [*others, *places])
        arrays = {name: batch[name].take(at) for name in others}
        for name in wanted:
            position = 1 + TEXTS.index(name)
            parts = dict(zip(groups[page_id], (one[position] for one in known), strict=True))
            starts, sizes = batch[f"{name}_start"], batch[f"{name}_bytes"]
            if name == "stats":
                parts = _decompressed(parts, starts, sizes)
            arrays[name] = _taken(parts, starts, sizes, at)
        files[page_id] = pa.record_batch([arrays[name] for name in columns], names=list(columns))
    return files


def _groups_of(matches: pa.Array) -> list[int]:
    import pyarrow.compute as pc

    return pc.unique(pc.divide(matches, _FILES)).to_pylist()  # type: ignore[no-any-return]


def _grouped(texts: pa.Array) -> Iterator[bytes]:
    import pyarrow.compute as pc

    plain = pc.fill_null(texts, "")
    _, offsets, data = plain.buffers()
    ends = memoryview(offsets).cast("i")[plain.offset :]
    whole = memoryview(b"" if data is None else data)
    for start in range(0, len(plain), _FILES):
        yield bytes(whole[ends[start] : ends[min(start + _FILES, len(plain))]])


def _starts(sizes: Sequence[int | None]) -> pa.Array:
    """The position of each text in its group."""
    import pyarrow as pa

    starts = []
    for first in range(0, len(sizes), _FILES):
        start = 0
        for size in sizes[first : first + _FILES]:
            starts.append(start)
            start += size or 0
    return pa.array(starts, pa.int32())


def _decompressed(
    parts: Mapping[int, bytes], starts: pa.Array, sizes: pa.Array
) -> dict[int, bytes]:
    import pyarrow as pa

    codec = pa.Codec("lz4_raw")
    ends = pa.array([min((group + 1) * _FILES, len(sizes)) - 1 for group in parts], pa.int64())
    last = zip(starts.take(ends).to_pylist(), sizes.take(ends).to_pylist(), strict=True)
    return {
        group: codec.decompress(part, start + (size or 0), asbytes=True) if part else b""
        for (group, part), (start, size) in zip(parts.items(), last, strict=True)
    }


def _taken(parts: Mapping[int, bytes], starts: pa.Array, sizes: pa.Array, at: pa.Array) -> pa.Array:
    """The texts at these positions of a page, out of the groups that have them."""
    import pyarrow as pa

    places = zip(
        at.to_pylist(), starts.take(at).to_pylist(), sizes.take(at).to_pylist(), strict=True
    )
    found = [
        None if size is None else parts[number // _FILES][start : start + size]
        for number, start, size in places
    ]
    return pa.array(found, pa.string())
