"""Deletion vectors are written: which rows of a data file are gone from a version on.

All vectors of one commit lie in one file beside the data, `deletion_vector_<uuid>.bin`. Like data
files they are there before the commit that names them, and nobody sees them earlier.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from deltalakedb.actions import z85
from deltalakedb.actions.values import DeletionVectorDescriptor
from deltalakedb.reading.deletion_vectors import MAGIC
from deltalakedb.staging.sinks import Sinks

if TYPE_CHECKING:
    import pyarrow as pa

_COOKIE: Final = 12346
_ARRAY_LIMIT: Final = 4096
_ROWS: Final = 1 << 16
_FILE_VERSION: Final = b"\x01"


def encode_rows(numbers: pa.Array) -> bytes:
    """Row numbers, ascending and each once, as a portable 64-bit Roaring bitmap with its magic."""
    groups: dict[int, list[tuple[int, int, bytes]]] = {}
    for key, low in _containers(numbers):
        groups.setdefault(key >> 16, []).append((key & 0xFFFF, len(low) // 2, low))
    parts = [struct.pack("<IQ", MAGIC, len(groups))]
    for high, containers in sorted(groups.items()):
        parts.append(struct.pack("<I", high))
        parts.append(_group(containers))
    return b"".join(parts)


def _containers(numbers: pa.Array) -> Iterable[tuple[int, bytes]]:
    """The low halves of the numbers of each container, as 16-bit integers, in order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = pc.run_end_encode(pc.shift_right(numbers, 16))
    low = pc.cast(pc.bit_wise_and(numbers, 0xFFFF), pa.uint16())
    raw = low.buffers()[1]
    data = b"" if raw is None else raw.to_pybytes()
    start = 0
    for key, end in zip(keys.values.to_pylist(), keys.run_ends.to_pylist(), strict=True):
        yield key, data[2 * start : 2 * end]
        start = end


def _group(containers: list[tuple[int, int, bytes]]) -> bytes:
    """One 32-bit bitmap: cookie, count, header, where each container begins, the containers."""
    bodies = [low if count <= _ARRAY_LIMIT else _bitmap(low) for _, count, low in containers]
    header = b"".join(struct.pack("<HH", key, count - 1) for key, count, _ in containers)
    position = 8 + 8 * len(containers)
    offsets = []
    for body in bodies:
        offsets.append(position)
        position += len(body)
    return b"".join(
        [
            struct.pack("<II", _COOKIE, len(containers)),
            header,
            struct.pack(f"<{len(offsets)}I", *offsets),
            *bodies,
        ]
    )


def _bitmap(low: bytes) -> bytes:
    bits = bytearray(_ROWS // 8)
    for row in struct.unpack(f"<{len(low) // 2}H", low):
        bits[row >> 3] |= 1 << (row & 7)
    return bytes(bits)


def write_vectors(
    sinks: Sinks, vectors: Mapping[str, pa.Array]
) -> tuple[dict[str, DeletionVectorDescriptor], str]:
    """Write the deleted rows of files, by path; their descriptors, and the key of the new file."""
    name = uuid.uuid4()
    key = f"deletion_vector_{name}.bin"
    sink = sinks.create(key)
    found: dict[str, DeletionVectorDescriptor] = {}
    try:
        sink.write(_FILE_VERSION)
        for path, numbers in vectors.items():
            data = encode_rows(numbers)
            found[path] = DeletionVectorDescriptor(
                storage_type="u",
                path_or_inline_dv=z85.encode(name.bytes),
                offset=sink.tell(),
                size_in_bytes=len(data),
                cardinality=len(numbers),
            )
            sink.write(struct.pack(">i", len(data)))
            sink.write(data)
            sink.write(struct.pack(">I", zlib.crc32(data)))
        sink.close()
    except BaseException:
        sink.abandon()
        sinks.delete([key])
        raise
    return found, key
