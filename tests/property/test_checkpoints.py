"""Random histories: a checkpoint of any version is what the commits up to it add up to.

Both are told by plain Python (`checkpoint_oracle.py`), tombstones included. Pages are made at
random moments, since checkpoints are read from them.
"""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.mirror.checkpoint import write_checkpoint
from deltalakedb.snapshot.page_builder import make_pages
from deltalakedb.table import Table

from support.checkpoint_oracle import checkpointed, replayed
from support.lake import add, deletion_vector, schema_json
from support.profiles import examples
from support.published import log_of, publish, record_of, storage_of

DAY_MS = 86_400_000
PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.feature.domainMetadata": "supported",
    "delta.deletedFileRetentionDuration": "interval 2 days",
    "delta.setTransactionRetentionDuration": "interval 3 days",
}
V2 = {"delta.feature.v2Checkpoint": "supported", "delta.checkpointPolicy": "v2"}
PATHS = ("a", "b%20c", "d=%2520/e", "ü")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Step:
    """One commit, and how long after the one before it comes."""

    touched: dict[str, int]
    app: tuple[str, bool] | None
    domain: tuple[str, bool] | None
    owner: str | None
    wait_ms: int
    pages: bool


@dataclass(frozen=True)
class Form:
    """How checkpoints are written, and how long after the last commit."""

    limit: int | None
    v2: bool
    late_ms: int


@dataclass
class Walk:
    """What is live, so that commits make sense."""

    live: dict[str, int | None] = field(default_factory=dict)
    apps: dict[str, int] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)


steps = st.builds(
    Step,
    st.dictionaries(st.sampled_from(PATHS), st.integers(0, 999), max_size=3),
    st.none() | st.tuples(st.sampled_from(["x", "y"]), st.booleans()),
    st.none() | st.tuples(st.sampled_from(["d", "e"]), st.booleans()),
    st.none() | st.none() | st.sampled_from(["ann", "bob"]),
    st.sampled_from([0, 1_000, DAY_MS // 2, DAY_MS]),
    st.booleans(),
)


def file_actions(walk: Walk, path: str, number: int, now_ms: int) -> list[Any]:
    """What happens to a file; the number decides."""
    if path not in walk.live:
        walk.live[path] = None
        return [described(add(path, size=number + 1), number)]
    vector = walk.live[path]
    gone: dict[str, Any] = {"path": path, "dataChange": True}
    if number % 5:
        gone["deletionTimestamp"] = now_ms - number * 1_000
    if number % 3 == 0:
        gone |= {"extendedFileMetadata": True, "partitionValues": {}, "size": number}
    if vector is not None:
        gone["deletionVector"] = deletion_vector(vector)
    if number % 4 == 0:
        del walk.live[path]
        return [{"remove": gone}]
    if number % 4 == 1 or number % 7 == vector:
        return [described(add(path, size=number, dv=vector, data_change=False), number)]
    walk.live[path] = number % 7
    return [{"remove": gone}, described(add(path, size=number, dv=number % 7), number)]


def commit(table: Table, walk: Walk, step: Step, now_ms: int) -> None:
    if step.owner is not None:
        table.set_properties({"owner": step.owner})
    actions: list[Any] = []
    for path, number in step.touched.items():
        actions += file_actions(walk, path, number, now_ms)
    if step.app is not None:
        app, tells = step.app
        walk.apps[app] = walk.apps.get(app, 0) + 1
        txn: dict[str, Any] = {"appId": app, "version": walk.apps[app]}
        actions.append({"txn": {**txn, "lastUpdated": now_ms} if tells else txn})
    if step.domain is not None:
        name, removed = step.domain
        removed = removed and name in walk.domains
        (walk.domains.discard if removed else walk.domains.add)(name)
        body = {"domain": name, "configuration": str(now_ms), "removed": removed}
        actions.append({"domainMetadata": body})
    if actions:
        table.commit(actions)


def described(action: Any, number: int) -> Any:
    """An added file with some of what files may have."""
    body = action["add"]
    if number % 2:
        body["tags"] = {"n": str(number), "none": None}
    if number % 3 == 1:
        body["stats"] = json.dumps({"numRecords": number, "minValues": {"id": number}})
    if number % 5 == 2:
        body["clusteringProvider"] = "liquid"
    if number % 6 == 5 and "deletionVector" not in body:
        del body["stats"]
    return action


@pytest.fixture(autouse=True)
def _small_tables_use_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltalakedb.snapshot.pages.LEAST_FILES", 0)
    monkeypatch.setattr("deltalakedb.snapshot.pages.LEAST_STREAMED", 0)


@settings(
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(steps, min_size=2, max_size=10),
    st.builds(
        Form,
        st.sampled_from([None, 1, 3]),
        st.booleans(),
        st.sampled_from([0, DAY_MS, 3 * DAY_MS, 5 * DAY_MS]),
    ),
)
def test_a_checkpoint_is_what_the_commits_add_up_to(
    shared_lake: Lake,
    tmp_path: Path,
    history: list[Step],
    form: Form,
) -> None:
    lake, clock = shared_lake, shared_lake.store.clock
    assert isinstance(clock, ManualClock)
    name = f"t{next(_numbers)}"
    table = lake.create_table(
        name,
        location=str(tmp_path / name),
        schema=schema_json("id"),
        properties={**PROPERTIES, **(V2 if form.v2 else {})},
    )
    walk = Walk()
    for step in history:
        clock.advance(step.wait_ms)
        commit(table, walk, step, clock.now_ms())
        if step.pages:
            make_pages(lake.store, record_of(lake, table), table.version)
    head = publish(lake, table)
    now = clock.now_ms() + form.late_ms
    for version in range(head + 1):
        written = write_checkpoint(
            lake.store,
            storage_of(table),
            record_of(lake, table),
            version,
            now_ms=now,
            max_actions=form.limit,
        )
        expected = replayed(log_of(table), version).kept(
            tombstones_after=now - 2 * DAY_MS, txns_after=now - 3 * DAY_MS
        )
        files = sorted(log_of(table).glob(f"{version:020d}.checkpoint*.parquet"))
        assert checkpointed(*files) == expected
        assert written.version == version
    shutil.rmtree(log_of(table))
