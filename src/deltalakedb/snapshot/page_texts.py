"""Texts of pages in groups of eight files, so that few files are read without the rest of a page.

Paths and statistics are nearly all of a page. Each group of them is a row of the catalog, compressed
by itself. The other columns of the page and the sizes of its texts are one batch beside its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from deltalakedb.snapshot.pages import read_batch, write_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.dialect import Row, Session

COLUMN_KEY: Final = '["files"]'
"""The key of that batch among the bounds of the page's columns."""
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
    """The columns of a page without its texts, and the sizes of these."""
    import pyarrow.compute as pc

    others = files.drop_columns([*TEXTS, "removed_version"])
    for name in TEXTS:
        others = others.append_column(f"{name}_bytes", pc.binary_length(files[name]))
    (batch,) = others.combine_chunks().to_batches()
    return write_batch(batch)


def text_rows(table_id: str, page_id: int, files: pa.Table) -> Iterator[Row]:
    """The rows of the groups of a page."""
    groups = zip(*(_compressed(files[name].combine_chunks()) for name in TEXTS), strict=True)
    for number, group in enumerate(groups, start=page_id * _GROUPS):
        yield (table_id, number, *group)


def group_range(page_id: int) -> dict[str, int]:
    """The numbers of the groups of a page, as parameters."""
    return {"first": page_id * _GROUPS, "last": (page_id + 1) * _GROUPS - 1}


def read_few(
    session: Session, table_id: str, matches: Mapping[int, pa.Array], columns: Sequence[str]
) -> dict[int, pa.RecordBatch]:
    """The files at these positions of adjacent pages, by page; pages without groups are left out."""
    import pyarrow as pa

    rows = session.run_binary(
        "page_column",
        table_id=table_id,
        column_key=COLUMN_KEY,
        first=min(matches),
        last=max(matches),
    )
    batches = {page_id: data for page_id, data in rows if page_id in matches}
    groups = {page_id: _groups_of(matches[page_id]) for page_id in batches}
    numbers = [page_id * _GROUPS + group for page_id in groups for group in groups[page_id]]
    with_stats = "stats" in columns
    texts = dict[int, Sequence[bytes]]()
    if numbers:
        found = session.page_texts(table_id, numbers, with_stats=with_stats)
        texts = {number: blobs for number, *blobs in found}
    others = [name for name in columns if name not in TEXTS]
    files = {}
    for page_id, data in batches.items():
        blobs = [texts.get(page_id * _GROUPS + group) for group in groups[page_id]]
        known = [one for one in blobs if one is not None]
        if len(known) < len(blobs):
            continue  # the page was closed meanwhile
        at = matches[page_id]
        wanted = [name for name in TEXTS if name in columns]
        batch = read_batch(data, [*others, *(f"{name}_bytes" for name in wanted)])
        arrays = {name: batch[name].take(at) for name in others}
        for name in wanted:
            position = TEXTS.index(name)
            parts = [one[position] for one in known]
            arrays[name] = _taken(groups[page_id], parts, batch[f"{name}_bytes"], at)
        files[page_id] = pa.record_batch([arrays[name] for name in columns], names=list(columns))
    return files


def _groups_of(matches: pa.Array) -> list[int]:
    import pyarrow.compute as pc

    return pc.unique(pc.divide(matches, _FILES)).to_pylist()  # type: ignore[no-any-return]


def _compressed(texts: pa.Array) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.compute as pc

    codec = pa.Codec("lz4_raw")
    plain = pc.fill_null(texts, "")
    _, offsets, data = plain.buffers()
    ends = memoryview(offsets).cast("i")[plain.offset :]
    whole = memoryview(b"" if data is None else data)
    for start in range(0, len(plain), _FILES):
        group = whole[ends[start] : ends[min(start + _FILES, len(plain))]]
        yield codec.compress(pa.py_buffer(group), asbytes=True) if group.nbytes else b""


def _taken(groups: Sequence[int], parts: Sequence[bytes], sizes: pa.Array, at: pa.Array) -> pa.Array:
    """The texts at these positions of a page, out of the groups that have them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codec = pa.Codec("lz4_raw")
    last = len(sizes)
    rows = chain.from_iterable(range(g * _FILES, min((g + 1) * _FILES, last)) for g in groups)
    lengths = pc.fill_null(sizes.take(pa.array(rows, pa.int64())), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    # Only the last group of a page is smaller than the others.
    ends = memoryview(offsets.buffers()[1]).cast("i")
    marks = [ends[min(row, len(lengths))] for row in range(0, len(lengths) + _FILES, _FILES)]
    texts = b"".join(
        codec.decompress(part, end - start, asbytes=True)
        for part, start, end in zip(parts, marks, marks[1:], strict=False)
        if end > start
    )
    whole = pa.StringArray.from_buffers(len(lengths), offsets.buffers()[1], pa.py_buffer(texts))
    group = pc.divide(at, _FILES)
    place = pc.index_in(group, value_set=pa.array(groups, group.type)).cast(pa.int64())
    first = pc.multiply(pc.subtract(place, group.cast(pa.int64())), _FILES)
    found = whole.take(pc.add(first, at.cast(pa.int64())))
    return pc.if_else(sizes.take(at).is_valid(), found, pa.scalar(None, pa.string()))
