"""A batch taken apart by the values of its partition columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

PartitionKey = tuple[Any, ...]


def by_partition(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """The rows of each partition, with its values; all rows where there are no columns."""
    if not batch.num_rows:
        return
    if not columns:
        yield (), batch
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pa.array([0] * batch.num_rows, pa.int64())
    for name in columns:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        scaled = pc.multiply(codes, len(encoded.dictionary))
        codes = pc.add(scaled, encoded.indices.cast(pa.int64()))
    order = pc.sort_indices(codes)
    ordered = codes.take(order)
    ends = pc.run_end_encode(ordered, run_end_type=pa.int64()).run_ends.to_pylist()
    rows = batch if _is_sorted(order, len(ends)) else batch.take(order)
    start = 0
    for end in ends:
        part = rows.slice(start, end - start)
        yield tuple(part.column(name)[0].as_py() for name in columns), part
        start = end


def _is_sorted(order: Any, parts: int) -> bool:
    """Whether all rows are of one partition: then nothing has to be moved."""
    return parts == 1 and len(order) > 0
