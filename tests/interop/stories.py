"""Random histories of a table, told twice: as commits to the table, and as rows in plain Python.

A story has a seed and always goes the same way. `Story.rows_at` is what a version must hold; it
comes from what the steps meant to do, never from reading the table's log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from deltalakedb.actions.datatypes import StructField, physical_name, schema_to_json
from deltalakedb.clock import ManualClock
from deltalakedb.table import Table
from interop.data_files import hide_rows, live_files, remove_file, write_rows

from support.lake import Json
from support.published import folder_of

# What names of folders and URIs are known to stumble over.
REGIONS = (
    None,
    "plain",
    "with space",
    "a/b",
    "100%",
    "a%2Fb",
    "ünï cödé/日本",
    "x=y&z",
    "what? #1",
    'it\'s "so"',
    "colon: semi;",
    "plus+tilde~",
    "\U0001f600",
    "[brackets] {braces}",
)
WORDS = (
    None,
    "",
    "a",
    "ß",
    "日本語",
    "x" * 40,
    "\U0001f600" * 20,
    "it's",
    "tab\tnew\nline",
    "100%",
)
KINDS: dict[str, pa.DataType] = {
    "text": pa.string(),
    "number": pa.int64(),
    "real": pa.float64(),
    "price": pa.decimal128(9, 2),
    "moment": pa.timestamp("us", tz="UTC"),
    "flag": pa.bool_(),
    "list": pa.list_(pa.int64()),
    "inner": pa.struct([("x", pa.int64()), ("y", pa.string())]),
}
MAKERS: dict[pa.DataType, Callable[[Random], Any]] = {
    pa.string(): lambda random: random.choice(WORDS),
    pa.int64(): lambda random: random.randint(-(2**31), 2**31 - 1),
    # Those that have a short text: `limits.py` knows who reads others inexactly.
    pa.float64(): lambda random: random.randint(-(10**6), 10**6) / 1024,
    pa.decimal128(9, 2): lambda random: Decimal(random.randint(-(10**7), 10**7)) / 100,
    pa.timestamp("us", tz="UTC"): lambda random: random.randint(-(10**15), 10**15),
    pa.bool_(): lambda random: random.random() < 0.5,
    KINDS["list"]: lambda random: random.choices([None, 1, 2], k=random.randint(0, 3)),
    KINDS["inner"]: lambda random: {"x": random.randint(0, 9), "y": random.choice(WORDS)},
}

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `key` stays the same when its name changes."""

    key: str
    name: str
    kind: pa.DataType


@dataclass(frozen=True, slots=True)
class Telling:
    """What a version must hold, and when it was committed."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    time_ms: int


@dataclass(slots=True)
class Story:
    """A table and what it must hold, at each of its versions."""

    table: Table
    clock: ManualClock
    random: Random
    columns: list[Column]
    key: str
    """The column that tells rows apart; it is never renamed."""
    partitions: Mapping[str, tuple[Any, ...]]
    """The partition columns, with the values to choose from."""
    rows: dict[int, Row] = field(default_factory=dict)
    hidden: dict[str, set[int]] = field(default_factory=dict)
    """Positions of rows that a deletion vector hides, by the path of the file."""
    told: dict[int, Telling] = field(default_factory=dict)
    next_id: int = 0

    def tell(self, steps: Mapping[str, int], count: int) -> None:
        """Make so many commits; `steps` are names of methods with their weights."""
        self.note()
        while count:
            step = self.random.choices(list(steps), list(steps.values()))[0]
            self.clock.advance(self.random.randint(1, 400_000))
            before = self.table.version
            getattr(self, step)()
            if self.table.version > before:
                assert self.table.version == before + 1
                self.note()
                count -= 1

    def take_over(self) -> None:
        """Begin with the rows that a table has that was imported."""
        rows = self.table.snapshot().to_arrow().to_pylist()
        self._keep({column.key: row[column.name] for column in self.columns} for row in rows)
        assert len(self.rows) == len(rows), f"{self.key} does not tell rows apart"
        self.next_id = max(self.rows) + 1
        for path in self._paths():
            keys = enumerate(self._keys_in(path))
            self.hidden[path] = {position for position, key in keys if key not in self.rows}

    def note(self) -> None:
        """Keep what the newest version must hold."""
        record = self.table.history(1)[0]
        telling = Telling(tuple(self.columns), tuple(self.rows.values()), record.committed_at)
        self.told[record.version] = telling

    def rows_at(self, version: int) -> pa.Table:
        """What a version must hold."""
        told = self.told[version]
        return pa.table(
            {
                column.name: pa.array([row.get(column.key) for row in told.rows], column.kind)
                for column in told.columns
            }
        )

    # --- rows -----------------------------------------------------------------------------

    def new_rows(self, count: int, **fixed: Any) -> list[Row]:
        """Rows with new keys; `fixed` are values that all of them have."""
        made = []
        for _ in range(count):
            row = {c.key: self._value(c) for c in self.columns if c.key != self.key}
            made.append({**row, self.key: self.next_id, **fixed})
            self.next_id += 1
        return made

    def _value(self, column: Column) -> Any:
        if column.key in self.partitions:
            return self.random.choice(self.partitions[column.key])
        return None if self.random.random() < 0.15 else MAKERS[column.kind](self.random)

    def as_arrow(self, rows: Iterable[Row]) -> pa.Table:
        """Rows under the names that columns have now."""
        listed = list(rows)
        return pa.table(
            {c.name: pa.array([row.get(c.key) for row in listed], c.kind) for c in self.columns}
        )

    def _keep(self, rows: Iterable[Row]) -> None:
        self.rows |= {row[self.key]: row for row in rows}

    def _forget(self, test: Callable[[Row], bool]) -> None:
        self.rows = {key: row for key, row in self.rows.items() if not test(row)}

    # --- steps: rows ------------------------------------------------------------------------

    def append(self) -> None:
        rows = self.new_rows(self.random.randint(1, 8))
        self.table.append(self.as_arrow(rows))
        self._keep(rows)

    def append_new_column(self) -> None:
        before = list(self.columns)
        self._new_column()
        rows = self.new_rows(3)
        self.table.append(self.as_arrow(rows), merge_schema=len(self.columns) > len(before))
        self._keep(rows)

    def overwrite_partition(self) -> None:
        name, values = self.random.choice(list(self.partitions.items()))
        value = self.random.choice(values)
        rows = self.new_rows(self.random.randint(0, 3), **{name: value})
        self.table.overwrite(self.as_arrow(rows), where=f"{name} {_is(value)}")
        self._forget(lambda row: bool(row[name] == value))
        self._keep(rows)

    def overwrite_range(self) -> None:
        """Some rows of a file go, the others stay, in another file."""
        first = self.random.randint(0, self.next_id)
        last = first + self.random.randint(0, 20)
        rows = self.new_rows(self.random.randint(0, 2))
        inside = range(first, last + 1)
        where = f"{self.key} >= {first} AND {self.key} <= {last}"
        rows = [row for row in rows if row[self.key] in inside]
        self.table.overwrite(self.as_arrow(rows), where=where)
        self._forget(lambda row: row[self.key] in inside)
        self._keep(rows)
        # Files that were written anew have no hidden rows.
        self.hidden = {path: rows for path, rows in self.hidden.items() if path in self._paths()}

    def overwrite_all(self) -> None:
        rows = self.new_rows(self.random.randint(0, 30))
        self.table.overwrite(self.as_arrow(rows))
        self.rows, self.hidden = {}, {}
        self._keep(rows)

    # --- steps: files -----------------------------------------------------------------------

    def _paths(self) -> set[str]:
        return {file["path"] for file in live_files(self.table.snapshot())}

    def _some_files(self, most: int) -> list[Json]:
        # Names of files are random; their statistics begin with the keys, and are not.
        files = sorted(live_files(self.table.snapshot()), key=lambda file: str(file["stats"]))
        return self.random.sample(files, min(len(files), self.random.randint(1, most)))

    def _keys_in(self, path: str) -> list[int]:
        """The keys of all rows of a file, hidden ones too, in order."""
        name = physical_name(self.table.snapshot().schema.field(self.key))
        file = folder_of(self.table) / unquote(path)
        keys: list[int] = pq.ParquetFile(file).read(columns=[name])[name].to_pylist()
        return keys

    def _seen_in(self, path: str) -> dict[int, int]:
        hidden = self.hidden.get(path, set())
        return {p: key for p, key in enumerate(self._keys_in(path)) if p not in hidden}

    def remove_files(self) -> None:
        files = self._some_files(3)
        if not files:
            return
        gone = {key for file in files for key in self._seen_in(file["path"]).values()}
        self.table.commit([remove_file(file) for file in files], operation="DELETE")
        self._forget(lambda row: row[self.key] in gone)

    def rearrange(self) -> None:
        """Rows of some files in other files: nothing changes for readers."""
        files = self._some_files(4)
        if not files:
            return
        keys = {key for file in files for key in self._seen_in(file["path"]).values()}
        rows = self.as_arrow(row for key, row in self.rows.items() if key in keys)
        snapshot, name = self.table.snapshot(), f"rearranged-{self.table.version}"
        adds = write_rows(folder_of(self.table), snapshot, rows, name, data_change=False)
        removes = [remove_file(file, data_change=False) for file in files]
        self.table.commit([*removes, *adds], operation="OPTIMIZE")

    def hide(self) -> None:
        """Some rows of a file disappear behind a deletion vector, beside those that did."""
        files = self._some_files(1)
        seen = self._seen_in(files[0]["path"]) if files else {}
        chosen = self.random.sample(sorted(seen), self.random.randint(0, max(len(seen) - 1, 0)))
        if not chosen:
            return
        path, gone = files[0]["path"], {seen[position] for position in chosen}
        hidden = {*self.hidden.get(path, set()), *chosen}
        self.table.commit(hide_rows(self.table, files[0], hidden), operation="DELETE")
        self.hidden[path] = hidden
        self._forget(lambda row: row[self.key] in gone)

    # --- steps: the table -------------------------------------------------------------------

    def touch(self) -> None:
        if self.random.random() < 0.5:
            self.table.commit([], operation="STREAMING UPDATE", app_txn=("story", self.next_id))
            self.next_id += 1
        else:
            self.table.set_properties({"owner": f"ö {self.table.version}"})

    def add_column(self) -> None:
        column = self._new_column()
        if column is not None:
            self.table.add_columns(pa.schema([pa.field(column.name, column.kind)]))

    def _new_column(self) -> Column | None:
        if len(self.columns) > 12:
            return None
        kind = self.random.choice(list(KINDS))
        column = Column(f"{kind} {self.table.version}", f"{kind}_{self.table.version}", KINDS[kind])
        self.columns.append(column)
        return column

    def allow_nulls(self) -> None:
        """The first column that must not be null is allowed to be, from now on."""
        self._change_fields(
            "CHANGE COLUMN", lambda fields: [replace(f, nullable=True) for f in fields]
        )

    def rename_column(self) -> None:
        column = self._unbound()
        if column is not None:
            name = f"né {self.table.version} of {column.key}"[:30]
            self._change_fields("RENAME COLUMN", lambda fields: _renamed(fields, column.name, name))
            self.columns[self.columns.index(column)] = replace(column, name=name)

    def drop_column(self) -> None:
        column = self._unbound()
        if column is not None:
            self._change_fields(
                "DROP COLUMNS", lambda fields: [f for f in fields if f.name != column.name]
            )
            self.columns.remove(column)

    def _unbound(self) -> Column | None:
        free = [c for c in self.columns if c.key != self.key and c.key not in self.partitions]
        return self.random.choice(free) if len(free) > 2 else None

    def _change_fields(self, operation: str, change: Callable[[Any], Any]) -> None:
        metadata = self.table.snapshot().metadata
        schema = metadata.schema
        after = replace(schema, fields=tuple(change(schema.fields)))
        if after != schema:
            changed = replace(metadata, schema_string=schema_to_json(after))
            self.table.commit([changed], operation=operation)


def _renamed(fields: Iterable[StructField], old: str, new: str) -> list[StructField]:
    return [replace(each, name=new) if each.name == old else each for each in fields]


def _is(value: Any) -> str:
    if value is None:
        return "IS NULL"
    if isinstance(value, str):
        return "= '" + value.replace("'", "''") + "'"
    return f"= {value}"


def set_times(story: Story, folder: Path) -> None:
    """Give commit files the times of their commits, as a mirror leaves them that is on time."""
    for version, told in story.told.items():
        at = told.time_ms * 1_000_000
        os.utime(folder / "_delta_log" / f"{version:020d}.json", ns=(at, at))


def without_checkpoints(folder: Path, copy: Path) -> Path:
    """The same table with nothing but commits in its log, and those came late."""
    for source in folder.rglob("*"):
        if source.is_dir() or "checkpoint" in source.name or source.suffix == ".crc":
            continue
        target = copy / source.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".json":
            target.write_bytes(source.read_bytes())
        else:
            target.hardlink_to(source)
    return copy
