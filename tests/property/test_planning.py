"""Random data, random conditions: no file with a matching row is missed, however it is looked up.

Tables have partitions or none, mapped columns or none, nested columns and all types. Their planned
columns change in the middle of their history, their files come, go, come back, get deletion vectors
and odd statistics. Conditions are SQL text; which rows fulfil them is decided in Python.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from deltalakedb.actions.datatypes import (
    STRING,
    ColumnPath,
    StructField,
    StructType,
    physical_name,
    schema_to_json,
)
from deltalakedb.actions.partition import encode_partition_value
from deltalakedb.actions.planning import PLANNING_COLUMNS, has_order
from deltalakedb.actions.statistics import Statistics, encode_stats
from deltalakedb.conditions import planned
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.table import Table
from property.test_where import KINDS, Condition, Kind, tree

from support.lake import Json, add, remove
from support.profiles import SOAK

EXAMPLES = 300 if SOAK else 20
ODD_TEXT = Kind(
    STRING,
    st.text(st.sampled_from("a2\ue000\ue0010\x00é-"), max_size=3)
    | st.text(st.sampled_from("ab"), max_size=2).map(lambda end: "2026-11-01 12:00 " + end),
    st.text(st.sampled_from("a2\ue0000é"), max_size=3),
)
STYLES = ("plain", "plain", "plain", "none", "broken", "some", "cut", "odd", "uncounted", "no nan")
Row = dict[str, Any]
Key = tuple[str, str]
_numbers = itertools.count()


# --- what is drawn ------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file: its rows, those that a deletion vector hides first, and the style of its writer."""

    path: str
    rows: tuple[Row, ...]
    style: str
    vector: int | None = None

    @property
    def key(self) -> Key:
        return self.path, "" if self.vector is None else f"u{self.vector:0>20}@1"

    @property
    def kept(self) -> tuple[Row, ...]:
        return self.rows if self.vector is None else self.rows[1:]


@dataclass(frozen=True)
class Step:
    """A commit: files that come, and numbers that choose what happens to those there are."""

    new: list[File]
    gone: list[int]
    back: list[int]
    hidden: list[int]
    again: list[tuple[int, str]]
    planned: str | None
    """The planned columns from here on, or None for no change."""


@dataclass(frozen=True)
class World:
    kinds: list[Kind]
    partitions: list[str]
    mapped: bool
    planned: str
    steps: list[Step]
    conditions: list[Condition]
    past: int
    few: int

    def shown(self, column: int) -> ColumnPath:
        name = f"c{column}"
        return ("st", name) if column == len(self.kinds) - 1 else (name,)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    kinds = draw(st.lists(st.sampled_from([*KINDS, ODD_TEXT]), min_size=2, max_size=4))
    last = len(kinds) - 1
    partitions = draw(st.sets(st.sampled_from([f"c{n}" for n in range(last)]), max_size=2))
    # Few values, so that files share them and conditions meet them.
    pools = {
        f"c{n}": draw(st.lists(kind.values, min_size=1, max_size=6)) for n, kind in enumerate(kinds)
    }
    cells = {name: st.sampled_from([None, *pool, *pool]) for name, pool in pools.items()}
    numbers = st.lists(st.integers(0, 99), max_size=2)

    def file(number: int) -> File:
        # Empty bytes cannot be written as the value of a partition.
        fixed = {name: draw(cells[name].filter(lambda v: v != b"")) for name in partitions}
        rows = draw(st.lists(st.fixed_dictionaries(cells), max_size=3))
        return File(
            f"f{number}", tuple({**r, **fixed} for r in rows), draw(st.sampled_from(STYLES))
        )

    names = [
        f"st.c{n}" if n == last else f"c{n}" for n, kind in enumerate(kinds) if has_order(kind.type)
    ]
    lists = st.just("")
    if names:
        lists |= st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).map(",".join)
    paths = itertools.count()
    steps = [
        Step(
            [file(next(paths)) for _ in range(draw(st.integers(2, 6)))],
            draw(numbers),
            draw(numbers),
            draw(numbers),
            [(n, draw(st.sampled_from(STYLES))) for n in draw(numbers)],
            draw(lists) if n == 1 or draw(st.integers(0, 3)) == 0 else None,
        )
        for n in range(draw(st.integers(3, 5)))
    ]
    near = [
        replace(kind, literals=kind.literals | st.sampled_from(pool))
        if (pool := [value for value in pools[f"c{n}"] if _is_plain(value)])
        else kind
        for n, kind in enumerate(kinds)
    ]
    conditions = [tree(draw, near, depth) for depth in (0, 0, 1, 1, 2, 2)]
    past, few = draw(st.integers(0, 99)), draw(st.sampled_from([0, planned.FEW]))
    return World(
        kinds, sorted(partitions), draw(st.booleans()), draw(lists), steps, conditions, past, few
    )


def _is_plain(value: Any) -> bool:
    """Whether it can be written as a literal."""
    if isinstance(value, str):
        return "\x00" not in value
    return not isinstance(value, float) or math.isfinite(value)


# --- the table ----------------------------------------------------------------------------


def create(lake: Lake, world: World) -> Table:
    last = len(world.kinds) - 1
    fields = [StructField(f"c{n}", kind.type) for n, kind in enumerate(world.kinds)]
    schema = StructType((*fields[:-1], StructField("st", StructType((fields[last],)))))
    properties = {"delta.enableDeletionVectors": "true"}
    if world.mapped:
        properties["delta.columnMapping.mode"] = "name"
    if world.planned:
        properties[PLANNING_COLUMNS] = world.planned
    number = next(_numbers)
    return lake.create_table(
        f"planned_{number}",
        location=f"file:///lake/planned_{number}",
        schema=schema_to_json(schema),
        partition_by=world.partitions,
        properties=properties,
    )


def action(file: File, world: World, schema: StructType) -> Json:
    values: dict[str, str | None] = {}
    for name in world.partitions:
        field = schema.field(name)
        value = file.rows[0][name] if file.rows else None
        values[physical_name(field)] = (
            "" if value == "" else encode_partition_value(value, field.type)
        )
    made = add(file.path, values=values, rows=None, dv=file.vector)
    text = statistics(file, world, schema)
    if text is not None:
        made["add"]["stats"] = text
    return made


def statistics(file: File, world: World, schema: StructType) -> str | None:
    """Statistics that hold for every row of the file, in some style."""
    if file.style in ("none", "broken") and file.vector is None:
        return None if file.style == "none" else '{"numRecords":null,"minValues":[1]}'
    low: dict[ColumnPath, Any] = {}
    high: dict[ColumnPath, Any] = {}
    nulls: dict[ColumnPath, int] = {}
    columns = [n for n in range(len(world.kinds)) if f"c{n}" not in world.partitions]
    for n in columns[:1] if file.style == "some" else columns:
        path, values = world.shown(n), [row[f"c{n}"] for row in file.rows]
        present = [value for value in values if value is not None]
        nulls[path] = len(values) - len(present)
        numbers = [v for v in present if not (isinstance(v, float) and math.isnan(v))]
        if numbers and not isinstance(numbers[0], bytes):
            low[path] = min(numbers)
            if len(numbers) == len(present) or file.style == "no nan":
                high[path] = max(numbers)
    stats = Statistics(
        # A file with a deletion vector has to tell.
        num_records=None if file.style == "uncounted" and file.vector is None else len(file.rows),
        min_values=low,
        max_values=high,
        null_count=nulls,
        tight_bounds=None if file.vector is None else False,
    )
    text = encode_stats(stats, schema, string_prefix_length=2 if file.style == "cut" else 32)
    if file.style == "odd":
        document = json.loads(text)
        for group in ("minValues", "maxValues"):
            if document.get(group):
                document[group][next(iter(document[group]))] = [None]
        return json.dumps(document)
    return text


class History:
    """Commits the steps of a world, and remembers which files are live."""

    def __init__(self, table: Table, world: World) -> None:
        self.table = table
        self.world = world
        self.schema = table.snapshot().schema
        self.live: dict[str, File] = {}
        self.removed: list[File] = []
        self.states: list[dict[Key, File]] = [{}]
        """The live files at each version."""
        self._vectors = itertools.count()
        self._actions: dict[str, list[Json]] = {}

    def run(self) -> None:
        for step in self.world.steps:
            self._actions = {}
            self._change(step)
            for file in step.new:
                self._come(file)
            self.table.commit([each for actions in self._actions.values() for each in actions])
            if step.planned:
                self.table.set_properties({PLANNING_COLUMNS: step.planned})
            elif step.planned == "":
                self.table.unset_properties([PLANNING_COLUMNS], if_exists=True)
            state = {file.key: file for file in self.live.values()}
            self.states += [state] * (self.table.version + 1 - len(self.states))

    def _change(self, step: Step) -> None:
        for file in self._some(step.gone, self.live.values()):
            self._go(file)
        for file in self._some(step.back, self.removed):
            if file.path not in self.live:
                self._come(file)
        for file in self._some(step.hidden, self.live.values()):
            if file.rows:
                self._go(file)
                self._come(replace(file, vector=next(self._vectors)))
        for number, style in step.again:
            for file in self._some([number], self.live.values()):
                self._come(replace(file, style=style))

    def _some(self, numbers: Iterable[int], files: Collection[File]) -> Iterator[File]:
        """Files that this commit has not touched yet, by number."""
        for number in numbers:
            free = [file for file in files if file.path not in self._actions]
            if free:
                yield free[number % len(free)]

    def _come(self, file: File) -> None:
        made = action(file, self.world, self.schema)
        self._actions.setdefault(file.path, []).append(made)
        self.live[file.path] = file

    def _go(self, file: File) -> None:
        self._actions[file.path] = [remove(file.path, dv=file.vector)]
        self.removed.append(self.live.pop(file.path))


def fulfils(file: File, world: World, test: Callable[[Row], bool | None]) -> bool:
    """Whether some row of a file does, for some reader: empty texts are null to some of them."""
    doubtful = [name for name in world.partitions if file.rows and file.rows[0][name] == ""]
    rows: Sequence[Row] = file.kept
    for name in doubtful:
        rows = [{**row, name: value} for row in rows for value in ("", None)]
    return any(test(row) is True for row in rows)


# --- the test -----------------------------------------------------------------------------


def listed(snapshot: Snapshot, where: str) -> list[Key]:
    files = snapshot.files(where, columns=["path", "dv_id"])
    return list(zip(files["path"].to_pylist(), files["dv_id"].to_pylist(), strict=True))


def check(
    snapshot: Snapshot,
    files: dict[Key, File],
    world: World,
    condition: Condition,
    seen: Counter[str],
) -> None:
    where = condition.sql
    matching = {key for key, file in files.items() if fulfils(file, world, condition.test)}
    found = listed(snapshot, where)
    lost = matching - set(found)
    assert not lost, f"{where} lost {[files[key] for key in lost]}"
    assert len(found) == len(set(found)), "each file once"
    assert set(found) <= set(files), "only files of the snapshot"
    batches = snapshot.iter_files(3, where, ["path", "dv_id"])
    pairs = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert sorted(pairs) == sorted(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "keys_of", lambda *_: None)
        plain = set(listed(snapshot, where))
    assert matching <= plain
    assert set(found) <= plain, "keys exclude whatever statistics exclude"
    seen["conditions"] += 1
    seen["others"] += len(files) - len(matching)
    seen["dropped"] += len(files) - len(found)
    seen["dropped without keys"] += len(files) - len(plain)


def test_no_file_with_a_matching_row_is_missed(
    shared_lake: Lake, record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()

    # Making an example smaller takes minutes; what it prints is enough to begin with.
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=list(Phase) if SOAK else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(worlds())
    def look(world: World) -> None:
        table = create(shared_lake, world)
        history = History(table, world)
        history.run()
        states = history.states
        note(f"{table.snapshot().properties} {table.snapshot().schema}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planned, "FEW", world.few)
            for version in {table.version, world.past % len(states)}:
                snapshot = table.snapshot(version)
                for condition in world.conditions:
                    check(snapshot, states[version], world, condition, seen)

    look()
    share = seen["dropped"] / max(seen["others"], 1)
    told = f"{share:.0%} of {seen['others']} files without a matching row were dropped"
    print(f"\n{told} ({dict(seen)})")  # noqa: T201
    record_property("selectivity", told)
    assert share > 0.2, told
