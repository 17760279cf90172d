"""Files of a write: how many rows each of them has, and by which codec."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalakedb.actions import Metadata
from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.actions.datatypes import schema_to_json
from deltalakedb.staging.stage import CODECS, StagePlan, stage

SCHEMA = pa.schema({"id": pa.int64(), "part": pa.int64()})


def plan(folder: Path, most: int | None, codec: str | None = None) -> StagePlan:
    metadata = Metadata(
        id="x",
        format_provider="parquet",
        schema_string=schema_to_json(schema_from_any(SCHEMA)),
        partition_columns=("part",),
    )
    return StagePlan("t", f"file://{folder}", metadata, max_records=most, codec=codec)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=6),
    most=st.integers(1, 12),
    parts=st.integers(1, 3),
)
def test_no_file_has_more_rows_than_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, parts: int
) -> None:
    batches = [
        pa.record_batch({"id": [*range(n)], "part": [i % parts for i in range(n)]}, schema=SCHEMA)
        for n in sizes
    ]
    adds = stage(plan(tmp_path_factory.mktemp("t"), most), batches)
    by_part: dict[str | None, list[int]] = {}
    for add in adds:
        rows = json.loads(add.stats or "")["numRecords"]
        by_part.setdefault(add.partition_values["part"], []).append(rows)
    for part, counts in by_part.items():
        there = sum(len([i for i in range(n) if str(i % parts) == part]) for n in sizes)
        # As few as can be: all are full but the last one.
        full, rest = divmod(there, most)
        assert sorted(counts) == sorted([most] * full + [rest] * bool(rest))
    assert sum(map(sum, by_part.values())) == sum(sizes)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_can_be_written(tmp_path: Path, codec: str) -> None:
    import pyarrow.parquet as pq

    batch = pa.record_batch({"id": [1, 2], "part": [0, 0]}, schema=SCHEMA)
    (add,) = stage(plan(tmp_path, None, codec), [batch])
    found = pq.read_metadata(tmp_path / add.path).row_group(0).column(0).compression
    expected = {"none": "UNCOMPRESSED", "lz4_raw": "LZ4"}.get(codec, codec.upper())
    assert found == expected
