"""Deletion vectors that are written here read back as they were, by us and by others."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalakedb.reading.deletion_vectors import (
    encode_rows,
    load_deletion_vector,
    parse_bitmap,
    write_vectors,
)
from deltalakedb.staging.stage import Sinks


@given(st.sets(st.one_of(st.integers(0, 200_000), st.integers(0, 2**40)), max_size=300))
def test_any_rows_come_back(rows: set[int]) -> None:
    numbers = pa.array(sorted(rows), pa.int64())
    found = parse_bitmap(encode_rows(numbers))
    assert found.cardinality == len(rows)
    assert found.numbers().to_pylist() == sorted(rows)


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 65_536, 65_537, 200_000])
def test_full_containers_come_back(count: int) -> None:
    numbers = pa.array(range(7, 7 + count), pa.int64())
    assert parse_bitmap(encode_rows(numbers)).numbers().equals(numbers)


def test_slices_are_taken_from_where_they_begin() -> None:
    numbers = pa.array(range(100_000), pa.int64()).slice(65_000, 1000)
    assert parse_bitmap(encode_rows(numbers)).numbers().equals(numbers)


def test_the_vectors_of_a_commit_share_a_file(tmp_path: Path) -> None:
    wanted = {"a.parquet": pa.array([0, 5], pa.int64()), "b.parquet": pa.array([2**33], pa.int64())}
    found, key = write_vectors(Sinks(tmp_path.as_uri()), wanted)

    def read_range(path: str, start: int, length: int) -> bytes:
        return (tmp_path / path).read_bytes()[start : start + length]

    for path, numbers in wanted.items():
        assert found[path].file_path() == key
        rows = load_deletion_vector(found[path], data_file=path, read_range=read_range)
        assert rows.numbers().equals(numbers)
    assert [file.name for file in tmp_path.iterdir()] == [key]
