"""Many small files are read in groups, and nobody notices but by the time it takes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltalakedb.actions.datatypes import INTEGER, LONG
from deltalakedb.errors import DataFileMissingError
from reading.table_files import Making, column


@pytest.fixture
def small(tmp_path: Path) -> Making:
    """Two hundred files of ten rows, with a larger one in their middle; `a` counts the rows."""
    made = Making(tmp_path)
    start = 0
    for i in range(201):
        rows = 20_000 if i == 100 else 10
        table = pa.table({"a": range(start, start + rows)})
        made.write(table)["partitionValues"] = {"p": str(i % 3)}
        start += rows
    return made


FIELDS = (column("p", INTEGER), column("a", LONG))


@pytest.mark.parametrize("batch_size", [3, 1000, 131_072])
def test_rows_keep_their_order_and_their_partition(small: Making, batch_size: int) -> None:
    dataset = small.open(*FIELDS, partitions=("p",))
    batches = list(dataset.to_batches(batch_size=batch_size))
    assert max(batch.num_rows for batch in batches) <= batch_size
    table = pa.Table.from_batches(batches)
    assert table["a"].to_pylist() == list(range(22_000))
    assert table["p"].slice(0, 40).to_pylist() == [i // 10 % 3 for i in range(40)]
    some = dataset.to_table(filter=(pc.field("p") == 1) & (pc.field("a") < 100))
    assert some["a"].to_pylist() == [*range(10, 20), *range(40, 50), *range(70, 80)]
    assert dataset.to_table(columns={"b": pc.field("a") * 2})["b"].to_pylist()[-1] == 43_998
    assert dataset.count_rows() == dataset.to_table(columns=[]).num_rows == 22_000
    assert dataset.count_rows(filter=pc.field("a") >= 21_500) == 500


def test_small_files_become_few_batches(small: Making) -> None:
    assert len(list(small.open(*FIELDS, partitions=("p",)).to_batches())) < 30


def test_whoever_wants_few_rows_does_not_read_many_files(small: Making) -> None:
    for i in range(40, 201):
        (small.folder / f"part-{i}.parquet").unlink()
    dataset = small.open(*FIELDS, partitions=("p",))
    assert dataset.head(5)["a"].to_pylist() == list(range(5))
    assert dataset.head(5, filter=pc.field("a") > 2)["a"].to_pylist() == list(range(3, 8))
    with pytest.raises(DataFileMissingError, match="part-40"):
        dataset.to_table()
