"""Streams as Spark drives them, one call after the other; no job of Spark is needed for it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles
from pyspark.sql.types import LongType, StructType

import deltalakedb
from deltalakedb.actions.datatypes import schema_to_json
from deltalakedb.errors import ConfigurationError, MetadataChangedError, SourceChangedError
from deltalakedb.lake import Lake
from deltalakedb.spark.source.datasource import DeltaLakeDbSource
from deltalakedb.spark.source.options import SourceOptions
from deltalakedb.spark.source.stream import StreamReader
from deltalakedb.spark.source.writer import StreamWriter, Target
from deltalakedb.table import Table

from support.store import Catalogs

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


def test_columns_that_came_ahead_of_a_query_are_no_matter_until_it_gets_there(
    url: str, table: Table
) -> None:
    add(table, 1)
    add(table, 2)
    running = reader(url, startingVersion="1")
    first = running.latestOffset(running.initialOffset(), ReadMaxFiles(1))
    table.append(pa.table({"id": [3], "a": ["x"]}), merge_schema=True)
    (part,) = running.partitions(running.initialOffset(), first)
    (batch,) = running.read(part)
    assert batch.schema.names == ["id"]
    second = running.latestOffset(first, ReadMaxFiles(1))
    assert rows(running, first, second) == [2]
    with pytest.raises(SourceChangedError, match="'a' of table 't' is new"):
        running.latestOffset(second, ALL)


def test_a_column_that_is_gone_ends_a_query(url: str, table: Table) -> None:
    add(table, 1)
    table.append(pa.table({"id": [2], "a": ["x"]}), merge_schema=True)
    running = reader(url)
    offset = running.latestOffset(running.initialOffset(), ALL)
    table.overwrite(pa.table({"id": [3]}), overwrite_schema=True)
    going_on = reader(url, ignoreChanges="true")
    running._options = going_on._options
    with pytest.raises(SourceChangedError, match="'a' of table 't' is new, gone"):
        running.latestOffset(offset, ALL)
    assert rows(going_on, offset, going_on.latestOffset(offset, ALL)) == [3]


def test_columns_that_were_replaced_by_others_of_their_name_end_a_query(
    url: str, lake: Lake, tmp_path: Path
) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    table = lake.create_table("t", location=str(tmp_path / "t"), schema=IDS, properties=mapped)
    add(table, 1)
    running = reader(url, skipChangeCommits="true")
    offset = running.latestOffset(running.initialOffset(), ALL)
    add(table, 2)
    table.overwrite(pa.table({"id": [3]}), overwrite_schema=True)
    add(table, 4)
    # What came before can still be read, with the columns that the query has.
    before = running.latestOffset(offset, ALL)
    assert rows(running, offset, before) == [2]
    with pytest.raises(SourceChangedError, match="'id' of table 't' is new, gone or another"):
        running.latestOffset(before, ALL)
    # Started again it has the new ones, which the rows before them have not.
    again = reader(url, skipChangeCommits="true")
    assert rows(again, before, again.latestOffset(before, ALL)) == [4]
    with pytest.raises(SourceChangedError, match="replaced by another one of that name"):
        again.latestOffset(offset, ALL)


def test_a_column_with_a_new_name_is_the_same_column(url: str, lake: Lake, tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    table = lake.create_table("t", location=str(tmp_path / "t"), schema=IDS, properties=mapped)
    add(table, 1)
    running = reader(url)
    offset = running.latestOffset(running.initialOffset(), ALL)
    add(table, 2)
    table.set_properties({"delta.appendOnly": "false"})  # columns are told, with the old name
    schema = json.loads(schema_to_json(table.snapshot().schema))
    schema["fields"][0]["name"] = "number"
    metadata = replace(table.snapshot().metadata, schema_string=json.dumps(schema))
    table.commit([metadata], operation="RENAME COLUMN")
    table.append(pa.table({"number": [3]}))
    again = reader(url)
    found = [
        value
        for part in again.partitions(offset, again.latestOffset(offset, ALL))
        for batch in again.read(part)
        for value in batch.column("number").to_pylist()
    ]
    assert sorted(found) == [2, 3]


@pytest.mark.parametrize("feed", [False, True], ids=["rows", "changes"])
def test_partitions_may_change_on_the_way(url: str, lake: Lake, tmp_path: Path, feed: bool) -> None:
    table = lake.create_table(
        "t",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64()), ("day", pa.string())]),
        partition_by=["day"],
        properties={"delta.enableChangeDataFeed": "true"},
    )
    table.append(pa.table({"id": [1], "day": ["mon"]}))
    for n, day, partitions in ((2, "tue", []), (3, "wed", ["day"])):
        rows = pa.table({"id": [n], "day": [day]})
        table.overwrite(rows, overwrite_schema=True, partition_by=partitions)
    options = {"readChangeFeed": "true"} if feed else {"ignoreChanges": "true"}
    made = reader(url, startingVersion="1", **options)
    start = made.initialOffset()
    found = [
        (row["id"], row["day"], row.get("_change_type", "insert"))
        for part in made.partitions(start, made.latestOffset(start, ALL))
        for batch in made.read(part)
        for row in batch.to_pylist()
    ]
    added = [(1, "mon", "insert"), (2, "tue", "insert"), (3, "wed", "insert")]
    gone = [(1, "mon", "delete"), (2, "tue", "delete")] if feed else []
    assert sorted(found) == sorted(added + gone)


def test_versions_that_expired_are_not_passed_over(
    url: str, lake: Lake, table: Table, tmp_path: Path
) -> None:
    add(table, 1)
    running = reader(url)
    offset = running.latestOffset(running.initialOffset(), ALL)
    for n in (2, 3, 4):
        add(table, n)
    lake.mirror.drain()
    lake.expire("t", older_than="0 days", archive=str(tmp_path / "archive"))
    add(table, 5)
    with pytest.raises(SourceChangedError, match="Version 2 of table 't' has expired"):
        running.latestOffset(offset, ALL)
    careless = reader(url, failOnDataLoss="false")
    assert rows(careless, offset, careless.latestOffset(offset, ALL)) == [4, 5]
    feed = reader(url, failOnDataLoss="false", readChangeFeed="true")
    assert changes(feed, offset, feed.latestOffset(offset, ALL)) == [
        (4, "insert", 4),
        (5, "insert", 5),
    ]
    lake.restore_expired("t", str(tmp_path / "archive"))
    assert rows(running, offset, running.latestOffset(offset, ALL)) == [2, 3, 4, 5]


def test_another_table_of_the_same_name_is_another_one(
    url: str, lake: Lake, table: Table, tmp_path: Path
) -> None:
    add(table, 1)
    running = reader(url)
    start = running.initialOffset()
    offset = running.latestOffset(start, ALL)
    lake.mirror.drain()
    lake.drop_table("t")
    add(lake.create_table("t", location=str(tmp_path / "new"), schema=IDS), 2)
    with pytest.raises(SourceChangedError, match="is not the one that this query has read"):
        running.latestOffset(offset, ALL)
    with pytest.raises(SourceChangedError, match="is not the one that this query has read"):
        running.partitions(start, offset)
    # Checkpoints of earlier releases do not say which table it was.
    old = {key: value for key, value in offset.items() if key != "table"}
    assert rows(running, old, running.latestOffset(old, ALL)) == []


@pytest.mark.parametrize("option", ["maxFilesPerTrigger", "maxBytesPerTrigger"])
def test_limits_leave_room_for_something(url: str, table: Table, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{option}' is '0'"):
        reader(url, **{option: "0"}).getDefaultReadLimit()


def test_both_limits_hold_at_once(url: str, table: Table) -> None:
    for n in range(4):
        add(table, n)
    (size,) = set(table.snapshot().files()["size_bytes"].to_pylist())
    for options, expected in (
        ({"maxFilesPerTrigger": "3", "maxBytesPerTrigger": str(2 * size)}, 2),
        ({"maxFilesPerTrigger": "1", "maxBytesPerTrigger": str(2 * size)}, 1),
    ):
        made = reader(url, **options)
        start = made.initialOffset()
        end = made.latestOffset(start, made.getDefaultReadLimit())
        assert len(rows(made, start, end)) == expected


def test_a_stream_is_not_read_at_a_version(url: str, table: Table) -> None:
    with pytest.raises(ConfigurationError, match="startingVersion"):
        reader(url, versionAsOf="0")


# --- the changes of rows ------------------------------------------------------------------


def changes(made: StreamReader, start: Any, end: Any) -> list[tuple[int, str, int]]:
    found = []
    for partition in made.partitions(start, end):
        for batch in made.read(partition):
            found += [
                (row["id"], row["_change_type"], row["_commit_version"])
                for row in batch.to_pylist()
            ]
    return sorted(found)


def test_the_changes_of_rows_are_followed(url: str, table: Table) -> None:
    table.set_properties({"delta.enableChangeDataFeed": "true"})
    table.append(pa.table({"id": [1, 2, 3]}))
    made = reader(url, readChangeFeed="true")
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)
    assert changes(made, start, end) == [(n, "insert", 2) for n in (1, 2, 3)]
    table.overwrite(pa.table({"id": [9]}), where="id = 2 OR id = 9")
    add(table, 4)
    again = reader(url, readChangeFeed="true")
    next_one = again.latestOffset(end, ReadMaxFiles(1))
    assert changes(again, end, next_one) == [(2, "delete", 3), (9, "insert", 3)]
    last = again.latestOffset(next_one, ReadMaxFiles(1))
    assert changes(again, next_one, last) == [(4, "insert", 4)]
    assert again.latestOffset(last, ALL) == last
    # From the beginning, all at once, and after a first batch that died.
    late = reader(url, readChangeFeed="true", startingVersion="3")
    begun = late.initialOffset()
    assert changes(late, begun, late.latestOffset(begun, ALL)) == [
        (2, "delete", 3),
        (4, "insert", 4),
        (9, "insert", 3),
    ]
    table.append(pa.table({"id": [5], "a": ["x"]}), merge_schema=True)
    with pytest.raises(SourceChangedError, match="'a' of table 't' is new"):
        again.latestOffset(last, ALL)
    newer = reader(url, readChangeFeed="true")
    assert changes(newer, last, newer.latestOffset(last, ALL)) == [(5, "insert", 5)]


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
