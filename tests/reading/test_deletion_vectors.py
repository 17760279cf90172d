"""Deletion vectors: every form reads as the same rows, and damage is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.actions import z85
from deltalakedb.actions.values import DeletionVectorDescriptor
from deltalakedb.errors import DataFileError
from deltalakedb.reading.deletion_vectors import (
    MAGIC,
    DeletedRows,
    load_deletion_vector,
    parse_bitmap,
)

from support.published import bitmap

UUID_TEXT = "67bc892e-2979-4760-a78c-856aba39d0c9"
DENSE = set(range(0, 65_536, 3))
EXAMPLES: dict[str, set[int]] = {
    "nothing": set(),
    "one row": {5},
    "the corners of a container": {0, 65_535},
    "many rows, which take a bitmap": DENSE,
    "several containers": {1, 70_000, 70_001, 400_000, *range(200_000, 200_100)},
    "beyond 32 bits": {7, 2**32 + 9, 2**33},
}


def run_bitmap(containers: dict[int, list[tuple[int, int]]]) -> bytes:
    """The portable form where every container has runs: (first, last)."""
    count = len(containers)
    out = struct.pack("<IQI", MAGIC, 1, 0) + struct.pack("<I", 12347 | (count - 1) << 16)
    out += b"\xff" * ((count + 7) // 8)
    for key, runs in containers.items():
        out += struct.pack("<HH", key, sum(last - first + 1 for first, last in runs) - 1)
    if count >= 4:
        out += bytes(4 * count)
    for runs in containers.values():
        out += struct.pack("<H", len(runs))
        for first, last in runs:
            out += struct.pack("<HH", first, last - first)
    return out


def deleted(rows: DeletedRows, start: int, count: int) -> set[int]:
    kept = rows.live_mask(start, count)
    if kept is None:
        return set()
    assert len(kept) == count
    return {start + i for i, keep in enumerate(kept.to_pylist()) if not keep}


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_come_back(name: str) -> None:
    wanted = EXAMPLES[name]
    rows = parse_bitmap(bitmap(wanted))
    assert rows.cardinality == len(wanted)
    assert rows.last == max(wanted, default=-1)
    low = {row for row in wanted if row < 500_000}
    assert deleted(rows, 0, 500_000) == low
    for row in wanted - low:
        assert deleted(rows, row - 1, 3) == {row}


@pytest.mark.parametrize(("start", "count"), [(0, 0), (65_535, 2), (65_536, 10), (3, 200_000)])
def test_a_window_may_lie_anywhere(start: int, count: int) -> None:
    wanted = EXAMPLES["several containers"] | {65_535, 65_536}
    window = {row for row in wanted if start <= row < start + count}
    assert deleted(parse_bitmap(bitmap(wanted)), start, count) == window


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_runs_come_back(count: int) -> None:
    runs = [(0, 9), (100, 100), (65_000, 65_535)]
    rows = parse_bitmap(run_bitmap(dict.fromkeys(range(count), runs)))
    one = {row for first, last in runs for row in range(first, last + 1)}
    wanted = {(key << 16) + row for key in range(count) for row in one}
    assert rows.cardinality == len(wanted)
    assert rows.last == max(wanted)
    assert deleted(rows, 0, count << 16) == wanted


@given(st.sets(st.integers(0, 200_000), max_size=50))
def test_any_rows_come_back(wanted: set[int]) -> None:
    assert deleted(parse_bitmap(bitmap(wanted)), 0, 200_001) == wanted


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_counted(data: bytes) -> None:
    try:
        rows = parse_bitmap(struct.pack("<I", MAGIC) + data)
    except ValueError:
        return
    assert rows.cardinality >= 0


@given(st.data())
def test_a_changed_byte_never_ends_in_anything_but_a_refusal(data: st.DataObject) -> None:
    valid = data.draw(
        st.sampled_from([bitmap(EXAMPLES["several containers"]), run_bitmap({0: [(1, 5)]})])
    )
    position = data.draw(st.integers(0, len(valid) - 1))
    changed = bytearray(valid)
    changed[position] = data.draw(st.integers(0, 255))
    try:
        rows = parse_bitmap(bytes(changed))
    except ValueError:
        return
    assert len(deleted(rows, 0, 500_000)) <= rows.cardinality


# --- where vectors lie --------------------------------------------------------------------


def stored(data: bytes, *, before: bytes = b"") -> bytes:
    return (
        b"\x01" + before + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    )


def descriptor(
    data: bytes, cardinality: int, *, kind: str = "u", where: str = "", offset: int | None = 1
) -> DeletionVectorDescriptor:
    name = where or z85.encode(UUID(UUID_TEXT).bytes)
    return DeletionVectorDescriptor(kind, name, len(data), cardinality, offset)


def reading(files: dict[str, bytes]) -> Callable[[str, int, int], bytes]:
    return lambda path, start, length: files[path][start : start + length]


def load(vector: DeletionVectorDescriptor, files: dict[str, bytes]) -> DeletedRows:
    return load_deletion_vector(vector, data_file="part-0.parquet", read_range=reading(files))


def test_a_vector_in_a_file_below_the_table() -> None:
    data = bitmap({1, 2})
    files = {f"deletion_vector_{UUID_TEXT}.bin": stored(data)}
    assert deleted(load(descriptor(data, 2), files), 0, 5) == {1, 2}
    assert deleted(load(descriptor(data, 2, offset=None), files), 0, 5) == {1, 2}


def test_a_vector_below_a_random_prefix_and_behind_another() -> None:
    data = bitmap({3})
    where = "ab" + z85.encode(UUID(UUID_TEXT).bytes)
    files = {f"ab/deletion_vector_{UUID_TEXT}.bin": stored(data, before=b"twelve bytes")}
    assert deleted(load(descriptor(data, 1, where=where, offset=13), files), 0, 5) == {3}


def test_a_vector_at_an_absolute_path() -> None:
    data = bitmap({0})
    vector = descriptor(data, 1, kind="p", where="s3://bucket/dv.bin")
    assert deleted(load(vector, {"s3://bucket/dv.bin": stored(data)}), 0, 5) == {0}


@pytest.mark.parametrize("rows", [{4}, {4, 70_000}])
def test_an_inline_vector_may_be_padded(rows: set[int]) -> None:
    data = bitmap(rows)
    text = z85.encode(data + bytes(-len(data) % 4))
    vector = descriptor(data, len(rows), kind="i", where=text, offset=None)
    assert deleted(load(vector, {}), 0, 100_000) == rows


DATA = bitmap({1, 2, 70_000})
DAMAGE: dict[str, tuple[DeletionVectorDescriptor, bytes, str]] = {
    "version": (descriptor(DATA, 3), b"\x02" + stored(DATA)[1:], "version of its file is 02"),
    "empty file": (descriptor(DATA, 3), b"", "version of its file is missing"),
    "cut": (descriptor(DATA, 3), stored(DATA)[:-3], "file ends after"),
    "size": (descriptor(DATA[:-2], 3), stored(DATA), "gives its size as"),
    "checksum": (descriptor(DATA, 3), stored(DATA)[:-1] + b"\x00", "checksum"),
    "cardinality": (descriptor(DATA, 4), stored(DATA), "hides 3 rows, and the log says 4"),
    "magic": (descriptor(DATA, 3), stored(b"\x00" + DATA[1:]), "magic number"),
    "trailing": (descriptor(DATA + b"xx", 3), stored(DATA + b"xx"), "2 bytes follow"),
    "short": (descriptor(DATA[:-2], 3), stored(DATA[:-2]), "ends too early"),
    "negative size": (
        DeletionVectorDescriptor("u", z85.encode(UUID(UUID_TEXT).bytes), -1, 3, 1),
        stored(DATA),
        "size is -1 bytes",
    ),
    "offset": (descriptor(DATA, 3, offset=0), stored(DATA), "offset is 0 in the log"),
    "order": (
        descriptor(DATA, 3),
        stored(DATA.replace(struct.pack("<HH", 1, 2), struct.pack("<HH", 2, 1))),
        "out of order",
    ),
    "many containers": (
        descriptor(struct.pack("<IQIII", MAGIC, 1, 0, 12346, 2**31), 3),
        stored(struct.pack("<IQIII", MAGIC, 1, 0, 12346, 2**31)),
        "2147483648 containers",
    ),
    "unknown cookie": (
        descriptor(struct.pack("<IQII", MAGIC, 1, 0, 99), 3),
        stored(struct.pack("<IQII", MAGIC, 1, 0, 99)),
        "begins with 99",
    ),
    "unknown storage": (descriptor(DATA, 3, kind="x"), b"", "storage type"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_vector_is_refused_by_name(name: str) -> None:
    vector, content, why = DAMAGE[name]
    with pytest.raises(DataFileError, match=why) as caught:
        load(vector, {f"deletion_vector_{UUID_TEXT}.bin": content})
    assert "part-0.parquet" in caught.value.what
    assert caught.value.fix


def test_an_inline_vector_of_another_length_is_refused() -> None:
    vector = descriptor(b"x" * 3, 1, kind="i", where=z85.encode(bitmap({4}) + b"xx"), offset=None)
    with pytest.raises(DataFileError, match="and the log says 3"):
        load(vector, {})
