"""Deletion vectors: reading and writing the deleted rows of data files.

Guarantees:

- A vector is checked before it is used: the version of its file, its size, CRC-32, magic number,
  the inner structure of the bitmap, and its cardinality. One that fails is refused with an error
  that names the data file and the vector; a damaged vector never changes the rows of a result.
- Hostile bytes cost no more memory than their own size: containers are checked in place, and
  opened one at a time.

The bitmap is the portable 64-bit Roaring format: groups of 2^32 rows, in each of them containers
of 2^16 rows. An opened container has the layout of an Arrow bitmap, so that masks need no copying.
The vectors of a commit lie in one new file, `deletion_vector_<uuid>.bin`, written before it.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from deltalakedb.actions import z85
from deltalakedb.actions.values import DeletionVectorDescriptor
from deltalakedb.errors import DataFileError, DeltaLakeDbError

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = 1681511377
_FILE_VERSION: Final = 1
_SIZE_LIMIT: Final = 2**31
_COOKIE: Final = 12346
_COOKIE_WITH_RUNS: Final = 12347
_NO_OFFSETS_BELOW: Final = 4
_ROWS: Final = 1 << 16
_BITMAP_BYTES: Final = _ROWS // 8
_ARRAY_LIMIT: Final = 4096

ReadRange: TypeAlias = Callable[[str, int, int], bytes]
"""Reads bytes of the file that a descriptor names: path, start, length."""


@dataclass(frozen=True, slots=True)
class _Container:
    """One checked container: its kind, and its bytes as they are stored."""

    kind: str
    data: memoryview
    cardinality: int
    last: int

    def bitmap(self) -> bytes:
        """One bit for each of the 65,536 rows, the lowest bit of a byte first."""
        if self.kind == "bitmap":
            return bytes(self.data)
        if self.kind == "array":
            return _bitmap_of(self.data)
        number = 0
        runs = _shorts(self.data)
        for first, more in zip(runs[::2], runs[1::2], strict=True):
            number |= ((1 << (more + 1)) - 1) << first
        return number.to_bytes(_BITMAP_BYTES, "little")


def _bitmap_of(array: memoryview) -> bytes:
    """The bitmap of an array container."""
    bits = bytearray(_BITMAP_BYTES)
    for row in _shorts(array):
        bits[row >> 3] |= 1 << (row & 7)
    return bytes(bits)


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The numbers of the deleted rows of one file, counted from 0 in the order of the file."""

    cardinality: int
    _containers: dict[int, _Container] = field(repr=False)

    @property
    def last(self) -> int:
        """The highest deleted row; -1 when there is none."""
        if not self._containers:
            return -1
        key = max(self._containers)
        return (key << 16) + self._containers[key].last

    def numbers(self) -> pa.Array:
        """Return the row numbers in ascending order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = []
        for key in sorted(self._containers):
            bits = pa.py_buffer(self._containers[key].bitmap())
            marked = pa.Array.from_buffers(pa.bool_(), _ROWS, [None, bits])
            parts.append(pc.add(pc.indices_nonzero(marked).cast(pa.int64()), key << 16))
        return pa.concat_arrays(parts) if parts else pa.array([], pa.int64())

    def live_mask(self, start: int, count: int) -> pa.BooleanArray | None:
        """Return a mask of the `count` rows from `start` on that are live; None if all are."""
        import pyarrow as pa

        keys = range(start >> 16, ((start + count - 1) >> 16) + 1) if count else range(0)
        if not any(key in self._containers for key in keys):
            return None
        parts = []
        for key in keys:
            begin = max(start - (key << 16), 0)
            end = min(start + count - (key << 16), _ROWS)
            container = self._containers.get(key)
            bits = bytes(_BITMAP_BYTES) if container is None else container.bitmap()
            buffers = [None, pa.py_buffer(bits)]
            parts.append(pa.Array.from_buffers(pa.bool_(), end - begin, buffers, offset=begin))
        import pyarrow.compute as pc

        return pc.invert(pa.concat_arrays(parts))


class _Damaged(ValueError):  # noqa: N818 -- reworded before it leaves this module
    """The stored bytes are invalid."""


def load_deletion_vector(
    descriptor: DeletionVectorDescriptor, *, data_file: str, read_range: ReadRange
) -> DeletedRows:
    """Read and check the vector of `data_file`; raises `DataFileError` if it is damaged."""
    try:
        rows = parse_bitmap(_stored_bytes(descriptor, read_range))
        if rows.cardinality != descriptor.cardinality:
            raise _Damaged(
                f"it hides {rows.cardinality} rows, and the log says {descriptor.cardinality}"
            )
    except _Damaged as error:
        raise _refused(descriptor, data_file, str(error)) from None
    except DeltaLakeDbError as error:
        raise _refused(descriptor, data_file, str(error)) from error
    return rows


def _refused(descriptor: DeletionVectorDescriptor, data_file: str, why: str) -> DataFileError:
    return DataFileError(
        f"Cannot use the deletion vector {descriptor.unique_id[:100]!r} of {data_file}",
        why=why,
        fix="Without it deleted rows would come back. Restore its file from a backup, or restore "
        "the table to a version that does not need it",
    )


def _stored_bytes(descriptor: DeletionVectorDescriptor, read_range: ReadRange) -> bytes:
    size = descriptor.size_in_bytes
    if not 0 <= size < _SIZE_LIMIT:
        raise _Damaged(f"its size is {size} bytes in the log")
    path = descriptor.file_path()
    if path is None:
        data = z85.decode(descriptor.path_or_inline_dv)
        # The text may be padded to a multiple of four bytes.
        if not 0 <= len(data) - size < 4:
            raise _Damaged(f"it has {len(data)} bytes, and the log says {size}")
        return data[:size]
    # Byte 0 is the version of the format, so the first vector of a file begins at 1.
    offset = 1 if descriptor.offset is None else descriptor.offset
    if offset < 1:
        raise _Damaged(f"its offset is {offset} in the log")
    version = read_range(path, 0, 1)
    if version != bytes([_FILE_VERSION]):
        raise _Damaged(f"the version of its file is {version.hex() or 'missing'}, not 01")
    stored = read_range(path, offset, size + 8)
    if len(stored) != size + 8:
        raise _Damaged(f"its file ends after {len(stored)} of {size + 8} bytes")
    (stored_size,) = struct.unpack_from(">i", stored)
    if stored_size != size:
        raise _Damaged(f"its file gives its size as {stored_size} bytes, the log as {size}")
    data = stored[4:-4]
    (checksum,) = struct.unpack_from(">I", stored, size + 4)
    if zlib.crc32(data) != checksum:
        raise _Damaged("its checksum does not match its bytes")
    return data


def parse_bitmap(data: bytes) -> DeletedRows:
    """Parse and check the magic number and the 64-bit bitmap after it; raises ValueError."""
    reader = _Reader(memoryview(data))
    magic = reader.number("<I")
    if magic != MAGIC:
        raise _Damaged(f"its magic number is {magic}, not {MAGIC}")
    containers: dict[int, _Container] = {}
    before = -1
    for _ in range(reader.number("<Q")):
        key = reader.number("<I")
        if key <= before:
            raise _Damaged("the groups of its bitmap are out of order")
        before = key
        for low, container in _parse_group(reader):
            containers[(key << 16) + low] = container
    if reader.left:
        raise _Damaged(f"{reader.left} bytes follow its bitmap")
    return DeletedRows(sum(c.cardinality for c in containers.values()), containers)


class _Reader:
    """Takes bytes from the front, and refuses to go past the end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise _Damaged("its bitmap ends too early")
        self._position += count
        return self._data[self._position - count : self._position]

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value


def _parse_group(reader: _Reader) -> list[tuple[int, _Container]]:
    """One 32-bit bitmap: its header says the key, size and kind of each container."""
    cookie = reader.number("<I")
    runs = b""
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = bytes(reader.take((count + 7) // 8))
    elif cookie == _COOKIE:
        count = reader.number("<I")
    else:
        raise _Damaged(f"its bitmap begins with {cookie}, which no known format does")
    if count > _ROWS:
        raise _Damaged(f"a group of its bitmap has {count} containers")
    header = _shorts(reader.take(4 * count))
    keys, sizes = header[::2], [less_one + 1 for less_one in header[1::2]]
    if any(low >= high for low, high in pairwise(keys)):
        raise _Damaged("the containers of its bitmap are out of order")
    if not runs or count >= _NO_OFFSETS_BELOW:
        # Where each container begins: they follow one another, so there is no need to know.
        reader.take(4 * count)
    return [
        (key, _parse_container(reader, size, is_run=_bit(runs, i)))
        for i, (key, size) in enumerate(zip(keys, sizes, strict=True))
    ]


def _bit(bits: bytes, i: int) -> bool:
    return bool(bits) and bool(bits[i >> 3] >> (i & 7) & 1)


def _parse_container(reader: _Reader, size: int, *, is_run: bool) -> _Container:
    if is_run:
        return _parse_runs(reader.take(4 * reader.number("<H")))
    if size > _ARRAY_LIMIT:
        data = reader.take(_BITMAP_BYTES)
        number = int.from_bytes(data, "little")
        if number.bit_count() != size:
            raise _Damaged("a container of its bitmap holds another number of rows than it says")
        return _Container("bitmap", data, size, number.bit_length() - 1)
    data = reader.take(2 * size)
    rows = _shorts(data)
    if any(low >= high for low, high in pairwise(rows)):
        raise _Damaged("the rows of its bitmap are out of order")
    return _Container("array", data, size, rows[-1])


def _parse_runs(data: memoryview) -> _Container:
    runs = _shorts(data)
    last, total = -1, 0
    for first, more in zip(runs[::2], runs[1::2], strict=True):
        if first <= last or first + more >= _ROWS:
            raise _Damaged("the runs of its bitmap overlap or are out of order")
        last, total = first + more, total + more + 1
    if not total:
        raise _Damaged("a container of its bitmap is empty")
    return _Container("runs", data, total, last)


def _shorts(data: memoryview) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(data) // 2}H", data)


# --- writing --------------------------------------------------------------------------


def encode_rows(numbers: pa.Array) -> bytes:
    """Encode ascending, distinct row numbers as a 64-bit Roaring bitmap with its magic number."""
    groups: dict[int, list[tuple[int, int, bytes]]] = {}
    for key, low in _containers(numbers):
        groups.setdefault(key >> 16, []).append((key & 0xFFFF, len(low) // 2, low))
    parts = [struct.pack("<IQ", MAGIC, len(groups))]
    for high, containers in sorted(groups.items()):
        parts.append(struct.pack("<I", high))
        parts.append(_group(containers))
    return b"".join(parts)


def _containers(numbers: pa.Array) -> Iterable[tuple[int, bytes]]:
    """Yield the key of each container and the low 16 bits of its row numbers."""
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
    """Return one 32-bit bitmap: cookie, count, header, offsets, containers."""
    bodies = [
        low if count <= _ARRAY_LIMIT else _bitmap_of(memoryview(low))
        for _, count, low in containers
    ]
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


class VectorSinks(Protocol):
    """Creates and deletes files of a table (`deltalakedb.staging.stage`)."""

    def create(self, key: str) -> Any:
        """Open a new file for writing."""

    def settle(self) -> None:
        """Let the finished files survive a power cut."""

    def delete(self, keys: list[str]) -> None:
        """Delete files."""


def write_vectors(
    sinks: VectorSinks, vectors: Mapping[str, pa.Array]
) -> tuple[dict[str, DeletionVectorDescriptor], str]:
    """Write the deleted rows of files by path; return their descriptors and the key of the file."""
    name = uuid.uuid4()
    key = f"deletion_vector_{name}.bin"
    sink = sinks.create(key)
    descriptors: dict[str, DeletionVectorDescriptor] = {}
    try:
        sink.write(bytes([_FILE_VERSION]))
        for path, numbers in vectors.items():
            data = encode_rows(numbers)
            descriptors[path] = DeletionVectorDescriptor(
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
        sinks.settle()
    except BaseException:
        sink.abandon()
        sinks.delete([key])
        raise
    return descriptors, key
