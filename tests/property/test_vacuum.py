"""Vacuum deletes no file that a retained version can read, and every other one.

A random log names random files in random ways: relative, absolute, percent-encoded, with dots and
doubled slashes, through links to folders; some have deletion vectors, which lie anywhere. It is
imported, perhaps through a link, perhaps cloned, and changed. What may be deleted is worked out
from real paths alone.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deltalakedb.actions import z85
from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.reading.deletion_vectors import encode_rows
from deltalakedb.table import Table

from support.profiles import examples

HOUR_MS = 3_600_000
FOLDERS = ("", "sub", "sub/deep", "a b%c", "x=1", "out")
SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "changeDataFeed"],
}


def _vector() -> tuple[bytes, int]:
    """The bytes of a deletion vector's file that hides the first row, and its size."""
    data = encode_rows(pa.array([0], pa.int64()))
    whole = b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return whole, len(data)


@dataclass
class World:
    """Folders and links, and the files in them."""

    root: Path
    parquet: bytes
    files: dict[Path, str] = field(default_factory=dict)
    """The real path of each file, and its key below the table."""

    @property
    def table(self) -> Path:
        return self.root / "a table"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def link(self) -> Path:
        return self.root / "link"

    def build(self) -> None:
        for folder in ("sub/deep", "a b%c", "x=1", "_delta_log", "_change_data"):
            (self.table / folder).mkdir(parents=True)
        self.outside.mkdir()
        (self.table / "out").symlink_to(self.outside)
        (self.table / "alias").symlink_to("sub")
        self.link.symlink_to(self.table)

    def write(self, key: str, data: bytes, *, hours: float) -> Path:
        path = self.table / key
        path.write_bytes(data)
        moment = time.time() - hours * 3600
        os.utime(path, (moment, moment))
        real = path.resolve()
        self.files[real] = key
        return real

    def spellings(self, key: str) -> list[str]:
        """Ways in which a log may name the file of a key."""
        plain = quote(key, safe="/=")
        folder, _, name = plain.rpartition("/")
        ways = [plain, quote(key, safe="/"), f"./{plain}"]
        if folder:
            ways += [f"{folder}//{name}", f"{folder}/./{name}"]
        if key.startswith("sub/"):
            ways.append(f"alias/{plain.removeprefix('sub/')}")
        for place in (self.table, self.link):
            whole = f"{quote(str(place))}/{plain}"
            ways += [
                f"file://{whole}",
                f"file:{whole}",
                whole,
                f"file://{whole}".replace("/a", "//a"),
            ]
        if key.startswith("out/"):
            ways.append(f"file://{quote(str(self.outside))}/{plain.removeprefix('out/')}")
        return ways


@dataclass
class State:
    """The live files of a version: path as the log has it, descriptor, real files."""

    live: dict[str, tuple[dict[str, Any] | None, frozenset[Path]]]
    changes: frozenset[Path]
    time_ms: int


def needed(states: list[State], cutoff: int) -> Iterator[Path]:
    """The real files of the version that was the newest at `cutoff`, and of all later ones."""
    before = [i for i, state in enumerate(states) if state.time_ms <= cutoff]
    for state in states[before[-1] if before else 0 :]:
        yield from state.changes
        for _, files in state.live.values():
            yield from files


def draw_file(world: World, data: st.DataObject, number: int) -> tuple[str, frozenset[Path], Any]:
    folder = data.draw(st.sampled_from(FOLDERS))
    key = f"{folder}/f{number}.parquet".removeprefix("/")
    files = {world.write(key, world.parquet, hours=24 * 30)}
    path = data.draw(st.sampled_from(world.spellings(key)))
    kind = data.draw(st.sampled_from(["none", "none", "u", "u in a folder", "p"]))
    if kind == "none":
        return path, frozenset(files), None
    whole, size = _vector()
    name = uuid4()
    prefix = "" if kind == "u" else data.draw(st.sampled_from(["sub", "out", "x=1"]))
    vector_key = f"{prefix}/deletion_vector_{name}.bin".removeprefix("/")
    files.add(world.write(vector_key, whole, hours=24 * 30))
    where = prefix + z85.encode(name.bytes)
    if kind == "p":
        absolute = [way for way in world.spellings(vector_key) if way.startswith(("file:", "/"))]
        where = data.draw(st.sampled_from(absolute))
    vector = {
        "storageType": kind[0],
        "pathOrInlineDv": where,
        "offset": 1,
        "sizeInBytes": size,
        "cardinality": 1,
    }
    return path, frozenset(files), vector


def write_log(world: World, data: st.DataObject, now_ms: int) -> list[State]:
    """Commit files of some versions, ten hours between any two."""
    count = data.draw(st.integers(1, 5))
    states: list[State] = []
    number = 0
    for version in range(count):
        lines: list[dict[str, Any]] = []
        live = dict(states[-1].live) if states else {}
        if not version:
            lines.append({"protocol": PROTOCOL})
            lines.append(
                {
                    "metaData": {
                        "id": str(uuid4()),
                        "format": {"provider": "parquet", "options": {}},
                        "schemaString": SCHEMA,
                        "partitionColumns": [],
                        "configuration": {"delta.enableChangeDataFeed": "true"},
                    }
                }
            )
        for path in data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else ():
            vector, _ = live.pop(path)
            line = {"path": path, "dataChange": True, "deletionTimestamp": 1}
            lines.append({"remove": line | ({"deletionVector": vector} if vector else {})})
        for _ in range(data.draw(st.integers(0, 3))):
            number += 1
            path, files, vector = draw_file(world, data, number)
            live[path] = (vector, files)
            line = {
                "path": path,
                "partitionValues": {},
                "size": len(world.parquet),
                "modificationTime": 1,
                "dataChange": True,
                "stats": '{"numRecords":2}',
            }
            lines.append({"add": line | ({"deletionVector": vector} if vector else {})})
        changes: set[Path] = set()
        if data.draw(st.booleans()):
            key = f"_change_data/c{version}"
            changes.add(world.write(key, b"changes", hours=24 * 30))
            lines.append(
                {"cdc": {"path": key, "partitionValues": {}, "size": 7, "dataChange": False}}
            )
        log = world.table / "_delta_log" / f"{version:020}.json"
        log.write_text("\n".join(map(json.dumps, lines)))
        time_ms = now_ms - (count - version) * 10 * HOUR_MS
        os.utime(log, (time_ms / 1000, time_ms / 1000))
        states.append(State(live, frozenset(changes), time_ms))
    return states


def remove_some(table: Table, states: list[State], data: st.DataObject, now_ms: int) -> None:
    live = dict(states[-1].live)
    paths = data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else []
    if not paths:
        return
    actions = []
    for path in paths:
        vector, _ = live.pop(path)
        line = {"path": path, "dataChange": True, "deletionTimestamp": now_ms}
        actions.append({"remove": line | ({"deletionVector": vector} if vector else {})})
    table.commit(actions, operation="DELETE")
    states.append(State(live, frozenset(), now_ms))


def check_readable(table: Table, states: list[State], cutoff: int) -> None:
    before = [i for i, state in enumerate(states) if state.time_ms <= cutoff]
    for version in range(before[-1] if before else 0, len(states)):
        rows = table.snapshot(version).to_arrow().num_rows
        assert rows == sum(2 if v is None else 1 for v, _ in states[version].live.values())


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("parquet") / "two.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), file)
    return file.read_bytes()


@pytest.mark.timeout(1200)
@settings(
    max_examples=examples(30),
    # An example takes as long as an import: a failing one is not made smaller.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_vacuum_deletes_what_no_retained_version_reads_and_nothing_else(
    shared_lake: Lake,
    parquet: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    lake = shared_lake
    clock = lake.store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(max(0, time.time_ns() // 1_000_000 - clock.now_ms()))
    now = clock.now_ms()
    world = World(tmp_path_factory.mktemp("vacuum"), parquet)
    world.build()
    states = write_log(world, data, now)
    for number in range(data.draw(st.integers(0, 3))):
        folder = data.draw(st.sampled_from(FOLDERS))
        age = data.draw(st.sampled_from([0, 24 * 30]))
        world.write(f"{folder}/left{number}.parquet".removeprefix("/"), b"left", hours=age)
    location = data.draw(st.sampled_from([world.table, world.link]))
    name = str(uuid4())
    table = lake.import_table(str(location), name, allowed_roots=[str(world.outside)])
    clones: list[tuple[Table, State]] = []
    if data.draw(st.booleans()):
        version = data.draw(st.integers(0, len(states) - 1))
        there = str(world.root / "clone")
        clone = lake.clone_table(name, there, f"{name}-clone", version=version)
        clones.append((clone, states[version]))
    if data.draw(st.booleans()):
        remove_some(table, states, data, now)
    clock.advance(HOUR_MS)
    hours = data.draw(st.sampled_from([0, 0.5, 5, 15, 35, 24 * 7]))
    cutoff = clock.now_ms() - int(hours * HOUR_MS)
    kept = set(needed(states, cutoff))
    for _, state in clones:
        kept |= {file for _, files in state.live.values() for file in files}
    expected = {
        file for file in world.files if file in kept or file.stat().st_mtime * 1000 >= cutoff
    }
    table.vacuum(retention_hours=hours, allow_short_retention=True)
    assert {file for file in world.files if file.exists()} == expected
    check_readable(table, states, cutoff)
    for clone, state in clones:
        clone.vacuum(retention_hours=0, allow_short_retention=True)
        check_readable(clone, [state], cutoff)
        lake.drop_table(clone.name, force=True)
    lake.drop_table(name, force=True)
