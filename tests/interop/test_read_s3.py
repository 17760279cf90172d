"""Tables in an S3 bucket are read as those on a disk are."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import deltalakedb
from deltalakedb.errors import DataFileError, DataFileMissingError
from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import Json
from support.s3 import SECRET, S3Server

WORDS = ("plain", "a b/c", "100%", "größe")
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture
def lake(s3_server: S3Server, tmp_path: Path) -> Iterator[Lake]:
    url = f"sqlite:///{tmp_path}/lake.db"
    with deltalakedb.connect(url, storage_options=s3_server.storage_options) as lake:
        yield lake


def put_file(lake: Lake, location: str, key: str, ids: range, word: str) -> Json:
    """Write a data file to the bucket; the action that adds it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ids}), sink, row_group_size=25)
    data = sink.getvalue().to_pybytes()
    lake.open_storage(location).put(key, data)
    bounds = {"minValues": {"id": min(ids)}, "maxValues": {"id": max(ids)}}
    return {
        "add": {
            "path": quote(key),
            "partitionValues": {"word": word},
            "size": len(data),
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(ids), **bounds}),
        }
    }


@pytest.fixture
def table(lake: Lake, s3_bucket: str) -> Table:
    """A hundred ids for each word."""
    location = f"s3://{s3_bucket}/lake/a table"
    table = lake.create_table("words", location=location, schema=SCHEMA, partition_by=["word"])
    table.commit(
        [
            put_file(
                lake,
                location,
                f"word={quote(word, safe='')}/part {i}.parquet",
                range(100 * i, 100 * i + 100),
                word,
            )
            for i, word in enumerate(WORDS)
        ]
    )
    return table


def test_rows_and_conditions(table: Table) -> None:
    snapshot = table.snapshot()
    rows = sorted(snapshot.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": i, "word": WORDS[i // 100]} for i in range(400)]
    assert snapshot.to_arrow("word = 'a b/c' AND id < 110")["id"].to_pylist() == [*range(100, 110)]
    assert snapshot.to_polars("id IN (5, 205)", columns=["word"])["word"].to_list() == [
        "plain",
        "100%",
    ]
    with duckdb.connect() as connection:
        counted = (
            snapshot.to_duckdb(connection=connection).filter("id >= 350").aggregate("count(*)")
        )
        assert counted.fetchone() == (50,)


def test_another_process_can_read_a_dataset(table: Table) -> None:
    dataset = table.snapshot().to_arrow_dataset("id < 150")
    copy = pickle.loads(pickle.dumps(dataset.filter(pc.field("id") > 90)))  # noqa: S301 -- our own
    assert sorted(copy.to_table()["id"].to_pylist()) == list(range(91, 150))


def test_a_table_of_another_engine(lake: Lake, s3_bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    rows = pa.table({"id": range(10), "word": ["x y", None] * 5})
    write_deltalake(str(folder), rows, partition_by=["word"])
    storage = lake.open_storage(f"s3://{s3_bucket}/theirs")
    for file in folder.rglob("*"):
        if file.is_file():
            storage.put(file.relative_to(folder).as_posix(), file.read_bytes())
    snapshot = lake.import_table(f"s3a://{s3_bucket}/theirs").snapshot()
    assert snapshot.to_arrow().sort_by("id").to_pylist() == rows.to_pylist()
    assert sorted(snapshot.to_arrow("word IS NULL")["id"].to_pylist()) == [1, 3, 5, 7, 9]


def test_a_missing_file_is_named(lake: Lake, table: Table) -> None:
    lake.open_storage(table.location).delete("word=plain/part 0.parquet")
    with pytest.raises(DataFileMissingError, match="word%3Dplain/part%200"):
        table.snapshot().to_arrow("id = 7")
    assert table.snapshot().to_arrow("id = 207").num_rows == 1


def test_secrets_stay_secret(lake: Lake, table: Table, s3_server: S3Server, tmp_path: Path) -> None:
    snapshot = table.snapshot()
    shown: list[Any] = [lake, lake.store, table, snapshot, snapshot.to_arrow_dataset()]
    shown += [snapshot.to_arrow_dataset().scanner(), lake.open_storage(table.location)]
    assert SECRET not in " ".join(map(repr, shown))
    options = {**s3_server.storage_options, "endpoint_url": "http://127.0.0.1:9", "timeout": "1s"}
    url = f"sqlite:///{tmp_path}/lake.db"
    with deltalakedb.connect(url, storage_options=options) as elsewhere:
        unreachable = elsewhere.table("words").snapshot()
        with pytest.raises(DataFileError, match="Cannot read") as caught:
            unreachable.to_arrow("id = 7")
    assert SECRET not in f"{caught.value!r} {caught.value}"
