"""A filter that is pushed down to the catalog keeps the rows that pyarrow keeps without it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, timedelta
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.reading.dataset import SnapshotRows

from support.lake import Json
from support.store import Catalogs

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("n", pa.int32()),
        ("word", pa.string()),
        ("day", pa.date32()),
        ("x", pa.float64()),
        ("part", pa.int64()),
    ]
)
FIRST = date(2026, 11, 1)
NUMBERS = [-3, 0, 1, 2, 7, None]
VALUES: dict[str, list[Any]] = {
    "n": NUMBERS,
    "word": ["", "a", "ab", "b", "ä", "🦆", None],
    "day": [None if n is None else FIRST + timedelta(days=n) for n in NUMBERS],
    "x": [-1.0, -0.0, 0.0, 1.5, float("nan"), float("inf"), None],
    "part": NUMBERS,
}


PLAIN = sorted(set(VALUES) - {"x"})


def write(folder: Path, number: int, rng: random.Random) -> tuple[Json, pa.Table]:
    """A file whose columns have few values each; its add action and its rows."""
    size, part = rng.randint(1, 6), rng.choice(VALUES["part"])
    columns: dict[str, list[Any]] = {"row": [10 * number + i for i in range(size)]}
    for name in ("n", "word", "day", "x"):
        few = rng.sample(VALUES[name], rng.randint(1, 2))
        columns[name] = [rng.choice(few) for _ in range(size)]
    columns["part"] = [part] * size
    table = pa.table(columns, SCHEMA)
    path = f"{number}.parquet"
    pq.write_table(table.drop_columns(["part"]), folder / path)
    stats: Json = {"numRecords": size, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in ("row", "n", "word", "day", "x"):
        known = [value for value in columns[name] if value is not None and value == value]  # noqa: PLR0124
        stats["nullCount"][name] = columns[name].count(None)
        if known and all(value != float("inf") for value in known):
            for end, pick in (("minValues", min), ("maxValues", max)):
                value = pick(known)
                stats[end][name] = value.isoformat() if isinstance(value, date) else value
    add = {
        "path": path,
        "partitionValues": {"part": None if part is None else str(part)},
        "size": 1000,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return {"add": add}, table


@pytest.fixture(scope="module")
def made(
    catalogs: Catalogs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lake, Path, list[Json], pads.Dataset]]:
    """A lake, and files for tables in a folder: their add actions and rows."""
    folder = tmp_path_factory.mktemp("filters")
    rng = random.Random(7)
    written = [write(folder, number, rng) for number in range(24)]
    rows = pads.dataset(pa.concat_tables([rows for _, rows in written]))
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake, folder, [add for add, _ in written], rows


@pytest.fixture(scope="module")
def both(
    made: tuple[Lake, Path, list[Json], pads.Dataset],
) -> tuple[SnapshotRows, pads.Dataset]:
    """The rows of a snapshot, and the same rows in memory."""
    lake, folder, adds, rows = made
    table = lake.create_table("t", location=str(folder), schema=SCHEMA, partition_by=["part"])
    table.commit(adds)
    found = table.snapshot().to_arrow_dataset()
    assert isinstance(found, SnapshotRows)
    return found, rows


@pytest.fixture(scope="module")
def plain(
    made: tuple[Lake, Path, list[Json], pads.Dataset],
) -> tuple[pads.Dataset, pads.Dataset]:
    """A dataset of pyarrow's over the same files, without floats, and the same rows in memory."""
    lake, folder, adds, rows = made
    schema = pa.schema([field for field in SCHEMA if field.name != "x"])
    # The same folder by another name, for another table.
    folder.with_name("plain").symlink_to(folder)
    place = str(folder.with_name("plain"))
    table = lake.create_table("plain", location=place, schema=schema, partition_by=["part"])
    table.commit(adds)
    found = table.snapshot().to_arrow_dataset()
    assert isinstance(found, pads.FileSystemDataset)
    return found, rows


@st.composite
def leaves(draw: st.DrawFn, names: list[str]) -> Any:
    name = draw(st.sampled_from(names))
    field, values = pc.field(name), [value for value in VALUES[name] if value is not None]
    kind = draw(st.sampled_from(["compare", "null", "in", "prefix", "call"]))
    if kind == "null":
        return field.is_null()
    if kind == "in":
        few = draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3))
        return pc.is_in(field, value_set=pa.array(few, SCHEMA.field(name).type))
    if kind == "prefix" and name == "word":
        return pc.starts_with(field, draw(st.sampled_from(values)))
    if kind == "call" and name == "n":
        return pc.abs(field) == 3
    compare = draw(st.sampled_from([eq, ne, lt, le, gt, ge]))
    return compare(field, pa.scalar(draw(st.sampled_from(values)), SCHEMA.field(name).type))


def joined(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(children, min_size=2, max_size=3)
    return (
        several.map(lambda parts: reduce(and_, parts))
        | several.map(lambda parts: reduce(or_, parts))
        | children.map(lambda part: ~part)
    )


@given(condition=st.recursive(leaves(PLAIN), joined, max_leaves=5))
def test_a_dataset_of_a_plain_table_keeps_the_same_rows(
    condition: Any, plain: tuple[pads.Dataset, pads.Dataset]
) -> None:
    ours, theirs = (
        sorted(dataset.to_table(columns=["row"], filter=condition)["row"].to_pylist())
        for dataset in plain
    )
    assert ours == theirs


@given(condition=st.recursive(leaves(sorted(VALUES)), joined, max_leaves=5))
def test_a_pushed_down_filter_keeps_what_pyarrow_keeps(
    condition: Any, both: tuple[SnapshotRows, pads.Dataset]
) -> None:
    ours, theirs = (
        sorted(dataset.to_table(columns=["row"], filter=condition)["row"].to_pylist())
        for dataset in both
    )
    assert ours == theirs
