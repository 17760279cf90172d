"""The tables that the read benchmarks open: one log, read by delta-rs and imported by us.

Only the log exists; the data files that it names do not, and nobody opens them. What a table is
follows from its `Shape` alone, so every contestant has the same files with the same statistics.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from deltalakedb.actions import (
    Action,
    AddFile,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    serialise_commit,
)
from deltalakedb.lake import Lake
from deltalakedb.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.postgres_server import PostgresServer

ENGINES = ("postgres", "sqlite", "duckdb")
ROWS = 100
"""How many rows, and so how many ids, each file has."""

COLUMNS = {"id": "long", "day": "date", "value": "double", "name": "string", "ts": "timestamp"}
_FIRST_DAY = date(2000, 1, 1)
_EPOCH_MS = 1_700_000_000_000
# An odd number: its multiples run through all 128 bits, so paths look as random as real ones.
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835


@dataclass(frozen=True, slots=True)
class Shape:
    """How many files are live at the end, after how many commits, and how many are gone again.

    The live files are the same for every history: number 0 to `live_files` - 1. Numbers above are
    files that a later commit removed. Ids grow with the commits; the days go round and round.
    """

    live_files: int
    commits: int
    removed: int
    days: int = 100
    columns: int = 4
    """How many columns have statistics; beyond four, every second one is in random order."""

    @property
    def added(self) -> int:
        """How many files there ever were; the last commit spares the ones it would only lose."""
        return self.live_files + self.removed

    def place(self, number: int) -> int:
        """Where in the order of ids a file lies; a removed one lies where a live one does."""
        if number < self.live_files:
            return number
        return (number - self.live_files) * self.live_files // self.removed

    def day(self, number: int) -> str:
        """The partition of a file."""
        return (_FIRST_DAY + timedelta(days=self.place(number) % self.days)).isoformat()

    def path(self, number: int) -> str:
        """A path as writers make them."""
        name = uuid.UUID(int=(number + 1) * _SPREAD % 2**128)
        return f"day={self.day(number)}/part-00000-{name}-c000.snappy.parquet"

    def size(self, number: int) -> int:
        """How many bytes the file has."""
        return 1_000_000 + self.place(number) * 7919 % 500_000

    def bounds(self, number: int) -> dict[str, tuple[int | float | str, int | float | str]]:
        """The smallest and the largest value of each column but the partition."""
        low = self.place(number) * ROWS
        minute = f"{low // 60_000 % 24:02}:{low // 1000 % 60:02}"
        spread = self.place(number) * 7919 % self.live_files * ROWS
        return {
            "id": (low, low + ROWS - 1),
            "value": (low % 977 / 8, low % 977 / 8 + 1000.5),
            "name": (f"customer-{low:012}", f"customer-{low + ROWS - 1:012}"),
            "ts": (f"2026-01-01T{minute}:00.000Z", f"2026-01-01T{minute}:59.999Z"),
            **{
                name: (low, low + ROWS - 1) if position % 2 else (spread, spread + ROWS - 1)
                for position, name in enumerate(self.extra_columns)
            },
        }

    @property
    def extra_columns(self) -> list[str]:
        """The columns beyond the common ones."""
        return [f"extra{number}" for number in range(self.columns - 4)]

    @property
    def schema(self) -> str:
        """The schema as JSON."""
        kinds = {**COLUMNS, **dict.fromkeys(self.extra_columns, "long")}
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in kinds.items()
        ]
        return json.dumps({"type": "struct", "fields": fields})


def churned(live_files: int, commits: int, *, columns: int = 4) -> Shape:
    """A table where about every second file that was added is gone again."""
    return Shape(live_files, commits, max(live_files, commits - live_files), columns=columns)


@dataclass(frozen=True, slots=True)
class Commit:
    """The numbers of the files that one version adds and removes."""

    version: int
    adds: list[int]
    removes: list[int]


def commits_of(shape: Shape) -> Iterator[Commit]:
    """Version 1 and on. A removed file lives for a tenth of the history, less towards the end."""
    live, added, commits = shape.live_files, shape.added, shape.commits
    waiting: deque[int] = deque()
    for version in range(1, commits + 1):
        adds, passing = [], []
        for position in range(added * (version - 1) // commits, added * version // commits):
            kept = position * live // added
            if (position + 1) * live // added > kept:
                adds.append(kept)
            elif version < commits:
                passing.append(live + position - kept)
        limit = min(shape.removed // 10, (commits - version) * shape.removed // commits)
        surplus = min(len(waiting), max(0, len(waiting) + len(passing) - limit))
        removes = [waiting.popleft() for _ in range(surplus)]
        waiting.extend(passing)
        yield Commit(version, adds + passing, removes)


def live_at(shape: Shape, version: int) -> int:
    """How many files are live at a version."""
    return sum(
        len(commit.adds) - len(commit.removes)
        for commit in commits_of(shape)
        if commit.version <= version
    )


# --- the log ------------------------------------------------------------------------------


def write_log(shape: Shape, folder: Path) -> Path:
    """Write the log of a table in a new folder, one file a commit, without a checkpoint."""
    table = folder / f"table-{uuid.uuid4().hex[:12]}"
    log = table / "_delta_log"
    log.mkdir(parents=True)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=shape.schema,
        partition_columns=("day",),
        configuration={
            "deltalakedb.planningColumns": "id",
            "delta.dataSkippingNumIndexedCols": "-1",
        },
        created_time=_EPOCH_MS,
    )
    created: list[Action] = [_commit_info(0, "CREATE TABLE"), Protocol(1, 2), metadata]
    (log / f"{0:020}.json").write_bytes(serialise_commit(created))
    for commit in commits_of(shape):
        actions: list[Action] = [
            _commit_info(commit.version, "WRITE"),
            *(add_of(shape, number, commit.version) for number in commit.adds),
            *(remove_of(shape, number, commit.version) for number in commit.removes),
        ]
        (log / f"{commit.version:020}.json").write_bytes(serialise_commit(actions))
    return table


def _commit_info(version: int, operation: str) -> CommitInfo:
    return CommitInfo(
        {
            "timestamp": _EPOCH_MS + version * 1000,
            "operation": operation,
            "operationParameters": {"mode": "Append", "partitionBy": '["day"]'},
            "engineInfo": "benchmark",
        }
    )


def add_of(shape: Shape, number: int, version: int) -> AddFile:
    """The action that adds a file."""
    bounds = shape.bounds(number)
    stats = {
        "numRecords": ROWS,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }
    return AddFile(
        shape.path(number),
        {"day": shape.day(number)},
        shape.size(number),
        _EPOCH_MS + version * 1000,
        data_change=True,
        stats=json.dumps(stats, separators=(",", ":")),
    )


def remove_of(shape: Shape, number: int, version: int) -> RemoveFile:
    """The action that removes it."""
    return RemoveFile(
        shape.path(number),
        data_change=True,
        deletion_timestamp=_EPOCH_MS + version * 1000,
        extended_file_metadata=True,
        partition_values={"day": shape.day(number)},
        size=shape.size(number),
    )


def with_checkpoint(table: Path, version: int | None = None) -> Path:
    """A copy of the log (by links) with a checkpoint by delta-rs: of the head, or of `version`."""
    from deltalake import DeltaTable

    copy = table.with_name(f"table-{uuid.uuid4().hex[:12]}")
    (copy / "_delta_log").mkdir(parents=True)
    for file in (table / "_delta_log").iterdir():
        os.link(file, copy / "_delta_log" / file.name)
    DeltaTable(str(copy), version=version).create_checkpoint()
    return copy


# --- ours ---------------------------------------------------------------------------------


def catalog_url(engine: str, server: PostgresServer, folder: Path) -> str:
    """A new, empty catalog."""
    if engine == "postgres":
        return server.url(server.create_database())
    return f"{engine}:///{folder / uuid.uuid4().hex}.db"


def import_log(lake: Lake, log: Path, shape: Shape, *, name: str) -> Table:
    """Bring a log into a catalog, as our import does for anybody, and prove that it is whole."""
    table = lake.import_table(str(log), name=name)
    with lake.store.read() as session:
        problems = lake.store.check_active_files(session, table.table_id)
    found = table.snapshot()
    if problems or (found.version, found.num_files) != (shape.commits, shape.live_files):
        raise AssertionError(
            f"{lake} has {found.num_files} files at version {found.version} instead of "
            f"{shape.live_files} at {shape.commits}; {problems=}"
        )
    return table


def settle(url: str) -> None:
    """Do now what the database would do by itself within minutes, while others are measured."""
    if url.startswith("postgres"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
