"""Streams as Spark drives them, one call after the other; no job of Spark is needed for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles
from pyspark.sql.types import LongType, StructType

import deltalakedb
from deltalakedb.errors import ConfigurationError, MetadataChangedError, SourceChangedError
from deltalakedb.lake import Lake
from deltalakedb.spark.datasource import DeltaLakeDbSource
from deltalakedb.spark.source_options import SourceOptions
from deltalakedb.spark.source_writer import StreamWriter, Target
from deltalakedb.spark.stream import StreamReader
from deltalakedb.table import Table

from fix_store import Catalogs

IDS = pa.schema([("id", pa.int64())])
ALL = ReadAllAvailable()


@pytest.fixture
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture
def table(lake: Lake, tmp_path: Path) -> Table:
    return lake.create_table("t", location=str(tmp_path / "t"), schema=IDS)


def add(table: Table, *ids: int) -> None:
    table.append(pa.table({"id": ids}))


def reader(url: str, **options: Any) -> StreamReader:
    """What Spark makes when a query is started."""
    source = DeltaLakeDbSource({"path": "t", "catalog": url, **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def rows(made: StreamReader, start: Any, end: Any) -> list[int]:
    found = []
    for partition in made.partitions(start, end):
        for batch in made.read(partition):
            found += batch.column("id").to_pylist()
    return sorted(found)


# --- reading ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [1, 2]), ({"startingVersion": "latest"}, [2]), ({"startingVersion": "1"}, [1, 2])],
    ids=["all", "latest", "version"],
)
def test_a_query_that_died_in_its_first_batch_begins_where_it_began(
    url: str, table: Table, options: dict[str, str], expected: list[int]
) -> None:
    add(table, 1)
    first = reader(url, **options)
    start = first.initialOffset()
    add(table, 2)
    end = first.latestOffset(start, ALL)
    assert rows(first, start, end) == expected
    # The end is in the checkpoint, the beginning is asked for again.
    add(table, 3)
    second = reader(url, **options)
    again = second.initialOffset()
    assert rows(second, again, end) == expected
    assert rows(second, end, second.latestOffset(end, ALL)) == [3]


def test_a_part_of_the_first_snapshot_is_the_same_part_after_a_restart(
    url: str, lake: Lake, table: Table
) -> None:
    for n in range(5):
        add(table, n)
    limit: ReadLimit = ReadMaxFiles(2)
    offset = reader(url).initialOffset()
    found = []
    for _ in range(4):
        one = reader(url)
        end = one.latestOffset(offset, limit)
        found += rows(one, offset, end)
        offset = end
    assert sorted(found) == list(range(5))
    listed = [
        path
        for group in reader(url).partitions(reader(url).initialOffset(), offset)
        for path in group.value[1]["path"].to_pylist()
    ]
    assert listed == sorted(listed)


def test_new_columns_are_read_by_a_query_that_is_started_again(url: str, table: Table) -> None:
    add(table, 1)
    running = reader(url)
    offset = running.latestOffset(running.initialOffset(), ALL)
    for name in ("a", "b"):
        table.add_columns(pa.schema([(name, pa.string())]))
        table.append(pa.table({"id": [2], name: ["x"]}))
    with pytest.raises(SourceChangedError, match="'a' of table 't' is new"):
        running.latestOffset(offset, ALL)
    again = reader(url)
    assert rows(again, offset, again.latestOffset(offset, ALL)) == [2, 2]


# --- writing ------------------------------------------------------------------------------


def writer(url: str, **options: str) -> StreamWriter:
    """What Spark makes for each batch, and once more for its commit."""
    given = SourceOptions.read({"path": "t", "catalog": url, "txnAppId": "query", **options})
    return StreamWriter(Target.planned(given, StructType().add("id", LongType()), overwrite=False))


def staged(made: StreamWriter, *ids: int) -> WriterCommitMessage:
    return made.write(iter(pa.table({"id": ids}).to_batches()))


def files(table: Table) -> int:
    folder = Path(table.location.removeprefix("file://"))
    return len(list(folder.rglob("*.parquet")))


def test_an_abort_after_the_commit_takes_nothing_away(url: str, table: Table) -> None:
    made = writer(url)
    messages = [staged(made, 1), staged(made, 2)]
    writer(url).commit([*messages], 0)
    # So does Spark when it does not hear of the commit.
    writer(url).abort([*messages], 0)
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [1, 2]


def test_an_abort_because_of_a_task_leaves_no_files(url: str, table: Table) -> None:
    made = writer(url)
    message = staged(made, 1)
    assert files(table) == 1
    writer(url).abort([message, None], 0)
    assert files(table) == 0


def test_a_table_that_changed_since_the_rows_were_staged_refuses_them(
    url: str, table: Table
) -> None:
    message = staged(writer(url), 1)
    table.overwrite(pa.table({"other": ["x"]}), overwrite_schema=True)
    with pytest.raises(MetadataChangedError):
        # Spark plans anew for the commit, and there is nothing wrong with that plan.
        StreamWriter(
            Target.planned(
                SourceOptions.read({"path": "t", "catalog": url, "txnAppId": "query"}),
                StructType().add("other", "string"),
                overwrite=False,
            )
        ).commit([message], 0)


def test_a_query_is_known_by_its_checkpoint_and_not_by_where_that_is(
    url: str, table: Table, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()

    def write(number: int) -> None:
        options = {"path": "t", "catalog": url, "checkpointLocation": str(checkpoint)}
        target = Target.planned(
            SourceOptions.read(options), StructType().add("id", LongType()), overwrite=False
        )
        made = StreamWriter(target)
        made.commit([staged(made, number)], 0)

    with pytest.raises(ConfigurationError, match="txnAppId"):
        write(0)
    for number, query in enumerate(("one", "one", "another")):
        (checkpoint / "metadata").write_text(json.dumps({"id": query}))
        write(number)
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [0, 2]
