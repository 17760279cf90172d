"""Random histories, published as they happen: SQL and every reader see what was meant.

Each story makes commits to a table in a lake whose mirror is inline, and keeps beside it what each
version must hold (`stories.py`). Then our snapshots are compared with that, and all readers with
our snapshots: at the head, at old versions and at instants, with checkpoints and without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.store.url import Engine
from interop.canonical import differences
from interop.data_files import live_files
from interop.limits import Case, judge, judge_all
from interop.readers import Peers, Reader, SparkWorker
from interop.stories import REGIONS, Column, Story, set_times, without_checkpoints

from support.golden import GoldenTable
from support.published import folder_of
from support.store import Catalogs

COMMITS = 60
COLUMNS = [
    Column("id", "id", pa.int64()),
    Column("region", "region", pa.string()),
    Column("shard", "shard", pa.int32()),
    Column("word", "word", pa.string()),
    Column("price", "price", pa.decimal128(9, 2)),
    Column("moment", "moment", pa.timestamp("us", tz="UTC")),
]
ROWS = {
    "append": 40,
    "append_new_column": 2,
    "overwrite_partition": 8,
    "overwrite_range": 8,
    "overwrite_all": 1,
    "remove_files": 10,
    "rearrange": 6,
    "touch": 5,
    "add_column": 2,
    "allow_nulls": 2,
}
VECTORS = {**ROWS, "hide": 25}
MAPPED = {**ROWS, "rename_column": 5, "drop_column": 3}


def created(lake: Lake, clock: ManualClock, folder: Path, seed: int, **properties: str) -> Story:
    """A new table with two partition columns."""
    fields = [pa.field(c.name, c.kind, nullable=c.key != "id") for c in COLUMNS]
    given = {"delta.checkpointInterval": "7", **properties}
    table = lake.create_table(
        "story",
        location=str(folder),
        schema=pa.schema(fields),
        partition_by=["region", "shard"],
        properties=given,
    )
    partitions = {"region": REGIONS, "shard": (None, 0, -7, 2**31 - 1)}
    return Story(table, clock, Random(seed), list(COLUMNS), "id", partitions)


def plain(lake: Lake, clock: ManualClock, folder: Path, seed: int) -> Story:
    return created(lake, clock, folder, seed)


def vectors(lake: Lake, clock: ManualClock, folder: Path, seed: int) -> Story:
    return created(lake, clock, folder, seed, **{"delta.enableDeletionVectors": "true"})


def mapped(lake: Lake, clock: ManualClock, folder: Path, seed: int) -> Story:
    properties = {"delta.columnMapping.mode": "name", "delta.checkpointPolicy": "v2"}
    return created(lake, clock, folder, seed, **properties)


def continued(lake: Lake, clock: ManualClock, golden: GoldenTable, seed: int) -> Story:
    """A table of another engine, with deletion vectors, that goes on here."""
    table = lake.import_table(str(golden.path), "story")
    assert any(file["deletion_vector"] for file in live_files(table.snapshot()))
    kinds = {"part": pa.int32(), "col1": pa.int32(), "col2": pa.string()}
    columns = [Column(name, name, kind) for name, kind in kinds.items()]
    story = Story(table, clock, Random(seed), columns, "col1", {"part": (None, *range(5))})
    story.take_over()
    return story


Begin = Callable[[Lake, ManualClock, Path, int], Story]
BEGINNINGS: dict[str, tuple[Begin, Mapping[str, int], Engine]] = {
    "plain": (plain, ROWS, "sqlite"),
    "vectors": (vectors, VECTORS, "duckdb"),
    "mapped": (mapped, MAPPED, "postgres"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """A look at a version, by its number or by an instant at which it was the newest."""

    version: int
    timestamp: datetime | None = None

    def ask(self, reader: SparkWorker, path: Path) -> Future[pa.Table]:
        if self.timestamp is not None:
            return reader.ask_read(path, timestamp=self.timestamp)
        return reader.ask_read(path, version=self.version)


def looks(story: Story, random: Random) -> list[Look]:
    """The head and others: some around checkpoints, some anywhere, some by their time."""
    head, first = story.table.version, min(story.told)
    properties = story.table.snapshot().properties
    interval = int(properties.get("delta.checkpointInterval", "10"))
    steps = [version for version in range(first + 1, head) if version % interval == 0]
    chosen = {first, *random.sample(steps, 2), random.choice(steps) + 1}
    chosen.add(random.randrange(first, head))
    # The first version and one like it would not show who is wrong about the time.
    unlike = [v for v in story.told if first < v < head and story.told[v].rows]
    # Where commits do not carry their times, those of files count, and they are today's.
    timed = random.sample(unlike, 2) if "delta.enableInCommitTimestamps" in properties else []
    times = [Look(version, instant(story, version, random)) for version in timed]
    return [Look(head), *(Look(version) for version in sorted(chosen - {head})), *times]


def instant(story: Story, version: int, random: Random) -> datetime:
    """A moment at which a version was the newest: when it came, before the next, or between."""
    start, end = story.told[version].time_ms, story.told[version + 1].time_ms - 1
    chosen = random.choice([start, end, random.randint(start, end)])
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=chosen)


@contextmanager
def telling(catalogs: Catalogs, engine: Engine) -> Iterator[tuple[Lake, ManualClock]]:
    clock = ManualClock()
    with catalogs.fresh(engine) as url, deltalakedb.connect(url, clock=clock) as lake:
        yield lake, clock


def check_story(story: Story, lake: Lake, peers: Peers, copy: Path, random: Random) -> None:
    lake.mirror.drain()
    assert [status.state for status in lake.mirror.status()] == ["published"]
    folder = folder_of(story.table)
    for version in story.told:
        found = differences(story.rows_at(version), story.table.snapshot(version).to_arrow())
        assert not found, (version, found)
    set_times(story, folder)
    compare(story, peers, (folder, without_checkpoints(folder, copy)), looks(story, random))


def compare(story: Story, peers: Peers, folders: tuple[Path, ...], wanted: list[Look]) -> None:
    asked = {
        (reader.name, folder, look): look.ask(reader, folder)
        for reader in peers
        if isinstance(reader, SparkWorker)
        for folder in folders
        for look in shown_to(reader, wanted, first=folder == folders[0])
    }
    problems: list[str | None] = []
    for look in wanted:
        snapshot = story.table.snapshot(
            None if look.timestamp else look.version, timestamp=look.timestamp
        )
        assert snapshot.version == look.version
        ours = snapshot.to_arrow()
        for folder in folders:
            case = Case(folder, snapshot, "", look.timestamp, story.table.version)
            problems += [
                judge(reader, case, ours, asked.get((reader.name, folder, look)))
                for reader in peers
                if look in shown_to(reader, wanted, first=folder == folders[0])
            ]
    judge_all(problems)


def shown_to(reader: Reader, wanted: list[Look], *, first: bool) -> list[Look]:
    """All looks; for a slow reader they are shared out among the two folders, but for the head."""
    if not reader.slow:
        return wanted
    return wanted[::2] if first else [wanted[0], *wanted[1::2]]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("vectors"),
        pytest.param("plain", marks=pytest.mark.soak),
        pytest.param("mapped", marks=pytest.mark.soak),
    ],
)
def test_a_random_history_reads_alike_everywhere(
    name: str, catalogs: Catalogs, peers: Peers, tmp_path: Path
) -> None:
    begin, steps, engine = BEGINNINGS[name]
    with telling(catalogs, engine) as (lake, clock):
        story = begin(lake, clock, tmp_path / "story", 5)
        story.tell(steps, COMMITS)
        check_story(story, lake, peers, tmp_path / "bare", Random(5))


def test_a_table_with_deletion_vectors_goes_on_here(
    golden_tables: dict[str, GoldenTable], catalogs: Catalogs, peers: Peers, tmp_path: Path
) -> None:
    golden = golden_tables["delta-dv-partitioned-with-checkpoint"]
    with telling(catalogs, "sqlite") as (lake, clock):
        story = continued(lake, clock, golden.copy_to(tmp_path), seed=5)
        story.tell(VECTORS, 40)
        check_story(story, lake, peers, tmp_path / "bare", Random(5))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20, 25))
@pytest.mark.parametrize("name", BEGINNINGS)
def test_long_histories_read_alike_everywhere(
    name: str, seed: int, catalogs: Catalogs, peers: Peers, tmp_path: Path
) -> None:
    begin, steps, engine = BEGINNINGS[name]
    with telling(catalogs, engine) as (lake, clock):
        story = begin(lake, clock, tmp_path / "story", seed)
        story.tell(steps, 400)
        check_story(story, lake, peers, tmp_path / "bare", Random(seed))
