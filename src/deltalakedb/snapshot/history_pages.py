"""The pages of a whole history at once, from files that are still in memory.

They are those that commits would have made one after the other (`page_builder.py`), each written
once: when a file goes is known from the start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalakedb.snapshot import listing
from deltalakedb.snapshot.page_builder import PAGE_FILES, page_row
from deltalakedb.store.relations import LIVE

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.store.dialect import Row

# Where texts of one column have more bytes than Arrow counts in 32 bits, pages take another way.
_MOST_BYTES = 2**30


@dataclass(slots=True)
class _Page:
    """A page to be written: from which version to which, and the numbers of its files."""

    valid_from: int
    numbers: pa.Array
    valid_to: int = LIVE


def history_pages(table_id: str, files: pa.Table, due: list[tuple[int, float]]) -> list[Row] | None:
    """The rows of all pages, where they are due after these versions; None for too large tables.

    It needs no catalog, and can be done while something else is.
    """
    columns = files.select([*listing.COLUMNS, "removed_version"])
    if columns.nbytes > _MOST_BYTES:
        return None
    whole = columns.combine_chunks()
    return [_row(table_id, number, page, whole) for number, page in enumerate(_plan(files, due))]


def _plan(files: pa.Table, due: list[tuple[int, float]]) -> Iterator[_Page]:
    import pyarrow as pa
    import pyarrow.compute as pc

    added = files["added_version"].to_pylist()
    removed = files["removed_version"].combine_chunks()
    pages: list[_Page] = []
    opened: list[_Page] = []
    begin = 0
    for version, most_gone in due:
        end = bisect_right(added, version, lo=begin)
        numbers = []
        kept = []
        for page in opened:
            live = pc.greater(removed.take(page.numbers), version)
            gone = len(live) - (pc.sum(live).as_py() or 0)
            if gone > len(live) * most_gone:
                page.valid_to = version
                numbers.append(page.numbers.filter(live))
            else:
                kept.append(page)
        live = pc.greater(removed.slice(begin, end - begin), version)
        numbers.append(pc.add(pc.indices_nonzero(live).cast(pa.int64()), begin))
        every = pa.concat_arrays(numbers)
        new = [
            _Page(version, every.slice(start, PAGE_FILES))
            for start in range(0, len(every), PAGE_FILES)
        ]
        pages += new
        opened = kept + new
        begin = end
    return iter(pages)


def _row(table_id: str, page_id: int, page: _Page, files: pa.Table) -> Row:
    row = page_row(table_id, page_id, page.valid_from, files.take(page.numbers).combine_chunks())
    return (*row[:3], page.valid_to, *row[4:])
