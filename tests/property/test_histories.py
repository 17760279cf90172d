"""Random histories: at every version, every way to look at a table tells what a replay tells.

The replay is plain Python over the committed actions, as the Delta protocol defines it. Beside it
are the interval table (through Arrow, whole and in batches), the window view, a NOT EXISTS query
over the ledger, and a cached list that is moved on version by version.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.clock import ManualClock
from deltalakedb.errors import VersionNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.table import Table

from support.lake import add, new_lake_table, remove
from support.profiles import examples

Key = tuple[str, int | None]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATHS = ("a", "b", "c/d", "e%20f")
PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.feature.domainMetadata": "supported",
}

NOT_EXISTS = """
SELECT a.path, a.dv_id, a.size_bytes FROM dl_add_files AS a
WHERE a.table_id = :table_id AND a.version <= :version
  AND NOT EXISTS (SELECT 1 FROM dl_remove_files AS r
                  WHERE r.table_id = a.table_id AND r.path = a.path AND r.dv_id = a.dv_id
                    AND r.version > a.version AND r.version <= :version)
  AND NOT EXISTS (SELECT 1 FROM dl_add_files AS n
                  WHERE n.table_id = a.table_id AND n.path = a.path AND n.dv_id = a.dv_id
                    AND n.version > a.version AND n.version <= :version)
"""
WINDOW = """
SELECT path, dv_id, size_bytes FROM vw_active_files
WHERE table_id = :table_id AND snapshot_version = :version
"""


@dataclass(frozen=True)
class State:
    """What the table is after some commits."""

    files: dict[Key, int] = field(default_factory=dict)
    """Size by path and number of the deletion vector."""
    added: dict[Key, int] = field(default_factory=dict)
    apps: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    owner: str | None = None


@dataclass(frozen=True)
class Step:
    """One commit: what it touches, and how long after the one before it comes."""

    touched: dict[str, int]
    """For each path a number that decides what happens to it."""
    app: tuple[str, int] | None
    domain: tuple[str, str, bool] | None
    owner: str | None
    wait: int


steps = st.builds(
    Step,
    st.dictionaries(st.sampled_from(PATHS), st.integers(0, 999), max_size=3),
    st.none() | st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 9)),
    st.none() | st.tuples(st.sampled_from(["d", "e"]), st.sampled_from("12"), st.booleans()),
    st.none() | st.none() | st.sampled_from(["ann", "bob"]),
    st.sampled_from([0, 0, 1, 2, 1_000]),
)
histories = st.lists(steps, min_size=6, max_size=16)


def commit_files(state: State, step: Step, version: int) -> tuple[list[Any], State]:
    """The file actions of a step on top of a state, and the state that the replay makes of them."""
    files, added = dict(state.files), dict(state.added)
    actions: list[Any] = []
    for path, number in step.touched.items():
        live = next((key for key in files if key[0] == path), None)
        size = number + 1
        if live is None:
            new: Key = (path, None)
            actions.append(add(path, size=size))
        elif number % 4 == 0:  # it goes
            actions.append(remove(path, dv=live[1]))
            del files[live], added[live]
            continue
        elif number % 4 == 1:  # the same file is described anew
            new = live
            actions.append(add(path, size=size, dv=live[1], data_change=False))
        else:  # some of its rows go: another deletion vector, perhaps one that it had before
            new = (path, number % 3)
            if new == live:
                continue
            actions += [remove(path, dv=live[1]), add(path, size=size, dv=new[1])]
            del files[live], added[live]
        files[new], added[new] = size, version
    return actions, replace(state, files=files, added=added)


def commit(table: Table, state: State, step: Step) -> State:
    """Commit a step; the state after it."""
    actions, after = commit_files(state, step, table.version + 1)
    apps, domains = dict(after.apps), dict(after.domains)
    if step.app is not None:
        app, number = step.app
        number = max(number, apps.get(app, -1) + 1)
        apps[app] = number
        actions.append({"txn": {"appId": app, "version": number}})
    if step.domain is not None:
        name, configuration, removed = step.domain
        removed = removed and name in domains
        body = {"domain": name, "configuration": configuration, "removed": removed}
        actions.append({"domainMetadata": body})
        domains.pop(name, None)
        if not removed:
            domains[name] = configuration
    if step.owner is not None:
        table.set_properties({"owner": step.owner})
        return replace(state, owner=step.owner)
    table.commit(actions or [{"txn": {"appId": "z", "version": table.version}}])
    if not actions:
        apps["z"] = table.version - 1
    return replace(after, apps=apps, domains=domains)


def dv_id(number: int | None) -> str:
    return "" if number is None else f"u{number:0>20}@1"


def expected_files(state: State) -> list[tuple[str, str, int]]:
    return sorted((path, dv_id(dv), size) for (path, dv), size in state.files.items())


def listed(files: Any) -> list[tuple[str, str, int]]:
    columns = (files[name].to_pylist() for name in ("path", "dv_id", "size_bytes"))
    return sorted(zip(*columns, strict=True))


def check(lake: Lake, snapshot: Snapshot, state: State) -> None:
    expected = expected_files(state)
    files = snapshot.files(columns=COLUMNS)
    assert listed(files) == expected
    versions = zip(files["path"].to_pylist(), files["added_version"].to_pylist(), strict=True)
    assert sorted(versions) == sorted((key[0], v) for key, v in state.added.items())
    for path, vector in zip(
        files["path"].to_pylist(), files["deletion_vector"].to_pylist(), strict=True
    ):
        (key,) = (key for key in state.files if key[0] == path)
        assert (vector is None) == (key[1] is None)
        if vector is not None:
            assert json.loads(vector)["pathOrInlineDv"] == f"{key[1]:0>20}"
    assert sorted(row for batch in snapshot.iter_files(2) for row in listed(batch)) == expected
    for text in (NOT_EXISTS, WINDOW):
        params = {"table_id": snapshot.table.table_id, "version": snapshot.version}
        with lake.store.read() as session:
            rows = session.execute(lake.store.dialect.sql(text), params)
        assert sorted(tuple(row) for row in rows) == expected
    assert snapshot.num_files == len(state.files)
    assert snapshot.size_bytes == sum(state.files.values())
    assert snapshot.app_transactions == state.apps
    assert snapshot.domain_metadata == state.domains
    assert snapshot.properties.get("owner") == state.owner
    for path in PATHS:
        assert snapshot.has_file(path) == any(key[0] == path for key in state.files)
        for dv in (None, 0, 1, 2):
            assert snapshot.has_file(path, dv_id(dv)) == ((path, dv) in state.files)


def check_times(table: Table, times: list[int]) -> None:
    """Each time, the millisecond before and after it, and the middle between two."""
    for moment in {t + d for t in times for d in (-1, 0, 1)} | {
        (a + b) // 2 for a, b in itertools.pairwise(times)
    }:
        at = EPOCH + timedelta(milliseconds=moment)
        if not times[0] <= moment <= times[-1]:
            with pytest.raises(VersionNotFoundError):
                table.snapshot(timestamp=at)
        else:
            wanted = sum(t <= moment for t in times) - 1
            assert table.snapshot(timestamp=at).version == wanted
            late = at + timedelta(microseconds=999)
            if moment < times[-1]:
                assert table.snapshot(timestamp=late.isoformat()).version == wanted


@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.too_slow])
@given(history=histories)
def test_every_version_is_what_a_replay_makes_of_it(shared_lake: Lake, history: list[Step]) -> None:
    lake = shared_lake
    assert isinstance(lake.store.clock, ManualClock)
    table = new_lake_table(lake, f"t.{uuid4()}", properties=PROPERTIES)
    reader = lake.table(table.name)
    states = [State()]
    for number, step in enumerate(history):
        lake.store.clock.advance(step.wait)
        states.append(commit(table, states[-1], step))
        if number % 3 != 1:  # sometimes the cache moves by more than one version
            cached = reader.cached_snapshot()
            assert cached.version == table.version
            assert listed(cached.files()) == expected_files(states[-1])
            assert cached.properties.get("owner") == states[-1].owner
    fresh = lake.table(table.name)
    for version, state in enumerate(states):
        check(lake, fresh.snapshot(version), state)
    assert listed(reader.cached_snapshot().files()) == expected_files(states[-1])
    check_times(fresh, [record.committed_at for record in reversed(fresh.history(limit=None))])
